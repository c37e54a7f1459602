"""The imports between folders, read from the source: each folder imports only lower ones."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxssl"
# A folder or root module may import itself and those listed before it. `ONLY` is stricter.
ORDER = (
    "errors",
    "buckets",
    "components",
    "configs",
    "collectives",
    "distributed",
    "solvers",
    "losses",
    "augment",
    "data",
    "models",
    "kinds",
    "methods",
    "training",
    "report",
    "pretrained",
    "evaluation",
    "api",
    "studies",
    "cli",
    "__main__",
    "__init__",
)
# Folder -> all that it may import, if it is used outside of jaxssl or must be independent.
ONLY = {
    "errors": set(),
    "configs": set(),
    "collectives": set(),
    "solvers": {"collectives"},
    "losses": {"errors", "collectives", "solvers"},
    "augment": {"errors"},
    "data": {"errors", "buckets", "components", "distributed"},
    "models": {"errors", "collectives", "losses"},
    "kinds": {"errors", "distributed", "augment", "data", "models"},
    "methods": {"collectives", "losses", "models"},
    "report": {"errors", "components", "configs", "training"},
}
# jaxssl/configs is a link, which rglob does not follow.
FILES = sorted({*PACKAGE.rglob("*.py"), *(PACKAGE / "configs").rglob("*.py")})


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the folders and root modules of jaxssl that a file imports, also inside functions."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxssl":
            parts = (node.module or "").split(".")[1:]
            imported |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            imported |= {name[1] for name in names if name[0] == "jaxssl" and len(name) > 1}
    return imported - {"__version__"}


@pytest.mark.fast
def test_every_package_folder_is_listed_in_the_layer_order():
    assert {layer(path) for path in FILES} == set(ORDER)


@pytest.mark.fast
def test_package_root_has_at_most_five_modules():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= 5, modules


@pytest.mark.fast
@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_imports_only_from_lower_layers(path):
    name = layer(path)
    below = ONLY.get(name, set(ORDER[: ORDER.index(name)]))
    assert not imports(path) - below - {name}, f"{path} imports {sorted(imports(path))}"


@pytest.mark.fast
@pytest.mark.parametrize(
    "folder", ["report", "pretrained", "training/output", "training/config", "training/workdir"]
)
def test_lower_folders_import_from_jaxssl_training_only_output_config_and_workdir(folder):
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        imported = re.findall(
            r"^ *from jaxssl\.training(?:\.(\w+))?", path.read_text(), re.MULTILINE
        )
        assert {*imported} <= {"output", "config", "workdir"}, path


def modules_of(folder: Path) -> dict[str, set[str]]:
    """Return for each module of a folder the modules of the folder that it imports at its top."""
    prefix = ["jaxssl", *folder.relative_to(PACKAGE).parts]
    names = {path.stem for path in folder.glob("*.py")} | {p.name for p in folder.iterdir()}
    graph = {}
    for path in folder.rglob("*.py"):
        node_name = path.relative_to(folder).parts[0].removesuffix(".py")
        imported = graph.setdefault(node_name, set())
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                if parts[: len(prefix)] == prefix:
                    rest = parts[len(prefix) :]
                    imported |= {rest[0]} if rest else {alias.name for alias in node.names}
        imported &= names - {node_name, "__init__"}
    return graph


@pytest.mark.parametrize(
    "folder",
    [
        PACKAGE,
        *sorted(p for p in PACKAGE.rglob("*") if p.is_dir() and (p / "__init__.py").exists()),
    ],
    ids=lambda p: p.name,
)
@pytest.mark.fast
def test_modules_of_a_folder_have_no_circular_imports(folder):
    graph = modules_of(folder)
    while graph:
        free = {name for name, needs in graph.items() if not needs & set(graph)}
        assert free, f"circular imports among {sorted(graph)}: {graph}"
        graph = {name: needs for name, needs in graph.items() if name not in free}


@pytest.mark.fast
def test_only_the_modules_collectives_and_distributed_communicate_between_devices():
    words = {"psum", "pmean", "all_gather", "ppermute", "axis_index", "all_to_all", "shard_map"}
    for path in FILES:
        if layer(path) not in ("collectives", "distributed"):
            nodes = ast.walk(ast.parse(path.read_text()))
            names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            assert not names & words, path


@pytest.mark.fast
def test_files_have_at_most_400_lines():
    assert [p for p in FILES if len(p.read_text().splitlines()) > 400] == []


def test_losses_import_only_jax():
    code = """
import sys
from jaxssl.losses import auc_cl_loss, pair_views
heavy = ["flax", "optax", "orbax", "grain", "tensorflow", "tensorflow_datasets", "sklearn",
         "ml_collections", "absl", "rich", "matplotlib", "tensorboardX", "PIL", "array_record"]
print([name for name in heavy if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.fast
@pytest.mark.parametrize(
    "path",
    [p for p in FILES if layer(p) != "kinds"],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_no_file_outside_kinds_compares_a_value_with_the_name_of_a_kind_of_examples(path):
    kinds = {p.stem for p in (PACKAGE / "kinds").glob("[!_]*.py")}
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Compare)
    ]
    sides = [side for node in nodes for side in (node.left, *node.comparators)]
    assert not kinds & {side.value for side in sides if isinstance(side, ast.Constant)}

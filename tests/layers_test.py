"""The imports between folders, read from the source: each folder imports only lower ones."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast
PACKAGE = Path(__file__).parents[1] / "jaxssl"
# A folder or root module may import itself and those listed before it. `ONLY` is stricter.
ORDER = "errors buckets components configs collectives distributed solvers losses augment data"
ORDER += " models kinds methods training report pretrained evaluation api studies cli"
ORDER = [*ORDER.split(), "__main__", "__init__"]
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


def imports(nodes: Iterable[ast.AST], package: str = "jaxssl") -> set[str]:
    """Return the folders and modules directly below a package that some of the nodes import."""
    imported = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    start = f"{package}."
    below = {name[len(start) :].split(".")[0] for name in imported if name.startswith(start)}
    return below - {"__version__"}


def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file, also those inside functions."""
    return list(ast.walk(ast.parse(path.read_text())))


def test_every_package_folder_is_listed_in_the_layer_order():
    assert {layer(path) for path in FILES} == set(ORDER)


def test_package_root_has_at_most_five_modules():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= 5, modules


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_file_imports_only_from_lower_layers(path):
    name = layer(path)
    below = ONLY.get(name, set(ORDER[: ORDER.index(name)]))
    imported = imports(nodes_of(path))
    assert not imported - below - {name}, f"{path} imports {sorted(imported)}"


@pytest.mark.parametrize(
    "folder", ["report", "pretrained", "training/output", "training/config", "training/workdir"]
)
def test_lower_folders_import_from_jaxssl_training_only_output_config_and_workdir(folder):
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        assert imports(nodes_of(path), "jaxssl.training") <= {"output", "config", "workdir"}, path


def modules_of(folder: Path) -> dict[str, set[str]]:
    """Return for each module of a folder the modules of the folder that it imports at its top."""
    package = ".".join(["jaxssl", *folder.relative_to(PACKAGE).parts])
    names = {path.name.removesuffix(".py") for path in folder.iterdir()} - {"__init__"}
    graph = defaultdict(set)
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).parts[0].removesuffix(".py")
        graph[name] |= imports(ast.parse(path.read_text()).body, package) & names - {name}
    return graph


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in PACKAGE.rglob("__init__.py")), ids=lambda p: p.name
)
def test_modules_of_a_folder_have_no_circular_imports(folder):
    graph = modules_of(folder)
    while graph:
        free = {name for name, needs in graph.items() if not needs & set(graph)}
        assert free, f"circular imports among {sorted(graph)}: {graph}"
        graph = {name: needs for name, needs in graph.items() if name not in free}


def test_only_the_modules_collectives_and_distributed_communicate_between_devices():
    words = {"psum", "pmean", "all_gather", "ppermute", "axis_index", "all_to_all", "shard_map"}
    for path in FILES:
        if layer(path) not in ("collectives", "distributed"):
            attributes = [node for node in nodes_of(path) if isinstance(node, ast.Attribute)]
            assert not words & {node.attr for node in attributes}, path


def test_files_have_at_most_400_lines():
    assert [p for p in FILES if len(p.read_text().splitlines()) > 400] == []


def test_no_file_outside_kinds_compares_a_value_with_the_name_of_a_kind_of_examples():
    kinds = {p.stem for p in (PACKAGE / "kinds").glob("[!_]*.py")}
    for path in FILES:
        if layer(path) != "kinds":
            comparisons = [node for node in nodes_of(path) if isinstance(node, ast.Compare)]
            sides = [side for node in comparisons for side in (node.left, *node.comparators)]
            names = {side.value for side in sides if isinstance(side, ast.Constant)}
            assert not kinds & names, path

"""Who may import whom, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "jaxssl"
CORE = {"pairs", "parallel"}
# What a layer may import of jaxssl, besides itself and `errors`.
ALLOWED = {
    "errors": set(),
    "accumulate": set(),
    "parallel": set(),
    "schedules": set(),
    "record": set(),
    "pairs": {"parallel"},
    "objective": CORE,
    "rows": CORE,
    "memory": CORE,
    "solvers": set(),
    "losses": CORE | {"objective", "rows", "memory", "solvers"},
    "nets": {"parallel"},  # norms over the nodes of all devices
    "augment": set(),
    "data": {"parallel"},
    "encoder": {"accumulate"},
    "method": CORE | {"objective"},
    "methods": CORE | {"objective", "memory", "encoder", "method"},
    "optim": {"schedules"},
    "state": {"compiled", "parallel", "method"},
    "lock": {"record"},
    "faults": {"record"},
    "checkpoint": {"parallel", "record"},
    "collapse": {"pairs"},
    "stratify": set(),
    "logistic": {"parallel", "stratify"},
    "tune": {"parallel", "schedules", "augment", "optim", "data"},
    # Protocols that train, or look at images, need more than those that are handed features.
    "evals": {
        "augment",
        "collapse",
        "data",
        "logistic",
        "pairs",
        "parallel",
        "stratify",
        "tune",
    },
    "backbone": {"augment", "encoder"},
    "weights": {"augment", "backbone", "encoder", "nets"},
    "config_types": set(),
    "config": {"augment", "config_types"},
    "modality": {"augment", "backbone"},
    "page": set(),
    "plots": set(),
    "report": {"cli", "config", "page", "plots", "record", "results"},
    "build": {
        "augment",
        "config",
        "config_types",
        "data",
        "encoder",
        "method",
        "modality",
        "objective",
        "optim",
        "schedules",
        "state",
    },
    "summary": {"build", "config", "data", "modality", "state"},
    "features": {
        "augment",
        "backbone",
        "build",
        "checkpoint",
        "compiled",
        "config",
        "modality",
        "parallel",
        "state",
        "weights",
    },
    "subject": {
        "augment",
        "backbone",
        "build",
        "data",
        "encoder",
        "evals",
        "features",
        "modality",
        "parallel",
        "tune",
    },
    "programs": {"build", "data", "method", "modality", "parallel", "state", "subject"},
    "results": {"evals", "record"},
    "card": {"augment", "backbone", "nets", "results"},
    "export": {"backbone", "card", "cli", "features", "record", "results", "weights"},
    "hardest": set(),
    "support": {"hardest", "losses", "objective", "pairs"},
    "block": {
        "backbone",
        "build",
        "config",
        "data",
        "features",
        "hardest",
        "objective",
        "parallel",
        "record",
        "schedules",
        "support",
    },
    "gallery": {
        "augment",
        "backbone",
        "block",
        "build",
        "compiled",
        "data",
        "evals",
        "modality",
        "pairs",
        "record",
    },
    "show": {"cli", "config", "data", "gallery", "modality", "record"},
    "study": {"plots"},
    "elsewhere": {"study"},
    "bias": CORE | {"objective"},
    "findings": {"page", "record", "study"},
    "compiled": set(),
    "cli": {"compiled", "parallel"},
}
# On top of all others.
TOP = ("loop", "dry_run", "evaluate", "suite", "grid", "stability", "studies", "claims", "__init__")
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of jaxssl that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxssl":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {name[1] for name in names if name[0] == "jaxssl" and len(name) > 1}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_layer_imports_only_those_below_it(path):
    name = "show" if path.name == "show.py" else layer(path)  # a command that lies in data/
    if name in TOP:
        return
    above = imports(path) - ALLOWED[name] - {name, "errors"}
    assert not above, f"{path} imports {sorted(above)}"


def test_only_the_doors_and_grids_import_the_loop():
    assert [p.name for p in FILES if "loop" in imports(p)] == ["grid.py"]


def test_only_parallel_has_collectives():
    words = ("psum", "pmean", "all_gather", "ppermute", "shard_map", "axis_index", "all_to_all")
    for path in FILES:
        if layer(path) != "parallel":
            names = {
                node.attr
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute)
            }
            assert not names & set(words), path


def test_files_stay_small():
    assert [p for p in FILES if len(p.read_text().splitlines()) > 400] == []


def test_losses_and_pairs_pull_in_jax_only():
    code = """
import sys
from jaxssl.losses import auc_cl_loss
from jaxssl.losses.pairs import pair_views
heavy = ["flax", "optax", "orbax", "grain", "tensorflow", "tensorflow_datasets", "sklearn",
         "ml_collections", "absl", "rich", "matplotlib", "tensorboardX", "PIL", "array_record"]
print([name for name in heavy if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

"""Constants of each loss, compared on a validation split of the training images.

Every loss has the same number of candidates, at one batch size. Test images are never used: encoder
and classifiers are trained on a part of the training split, and classify another part of it.
docs/measurements.md has the constants that were chosen.
"""

import tomllib
from collections.abc import Sequence
from math import inf, isnan
from pathlib import Path

from jaxssl.studies import grid
from jaxssl.studies.cells import Cell, combinations
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, Results
from jaxssl.studies.run_results import RunResult
from jaxssl.studies.study import Findings, Setting, Table, read_claims, scale_value, select_methods
from jaxssl.studies.verdicts import mean, spread

FLAGS = ("methods",)
BATCH_SIZE = 64
# By scale: the slice to train on, the slice to validate on, and the epochs.
SPLITS = {
    "tiny": ("train[:80%]", "train[80%:]", 20),
    "small": ("train[:16%]", "train[16%:20%]", 10),
    "medium": ("train[:90%]", "train[90%:]", 10),
    "paper": ("train[:90%]", "train[90%:]", 100),
}
CLAIMS = read_claims("tuning")
OF_TRAINING = "_training"  # ends the name of a method if its training settings are compared
# The candidates of each method, and the changes of the training, are grids of config values.
_GRIDS = tomllib.loads(Path(__file__).with_name("tuning.toml").read_text("utf-8"))
_TRAINING = _GRIDS.pop("training")
CANDIDATES: dict[str, list[Cell]] = {
    method: [
        cell
        for values in (_TRAINING if method.endswith(OF_TRAINING) else []) + grids
        for cell in combinations(values)
    ]
    for method, grids in _GRIDS.items()
}


def run(setting: Setting) -> Findings:
    """Train with each candidate setting and classify the validation split."""
    methods = select_methods(setting.methods, tuple(CANDIDATES))
    train, validation, epochs = scale_value(setting, SPLITS)
    cells = {
        (method, _describe(candidate)): {
            **METHODS[method.removesuffix(OF_TRAINING)],
            **candidate,
            "data.train_split": train,
            "data.test_split": validation,
            "data.bank_split": "",  # the training split, without validation images
            "batch_size": BATCH_SIZE,
            "epochs": epochs,
        }
        for method in methods
        for candidate in CANDIDATES[method]
    }
    results = grid.run_grid(setting, cells)
    tables = [_table(method, results) for method in methods]
    where = f"{grid.describe_runs(results)}, classified: {validation}"
    return Findings(tables, (), {}, {"results": grid.metrics_by_cell(results)}, where)


def _table(method: str, results: Results) -> Table:
    """Build a table of a method's candidate settings, by descending k-NN accuracy."""
    candidates = {text: runs for (name, text), runs in results.items() if name == method}
    rows = [
        (text, *(spread(grid.seed_values(candidates[text], metric)) for metric in (KNN, LINEAR)))
        for text in sorted(candidates, key=lambda text: _rank(candidates[text]))
    ]
    return Table(method, ("constants", "k-NN", "linear"), rows)


def _rank(runs: Sequence[RunResult]) -> float:
    """Return the key that sorts candidates: the best is first, diverged ones are last."""
    accuracy = mean(grid.seed_values(runs, KNN))
    return inf if isnan(accuracy) else -accuracy  # NaN would leave the order undefined.


def _describe(candidate: Cell) -> str:
    """Return the settings of a candidate in words, such as "temperature 0.1"."""
    names = [key.removesuffix(".name").rpartition(".")[2] for key in candidate]
    values = [f"{v:g}" if isinstance(v, float) else str(v) for v in candidate.values()]
    return ", ".join(map("{} {}".format, names, values)) or "no change"

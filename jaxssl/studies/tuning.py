"""Constants of each loss, compared on a validation split of the training images.

Every loss has the same number of candidates, at one batch size. Test images are never used: the
encoder is trained on a part of the training split, and the accuracy is measured on the rest.
docs/methods.md has the constants that were chosen.
"""

from jaxssl.components import Settings
from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, Results
from jaxssl.studies.study import Findings, Setting, Table, read_claims, scale_value, select_methods
from jaxssl.studies.verdicts import mean, spread

FLAGS = ("methods",)
BATCH_SIZE = 64
# Maps a scale to the slice to train on, the slice to validate on, and the epochs.
SPLITS = {
    "tiny": ("train[:80%]", "train[80%:]", 20),
    "small": ("train[:16%]", "train[16%:20%]", 10),
    "medium": ("train[:90%]", "train[90%:]", 10),
    "paper": ("train[:90%]", "train[90%:]", 100),
}
CLAIMS = read_claims("tuning")

CANDIDATES: dict[str, list[Settings]] = {
    "simclr": [
        {"temperature": t} for t in (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
    ],
    "auc_cl": [
        *(
            {"a": a, "negative_weight": weight, "alpha": 0.5}
            for a in (3.0, 10.0, 30.0)
            for weight in (16.0, 64.0, 256.0)
        ),
        *({"a": 10.0, "negative_weight": 64.0, "alpha": alpha} for alpha in (0.1, 1.0, 2.0)),
    ],
    "mmcl": [
        {"gamma": gamma, "C": c} for gamma in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0) for c in (1.0, 100.0)
    ],
    "decl": [
        *({"temperature": t} for t in (0.1, 0.2, 0.3, 0.5, 0.7)),
        *({"temperature": t, "weight": 1.0} for t in (0.2, 0.5)),
        *({"temperature": t, "weight": 1.0, "u": "mean"} for t in (0.2, 0.5)),
        {"temperature": 0.2, "weight": 0.5, "u": "mean"},
        {"temperature": 0.2, "u": "mean"},
        {"temperature": 0.2, "momentum": 0.5},
    ],
    "tcl": [
        *(
            {"temperature": t, "k1": 1.0, "k2": k2}
            for t in (0.1, 0.2, 0.3, 0.5, 0.7)
            for k2 in (1.0, 1.5)
        ),
        {"temperature": 0.2, "k1": 1.0, "k2": 3.0},
        {"temperature": 0.2, "k1": 100.0, "k2": 1.5},
    ],
}


def run(setting: Setting) -> Findings:
    """Train with each candidate setting and classify the validation split."""
    methods = select_methods(setting.methods, tuple(CANDIDATES))
    train, validation, epochs = scale_value(setting, SPLITS)
    common = {
        "data.train_split": train,
        "data.test_split": validation,
        "batch_size": BATCH_SIZE,
        "epochs": epochs,
    }
    cells = {
        (method, _describe(candidate)): {
            **METHODS[method],
            **{f"loss.{name}": value for name, value in candidate.items()},
            **common,
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
        (text, *(spread(grid.seed_values(runs, metric)) for metric in (KNN, LINEAR)))
        for text, runs in sorted(
            candidates.items(), key=lambda item: -mean(grid.seed_values(item[1], KNN))
        )
    ]
    return Table(method, ("constants", "k-NN", "linear"), rows)


def _describe(candidate: Settings) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in candidate.items()
    )

"""Constants of each loss, compared on a validation split of the training images.

Every loss has the same number of candidates, at one batch size. Test images are never used: encoder
and classifiers are trained on a part of the training split, and classify another part of it.
docs/methods.md has the constants that were chosen.
"""

from collections.abc import Sequence
from math import inf, isnan

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

TEMPERATURES = (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
COARSE_TEMPERATURES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of methods with a second constant
GAMMAS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
QUEUES = (1024, 4096)
MOMENTA = (0.8, 0.9, 0.95, 0.99, 0.996, 0.999)


def _candidates(**loss: Sequence[object]) -> list[Cell]:
    """Return a candidate for every combination of values of the loss's settings."""
    return combinations({f"loss.{name}": options for name, options in loss.items()})


# Changes of the training, one at a time, with the papers' values among them.
TRAINING: list[Cell] = [
    {},
    {"optim.lr": 1e-3},
    {"optim.lr": 4e-3},
    {"optim.name": "adam"},
    {"optim.weight_decay": 1e-2},
    {"schedule.name": "constant", "schedule.warmup_epochs": 0.0},
    {"schedule.warmup_epochs": 3.0},
    {"head.proj_hidden_dim": 1024},
    {"head.proj_layers": 3},
    {"head.proj_output_dim": 512},
]
# Twelve candidates for each method: the settings that its paper tunes or leaves open, around the
# published values.
CANDIDATES: dict[str, list[Cell]] = {
    "simclr": _candidates(temperature=TEMPERATURES),
    "auc_cl": [
        *_candidates(a=(3.0, 10.0, 30.0), negative_weight=(16.0, 64.0, 256.0), alpha=(0.5,)),
        *_candidates(a=(10.0,), negative_weight=(64.0,), alpha=(0.1, 1.0, 2.0)),
    ],
    "auc_cl_sum": _candidates(a=(1.0, 3.0, 10.0, 30.0), alpha=(0.1, 0.5, 1.0)),
    "mmcl": _candidates(gamma=GAMMAS, C=(1.0, 100.0)),
    "mmcl_inv": _candidates(gamma=GAMMAS, regularization=(0.1, 1.0)),
    "decl": [
        *_candidates(temperature=(0.1, 0.2, 0.3, 0.5, 0.7)),
        *_candidates(temperature=(0.2, 0.5), weight=(1.0,)),
        *_candidates(temperature=(0.2, 0.5), weight=(1.0,), u=("mean",)),
        *_candidates(temperature=(0.2,), weight=(0.5,), u=("mean",)),
        *_candidates(temperature=(0.2,), u=("mean",)),
        *_candidates(temperature=(0.2,), momentum=(0.5,)),
    ],
    "tcl": [
        *_candidates(temperature=(0.1, 0.2, 0.3, 0.5, 0.7), k1=(1.0,), k2=(1.0, 1.5)),
        *_candidates(temperature=(0.2,), k1=(1.0,), k2=(3.0,)),
        *_candidates(temperature=(0.2,), k1=(100.0,), k2=(1.5,)),
    ],
    "dcl": _candidates(temperature=TEMPERATURES),
    "sogclr": _candidates(temperature=COARSE_TEMPERATURES, gamma=(0.5, 0.9)),
    "xbm": combinations({"loss.temperature": COARSE_TEMPERATURES, "method.queue_size": QUEUES}),
    "moco_v3": combinations(
        {"loss.temperature": (0.05, 0.1, 0.2, 0.5), "method.momentum": (0.9, 0.99, 0.996)}
    ),
    "nnclr": _candidates(temperature=COARSE_TEMPERATURES, support_size=QUEUES),
    "byol": combinations({"method.momentum": MOMENTA, "predictor.pred_hidden_dim": (256, 1024)}),
    "barlow_twins": _candidates(
        off_diagonal_weight=(0.0005, 0.002, 0.005, 0.02, 0.05, 0.2), scale=(0.025, 1.0)
    ),
    "vicreg": _candidates(
        invariance_weight=(5.0, 10.0, 25.0, 50.0), covariance_weight=(0.1, 1.0, 5.0)
    ),
    "lejepa": _candidates(
        weight=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    ),
    f"auc_cl{OF_TRAINING}": [
        *TRAINING,
        {"loss.negative_weight": {"schedule": "cosine", "start": 256.0, "end": 16.0}},
        {"loss.learn": ()},
    ],
    f"simclr_tuned{OF_TRAINING}": [
        *TRAINING,
        {"loss.temperature": {"schedule": "cosine", "start": 0.2, "end": 0.05}},
        {"loss.learn": ("temperature",)},
    ],
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

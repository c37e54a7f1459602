"""The plan of record.py: its measurements in order, and their estimated times.

A piece is a check, a measurement or a training run in a process of its own; `record_pieces.py` runs
it. Estimates are guesses for an H200 until docs/record.json has measured times.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxssl.studies import accuracy
from jaxssl.studies.compared_methods import METHODS

AUC_CL = "recommended"  # preset of AUC-CL to train
METHOD_NAMES = {
    "simclr": "SimCLR",
    "simclr_sgd": "SimCLR, lightly's optimiser",
    f"auc_cl_{AUC_CL}": f"AUC-CL, {AUC_CL}",
    "tcl": "TCL",
    "mmcl_inv": "MMCL-INV",
    "decl": "DeCL",
    "byol_sgd": "BYOL, lightly's optimiser",
    "byol": "BYOL",
    "moco_v3": "MoCo-v3",
    "barlow_twins": "Barlow Twins",
}
# lightly's optimiser on CIFAR-10 (its cifar10_benchmark.py): SGD with a rate of 0.06 at batch size
# 128, and no warm-up. The AdamW of the scale "paper" is AUC-CL's.
SGD = {
    **{"optim.name": "sgd", "optim.lr": 0.12, "optim.lr_scaling": "linear"},
    **{"optim.weight_decay": 5e-4, "optim.decay_all": True, "schedule.warmup_epochs": 0.0},
}
BYOL = {
    "method.name": "momentum",
    "method.preset": "byol",
    "predictor.name": "mlp",
    "loss.name": "byol",
}
# Losses with their papers' settings, and the heads that a method needs. Network, augmentation and
# epochs are the scale's for all methods, and so is the optimiser except where SGD is named.
ARMS: dict[str, dict[str, Any]] = {
    **{arm: accuracy.ARMS[arm] for arm in ("simclr", "mmcl_inv", "decl", "tcl", "moco_v3")},
    f"auc_cl_{AUC_CL}": {**METHODS["auc_cl"], "loss.preset": AUC_CL},
    "byol": BYOL,
    "simclr_sgd": {**accuracy.ARMS["simclr"], **SGD},
    "byol_sgd": {**BYOL, **SGD},
    "barlow_twins": {  # loss and projector as in solo-learn for CIFAR-10
        "loss.name": "barlow_twins",
        "loss.preset": "solo_learn",
        "loss.scale": 0.1,
        "head.proj_hidden_dim": 2048,
        "head.proj_output_dim": 2048,
        "head.proj_layers": 3,
    },
}
SWEPT = ("simclr", f"auc_cl_{AUC_CL}")  # methods that run at all batch sizes
# Minutes of a run relative to SimCLR's, because of three views or a second network without
# gradient.
COSTS = {"tcl": 1.5, "byol": 1.3, "byol_sgd": 1.3, "moco_v3": 1.3, "mmcl_inv": 1.2}
LEAST = 0.2  # smallest share of a stopped run from which its whole time is estimated
MARGIN = 1.1  # A measurement starts if this multiple of its estimate is left.


class Piece(NamedTuple):
    """One measurement of the plan, which runs in one process.

    Attributes:
        name: "KIND/NAME".
        settings: arguments of the function KIND of `record_pieces.py`.
        minutes: estimated time without other pieces on the device.
        cores: CPU cores that it keeps busy.
        memory: device memory that it needs, in GiB.
        alone: True if it measures times, so that other pieces must wait.
    """

    name: str
    settings: dict[str, Any]
    minutes: float
    cores: int
    memory: float
    alone: bool = False

    @property
    def kind(self) -> str:
        """Return the name of the function that runs the measurement."""
        return self.name.partition("/")[0]


class Scale(NamedTuple):
    """Size of the measurements of a scale: networks, batch sizes, seeds.

    Attributes:
        config: variant of `configs/studies.py` that all runs start from.
        common: changes to the config that all runs share.
        batch: batch size of the comparison of methods.
        batches: further batch sizes for two methods.
        cases: losses to check: "all" cases of the tests, or each with its "defaults".
        parts: number of pieces of this check, which run side by side because they mostly compile.
        steps: training steps to check: pairs of method and network by precision.
        speed: rows of network, batch size and precision. The first is also traced.
        turns: number of rounds, and seconds of each, in which steps are timed.
        traced: further rows to trace.
        attention: images, tokens, heads, head size, and the row whose step is timed or None.
        minutes: estimates of a check, a row of speed, a trace, attention and a run.
    """

    config: str
    common: dict[str, Any]
    batch: int
    batches: tuple[int, ...]
    cases: str
    parts: int
    steps: dict[str, list[list[str]]]
    speed: list[list[Any]]
    turns: list[float]
    traced: list[list[Any]]
    attention: dict[str, Any]
    minutes: dict[str, float]


# Checks of training steps: methods without and with a momentum network, and with a trained loss.
FEW = ("simclr", "byol", f"auc_cl_{AUC_CL}")


def _steps(networks: Mapping[str, str], arms: Sequence[str]) -> list[list[str]]:
    return [[arm, networks.get(arm, "convnet")] for arm in arms]


SCALES = {
    "paper": Scale(
        config="paper",
        common={"precision": "bf16"},
        batch=128,
        batches=(64, 256, 512),
        cases="all",
        parts=4,
        steps={
            # The optimiser of these steps is plain SGD.
            "float32": _steps(
                {"simclr": "resnet18"}, [arm for arm in METHOD_NAMES if not arm.endswith("_sgd")]
            ),
            "bf16": _steps({"simclr": "resnet18"}, FEW),
        },
        speed=[
            *(["resnet18", batch, how] for how in ("bf16", "float32") for batch in (128, 256, 512)),
            ["vit_s", 256, "bf16"],
            ["resnet50", 128, "bf16"],
        ],
        turns=[5, 0.5],
        traced=[["resnet18", 512, "bf16"], ["vit_s", 256, "bf16"], ["resnet50", 128, "bf16"]],
        attention={
            "images": 512,
            "tokens": 197,
            "heads": 12,
            "size": 32,
            "row": ["vit_s", 256, "bf16"],
        },
        minutes={"check": 2.0, "speed": 1.2, "trace": 0.7, "attention": 1.5, "run": 5.5},
    ),
    "tiny": Scale(
        config="tiny",
        common={"epochs": 4, "log_every": 5},
        batch=64,
        batches=(16, 32),
        cases="defaults",
        parts=1,
        steps={"float32": _steps({}, FEW[:2])},
        speed=[["tiny", 16, "float32"]],
        turns=[2, 0.05],
        traced=[],
        attention={"images": 8, "tokens": 17, "heads": 3, "size": 8, "row": None},
        minutes={"check": 0.6, "speed": 0.5, "trace": 0.4, "attention": 0.3, "run": 0.5},
    ),
}


def make_plan(name: str, data: Sequence[Sequence[str]] = ()) -> list[Piece]:
    """Return all measurements of a scale in order: checks, speed, methods, batch sizes, seeds.

    Args:
        name: one of `SCALES`.
        data: overrides (dotted key, text) of the group `config.data` for all runs.
    """
    scale, minutes = SCALES[name], SCALES[name].minutes

    def check(name: str, share: float, **settings: Any) -> Piece:
        return Piece(f"check/{name}", settings, share * minutes["check"], 2, 8.0)

    parts = range(scale.parts)
    plan = [check(f"losses-{i + 1}", 1, cases=scale.cases, part=[i, len(parts)]) for i in parts]
    plan.append(check("solvers", 0.5))
    for how, steps in scale.steps.items():
        plan.append(check(f"steps-{how}", 2, precision=how, steps=steps))

    def measured(kind: str, row: Sequence[Any], **more: Any) -> Piece:
        settings = dict(zip(("network", "batch", "precision"), row, strict=True)) | more
        label = "-".join(map(str, row))
        return Piece(f"{kind}/{label}", settings, minutes[kind], 8, 0.0, alone=True)

    rounds, seconds = scale.turns
    for i, row in enumerate(scale.speed):
        plan.append(measured("speed", row, rounds=rounds, seconds=seconds))
        if not i or row in scale.traced:
            plan.append(measured("trace", row))
    plan.append(Piece("attention/vit", scale.attention, minutes["attention"], 8, 0.0, alone=True))

    def run(arm: str, batch: int, seed: int) -> Piece:
        values = {**scale.common, **ARMS[arm], "batch_size": batch, "seed": seed}
        settings = {"config": scale.config, "values": values, "data": [list(x) for x in data]}
        length = minutes["run"] * COSTS.get(arm, 1.0) * max(1.0, scale.batch / batch)
        memory = 8.0 * max(1.0, batch / 128)
        return Piece(f"run/{arm}-b{batch}-s{seed}", settings, length, 2, memory)

    for seeds in ((0,), (1, 2)):
        plan += [run(arm, scale.batch, seed) for seed in seeds for arm in METHOD_NAMES]
        plan += [run(arm, b, seed) for seed in seeds for b in scale.batches for arm in SWEPT]
    return plan


def family(name: str) -> str:
    """Return a measurement's name without its seed, on which the time does not depend."""
    return re.sub(r"-s\d+$", "", name)


class Estimates:
    """Estimated times of the measurements on a device, from the measured times there."""

    def __init__(self, plan: Iterable[Piece], record: Mapping[str, Any], device: str) -> None:
        planned = {piece.name: piece.minutes for piece in plan}
        self._families: dict[str, list[float]] = {}
        # measured time over planned time, by kind of measurement
        self._ratios: dict[str, list[float]] = {}
        for name, figure in {**record["figures"], **record["unfinished"]}.items():
            if figure["device"] == device and name in planned:
                share = figure.get("share", 1.0)  # completed share of an unfinished run
                minutes = figure["minutes"]
                if share < LEAST:
                    minutes = max(planned[name], 2 * minutes)
                else:
                    minutes /= share
                    kind = name.partition("/")[0]
                    self._ratios.setdefault(kind, []).append(minutes / planned[name])
                self._families.setdefault(family(name), []).append(minutes)

    def minutes(self, piece: Piece) -> float:
        """Estimate the minutes of a measurement.

        This is the longest measured time of its family. Without one, it is the plan's estimate
        times the median ratio of measured to planned time of its kind. For a piece that was stopped
        early, it is the plan's estimate or twice the time that the piece had, if that is longer.
        """
        return max(
            self._families.get(family(piece.name), ()),
            default=piece.minutes * statistics.median(self._ratios.get(piece.kind, [1.0])),
        )

"""Read the runs of a comparison, and group runs that differ only in the seed."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxssl.components import Settings
from jaxssl.configs.base import CHANGEABLE_KEYS
from jaxssl.errors import UserError
from jaxssl.report import results
from jaxssl.report.workdir import flatten, is_finite, read_config, read_metrics
from jaxssl.training.output.metrics_writer import Row as Metrics
from jaxssl.training.workdir import goodput

# Parts of goodput.json that count as training: not the set-up, restarts and evaluation.
TRAINING = ("steps", "input wait", "compilation", "checkpoints")
# The results of one metric have these keys in common. They may differ in data, seed and step.
OF_METRIC = tuple(name for name in results.KEY if name not in ("source", "step", "data", "seed"))


class Run(NamedTuple):
    """A run of a comparison, with workdir, config, results and metrics.

    Attributes:
        name: name of the folder, or its path where two folders have the same name.
        config: the effective config.
        metrics: the lines of metrics.jsonl.
        rows: results of the pretrained network at ``step`` and its online metrics of the last and
            the best epoch, one for each metric, see `_choose`.
        left_out: number of results of the pretrained network that are not in ``rows``.
        step: latest evaluated checkpoint or, without an evaluation, the last logged step.
        loss: name of the loss. The settings that differ from their defaults follow, if this run or
            a compared run with the same settings of the loss was evaluated.
        seconds: training time, None if it was not recorded.
    """

    name: str
    config: Settings
    metrics: list[Metrics]
    rows: list[results.Row]
    left_out: int
    step: int | None
    loss: str
    seconds: float | None


class Group(NamedTuple):
    """Runs that differ only in the seed, which form one column of the comparison.

    Attributes:
        runs: one or more.
    """

    runs: list[Run]

    @property
    def name(self) -> str:
        """Return the names of the runs. A long list is shortened to the first and the last."""
        names = [run.name for run in self.runs]
        return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"

    @property
    def seeds_text(self) -> str:
        """Return the number of seeds of the group in words, or "" for a single run."""
        return f"{len(self.runs)} seeds" if len(self.runs) > 1 else ""


def read_runs(workdirs: Sequence[Path]) -> list[Run]:
    """Read config, results and metrics of the runs to compare.

    Raises:
        UserError: for a folder that holds no run or is named twice, or a damaged file.
    """
    check_workdirs(workdirs)
    names = [path.resolve().name for path in workdirs]
    if len(set(names)) < len(names):
        names = map(str, workdirs)
    runs = list(map(_read_run, workdirs, names))
    # Only results have the settings in the name of the loss. To find them would import JAX.
    recorded = {_loss_settings(run): run.loss for run in runs if run.rows}
    return [
        run if run.rows else run._replace(loss=recorded.get(_loss_settings(run), run.loss))
        for run in runs
    ]


def _loss_settings(run: Run) -> str:
    return json.dumps(run.config.get("loss"), sort_keys=True)


def check_workdirs(workdirs: Sequence[Path]) -> None:
    """Raise UserError for a folder that holds no run or is named twice."""
    seen: dict[Path, Path] = {}
    for path in workdirs:
        if not (path / "config.json").is_file():
            reason = "holds no run (no config.json)" if path.is_dir() else "is not a folder"
            raise UserError(f"{path} {reason}; pass the workdirs of runs")
        if (folder := path.resolve()) in seen:
            raise UserError(f"{path} and {seen[folder]} are the same folder; name each run once")
        seen[folder] = path


def group_by_seed(runs: Sequence[Run]) -> list[Group]:
    """Group the runs that differ only in the seed, in the order of the runs."""
    # A group has at most one run of each seed, because runs with the same seed are not independent
    # samples. The second run of a seed belongs to a second group.
    groups: dict[tuple[str, int | None, int], list[Run]] = {}
    seen: Counter[tuple[str, int | None, str]] = Counter()
    for run in runs:
        rest = {k: v for k, v in flatten(run.config) if k not in ("seed", *CHANGEABLE_KEYS)}
        settings, seed = json.dumps(rest, sort_keys=True), json.dumps(run.config.get("seed"))
        number = seen[settings, run.step, seed]
        seen[settings, run.step, seed] += 1
        groups.setdefault((settings, run.step, number), []).append(run)
    return [Group(runs) for runs in groups.values()]


def _read_run(path: Path, name: str) -> Run:
    """Read a run, with the results of the latest evaluated checkpoint and the online metrics."""
    config = read_config(path / "config.json")
    metrics = read_metrics(path / "metrics.jsonl")
    rows = [row for row in results.read_results(path) if row["features"] == "pretrained"]
    step = results.last_evaluated(rows)
    latest = [row for row in rows if row["step"] == step or row["protocol"] == "online"]
    chosen = _choose(latest, config.get("seed"))
    loss = config.get("loss", {}).get("name")
    return Run(
        name=name,
        config=config,
        metrics=metrics,
        rows=chosen,
        left_out=len(rows) - len(chosen),
        step=metrics[-1]["step"] if step is None and metrics else step,
        loss=str((chosen[-1].get("loss") if chosen else None) or loss),
        seconds=_training_seconds(path),
    )


def _choose(rows: list[results.Row], seed: object) -> list[results.Row]:
    """Keep one result of each metric.

    Results of one metric may differ in data (of the same name), seed and step. Results on the run's
    own data come first, then results with the run's seed, then the latest. The run's own data are
    the data of its online metrics.
    """
    is_own = results.on_own_data(rows)
    groups: dict[tuple, list[results.Row]] = {}
    for row in rows:
        key = (*(row.get(name) for name in OF_METRIC), row["metric"], row["details"].get("preset"))
        groups.setdefault(key, []).append(row)

    def distance(row: results.Row) -> tuple[bool, bool, int]:
        return not is_own(row), row["seed"] != seed, -(row["step"] or 0)

    # Of equals, the row that was added last is the newest.
    return [min(reversed(group), key=distance) for group in groups.values()]


def _training_seconds(workdir: Path) -> float | None:
    """Return the seconds of training, or None if they were not recorded."""
    times = goodput.read(workdir)
    seconds = sum(float(times["seconds"][part]) for part in TRAINING) if times else None
    return seconds if is_finite(seconds) else None

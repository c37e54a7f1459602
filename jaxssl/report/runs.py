"""Read the runs of a comparison, and group runs that differ only in the seed."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from jaxssl.components import Settings
from jaxssl.configs.base import CHANGEABLE_KEYS
from jaxssl.errors import UserError
from jaxssl.report import results
from jaxssl.report.workdir import explain_damage, flatten, read_config, read_metrics
from jaxssl.training.output.file_io import read_lines
from jaxssl.training.output.metrics_writer import Row as Metrics

# Time and message of the lines of train.log at which training starts, resumes and ends.
START_OR_END = re.compile(r"(.{23}) INFO (begins: |resumes at step |finished .* steps$)")
MAX_NAME = 40  # maximum number of characters of a run's name in a legend


class Run(NamedTuple):
    """A run of a comparison, with workdir, config, results and metrics.

    Attributes:
        name: name of the folder, or its path where two folders have the same name.
        config: the effective config.
        metrics: the lines of metrics.jsonl.
        rows: results of the pretrained network at ``step``, evaluated with the run's seed, and its
            online metrics of the last and the best epoch.
        left_out: number of results of the pretrained network that are not in ``rows``.
        step: latest evaluated checkpoint or, without an evaluation, the last logged step.
        loss: name of the loss, with the settings that differ from their defaults if the run was
            evaluated.
        seconds: training time, None if training was interrupted.
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
        name: the names of the runs.
        runs: one or more.
    """

    name: str
    runs: list[Run]

    @property
    def short_name(self) -> str:
        """Return the group's name for a legend, without the middle of a long name."""
        name, half = self.name, MAX_NAME // 2
        return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"

    @property
    def seeds(self) -> str:
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
    return list(map(_read_run, workdirs, names))


def check_workdirs(workdirs: Sequence[Path]) -> None:
    """Raise UserError for a folder that holds no run or is named twice."""
    seen: dict[Path, Path] = {}
    for path in workdirs:
        if not (path / "config.json").is_file():
            reason = "holds no run (no config.json)" if path.is_dir() else "is not a folder"
            raise UserError(f"{path} {reason}; pass the workdirs of runs")
        first = seen.setdefault(path.resolve(), path)
        if first is not path:
            raise UserError(f"{path} and {first} are the same folder; name each run once")


def group_by_seed(runs: Sequence[Run]) -> list[Group]:
    """Group the runs that differ only in the seed, in the order of the runs."""
    # Runs with the same seed are not independent samples. The runs of a config with the same seed
    # are numbered, and those with the same number form a group.
    groups: dict[tuple[str, int | None, int], list[Run]] = {}
    seen: Counter[tuple[str, int | None, str]] = Counter()
    for run in runs:
        rest = {k: v for k, v in flatten(run.config) if k not in ("seed", *CHANGEABLE_KEYS)}
        settings, seed = json.dumps(rest, sort_keys=True), json.dumps(run.config.get("seed"))
        number = seen[settings, run.step, seed]
        seen[settings, run.step, seed] += 1
        groups.setdefault((settings, run.step, number), []).append(run)
    return [Group(_join_names([run.name for run in group]), group) for group in groups.values()]


def _join_names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"


def _read_run(path: Path, name: str) -> Run:
    """Read a run, with the results of the latest evaluated checkpoint and the online metrics."""
    config = read_config(path / "config.json")
    metrics = read_metrics(path / "metrics.jsonl")
    rows = [row for row in results.read_results(path) if row["features"] == "pretrained"]
    steps = [row["step"] for row in rows if row["step"] is not None]
    step = max(steps, default=None)
    latest = [row for row in rows if row["step"] == step or row["protocol"] == "online"]
    chosen = _choose(latest, config.get("seed"))
    loss = config.get("loss", {}).get("name")
    return Run(
        name=name,
        config=config,
        metrics=metrics,
        rows=chosen,
        left_out=len(rows) - len(chosen),
        step=step if steps or not metrics else metrics[-1]["step"],
        loss=str(chosen[-1].get("loss") or loss) if chosen else str(loss),
        seconds=_training_seconds(path / "train.log"),
    )


def _choose(rows: list[results.Row], seed: object) -> list[results.Row]:
    """Keep one of several results of a metric on data sets of the same name.

    It is the one on the run's own data, which are those of its online metrics, with the run's seed,
    at the latest step, as far as there are such results.
    """
    own_data = {row.get("data") for row in rows if row["protocol"] == "online"}
    names = ("dataset", "bank", "split", "layer", "protocol", "metric")
    groups: dict[tuple, list[results.Row]] = {}
    for row in rows:
        key = (*(row.get(name) for name in names), row["details"].get("preset"))
        groups.setdefault(key, []).append(row)

    def distance(row: results.Row) -> tuple[bool, bool, int]:
        is_other = bool(own_data) and row.get("data") not in own_data
        return is_other, row["seed"] != seed, -(row["step"] or 0)

    return [min(group, key=distance) for group in groups.values()]


def _training_seconds(log: Path) -> float | None:
    """Return the seconds from start to end of training.

    None if the log does not hold both, if training was resumed, or if the clock was set back.
    """
    if not log.exists():
        return None
    starts: list[datetime] = []
    ends: list[datetime] = []
    with explain_damage(log):
        for line in read_lines(log):
            entry = START_OR_END.match(line.decode(errors="replace").rstrip())
            if entry is None:
                continue
            time = datetime.strptime(entry[1], "%Y-%m-%d %H:%M:%S,%f")
            (ends if entry[2].startswith("finished") else starts).append(time)
    # The time of a resumed or extended run lacks that of its first command.
    if len(starts) != 1 or not ends:
        return None
    seconds = (ends[0] - starts[0]).total_seconds()
    return seconds if seconds >= 0 else None

"""The runs that a comparison is of, and which of them differ in the seed alone."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl.errors import UserError
from jaxssl.report import results
from jaxssl.report.workdir import flat, read_config, read_metrics, said_of
from jaxssl.training.config import CHANGEABLE_KEYS

LONG = 40  # letters of a name in a legend


class Run(NamedTuple):
    """A workdir.

    Attributes:
        name: of its folder, or its path where two folders have one name.
        config: the effective config.
        metrics: the lines of metrics.jsonl.
        rows: the figures of the pretrained network at ``step``, under the run's own seed.
        left_out: how many figures of the pretrained network are not in ``rows``.
        step: of the latest checkpoint that was evaluated, or else of the last line of metrics.
        loss: with its settings that are not the defaults, where it was evaluated.
        seconds: from the beginning of training to its end; None if it was interrupted.
    """

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    left_out: int
    step: int | None
    loss: str
    seconds: float | None


class Group(NamedTuple):
    """Runs that differ in the seed alone, of one step: a column of the comparison.

    Attributes:
        name: those of its runs.
        runs: one or more.
    """

    name: str
    runs: list[Run]

    @property
    def short(self) -> str:
        """For a legend: a long name without its middle."""
        half = LONG // 2
        return self.name if len(self.name) <= LONG else f"{self.name[:half]}…{self.name[-half:]}"

    @property
    def seeds(self) -> str:
        """How many, if there are several."""
        return f"{len(self.runs)} seeds" if len(self.runs) > 1 else ""


def read(workdirs: Sequence[Path]) -> list[Run]:
    """The runs of workdirs.

    Raises:
        UserError: for one that holds no run, is named twice, or has a damaged file.
    """
    check(workdirs)
    names = [path.resolve().name for path in workdirs]
    unique = len(set(names)) == len(names)
    return [
        _run(path, name if unique else str(path))
        for path, name in zip(workdirs, names, strict=True)
    ]


def check(workdirs: Sequence[Path]) -> None:
    """Raise UserError for a folder that holds no run, or is named twice."""
    seen: dict[Path, Path] = {}
    for path in workdirs:
        if not (path / "config.json").is_file():
            what = "holds no run (it has no config.json)" if path.is_dir() else "is no folder"
            raise UserError(f"{path} {what}; name workdirs of runs")
        same = seen.setdefault(path.resolve(), path)
        if same is not path:
            raise UserError(f"{path} and {same} are the same folder; name each run once")


def group(runs: Sequence[Run]) -> list[Group]:
    """The runs by all but their seed, in the order in which they are named."""
    found: list[list[Run]] = []
    of: dict[tuple, list[list[Run]]] = {}
    for run in runs:
        rest = {k: v for k, v in flat(run.config) if k not in ("seed", *CHANGEABLE_KEYS)}
        same = of.setdefault((json.dumps(rest, sort_keys=True), run.step), [])
        # Two runs of one seed are no two draws.
        fit = [g for g in same if seed_of(run) not in map(seed_of, g)]
        if fit:
            fit[0].append(run)
        else:
            same.append([run])
            found.append(same[-1])
    return [Group(_name([run.name for run in members]), members) for members in found]


def seed_of(run: Run) -> str:
    """Of its config."""
    return json.dumps(run.config.get("seed"))


def _name(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"


def _run(path: Path, name: str) -> Run:
    config = read_config(path / "config.json")
    metrics = read_metrics(path / "metrics.jsonl")
    rows = [row for row in results.read_results(path) if row["features"] == "pretrained"]
    steps = [row["step"] for row in rows if row["step"] is not None]
    step = max(steps, default=None)
    chosen = _of_own_seed([row for row in rows if row["step"] == step], config.get("seed"))
    loss = config.get("loss", {}).get("name")
    return Run(
        name=name,
        config=config,
        metrics=metrics,
        rows=chosen,
        left_out=len(rows) - len(chosen),
        step=step if steps or not metrics else metrics[-1]["step"],
        loss=str(chosen[-1].get("loss") or loss) if chosen else str(loss),
        seconds=_seconds(path / "train.log"),
    )


def _of_own_seed(rows: list[dict[str, Any]], seed: Any) -> list[dict[str, Any]]:
    """One figure of each kind: that under the run's seed or, without one, the first."""
    chosen: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        what = figure_of(row)
        if what not in chosen or (row["seed"] == seed != chosen[what]["seed"]):
            chosen[what] = row
    return list(chosen.values())


def figure_of(row: dict[str, Any]) -> tuple:
    """What a figure is of, besides the run and the seed."""
    names = ("dataset", "bank", "split", "layer", "protocol")
    return (*(row.get(name) for name in names), row["details"].get("preset"), row["metric"])


def _seconds(log: Path) -> float | None:
    """From the beginning to the end of training; None if there is no log of one that was whole."""
    if not log.exists():
        return None
    begun: list[datetime] = []
    with said_of(log):
        for text in log.read_text(encoding="utf-8", errors="replace").splitlines():
            when, level, said = text[:23], *text[24:].partition(" ")[::2]
            if level != "INFO":
                continue
            if said.startswith(("begins: ", "resumes at step ")):
                begun.append(_time(when))
            elif said.startswith("finished ") and said.endswith(" steps") and len(begun) == 1:
                return (_time(when) - begun[0]).total_seconds()
    return None


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")

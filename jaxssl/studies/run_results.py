"""The finished runs of a study, and how the study's JSON document records them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from jaxssl.components import Settings
from jaxssl.data import kind, source
from jaxssl.data.fingerprint import fingerprint
from jaxssl.errors import UserError, explain_damage
from jaxssl.evaluation import rows
from jaxssl.studies import documents
from jaxssl.studies.cells import portable_config
from jaxssl.training.output import metrics_writer
from jaxssl.training.workdir import checkpoint

RESULT_FILE = "cell.json"  # written when a run is finished and evaluated
ONLINE = ("epoch", "knn_top1")  # keys of metrics.jsonl that a document keeps of each evaluation


class RunResult(NamedTuple):
    """A finished run of a study, with metrics, config and provenance.

    Attributes:
        seed: of the run.
        workdir: of the run.
        metrics: accuracies in percent, NaN if training stopped because of a non-finite value.
        history: the lines of metrics.jsonl, or only the k-NN accuracy by epoch from a document.
        seconds: time of training and evaluation in the last command.
        commit: of the code that trained the run last, "" if unknown.
        config: as JSON, with file names in place of absolute paths.
        fingerprint: fingerprint of the training split, "" if unknown.
        content: hash of the examples that evaluated the run, "" if unknown.
        baselines: as `grid.baselines` returns them, for a run of an earlier document.
    """

    seed: int
    workdir: Path
    metrics: dict[str, float]
    history: list[metrics_writer.Row]
    seconds: float
    commit: str = ""
    config: Settings = {}
    fingerprint: str = ""
    content: str = ""
    baselines: dict[str, dict[str, float]] | None = None

    @property
    def is_finite(self) -> bool:
        """False if training stopped because of a non-finite value."""
        return all(map(math.isfinite, self.metrics.values()))


def read_result(settings: ConfigDict, workdir: Path) -> RunResult:
    """Read the result of a finished run from its workdir, or raise UserError if it is damaged."""
    path = workdir / RESULT_FILE
    with explain_damage(path, f"move {workdir} away"):
        document = json.loads(path.read_text())
        history = metrics_writer.read_metrics(workdir / "metrics.jsonl")
        facts = checkpoint.read_all_facts(workdir).values()
        return RunResult(
            seed=settings.seed,
            workdir=workdir,
            metrics=null_to_nan(document["figures"]),
            history=list(map(null_to_nan, history)),
            seconds=document["seconds"],
            commit=document.get("commit", ""),
            config=portable_config(settings),
            fingerprint=next((each.fingerprint for each in facts if each.fingerprint), ""),
            content=document.get("content", ""),
        )


def fingerprints(settings: ConfigDict) -> tuple[str, str]:
    """Return the fingerprints of the training examples, and of those that evaluate a run."""
    splits = source.load_splits(settings.data, kind.of(settings).data)
    return fingerprint(splits.train), rows.content(splits)


def require_same_data(
    settings: ConfigDict, result: RunResult, digests: dict[str, tuple[str, str]], subject: str
) -> None:
    """Raise UserError if the examples that trained or evaluated a run have changed since.

    Args:
        settings: of the run.
        result: of the run.
        digests: `fingerprints` by the text of the settings of the data. New ones are added.
        subject: the run, for the message.
    """
    key = settings.data.to_json()
    if key not in digests:
        digests[key] = fingerprints(settings)
    before = result.fingerprint, result.content
    for verb, of_run, now in zip(("trained", "evaluated"), before, digests[key], strict=True):
        if of_run not in ("", now):
            raise UserError(
                f"{subject} was {verb} with other data than {settings.data.name!r} has now "
                f"(fingerprint {of_run[:12]} -> {now[:12]})"
            )


def run_label(name: object, seed: int) -> str:
    """Return the name that messages give to a run: cell and seed."""
    return f"{', '.join(map(str, name)) if isinstance(name, tuple) else name}, seed {seed}"


def first_run(results: Mapping[Any, Sequence[RunResult]]) -> RunResult:
    """Return the first run of a grid that did not diverge, or the first one if all did."""
    every = [run for runs in results.values() for run in runs]
    return next((run for run in every if run.is_finite), every[0])


def last_values(results: Sequence[RunResult], key: str) -> list[float]:
    """Return a training metric at the end of each seed's run, NaN without one or if it diverged."""
    return [
        result.history[-1].get(key, math.nan) if result.history and result.is_finite else math.nan
        for result in results
    ]


def metric_curve(
    results: Sequence[RunResult], key: str, points: int | None = None
) -> tuple[list[float], list[list[float]]]:
    """Return the epochs at which a training metric was logged, and the values of all seeds.

    Args:
        results: the runs of a cell, at least one.
        key: of metrics.jsonl.
        points: thin the curve to about this many points, None keeps all.

    Returns:
        The epochs [n], and the values [n, seeds]: NaN after the end of a run that diverged. A cell
        without any value has the epoch 0 and NaN.
    """
    logged = [{row["epoch"]: row[key] for row in run.history if key in row} for run in results]
    epochs = sorted(set().union(*logged)) or [0.0]
    # A run that was interrupted has an additional row. One that diverged has fewer than the others.
    reach = [max(rows, default=-math.inf) for rows in logged]
    shared = [e for e in epochs if 2 * sum(e in x for x in logged) > sum(r >= e for r in reach)]
    epochs = shared or epochs
    epochs = epochs[:: max(1, len(epochs) // points) if points else 1]
    return epochs, [[rows.get(epoch, math.nan) for rows in logged] for epoch in epochs]


def describe_each_run(results: Mapping[Any, Sequence[RunResult]]) -> dict[str, object]:
    """Return the runs of a grid for a document: all that `read_runs` reads.

    "config" has the keys with the same value in all runs, and each run has the others.
    """
    runs = [(name, result) for name, of_cell in results.items() for result in of_cell]
    configs = [_flatten(result.config) for _, result in runs]
    shared = {k: v for k, v in configs[0].items() if all(k in c and c[k] == v for c in configs)}
    entries = []
    for (name, result), settings in zip(runs, configs, strict=True):
        entry = {"cell": name, **result._asdict()}
        del entry["workdir"], entry["baselines"]
        entry["config"] = {k: v for k, v in settings.items() if k not in shared}
        evaluated = [row for row in result.history if ONLINE[1] in row]
        entry["history"] = [{key: row[key] for key in ONLINE} for row in evaluated]
        entries.append(entry)
    return {"config": shared, "runs": entries}


def read_runs(path: Path) -> tuple[str, dict[tuple[object, int], RunResult]]:
    """Read a study's JSON document, which --earlier names.

    Returns:
        The scale of the study, and its runs by cell and seed.

    Raises:
        UserError: if the document is damaged or does not list its runs.
    """
    document, results = documents.read_document(path), {}
    with explain_damage(path, "name an intact document with --earlier"):
        data = document["data"]
        if "runs" not in data:
            raise UserError(
                f"--earlier {path} does not list its runs; run the study without --earlier"
            )
        for entry in data["runs"]:
            cell = tuple(entry["cell"]) if isinstance(entry["cell"], list) else entry["cell"]
            results[cell, entry["seed"]] = RunResult(
                seed=entry["seed"],
                workdir=path,
                metrics=null_to_nan(entry["metrics"]),
                history=list(map(null_to_nan, entry.get("history", []))),
                seconds=entry["seconds"],
                commit=entry["commit"],
                config=unflatten_dict({**data["config"], **entry["config"]}, sep="."),
                fingerprint=entry["fingerprint"],
                content=entry.get("content", ""),  # Earlier versions did not record it.
                baselines=data.get("baselines", {}),
            )
    return document["scale"], results


def _flatten(settings: Settings) -> Settings:
    """Flatten a config to keys such as "loss.temperature". Schedules are not flattened."""
    return flatten_dict(settings, sep=".", is_leaf=lambda path, value: len(path) == 2 or not value)


def null_to_nan(row: metrics_writer.Row) -> dict[str, float]:
    """Replace null, which stands for a number that is not finite, by NaN."""
    return {key: math.nan if value is None else value for key, value in row.items()}

"""Train all combinations of some config values: `jaxssl train --grid KEY=A,B,C`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.data import kind, source
from jaxssl.data.batches import check_batch
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError
from jaxssl.report import page
from jaxssl.report.markdown import narrow_table, wrap_text
from jaxssl.studies import documents
from jaxssl.studies.grid import KNN, LINEAR, PROTOCOLS, RunResult, cell_config, run_cell
from jaxssl.studies.study import Findings, Setting, Table
from jaxssl.studies.verdicts import spread
from jaxssl.training import config
from jaxssl.training.build import build
from jaxssl.training.compatibility import check_labels
from jaxssl.training.output import atomic_files, console

Grid = dict[str, list[str]]  # the texts of the values by config key
BRACKETS = {"(": ")", "[": "]", "{": "}"}
METRICS = {
    "loss": "training loss",
    "held_out_loss": "held-out loss",
    KNN: "k-NN top-1",
    LINEAR: "linear top-1",
}


def parse(texts: Sequence[str]) -> Grid:
    """Parse flags "KEY=A,B,C". Commas inside brackets and quotes do not separate values.

    Raises:
        UserError: on a text of another form, an empty or repeated value, or a repeated key.
    """
    grid: Grid = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.removeprefix("config.")
        if not equals or not key:
            raise UserError(f"--grid expects KEY=A,B,C, such as optim.lr=0.001,0.01, got {text!r}")
        if key in grid:
            raise UserError(f"--grid has the key {key!r} twice; list all values once: {key}=A,B")
        grid[key] = _split(values)
        if not all(grid[key]) or len(set(grid[key])) < len(grid[key]):
            raise UserError(f"--grid {text!r} has an empty or a repeated value; list each once")
    return grid


def train(
    name: str,
    grid: Grid,
    folder: Path,
    overrides: Sequence[tuple[str, str]],
    command: str,
    max_runs: int = 1000,
) -> None:
    """Train all combinations, print the table, and write it as grid.md and grid.html.

    Runs that an earlier command has finished in this folder are not repeated, and an interrupted
    run resumes. A grid may thus be extended by more values.

    Args:
        name: a config, as for `jaxssl train`.
        grid: from `parse`.
        folder: folder of the runs and of the table.
        overrides: (key, text), the same for all runs.
        command: command line, for the table.
        max_runs: largest number of combinations.

    Raises:
        UserError: if a value is invalid, in which case nothing has been trained.
    """
    if distributed.process_count() > 1:
        raise UserError("--grid trains in one process; start one command per run instead")
    _check_keys(grid, dict(overrides))
    runs = math.prod(map(len, grid.values()))
    if runs > max_runs:
        raise UserError(
            f"--grid has {runs:,} combinations, more than --max_runs={max_runs}; list fewer "
            "values, or raise --max_runs"
        )
    setting = Setting(name, name, "", 1, folder, tuple(overrides))
    base = config.load(name, overrides)
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    configs = [cell_config(setting, cell) for cell in cells]  # raises an error for a wrong value
    labelled = _check_runs(cells, configs)
    console.show(f"{runs} runs, in {folder}")
    results, seconds = [], []
    for number, (cell, settings) in enumerate(zip(cells, configs, strict=True), 1):
        protocols = PROTOCOLS if labelled[number - 1] else ()
        seeded = {**cell, "seed": settings.seed}
        result, is_new = run_cell(setting, seeded, protocols, "--workdir")
        results.append(result)
        values = _describe(cell)
        state = "finished before"
        if is_new:
            seconds.append(result.seconds)
            left = (runs - number) * sum(seconds) / len(seconds)
            state = f"{result.seconds:.0f} s, about {left / 60:.0f} min left"
        figures = ", ".join(f"{k} {v:.2f}" for k, v in result.metrics.items())
        console.show(f"[{number}/{runs}] {values}: {figures} ({state})")
    table = make_table(grid, cells, results, base)
    documents.print_findings({}, Findings([table], [], {}, {}, ""))
    _write(table, folder, command)


def make_table(
    grid: Grid, cells: Sequence[Mapping[str, str]], results: Sequence[RunResult], base: ConfigDict
) -> Table:
    """Return the table of a grid, with a row for each combination. Seeds are averaged.

    Args:
        grid: from `parse`.
        cells: the values of each run.
        results: their results.
        base: config of all runs, without the values of the grid.
    """
    keys = [key for key in grid if key != "seed"]
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for cell, result in zip(cells, results, strict=True):
        last = result.history[-1] if result.history else {}
        losses = {key: last[key] for key in ("loss", "held_out_loss") if key in last}
        groups.setdefault(tuple(cell[key] for key in keys), []).append({**losses, **result.metrics})
    measured = [
        key for key in METRICS if any(key in run for runs in groups.values() for run in runs)
    ]
    rows = [
        (*values, *(spread([run.get(key) for run in runs]) for key in measured))
        for values, runs in groups.items()
    ]
    seeds = len(grid.get("seed", ("",)))
    note = (
        f"Accuracies in percent on {_test_split(grid, base)}"
        + (f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else "")
        + ". Choose settings on validation data, not on the test images that you report: "
        "--config.data.train_split=train[:90%] --config.data.test_split=train[90%:]. Losses with "
        "different settings of the loss are not comparable."
    )
    return Table("Grid", (*keys, *(METRICS[key] for key in measured)), rows, note)


def _check_keys(grid: Grid, overrides: Mapping[str, str]) -> None:
    """Raise UserError for a key that a grid cannot vary, or that a grid sets itself."""
    for key in grid:
        if key in config.CHANGEABLE_KEYS or key == "eval.protocols":
            raise UserError(f"--grid: {key!r} does not change the training; take another key")
        if key == "data.path":
            raise UserError(
                "--grid: the runs of a grid cannot differ in 'data.path'; start a grid for each "
                "path, with --config.data.path and --workdir"
            )
        if key in overrides:
            raise UserError(f"--grid and --config both set {key!r}; leave one of them out")
    if "eval.protocols" in overrides:
        names = " and ".join(PROTOCOLS)
        raise UserError(
            f"--grid evaluates with {names}; leave --config.eval.protocols out, and evaluate "
            "single runs with jaxssl eval"
        )


def _check_runs(cells: Sequence[Mapping[str, str]], configs: Sequence[ConfigDict]) -> list[bool]:
    """Check the runs of a grid as far as possible without training.

    Returns:
        For each run, whether all images of its data set have labels.

    Raises:
        UserError: if two runs are equal, or a run does not fit its data set or the devices.
    """
    by_config: dict[str, Mapping[str, str]] = {}
    for cell, settings in zip(cells, configs, strict=True):
        other = by_config.setdefault(settings.to_json(), cell)
        if other is not cell:
            raise UserError(
                f"--grid: {_describe(other)} and {_describe(cell)} are the same run; list equal "
                "values once"
            )
    splits: dict[str, Splits] = {}
    devices, labelled = distributed.make_mesh().size, []
    for settings in configs:
        examples = kind.of(settings).data
        data = settings.data.to_json() + examples
        if data not in splits:
            splits = {data: source.load_splits(settings.data, examples)}
        train_set = splits[data].train
        check_labels(settings, train_set.num_classes, train_set.labelled)
        check_batch(settings.batch_size, len(train_set), devices)
        build(settings, len(train_set), devices)
        labelled.append(splits[data].labelled)
    return labelled


def _test_split(grid: Grid, base: ConfigDict) -> str:
    if {"data.name", "data.test_split"} & set(grid):
        return "the test split"
    return f"{base.data.test_split!r} of {base.data.name}"


def _describe(cell: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in cell.items())


def _write(table: Table, folder: Path, command: str) -> None:
    text = f"# {table.title}\n\n    {command}\n\n{wrap_text(table.note)}\n\n"
    atomic_files.write_text(folder / "grid.md", text + narrow_table(table.heading, table.rows))
    html = page.render(
        "study.html",
        title=table.title,
        command=command,
        facts=[],
        claims=page.Table("claims", (), []),
        tables=[table],
        pictures=[],
    )
    atomic_files.write_text(folder / "grid.html", html)
    console.show(f"table: {folder / 'grid.html'} and {folder / 'grid.md'}")


def _split(text: str) -> list[str]:
    """Split a text at the commas that are outside of brackets and quotes."""
    parts, stack, quote = [""], [], ""
    for character in text:
        if character == "," and not stack and not quote:
            parts.append("")
            continue
        parts[-1] += character
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in BRACKETS:
            stack.append(BRACKETS[character])
        elif stack and character == stack[-1]:
            stack.pop()
    return [part.strip() for part in parts]

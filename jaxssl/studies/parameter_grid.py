"""Train all combinations of given values of config keys: `jaxssl train --grid KEY=A,B,C`."""

import inspect
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxssl import components, distributed
from jaxssl.components import Settings
from jaxssl.data import kind, source
from jaxssl.data.batches import check_batch
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError, explain_damage
from jaxssl.evaluation import pretrain, run
from jaxssl.evaluation.rows import content
from jaxssl.evaluation.selection import Selected, drop_unlabelled, select_protocols
from jaxssl.pretrained.start import load_init
from jaxssl.report.markdown import narrow_table, wrap_text
from jaxssl.report.results import Row
from jaxssl.studies import documents
from jaxssl.studies.cells import cell_config, combinations
from jaxssl.studies.grid import KNN, LINEAR, PROTOCOLS, run_cell
from jaxssl.studies.run_results import RunResult
from jaxssl.studies.study import Setting, Table
from jaxssl.studies.verdicts import mean, spread
from jaxssl.training import config, nonfinite
from jaxssl.training.build import add_statistics, build, make_batches, make_init
from jaxssl.training.config.method import check_labels
from jaxssl.training.config.overrides import full_key
from jaxssl.training.output import console, file_io, logs

Grid = dict[str, list[str]]  # the texts of the values by config key
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
LOSSES = {"loss": "training loss", "held_out_loss": "held-out loss"}
DIGITS = dict.fromkeys(LOSSES, 4)  # after the decimal point
HEADINGS = {**LOSSES, KNN: "k-NN top-1", LINEAR: "linear top-1"}
# Groups of the config on which views and networks depend, which are traced before the training.
TRACED = ("augment", "second_view", "crops", "net", "text", "head", "predictor", "method")
FIGURES = "figures.json"  # in the folder of a run: the main result of each protocol


class _Run(NamedTuple):
    """A run of a grid that has not been trained yet.

    Attributes:
        values: the text of the value of each key of the grid.
        seed: of the run.
        protocols: NAME or NAME:PRESET of the protocols that evaluate the run.
        data: the group `config.data`.
        content: digest of the examples that evaluate the run.
    """

    values: Mapping[str, str]
    seed: int
    protocols: Sequence[str]
    data: Settings
    content: str


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
    """Train all combinations of a grid, print a table, and write it as grid.md and grid.html.

    Runs that an earlier command has finished in this folder are not repeated, and an interrupted
    run resumes. A grid may thus be extended by more values, and by more protocols.

    Args:
        name: a config, as for `jaxssl train`.
        grid: from `parse`.
        folder: folder of the runs and of the table.
        overrides: (key, text), the same for all runs. "eval.protocols" names the protocols of the
            table, by default `PROTOCOLS`.
        command: command line, for the table.
        max_runs: largest number of combinations.

    Raises:
        UserError: if a value is invalid, in which case nothing has been trained.
    """
    if distributed.process_count() > 1:
        raise UserError("--grid trains in one process; start one command per run instead")
    base = config.load(name, overrides)
    overrides = [(full_key(base, key), text) for key, text in overrides]
    grid = _with_groups(base, grid)
    _check_keys(grid, dict(overrides))
    number = math.prod(map(len, grid.values()))
    if number > max_runs:
        raise UserError(
            f"--grid has {number:,} combinations, more than --max_runs={max_runs}; list fewer "
            "values, or raise --max_runs"
        )
    named = "eval.protocols" in dict(overrides)
    protocols = base.eval.protocols if named else tuple(PROTOCOLS)
    # A protocol that the user names, other than by "all", must fit every run.
    strict = named and "all" not in protocols
    of_all_runs = tuple(item for item in overrides if item[0] != "eval.protocols")
    setting = Setting(
        scale=name, config=name, dataset="", seeds=1, out=folder, overrides=of_all_runs
    )
    runs = _plan_runs(setting, combinations(grid), protocols, strict)
    console.show(f"{number} runs, in {folder}")
    results = _train_runs(setting, runs, strict)
    table = make_table(name, grid, [each.values for each in runs], results, base)
    documents.print_table(table)
    text = f"# {table.title}\n\n    {command}\n\n{wrap_text(table.note)}\n\n"
    names = max(1, len(grid.keys() - {"seed"}))
    file_io.write_text(folder / "grid.md", text + narrow_table(table.heading, table.rows, names))
    documents.write_page(folder / "grid.html", table.title, command, [table])
    console.show(f"table: {folder / 'grid.html'} and {folder / 'grid.md'}")


def make_table(
    name: str,
    grid: Grid,
    cells: Sequence[Mapping[str, str]],
    results: Sequence[RunResult],
    base: ConfigDict,
) -> Table:
    """Return the table of a grid, with a row for each combination. Seeds are averaged.

    Args:
        name: of the config.
        grid: from `parse`.
        cells: the values of each run.
        results: their results.
        base: config of all runs, without the values of the grid.
    """
    keys = [key for key in grid if key != "seed"]
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for cell, result in zip(cells, results, strict=True):
        last = result.history[-1] if result.history else {}
        losses = {key: last[key] for key in LOSSES if key in last}
        groups.setdefault(tuple(cell[key] for key in keys), []).append({**losses, **result.metrics})
    measured = list(dict.fromkeys(key for runs in groups.values() for run in runs for key in run))
    rows = [
        (*values, *(spread([run.get(key) for run in runs], DIGITS.get(key, 2)) for key in measured))
        for values, runs in groups.items()
    ]
    seeds = len(grid.get("seed", ("",)))
    varies = grid.keys() & {"data.name", "data.test_split"}
    data = base.data.path or base.data.name
    split = "the test split" if varies else f"{base.data.test_split!r} of {data}"
    note = (
        f"Figures of the protocols, accuracies in percent, on {split}"
        + (f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else "")
        + ". Choose settings on validation data, not on the test images that you report: "
        "--config.data.train_split=train[:90%] --config.data.test_split=train[90%:]. Losses with "
        "different settings of the loss are not comparable."
    )
    return Table(
        f"Grid of {name}", (*keys, *(HEADINGS.get(key, key) for key in measured)), rows, note
    )


def _with_groups(base: ConfigDict, grid: Grid) -> Grid:
    """Add the group to keys that only one group has: "lr" is "optim.lr"."""
    full: Grid = {}
    for short, values in grid.items():
        key = full_key(base, short)
        if key in full:
            raise UserError(f"--grid has {key!r} twice; list all values once")
        full[key] = values
    return full


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


def _plan_runs(
    setting: Setting,
    cells: Sequence[Mapping[str, str]],
    protocols: Sequence[str],
    strict: bool,
) -> list[_Run]:
    """Return the runs of a grid, checked as far as possible without training.

    Args:
        setting: folder, config and overrides of all runs.
        cells: the values of each run.
        protocols: of all runs. Without ``strict``, protocols that need labels are left out for a
            data set without labels.
        strict: whether a protocol that does not fit a data set raises an error.

    Raises:
        UserError: if a value is invalid, if two runs are equal, if a run does not fit its data set
            or the devices, or if a protocol does not fit the data set.
    """
    configs = [cell_config(setting, cell) for cell in cells]
    _check_distinct(cells, configs)
    loaded: set[str] = set()  # values of "init" that can be read
    splits_of: dict[tuple[str, str], Splits] = {}
    contents: dict[tuple[str, str], str] = {}
    traced: set[str] = set()  # settings with views and networks that fit the images
    mesh, runs = distributed.make_mesh(), []
    for cell, settings in zip(cells, configs, strict=True):
        examples = kind.of(settings).data
        data = settings.data.to_json(), examples
        if data not in splits_of:
            splits_of[data] = source.load_splits(settings.data, examples)
        train_set = splits_of[data].train
        pretrain.check(settings)
        if settings.init and settings.init not in loaded:
            load_init(settings)
            loaded.add(settings.init)
        check_labels(settings, train_set.num_classes, train_set.labelled)
        check_batch(settings.batch_size, len(train_set), mesh.size)
        build(settings, len(train_set), mesh.size)
        groups = {key: settings[key].to_dict() for key in TRACED}
        shown = json.dumps([data[0], settings.views, groups])
        if shown not in traced:
            settings = add_statistics(settings, train_set)
            with closing(make_batches(settings, train_set, mesh)) as batches:
                setup = build(settings, len(train_set), mesh.size, crops=batches.plan.crops)
                make_init(setup, batches.example, len(train_set), mesh)  # raises an error
            traced.add(shown)
        selected = select_protocols(protocols, examples)
        fitting = drop_unlabelled(selected, splits_of[data], strict=strict)
        if data not in contents:
            contents[data] = content(splits_of[data])
        texts = [one.text for one in fitting]
        runs.append(_Run(cell, settings.seed, texts, settings.data.to_dict(), contents[data]))
    return runs


def _check_distinct(cells: Sequence[Mapping[str, str]], configs: Sequence[ConfigDict]) -> None:
    """Raise UserError if two runs have the same config, as with the values 0.1 and 0.10."""
    by_config: dict[str, Mapping[str, str]] = {}
    for cell, settings in zip(cells, configs, strict=True):
        other = by_config.setdefault(settings.to_json(), cell)
        if other is not cell:
            raise UserError(
                f"--grid: {_describe(other)} and {_describe(cell)} are the same run; list equal "
                "values once"
            )


def _train_runs(setting: Setting, runs: Sequence[_Run], strict: bool) -> list[RunResult]:
    """Train and evaluate all runs, and print a line about each with the remaining time."""
    results, seconds = [], []
    digests: dict[str, tuple[str, str]] = {}
    for number, planned in enumerate(runs, 1):
        start, values = time.perf_counter(), planned.values
        cell = {**values, "seed": planned.seed}  # "0x1" and "1" are one seed, and one folder.
        result, is_new = run_cell(setting, cell, {}, "--workdir", digests=digests)
        if (result.workdir / nonfinite.FILE_NAME).exists():
            result, figures = result._replace(history=[]), "stopped: not finite"
        else:
            metrics = _evaluate(result.workdir, planned, strict)
            figures = ", ".join(f"{k} {v:.2f}" for k, v in metrics.items()) or "no results"
            result = result._replace(metrics=metrics)
        results.append(result)
        how_long = "finished before"
        if is_new:
            seconds.append(time.perf_counter() - start)
            left = (len(runs) - number) * mean(seconds)
            how_long = f"{seconds[-1]:.0f} s, about {left / 60:.0f} min left"
        console.show(f"[{number}/{len(runs)}] {_describe(values)}: {figures} ({how_long})")
    return results


def _evaluate(workdir: Path, planned: _Run, strict: bool) -> dict[str, float]:
    """Return {metric: value} of a run, with the first result of each protocol.

    Results that an earlier command has measured on the same examples, with the same content of the
    user's files, are read from a file of the run.
    """
    path, document = workdir / FIGURES, {}
    if path.exists():
        with explain_damage(path):
            document = json.loads(path.read_text())
    figures = document.setdefault(planned.content, {})
    keys = {
        text: f"{text} {components.digest(text)}" if components.IN_FILE.fullmatch(text) else text
        for text in planned.protocols
    }
    if missing := [text for text, key in keys.items() if not figures.get(key)]:
        with logs.quiet():
            how = {"kinds": ("pretrained",), "page": False, "strict": strict}
            rows = run.evaluate(workdir, missing, data=planned.data, **how)
        figures |= {keys[x.text]: _main_result(x, rows) for x in select_protocols(missing)}
        file_io.write_json(path, document)
    return dict(figures[key] for key in keys.values() if figures[key])


def _main_result(one: Selected, rows: Sequence[Row]) -> tuple[str, float] | None:
    """Return metric and value of the first row of a protocol and its preset, None without any."""
    parameter = inspect.signature(one.protocol.run).parameters.get("preset")
    default = parameter.default if parameter else None  # A user's function may have no presets.
    presets = (one.preset,) if one.preset else (default, None)
    for row in rows:
        if row["protocol"] == one.name and row["details"].get("preset") in presets:
            # Protocols of the user may report metrics of the same name.
            source = one.preset or (one.name if components.is_custom(one.name) else "")
            return row["metric"] + (f" ({source})" if source else ""), row["value"]
    return None


def _describe(cell: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in cell.items())


def _split(text: str) -> list[str]:
    """Split a text at the commas that are outside of brackets and quotes."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and _is_open(parts[-1]):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return [part.strip() for part in parts]


def _is_open(text: str) -> bool:
    """Return True if a bracket or a quote of a text is not closed."""
    bare = QUOTED.sub("", text)
    opened, closed = (sum(map(bare.count, brackets)) for brackets in ("([{", ")]}"))
    return opened > closed or "'" in bare or '"' in bare

"""Write the report of a run: results, training curves, images and configuration."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.errors import explain_damage
from jaxssl.report import gallery, results
from jaxssl.report import workdir as files
from jaxssl.report.curves import run_curves
from jaxssl.report.images import figure_style
from jaxssl.report.page import Table, render
from jaxssl.training.output import file_io
from jaxssl.training.output.metrics_writer import Row as Metrics
from jaxssl.training.workdir import goodput

ONLINE = "measured during training; the preset best is the epoch with the best k-NN"
MAX_LIST = 12  # The page leaves out longer lists, and dicts such as confusion matrices.
# The card shows one accuracy of each of the first protocols of this list that were evaluated.
ON_CARD = ("knn", "linear", "fewshot", "svm", "zeroshot", "captions", "retrieval", "finetune")
NUM_FIGURES = 3
COLLAPSED_STD = 0.2  # as in `jaxssl.training.collapse`, which would import JAX

Rows = Sequence[results.Row]
Kinds = dict[str, results.Row]  # results of one metric by kind of features, such as "pretrained"


class KeyFigure(NamedTuple):
    """An accuracy on the card at the top of a report, with a bar for each kind of features.

    Attributes:
        name: metric and protocol.
        bars: kind of features, value in words, and length of the bar in percent.
    """

    name: str
    bars: list[tuple[str, str, float]]


class Protocol(NamedTuple):
    """The results of a protocol with one preset.

    Attributes:
        name: protocol and preset.
        about: what is measured, in words.
        table: a row for each metric.
        settings: the protocol's settings, by metric where they differ.
    """

    name: str
    about: str
    table: Table
    settings: list[str]


def write_report(workdir: Path, out: Path | None = None) -> Path:
    """Write the HTML report of a run from the files in the run's workdir.

    Args:
        workdir: folder with config.json, metrics.jsonl, results.json and gallery.npz.
        out: the page, by default report.html in the workdir.

    Returns:
        The path of the page.

    Raises:
        UserError: if a file is damaged.
    """
    config = files.read_config(workdir / "config.json")
    metrics = files.read_metrics(workdir / "metrics.jsonl")
    rows = results.read_results(workdir)
    arrays = files.read_gallery(workdir / "gallery.npz")
    times = goodput.read(workdir)
    settings = [[key, files.format_setting(value)] for key, value in files.flatten(config)]
    with figure_style():
        with explain_damage(workdir / "gallery.npz"):
            sections = gallery.gallery_sections(arrays, config)
            gallery_step = _other_step(arrays, rows)
        html = render(
            "run.html",
            title=_title(config, rows),
            facts=_facts(config, metrics, rows),
            wall_time=goodput.describe(times) if times else "",
            figures=_key_figures(rows),
            gallery_step=gallery_step,
            collapse=_collapse(metrics, rows),
            results=_results(rows),
            curves=run_curves(metrics),
            **sections,
            same_class=gallery.SAME_CLASS,
            command=shlex.join(["jaxssl", "eval", "--workdir", str(workdir)]),
            settings=Table("config", ["key", "value"], settings),
        )
    path = out or workdir / "report.html"
    file_io.write_text(path, html)
    return path


def _title(config: Settings, rows: Rows) -> str:
    data, net = (config.get(group, {}).get("name") for group in ("data", "net"))
    return f"{data}: {_loss(config, rows)} with {net}"


def _loss(config: Settings, rows: Rows) -> str:
    """Return the loss with its settings as the results name it, or else its name in the config."""
    recorded = rows[-1].get("loss") if rows else None
    return str(recorded or config.get("loss", {}).get("name"))


def _facts(config: Settings, metrics: Sequence[Metrics], rows: Rows) -> list[tuple[str, str]]:
    """Describe the run in pairs of a name and a value."""
    groups = {group: config.get(group, {}) for group in ("data", "net", "method")}
    step = results.last_evaluated([row for row in rows if row["features"] == "pretrained"])
    facts = [
        ("data", ", ".join(str(x) for x in map(groups["data"].get, ("name", "path")) if x)),
        ("loss", _loss(config, rows)),
        ("network", str(groups["net"].get("name"))),
        ("method", str(groups["method"].get("name"))),
        ("batch size", str(config.get("batch_size"))),
        ("length", " ".join(files.length(config))),
        ("logged up to", f"step {metrics[-1]['step']}" if metrics else "none"),
        ("evaluated checkpoint", f"step {step}" if step else "none"),
        ("seed", str(config.get("seed"))),
    ]
    if files.speed(metrics):
        facts.append(("speed", f"{files.speed(metrics)} examples/s"))
    return facts


def _key_figures(rows: Rows) -> list[KeyFigure]:
    """Return the accuracies to show on the card: the last of each protocol on the run's data."""
    rows, figures = results.own_rows(rows), []
    for protocol in ON_CARD:
        of_protocol = [row for row in rows if row["protocol"] == protocol]
        pretrained = [row for row in of_protocol if row["features"] == "pretrained"]
        if not pretrained or pretrained[-1].get("unit", "%") != "%":
            continue
        pretrained = _latest(_backbone(pretrained) or pretrained)
        comparable = [row for row in of_protocol if _comparable(row, pretrained[-1])]
        metric = comparable[0]["metric"]
        kinds = {row["features"]: row for row in comparable if row["metric"] == metric}
        bars = []
        for kind in results.KINDS:
            if kind in kinds and files.is_finite(value := kinds[kind]["value"]):
                length = min(max(value, 0.0), 100.0)
                bars.append((kind, results.format_value(kinds[kind]), length))
        preset = pretrained[-1]["details"].get("preset")
        name = f"{protocol}:{preset}" if preset else protocol
        figures.append(KeyFigure(f"{metric} ({name})", bars))
    return figures[:NUM_FIGURES]


def _backbone(rows: Rows) -> Rows:
    return [row for row in rows if row.get("layer") != "projector"]


def _latest(rows: Rows) -> Rows:
    """Return the rows of the latest checkpoint. Those of an earlier one may have been added later.

    ``rows`` may be empty.
    """
    last = max((row["step"] or 0 for row in rows), default=0)
    return [row for row in rows if (row["step"] or 0) == last]


def _comparable(row: results.Row, other: results.Row) -> bool:
    """Return True if two results of a protocol have the same preset, encoder, data and seed."""
    same_step = row["features"] != "pretrained" or row["step"] == other["step"]
    same_preset = row["details"].get("preset") == other["details"].get("preset")
    return same_step and same_preset and _source(row) == _source(other)


def _source(row: results.Row) -> tuple[object, ...]:
    """Return the layer, encoder, data set and seed that all results of a table share."""
    layer = "backbone" if row.get("layer") == "pixels" else row.get("layer")
    names = "source", "dataset", "data", "content", "bank", "split", "seed"
    return layer, *map(row.get, names)


def _other_step(arrays: gallery.Gallery, rows: Rows) -> int | None:
    """Return the step of the gallery's checkpoint if it is not the latest that was evaluated."""
    latest = max((row["step"] or 0 for row in rows if row["features"] == "pretrained"), default=0)
    step = int(arrays["step"]) if "step" in arrays else latest
    return None if step == latest else step


def _collapse(metrics: Sequence[Metrics], rows: Rows) -> str:
    """Say whether the features have collapsed, or "" if that was not measured."""
    own = [r for r in results.own_rows(rows) if r["features"] == "pretrained"]
    if measured := _latest(_backbone([row for row in own if "verdict" in row["details"]])):
        return str(measured[-1]["details"]["verdict"])
    spread = files.metric_series(metrics, "feature_std")[1]
    if not spread:
        return ""
    if not files.is_finite(spread[-1]):
        return "the embeddings of the last logged step are not finite"
    word = "collapse" if spread[-1] < COLLAPSED_STD else "no collapse"
    return f"{word}: standard deviation of the embeddings {spread[-1]:.2f} of at most 1"


def _results(rows: Rows) -> list[dict[str, object]]:
    """Build a results table for each encoder and data set of results.json."""
    pretrained_steps = {row["step"] for row in rows if row["features"] == "pretrained"}
    groups: dict[tuple, dict[tuple, Kinds]] = {}  # by encoder and data set, then by metric
    for row in rows:
        metric = row["protocol"], row["details"].get("preset"), row["metric"]
        # Baselines (raw pixels, untrained network) appear next to the results of every checkpoint.
        steps = {row["step"]} if row["features"] == "pretrained" else pretrained_steps or {None}
        for step in sorted(steps, key=lambda step: step or 0):
            group = groups.setdefault((*_source(row), step), {})
            group.setdefault(metric, {})[row["features"]] = row
    sections = []
    for group in groups.values():
        # Baselines of metrics that the pretrained network lacks are left out.
        metrics = [k for k in group.values() if "pretrained" in k or not pretrained_steps]
        if metrics:
            sections.append(_result(metrics))
    return sections


def _result(metrics: Sequence[Kinds]) -> dict[str, object]:
    """Build the report's section about one encoder on one data set: a description and tables."""
    by_protocol: dict[tuple[str, str], list[Kinds]] = {}  # by protocol and preset
    for kinds in metrics:
        row = next(iter(kinds.values()))
        preset = str(row["details"].get("preset") or "")
        by_protocol.setdefault((row["protocol"], preset), []).append(kinds)
    order = sorted(by_protocol, key=lambda key: key[0] == "online")  # online results last
    protocols = [_protocol(*key, by_protocol[key]) for key in order]
    rows = [row for kinds in metrics for row in kinds.values()]
    evaluated = max(rows, key=lambda row: results.KINDS.index(row["features"]))
    return {**results.describe_source(evaluated), "protocols": protocols}


def _protocol(name: str, preset: str, metrics: Sequence[Kinds]) -> Protocol:
    """Build a protocol's results table: a row per metric, a column per kind of features."""
    body: list[list[str]] = []
    metrics_of: dict[str, list[str]] = {}  # names of the metrics by their settings
    for kinds in metrics:
        last = kinds.get("pretrained") or list(kinds.values())[-1]
        metric = results.metric_name(last["metric"], last.get("unit", "%"))
        metrics_of.setdefault(_settings(kinds), []).append(metric)
        values = [
            results.format_value(kinds[kind]) if kind in kinds else "–" for kind in results.KINDS
        ]
        body.append([metric, *values, _gain(kinds)])
    texts = [
        text if len(metrics_of) == 1 else f"{', '.join(names)}: {text}"
        for text, names in metrics_of.items()
        if text
    ]
    head = ["metric", *results.KINDS, "difference to untrained"]
    title = ":".join(filter(None, (name, preset)))
    about = ONLINE if name == "online" else ""
    if name in components.names("protocol"):  # The first line of its file is "TITLE: about."
        line = components.summary(components.file("protocol", name))
        about = line.rpartition(": ")[2].rstrip(".")
    return Protocol(title, about, Table("results", head, body, title), texts)


def _settings(kinds: Kinds) -> str:
    """Describe how a metric was measured. Settings that differ between columns list all values."""
    values_of: dict[str, list[str]] = {}
    for row in (kinds[kind] for kind in results.KINDS if kind in kinds):
        extra = {key: value for key, value in row.items() if key not in results.Row.__annotations__}
        for key, value in (extra | row["details"]).items():
            is_long = isinstance(value, dict) or (isinstance(value, list) and len(value) > MAX_LIST)
            if key != "preset" and not is_long:
                values_of.setdefault(key, []).append(files.format_setting(value))
    texts = []
    for key, values in values_of.items():
        shown = values if len(set(values)) > 1 else values[:1]
        texts.append(f"{key} {' / '.join(shown)}")
    return ", ".join(texts)


def _gain(kinds: Kinds) -> str:
    """Return the pretrained network's result minus the untrained one's, or a dash without both."""
    before, after = (kinds.get(kind, {}).get("value") for kind in ("untrained", "pretrained"))
    return f"{after - before:+z.2f}" if files.is_finite(before) and files.is_finite(after) else "–"

"""Write the report of a run: results, training curves, images and configuration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from jaxssl.report import gallery
from jaxssl.report.curves import run_curves
from jaxssl.report.images import STYLE
from jaxssl.report.page import Cell, Table, render
from jaxssl.report.results import KINDS, describe_source, format_value, metric_name, read_results
from jaxssl.report.workdir import (
    explain_damage,
    flatten,
    format_setting,
    is_finite,
    length,
    read_config,
    read_gallery,
    read_metrics,
    speed,
)
from jaxssl.training.output import file_io

PROTOCOLS = {
    "captions": "retrieval between images and captions",
    "corruptions": "classification of corrupted test images",
    "diagnostics": "properties of the features themselves",
    "episodes": "nearest class mean in small tasks drawn from the test images",
    "fewshot": "linear classifier on a few labels of each class",
    "finetune": "fine-tuning of all weights on the labels",
    "knn": "vote of the nearest training examples",
    "linear": "linear classifier on frozen features",
    "online": "measured during training; the preset best is the epoch with the best k-NN",
    "noise": "vote of neighbours under noise on the similarities",
    "retrieval": "whether the nearest examples have the query's label",
    "semi": "fine-tuning of all weights on a few of the labels",
    "svm": "support vector machines in ten-fold cross-validation over all examples",
    "zeroshot": "class whose prompts are nearest",
}
# These fields of a row of results.json are not settings of its protocol.
NOT_SETTINGS = (
    *("protocol", "metric", "value", "std", "unit", "features", "details"),
    *("source", "loss", "checkpoint", "step", "layer", "dataset", "data", "bank", "split", "seed"),
)
MAX_LIST = 12  # The page leaves out longer lists, and dicts such as confusion matrices.

Row = Mapping[str, Any]
Kinds = dict[str, Row]  # result rows by kind of features


def write_report(workdir: Path, out: Path | None = None) -> Path:
    """Write the HTML report of a run from the files that its workdir has.

    Args:
        workdir: folder with config.json, metrics.jsonl, results.json and gallery.npz.
        out: the page, by default report.html in the workdir.

    Returns:
        The path of the page.

    Raises:
        UserError: if a file is damaged.
    """
    config = read_config(workdir / "config.json")
    metrics = read_metrics(workdir / "metrics.jsonl")
    rows = read_results(workdir)
    arrays = read_gallery(workdir / "gallery.npz")
    with matplotlib.rc_context(STYLE):
        with explain_damage(workdir / "gallery.npz"):
            sections = gallery.gallery_sections(arrays, config)
        html = render(
            "run.html",
            title=_title(config, rows),
            facts=_facts(config, metrics, rows),
            results=_results(rows),
            curves=run_curves(metrics),
            **sections,
            num_pairs=gallery.NUM_PAIRS,
            same_class=gallery.SAME_CLASS,
            command=f"jaxssl eval --workdir {workdir}",
            settings=Table(
                "config",
                ["key", "value"],
                [[key, format_setting(value)] for key, value in flatten(config)],
            ),
        )
    path = out or workdir / "report.html"
    file_io.write_text(path, html)
    return path


def _title(config: Mapping[str, Any], rows: Sequence[Row]) -> str:
    data, loss, net = (config.get(group, {}).get("name") for group in ("data", "loss", "net"))
    loss = rows[-1].get("loss", loss) if rows else loss
    return f"{data}: {loss} with {net}"


def _facts(config: Mapping[str, Any], metrics: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    steps = [r["step"] for r in rows if r.get("features") == "pretrained" and r["step"]]
    steps += [row["step"] for row in metrics[-1:]]
    facts = [
        f"checkpoint of step {max(steps)}" if steps else "no checkpoint",
        f"seed {config.get('seed')}",
        f"batch size {config.get('batch_size')}",
        " ".join(length(config)),
        f"method {config.get('method', {}).get('name')}",
    ]
    return facts + ([f"{speed(metrics)} examples/s"] if speed(metrics) else [])


def _results(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Build a results table for each encoder and data set of results.json."""
    pretrained_steps = {row["step"] for row in rows if row["features"] == "pretrained"}
    groups: dict[tuple, dict[tuple, Kinds]] = {}
    for row in rows:
        layer = "backbone" if row.get("layer") == "pixels" else row.get("layer")
        names = ("source", "dataset", "data", "bank", "split", "seed")
        # The baselines (raw pixels, untrained network) stand beside the results of every
        # checkpoint.
        is_pretrained = row["features"] == "pretrained"
        steps = {row["step"]} if is_pretrained else pretrained_steps or {None}
        metric = row["protocol"], row.get("details", {}).get("preset"), row["metric"]
        for step in sorted(steps, key=str):
            group = groups.setdefault((layer, *(row.get(name) for name in names), step), {})
            group.setdefault(metric, {})[row["features"]] = row
    if pretrained_steps:  # Baselines of metrics that the pretrained network lacks are left out.
        groups = {
            key: {metric: kinds for metric, kinds in group.items() if "pretrained" in kinds}
            for key, group in groups.items()
        }
    return [_result(list(group.values())) for group in groups.values() if group]


def _result(metrics: Sequence[Kinds]) -> dict[str, Any]:
    """Build the results table of one encoder on one data set, with a description of both."""
    body, previous = [], None
    for kinds in metrics:
        last = kinds.get("pretrained") or list(kinds.values())[-1]
        settings = _settings(kinds)
        name = Cell(metric_name(last), note="" if settings == previous else settings)
        previous = settings
        values = [format_value(kinds[kind]) if kind in kinds else "–" for kind in KINDS]
        body.append([name, *values, _gain(kinds)])
    rows = [row for kinds in metrics for row in kinds.values()]
    source = describe_source(max(rows, key=lambda row: KINDS.index(row["features"])))
    return {**source, "table": Table("results", ["metric", *KINDS, "gain over untrained"], body)}


def _settings(kinds: Kinds) -> str:
    """Describe how a metric was measured, with settings that differ between columns last."""
    settings: dict[str, list[str]] = {}
    for row in (kinds[kind] for kind in KINDS if kind in kinds):
        extra = {key: value for key, value in row.items() if key not in NOT_SETTINGS}
        for key, value in (extra | row.get("details", {})).items():
            if not isinstance(value, dict) and (
                not isinstance(value, list) or len(value) <= MAX_LIST
            ):
                settings.setdefault(key, []).append(format_setting(value))
    texts = [f"{k} {' / '.join(v if len(set(v)) > 1 else v[:1])}" for k, v in settings.items()]
    protocol = list(kinds.values())[-1]["protocol"]
    description = f"{protocol}: {PROTOCOLS.get(protocol, '')}"
    return "; ".join(filter(None, [description, ", ".join(texts)]))


def _gain(kinds: Kinds) -> str:
    before, after = (kinds.get(kind, {}).get("value") for kind in ("untrained", "pretrained"))
    return f"{after - before:+z.2f}" if is_finite(before) and is_finite(after) else "–"

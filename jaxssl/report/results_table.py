"""The section of figures: what pretraining added, beside the baselines."""

from html import escape

from jaxssl.report import page, results
from jaxssl.report.workdir import is_finite, plain

KINDS = ("raw", "untrained", "pretrained")
PROTOCOLS = {
    "captions": "retrieval between images and captions",
    "corruptions": "classification of corrupted test images",
    "diagnostics": "measures of the features themselves",
    "episodes": "nearest class mean in small tasks drawn from the test images",
    "fewshot": "a linear classifier on a few labels of each class",
    "finetune": "all weights trained further on the labels",
    "knn": "votes of the nearest training examples",
    "linear": "a linear classifier on frozen features",
    "noise": "votes of neighbours under noise on the similarities",
    "retrieval": "whether the nearest examples have the query's label",
    "semi": "all weights trained further on a few of the labels",
    "svm": "support vector machines in ten-fold cross-validation over all examples",
    "zeroshot": "the class whose prompts are nearest",
}
LABELS = (  # of a row, besides its settings; they stand at the end of its description
    *("protocol", "metric", "value", "std", "unit", "features", "details"),
    *("source", "loss", "checkpoint", "step", "layer", "dataset", "data", "bank", "split", "seed"),
)
LONG = 12  # longer lists, and dicts, such as tables of confusion, are left to results.json


def section(rows: list[dict]) -> str:
    """A table for every encoder and data set of results.json."""
    if not rows:
        return page.section("Results", "<p>No evaluation was recorded.</p>")
    groups: dict[tuple, dict[tuple, dict[str, dict]]] = {}
    for row in rows:
        layer = "backbone" if row.get("layer") == "pixels" else row.get("layer")
        of = [layer, *(row.get(name) for name in ("source", "dataset", "data", "bank", "split"))]
        # The baselines stand beside every checkpoint.
        steps = {r["step"] for r in rows if r["features"] == "pretrained"} or {None}
        steps = {row["step"]} if row["features"] == "pretrained" else steps
        preset = row.get("details", {}).get("preset")
        for step in sorted(steps, key=str):
            metrics = groups.setdefault((*of, row.get("seed"), step), {})
            metrics.setdefault((row["protocol"], preset, row["metric"]), {})[row["features"]] = row
    pretrained = {key: _pretrained(metrics) for key, metrics in groups.items()}
    groups = {key: metrics for key, metrics in pretrained.items() if metrics} or groups
    note = """<p>Accuracy in percent where no unit is named, ± the standard deviation over draws, on
raw inputs (pixels, or counts of a graph) and on features of the untrained and the pretrained
network. Settings hold for the lines below too; those that differ between columns are given as
raw / untrained / pretrained.</p>"""
    return page.section("Results", note + "".join(map(_figures, groups.values())))


def _pretrained(metrics: dict[tuple, dict[str, dict]]) -> dict[tuple, dict[str, dict]]:
    return {metric: kinds for metric, kinds in metrics.items() if "pretrained" in kinds}


def _figures(metrics: dict[tuple, dict[str, dict]]) -> str:
    """The table of one encoder on one data set, under a line that says which."""
    body, said = [], None
    for (*_, metric), kinds in metrics.items():
        last = kinds.get("pretrained") or list(kinds.values())[-1]
        unit = last.get("unit", "%")
        settings = _protocol(kinds)
        small = "" if settings == said else f"<small>{escape(settings)}</small>"
        said = settings
        name = metric + (f" ({unit})" if unit not in ("", "%") else "")
        cells = (_score(kinds.get(kind)) for kind in KINDS)
        body.append([f"{page.name(name)}{small}", *cells, _gain(kinds)])
    rows = [row for kinds in metrics.values() for row in kinds.values()]
    facts = results.describe_source(max(rows, key=lambda row: KINDS.index(row["features"])))
    heading = ["metric", *KINDS, "gain over untrained"]
    table = page.table("results", heading, body)
    return f"<p>{escape(facts['encoder'])}<br>{escape(facts['data'])}</p>{table}"


def _protocol(kinds: dict[str, dict]) -> str:
    """How a row was measured; settings that differ between its columns stand side by side."""
    settings: dict[str, list[str]] = {}
    for row in (kinds[kind] for kind in KINDS if kind in kinds):
        extra = {k: v for k, v in row.items() if k not in LABELS}
        for key, value in (extra | row.get("details", {})).items():
            if not isinstance(value, dict) and (not isinstance(value, list) or len(value) <= LONG):
                settings.setdefault(key, []).append(plain(value))
    words = [f"{k} {' / '.join(v if len(set(v)) > 1 else v[:1])}" for k, v in settings.items()]
    last = list(kinds.values())[-1]
    what = f"{last['protocol']}: {PROTOCOLS.get(last['protocol'], '')}"
    return "; ".join(filter(None, [what, ", ".join(words)]))


def _score(row: dict | None) -> str:
    if row is None:
        return "–"
    if not is_finite(row["value"]):
        return "not finite"
    return results.format_value(row)


def _gain(kinds: dict[str, dict]) -> str:
    before, after = (kinds.get(kind, {}).get("value") for kind in ("untrained", "pretrained"))
    return f"{after - before:+z.2f}" if is_finite(before) and is_finite(after) else "–"

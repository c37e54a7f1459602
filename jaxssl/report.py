"""The report of a run: one HTML page that needs no other file and no network."""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.patheffects import withStroke

from jaxssl import page, record, results
from jaxssl.errors import UserError, line

KINDS = ("raw", "untrained", "pretrained")
PROTOCOLS = {
    "corruptions": "classification of corrupted test images",
    "diagnostics": "measures of the features themselves",
    "episodes": "nearest class mean in small tasks drawn from the test images",
    "fewshot": "a linear classifier on a few labels of each class",
    "finetune": "all weights trained further on the labels",
    "knn": "votes of the nearest training images",
    "linear": "a linear classifier on frozen features",
    "noise": "votes of neighbours under noise on the similarities",
    "retrieval": "whether the nearest images have the query's label",
    "semi": "all weights trained further on a few of the labels",
}
LABELS = (  # of a row, besides its settings; they stand at the end of its description
    *("protocol", "metric", "value", "std", "unit", "features", "details"),
    *("source", "loss", "checkpoint", "step", "layer", "dataset", "data", "bank", "split", "seed"),
)
LONG = 12  # longer lists, and dicts, such as tables of confusion, are left to results.json
CURVES = {  # label of the vertical axis: (keys of metrics.jsonl, how to read it)
    "loss": ("loss", "What training minimises: it should fall, then level off."),
    "k-NN top-1, %": ("knn_top1", "Accuracy of neighbours' votes in training: higher is better."),
    "mean cosine": (
        "positive_similarity negative_similarity",
        "Views of one image (solid) should stay well above different images (dashed).",
    ),
    "feature std × √d": ("feature_std", "1 is spread evenly; near 0 all embeddings are equal."),
    "effective rank": ("effective_rank", "Directions in use: a fall towards 1 is a collapse."),
    "alignment": ("alignment", "Squared distance of two views of an image: lower is closer."),
    "uniformity": ("uniformity", "Lower is more evenly spread; 0 is a collapse to one point."),
    "learning rate": ("learning_rate", "The optimiser's rate: bends elsewhere may start here."),
}
THUMBNAIL = 64  # pixels; the browser enlarges smaller images, larger ones are averaged down
LEGEND_CLASSES = 20  # with more, the legend would be larger than the map
MARKERS = "o^sDvPX*<>"
LINES = (("#0b5394", "-"), ("#b45309", "--"))
STYLE = {
    "text.parse_math": False,  # a class may be called "$"
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
}


def write(workdir: Path) -> Path:
    """Write report.html from what a workdir holds; what is missing is left out.

    Args:
        workdir: with config.json, metrics.jsonl, results.json and gallery.npz.

    Returns:
        The path of the page.

    Raises:
        UserError: if one of them is damaged.
    """
    config = _read_config(workdir / "config.json")
    metrics = _read_metrics(workdir / "metrics.jsonl")
    rows = results.read(workdir)
    gallery = _read_gallery(workdir / "gallery.npz")
    title = _title(config, rows)
    with _said_of(workdir / "gallery.npz"):
        pictures = [_pairs(gallery), _neighbours(gallery)]
    with matplotlib.rc_context(STYLE):
        sections = [
            f"<h1>{title}</h1>",
            _summary(config, metrics, rows),
            _results(rows),
            _curves(metrics),
            *pictures,
        ]
        with _said_of(workdir / "gallery.npz"):
            sections.append(_map(gallery))
        sections.append(_config(config))
    path = workdir / "report.html"
    record.write_text(path, page.page(title, sections))
    return path


def _title(config: dict, rows: list[dict]) -> str:
    data, loss, net = (config.get(group, {}).get("name") for group in ("data", "loss", "net"))
    loss = rows[-1].get("loss", loss) if rows else loss
    return escape(f"{data}: {loss} with {net}")


def _summary(config: dict, metrics: list[dict], rows: list[dict]) -> str:
    steps = [r["step"] for r in rows if r.get("features") == "pretrained" and r["step"]]
    steps += [row["step"] for row in metrics[-1:]]
    length, unit = config.get("total_steps"), "steps"
    if not length:
        length, unit = config.get("epochs"), "epochs"
    speed = [value for value in _series(metrics, "images_per_second")[1] if _finite(value)]
    facts = [
        f"checkpoint of step {max(steps)}" if steps else "no checkpoint",
        f"seed {config.get('seed')}",
        f"batch of {config.get('batch_size')} images",
        f"{_plain(length)} {unit}",
        f"method {config.get('method', {}).get('name')}",
    ]
    facts += [f"{median(speed):,.0f} images/s"] if speed else []
    return f"<p>{escape(' · '.join(facts))}</p>"


def _results(rows: list[dict]) -> str:
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
raw pixels and on features of the untrained and the pretrained network. Settings hold for the lines
below too; those that differ between columns are given as raw / untrained / pretrained.</p>"""
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
        body.append([f"{escape(name)}{small}", *cells, _gain(kinds)])
    rows = [row for kinds in metrics.values() for row in kinds.values()]
    facts = results.provenance(max(rows, key=lambda row: KINDS.index(row["features"])))
    heading = ["metric", *KINDS, "gain over untrained"]
    table = page.table("results", heading, body)
    return f"<p>{escape(facts['encoder'])}<br>{escape(facts['data'])}</p>{table}"


def _curves(metrics: list[dict]) -> str:
    curves = [_curve(axis, keys.split(), how, metrics) for axis, (keys, how) in CURVES.items()]
    if not any(curves):
        return page.section("Training", "<p>No training curve was recorded.</p>")
    return page.section("Training", f'<div class="curves">\n{"".join(curves)}</div>')


def _pairs(gallery: Mapping[str, np.ndarray]) -> str:
    if "pairs" not in gallery:
        return ""
    items = []
    for n, views in enumerate(gallery["pairs"]):
        images = [_thumbnail(gallery["pairs_original"][n], f"image {n + 1}, original", "first")]
        images += [_thumbnail(view, f"image {n + 1}, view {v + 1}") for v, view in enumerate(views)]
        items.append(f"<li>{''.join(images)}</li>\n")
    caption = """In each group the framed picture is the original and the others are its augmented
views: training pulls these together, so an eye should still see what they have in common."""
    figure = page.figure(f'<ul class="pairs">\n{"".join(items)}</ul>', caption)
    return page.section("Augmented views", figure)


def _neighbours(gallery: Mapping[str, np.ndarray]) -> str:
    if "query" not in gallery:
        return ""
    names, labels = gallery["class_names"], gallery["neighbour_label"]
    of_query = gallery["query_label"][:, None]
    known = (of_query >= 0) & (labels >= 0)
    other = known & (of_query != labels)
    body = []
    for q, query in enumerate(gallery["query"]):
        cells = [(query, f"test image {q + 1}", of_query[q, 0], "first", "")]
        for k, image in enumerate(gallery["neighbour"][q]):
            frame, mark = ("other", "✗ ") if other[q, k] else ("", "")
            alt = f"neighbour {k + 1} of test image {q + 1}"
            cells.append((image, alt, labels[q, k], frame, mark))
        row = []
        for image, alt, label, frame, mark in cells:
            name = mark + _class(names, label)
            row.append(
                _thumbnail(image, f"{alt}: {name}", frame) + f"<small>{escape(name)}</small>"
            )
        body.append(row)
    caption = f"""Left a test image, then the training images nearest to it in feature space,
nearest first; a dashed frame and ✗ mark the neighbours of another class
({other.sum()} of the {known.sum()} labelled ones shown)."""
    table = page.table("neighbours", ["test", *range(1, labels.shape[1] + 1)], body)
    return page.section("Nearest neighbours", page.figure(table, caption))


def _map(gallery: Mapping[str, np.ndarray]) -> str:
    if "map" not in gallery:
        return ""
    points, labels = gallery["map"], gallery["map_label"]
    classes = np.unique(labels)
    figure = Figure(figsize=(5, 5.6), layout="constrained")
    axes = figure.add_subplot(
        aspect="equal", xticks=[], yticks=[], xlabel="map axis 1", ylabel="map axis 2"
    )
    colours = matplotlib.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    halo = [withStroke(linewidth=3, foreground="white")]
    for i, label in enumerate(classes):
        colour = "#666666" if label < 0 else colours(i % colours.N)
        cloud, name = points[labels == label], _class(gallery["class_names"], label)
        marker = MARKERS[i % len(MARKERS)]
        axes.scatter(*cloud.T, s=14, color=colour, marker=marker, label=name)
        if label >= 0:
            where = np.median(cloud, axis=0)
            axes.text(*where, name, ha="center", va="center", weight="bold", path_effects=halo)
    if len(classes) <= LEGEND_CLASSES:
        figure.legend(loc="outside lower center", ncols=min(5, len(classes)), frameon=False)
    picture = _picture(figure, f"map of {len(points)} test images of {len(classes)} classes")
    caption = """Each point is a test image and near points have similar features: a clump of one
colour and marker, named at its median, is a class that the features tell apart."""
    return page.section("Embedding map", page.figure(picture, caption, "map"))


def _config(config: dict) -> str:
    body = [[escape(key), escape(_plain(value))] for key, value in _flat(config)]
    details = f"""<details>
<summary>{len(body)} effective values</summary>
<p>Change one with <code>--config.KEY=VALUE</code>.</p>
{page.table("config", ["key", "value"], body)}
</details>"""
    return page.section("Configuration", details)


# ---- Parts of sections.


def _protocol(kinds: dict[str, dict]) -> str:
    """How a row was measured; settings that differ between its columns stand side by side."""
    settings: dict[str, list[str]] = {}
    for row in (kinds[kind] for kind in KINDS if kind in kinds):
        extra = {k: v for k, v in row.items() if k not in LABELS}
        for key, value in (extra | row.get("details", {})).items():
            if not isinstance(value, dict) and (not isinstance(value, list) or len(value) <= LONG):
                settings.setdefault(key, []).append(_plain(value))
    words = [f"{k} {' / '.join(v if len(set(v)) > 1 else v[:1])}" for k, v in settings.items()]
    last = list(kinds.values())[-1]
    what = f"{last['protocol']}: {PROTOCOLS.get(last['protocol'], '')}"
    return "; ".join(filter(None, [what, ", ".join(words)]))


def _score(row: dict | None) -> str:
    if row is None:
        return "–"
    if not _finite(row["value"]):
        return "not finite"
    return results.cell(row)


def _gain(kinds: dict[str, dict]) -> str:
    before, after = (kinds.get(kind, {}).get("value") for kind in ("untrained", "pretrained"))
    return f"{after - before:+z.2f}" if _finite(before) and _finite(after) else "–"


def _curve(axis: str, keys: list[str], caption: str, metrics: list[dict]) -> str:
    """A figure, or "" if no key was recorded; values that are not finite are gaps."""
    series = {key.replace("_", " "): _series(metrics, key) for key in keys}
    series = {name: (x, y) for name, (x, y) in series.items() if x}
    if not series:
        return ""
    figure = Figure(figsize=(4, 2.7), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel=axis)
    for (name, (x, y)), (colour, dashes) in zip(series.items(), LINES, strict=False):
        axes.plot(x, y, dashes, color=colour, marker="." if len(x) <= 30 else None, label=name)
        gaps = sum(not _finite(value) for value in y)
        caption += f" {gaps} of {len(y)} values are not finite and left blank." if gaps else ""
    if len(keys) > 1:
        axes.legend(frameon=False)
    ends = "; ".join(f"{name} from {y[0]:.4g} to {y[-1]:.4g}" for name, (_, y) in series.items())
    return page.figure(_picture(figure, f"curve of {axis} by step: {ends}"), caption)


def _series(metrics: list[dict], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that have a key; null is NaN."""
    rows = [(row["step"], row[key]) for row in metrics if key in row]
    return [x for x, _ in rows], [math.nan if y is None else float(y) for _, y in rows]


def _picture(figure: Figure, alt: str) -> str:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=180)
    return page.img(png, alt)


def _thumbnail(image: np.ndarray, alt: str, css: str = "") -> str:
    """A small picture of uint8 [h, w, 1 or 3]."""
    shrink = max(1, min(image.shape[:2]) // THUMBNAIL)
    h, w = (side // shrink for side in image.shape[:2])
    blocks = image[: h * shrink, : w * shrink].reshape(h, shrink, w, shrink, -1)
    png = io.BytesIO()
    imsave(png, np.broadcast_to(blocks.mean((1, 3)).astype(np.uint8), (h, w, 3)), format="png")
    return page.img(png, alt, f"thumb {'pixels' if min(h, w) < THUMBNAIL else ''} {css}")


def _class(names: Sequence[str], label: int) -> str:
    return str(names[label]) if label >= 0 else "unlabelled"


# ---- Values and files.


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _flat(config: dict, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys and their values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    """Around what reads or shows a file: what is wrong with it becomes a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of many kinds
        raise UserError(f"{path} is damaged ({line(error)}); move it away") from error


def _read_config(path: Path) -> dict:
    """The config, whose groups are dicts; {} if there is no file."""
    if not path.exists():
        return {}
    with _said_of(path):
        config = json.loads(path.read_text(encoding="utf-8").strip() or "{}")
        for group in ("data", "loss", "net", "method"):
            if not isinstance(config.get(group, {}), dict):
                raise ValueError(f"{group} is no group")
    return config


def _read_metrics(path: Path) -> list[dict]:
    """The lines of metrics.jsonl: steps with numbers, or null."""
    with _said_of(path):
        rows = record.read(path)
        for row in rows:
            numbers = (x for x in row.values() if x is not None)
            if not isinstance(row["step"], int) or not all(
                -math.inf <= x <= math.inf for x in numbers
            ):
                raise ValueError(f"a line of {line(ValueError(row), 80)}")
    return rows


def _read_gallery(path: Path) -> dict[str, np.ndarray]:
    """Its arrays; {} if there is no file."""
    if not path.exists():
        return {}
    with _said_of(path), np.load(path, allow_pickle=False) as file:
        return dict(file)

"""The report of a run, one HTML page that needs no other file and no network; also of several.

`jaxssl report DIR` writes the page of a run again, `jaxssl report A B ...` one
that compares runs.
"""

from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

from jaxssl.report import confusion, curves, negatives, page, pictures, results, results_table
from jaxssl.report.plots import STYLE
from jaxssl.report.workdir import (
    flat,
    is_finite,
    plain,
    read_config,
    read_gallery,
    read_metrics,
    said_of,
    series,
)
from jaxssl.training import atomic_files


def write_report(workdir: Path, out: Path | None = None) -> Path:
    """Write report.html from what a workdir holds; what is missing is left out.

    Args:
        workdir: with config.json, metrics.jsonl, results.json and gallery.npz.
        out: the page, by default report.html in the workdir.

    Returns:
        The path of the page.

    Raises:
        UserError: if one of them is damaged.
    """
    config = read_config(workdir / "config.json")
    metrics = read_metrics(workdir / "metrics.jsonl")
    rows = results.read_results(workdir)
    gallery = read_gallery(workdir / "gallery.npz")
    title = _title(config, rows)
    with matplotlib.rc_context(STYLE), said_of(workdir / "gallery.npz"):
        shown = [
            pictures.pairs(gallery),
            pictures.neighbours(gallery),
            confusion.section(gallery),
            negatives.hardest(gallery),
            negatives.support(gallery, config),
            _older(gallery, workdir),
            pictures.map_of(gallery),
        ]
    with matplotlib.rc_context(STYLE):
        sections = [
            f"<h1>{title}</h1>",
            _summary(config, metrics, rows),
            results_table.section(rows),
            curves.section(metrics),
            *shown,
            _config(config),
        ]
    path = out or workdir / "report.html"
    atomic_files.write_text(path, page.page(title, sections))
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
    speed = [value for value in series(metrics, "images_per_second")[1] if is_finite(value)]
    facts = [
        f"checkpoint of step {max(steps)}" if steps else "no checkpoint",
        f"seed {config.get('seed')}",
        f"batch of {config.get('batch_size')}",
        f"{plain(length)} {unit}",
        f"method {config.get('method', {}).get('name')}",
    ]
    facts += [f"{median(speed):,.0f} examples/s"] if speed else []
    return f"<p>{escape(' · '.join(facts))}</p>"


def _older(gallery: dict[str, Any], workdir: Path) -> str:
    """Says what an older version did not keep, and how to get it."""
    if not gallery or "block_size" in gallery:
        return ""
    command = f"python eval.py --workdir {workdir}"
    return f"""<p>This run's pictures were made by an earlier version, without the confusion of
nearest neighbours and the hardest negatives; <code>{escape(command)}</code> adds them.</p>"""


def _config(config: dict) -> str:
    body = [[escape(key), escape(plain(value))] for key, value in flat(config)]
    details = f"""<details>
<summary>{len(body)} effective values</summary>
<p>Change one with <code>--config.KEY=VALUE</code>.</p>
{page.table("config", ["key", "value"], body)}
</details>"""
    return page.section("Configuration", details)

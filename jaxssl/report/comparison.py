"""A page that compares runs: what they are, how they differ, their figures, their curves."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

from jaxssl.errors import UserError, explain_write_errors
from jaxssl.report import curve_overlay, metric_tables, page, run_report, runs
from jaxssl.report.plots import STYLE
from jaxssl.report.runs import Group, Run
from jaxssl.report.workdir import flat, is_finite, plain, series
from jaxssl.training import atomic_files
from jaxssl.training.config import CHANGEABLE_KEYS

TITLED = 3  # losses in the title
ABSENT = "(absent)"  # in place of a value


def write_page(workdirs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of a run again, or a comparison of several.

    Args:
        workdirs: of the runs, one or more.
        out: the page; by default report.html in the only workdir, or compare.html in the current
            folder.

    Returns:
        The path of the page.

    Raises:
        UserError: without a workdir, for a page that is not called .html, or as `compare`.
    """
    if not workdirs:
        raise UserError("name one run or more: jaxssl report DIR [DIR ...]")
    if out and out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a name that ends in .html")
    if len(workdirs) > 1:
        return write_comparison(workdirs, out or Path("compare.html"))
    runs.check(workdirs)
    out = out or workdirs[0] / "report.html"
    with explain_write_errors(out):
        return run_report.write_report(workdirs[0], out)


def write_comparison(workdirs: Sequence[Path], out: Path) -> Path:
    """Write a page that compares runs.

    Args:
        workdirs: of the runs, two or more.
        out: the page.

    Returns:
        ``out``.

    Raises:
        UserError: for a folder that holds no run or is named twice, a damaged file, or a page that
            cannot be written.
    """
    found = runs.read(workdirs)
    groups = runs.group(found)
    losses = list(dict.fromkeys(run.loss for run in found))
    more = f" and {len(losses) - TITLED} more" if len(losses) > TITLED else ""
    title = escape(f"{len(found)} runs: {', '.join(losses[:TITLED])}{more}")
    with matplotlib.rc_context(STYLE):
        sections = [
            f"<h1>{title}</h1>",
            _runs(found, groups),
            metric_tables.section(groups),
            curve_overlay.section(groups),
            _differences(groups),
        ]
    with explain_write_errors(out):
        atomic_files.write_text(out, page.page(title, sections))
    return out


def _runs(found: Sequence[Run], groups: Sequence[Group]) -> str:
    body = []
    for run in found:
        config = run.config
        length, unit = config.get("epochs"), ""
        if config.get("total_steps"):
            length, unit = config.get("total_steps"), " steps"
        speed = [x for x in series(run.metrics, "images_per_second")[1] if is_finite(x)]
        cells = [
            config.get("data", {}).get("name"),
            config.get("net", {}).get("name"),
            config.get("method", {}).get("name"),
            config.get("batch_size"),
            plain(length) + unit,
            config.get("seed"),
            "–" if run.step is None else run.step,
            f"{median(speed):,.0f}" if speed else "–",
            "–" if run.seconds is None else _time(run.seconds),
        ]
        name = f"{page.name(run.name)}<small>{escape(run.loss)}</small>"
        body.append([name, *(escape(str(cell)) for cell in cells)])
    head = ["run, loss", "data", "net", "method", "batch", "epochs", "seed", "step", "examples/s"]
    note = """<p>The step is that of the latest checkpoint that was evaluated, examples/s the median
of training; the time is that of training alone, a dash where it was interrupted.</p>"""
    several = [f"{group.name} ({group.seeds})" for group in groups if group.seeds]
    if several:
        note += f"""<p>Runs that differ in the seed alone are one column below:
{escape("; ".join(several))}.</p>"""
    return page.section("Runs", page.table("results", [*head, "time"], body, "runs") + note)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _differences(groups: Sequence[Group]) -> str:
    """The keys of the config in which the columns differ."""
    configs = [dict(flat(group.runs[0].config)) for group in groups]
    keys = sorted({key for config in configs for key in config if key != "seed"})
    body = []
    for key in keys:
        if len({json.dumps(config.get(key, ABSENT)) for config in configs}) > 1:
            values = [_value(config.get(key, ABSENT)) for config in configs]
            free = "<small>does not change the result</small>" if key in CHANGEABLE_KEYS else ""
            body.append([escape(key) + free, *map(escape, values)])
    seeds = [", ".join(plain(run.config.get("seed")) for run in group.runs) for group in groups]
    if len(set(seeds)) > 1:
        body.append(["seed", *map(escape, seeds)])
    if not body:
        words = "<p>No key differs between the columns.</p>"
        return page.section("Configuration", words)
    note = """<p>The keys in which the columns differ; all others are equal. A dash: the run's loss,
network or method has no such key.</p>"""
    head = ["key", *(page.name(group.name) for group in groups)]
    table = page.table("config differences", head, body, "configuration")
    return page.section("Configuration", note + table)


def _value(value: Any) -> str:
    if value == ABSENT:
        return "–"
    return str(value) if isinstance(value, float) else plain(value) or "empty"

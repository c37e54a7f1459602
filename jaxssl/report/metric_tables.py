"""Tables of several runs' figures: only what was measured in the same way stands in one row."""

from collections.abc import Sequence
from html import escape
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from jaxssl.report import page, results
from jaxssl.report.runs import Group, Run

# Percentages of which less is better; of the others more is. Other units are not judged.
LOWER = ("corruption_drop", "dead_dimensions", "most_confused_pair")
BEST = "★"
OF = {"dataset": "data set", "bank": "fitted on", "split": "tested on", "layer": "features"}
# Of config.data, besides the name and the splits: what decides which images are tested.
OF_FOLDER = ("path", "classes", "labels", "test_fraction", "split_seed")

Cells = dict[int, list[dict[str, Any]]]  # by a group's place: the rows of its runs


def section(groups: Sequence[Group]) -> str:
    """A table for all figures of the same data, splits and features."""
    tables = _tables(groups)
    if not tables:
        return page.section("Figures", "<p>None of these runs was evaluated.</p>")
    note = f"""<p>Figures of the pretrained network at the latest evaluated checkpoint, in percent
where no unit is named; ± is the standard deviation over seeds (n − 1) where seeds are named, else
over the protocol's draws. {BEST} and bold letters mark the best percentage of a row; other units
are not judged. A dash: no figure of this protocol, preset and metric.</p>"""
    left_out = sum(run.left_out for group in groups for run in group.runs)
    if left_out:
        note += f"""<p>Left out are {left_out} figures of other checkpoints, of another seed than
the run's, or of other data of the same name: see the reports of the runs.</p>"""
    shown = "".join(_table(of, lines, groups) for of, lines in tables.items())
    return page.section("Figures", note + _why(list(tables)) + shown)


def _tables(groups: Sequence[Group]) -> dict[tuple, dict[tuple, Cells]]:
    """By what figures are of: by protocol, preset, metric and unit: the cells."""
    tables: dict[tuple, dict[tuple, Cells]] = {}
    for place, group in enumerate(groups):
        for run in group.runs:
            for row in run.rows:
                what = row["protocol"], row["details"].get("preset"), row["metric"]
                lines = tables.setdefault(_of(row, run), {})
                cells = lines.setdefault((*what, row.get("unit", "%")), {})
                cells.setdefault(place, []).append(row)
    return tables


def _of(row: dict[str, Any], run: Run) -> tuple[tuple[str, str], ...]:
    """Names and values of what must agree between figures that are compared."""
    of = [(name, str(row.get(key))) for key, name in OF.items()]
    data = run.config.get("data", {})
    folder = data.get("name") == "folder"
    name = Path(str(data.get("path"))).name if folder else data.get("name")
    if row["dataset"] in (name, f"{name} ({Path(str(data.get('classes'))).name})"):
        keys = OF_FOLDER if folder else ("classes",)
        of += [(f"data.{key}", str(data.get(key))) for key in keys]
    return tuple(of)


def _why(tables: Sequence[tuple]) -> str:
    if len(tables) < 2:
        return ""
    values: dict[str, list[str]] = {}
    for of in tables:
        for name, value in of:
            if value not in values.setdefault(name, []):
                values[name].append(value)
    differ = [f"{name} ({' / '.join(v)})" for name, v in values.items() if len(v) > 1]
    return f"""<p>There are {len(tables)} tables, and figures of different tables cannot be
compared, because these differ: {escape("; ".join(differ))}.</p>"""


def _table(of: tuple, lines: dict[tuple, Cells], groups: Sequence[Group]) -> str:
    """A column for each group that has any of the figures."""
    places = sorted({place for cells in lines.values() for place in cells})
    head = [_heading(groups[place]) for place in places]
    body = []
    for (protocol, preset, metric, unit), cells in lines.items():
        what = protocol + (f":{preset}" if preset else "")
        name = metric + (f" ({unit})" if unit not in ("", "%") else "")
        best = _best(metric, unit, cells)
        shown = (_cell(cells.get(p, []), len(groups[p].runs), best=p in best) for p in places)
        body.append([f"{page.name(name)}<small>{page.name(what)}</small>", *shown])
    facts = dict(of)
    words = f"""{facts["data set"]}, fitted on {facts["fitted on"]}, tested on {facts["tested on"]};
{facts["features"]} features"""
    own = [f"{name} {value}" for name, value in of[len(OF) :] if value]
    words += f" ({', '.join(own)})" if own else ""
    words += "" if len(places) > 1 else "; one column has these, there is nothing to compare"
    table = page.table("results", ["metric", *head], body, f"figures of {facts['data set']}")
    return f"<p>{escape(words)}</p>{table}"


def _heading(group: Group) -> str:
    about = " · ".join(filter(None, [group.runs[0].loss, group.seeds]))
    return f"{page.name(group.name)}<small>{escape(about)}</small>"


def _mean(rows: Sequence[dict[str, Any]]) -> float | None:
    """None if there is no figure, or one that is not finite."""
    values = [row["value"] for row in rows]
    return fmean(values) if values and all(map(isfinite, values)) else None


def _best(metric: str, unit: str, cells: Cells) -> set[int]:
    """The places of the best cells, as far as two decimals tell; none if all are equal."""
    means = {place: _mean(rows) for place, rows in cells.items()}
    shown = {place: round(mean, 2) for place, mean in means.items() if mean is not None}
    if unit != "%" or len(set(shown.values())) < 2:
        return set()
    best = min(shown.values()) if metric in LOWER else max(shown.values())
    return {place for place, value in shown.items() if value == best}


def _cell(rows: Sequence[dict[str, Any]], num_runs: int, *, best: bool) -> str:
    """A figure, or its mean over seeds, and over how many where there are several runs."""
    if not rows:
        return "–"
    text = results.format_value(rows[0])
    if len(rows) > 1:
        mean = _mean(rows)
        spread = "" if mean is None else f"{stdev(row['value'] for row in rows):.2f}"
        text = "not finite" if mean is None else f"{mean:.2f} ± {spread}"
    text = f"<b>{text} {BEST}</b>" if best else text
    some = f"{len(rows)} of " if len(rows) < num_runs else ""
    return text + (f"<small>{some}{num_runs} seeds</small>" if num_runs > 1 else "")

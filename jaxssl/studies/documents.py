"""What a study found: printed, and written as PNG figures, an HTML page and a JSON document."""

import io
import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table as Printed

from jaxssl.errors import UserError, explain_write_errors
from jaxssl.report import page
from jaxssl.report.markdown import markdown_table
from jaxssl.studies.study import Claim, Findings, Setting, Table
from jaxssl.training import atomic_files, logs

VERDICTS = {True: "holds", False: "does not hold", None: "cannot be told"}
NOT_RUN = "not yet run"
CLAIM_HEADING = ("claim", "the paper", "where", "measured", "verdict")


def write_study(
    name: str,
    title: str,
    setting: Setting,
    claims: Mapping[str, Claim],
    findings: Findings,
    about: Mapping[str, Any],
) -> Path:
    """Write NAME.json, NAME.html and the figures into the setting's folder.

    Args:
        name: of the files: the study's, and after a "-" that of the run it looked at.
        title: what it is about, a line.
        setting: how it was run.
        claims: what it tests.
        findings: what it found.
        about: versions, machine, time, command.

    Returns:
        The path of the page.
    """
    document = {
        "study": name.partition("-")[0],
        "title": title,
        "scale": setting.scale,
        "where": findings.where,
        **about,
        "claims": {
            key: {**claim._asdict(), **_verdict(findings, key)} for key, claim in claims.items()
        },
        "tables": [table._asdict() for table in findings.tables],
        "data": findings.data,
    }
    atomic_files.write_json(setting.out / f"{name}.json", _plain(document))
    pictures = []
    for picture in findings.pictures:
        png = io.BytesIO()
        picture.figure.savefig(png, format="png", dpi=150)
        atomic_files.write_bytes(setting.out / f"{name}_{picture.name}.png", png.getvalue())
        pictures.append(page.figure(page.img(png, picture.alt), picture.caption))
    told = {"scale": setting.scale, "on": findings.where, **about}
    facts = " · ".join(f"{key} {value}" for key, value in told.items() if key != "command")
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p><code>{escape(str(about.get('command', '')))}</code><br>{escape(facts)}</p>",
        page.section("Claims", _claims(claims, findings)),
        *(page.section(table.title, _table(table)) for table in findings.tables),
        page.section("Figures", "".join(pictures)) if pictures else "",
    ]
    path = setting.out / f"{name}.html"
    atomic_files.write_text(path, page.page(escape(title), sections))
    return path


def write_markdown(path: Path, document: Path) -> None:
    """A page of Markdown from a document that `write` wrote; the document itself beside it."""
    found = read_document(document)
    kept = path.with_suffix(".json")
    facts = {"scale": found["scale"], "on": found["where"]}
    facts |= {key: found[key] for key in ("devices", "jax", "python", "commit") if found.get(key)}
    claims = [claim_cells(claim) for claim in found["claims"].values()]
    first = {"title": "Claims", "heading": CLAIM_HEADING, "rows": claims, "note": ""}
    parts = [
        f"# {found['title']}",
        "Written by the command; nothing here is written by hand. "
        f"All numbers, and the online k-NN of each run by epoch: [{kept.name}]({kept.name}).",
        f"    {found['command']}",
        " · ".join(f"{key} {value}" for key, value in facts.items()),
    ]
    for table in (first, *found["tables"]):
        cells = markdown_table(table["heading"], table["rows"]).rstrip()
        parts += [f"## {table['title']}", *filter(None, [table["note"]]), cells]
    with explain_write_errors(path, "--page"):
        atomic_files.write_text(path, "\n\n".join(parts) + "\n")
        atomic_files.write_text(kept, document.read_text(encoding="utf-8"))


def print_findings(claims: Mapping[str, Claim], findings: Findings) -> None:
    """Print the tables and the verdicts."""
    for table in findings.tables:
        out = Printed(title=table.title, title_justify="left")
        for i, heading in enumerate(table.heading):
            out.add_column(heading, justify="right" if i else "left")
        for row in table.rows:
            out.add_row(*row)
        logs.console.print(out)
        if table.note:
            logs.console.print(table.note, soft_wrap=True, highlight=False)
    for key, claim in claims.items():
        if key in findings.verdicts:
            verdict = findings.verdicts[key]
            said = VERDICTS[verdict.holds]
            text = f"{said}: {claim.text} ({claim.source}): {verdict.figure}"
            logs.console.print(text, soft_wrap=True, highlight=False, markup=False)


def read_document(path: Path) -> dict[str, Any]:
    """A document that `write` wrote.

    Raises:
        UserError: if it is damaged.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if {"study", "scale", "where", "command"} - set(document):
            raise ValueError("no document of a study")
        for claim in document["claims"].values():
            if {*Claim._fields, "figure", "verdict"} - set(claim):
                raise ValueError("a claim without verdict")
        return document
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged; move it away and run the study again") from error


def _verdict(findings: Findings, key: str) -> dict[str, str | None]:
    if key not in findings.verdicts:
        return {"figure": None, "verdict": None}
    verdict = findings.verdicts[key]
    return {"figure": verdict.figure, "verdict": VERDICTS[verdict.holds]}


def claim_cells(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """A row below `CLAIM_HEADING` from a claim of a document."""
    paper = " ".join(
        filter(None, [f"“{claim['quote']}”" * bool(claim["quote"]), claim["published"]])
    )
    said = claim["figure"] or "–", claim["verdict"] or NOT_RUN
    return claim["text"], paper or "–", claim["source"], *said


def _claims(claims: Mapping[str, Claim], findings: Findings) -> str:
    rows = []
    for key, claim in claims.items():
        cells = claim_cells({**claim._asdict(), **_verdict(findings, key)})
        rows.append([escape(cell) for cell in cells])
    return page.table("claims", CLAIM_HEADING, rows)


def _table(table: Table) -> str:
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    heading = [escape(cell) for cell in table.heading]
    return note + page.table("results", heading, [[escape(c) for c in row] for row in table.rows])


def _plain(value: Any) -> Any:
    """As JSON takes it: texts for keys, null for what is not finite."""
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value


def _key(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)

"""Write the findings of a study as JSON, HTML, PNG figures, Markdown and on the screen."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as PrintedTable

from jaxssl.components import Settings
from jaxssl.errors import UserError, explain_damage
from jaxssl.report import page
from jaxssl.report.images import Image, embed_png, figure_png
from jaxssl.report.markdown import narrow_table, wrap_text
from jaxssl.studies.study import Claim, Findings, Setting, Table, Verdict
from jaxssl.training.output import file_io
from jaxssl.training.output.console import show, show_table

NOT_RUN = "not measured"
MOST_BYTES = 2**30  # size limit of the document of a study
CLAIM_HEADING = ("claim", "the paper", "source", "measured", "verdict")


def write_study(
    name: str,
    title: str,
    setting: Setting,
    claims: Mapping[str, Claim],
    findings: Findings,
    about: Mapping[str, str],
) -> Path:
    """Write a study's NAME.json, NAME.html and NAME_*.png into the output folder.

    Args:
        name: of the files: the name of the study, then after a "-" any options.
        title: one line.
        setting: scale and output folder.
        claims: the claims that the study tests.
        findings: the result.
        about: command, versions, device and time.

    Returns:
        The path of the page.

    Raises:
        UserError: if the files would replace a document with runs that this one lacks.
    """
    entries = {key: claim_entry(c, findings.verdicts.get(key)) for key, c in claims.items()}
    document = {
        "study": name.partition("-")[0],
        "title": title,
        "scale": setting.scale,
        "dataset": setting.dataset,
        "seeds": setting.seeds,
        "where": findings.where,
        **about,
        "claims": entries,
        "tables": [table._asdict() for table in findings.tables],
        "data": findings.data,
    }
    path = setting.out / f"{name}.json"
    _require_no_lost_runs(path, findings.data)
    file_io.write_json(path, to_json(document))
    images = []
    for picture in findings.pictures:
        png = figure_png(picture.figure, dpi=150)
        file_io.write_bytes(setting.out / f"{name}_{picture.name}.png", png)
        images.append(embed_png(png, picture.alt, caption=picture.caption))
    facts = {"scale": setting.scale, "on": findings.where, **about}
    path = setting.out / f"{name}.html"
    write_page(
        path,
        title,
        about.get("command", ""),
        findings.tables,
        facts=[f"{key} {value}" for key, value in facts.items() if value and key != "command"],
        claims=list(map(claim_cells, entries.values())),
        pictures=images,
    )
    return path


def write_page(
    path: Path,
    title: str,
    command: str,
    tables: Sequence[Table],
    *,
    facts: Sequence[str] = (),
    claims: Sequence[Sequence[str]] = (),
    pictures: Sequence[Image] = (),
) -> None:
    """Write an HTML page with the tables of a study or a grid.

    Args:
        path: the page.
        title: of the page.
        command: the command line that makes the page.
        tables: in this order.
        facts: about the measurement, shown below the title.
        claims: the `claim_cells` of each claim, which stand below the tables. Claims that were not
            measured are folded away.
        pictures: which stand above the tables.
    """
    measured = [cells for cells in claims if cells[-1] != NOT_RUN]
    not_run = [cells for cells in claims if cells[-1] == NOT_RUN]
    values = {"title": title, "command": command, "facts": facts, "tables": tables}
    values["measured"] = page.Table("claims", CLAIM_HEADING, measured, "measured")
    values["not_run"] = page.Table("claims", CLAIM_HEADING, not_run, "not_run")
    file_io.write_text(path, page.render("study.html", **values, pictures=pictures))


def write_markdown(path: Path, document: Path) -> None:
    """Write a study's Markdown page, and copy the study's JSON document next to it.

    Args:
        path: the page. The copy has the same name with the suffix .json.
        document: as `write_study` has written it.
    """
    study = read_document(document)
    copy = path.with_suffix(".json")
    _require_no_lost_runs(copy, study["data"])
    facts = {"scale": study["scale"], "on": study["where"]}
    facts |= {key: study[key] for key in ("devices", "jax", "python", "commit") if study.get(key)}
    paragraphs = [
        f"# {study['title']}",
        wrap_text(f"The command below wrote this page. All numbers: [{copy.name}]({copy.name})."),
        f"    {study['command']}",
        wrap_text(" · ".join(f"{key} {value}" for key, value in facts.items())),
        "## Claims",
    ]
    paragraphs += [markdown_claim([claim]).rstrip() for claim in study["claims"].values()]
    for table in study["tables"]:
        cells = narrow_table(table["heading"], table["rows"]).rstrip()
        paragraphs += [f"## {table['title']}", wrap_text(table["note"]), cells]
    file_io.write_text(path, "\n\n".join(filter(None, paragraphs)) + "\n")
    file_io.write_text(copy, document.read_text(encoding="utf-8"))


def print_findings(claims: Mapping[str, Claim], findings: Findings) -> None:
    """Print the tables and the verdicts of a study."""
    for table in findings.tables:
        print_table(table)
    for key, verdict in findings.verdicts.items():
        claim = claims[key]
        show(f"{verdict.word}: {claim.text} ({claim.source}): {verdict.measured}")


def print_table(table: Table) -> None:
    """Print a table with title and note."""
    printed = PrintedTable(title=table.title, title_justify="left")
    for i, heading in enumerate(table.heading):
        printed.add_column(heading, justify="right" if i else "left")
    for row in table.rows:
        printed.add_row(*row)
    show_table(printed)
    if table.note:
        show(table.note)


def read_document(path: Path) -> Settings:
    """Read and check the JSON document of a study.

    Raises:
        UserError: if the document does not exist or is damaged.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; name the JSON document of a study")
    with explain_damage(path, "move it away and run the study again"):
        document = file_io.read_json(path, MOST_BYTES)
        if {"study", "scale", "where", "command"} - set(document):
            raise ValueError("the file is not the document of a study")
        for claim in document["claims"].values():
            if {*Claim._fields, "figure", "verdict"} - set(claim):
                raise ValueError("the study document has a claim without a verdict")
        return document


def check_replaceable(path: Path, setting: Setting, study: str) -> None:
    """Raise an error if a study would replace a document of another study, scale or data.

    A document with more seeds is not replaced either.
    """
    document = read_document(path) if path.exists() else {}
    if document and document["study"] != study:
        raise UserError(f"{path} is of the study {document['study']!r}; write elsewhere")
    for key in ("scale", "dataset", "seeds"):
        new = getattr(setting, key)
        old = document.get(key, new)  # Documents of version 0.2.0 have only the scale.
        if old > new if key == "seeds" else old != new:
            raise UserError(
                f"{path} was made with {key} {old or 'default'}, and would be replaced; move it "
                "away, or write elsewhere"
            )


def _require_no_lost_runs(path: Path, data: Any) -> None:
    """Raise an error if the document at a path has runs that the new ``data`` lack."""

    def runs(data: Any) -> set[tuple[str, int]]:
        return {(json.dumps(run["cell"]), run["seed"]) for run in data.get("runs", ())}

    if path.exists() and (lost := runs(read_document(path)["data"]) - runs(data)):
        raise UserError(
            f"{path} has {len(lost)} runs that this command lacks, and would be replaced; name it "
            "with --earlier, or write elsewhere"
        )


def claim_entry(claim: Claim, verdict: Verdict | None = None) -> dict[str, object]:
    """Return a claim, with measurement and verdict, in the form of a study's JSON document."""
    figure, word = (verdict.measured, verdict.word) if verdict else (None, None)
    return {**claim._asdict(), "figure": figure, "verdict": word}


def claim_cells(claim: Settings) -> tuple[str, ...]:
    """Return the table row of a claim, with the columns of `CLAIM_HEADING`."""
    quote = f"“{claim['quote']}”" if claim["quote"] else ""
    paper = " ".join(filter(None, [quote, claim["published"]]))
    figure, word = claim["figure"] or "–", claim["verdict"] or NOT_RUN
    return claim["text"], paper or "–", claim["source"], figure, word


def markdown_claim(results: Sequence[Settings]) -> str:
    """Return a claim of a document as a section of Markdown.

    Args:
        results: the claim with the measurement and verdict of each study, at least one.
    """
    text, paper, source, *_ = claim_cells(results[0])
    lines = [f"### {text}\n"]
    if paper != "–":
        lines.append(wrap_text(f"{paper} ({source})") + "\n")
    for claim in results:
        item = f"- **{claim['verdict'] or NOT_RUN}**"
        item += f": {claim['figure']}" if claim["figure"] else ""
        lines.append(wrap_text(item, indent="  "))
    return "\n".join(lines) + "\n"


def to_json(value: Any) -> object:
    """Convert to JSON types. Keys become strings, and numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {_key(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    number = value.item() if hasattr(value, "item") else value  # of a NumPy scalar
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _key(key: object) -> str:
    """Return a key of a document: the parts of a tuple, such as the cell of a grid, in words."""
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)

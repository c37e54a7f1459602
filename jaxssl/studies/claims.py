"""Write the pages of measured claims and of the papers' tables from the studies' documents."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.errors import UserError
from jaxssl.report.markdown import markdown_table, wrap_text
from jaxssl.report.page import render
from jaxssl.studies import documents, study
from jaxssl.studies.gpu_hours import estimate_hours
from jaxssl.training import config as config_lib
from jaxssl.training.output import file_io

OURS = "ours, no paper"  # the source of claims of ours
PAPERS = {
    "AUC-CL": "Sharma et al., ICLR 2024",
    "MMCL": "Shah et al., AAAI 2022",
    "DeCL": "Chen et al., NeurIPS 2022",
    "TCL": "Animesh and Chandraker, 2023",
}


def read_unstudied_claims() -> list[tuple[study.Claim, str]]:
    """Read the claims of claims.toml that no study tests, each with a command that would do so."""
    return [
        (study.Claim(**{key: x for key, x in entry.items() if key != "command"}), entry["command"])
        for entry in study.claims_file()["unstudied"]
    ]


def write_claims(folder: Path, page: Path) -> Path:
    """Write a Markdown page of the measured claims from the study documents below a folder.

    The page papers.md next to it lists all claims with the commands that measure them.

    Args:
        folder: searched recursively.
        page: the page to write, not papers.md.

    Raises:
        UserError: if the folder does not exist, a document is damaged, or the page is papers.md.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name the folder of the studies with --out")
    if page.name == "papers.md":  # The second page would replace the first one.
        raise UserError(f"{page} will hold all claims; give --page another name, as claims.md")
    papers_page = page.with_name("papers.md")
    first = render("papers.md", body="").partition("\n")[0]
    if papers_page.exists() and not papers_page.read_text(errors="replace").startswith(first):
        raise UserError(
            f"{papers_page} would be replaced, and is another page; choose another --page"
        )
    names = components.names("study")
    paths = [p for p in sorted(folder.rglob("*.json")) if p.stem.partition("-")[0] in names]
    distinct = {p.read_bytes(): p for p in paths}.values()  # `--page` of a study writes a copy.
    found = _without_parts([{**documents.read_document(p), "path": p} for p in distinct])
    behind = [one for one in found if any(c["verdict"] for c in one["claims"].values())]
    claims = _all_claims(behind)
    titles = {paper: f"{paper} ({source})" for paper, source in PAPERS.items()}
    papers = {
        title: [claim for claim in claims if claim["source"].split(",")[0] == paper]
        for paper, title in {**titles, "ours": "Our own comparisons"}.items()
    }
    verdicts_on = [(claim["text"], claim["source"]) for claim in claims if claim["verdict"]]
    counts = {"num_claims": len(set(verdicts_on)), "num_verdicts": len(verdicts_on)}
    measured = "".join(_measured_section(title, papers[title]) for title in papers)
    body = _count_verdicts(papers) + measured + _runs_section(behind, page.parent)
    all_claims = "\n".join(_paper_section(title, papers[title]) for title in papers)
    file_io.write_text(page, render("claims.md", **counts, body=body))
    file_io.write_text(papers_page, render("papers.md", body=all_claims) + "\n")
    return page


def _without_parts(found: Sequence[Settings]) -> list[Settings]:
    """Leave out documents with runs that another document contains, so that no run counts twice.

    Of documents with the same runs, the first is kept.
    """
    runs = [set(map(json.dumps, _whole_runs(one))) for one in found]

    def is_part(number: int) -> bool:
        mine = runs[number]
        before, after = runs[:number], runs[number + 1 :]
        return bool(mine) and (mine in before or any(mine < others for others in before + after))

    return [one for number, one in enumerate(found) if not is_part(number)]


def _whole_runs(document: Settings) -> Iterator[object]:
    """Yield the runs of a document with their whole configs, in a form that can be compared."""
    data = document["data"]
    for run in data.get("runs", ()):
        config = {**data.get("config", {}), **run.get("config", {})}
        yield (
            document["study"],
            document["scale"],
            sorted({**run, "config": sorted(config.items())}.items()),
        )


def _measured_section(title: str, claims: Iterable[Settings]) -> str:
    """Return a section of Markdown with the measured claims of a paper, "" without any."""
    measured = [results for results in _by_claim(claims).values() if results[0]["verdict"]]
    sections = map(documents.markdown_claim, measured)
    return "\n".join([f"\n## {title}\n", *sections]) if measured else ""


def _runs_section(studies: Sequence[Settings], folder: Path) -> str:
    """Return a section of Markdown with data, code and command of each study, by number."""
    items = []
    for number, document in enumerate(studies, 1):
        path = Path(os.path.relpath(document["path"], folder)).as_posix()
        code = " at ".join(document[key] for key in ("version", "commit") if document.get(key))
        about = ", ".join(filter(None, [document["scale"], document["where"], code]))
        item = f"- **[{number}]** {about} ([document]({path})):"
        items.append(wrap_text(f"{item} `{document['command']}`", indent="  "))
    return "\n".join(["\n## Studies behind the verdicts\n", *items]) + "\n" if items else ""


def _paper_section(title: str, claims: Iterable[Settings]) -> str:
    """Return a section of Markdown with all claims, tables and figures of a paper, by place."""
    items = {source + text: _item(of) for (text, source), of in _by_claim(claims).items()}
    for source, text in study.claims_file()["elements"].items():
        paper, _, place = source.partition(", ")
        if title.startswith(f"{paper} ("):
            items[source] = wrap_text(f"- {place}: {text}", indent="  ")
    return "\n".join([f"\n## {title}\n", *(items[key] for key in sorted(items, key=_place))])


def _by_claim(claims: Iterable[Settings]) -> dict[tuple[str, str], list[Settings]]:
    """Group the measurements of the same claim, by its text and source."""
    groups: dict[tuple[str, str], list[Settings]] = {}
    for claim in claims:
        groups.setdefault((claim["text"], claim["source"]), []).append(claim)
    return groups


def _place(text: str) -> list[tuple[str, int]]:
    """Return a key that sorts texts by their numbers, so that "Table 2" is before "Table 10"."""
    return [(text, int(n or 0)) for text, n in re.findall(r"(\D+)(\d*)", text)]


def _item(results: Sequence[Settings]) -> str:
    """Format a claim with numbers and verdicts, or the command, as an item of a Markdown list."""
    claim = results[0]
    place = "" if claim["source"] == OURS else f"{claim['source'].partition(', ')[2]}: "
    missing, setting = _not_run(claim["command"])
    words = Counter(result["verdict"] or missing for result in results)
    ours = ", ".join(f"{word} ({n})" if n > 1 else word for word, n in words.items())
    published = f" {claim['published']}" if claim["published"] else ""
    # The first result is of the largest scale: documents come by folder, medium, small and tiny.
    figure = f" Ours at {claim['figure']}." if claim["verdict"] else ""
    command = "" if claim["verdict"] else f" `{claim['command']}`{setting}"
    return wrap_text(f"- {place}{claim['text']}. **{ours}**.{figure}{published}{command}", "  ")


def _not_run(command: str) -> tuple[str, str]:
    """Describe the needs of a command that was not run, and the data and protocol of its config."""
    training = re.match(r"jaxssl train --config (\S+)(.*)", command)
    if not training:
        return ("needs a trained run" if "--workdir" in command else documents.NOT_RUN), ""
    changes = re.findall(r" --config\.(\S+?)=(\S+)", training[2])
    config = config_lib.load(training[1], changes)
    hours = estimate_hours(config)
    text = f"needs a GPU: {hours:.0f} hours" if hours >= 10 else f"needs a GPU: {hours:.1f} hours"
    return text, f", {config.data.name}, `{config.eval.protocols[0]}`"


def _all_claims(studies: Iterable[Settings]) -> list[Settings]:
    """Return the claims that documents measure, then the other claims of studies, then the rest.

    The figure of a measured claim names the scale and the number of the document.
    """
    claims, measured, seen = [], set(), set()
    for number, document in enumerate(studies, 1):
        for claim in document["claims"].values():
            # Two studies may judge a claim by the same runs, as `accuracy` and `batch_size` do.
            same = (claim["text"], claim["source"], document["scale"], claim["figure"])
            if claim["verdict"] and same not in seen:
                seen.add(same)
                figure = f"{document['scale']} [{number}]: {claim['figure']}"
                claims.append({**claim, "figure": figure, "command": document["command"]})
                measured.add((claim["text"], claim["source"]))
    others = [
        (claim, f"jaxssl study {name}")
        for name in components.names("study")
        for claim in study.read_claims(name).values()
        if (claim.text, claim.source) not in measured
    ]
    others += read_unstudied_claims()
    return claims + [{**documents.claim_entry(one), "command": command} for one, command in others]


def _count_verdicts(papers: dict[str, list[Settings]]) -> str:
    """Return a table with the number of each verdict for each paper."""
    verdicts = (*study.VERDICTS, documents.NOT_RUN)
    rows = []
    for title, claims in papers.items():
        counts = Counter(claim["verdict"] or documents.NOT_RUN for claim in claims)
        rows.append((title, *(str(counts[verdict]) for verdict in verdicts)))
    return markdown_table(("paper", *verdicts), rows)

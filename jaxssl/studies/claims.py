"""Write the tables of all claims, measured or not, from the documents of the studies."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl import components
from jaxssl.report.markdown import markdown_table
from jaxssl.report.page import render
from jaxssl.studies import documents
from jaxssl.studies.study import (
    HOLDS,
    OPPOSITE,
    REFUTED,
    SMALLER,
    UNDECIDED,
    Claim,
    Verdict,
    claims_file,
    read_claims,
)
from jaxssl.studies.verdicts import Summary, judge_summaries
from jaxssl.training.output import file_io

PAPERS = {
    "AUC-CL": "Sharma et al., ICLR 2024",
    "MMCL": "Shah et al., AAAI 2022",
    "DeCL": "Chen et al., NeurIPS 2022",
    "TCL": "Animesh and Chandraker, 2023",
}


class UnstudiedClaim(NamedTuple):
    """A claim of a paper that no study tests, with the reason.

    Attributes:
        claim: the claim.
        command: the command that tests it, "" if there is none.
        verdict: if it was measured on another page of docs/.
    """

    claim: Claim
    command: str
    verdict: Verdict | None


def read_unstudied_claims() -> list[UnstudiedClaim]:
    """Read the claims of claims.toml that no study tests."""
    claims = []
    for entry in claims_file()["unstudied"]:
        claim = Claim(**{key: entry[key] for key in Claim._fields if key in entry})
        verdict = None
        if "ours" in entry:
            summaries = (Summary(*entry[key]) for key in ("ours", "theirs"))
            verdict = judge_summaries(claim, *summaries)
            verdict = verdict._replace(measured=f"{verdict.measured} ({entry['page']})")
        claims.append(UnstudiedClaim(claim, entry.get("command", ""), verdict))
    return claims


def write_claims(folder: Path, page: Path) -> Path:
    """Write a Markdown page of all claims from the study documents below a folder.

    Args:
        folder: searched recursively.
        page: the page to write.

    Raises:
        UserError: if a document is damaged.
    """
    names = components.names("study")
    paths = [p for p in sorted(folder.rglob("*.json")) if p.stem.partition("-")[0] in names]
    studies = [documents.read_document(path) for path in paths]
    claims = [*_measured(studies), *_not_measured(studies), *_unstudied()]
    papers = {
        f"{paper} ({source})": [c for c in claims if c["source"].split(",")[0] == paper]
        for paper, source in {**PAPERS, "ours": "no paper"}.items()
    }
    tested = [(claim["text"], claim["source"]) for claim in claims if claim["verdict"]]
    parts = [_count_verdicts(papers)]
    for title, claims in papers.items():
        by_text = {}
        for claim in sorted(claims, key=lambda claim: claim["verdict"] is None):
            by_text.setdefault((claim["text"], claim["source"]), []).append(claim)
        if by_text:
            sections = [documents.markdown_claim(results) for results in by_text.values()]
            parts.append("\n".join([f"\n## {title}\n", *sections]))
    counts = {"num_claims": len(set(tested)), "num_verdicts": len(tested)}
    file_io.write_text(page, render("claims.md", **counts, body="".join(parts)))
    return page


def _measured(studies: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for study in studies:
        for claim in study["claims"].values():
            if claim["verdict"]:
                measured = f"{study['scale']}, {study['where']}: {claim['figure']}"
                yield {**claim, "figure": measured, "command": study["command"]}


def _not_measured(studies: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    measured = {
        (study["study"], key)
        for study in studies
        for key, claim in study["claims"].items()
        if claim["verdict"]
    }
    for name in components.names("study"):
        for key, claim in read_claims(name).items():
            if (name, key) not in measured:
                yield {**documents.claim_entry(claim), "command": f"jaxssl study {name}"}


def _unstudied() -> Iterator[dict[str, Any]]:
    for row in read_unstudied_claims():
        yield {**documents.claim_entry(row.claim, row.verdict), "command": row.command}


def _count_verdicts(papers: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table with the number of each verdict for each paper."""
    verdicts = (HOLDS, SMALLER, OPPOSITE, REFUTED, UNDECIDED, documents.NOT_RUN)
    rows = []
    for title, claims in papers.items():
        counts = Counter(claim["verdict"] or documents.NOT_RUN for claim in claims)
        rows.append((title, *(str(counts[verdict]) for verdict in verdicts)))
    return markdown_table(("paper", *verdicts), rows)

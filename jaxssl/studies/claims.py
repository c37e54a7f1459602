"""Write the tables of all claims, measured or not, from the documents of the studies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl import components
from jaxssl.errors import explain_write_errors
from jaxssl.report.markdown import markdown_table
from jaxssl.studies import documents
from jaxssl.studies.study import Claim, Verdict, claims_file, read_claims
from jaxssl.studies.verdicts import Summary, judge_summaries
from jaxssl.training import atomic_files

PAPERS = {
    "AUC-CL": "Sharma et al., ICLR 2024",
    "MMCL": "Shah et al., AAAI 2022",
    "DeCL": "Chen et al., NeurIPS 2022",
    "TCL": "Animesh and Chandraker, 2023",
}
HEAD = """# Claims

The claims of the four papers, in their own words and numbers, and what we measured. `jaxssl study
claims` generates this page from the documents of the studies. Thresholds that we chose are marked
"ours".

- **holds**: the 95 % interval of the difference lies above zero, or the criterion in the text of
  the claim is met.
- **does not hold**: the interval lies below zero, or contains zero and excludes the paper's
  difference.
- **cannot be told**: the interval contains both zero and the paper's difference (or zero, if the
  paper reports none), or the probe is at its ceiling: the paper's difference does not fit between
  the other method and 100 %. A single seed decides nothing.
- **not yet run**: nobody has measured it with this code.

Differences are in points, paired by seed, with Student's t interval in brackets. The intervals of a
claim about several batch sizes, encoders or the like hold together at 95 % (Bonferroni). The scales
are far smaller than the papers' experiments: a verdict is about the scale in its row. All seeds
share the test images, so the intervals are about training alone. Some fifty claims are tested. Of
the false ones, about one will seem to hold by chance.

A scale is a file of [`configs/studies/`](../configs/studies). [studies.md](studies.md) describes
the studies.
"""


class UnstudiedClaim(NamedTuple):
    """A claim that no study tests.

    Attributes:
        claim: the claim.
        command: the command that tests it, "" if there is none.
        verdict: if it was measured on another page of docs/.
    """

    claim: Claim
    command: str
    verdict: Verdict | None


class Row(NamedTuple):
    """A claim of a document, and the command that measures it."""

    claim: dict[str, Any]
    command: str


def read_unstudied_claims() -> list[UnstudiedClaim]:
    """Return the claims of claims.toml that no study tests."""
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
    """Write a page of Markdown from the documents of studies below a folder.

    Args:
        folder: searched recursively.
        page: the page to write.

    Raises:
        UserError: if a document is damaged.
    """
    names = components.names("study")
    paths = [p for p in sorted(folder.rglob("*.json")) if p.stem.partition("-")[0] in names]
    studies = [documents.read_document(path) for path in paths]
    rows = [*_measured(studies), *_not_measured(studies), *_unstudied()]
    parts = [HEAD]
    for paper, source in {**PAPERS, "ours": "no paper"}.items():
        claims = [row for row in rows if row.claim["source"].split(",")[0] == paper]
        if claims:
            claims.sort(key=lambda row: row.claim["verdict"] is None)
            parts.append(f"\n## {paper} ({source})\n\n{_table(claims)}")
    with explain_write_errors(page, "--page"):
        atomic_files.write_text(page, "".join(parts))
    return page


def _measured(studies: list[dict[str, Any]]) -> Iterator[Row]:
    for study in studies:
        for claim in study["claims"].values():
            if claim["verdict"]:
                measured = f"{study['scale']}, {study['where']}: {claim['figure']}"
                yield Row({**claim, "figure": measured}, study["command"])


def _not_measured(studies: list[dict[str, Any]]) -> Iterator[Row]:
    measured = {
        (study["study"], key)
        for study in studies
        for key, claim in study["claims"].items()
        if claim["verdict"]
    }
    for name in components.names("study"):
        for key, claim in read_claims(name).items():
            if (name, key) not in measured:
                yield Row(_without_verdict(claim), f"jaxssl study {name}")


def _unstudied() -> Iterator[Row]:
    for row in read_unstudied_claims():
        claim = _without_verdict(row.claim)
        if row.verdict:
            verdict = documents.VERDICTS[row.verdict.holds]
            claim |= {"figure": row.verdict.measured, "verdict": verdict}
        yield Row(claim, row.command)


def _without_verdict(claim: Claim) -> dict[str, Any]:
    return {**claim._asdict(), "figure": None, "verdict": None}


def _table(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        text, paper, source, measured, verdict = documents.claim_cells(row.claim)
        command = f"`{row.command}`" if row.command else "–"
        cells.append((text, paper, source, command, measured, f"**{verdict}**"))
    heading = ("claim", "the paper", "source", "command", "measured", "verdict")
    return markdown_table(heading, cells)

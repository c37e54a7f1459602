"""The table of all claims: what the studies measured, and what nobody has run yet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl import components
from jaxssl.errors import explain_write_errors
from jaxssl.report.markdown import markdown_table
from jaxssl.studies import documents
from jaxssl.studies.study import Claim
from jaxssl.studies.unstudied_claims import UNSTUDIED_CLAIMS
from jaxssl.training import atomic_files

PAPERS = {
    "AUC-CL": "Sharma et al., ICLR 2024",
    "MMCL": "Shah et al., AAAI 2022",
    "DeCL": "Chen et al., NeurIPS 2022",
    "TCL": "Animesh and Chandraker, 2023",
}
HEAD = """# Claims

What the four papers claim, in their own words and figures, and what we measured. Each row is
written by `jaxssl study claims` from the documents that the studies leave; nothing here
is written by hand. A threshold that is ours is called ours.

- **holds**: the 95 % interval of the difference lies above zero, or the criterion that the claim
  itself names is met.
- **does not hold**: the interval lies below zero, or contains zero and excludes the paper's
  difference.
- **cannot be told**: the interval contains both zero and the paper's difference (or zero, where the
  paper states none), or the probe is at its ceiling: the paper's difference does not fit between
  the other method and 100 %. A single seed tells nothing.
- **not yet run**: nobody has measured it with this code.

Differences are in points, paired seed by seed, with Student's t interval in brackets. The intervals
of a claim about all batch sizes, encoders or the like hold together at 95 % (Bonferroni). The
scales are far smaller than the papers': a verdict is about the scale in its row. The seeds share
their test images, so the intervals are those of training alone. Some fifty claims are tested: of
those that are false about one will seem to hold by chance.

The scale is a file of [`configs/studies/`](../configs/studies); [studies.md](studies.md) says what
each study does.
"""


class Row(NamedTuple):
    """A claim as a document has it, with the command that measures it."""

    claim: dict[str, Any]
    command: str


def write_claims(folder: Path, page: Path) -> Path:
    """Write a page of Markdown from the studies' documents below a folder, which may have none.

    Raises:
        UserError: if a document is damaged.
    """
    paths = [
        p
        for p in sorted(folder.rglob("*.json"))
        if p.stem.partition("-")[0] in components.names("study")
    ]
    records = [documents.read_document(path) for path in paths]
    rows = [*_measured(records), *_not_measured(records), *_elsewhere()]
    parts = [HEAD]
    for paper, source in {**PAPERS, "ours": "no paper"}.items():
        own = [row for row in rows if row.claim["source"].split(",")[0] == paper]
        if own:
            own.sort(key=lambda row: row.claim["verdict"] is None)
            parts.append(f"\n## {paper} ({source})\n\n{_table(own)}")
    with explain_write_errors(page, "--page"):
        atomic_files.write_text(page, "".join(parts))
    return page


def _measured(documents: list[dict[str, Any]]) -> Iterator[Row]:
    for document in documents:
        for claim in document["claims"].values():
            if claim["verdict"]:
                what = f"{document['scale']}, {document['where']}: {claim['figure']}"
                yield Row({**claim, "figure": what}, document["command"])


def _not_measured(documents: list[dict[str, Any]]) -> Iterator[Row]:
    told = {
        (document["study"], key)
        for document in documents
        for key, claim in document["claims"].items()
        if claim["verdict"]
    }
    for name in components.names("study"):
        for key, claim in components.module("study", name).CLAIMS.items():
            if (name, key) not in told:
                yield Row(_untold(claim), f"jaxssl study {name}")


def _elsewhere() -> Iterator[Row]:
    for row in UNSTUDIED_CLAIMS:
        claim = _untold(row.claim)
        if row.verdict:
            said = documents.VERDICTS[row.verdict.holds]
            claim |= {"figure": row.verdict.measured, "verdict": said}
        yield Row(claim, row.command)


def _untold(claim: Claim) -> dict[str, Any]:
    return {**claim._asdict(), "figure": None, "verdict": None}


def _table(rows: list[Row]) -> str:
    cells = []
    for row in rows:
        text, paper, where, measured, verdict = documents.claim_cells(row.claim)
        command = f"`{row.command}`" if row.command else "–"
        cells.append((text, paper, where, command, measured, f"**{verdict}**"))
    heading = ("claim", "the paper", "where", "command", "measured", "verdict")
    return markdown_table(heading, cells)

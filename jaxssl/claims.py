"""The table of all claims: what the studies measured, and what nobody has run yet."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxssl import findings, record
from jaxssl.errors import UserError, writing
from jaxssl.page import markdown_table
from jaxssl.studies import names
from jaxssl.study import Claim

NOT_RUN = "not yet run"
PAPERS = {
    "AUC-CL": "Sharma et al., ICLR 2024",
    "MMCL": "Shah et al., AAAI 2022",
    "DeCL": "Chen et al., NeurIPS 2022",
    "TCL": "Animesh and Chandraker, 2023",
}
# Claims that need data which no study has; the command that would test them.
CONFIG = "python train.py --config configs/{}.py"
ELSEWHERE = (
    ("69.5 % linear, ResNet-50, batch 256, 100 epochs", "AUC-CL, Table 1", "imagenet_auc_cl_r50"),
    ("70.7 % k-NN, 73.7 % linear, ViT-S, 300 epochs", "AUC-CL, Table 2", "imagenet_auc_cl_vit_s"),
    ("93.6 % linear on CIFAR-10, 500 epochs", "AUC-CL, Table 3", "cifar10_auc_cl"),
    ("69.7 % linear on CIFAR-100, 500 epochs", "AUC-CL, Table 3", "cifar100_auc_cl"),
    ("81.9 % linear on ImageNet-100", "AUC-CL, Table 3", "imagenet100_auc_cl"),
    ("54.9 % mean of 20 few-shot sets, 11 wins", "AUC-CL, Table 4", "suites/elevater"),
    ("Best of its peers in transfer", "AUC-CL, Table 8", "suites/transfer"),
    ("Best of its peers in many-shot transfer", "MMCL, Table 1", "suites/many_shot"),
    ("80.7 % linear on ImageNet-100, batch 128", "MMCL, Table 2", "imagenet100_mmcl_pgd"),
    ("63.8 % linear, batch 256, 100 epochs", "MMCL, Table 3", "imagenet_mmcl_pgd"),
    ("Above GraphCL on graphs", "MMCL, Table 4", ""),
    ("Above MoCo-v2 on video", "MMCL, Table 5", ""),
    ("68.0 % (PGD) on CIFAR-100, SimCLR 66", "MMCL, Table 8", "cifar100_mmcl_pgd"),
    ("68.81 % (INV) on CIFAR-100", "MMCL, Table 8", "cifar100_mmcl_inv"),
    ("64.2 % linear, ResNet-50, batch 256, 100 epochs", "DeCL, Table 2", "imagenet_decl_r50"),
    ("63.4 % linear, ViT-S, batch 256", "DeCL, Table 2", "imagenet_decl_vit_s"),
    ("Above MoCo-v3 in transfer", "DeCL, Table 3", "suites/transfer"),
    ("54.7 % mean of 20 few-shot sets", "DeCL, Table 4", "suites/elevater"),
    ("Above CLIP on CC3M, retrieval and zero-shot", "DeCL, Table 5", ""),
    ("96.4 % on CIFAR-10 with labels, SupCon 96.3", "TCL, Table 5.1", "cifar10_tcl_supervised"),
    ("79.8 % on CIFAR-100, SupCon 79.1", "TCL, Table 5.1", "cifar100_tcl_supervised"),
    ("91.8 % on CIFAR-10 without labels, SimCLR 90.7", "TCL, Table 5.2", "cifar10_tcl"),
)
HEAD = """# Claims

What the four papers claim, and what we measured. Each row is written by `python -m jaxssl.studies
claims` from the documents that the studies leave; nothing here is written by hand.

- **holds**: measured, and the claimed difference is significant over the seeds (paired seed by
  seed, one-sided t-test at 5 %), or the criterion that the claim itself names is met.
- **does not hold at this scale**: measured, and it is not; differences within the spread are here
  too. The scales below are far smaller than the papers', so this says nothing about theirs.
- **not yet run**: nobody has measured it with this code, or with a single seed alone.

Some forty claims are tested, so expect a few "holds" by chance. The seeds share their test images
(500 of the digits, where a point is five images), so the errors are those of training alone; on the
digits the linear probe reaches 98 % from raw pixels and can hardly tell methods apart.

Differences are in points, mean ± standard error over seeds. The scale is a file of
[`configs/studies/`](../configs/studies); [studies.md](studies.md) says what each study does.
"""


class Row(NamedTuple):
    """A claim with what was measured of it at one scale."""

    claim: Claim
    command: str
    measured: str
    verdict: str


def write_claims(folder: Path, page: Path) -> Path:
    """Write a page of Markdown from the studies' documents below a folder.

    Raises:
        UserError: if there are none, or one is damaged.
    """
    paths = [p for p in sorted(folder.rglob("*.json")) if p.stem.partition("-")[0] in names()]
    if not paths:
        raise UserError(
            f"{folder} holds no document of a study; run one: python -m jaxssl.studies toy_noise"
        )
    documents = [findings.read(path) for path in paths]
    rows = [*_measured(documents), *_not_measured(documents), *_elsewhere()]
    parts = [HEAD]
    for paper, source in {**PAPERS, "ours": "no paper"}.items():
        own = [row for row in rows if row.claim.source.split(",")[0].split(";")[0] == paper]
        if own:
            own.sort(key=lambda row: row.verdict == NOT_RUN)
            parts.append(f"\n## {paper} ({source})\n\n{_table(own)}")
    with writing(page, "--page"):
        record.write_text(page, "".join(parts))
    return page


def _measured(documents: list[dict[str, Any]]) -> Iterator[Row]:
    for document in documents:
        for claim in document["claims"].values():
            if claim["verdict"]:
                what = f"{document['scale']}, {document['where']}: {claim['figure']}"
                own = Claim(claim["text"], claim["source"])
                yield Row(own, document["command"], what, claim["verdict"])


def _not_measured(documents: list[dict[str, Any]]) -> Iterator[Row]:
    told = {
        (document["study"], key)
        for document in documents
        for key, claim in document["claims"].items()
        if claim["verdict"]
    }
    for name in names():
        for key, claim in importlib.import_module(f"jaxssl.studies.{name}").CLAIMS.items():
            if (name, key) not in told:
                yield Row(claim, f"python -m jaxssl.studies {name}", "–", NOT_RUN)


def _elsewhere() -> Iterator[Row]:
    for text, source, config in ELSEWHERE:
        command = CONFIG.format(config) if config else "–"
        if config.startswith("suites/"):
            command = f"python eval.py --suite configs/{config}.py --workdir RUN"
        yield Row(Claim(text, source), command, "–", NOT_RUN)


def _table(rows: list[Row]) -> str:
    cells = [
        (
            *row.claim,
            "–" if row.command == "–" else f"`{row.command}`",
            row.measured,
            f"**{row.verdict}**",
        )
        for row in rows
    ]
    return markdown_table(("claim", "source", "command", "measured", "verdict"), cells)

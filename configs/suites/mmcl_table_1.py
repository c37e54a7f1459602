"""The many-shot columns of MMCL's Table 1, by SSL-transfer's fine-tuning: see `many_shot`.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022.
Command: jaxssl eval --suite mmcl_table_1 --weights A.safetensors,B.pth
The few-shot columns are `episodes:cdfsl_5way_20shot`. The last column, surface normals, is
`normals:ssl_transfer`, see docs/evaluation.md.
"""

from typing import Any

from jaxssl.configs.suites import many_shot


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    suite = many_shot.get_suite()
    names = "Aircraft", "Cars", "DTD", "Flowers", "Food"
    return {**suite, "datasets": {name: suite["datasets"][name] for name in names}}

"""The many-shot columns of MMCL's Table 1, by SSL-transfer's fine-tuning: see `many_shot`.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022.
Command: jaxssl eval --suite mmcl_table_1 --weights A.safetensors,B.pth
FGVC-Aircraft is not in TFDS. It is the folder `fgvc_aircraft`, with train/CLASS/*.jpg and
test/CLASS/*.jpg. The few-shot columns are `episodes:cdfsl_5way_20shot`. The last column, surface
normals, is `normals:ssl_transfer`, see docs/evaluation.md.
"""

from typing import Any

from jaxssl.configs.suites import many_shot


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    suite = many_shot.get_suite()
    many_shot_sets = suite["datasets"]
    aircraft = {**many_shot_sets["Pets"], "name": "folder", "path": "fgvc_aircraft"}
    others = {name: many_shot_sets[name] for name in ("Cars", "DTD", "Flowers", "Food")}
    return {**suite, "datasets": {"Aircraft": aircraft, **others}}

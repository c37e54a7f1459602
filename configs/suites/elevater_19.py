"""ELEVATER's linear probe with five labels a class, on 19 of its 20 data sets.

Papers: Li et al., ELEVATER, NeurIPS 2022; AUC-CL, Table 4, and DeCL, Table 4, report it.
Command: jaxssl eval --suite elevater_19 --workdir runs/A,runs/B
The sets of `elevater` come from TFDS. The other seven are folders in `elevater/`, with
train/CLASS/*.jpg and test/CLASS/*.jpg. Hateful memes reports accuracy here, in the papers the area
under the ROC curve. VOC 2007 is left out: it has many labels an image. Wins count ties for all.
"""

from typing import Any

from jaxssl.configs.suites import elevater

FOLDERS = {
    "Aircraft": "fgvc_aircraft",
    "Country211": "country211",
    "FER 2013": "fer2013",
    "GTSRB": "gtsrb",
    "Hateful memes": "hateful_memes",
    "KITTI distance": "kitti_distance",
    "Rendered SST-2": "rendered_sst2",
}


def get_suite() -> dict[str, Any]:
    """Return the suite: a protocol with its preset, and the data sets to evaluate on."""
    suite = elevater.get_suite()
    folders = {k: {"name": "folder", "path": f"elevater/{v}"} for k, v in FOLDERS.items()}
    folders["Aircraft"]["metric"] = "fewshot_5shot_mean_per_class"
    return {**suite, "datasets": {**suite["datasets"], **folders}}

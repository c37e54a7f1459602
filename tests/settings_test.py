"""Compare defaults, presets and configs with the recorded settings in golden/settings.json.

Results are reported under the names of configs and presets, so their numbers must not change
unnoticed. After an intended change, record the new numbers, and name them in the changelog:

    python tests/settings_test.py
"""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxssl import components
from jaxssl.training import config as config_lib

pytestmark = pytest.mark.fast

RECORD = Path(__file__).parent / "golden" / "settings.json"
# Config from which the golden file stores the differences of all others.
BASE = "digits"


def flat(tree, prefix=""):
    """Return the leaves of nested mappings by dotted key, as they read back from JSON."""
    leaves = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{name}.")
        else:
            leaves[name] = json.loads(json.dumps(value, default=plain))
    return leaves


def plain(value):
    """Return a named tuple or a dataclass as a dict, and a type by its name."""
    return value.__name__ if isinstance(value, type) else vars(value)


def component(group, name):
    """Return the defaults and the presets of a component."""
    parameters = inspect.signature(components.factory(group, name)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    presets = getattr(components.module(group, name), "PRESETS", {})
    return flat({**defaults, "preset": presets})


def protocol(name):
    return flat(components.module("protocol", name).PRESETS)


def config_values(name):
    """Return the values of a packaged config that differ from the config `BASE`."""
    base = {} if name == BASE else flat(config_lib.load(BASE).to_dict())
    values = flat(config_lib.load(name).to_dict())
    return {key: value for key, value in values.items() if key not in base or base[key] != value}


# The protocol of published results, by the beginning of config names. The longest match counts.
PUBLISHED_WITH = {
    "auc_cl:": "linear:paper_imagenet",
    "auc_cl:cifar10_released": "knn:auc_cl_cifar",
    "auc_cl:cifar10_table_9": "knn:auc_cl_cifar",
    "auc_cl:cifar100_table_9": "knn:auc_cl_cifar",
    "auc_cl:stl10": "knn:auc_cl_cifar",
    "auc_cl:stl10_table_10": "linear:paper_imagenet",
    "cifar100_baselines:": "linear:cifar_sgd",
    "cifar100_baselines:moco_v3_auc_cl": "linear:paper_imagenet",
    "cifar10_baselines:": "linear:cifar_sgd",
    "cifar10_baselines:debiased": "linear:hcl_quirks",
    "cifar10_baselines:hcl": "linear:hcl_quirks",
    "cifar10_baselines:moco_v3_auc_cl": "linear:paper_imagenet",
    "decl:": "knn",
    "graphs/tu:": "svm",
    "image_text/clip:": "zeroshot:photo",
    "imagenet100_baselines:": "linear:cifar_sgd",
    "imagenet100_baselines:mochi": "linear:paper_imagenet",
    "imagenet100_baselines:simclr_r50": "linear:paper_imagenet",
    "imagenet100_baselines:sogclr": "linear:paper_imagenet",
    "imagenet_baselines:": "linear:paper_imagenet",
    "imagenet_baselines:mochi": "linear:moco_v2",
    "imagenet_baselines:moco_v2": "linear:moco_v2",
    "imagenet_dino:": "knn:moco_v3_20",
    "imagenet_moco_v3:": "linear:paper_imagenet",
    "imagenet_moco_v3:decl_vit": "linear:moco_v3_vit",
    "imagenet_moco_v3:vit_s": "linear:moco_v3_vit",
    "mmcl:": "linear:hcl_quirks",
    "mmcl:cifar100_table_6": "knn",
    "mmcl:imagenet": "linear:mmcl_imagenet",
    "mmcl:stl10_table_6": "knn",
    "tcl:": "linear:tcl_views",
    "tcl_supervised:": "linear:tcl",
    "tcl_supervised:imagenet100": "linear:tcl_imagenet",
    "video/ucf101_mmcl": "retrieval:mmcl_video",
}

DEMOS = ("base", "digits", "pictures", "graphs/neck", "image_text/digit", "studies:")
DEMOS += ("video/moving",)
COMPONENTS = [
    (group, name)
    for group in ("net", "head", "predictor", "loss", "method", "augment")
    for name in components.names(group)
]
PROTOCOLS = components.names("protocol")
CONFIGS = components.configs()


def current():
    """Return all settings in the form of golden/settings.json."""
    return {
        "components": {f"{group}.{name}": component(group, name) for group, name in COMPONENTS},
        "protocols": {name: protocol(name) for name in PROTOCOLS},
        "configs": {name: config_values(name) for name in CONFIGS},
    }


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORD.read_text())


@pytest.mark.parametrize(("group", "name"), COMPONENTS)
def test_defaults_and_presets_of_a_component_equal_the_recorded_settings(recorded, group, name):
    assert component(group, name) == recorded["components"][f"{group}.{name}"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_presets_of_a_protocol_equal_the_recorded_settings(recorded, name):
    assert protocol(name) == recorded["protocols"][name]


@pytest.mark.parametrize("name", CONFIGS)
def test_settings_of_a_config_equal_the_recorded_settings(recorded, name):
    assert config_values(name) == recorded["configs"][name]


@pytest.mark.parametrize("name", [c for c in CONFIGS if "cross_entropy" not in c])
def test_first_protocol_of_a_config_is_that_of_its_published_result(name):
    starts = [start for start in PUBLISHED_WITH if name.startswith(start)]
    if starts:  # Demos and studies have no published result.
        first = config_lib.load(name).eval.protocols[0]
        assert first == PUBLISHED_WITH[max(starts, key=len)]
    else:
        assert name.startswith(DEMOS)


def test_every_recorded_component_protocol_and_config_exists(recorded):
    names = {"components": {"{}.{}".format(*item) for item in COMPONENTS}}
    names |= {"protocols": {*PROTOCOLS}, "configs": {*CONFIGS}}
    assert {kind: set(values) for kind, values in recorded.items()} == names


if __name__ == "__main__":
    RECORD.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")

"""Runs of earlier versions resume, and with their crops end where they would have ended."""

import importlib
import json
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.augment import image
from jaxssl.evaluation import pretrain
from jaxssl.training import config, programs
from jaxssl.training.workdir import checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(
    "name", ["decl", *(pytest.param(n, marks=pytest.mark.long) for n in ("siamese", "momentum"))]
)
def test_run_of_version_0_1_resumes_to_the_same_final_parameters(
    name, data_dir, tmp_path, monkeypatch
):
    digits = importlib.import_module("jaxssl.augment.recipes.digits")
    monkeypatch.setattr(digits, "CROP_NUMBERS", 4)
    monkeypatch.setattr(image, "random_crop_box", cut_crop_box)
    monkeypatch.setattr(programs, "_cache", {})  # Programs of other tests have the present crops.
    with zipfile.ZipFile(GOLDEN / f"run_{name}.zip") as archive:
        archive.extractall(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    settings = ConfigDict(json.loads(json.dumps(written), object_hook=_tuples))
    settings.data.dir = str(data_dir)
    settings = config.complete_stored(settings)
    pretrain.train(settings, tmp_path)
    resumed = checkpoint.restore_arrays(tmp_path)
    assert resumed.step == 12
    with np.load(tmp_path / "final.npz") as final:
        leaves = jax.tree_util.tree_leaves_with_path(resumed.state)
        assert sorted(final) == sorted(jax.tree_util.keystr(path) for path, _ in leaves)
        for path, leaf in leaves:
            expected = final[jax.tree_util.keystr(path)]
            # Arrays with a row per example are padded for eight devices.
            leaf = leaf[: len(expected)] if np.ndim(leaf) else leaf
            # Another machine or number of devices adds in another order, with other rounding.
            atol = 1e-4 * max(1, np.abs(expected[np.isfinite(expected)]).max(initial=0))
            np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=atol, err_msg=str(path))


def cut_crop_box(u, shape, scale, ratio=(3 / 4, 4 / 3)):
    """Return the crop box of version 0.1: a box that does not fit is cut at the border."""
    h, w = shape[:2]
    area = h * w * image.between(u[0], *scale)
    low, high = np.log(np.float32(ratio))
    aspect = jnp.exp(image.between(u[1], low, high))
    width, height = jnp.minimum(jnp.sqrt(area * aspect), w), jnp.minimum(jnp.sqrt(area / aspect), h)
    left, top = u[2] * (w - width), u[3] * (h - height)
    return jnp.stack([left, top, left + width, top + height])


def _tuples(group: dict) -> dict:
    """A config's sequences are tuples; JSON has lists only."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in group.items()}

"""The function of `jaxssl.load_encoder` that maps images to the inputs of a network."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from marks import long_except
from tune_cases import tiny_encoder
from weights_cases import draw_picture

from jaxssl.augment.views import Inputs
from jaxssl.data.opening import in_memory
from jaxssl.errors import UserError
from jaxssl.pretrained.encoder import make_apply
from jaxssl.pretrained.load import make_preprocess

pytestmark = pytest.mark.fast
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "encoders.npz")
PICTURES = json.loads(str(GOLDEN["pictures"]))
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 1), np.uint8)


def test_preprocess_of_floats_and_single_images_equals_that_of_a_uint8_batch():
    preprocess = make_preprocess(tiny_encoder())
    expected = preprocess(IMAGES)
    np.testing.assert_array_equal(preprocess(IMAGES[0]), expected[:1])
    floats = IMAGES / np.float32(255)
    np.testing.assert_allclose(preprocess(floats), expected, atol=1e-6)
    np.testing.assert_allclose(jax.jit(preprocess)(floats), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES[0, 0], r"images \[n, h, w, c\] or one \[h, w, c\], got the shape \[5, 1\]"),
        (IMAGES.astype(np.int32), "got int32"),
        (IMAGES.astype(np.float32), r"floats in \[0, 1\], got values in \[.*; pass uint8"),
        (np.full((6, 5, 1), np.nan, np.float32), "got values in"),
        (np.full((6, 5, 1), 1.0000002, np.float32), r"got values in \[1.0000002, 1.0000002\]"),
    ],
)
def test_preprocess_refuses_arrays_that_are_no_supported_images(images, message):
    with pytest.raises(ValueError, match=message):
        make_preprocess(tiny_encoder())(images)


def test_apply_refuses_images_that_are_not_prepared():
    encoder = tiny_encoder()
    apply, preprocess, variables = make_apply(encoder), make_preprocess(encoder), encoder.variables
    with pytest.raises(UserError, match=r"takes prepared images, got integers; pass preprocess"):
        apply(variables["net"], IMAGES)
    assert np.isfinite(apply(variables["net"], preprocess(IMAGES))).all()


@pytest.mark.parametrize("name", long_except([*PICTURES][::3], PICTURES))
def test_pictures_of_usual_sizes_become_the_inputs_of_timm_torchvision_and_transformers(name):
    inputs = Inputs(channels=3, mean=(0.0,), std=(1.0,), **PICTURES[name]["settings"])
    images = draw_picture(*PICTURES[name]["shape"])[None]
    actual = np.asarray(jax.jit(inputs.prepare)(images))[0, ::16, ::16]
    # When the libraries resize, they round to 8 bits after the columns and after the rows.
    np.testing.assert_allclose(actual, GOLDEN[f"{name}/pixels"], rtol=0, atol=1.5 / 255)


@pytest.mark.parametrize(
    ("crop", "interpolation"),
    [pytest.param(0.9, "bicubic", marks=pytest.mark.long), (1.0, "bilinear")],
)
def test_pictures_of_different_sizes_are_preprocessed_as_the_weights_prescribe(crop, interpolation):
    inputs = Inputs(32, 3, (0.0,), (1.0,), crop, interpolation)
    pictures = [draw_picture(60, 75), draw_picture(90, 50)]
    source, _ = in_memory.load_images(pictures, channels=3)
    for actual, picture in zip(source.images(*inputs.resizing)[:], pictures, strict=True):
        expected = 255 * np.asarray(inputs.prepare(picture[None]))[0]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1.5)

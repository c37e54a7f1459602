"""The function of `jaxssl.load_encoder` that maps images to the inputs of a network."""

import jax
import numpy as np
import pytest
from tune_cases import tiny_encoder

from jaxssl.pretrained.load import make_preprocess

pytestmark = pytest.mark.fast
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 1), np.uint8)


def test_floats_and_single_images_give_the_inputs_of_a_uint8_batch():
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
    ],
)
def test_other_images_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        make_preprocess(tiny_encoder())(images)

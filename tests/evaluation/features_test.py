"""Features that need much memory are kept in a temporary file, and raw features of images."""

import os
import tempfile

import jax
import numpy as np
import pytest
from file_cases import full_disk

from jaxssl import distributed
from jaxssl.errors import UserError
from jaxssl.evaluation import features
from jaxssl.kinds import image


@pytest.fixture
def large(monkeypatch):
    """Let every array of features count as large."""
    monkeypatch.setattr(features, "IN_MEMORY", 0)


def test_large_features_are_kept_in_a_temporary_file(large):
    array = features._allocate((3, 4))
    assert isinstance(array, np.memmap) and array.shape == (3, 4) and array.dtype == np.float32
    array[:] = 1.5
    np.testing.assert_array_equal(array, np.full((3, 4), 1.5, np.float32))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_full_temporary_folder_is_reported_before_it_is_used(large, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    message = "features need 1 MiB in a temporary file: No space left .* variable TMPDIR"
    with pytest.raises(UserError, match=message):
        features._allocate((2**9, 2**9))


def test_missing_temporary_folder_is_reported(large, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UserError, match="temporary file: No such file or directory; name a folder"):
        features._allocate((2, 2))


@pytest.mark.parametrize("shape", [(8, 40, 1), (40, 8, 1)], ids=["wide", "tall"])
def test_raw_pixels_of_images_with_a_long_side_are_shrunk(shape):
    levels = np.array([0, 51, 255], np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (3, *shape))
    mesh = distributed.make_mesh(jax.devices()[:1])

    def extract(images, apply):
        return features.extract(images, lambda _, block: apply(block), (), mesh)

    pixels = image.pixels(images, extract)
    expected = np.repeat(levels[:, None] / 255, image.RAW_SIZE**2, axis=1)
    np.testing.assert_allclose(pixels, expected, atol=1e-6)


def test_large_inputs_have_fewer_rows_in_a_block(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (100, 4, 4, 1), np.uint8)
    mesh, rows = distributed.make_mesh(jax.devices()[:1]), []

    def extract():
        def apply(_, block):
            rows.append(len(block))
            return block.reshape(len(block), -1)

        return features.extract(images, apply, (), mesh)

    expected = extract()
    monkeypatch.setattr(features, "BLOCK_BYTES", 10 * 16)
    np.testing.assert_array_equal(extract(), expected)
    assert rows == [16] * 7 + [8] * 13


def test_raw_pixels_that_need_much_memory_are_the_same_in_blocks(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (9, 28, 28, 1), np.uint8)
    mesh = distributed.make_mesh(jax.devices()[:1])

    def extract(images, apply):
        return features.extract(images, lambda _, block: apply(block), (), mesh)

    expected = image.pixels(images, lambda *_: pytest.fail("in blocks"))
    monkeypatch.setattr(image, "MAX_RAW", images.size - 1)
    np.testing.assert_allclose(image.pixels(images, extract), expected, rtol=2e-7)

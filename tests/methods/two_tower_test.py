"""The two-tower method: views of captioned images, labels, chunks, rejected settings.

tests/training/whole_step_test.py compares its steps with steps by hand.
"""

from functools import partial

import jax
import numpy as np
import oracles
import pytest
from file_cases import refused
from jax import numpy as jnp
from method_cases import KEY, B, Head, Net, first_step, start, value_of
from tiny import DIGITS

from jaxssl import distributed
from jaxssl.kinds.image_text import make_image_text_views
from jaxssl.losses import objective
from jaxssl.losses.pairs import pair_towers
from jaxssl.methods import two_tower
from jaxssl.models import text
from jaxssl.models.encoder import Encoder
from jaxssl.training.build import build
from jaxssl.training.config import load
from jaxssl.training.config.method import make_networks

CAPTIONED = DIGITS.parent / "image_text" / "digit_captions.py"
LENGTH = 5
close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


# Views of images and captions


def window(key, image):
    return image[:4, :4] * jax.random.uniform(key, (4, 4, 1))


@pytest.fixture(scope="module")
def pair_views():
    return jax.jit(make_image_text_views([window]))


def captioned(b, k=5, seed=0):
    """Make images with different captions; the first token is the index of the image."""
    rng = np.random.default_rng(seed)
    text = np.stack([*np.indices((b, k))], axis=2).astype(np.int32)
    return {"image": rng.integers(0, 256, (b, 8, 8, 1), np.uint8), "text": text}


def test_captions_of_an_image_are_drawn_uniformly(pair_views):
    pairs, index, number = captioned(4), np.arange(4, dtype=np.int32) + 100, 2000
    keys = jax.random.split(KEY, number)
    texts = jax.jit(jax.vmap(lambda key: pair_views(key, pairs, index)["texts"]))(keys)
    assert texts.shape == (number, 1, 4, 2)
    example, drawn = np.moveaxis(np.asarray(texts[:, 0]), 2, 0)
    assert (example == np.arange(4)).all()
    counts = np.stack([np.bincount(drawn[:, i], minlength=5) for i in range(4)])
    deviation = np.sqrt(number * (1 / 5) * (4 / 5))
    assert np.abs(counts - number / 5).max() < 4.5 * deviation
    # Images draw captions independently: two draw the same number in a fifth of the cases.
    agree = [(drawn[:, i] == drawn[:, j]).sum() for i in range(4) for j in range(i)]
    assert np.abs(np.array(agree) - number / 5).max() < 4.5 * deviation


def test_views_and_captions_do_not_depend_on_the_batch(pair_views):
    pairs, index = captioned(8), np.arange(8, dtype=np.int32) + 1000
    whole = pair_views(KEY, pairs, index)
    assert (whole["views"].shape, whole["texts"].shape) == ((1, 8, 4, 4, 1), (1, 8, 2))
    assert len(set(np.asarray(whole["texts"])[0, :, 1].tolist())) > 1

    def same(found, places):
        np.testing.assert_array_equal(found["texts"], whole["texts"][:, places])
        np.testing.assert_allclose(found["views"], whole["views"][:, places], atol=1e-6)

    for places in (np.random.default_rng(1).permutation(8), np.arange(4, 8)):
        some = jax.tree.map(lambda x, at=places: x[at], pairs)
        same(pair_views(KEY, some, index[places]), places)
    mesh, spec = distributed.make_mesh(), jax.sharding.PartitionSpec
    split = spec(distributed.DATA_AXIS), spec(None, distributed.DATA_AXIS)
    views = make_image_text_views([window])
    on_eight = distributed.spmd(views, mesh, (spec(), split[0], split[0]), split[1])
    same(jax.jit(on_eight)(KEY, pairs, index), np.arange(8))


def test_image_view_does_not_depend_on_the_drawn_caption(pair_views):
    pairs, index = captioned(4), np.arange(4, dtype=np.int32)
    other = {**pairs, "text": captioned(4, k=3)["text"] + 7}
    actual, expected = (pair_views(KEY, x, index)["views"] for x in (other, pairs))
    np.testing.assert_array_equal(actual, expected)


# The training scheme `two_tower`


TEXT_NET = text.net(vocabulary=20, context=LENGTH, dim=4, layers=1, num_heads=2)
VIEWS = Encoder(Net(), Head())
PAIRS = VIEWS._replace(text=Encoder(TEXT_NET, Head()))


def batch_of(num_views=1, seed=0):
    rng = np.random.default_rng(seed)
    images = jnp.asarray(rng.normal(size=(num_views, B, 2, 2, 3)), jnp.float32)
    texts = jnp.asarray(rng.integers(0, 20, (1, B, LENGTH)), jnp.int32)
    index = jnp.arange(B, dtype=jnp.int32) * 2 + 1
    return {"views": images, "texts": texts, "index": index, "label": index // 4}


def test_two_tower_with_labels_uses_the_class_as_positives():
    method = two_tower.method(VIEWS, objective("decl", rate="batch", u="mean"), labels=True)
    batch = batch_of(2)
    _, _, value, _, _, z = first_step(method, batch)
    assert len(np.unique(batch["label"])) == 3
    close(value, oracles.decl(pair_towers(*z, labels=batch["label"])).mean())


@pytest.mark.long
def test_two_tower_accumulation_keeps_all_negatives():
    batch = batch_of()
    chunked = PAIRS._replace(num_chunks=2, text=Encoder(TEXT_NET, Head(), num_chunks=2))
    whole, parts = (two_tower.method(e, objective("clip")) for e in (PAIRS, chunked))
    params, carried = start(whole, batch)
    expected, actual = (value_of(m, params, carried, batch) for m in (whole, parts))
    jax.tree.map(close, actual, expected)


# Rejected settings

ALONE = {"method.name": "two_tower"}
TOGETHER = "captions take method.name=two_tower, text.name=text and augment.name=clip together"


@pytest.mark.parametrize(
    ("path", "changes", "parts"),
    [
        (CAPTIONED, {"method.name": "siamese"}, [TOGETHER, "got siamese, text and clip"]),
        (CAPTIONED, {"text.name": "none"}, [TOGETHER, "got two_tower, none and clip"]),
        (CAPTIONED, {"augment.name": "simclr"}, [TOGETHER, "got two_tower, text and simclr"]),
        (DIGITS, {"augment.name": "clip"}, [TOGETHER, "got siamese, none and clip"]),
        (DIGITS, {"text.name": "text"}, [TOGETHER, "got siamese, text and digits"]),
        (DIGITS, {"text.name": "text"} | ALONE, [TOGETHER, "got two_tower, text and digits"]),
        (CAPTIONED, {"views": "2"}, ["needs views=1 and crops.number=0, got"]),
        (CAPTIONED, {"crops.number": "1"}, ["needs views=1 and crops.number=0, got"]),
        (DIGITS, {"views": "3"} | ALONE, ["needs views=2 and crops.number=0, got"]),
        (DIGITS, {"crops.number": "1"} | ALONE, ["needs views=2 and crops.number=0, got"]),
        (CAPTIONED, {"predictor.name": "mlp"}, ["not use a predictor; set predictor.name=none"]),
    ],
)
def test_two_tower_rejects_incompatible_settings(path, changes, parts):
    with refused(*parts):
        build(load(path, list(changes.items())), 1297)


def test_captions_are_the_second_view_that_mmcl_needs():
    """The only view of an image is no pair with itself, but its captions are the other tower."""
    settings = {"loss.name": "mmcl", "method.symmetric": "True"}
    assert build(load(CAPTIONED, list(settings.items())), 1297).steps_per_epoch > 0


@pytest.mark.parametrize("path", [CAPTIONED, DIGITS])
def test_only_configs_for_captioned_images_have_a_text_encoder(path):
    config = load(path, list(ALONE.items()) if path == DIGITS else [])
    assert build(config, 1297).steps_per_epoch == 1297 // config.batch_size
    assert (make_networks(config).text is not None) == (path == CAPTIONED)

"""Contexts of protocols: which weights, which split and which crop each kind of features has."""

import jax
import numpy as np
import pytest
from data_cases import data_config
from file_cases import refused
from jax import numpy as jnp
from tune_cases import SIZE, digits, make_pretrained

from jaxssl.augment.views import Inputs
from jaxssl.data import source
from jaxssl.data.opening import in_memory
from jaxssl.evaluation import context, rows
from jaxssl.evaluation.context import make_contexts
from jaxssl.evaluation.protocols import knn
from jaxssl.kinds import image
from jaxssl.models import convnet
from jaxssl.pretrained.encoder import make_encode

NET = {"widths": (6,), "strides": (2,)}
KINDS = ("raw", "untrained", "pretrained")


def drawn(seed):
    """Return random variables of a network; variances are positive."""
    net, image = convnet.net(**NET), jnp.zeros((1, SIZE, SIZE, 1))
    shapes = jax.eval_shape(lambda: net.init(jax.random.key(0), image, train=False))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.random(x.shape, np.float32), dict(shapes))


@pytest.fixture(scope="module")
def encoder():
    """Return an encoder whose untrained variables depend on the seed."""
    inputs = Inputs(SIZE, 1, mean=(0.3,), std=(0.4,), crop=0.75)
    made = make_pretrained(convnet.net(**NET), drawn(100))
    facts = {"net": {"name": "convnet"}, "step": 9}
    untrained = lambda seed: {"net": drawn(seed)}  # noqa: E731
    return made._replace(inputs=inputs, untrained=untrained, metadata=facts)


@pytest.fixture(scope="module")
def splits(data_dir):
    """Return three different splits of the digits; the bank has another size than the test."""
    bank = digits(data_dir, 160).take(np.arange(100, 160))
    return source.Splits(digits(data_dir, 40), bank, digits(data_dir, 33, "test"))


@pytest.fixture(scope="module")
def contexts(encoder, splits, mesh):
    return dict(make_contexts(encoder, None, splits, KINDS, mesh, seed=5))


def features_by(encoder, variables, images, crop=0.75):
    inputs = encoder.inputs._replace(crop=crop)
    return np.asarray(make_encode(encoder, inputs)({"net": variables}, images))


def test_kinds_of_features_use_pixels_random_or_trained_weights(contexts, encoder, splits):
    bank, test = splits.bank.images(SIZE), splits.test.images(SIZE)
    expected = {
        "raw": [x.reshape(len(x), -1) / np.float32(255) for x in (bank, test)],
        "untrained": [features_by(encoder, drawn(5), x) for x in (bank, test)],
        "pretrained": [features_by(encoder, encoder.variables["net"], x) for x in (bank, test)],
    }
    assert list(contexts) == list(KINDS)
    for kind, (train, others) in expected.items():
        features = contexts[kind].features
        np.testing.assert_allclose(features.train, train, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(features.test, others, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(features.train_labels, splits.bank.labels)
        np.testing.assert_array_equal(features.test_labels, splits.test.labels)
    nearest = {}
    for kind, (train, others) in expected.items():
        unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (others, train)]
        labels = splits.bank.labels[(unit[0] @ unit[1].T).argmax(axis=1)]
        nearest[kind] = 100 * np.mean(labels == splits.test.labels)
        [result, _] = knn.run(contexts[kind], seed=0, preset="uniform")
        assert result.value == pytest.approx(nearest[kind])
    assert len(set(nearest.values())) == 3


def test_protocols_get_the_bank_the_test_split_and_the_evaluated_encoder(contexts, splits):
    for kind, made in contexts.items():
        assert made.train is splits.bank and made.test is splits.test
        if kind == "raw":
            assert made.encoder is None
            continue
        variables = drawn(5 if kind == "untrained" else 100)
        jax.tree.map(np.testing.assert_array_equal, made.encoder.variables["net"], variables)
        images = splits.test.images(SIZE)[:7]
        np.testing.assert_allclose(made.encode(images), made.features.test[:7], rtol=1e-5)


def test_augmented_views_are_encoded_without_the_central_crop(contexts, encoder, splits):
    images = splits.train.images(SIZE)[:3]
    pixels = np.round(255 * contexts["raw"].views(images, 2, 1)).astype(np.uint8)
    views = pixels.reshape(2, 3, SIZE, SIZE, 1)
    for view, features in zip(views, contexts["pretrained"].views(images, 2, 1), strict=True):
        expected = features_by(encoder, encoder.variables["net"], view, crop=0.0)
        np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_augmented_views_of_an_image_do_not_depend_on_the_block_size(contexts, splits, monkeypatch):
    images = np.repeat(splits.train.images(SIZE)[:1], 5, axis=0)
    whole = contexts["raw"].views(images, 2, 1)
    distance = np.abs(whole.reshape(10, 1, -1) - whole.reshape(1, 10, -1)).max(axis=2)
    assert (distance + np.eye(10)).min() > 0.01  # all views of equal images differ
    monkeypatch.setattr(context, "BLOCK", 2)
    np.testing.assert_allclose(contexts["raw"].views(images, 2, 1), whole, atol=1e-6)


def test_images_that_protocols_change_are_resized_as_the_network_asks(encoder, splits, mesh):
    bicubic = encoder._replace(inputs=encoder.inputs._replace(crop=0.5, interpolation="bicubic"))
    [(_, made)] = context.make_contexts(bicubic, None, splits, ["raw"], mesh, seed=0)
    assert (made.size, *made.resizing) == bicubic.inputs.resizing == (SIZE, 0.5, "bicubic")


def test_images_of_different_sizes_are_centre_cropped_only_once(encoder, load, labelled, mesh):
    one_size = load(labelled, "train")
    many = one_size.__class__(**{**vars(one_size), "shape": (None, None, 3)})
    color = encoder._replace(inputs=encoder.inputs._replace(channels=3))
    assert image.fit_inputs(color.inputs, one_size).crop == 0.75
    assert image.fit_inputs(color.inputs, many).crop == 0


def test_bank_and_test_images_are_cropped_alike_if_only_one_of_them_has_different_sizes(
    encoder, mesh
):
    rng = np.random.default_rng(0)
    of_one_size = [rng.integers(0, 256, (12, 12, 1), np.uint8) for _ in range(4)]
    other = rng.integers(0, 256, (10, 16, 1), np.uint8)
    many, one = [*of_one_size, other], of_one_size
    for train, test in ((one, many), (many, one)):
        pairs = [(images, list(range(len(images)))) for images in (train, test)]
        split, _ = in_memory.load_splits(tuple(pairs))
        assert split.bank.one_size != split.test.one_size
        for kind, made in make_contexts(encoder, None, split, KINDS, mesh, seed=5):
            features = made.features
            np.testing.assert_array_equal(features.train[:4], features.test[:4], kind)
            crops = [made.test.images(made.size, *made.resizing)[i] for i in range(4)]
            np.testing.assert_allclose(made.encode(np.stack(crops)), features.test[:4], rtol=1e-5)


def test_bank_with_other_channels_than_the_encoder_takes_is_refused(encoder, mesh):
    colour, grey = (np.zeros((4, 8, 8, channels), np.uint8) for channels in (3, 1))
    split, _ = in_memory.load_splits(((colour, [0, 1, 0, 1]), (grey, [0, 1, 0, 1])))
    with refused("the encoder takes 1-channel images", "has 3-channel images"):
        make_contexts(encoder, None, split, KINDS, mesh, seed=5)


def test_features_are_averaged_over_the_copies_of_an_image_that_prepare_returns(encoder):
    class Twice:
        """Each image, and the image upside down."""

        copies = 2

        def prepare(self, images):
            x = encoder.inputs.prepare(images)
            return jnp.stack([x, x[:, ::-1]], axis=1).reshape(-1, *x.shape[1:])

    images = np.random.default_rng(0).integers(0, 256, (5, SIZE, SIZE, 1), np.uint8)
    variables = encoder.variables["net"]
    features = make_encode(encoder, Twice())({"net": variables}, images)
    both = [features_by(encoder, variables, x) for x in (images, images[:, ::-1])]
    np.testing.assert_allclose(features, (both[0] + both[1]) / 2, rtol=1e-4, atol=1e-5)


def test_data_hash_differs_if_data_settings_network_or_weights_differ(encoder, splits, tmp_path):
    settings = data_config()

    def digest(changes=None, path=None, **metadata):
        made = encoder._replace(metadata={**encoder.metadata, **metadata})
        return rows.data_fields(splits, {**settings, **(changes or {})}, made, path, 0)["data"]

    same = {digest(), digest(seed=3), digest({"dir": "x", "cache": "none", "workers": 2})}
    assert len(same) == 1
    other = [
        digest({"classes": "a.txt"}),
        digest({"test_fraction": 0.5}),
        digest({"bank_split": "train[:5%]"}),
        digest(net={"name": "vit"}),
        digest(path=tmp_path / "a.pth"),
        digest(path=tmp_path / "b" / "a.pth"),
    ]
    assert len({*same, *other}) == 1 + len(other)


def test_content_of_rows_differs_if_bank_or_test_examples_differ(splits, data_dir):
    def digest(**changes):
        return rows.content(splits._replace(**changes))

    fewer = digits(data_dir, 32, "test")
    others = [digest(), digest(test=fewer), digest(bank=splits.bank.take(np.arange(59)))]
    assert len(set(others)) == 3
    assert digest() == digest(train=fewer) == others[0]

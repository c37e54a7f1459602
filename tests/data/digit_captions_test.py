"""The handwritten digits with generated captions, and batches of images with captions."""

import pickle

import jax
import numpy as np
import pytest
from data_cases import data_config

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.data.batches import make_batches
from jaxssl.data.decoders import tokens
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.prompts import SPOKEN
from jaxssl.kinds.image import ReadImages

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("tokenizer")]

CONTEXT, BATCH, MOST = 24, 8, 5
WORDS = {"stroke": ("thin", "medium", "thick"), "slant": ("left", "upright", "right")}


@pytest.fixture(scope="module")
def load_digits(prepared):
    """Opens a split of the digits with captions."""

    def load(split):
        data = data_config(name="digit_captions", dir=str(prepared), context=CONTEXT)
        return source.load(data, split)

    return load


@pytest.fixture(scope="module")
def all_digits(load_digits, data_dir):
    """All images of the digits, the captions of each, and the images without."""
    opened = load_digits("train+test")
    records = [record for part, indices in opened.parts for record in part.read_records(indices)]
    texts = [[x.decode() for x in record["captions"]] for record in records]
    return opened, texts, source.load(data_config(dir=str(data_dir)), "train+test")


def words_of(text):
    return text.replace(",", " ").replace(":", " ").split()


def test_digit_captions_data_set_has_the_images_and_labels_of_digits(all_digits):
    opened, _, plain = all_digits
    assert opened.captioned and not plain.captioned and opened.class_names == plain.class_names
    np.testing.assert_array_equal(opened.images(8), plain.images(8))
    np.testing.assert_array_equal(opened.labels, plain.labels)


def test_generated_captions_name_the_digit_and_differ(all_digits):
    opened, texts, _ = all_digits
    spoken = set(SPOKEN.values())
    for own, label in zip(texts, opened.labels, strict=True):
        assert len(set(own)) == MOST
        named = [[word for word in words_of(text) if word in spoken] for text in own]
        assert named == [[SPOKEN[str(label)]]] * MOST


def test_context_of_24_tokens_fits_all_generated_digit_captions(all_digits):
    every = sorted({text for own in all_digits[1] for text in own})
    assert len(every) <= 10 * 3 * 3 * MOST
    ends = tokens.tokenize(every) == tokens.END
    assert ends.any(axis=1).all() and ends.argmax(axis=1).max() < CONTEXT


def slope(image):
    """How far ink goes to the right for each row up: the weighted regression, by NumPy."""
    rows, columns = np.indices(image.shape)
    covariance = np.cov(columns.ravel(), -rows.ravel(), aweights=image.ravel())
    return covariance[0, 1] / covariance[1, 1]


@pytest.mark.parametrize("what", WORDS)
def test_caption_words_for_stroke_and_slant_divide_the_digits_into_thirds(all_digits, what):
    opened, texts, _ = all_digits
    images = opened.images(8)[..., 0].astype(np.float64)
    values = images.mean(axis=(1, 2)) if what == "stroke" else np.array([*map(slope, images)])
    said = []
    for own in texts:
        named = [[word for word in words_of(text) if word in WORDS[what]] for text in own]
        assert named == [named[0]] * MOST and len(named[0]) == 1
        said.append(WORDS[what].index(named[0][0]))
    groups = [values[np.array(said) == third] for third in range(3)]
    assert groups[0].max() <= groups[1].min() + 1e-9 and groups[1].max() <= groups[2].min() + 1e-9
    sizes = [len(group) for group in groups]
    # The thirds may differ in size, because some images have equal measurements.
    assert max(sizes) - min(sizes) <= 0.01 * len(values)


# Batches of captioned digits.


def batches_of(opened, cache="auto", *, devices=1, examples="image_text"):
    mesh = distributed.make_mesh(jax.devices()[:devices])
    settings = {"seed": 3, "cache": cache, "mesh": mesh, "crops": Crops((), (), 8)}
    return make_batches(opened, BATCH, examples=examples, **settings)


def take(batches, count):
    actual = [jax.device_get(batches.next()) for _ in range(count)]
    batches.close()
    return actual


@pytest.fixture(scope="module")
def some(load_digits):
    return load_digits("train[:20]")


def test_captions_in_device_cached_and_streamed_batches_are_equal(some):
    made = [batches_of(some, cache, devices=n) for cache, n in (("device", 4), ("none", 2))]
    assert [batches.plan.cached for batches in made] == [True, False]
    for batches in made:
        shapes = {name: x.shape for name, x in batches.shapes["input"].items()}
        assert shapes == {"image": (BATCH, 8, 8, 1), "text": (BATCH, MOST, CONTEXT)}
        assert batches.example["input"]["text"].shape == (2, MOST, CONTEXT)
    cached, streamed = (take(batches, 3) for batches in made)  # The 3 batches cover two epochs.
    for one, other in zip(cached, streamed, strict=True):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        jax.tree.map(np.testing.assert_array_equal, one, other)
        actual, index = one["input"], one["index"]
        assert (actual["text"].dtype, actual["image"].dtype) == (np.int32, np.uint8)
        np.testing.assert_array_equal(actual["text"], some.texts[index])
        np.testing.assert_array_equal(actual["image"], some.images(8)[index])
        np.testing.assert_array_equal(one["label"], some.labels[index])


def test_batches_contain_captions_only_on_request(some):
    [batch] = take(batches_of(some, examples="image"), 1)
    assert batch["input"].shape == (BATCH, 8, 8, 1)


def test_caption_reader_can_be_pickled_for_worker_processes(some):
    reader = ReadImages(some, None, 0, captions=True)
    indices = np.array([4, 1], np.int32)
    actual = pickle.loads(pickle.dumps(reader))(0, indices)
    jax.tree.map(np.testing.assert_array_equal, actual, reader(0, indices))

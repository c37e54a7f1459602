"""Figures of images and texts in one space, against NumPy loops: retrieval and zero-shot."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxssl.data import prompts
from jaxssl.data.decoders import tokens
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.evaluation.protocols import captions, zeroshot

NONE = Features(*[np.zeros((0, 0), np.float32)] * 4)


def cosine(u, v):
    return float(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Retrieval between images and captions.


def pairs(n=12, d=5, noise=1.0, seed=0):
    """Images [n, d], captions near to them, 1 to 4 of each in any order, and whose they are."""
    rng = np.random.default_rng(seed)
    image_of = rng.permutation(np.repeat(np.arange(n), 1 + np.arange(n) % 4))
    images = draw(n, d, seed=seed) * rng.uniform(0.1, 9, (n, 1)).astype(np.float32)
    return images, images[image_of] + noise * draw(len(image_of), d, seed=seed + 1), image_of


def recall(images, texts, image_of, k):
    """Query by query, in float64."""
    images, texts = images.astype(np.float64), texts.astype(np.float64)
    result = {}
    for number in k:
        hits = []
        for i, image in enumerate(images):
            ranked = sorted(range(len(texts)), key=lambda t: -cosine(image, texts[t]))
            hits.append(any(image_of[t] == i for t in ranked[:number]))
        result[f"image_to_text_r{number}"] = 100 * np.mean(hits)
        hits = []
        for text, own in zip(texts, image_of, strict=True):
            ranked = sorted(range(len(images)), key=lambda i: -cosine(text, images[i]))
            hits.append(own in ranked[:number])
        result[f"text_to_image_r{number}"] = 100 * np.mean(hits)
    return result


@pytest.mark.parametrize("noise", [2.0, 9.0])
def test_image_text_recall_matches_a_loop(noise):
    made = pairs(noise=noise)
    result = captions.evaluate(*made, k=(1, 3, 12))
    assert result == pytest.approx(recall(*made, (1, 3, 12)))
    assert 0 < result["image_to_text_r1"] < 100 and result["text_to_image_r12"] == 100


@pytest.mark.parametrize("k", [(), (0, 1), (1, 4), (-1,)])
def test_recall_at_k_rejects_k_above_the_number_of_examples(k):
    images, texts = draw(3, 4), draw(9, 4)
    with pytest.raises(ValueError, match=r"k must be in \[1, 3\], got"):
        captions.evaluate(images, texts, np.repeat(np.arange(3), 3), k=k)
    with pytest.raises(ValueError, match=r"k must be in \[1, 3\], got"):
        captions.evaluate(texts, images, np.arange(3), k=k)


@pytest.mark.parametrize("which", [0, 1])
def test_captions_and_zeroshot_reject_nonfinite_embeddings(which):
    rows = [draw(3, 4), draw(3, 4, seed=1)]
    rows[which][1, 2] = np.nan
    with pytest.raises(ValueError, match="finite"):
        captions.evaluate(*rows, np.arange(3), k=(1,))
    with pytest.raises(ValueError, match="finite"):
        zeroshot.evaluate(rows[0], np.arange(3), [rows[1][:2], rows[1][1:], rows[1]])


def test_zeroshot_refuses_one_embedding_in_place_of_the_prompts_of_a_class():
    with pytest.raises(ValueError, match=r"must be arrays \[p, d\] by class, got \(4,\)"):
        zeroshot.evaluate(draw(3, 4), np.arange(3), draw(3, 4))


def test_zeroshot_and_captions_reject_labels_and_indices_out_of_range():
    images, texts = draw(3, 4), [draw(2, 4), draw(1, 4)]
    for labels, message in (
        ([0, 1, 2], r"in \[0, 2\), got 2"),
        ([0, 1], r"\[3\], .* got .* \[2\]"),
    ):
        with pytest.raises(ValueError, match=f"labels must be .*{message}"):
            zeroshot.evaluate(images, np.array(labels), texts)
    with pytest.raises(ValueError, match=r"by class, got \(0, 4\)"):
        zeroshot.evaluate(images, np.array([0, 1, 1]), [draw(0, 4), draw(1, 4)])
    for image_of, message in (([0, 3], r"in \[0, 3\), got 3"), ([0.0, 1.0], "integers")):
        with pytest.raises(ValueError, match=f"image_of must be .*{message}"):
            captions.evaluate(images, draw(2, 4), np.array(image_of), k=(1,))


def test_settings_of_captions_are_those_of_the_default_preset():
    made = pairs(noise=2.0)
    assert captions.evaluate(*made) == captions.evaluate(*made, **captions.PRESETS["default"])


def image_set(**facts):
    return SimpleNamespace(**{"captioned": True, "class_names": ("cat", "dog"), **facts})


def make_context(images, embed, test, context=77):
    embeddings = {"embed_images": lambda: images, "embed_texts": embed, "text_length": context}
    return EvalContext(NONE, test=test, **embeddings)


def test_captions_protocol_evaluates_all_captions_of_the_test_images():
    """A caption that an image has twice is counted once, one that two images have at both."""
    n, length, d = 11, 3, 6
    rng = np.random.default_rng(0)
    texts = rng.integers(1, 50, (n, 5, length)).astype(np.int32)
    texts[0, 3:] = texts[0, :2]  # Image 0 has three distinct captions.
    texts[1] = texts[1, :1]  # Image 1 has one distinct caption.
    texts[3, 0] = texts[2, 0]
    table, images, seen = draw(50, d, seed=1), draw(n, d), []

    def embed(rows):
        seen.append(rows)
        return np.einsum("nld,l->nd", table[rows], np.arange(1, length + 1)).astype(np.float32)

    rows = captions.run(make_context(images, embed, image_set(texts=texts)), seed=0)
    own = [(i, text) for i in range(n) for text in sorted({tuple(t) for t in texts[i].tolist()})]
    image_of, texts = (np.array(part) for part in zip(*own, strict=True))
    expected = recall(images, embed(texts), image_of, (1, 5, 10))
    assert {row.metric: row.value for row in rows} == pytest.approx(expected)
    assert seen[0].dtype == np.int32
    for row in rows:
        details = {"preset": "default", "k": (1, 5, 10), "images": n, "captions": 5 * n - 6}
        assert (row.std, row.unit, row.details) == (None, "%", details)


# Zero-shot classification.


def test_zeroshot_refuses_prompts_of_wordnet_ids():
    named = image_set(class_names=("n01440764", "n01443537"))
    with pytest.raises(ValueError, match="classes are WordNet ids such as 'n01440764'"):
        zeroshot.run(make_context(draw(2, 4), lambda texts: draw(2, 4), named), seed=0)


def test_zeroshot_warns_of_prompts_that_are_cut(caplog):
    pytest.importorskip("instant_clip_tokenizer")
    named = image_set(labels=[0, 1], class_names=("cat", "a very long name of a class"))
    zeroshot.run(make_context(draw(2, 4), lambda rows: draw(len(rows), 4), named, 8), seed=0)
    assert (
        "1 of 2 prompts have more than 8 tokens and are cut, such as 'a photo of a a" in caplog.text
    )


def accuracy(images, labels, of_classes):
    """Image by image, in float64."""
    first, five = [], []
    for image, label in zip(images.astype(np.float64), labels, strict=True):
        scores = []
        for of_class in of_classes:
            units = [p / np.linalg.norm(p) for p in of_class.astype(np.float64)]
            scores.append(cosine(image, sum(units) / len(units)))
        ranked = sorted(range(len(scores)), key=lambda c: -scores[c])
        first.append(ranked[0] == label)
        five.append(label in ranked[:5])
    return {"zeroshot_top1": 100 * np.mean(first), "zeroshot_top5": 100 * np.mean(five)}


def classes(number=8, n=60, d=6, noise=1.0):
    rng = np.random.default_rng(3)
    centres, labels = draw(number, d), rng.integers(0, number, n)
    of_classes = [c + draw(1 + i % 3, d, seed=i) for i, c in enumerate(centres)]
    length = rng.uniform(0.1, 9, (n, 1)).astype(np.float32)
    return length * (centres[labels] + noise * draw(n, d, seed=4)), labels, of_classes


@pytest.mark.parametrize("noise", [0.2, 3.0])
def test_zeroshot_accuracy_matches_a_loop(noise):
    made = classes(noise=noise)
    result = zeroshot.evaluate(*made)
    assert result == pytest.approx(accuracy(*made))
    assert result["zeroshot_top1"] < result["zeroshot_top5"]


def test_zeroshot_averages_prompts_of_a_class_regardless_of_norm():
    # The mean of the first class is at 45 degrees from the image, the second class at 60; were
    # prompts added up as they are, the first one's would be at nearly 90.
    image = np.array([[1.0, 0.0]])
    of_classes = [np.array([[0.01, 0.0], [0.0, 100.0]]), np.array([[1.0, 3.0**0.5]])]
    assert zeroshot.evaluate(image, np.array([0]), of_classes)["zeroshot_top1"] == 100


@pytest.mark.parametrize("preset", ["digits", "photo"])
def test_zeroshot_preset_selects_the_prompt_templates(preset):
    pytest.importorskip("instant_clip_tokenizer")
    names, context, d = ("3", "1", "7"), 16, 5
    filled = prompts.fill(preset, names)
    texts = [tokens.tokenize(texts, context) for texts in filled]
    of_classes = [draw(len(rows), d, seed=i) for i, rows in enumerate(texts)]
    both = zip(np.concatenate(texts), np.concatenate(of_classes), strict=True)
    space = {row.tobytes(): embedding for row, embedding in both}
    images, labels = draw(40, d, seed=99), np.random.default_rng(0).integers(0, 3, 40)
    test = image_set(labels=labels, class_names=names)

    def embed(rows):
        return np.stack([space[row.tobytes()] for row in rows])

    rows = zeroshot.run(make_context(images, embed, test, context), seed=0, preset=preset)
    result = {row.metric: row.value for row in rows}
    assert result == pytest.approx(accuracy(images, labels, of_classes))
    details = {"preset": preset, "prompts": len(prompts.PROMPTS[preset])}
    assert all((row.details, row.unit) == (details, "%") for row in rows)


def test_every_prompt_ensemble_is_a_zeroshot_preset():
    assert list(zeroshot.PRESETS) == list(prompts.PROMPTS)


def test_captions_and_zeroshot_reject_a_missing_text_encoder_or_captions():
    images, texts = draw(2, 3), np.ones((2, 5, 4), np.int32)
    plain = EvalContext(NONE, test=image_set(texts=texts))
    with pytest.raises(ValueError, match="zero-shot classification needs an image-text network"):
        zeroshot.run(plain, seed=0)
    message = "image-text retrieval needs images with captions and an image-text network"
    no_captions = make_context(images, str, image_set(captioned=False))
    for context in (plain, no_captions, no_captions._replace(test=None)):
        with pytest.raises(ValueError, match=message):
            captions.run(context, seed=0)

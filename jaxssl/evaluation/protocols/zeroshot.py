"""Zero-shot classification: predict the class whose prompts are nearest to the image."""

import logging
import re
from collections.abc import Sequence

import numpy as np

from jaxssl.data import prompts
from jaxssl.data.decoders import tokens
from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.features import l2_normalise
from jaxssl.evaluation.nearest_neighbours import neighbours

log = logging.getLogger("jaxssl")

PRESETS: base.Presets = {name: {"prompts": name} for name in prompts.PROMPTS}


def evaluate(
    images: np.ndarray, labels: np.ndarray, prompt_embeddings: Sequence[np.ndarray]
) -> dict[str, float]:
    """Compute the accuracy of the nearest class embedding by cosine similarity, in percent.

    The embedding of a class is the mean of the L2-normalised embeddings of its prompts.

    Args:
        images: [n, d] embeddings.
        labels: [n] int in [0, c).
        prompt_embeddings: for each of c classes, the embeddings [p, d] of its prompts.

    Returns:
        "zeroshot_top1" and "zeroshot_top5" (100 for five classes or fewer).

    Raises:
        ValueError: if an embedding is not finite, the prompts of a class are not [p, d], or a label
            is out of range.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        3.1.4.
    """
    prompts = [np.asarray(rows, np.float64) for rows in prompt_embeddings]
    if not prompts:
        raise ValueError("prompt_embeddings must have one or more classes, got none")
    if wrong := [rows.shape for rows in prompts if rows.ndim != 2 or not len(rows)]:
        raise ValueError(f"prompt_embeddings must be arrays [p, d] by class, got {wrong[0]}")
    images = np.asarray(images)
    labels = base.check_indices("labels", labels, len(images), len(prompts))
    unit = map(l2_normalise, prompts)
    classes = np.stack([rows.mean(axis=0) for rows in unit])
    return base.top1_top5(neighbours(classes, images, 5).indices, labels, "zeroshot_")


def run(context: base.EvalContext, *, seed: int, preset: str = "photo") -> list[base.Result]:
    """Evaluate zero-shot classification with the prompts of a preset for each class name.

    Raises:
        ValueError: without an image-text network, or if the classes of ImageNet are named by their
            WordNet ids.
    """
    if context.embed_images is None or context.embed_texts is None or context.test is None:
        raise ValueError("zero-shot classification needs an image-text network")
    names = context.test.class_names
    if names and re.fullmatch(r"n\d{8}", names[0]):
        raise ValueError(
            f"prompts need words, but classes are WordNet ids such as {names[0]!r}; list ids and "
            "words, with a tab between them, in a file for data.classes"
        )
    filled = prompts.fill(preset, names)
    texts = [text for class_texts in filled for text in class_texts]
    length = context.text_length
    longer = tokens.tokenize(texts, length + 1)[:, length]  # is 0 for a text that is not cut
    if cut := [text for text, token in zip(texts, longer, strict=True) if token]:
        message = "%d of %d prompts have more than %d tokens and are cut, such as %r"
        log.warning(message, len(cut), len(texts), length, cut[0])
    embeddings = context.embed_texts(tokens.tokenize(texts, length))
    by_class = np.split(embeddings, len(filled))
    scores = evaluate(context.embed_images(), context.test.labels, by_class)
    return base.make_results(scores, preset=preset, prompts=len(filled[0]))


protocol = base.Protocol(
    run,
    PRESETS,
    ("image_text",),
    base.NETWORKS,
    layer="projector",
    needs_features=False,
    novel_classes=True,
)

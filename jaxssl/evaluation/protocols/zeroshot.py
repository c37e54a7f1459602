"""Zero-shot classification: the class whose prompts are nearest to the image."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxssl.data import prompts, tokens
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result

PRESETS: dict[str, dict[str, Any]] = {name: {"prompts": name} for name in prompts.PROMPTS}


def evaluate(
    images: np.ndarray, labels: np.ndarray, of_classes: Sequence[np.ndarray]
) -> dict[str, float]:
    """Accuracy of the class whose mean prompt is nearest by cosine, in percent.

    The embedding of a class is the mean of its prompts' embeddings at length 1.

    Args:
        images: [n, d] embeddings.
        labels: [n] int in [0, c).
        of_classes: for each of c classes [p, d], the embeddings of its prompts.

    Returns:
        "zeroshot_top1" and "zeroshot_top5" (100 if there are five classes or fewer).

    Raises:
        ValueError: if an embedding is not finite.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        3.1.4.
    """
    centres = np.stack([_unit(prompt).mean(axis=0) for prompt in of_classes])
    scores = _unit(images) @ _unit(centres).T
    if not np.isfinite(scores).all():
        raise ValueError("embeddings must be finite")
    ranked = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    hit = ranked == labels[:, None]
    return {
        "zeroshot_top1": 100 * float(hit[:, 0].mean()),
        "zeroshot_top5": 100 * float(hit.any(axis=1).mean()),
    }


def run(context: EvalContext, *, seed: int, preset: str = "photo") -> list[Result]:
    """`evaluate` of the test images, with the prompts of a preset and the names of the classes."""
    del seed
    if context.embed_images is None or context.embed_texts is None or context.test is None:
        raise ValueError("it needs a network that has read captions")
    filled = prompts.fill(preset, context.test.class_names)
    every = [text for texts in filled for text in texts]
    found = context.embed_texts(tokens.tokenize(every, context.text_length))
    of_classes = np.split(found, np.cumsum([len(texts) for texts in filled])[:-1])
    scores = evaluate(context.embed_images(), context.test.labels, of_classes)
    details = {"preset": preset, "prompts": len(filled[0])}
    return [Result(metric, value, None, details) for metric, value in scores.items()]


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


protocol = Protocol(
    run,
    PRESETS,
    examples=("image_text",),
    kinds=("untrained", "pretrained"),
    layer="projector",
    novel_classes=True,
)

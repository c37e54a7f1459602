"""Image-text retrieval: recall of the matching caption or image among the k nearest."""

import numpy as np

from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.nearest_neighbours import neighbours

PRESETS: base.Presets = {"default": {"k": (1, 5, 10)}}


def evaluate(
    images: np.ndarray,
    captions: np.ndarray,
    image_of: np.ndarray,
    *,
    k: tuple[int, ...] = (1, 5, 10),
) -> dict[str, float]:
    """Compute image-text recall at k in both directions by cosine similarity, in percent.

    An image counts if one of its captions is among the k nearest captions, a caption if its image
    is among the k nearest images.

    Args:
        images: [n, d] embeddings.
        captions: [m, d] embeddings.
        image_of: [m] int, the index of each caption's image, in [0, n).
        k: values of k, each in [1, min(n, m)].

    Returns:
        "image_to_text_r1" and "text_to_image_r1", and so on for each k.

    Raises:
        ValueError: if a k or an index is out of range, or embeddings are not finite.

    References:
        Karpathy and Fei-Fei, Deep Visual-Semantic Alignments, 2015, 4.2.
    """
    images, captions = np.asarray(images), np.asarray(captions)
    image_of = base.check_indices("image_of", image_of, len(captions), len(images))
    most = min(len(images), len(captions))
    if not k or min(k) < 1 or max(k) > most:
        raise ValueError(f"each k of recall at k must be in [1, {most}], got {k}")
    _, nearest = neighbours(captions, images, max(k))
    hits = {"image_to_text": image_of[nearest] == np.arange(len(images))[:, None]}
    _, nearest = neighbours(images, captions, max(k))
    hits["text_to_image"] = nearest == image_of[:, None]
    return {
        f"{name}_r{n}": 100 * float(hit[:, :n].any(axis=1).mean())
        for name, hit in hits.items()
        for n in k
    }


def run(context: base.EvalContext, *, seed: int, preset: str = "default") -> list[base.Result]:
    """Evaluate image-text retrieval on the test images and the first five captions of each."""
    embed_images, embed_texts, test = context.embed_images, context.embed_texts, context.test
    if embed_images is None or embed_texts is None or test is None or not test.captioned:
        raise ValueError(
            "image-text retrieval needs images with captions and an image-text network"
        )
    texts = test.texts
    image_of = np.repeat(np.arange(len(texts)), texts.shape[1])
    of_all = np.concatenate([image_of[:, None], texts.reshape(len(image_of), -1)], axis=1)
    unique = np.unique(of_all, axis=0)  # Images with fewer captions than others repeat theirs.
    image_of, tokens = unique[:, 0], unique[:, 1:].astype(np.int32)
    scores = evaluate(embed_images(), embed_texts(tokens), image_of, **PRESETS[preset])
    counts = {"images": len(texts), "captions": len(tokens)}
    return base.make_results(scores, preset=preset, **PRESETS[preset], **counts)


protocol = base.Protocol(
    run,
    PRESETS,
    examples=("image_text",),
    kinds=base.NETWORKS,
    layer="projector",
    needs_labels=False,
    needs_features=False,
)

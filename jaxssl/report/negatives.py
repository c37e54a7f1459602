"""Sections about the negatives of a block of training images: the hardest, MMCL's supports."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxssl.report import page
from jaxssl.report.drawing import Picture, class_name, picture_table

HOW = """training images drawn at random, unaugmented, through backbone and projector in evaluation
mode"""
SAME = "= "  # before the class of an image that is of the anchor's class


def hardest(gallery: Mapping[str, np.ndarray]) -> str:
    """Training images beside the other ones that the loss would find most similar."""
    if "hard_query" not in gallery:
        return ""
    place, similarity = gallery["hard_place"], gallery["hard_similarity"]
    body = []
    for q, query in enumerate(gallery["hard_query"]):
        row = [_anchor(gallery, query, q)]
        for k, other in enumerate(place[q]):
            alt = f"negative {k + 1} of anchor {q + 1}"
            row.append(_other(gallery, query, other, alt, f"{similarity[q, k]:.2f}"))
        body.append(row)
    caption = f"""Left an image, then the images of its block whose embeddings have the largest
cosine similarity with its own, which is written below: the negatives that are hardest to push away.
The block is {gallery["block_size"]} {HOW}; a loss without labels takes all of them for negatives.
{_false_negatives(gallery, place.shape[1])}"""
    head = ["anchor", *map(str, range(1, place.shape[1] + 1))]
    figure = page.figure(picture_table("hardest negatives", head, body), caption)
    return page.section("Hardest negatives", figure)


def support(gallery: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> str:
    """The SVMs of some anchors: support vectors, those at the bound, some of the others."""
    if "svm_query" not in gallery:
        return ""
    place, alpha, bound = gallery["svm_place"], gallery["svm_alpha"], float(gallery["svm_C"])
    at_bound = alpha >= np.float32(bound)
    shown = np.flatnonzero((place >= 0).any(axis=0))
    head = ["anchor", *map(str, range(1, len(shown) + 1))]
    body = []
    for q, query in enumerate(gallery["svm_query"]):
        row: list[Picture | None] = [_anchor(gallery, query, q)]
        for k in shown:
            weight = "α = C" if at_bound[q, k] else f"α {_short(alpha[q, k])}"
            alt = f"negative of anchor {q + 1}"
            row.append(
                _other(gallery, query, place[q, k], alt, weight) if place[q, k] >= 0 else None
            )
        body.append(row)
    table = picture_table("support vectors of MMCL", head, body)
    return page.section("Support vectors", page.figure(table, _about(gallery, bound, config)))


def _about(gallery: Mapping[str, np.ndarray], bound: float, config: Mapping[str, Any]) -> str:
    share, at_bound, same, same_bound, same_all = gallery["svm_share"]
    some = "those with α = C, " if at_bound else ""
    words = [
        f"""Left an image, then others of its block by their weight α in the SVM that separates it
from all others: {some}the largest weights below C, and of those with α = 0, on which the SVM does
not rest, the most similar. The SVMs are solved anew for a block of {gallery["block_size"]} {HOW},
one view of each, with the loss settings of the checkpoint ({gallery["svm_settings"]}).""",
        f"{_percent(share)} of the negatives are support vectors.",
        f"{_percent(at_bound)} have α = C = {bound:g}: suspected false negatives."
        if at_bound
        else f"None has α = C = {bound:g}, so none is suspected of being a false negative.",
    ]
    if np.isfinite(same_all):
        of_bound = f", {_percent(same_bound)} of those with α = C" if at_bound else ""
        words.append(f"""A dashed frame and {SAME}mark images of the anchor's class: they are
{_percent(same)} of the support vectors{of_bound}, and {_percent(same_all)} of all negatives.""")
    method = config.get("method", {})
    if method.get("labels"):
        words.append("Training took images of the anchor's class out of its negatives, here not.")
    if method.get("queue_size"):
        words.append("Training took its negatives from a queue, here they are the block's.")
    return " ".join(words)


def _anchor(gallery: Mapping[str, np.ndarray], query: int, number: int) -> Picture:
    name = class_name(gallery["class_names"], gallery["block_label"][query])
    return Picture(gallery["block"][query], f"anchor {number + 1}", [name], "first")


def _other(
    gallery: Mapping[str, np.ndarray], query: int, other: int, alt: str, number: str
) -> Picture:
    own, label = gallery["block_label"][query], gallery["block_label"][other]
    same = own == label >= 0
    name = SAME * bool(same) + class_name(gallery["class_names"], label)
    return Picture(gallery["block"][other], alt, [number, name], "other" if same else "")


def _false_negatives(gallery: Mapping[str, np.ndarray], number: int) -> str:
    share, of_all = gallery["hard_share"]
    if not np.isfinite(share):
        return "The images have no labels that would tell which of them are false negatives."
    return f"""A dashed frame and {SAME}mark those of the anchor's own class, the false negatives:
over all images of the block {_percent(share)} of the {number} hardest are of the image's own class,
and {_percent(of_all)} of all negatives."""


def _short(weight: float) -> str:
    return f"{weight:.2g}" if weight < 10 else f"{weight:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

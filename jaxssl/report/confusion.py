"""The section that says which classes the nearest neighbours confuse."""

from collections.abc import Mapping
from html import escape

import numpy as np

from jaxssl.report import page
from jaxssl.report.drawing import class_name

MATRIX = 20  # classes; with more, the most confused pairs are listed instead
PAIRS = 20


def section(gallery: Mapping[str, np.ndarray]) -> str:
    """A matrix of classes, or a list of pairs; "" without labels."""
    if not len(gallery.get("nearest_classes", ())):
        return ""
    names, found = gallery["class_names"], gallery["nearest_classes"].astype(np.int64)
    classes = np.unique(found[:, :2])
    few = len(classes) <= MATRIX
    right = found[found[:, 0] == found[:, 1], 2].sum()
    total = found[:, 2].sum()
    measured = f"""of the training image whose backbone features are nearest (k = 1, cosine
similarity, unaugmented images, evaluation mode). Of {total} test images {right}
({100 * right / total:.1f} %) have a nearest one of their own class."""
    if few:
        table = _matrix(classes, _counts(classes, found), names)
        caption = f"""A row is a class of test examples, a column the class {measured} In a row
stand percent of that class's test examples ({_sizes(found)}); · is none, and the row's own class is
in bold and framed."""
    else:
        table = _list(found, names)
        caption = f"""The {PAIRS} most frequent confusions of {len(classes)} classes, by the share
of a class's test examples: the class of the test example, and the class {measured}"""
    return page.section("Confusion of nearest neighbours", page.figure(table, caption))


def _counts(classes: np.ndarray, found: np.ndarray) -> np.ndarray:
    counts = np.zeros((len(classes), len(classes)), np.int64)
    row, column = (np.searchsorted(classes, found[:, i]) for i in (0, 1))
    counts[row, column] = found[:, 2]
    return counts


def _sizes(found: np.ndarray) -> str:
    size = np.bincount(found[:, 0], found[:, 2]).astype(int)
    least, most = size[size > 0].min(), size.max()
    return f"{least} of each" if least == most else f"{least} to {most} of each"


def _matrix(classes: np.ndarray, counts: np.ndarray, names: np.ndarray) -> str:
    shown = [escape(class_name(names, label)) for label in classes]
    body = []
    for i, row in enumerate(counts):
        size = row.sum()
        cells = [_share(count, size, own=i == j) for j, count in enumerate(row)]
        body.append([shown[i], *cells])
    head = ["class", *shown]
    return page.table("confusion", head, body, "confusion of nearest neighbours")


def _share(count: int, size: int, *, own: bool) -> str:
    """A cell, shaded by its share, which is written in it too."""
    share = 100 * count / size if size else 0.0
    text = "·" if not count else "<1" if share < 1 else f"{share:.0f}"
    if not size:
        text = "–"
    css, text = ("own", f"<b>{escape(text)}</b>") if own else ("", escape(text))
    return (
        f'<div class="{css}" style="background: rgb(26 115 199 / {share / 250:.2f})">{text}</div>'
    )


def _list(found: np.ndarray, names: np.ndarray) -> str:
    size = np.bincount(found[:, 0], found[:, 2]).astype(int)
    wrong = found[found[:, 0] != found[:, 1]]
    if not len(wrong):
        return "<p>Every nearest training image is of the test image's class.</p>"
    share = wrong[:, 2] / size[wrong[:, 0]]
    body = []
    for place in np.argsort(-share, kind="stable")[:PAIRS]:
        a, b, count = wrong[place]
        numbers = f"{100 * share[place]:.1f} %", f"{count} of {size[a]}"
        body.append([escape(class_name(names, a)), escape(class_name(names, b)), *numbers])
    head = ["test image of", "nearest is of", "share", "images"]
    return page.table("results", head, body, "most frequent confusions of nearest neighbours")

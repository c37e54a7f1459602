"""Sections of pictures: augmented views, nearest neighbours, a map of the embedding."""

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from jaxssl.report import page
from jaxssl.report.drawing import Picture, class_name, figure_image, picture_table, thumbnail
from jaxssl.report.plots import MARKERS

LEGEND_CLASSES = 20  # with more, the legend would be larger than the map


def pairs(gallery: Mapping[str, np.ndarray]) -> str:
    """Images and their augmented views."""
    if "pairs" not in gallery:
        return ""
    items = []
    for n, views in enumerate(gallery["pairs"]):
        images = [thumbnail(gallery["pairs_original"][n], f"image {n + 1}, original", "first")]
        images += [thumbnail(view, f"image {n + 1}, view {v + 1}") for v, view in enumerate(views)]
        items.append(f"<li>{''.join(images)}</li>\n")
    caption = """In each group the framed picture is the original and the others are its augmented
views: training pulls these together, so an eye should still see what they have in common."""
    caption += _frames(gallery)
    figure = page.figure(f'<ul class="pairs">\n{"".join(items)}</ul>', caption)
    return page.section("Augmented views", figure)


def neighbours(gallery: Mapping[str, np.ndarray]) -> str:
    """Test images beside the nearest training images."""
    if "query" not in gallery:
        return ""
    names, labels = gallery["class_names"], gallery["neighbour_label"]
    of_query = gallery["query_label"][:, None]
    known = (of_query >= 0) & (labels >= 0)
    other = known & (of_query != labels)
    body = []
    for q, query in enumerate(gallery["query"]):
        name = class_name(names, of_query[q, 0])
        row = [Picture(query, f"test image {q + 1}", [name], "first")]
        for k, image in enumerate(gallery["neighbour"][q]):
            frame, mark = ("other", "✗ ") if other[q, k] else ("", "")
            alt = f"neighbour {k + 1} of test image {q + 1}"
            row.append(Picture(image, alt, [mark + class_name(names, labels[q, k])], frame))
        body.append(row)
    caption = """Left a test image, then the training images nearest to it in feature space,
nearest first"""
    if known.any():
        caption += f"""; a dashed frame and ✗ mark the neighbours of another class
({other.sum()} of the {known.sum()} labelled ones shown)"""
    caption += "." + _frames(gallery)
    head = ["test", *map(str, range(1, labels.shape[1] + 1))]
    table = picture_table("nearest neighbours", head, body)
    return page.section("Nearest neighbours", page.figure(table, caption))


def _frames(gallery: Mapping[str, np.ndarray]) -> str:
    """Says how a clip is shown."""
    return " Of each clip four frames are shown, in rows." if "frames" in gallery else ""


def map_of(gallery: Mapping[str, np.ndarray]) -> str:
    """Test images on a plane."""
    if "map" not in gallery:
        return ""
    points, labels = gallery["map"], gallery["map_label"]
    classes = np.unique(labels)
    figure = Figure(figsize=(5, 5.6), layout="constrained")
    axes = figure.add_subplot(
        aspect="equal", xticks=[], yticks=[], xlabel="map axis 1", ylabel="map axis 2"
    )
    colours = matplotlib.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    halo = [withStroke(linewidth=3, foreground="white")]
    for i, label in enumerate(classes):
        colour = "#666666" if label < 0 else colours(i % colours.N)
        cloud = points[labels == label]
        name = class_name(gallery["class_names"], label) or "unlabelled"
        marker = MARKERS[i % len(MARKERS)]
        axes.scatter(*cloud.T, s=14, color=colour, marker=marker, label=name)
        if label >= 0:
            where = np.median(cloud, axis=0)
            axes.text(*where, name, ha="center", va="center", weight="bold", path_effects=halo)
    if len(classes) <= LEGEND_CLASSES:
        figure.legend(loc="outside lower center", ncols=min(5, len(classes)), frameon=False)
    picture = figure_image(figure, f"map of {len(points)} test examples of {len(classes)} classes")
    caption = """Each point is a test example and near points have similar features: a clump of one
colour and marker, named at its median, is a class that the features tell apart."""
    return page.section("Embedding map", page.figure(picture, caption, "map"))

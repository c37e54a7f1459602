"""Sections of a run's report from gallery.npz: views, neighbours, confusion, negatives, map."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from jaxssl.components import Settings
from jaxssl.report.images import (
    MARKERS,
    Image,
    embed_png,
    figure_png,
    legend_label,
    thumbnail,
)
from jaxssl.report.page import Cell, Table

MAX_LEGEND = 20  # most classes in the legend of the embedding plot, so that it fits there
MAX_MATRIX = 20  # Above this number of classes, only the most confused pairs are listed.
NUM_PAIRS = 20
NUM_WORST = 3  # number of the least accurate classes that the report names
OPAQUE = 250  # percent at which the shade of a confusion matrix's cell would be opaque
SAME_CLASS = "= "  # stands before the class of a negative that has the anchor's class

Gallery = Mapping[str, np.ndarray]  # arrays of gallery.npz by name
# The shares of negatives in the array `svm_share`, in their order.
SVM_SHARES = ("support", "at_bound", "same_class", "same_class_bound", "same_class_all")


def gallery_sections(gallery: Gallery, config: Settings) -> dict[str, object]:
    """Return the values of the template `run.html` that show a gallery.

    Args:
        gallery: as `jaxssl.evaluation.gallery.write` writes it; {} without a gallery.
        config: of the run.

    Returns:
        A value for each section, None for a section whose arrays are missing.
    """
    return {
        "num_frames": int(gallery.get("frames", 0)),
        "views": _views(gallery) if "pairs" in gallery else None,
        "neighbours": _neighbours(gallery) if "query" in gallery else None,
        "confusion": _confusion(gallery) if len(gallery.get("nearest_classes", ())) else None,
        "hardest": _hardest(gallery) if "hard_query" in gallery else None,
        "support": _support(gallery, config) if "svm_query" in gallery else None,
        "map": _map(gallery) if "map" in gallery else None,
        "outdated": bool(gallery) and "block_size" not in gallery,
    }


def class_name(names: Sequence[str] | np.ndarray, label: int) -> str:
    """Return the name of a label's class; for -1 "unlabelled", or "" if no class has a name."""
    if label >= 0:
        return str(names[label])
    return "unlabelled" if len(names) else ""


def _views(gallery: Gallery) -> list[list[Image]]:
    """Build table rows of images, each followed by augmented views of the image."""
    rows = []
    images = zip(gallery["pairs_original"], gallery["pairs"], strict=True)
    for n, (image, views) in enumerate(images, 1):
        row = [thumbnail(image, f"image {n}, original", "first")]
        row += [thumbnail(view, f"image {n}, view {v}") for v, view in enumerate(views, 1)]
        rows.append(row)
    return rows


def image_cell(pixels: np.ndarray, alt: str, lines: Sequence[str], css: str = "") -> Cell:
    """Build a table cell of an image above lines of text."""
    lines = list(filter(None, lines))
    image = thumbnail(pixels, ", ".join([alt, *lines]), css)
    return Cell(note="\n".join(lines), image=image)


def image_table(title: str, first: str, rows: Sequence[Sequence[str | Cell]]) -> Table:
    """Build a table of images with the columns ``first``, 1, 2 and so on."""
    numbers = map(str, range(1, max(map(len, rows), default=1)))
    return Table("neighbours", [first, *numbers], rows, title)


def _neighbours(gallery: Gallery) -> dict[str, object]:
    """Build the section of test images next to their nearest training images."""
    names, labels = gallery["class_names"], gallery["neighbour_label"]
    query_labels = gallery["query_label"][:, None]
    labelled = (query_labels >= 0) & (labels >= 0)
    is_other_class = labelled & (query_labels != labels)
    rows: list[list[str | Cell]] = []
    for q, query in enumerate(gallery["query"]):
        name = class_name(names, query_labels[q, 0])
        row: list[str | Cell] = [image_cell(query, f"test image {q + 1}", [name], "first")]
        for k, pixels in enumerate(gallery["neighbour"][q]):
            css, mark = ("other", "✗ ") if is_other_class[q, k] else ("", "")
            alt = f"neighbour {k + 1} of test image {q + 1}"
            row.append(image_cell(pixels, alt, [mark + class_name(names, labels[q, k])], css))
        rows.append(row)
    return {
        "table": image_table("nearest neighbours", "test", rows),
        "num_labelled": int(labelled.sum()),
        "num_other_class": int(is_other_class.sum()),
    }


def _confusion(gallery: Gallery) -> dict[str, object]:
    """Build the section that counts how often nearest neighbours have another class.

    `nearest_classes` has rows (class of the test image, class of the neighbour, count).
    """
    names, counts = gallery["class_names"], gallery["nearest_classes"].astype(np.int64)
    classes = np.unique(counts[:, :2])
    sizes = np.bincount(counts[:, 0], counts[:, 2]).astype(int)  # test images of each class
    least, most = int(sizes[sizes > 0].min()), int(sizes.max())
    is_matrix = len(classes) <= MAX_MATRIX
    is_same = counts[:, 0] == counts[:, 1]
    same_class, confused = counts[is_same], counts[~is_same]
    confused = confused[np.argsort(-confused[:, 2] / sizes[confused[:, 0]], kind="stable")]
    correct = np.bincount(same_class[:, 0], same_class[:, 2], minlength=len(sizes))
    tested = np.flatnonzero(sizes)
    shares = correct[tested] / sizes[tested]
    lowest = np.argsort(shares, kind="stable")[:NUM_WORST]
    worst = [(class_name(names, int(tested[i])), float(shares[i])) for i in lowest if shares[i] < 1]
    return {
        "worst": worst,
        "pair": _most_confused(gallery, confused),
        "is_matrix": is_matrix,
        "table": _matrix(classes, counts, names) if is_matrix else _pairs(confused, sizes, names),
        "num_classes": len(classes),
        "class_size": f"{least}" if least == most else f"{least} to {most}",
        "num_images": int(counts[:, 2].sum()),
        "num_correct": int(same_class[:, 2].sum()),
    }


def _most_confused(gallery: Gallery, confused: np.ndarray) -> list[Cell]:
    """Return a test image of each of the two most confused classes, or [] without confusions.

    Args:
        gallery: with the test images, some of which may be of these classes.
        confused: rows of `nearest_classes` whose two classes differ, the largest share first.
    """
    if not len(confused):
        return []
    cells = []
    for label in confused[0, :2]:
        name = class_name(gallery["class_names"], label)
        of_class = np.flatnonzero(gallery.get("query_label", np.array([])) == label)
        images = [image_cell(gallery["query"][i], "test image", [name]) for i in of_class[:1]]
        cells += images or [Cell(name)]
    return cells


def _matrix(classes: np.ndarray, counts: np.ndarray, names: np.ndarray) -> Table:
    """Build the table of the percentages of each class's nearest neighbours, by their class."""
    matrix = np.zeros((len(classes), len(classes)), np.int64)
    of_image, of_neighbour = np.searchsorted(classes, counts[:, :2]).T
    matrix[of_image, of_neighbour] = counts[:, 2]
    heads = [class_name(names, label) for label in classes]
    rows = []
    for i, of_class in enumerate(matrix):
        zero = "·" if of_class.any() else "–"  # A class without test images has no shares.
        cells: list[str | Cell] = [heads[i]]
        for j, share in enumerate(100 * of_class / max(of_class.sum(), 1)):
            text = "<1" if 0 < share < 1 else f"{share:.0f}"
            cells.append(Cell(text if share else zero, bold=i == j, shade=share / OPAQUE))
        rows.append(cells)
    return Table("confusion", ["class", *heads], rows, "confusion of nearest neighbours")


def _pairs(confused: np.ndarray, sizes: np.ndarray, names: np.ndarray) -> Table | None:
    """Build the table of the most often confused pairs of classes, or None without confusions."""
    rows = []
    for a, b, count in confused[:NUM_PAIRS]:
        share = f"{100 * count / sizes[a]:.1f} %"
        rows.append([class_name(names, a), class_name(names, b), share, f"{count} of {sizes[a]}"])
    head = ["test image of", "nearest is of", "share", "images"]
    title = "most frequent confusions of nearest neighbours"
    return Table("results", head, rows, title) if rows else None


def _anchor_table(
    gallery: Gallery, title: str, anchors: np.ndarray, places: np.ndarray, texts: list[list[str]]
) -> Table:
    """Build a table with one row for each anchor image, followed by images of negatives.

    Args:
        gallery: with the block, the images that contain anchors and negatives.
        title: of the table.
        anchors: indices of the anchors in the block, [q].
        places: indices of their negatives in the block, [q, k]; -1 means no image.
        texts: lines above the classes of the negatives, [q][k].
    """
    images, labels, names = (gallery[key] for key in ("block", "block_label", "class_names"))
    rows = []
    for q, anchor in enumerate(anchors):
        name = class_name(names, int(labels[anchor]))
        row: list[str | Cell] = [image_cell(images[anchor], f"anchor {q + 1}", [name], "first")]
        for k, place in enumerate(places[q]):
            if place < 0:
                row.append("")
                continue
            label = int(labels[place])
            css, mark = ("other", SAME_CLASS) if 0 <= label == labels[anchor] else ("", "")
            lines = [texts[q][k], mark + class_name(names, label)]
            alt = f"negative {k + 1} of anchor {q + 1}"
            row.append(image_cell(images[place], alt, lines, css))
        rows.append(row)
    return image_table(title, "anchor", rows)


def _hardest(gallery: Gallery) -> dict[str, object]:
    """Build the section of anchors next to their hardest negatives."""
    anchors, hardest = gallery["hard_query"], gallery["hard_place"]
    texts = [[f"{value:.2f}" for value in row] for row in gallery["hard_similarity"]]
    of_hardest, of_all = map(float, gallery["hard_share"])
    return {
        "table": _anchor_table(gallery, "hardest negatives", anchors, hardest, texts),
        "block_size": int(gallery["block_size"]),
        "number": hardest.shape[1],
        "labelled": bool(np.isfinite(of_hardest)),
        "same_class": of_hardest,
        "same_class_all": of_all,
    }


def _support(gallery: Gallery, config: Settings) -> dict[str, object]:
    """Build the section of negatives by their weight in MMCL's SVMs."""
    bound, places = float(gallery["svm_C"]), gallery["svm_place"]
    columns = np.flatnonzero((places >= 0).any(axis=0))

    def describe(weight: float) -> str:
        if weight >= np.float32(bound):
            return "α = C"
        return f"α {weight:.2g}" if weight < 10 else f"α {weight:.0f}"

    texts = [list(map(describe, row)) for row in gallery["svm_alpha"][:, columns]]
    title = "support vectors of MMCL"
    method = config.get("method", {})
    return {
        "table": _anchor_table(gallery, title, gallery["svm_query"], places[:, columns], texts),
        "block_size": int(gallery["block_size"]),
        "settings": str(gallery["svm_settings"]),
        "bound": f"{bound:g}",
        "shares": dict(zip(SVM_SHARES, map(float, gallery["svm_share"]), strict=True)),
        "labelled": bool(np.isfinite(gallery["svm_share"][-1])),
        "trained_with_labels": bool(method.get("labels")),
        "trained_with_queue": bool(method.get("queue_size")),
    }


def _map(gallery: Gallery) -> Image:
    """Draw the map of test images on a plane."""
    points, labels = gallery["map"], gallery["map_label"]
    classes = np.unique(labels)
    names = [class_name(gallery["class_names"], label) or "unlabelled" for label in classes]
    names = list(map(legend_label, names))
    # The width of the figure is that of about 60 letters, and a marker takes that of 8.
    columns = max(1, min(5, len(classes), 60 // (8 + max(map(len, names)))))
    lines = -(-len(classes) // columns) if len(classes) <= MAX_LEGEND else 0
    figure = Figure(figsize=(5, 5.1 + 0.22 * lines), layout="constrained")
    axes = figure.add_subplot(
        aspect="equal", xticks=[], yticks=[], xlabel="map axis 1", ylabel="map axis 2"
    )
    colours = matplotlib.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    halo = [withStroke(linewidth=3, foreground="white")]
    for i, label in enumerate(classes):
        colour = "#666666" if label < 0 else colours(i % colours.N)
        cloud = points[labels == label]
        marker = MARKERS[i % len(MARKERS)]
        axes.scatter(*cloud.T, s=14, color=colour, marker=marker, label=names[i])
        if label >= 0:
            x, y = np.median(cloud, axis=0)
            text = axes.text(
                x, y, names[i], ha="center", va="center", weight="bold", path_effects=halo
            )
            text.set_in_layout(False)  # Long names would leave the axes no room.
    if lines:
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    labelled = classes[classes >= 0]
    alt = f"map of {len(points)} test examples"
    alt += f" of {len(labelled)} classes" if len(labelled) else " without labels"
    return embed_png(figure_png(figure), alt, "plot")

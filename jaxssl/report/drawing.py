"""Pictures inside a page: figures of matplotlib, thumbnails of images, rows of them."""

import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

from jaxssl.report import page

THUMBNAIL = 64  # pixels; the browser enlarges smaller images, larger ones are averaged down


class Picture(NamedTuple):
    """An image in a table.

    Attributes:
        image: uint8 [h, w, 1 or 3].
        alt: what it is, for those who cannot see it.
        text: the lines below it; empty ones are left out.
        frame: "", or a class of the page's CSS that frames it.
    """

    image: np.ndarray
    alt: str
    text: Sequence[str]
    frame: str = ""


def figure_image(figure: Figure, alt: str) -> str:
    """A figure as a picture inside the page."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=180)
    return page.img(png, alt)


def thumbnail(image: np.ndarray, alt: str, css: str = "") -> str:
    """A small picture of uint8 [h, w, 1 or 3]."""
    shrink = max(1, min(image.shape[:2]) // THUMBNAIL)
    h, w = (side // shrink for side in image.shape[:2])
    blocks = image[: h * shrink, : w * shrink].reshape(h, shrink, w, shrink, -1)
    png = io.BytesIO()
    imsave(png, np.broadcast_to(blocks.mean((1, 3)).astype(np.uint8), (h, w, 3)), format="png")
    return page.img(png, alt, f"thumb {'pixels' if min(h, w) < THUMBNAIL else ''} {css}")


def picture_table(name: str, head: Sequence[str], rows: Sequence[Sequence[Picture | None]]) -> str:
    """A table of pictures with their lines below them; None is an empty cell."""
    body = [["" if picture is None else _cell(picture) for picture in row] for row in rows]
    return page.table("neighbours", map(escape, head), body, name)


def class_name(names: Sequence[str], label: int) -> str:
    """Of a label, of which -1 is none; "" where the set has no classes at all."""
    return str(names[label]) if label >= 0 else "unlabelled" if len(names) else ""


def _cell(picture: Picture) -> str:
    text = list(filter(None, picture.text))
    said, lines = ", ".join([picture.alt, *text]), "<br>".join(map(escape, text))
    return f"{thumbnail(picture.image, said, picture.frame)}<small>{lines}</small>"

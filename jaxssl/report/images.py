"""Figures and thumbnails of report pages as data URIs, and the style of all figures."""

import io
from base64 import b64encode
from contextlib import AbstractContextManager
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

# Images are shrunk to a short side of at least this and less than twice this, in pixels. Smaller
# images keep their size, and the page enlarges them.
THUMBNAIL = 64
QUALITY = 90  # of thumbnails that are JPEG
# Series differ in marker and dashes, so that they can be distinguished without colour. The numbers
# of markers and dashes have no common factor, so that 44 series differ.
MARKERS = "o^sDvPX*<>h"
DASHES = ("-", "--", "-.", ":")
ENDS = 20  # characters kept at each end of a long name in a legend


def figure_style() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws figures in our style."""
    return matplotlib.rc_context(
        {
            "text.parse_math": False,  # A "$" in a class name must not start a formula.
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
        }
    )


def legend_label(name: str) -> str:
    """Return a name as a label of a legend, without the middle of a long name.

    A legend would leave out a name that begins with "_".
    """
    name = " ".join(name.split())
    if len(name) > 2 * ENDS:
        name = f"{name[:ENDS]}…{name[-ENDS:]}"
    return f"\u200b{name}" if name.startswith("_") else name


class Image(NamedTuple):
    """An image embedded in a report page, with a description of the image.

    Attributes:
        src: the PNG or JPEG as a data URI.
        alt: description for readers who cannot see the image.
        css: classes in `templates/style.css`.
        caption: text below the image, where it is shown as a figure.
    """

    src: str
    alt: str
    css: str = ""
    caption: str = ""


def embed_png(png: bytes, alt: str, css: str = "", caption: str = "") -> Image:
    """Embed a PNG as an image of a report page."""
    return _embed(png, "png", alt, css, caption)


def figure_png(figure: Figure, dpi: int = 180) -> bytes:
    """Draw a matplotlib figure as PNG bytes."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=dpi)
    return png.getvalue()


def shrink(images: np.ndarray) -> np.ndarray:
    """Shrink uint8 images [..., h, w, c] to thumbnails, by averaging over an integer factor.

    Means are rounded down, and rows and columns beyond the last whole block are cut off.
    """
    *n, h, w, c = images.shape
    factor = max(1, min(h, w) // THUMBNAIL)
    h, w = h // factor, w // factor
    blocks = images[..., : h * factor, : w * factor, :].reshape(*n, h, factor, w, factor, c)
    return blocks.mean((-4, -2)).astype(np.uint8)


def thumbnail(pixels: np.ndarray, alt: str, css: str = "") -> Image:
    """Return a small version of an image for a report page.

    Args:
        pixels: uint8 [h, w, 1 or 3].
        alt: description.
        css: class of the frame, such as "first" or "other", or "" for none.
    """
    small, file = shrink(pixels), io.BytesIO()
    h, w = small.shape[:2]
    # Single pixels of small images are visible. Photographs are much smaller as JPEG.
    size, format = ("thumb pixels", "png") if min(h, w) < THUMBNAIL else ("thumb", "jpeg")
    options = {"quality": QUALITY} if format == "jpeg" else {}
    imsave(file, np.broadcast_to(small, (h, w, 3)), format=format, pil_kwargs=options)
    return _embed(file.getvalue(), format, alt, f"{size} {css}".strip())


def _embed(data: bytes, format: str, alt: str, css: str, caption: str = "") -> Image:
    return Image(f"data:image/{format};base64,{b64encode(data).decode()}", alt, css, caption)

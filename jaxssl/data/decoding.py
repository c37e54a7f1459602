"""From a picture's bytes to pixels: decoding, and the crops that are made on the host."""

import io
import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Those of the suffixes, and no others that Pillow would try: for EPS it runs Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 2**26  # of a picture; a small file may declare any number
PNG = b"\x89PNG\r\n\x1a\n"
TURNS = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
MARGIN = 0.875  # share of a picture's short side that `centre` keeps


class Crop(NamedTuple):
    """A random resized crop.

    Attributes:
        size: pixels a side of the result.
        scale: smallest and largest share of the area; (1, 1) keeps all of the picture.
        ratio: smallest and largest width / height, drawn log-uniformly.
    """

    size: int
    scale: tuple[float, float]
    ratio: tuple[float, float]


class Crops(NamedTuple):
    """What a batch needs of each picture if the host crops it.

    Attributes:
        views: a random crop for each view; () is the picture's `centre` for all of them.
        crops: likewise for each small crop.
        size: pixels a side of a view.
        frames: of clips, how many frames in a row the host cuts for each view.
    """

    views: tuple[Crop, ...]
    crops: tuple[Crop, ...]
    size: int
    frames: tuple[int, ...] = ()


def open_picture(data: bytes, channels: int, *, upright: bool = False) -> Image.Image:
    """A decoded picture of 8 bits a channel.

    Args:
        data: a file of one of `FORMATS`, of at most `MAX_PIXELS`.
        channels: 1 for grey, 3 for RGB; others are converted. An alpha channel is dropped, 16 bits
            of grey are divided by 257.
        upright: turn it as its EXIF orientation says; Pillow always does so with TIFF files.

    Raises:
        OSError: if it is no picture, too large or cut short; Pillow has other exceptions for other
            damage.
    """
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:  # its message is about a place in memory
        raise OSError("is no picture that is known here") from error
    if math.prod(picture.size) > MAX_PIXELS:
        raise OSError(f"has {picture.width} x {picture.height} pixels, more than {MAX_PIXELS}")
    if data.startswith(PNG):
        _check_png(data)
    picture.load()
    if upright and "exif" in picture.info and (turn := _turn(picture)) is not None:
        picture = picture.transpose(turn)
    if picture.mode.startswith("I"):
        values = np.asarray(picture, np.int32)
        if not 0 <= values.min() <= values.max() < 2**16:
            raise OSError("its values are not in 0..65535")
        picture = Image.fromarray(((values + 128) // 257).astype(np.uint8))  # rounded
    elif picture.mode == "F":
        raise OSError("its values are floating-point numbers of an unknown range")
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    mode = "L" if channels == 1 else "RGB"
    return picture if picture.mode == mode else picture.convert(mode)  # which would copy it


def _check_png(data: bytes) -> None:
    """Raise OSError if a checksum is wrong: Pillow does not look at those of the pixels."""
    place = len(PNG)
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 8 + length
        if zlib.crc32(memoryview(data)[place + 4 : end]) != int.from_bytes(data[end : end + 4]):
            raise OSError(f"is damaged, or cut short, in its part {kind!r}")
        if kind == b"IEND":
            return
        place = end + 4
    raise OSError("is cut short")


def _turn(picture: Image.Image) -> Image.Transpose | None:
    """What makes it upright; None if nothing need be done, or nothing is known."""
    try:
        return TURNS.get(picture.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # EXIF data may be anything, the picture is good all the same
        return None


def from_pixels(values: np.ndarray) -> Image.Image:
    """A picture of uint8 [h, w, 1 or 3]."""
    return Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)


def pixels(picture: Image.Image) -> np.ndarray:
    """[h, w, c] uint8."""
    values = np.asarray(picture)
    return values[:, :, None] if values.ndim == 2 else values


def centre(picture: Image.Image, size: int) -> np.ndarray:
    """[size, size, c]: the middle of the picture, seven eighths of its short side, as on ImageNet.

    Resizing the short side to 256 and cutting out 224 pixels is the same in one step.
    """
    side = MARGIN * min(picture.size)
    left, top = ((length - side) / 2 for length in picture.size)
    return _resized(picture, (left, top, left + side, top + side), size)


def random_crops(
    picture: Image.Image, crops: Sequence[Crop], rng: np.random.Generator
) -> list[np.ndarray]:
    """Each crop as [size, size, c]; the law is that of `jaxssl.augment.image.random_crop_box`."""
    width, height = picture.size
    out = []
    for crop in crops:
        u = rng.random(4)
        if tuple(crop.scale) == (1, 1):  # as the recipes have it
            out.append(_resized(picture, (0, 0, width, height), crop.size))
            continue
        area = width * height * (crop.scale[0] + u[0] * (crop.scale[1] - crop.scale[0]))
        low, high = map(math.log, crop.ratio)
        aspect = math.exp(low + u[1] * (high - low))
        w, h = min(math.sqrt(area * aspect), width), min(math.sqrt(area / aspect), height)
        left, top = u[2] * (width - w), u[3] * (height - h)
        out.append(_resized(picture, (left, top, left + w, top + h), crop.size))
    return out


def _resized(picture: Image.Image, box: tuple[float, float, float, float], size: int) -> np.ndarray:
    return pixels(picture.resize((size, size), Image.Resampling.BILINEAR, box=box))

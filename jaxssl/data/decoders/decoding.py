"""Decode images from bytes, and crop and resize them on the host."""

import contextlib
import io
import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# Keys of Pillow's `info` that may tell a picture's orientation.
EXIF = {"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"}
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Pillow is restricted to these formats. For an EPS file it would run Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_CHANNELS = 16
# Pillow's modes by number of channels. Pictures with other numbers are arrays in .npy files.
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
MAX_PIXELS = 2**26  # largest image in pixels, because a small file may claim any number
PNG_SIGNATURE, NPY_SIGNATURE = b"\x89PNG\r\n\x1a\n", b"\x93NUMPY"
Box = tuple[float, float, float, float]
ROUNDING = 1e-5  # Floats may leave [0, 1] by this much, after resizing for example.
CROP_TRIES = 10  # boxes drawn for a random resized crop, as on the device
CENTRE_SHARE = 0.875  # share of the short side that the centre crop keeps


class Crop(NamedTuple):
    """Settings of a random resized crop that the host cuts.

    Attributes:
        size: side of the result in pixels.
        scale: smallest and largest share of the image's area. (1, 1) keeps the whole image.
        ratio: smallest and largest width / height, drawn log-uniformly.
    """

    size: int
    scale: tuple[float, float]
    ratio: tuple[float, float]


class Crops(NamedTuple):
    """Random crops that the host cuts from each example of a batch.

    Attributes:
        views: one random crop for each view. () cuts the image's `centre` once for all views.
        crops: one random crop for each small crop of multi-crop recipes.
        size: side of a view in pixels.
        frames: for clips, the number of consecutive frames of each view.
    """

    views: tuple[Crop, ...]
    crops: tuple[Crop, ...]
    size: int
    frames: tuple[int, ...] = ()


class Planes:
    """A picture whose channels fit no Pillow mode, with methods of Pillow images that crops use.

    Pillow resizes each channel alone. As "RGBA" it would multiply colours by the fourth channel.

    Attributes:
        size: width and height in pixels.
    """

    def __init__(self, planes: Sequence[Image.Image]) -> None:
        self._planes = planes
        self.size = planes[0].size
        self.width, self.height = self.size

    def resize(self, size: tuple[int, int], resample: int, box: Box | None = None) -> "Planes":
        """Resize each channel as `PIL.Image.Image.resize` does."""
        return Planes([plane.resize(size, resample, box) for plane in self._planes])

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        """Return the pixels, uint8 [h, w, c]."""
        return np.stack([np.asarray(plane) for plane in self._planes], axis=2)


Picture = Image.Image | Planes


def suffixes(channels: int) -> tuple[str, ...]:
    """Return the endings of the names of pictures, with ".npy" unless they are grey or RGB."""
    return SUFFIXES if channels in (0, 1, 3) else (*SUFFIXES, ".npy")


def open_picture(data: bytes, channels: int, *, upright: bool = False) -> Picture:
    """Decode an image file to 8 bits a channel.

    Args:
        data: content of a file in one of `FORMATS`, with at most `MAX_PIXELS` pixels, or of a .npy
            file [h, w, channels] as `to_8_bits` takes it.
        channels: see `convert`.
        upright: see `convert`.

    Raises:
        OSError: if the data are not an image, too large or cut short. Pillow raises other
            exceptions for other damage.
        ValueError: if the array of a .npy file has another shape or range.
    """
    if data.startswith(NPY_SIGNATURE):
        return _open_array(data, channels)
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:  # Pillow's message would show a memory address.
        raise OSError("is not an image in a supported format") from error
    except Image.DecompressionBombError as error:  # Pillow has a larger limit.
        raise OSError(f"has more pixels than the limit of {MAX_PIXELS}") from error
    if math.prod(picture.size) > MAX_PIXELS:
        raise OSError(
            f"has {picture.width} x {picture.height} pixels, more than the limit of {MAX_PIXELS}"
        )
    if data.startswith(PNG_SIGNATURE):
        _check_png(data)
    return convert(picture, channels, upright=upright)


def convert(picture: Image.Image, channels: int | None, *, upright: bool = False) -> Picture:
    """Convert a picture to 8 bits a channel.

    Args:
        picture: any Pillow image.
        channels: 1 converts to grey, 3 to RGB, 2 and 4 to the same with alpha. None keeps pictures
            grey that are grey without alpha, of 8 or 16 bits, and converts all others to RGB.
            16-bit grey values are divided by 257.
        upright: rotate the image as its EXIF orientation says. Pillow always rotates TIFF files.

    Raises:
        OSError: if the range of the values is not known, or the picture cannot be decoded. Pillow
            raises other exceptions for other damage.
    """
    picture.load()
    if upright and EXIF & picture.info.keys():
        # Pillow rotates the image and then writes the EXIF data back. Damaged EXIF data may raise
        # any error in that second step.
        with contextlib.suppress(Exception):
            ImageOps.exif_transpose(picture, in_place=True)
    if picture.mode.startswith("I"):
        values = np.asarray(picture, np.int32)
        if not 0 <= values.min() <= values.max() < 2**16:
            raise OSError("has pixel values outside of 0 to 65535")
        picture = Image.fromarray(from_16_bits(values))
    elif picture.mode == "F":
        raise OSError("has floating-point pixels of an unknown range; save it with 8 or 16 bits")
    elif picture.mode == "LAB":  # Pillow does not convert it to grey.
        picture = picture.convert("RGB")
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    channels = channels or (1 if picture.mode == "L" else 3)
    if channels not in MODES:
        raise OSError(f"has {len(picture.getbands())} channels, expected {channels} in a .npy file")
    # Pillow's `convert` copies the picture even if it already has the mode.
    picture = picture if picture.mode == MODES[channels] else picture.convert(MODES[channels])
    return picture if channels in (1, 3) else Planes(picture.split())


def _open_array(data: bytes, channels: int) -> Picture:
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("is a .npy file of another version than 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    # Unlike `np.load`, this allocates nothing for a shape that is larger than the file.
    values = np.frombuffer(data, dtype, offset=file.tell())
    values = values.reshape(shape, order="F" if fortran else "C")
    if values.ndim != 3 or values.shape[2] != channels or not values.size:
        raise ValueError(f"has the shape {list(shape)}, expected [height, width, {channels}]")
    return from_pixels(to_8_bits(values))


def to_8_bits(values: np.ndarray) -> np.ndarray:
    """Round uint16, or floats in [0, 1], to uint8. Keep uint8.

    Raises:
        ValueError: if they have another type, or are out of range.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:  # of either byte order
        return from_16_bits(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise ValueError(
            f"has the dtype {values.dtype}; expected uint8, uint16, or floats in [0, 1]"
        )
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise ValueError(
            f"has values in [{low:.9g}, {high:.9g}]; expected floats in [0, 1], or uint8"
        )
    return np.round(values * 255).astype(np.uint8)


def from_16_bits(values: np.ndarray) -> np.ndarray:
    """Round integers in [0, 65535] to uint8: x / 257."""
    return ((values.astype(np.int32) + 128) // 257).astype(np.uint8)


def _check_png(data: bytes) -> None:
    """Raise OSError if a PNG checksum is wrong. Pillow does not verify the checksums of pixels.

    Pillow's `Image.verify` would need to parse the file a second time, which small images feel.
    """
    position = len(PNG_SIGNATURE)
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        checksum = int.from_bytes(data[end : end + 4])
        if zlib.crc32(memoryview(data)[position + 4 : end]) != checksum:
            raise OSError(f"is damaged or cut short in its chunk {kind!r}")
        if kind == b"IEND":
            return
        position = end + 4
    raise OSError("is a PNG file that was cut short")


def from_pixels(values: np.ndarray) -> Picture:
    """Convert uint8 pixels [h, w, c] to a picture."""
    if values.shape[2] not in (1, 3):
        return Planes([Image.fromarray(plane) for plane in np.moveaxis(values, 2, 0)])
    return Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)


def pixels(picture: Picture) -> np.ndarray:
    """Convert a picture to uint8 pixels [h, w, c]."""
    values = np.asarray(picture)
    return values[:, :, None] if values.ndim == 2 else values


def centre(
    picture: Picture, size: int, crop: float | None = None, interpolation: str = "bilinear"
) -> np.ndarray:
    """Crop the central square of a picture and resize it to [size, size, c].

    The box equals the result of `jaxssl.augment.image.centre_box`.

    Args:
        picture: the image.
        size: side of the result in pixels.
        crop: share of the short side, by default (None) ImageNet's test crop: the short side is
            resized to 256 and 224 pixels are cut out. 0 resizes the whole image to a square.
        interpolation: "bilinear" or "bicubic".
    """
    if crop == 0:
        return _resize(picture, (0, 0, picture.width, picture.height), size, interpolation)
    short = int(size / (crop or CENTRE_SHARE) + 1e-6)
    whole = [int(short * side / min(picture.size)) for side in picture.size]
    left, top = (round((side - size) / 2) for side in whole)
    x, y = picture.width / whole[0], picture.height / whole[1]
    box = (left * x, top * y, (left + size) * x, (top + size) * y)
    return _resize(picture, box, size, interpolation)


def random_crops(
    picture: Picture, crops: Sequence[Crop], rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw and cut random resized crops of an image, each [size, size, c].

    Boxes have the same distribution as `jaxssl.augment.image.random_crop_box`.
    """
    width, height = picture.size
    out = []
    for crop in crops:
        u = rng.random(2 + 2 * CROP_TRIES)
        # Scale (1, 1) means the whole image, so the aspect ratio is ignored, as on the device.
        if tuple(crop.scale) == (1, 1):
            out.append(_resize(picture, (0, 0, width, height), crop.size))
            continue
        area = width * height * (crop.scale[0] + u[2::2] * (crop.scale[1] - crop.scale[0]))
        low, high = np.log(crop.ratio)
        aspect = np.exp(low + u[3::2] * (high - low))
        sides = np.sqrt([area * aspect, area / aspect])
        [fits] = np.nonzero((sides[0] <= width) & (sides[1] <= height))
        if len(fits):
            (w, h), (x, y) = sides[:, fits[0]], u[:2]
        else:  # the largest central box with an aspect ratio in range
            w, h = min(width, height * crop.ratio[1]), min(height, width / crop.ratio[0])
            x, y = 0.5, 0.5
        left, top = x * (width - w), y * (height - h)
        out.append(_resize(picture, (left, top, left + w, top + h), crop.size))
    return out


def _resize(picture: Picture, box: Box, size: int, interpolation: str = "bilinear") -> np.ndarray:
    return pixels(picture.resize((size, size), Image.Resampling[interpolation.upper()], box=box))

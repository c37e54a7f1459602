"""Read images and labels of Python objects, tables and arrays: all at once, or when needed."""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from jaxssl.data.decoders import decoding
from jaxssl.data.decoders.files import ARCHIVES
from jaxssl.data.formats import user_files
from jaxssl.data.integrity import MAX_CLASSES
from jaxssl.data.kind import Shape
from jaxssl.data.records import UNLABELLED
from jaxssl.errors import UserError, one_line

log = logging.getLogger("jaxssl")
IN_ADVANCE = 2**30  # largest data set in bytes, lists aside, that is read as a whole before its use
PROBED = 64  # number of images of a streamed data set that are read first, to learn their shape
CONVERTED = 1024  # number of images that are rounded to 8 bits at once
MAX_ITEMS = 2**31 - 1
DARK = 32  # Pixels up to this value were probably not scaled to [0, 255].
IMAGE_KEYS = ("image", "img", "images", "pixels", "x")
LABEL_KEYS = ("label", "labels", "fine_label", "class", "y")
FILE_COLUMNS = ("file", "path", "file_name", "filename", "image_path", *IMAGE_KEYS)
SUFFIXES = (".npz", ".npy", ".csv", ".parquet")


@dataclass(frozen=True)
class PictureFile:
    """An image file that is read only when needed.

    Attributes:
        name: for messages and listings.
        content: its path, or the bytes of the file.
    """

    name: str
    content: Path | bytes

    def tobytes(self) -> bytes:
        """Return the bytes of the image file."""
        return self.content.read_bytes() if isinstance(self.content, Path) else self.content


def open_path(path: Path) -> Any:
    """Return the content of a file in a form that `in_memory.load_splits` takes.

    Args:
        path: .npy holds images. .npz holds arrays by name, such as "image" and "label". .csv and
            .parquet have a column of paths, which are relative to the file, and may have a column
            of labels. Any other file is a picture.

    Raises:
        UserError: if the file cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        if suffix == ".csv":
            names, rows = user_files.read_table(path.read_bytes().decode("utf-8-sig"), str(path))
            columns = {name: [(row[name] or "").strip() or None for row in rows] for name in names}
            return from_columns(columns, str(path), path.parent)
        if suffix == ".parquet":
            from pyarrow import parquet

            return from_columns(parquet.read_table(path).to_pydict(), str(path), path.parent)
    except UserError:
        raise
    except Exception as error:  # NumPy and pyarrow raise many exception types for damaged files.
        raise UserError(f"data={path} cannot be read ({one_line(error)})") from error
    if path.is_dir() or path.name.lower().endswith(ARCHIVES):
        raise UserError(
            f"data={path} is a folder or an archive, which a pair (train, test) cannot have; name "
            "the folder above it, which holds SPLIT/CLASS/picture"
        )
    if not suffix.endswith(decoding.SUFFIXES):
        raise UserError(
            f"data={path} is no file of data; expected a folder, an archive, a picture, or a file "
            f"ending in {', '.join(SUFFIXES)}"
        )
    return [path]


def from_columns(columns: Mapping[str, Iterable], name: str, folder: Path) -> dict[str, object]:
    """Return {"image", "label"} of a table with a column of paths and perhaps one of labels.

    Args:
        columns: the columns by name, of a data frame for example.
        name: of the table, for messages.
        folder: paths of the table are relative to it.

    Raises:
        UserError: if no column holds paths.
    """
    image = next((key for key in FILE_COLUMNS if key in columns), None)
    if image is None:
        raise UserError(
            f"{name} has the columns {', '.join(map(str, columns))}; expected the paths of "
            f"pictures in one of {', '.join(FILE_COLUMNS)}"
        )
    if image != "x" and "x" in columns:  # of boxes: "y" is a coordinate, and no label
        columns = {key: values for key, values in columns.items() if key not in ("x", "y")}
    label = next((key for key in LABEL_KEYS if key in columns), None)
    files = [folder / x if isinstance(x, str | Path) else x for x in columns[image]]
    rest = {key: values for key, values in columns.items() if key not in (image, label)}
    labels = {} if label is None else {"label": list(columns[label])}
    return {**rest, "image": files, **labels}


def image_and_label(item: Mapping[str, Any], name: str, warn: bool = True) -> tuple[Any, Any]:
    """Return the image and the label (or None) of a mapping."""
    image = next((key for key in IMAGE_KEYS if key in item), None)
    label = next((key for key in LABEL_KEYS if key in item), None)
    if image is None:
        raise UserError(
            f"{name} has the keys {', '.join(map(str, item))}; expected images under one of "
            f"{', '.join(IMAGE_KEYS)}, and labels, if any, under one of {', '.join(LABEL_KEYS)}; "
            "for arrays of several splits pass data=((images, labels), (test_images, test_labels))"
        )
    ignored = ", ".join(str(key) for key in item if key != image)
    if warn and ignored and label is None:
        log.warning(
            "data       %s has no labels, and ignores %s; name labels one of %s",
            *(name, ignored, ", ".join(LABEL_KEYS)),
        )
    elif warn and (rest := ", ".join(str(key) for key in item if key not in (image, label))):
        log.info("data       %s: labels are %r, ignored are %s", name, label, rest)
    return item[image], None if label is None else item[label]


def read_item(
    data: Sequence, index: int, name: str, channels: int
) -> tuple[np.ndarray | PictureFile, object]:
    """Return image and label (or None) of an item. The image is uint8 [h, w, c] or a file.

    ``channels`` is the number of channels of Pillow images, 0 for grey or RGB as they are.
    """
    item, name = data[index], f"item {index} of {name}"
    if isinstance(item, Mapping):
        image, label = image_and_label(item, name, warn=index == 0)
    elif isinstance(item, tuple | list) and len(item) == 2:
        image, label = item
    else:
        image, label = item, None
    if isinstance(image, str | Path | bytes):
        content = Path(os.path.expanduser(image)) if isinstance(image, str) else image
        image_name = f"item {index}" if isinstance(image, bytes) else str(image)
        return PictureFile(image_name, content), label
    if isinstance(image, PictureFile):
        return image, label
    if isinstance(image, Image.Image):
        try:
            # `convert` may change a picture in place, so it gets a copy of the user's picture.
            image = np.asarray(decoding.convert(image.copy(), channels or None, upright=True))
        except Exception as error:  # Pillow's decoders raise many exception types.
            raise UserError(f"{name} {one_line(error)}") from error
    with contextlib.suppress(ValueError):  # NumPy refuses lists of unequal lengths.
        # A masked array is kept as one, so that it is refused.
        values = image if isinstance(image, np.ma.MaskedArray) else np.asarray(image)
        if values.ndim in (2, 3):
            return pixels_of(values[None], name)[0], label
    got = f"a {type(image).__name__}; the order is (images, labels)"
    raise UserError(f"{name} must be an image or (image, label), got {got}")


def hash_samples(samples: Iterable[np.ndarray | PictureFile], digest: Any) -> np.ndarray:
    """Add samples to a digest of hashlib, and return a hash of each, int64 [n]."""
    hashes = []
    for image in samples:
        content = image.tobytes()
        digest.update(content)
        hashes.append(hash(content))
    return np.array(hashes, np.int64)


def report_dark(images: Sequence[np.ndarray | PictureFile] | np.ndarray, name: str) -> None:
    """Warn if the pixels of arrays were probably not scaled to [0, 255]."""
    some = [image for image in images[:: len(images) // 1024 or 1] if isinstance(image, np.ndarray)]
    largest = max((int(image.max(initial=0)) for image in some), default=0)
    if 0 < largest <= DARK:
        log.warning("data       the largest pixel of %s is %d of 255; scale it", name, largest)


def check_files(
    images: list[np.ndarray | PictureFile], name: str, channels: int, on_error: str
) -> list[Shape | None]:
    """Return the shape [h, w, c] of each array and picture file, None for unreadable files."""
    files = [image for image in images if isinstance(image, PictureFile)]
    checked = user_files.read_checked([(file.name, file.tobytes) for file in files], channels)
    sizes = [(file, size) for file, _, size in checked]
    reasons = [f"{file}: {size}" for file, size in sizes if isinstance(size, str)]
    user_files.report_unreadable("pictures", name, reasons, on_error)
    shapes = iter([None if isinstance(size, str) else (*size, channels) for _, size in sizes])
    return [next(shapes) if isinstance(x, PictureFile) else x.shape for x in images]


@dataclass(frozen=True)
class Stream:
    """Images of a sequence, each read on demand.

    Attributes:
        data: the sequence.
        name: for messages.
        channels: of picture files and Pillow images, as for `read_item`. 0 stands for 3 in files.
        shape: [h, w, c] of the images, where h and w may be None. () if it is not known yet.
    """

    data: Sequence
    name: str
    channels: int
    shape: Shape = ()

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.data)

    def __getitem__(self, index: int) -> np.ndarray:
        """Read the image at an index.

        Raises:
            UserError: if the image cannot be decoded, or does not have `shape`.
        """
        image, _ = read_item(self.data, int(index), self.name, self.channels)
        if isinstance(image, PictureFile):
            try:
                channels = self.channels or user_files.CHANNELS
                picture = decoding.open_picture(image.tobytes(), channels, upright=True)
                image = decoding.pixels(picture)
            except Exception as error:  # Pillow's decoders raise many exception types.
                raise UserError(f"{image.name} cannot be decoded ({one_line(error)})") from error
        for length, expected in zip(image.shape, self.shape, strict=False):
            if expected not in (None, length):
                raise UserError(
                    f"item {index} of {self.name} has the shape {list(image.shape)}, but the "
                    f"first {PROBED} items that were read have {list(self.shape)}; give all of "
                    f"them one {'number of channels' if None in self.shape else 'shape'}"
                )
        return image

    def probe(self) -> list[np.ndarray]:
        """Read evenly spaced images, which tell the shape of all of them."""
        chosen = np.linspace(0, len(self) - 1, min(len(self), PROBED)).astype(np.int64)
        return [self[index] for index in chosen]


def is_streamed(data: Any, name: str, channels: int, cache: str) -> bool:
    """Return True for an object that is read by index during training.

    Lists and data sets of up to `IN_ADVANCE` bytes are read in advance, and so is everything if
    ``cache`` is "device". With "none" only lists are.
    """
    if isinstance(data, np.ndarray | jax.Array):  # Arrays of HDF5 and zarr are on disk.
        return False
    by_index = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not by_index or isinstance(data, list | tuple) or cache == "device" or not len(data):
        return False
    if len(data) > MAX_ITEMS:
        raise UserError(f"{name} has {len(data)} items; expected at most {MAX_ITEMS}")
    if cache == "none":
        return True
    stream = Stream(data, name, channels)
    for index in range(min(len(data), PROBED)):
        with contextlib.suppress(UserError):  # A damaged picture is reported later.
            return len(data) * stream[index].nbytes > IN_ADVANCE
    return False


def label_column(data: Any) -> str | None:
    """Return the name of the label column of a Hugging Face data set, or None without one."""
    features = getattr(data, "features", None)
    columns = features if isinstance(features, Mapping) else {}
    return next((key for key in LABEL_KEYS if key in columns), None)


def pixels_of(images: ArrayLike, name: str) -> np.ndarray:
    """Return uint8 [n, h, w, c] of arrays in any of the accepted forms."""
    if isinstance(images, np.ma.MaskedArray):
        raise UserError(f"{name} is a masked array of images; fill the masked pixels: x.filled(0)")
    images = np.asarray(images)
    if images.ndim == 3:
        images = images[..., None]
    shape = images.shape
    valid = len(shape) == 4 and all(shape[1:]) and shape[-1] <= decoding.MAX_CHANNELS
    # Images with 1 to 4 rows and more channels are taken for PyTorch's, with channels first.
    if not valid or (shape[-1] > 4 >= shape[1]):
        raise UserError(
            f"{name} has the shape {list(shape)}; expected images [n, h, w, c] with 1 to "
            f"{decoding.MAX_CHANNELS} channels last; transpose [n, c, h, w] by (0, 2, 3, 1)"
        )
    try:
        if images.dtype == np.uint8:
            return images
        pixels = np.empty(shape, np.uint8)
        # All at once would take twice the memory of the images.
        for start in range(0, len(images), CONVERTED):
            part = slice(start, start + CONVERTED)
            pixels[part] = decoding.to_8_bits(images[part])
        return pixels
    except ValueError as error:
        raise UserError(f"{name} {error}") from error


def convert_labels(labels: object, count: int, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return class indices as int32 [n], -1 for examples without a label, and class names.

    Args:
        labels: [n] or [n, 1], either class indices of any numeric type, or strings. The sorted
            strings become the classes. -1, None, NaN, "" and masked entries stand for no label.
            None in place of the array is for examples without any label.
        count: n, the number of examples.
        name: of the data, for messages.

    Returns:
        The indices, and the names of the classes. () for numbers.

    Raises:
        UserError: if the labels have another form, or are out of range.
    """
    indices = np.full(count, UNLABELLED, np.int32)
    if labels is None:
        return indices, ()
    if isinstance(labels, np.ma.MaskedArray):  # NumPy would ignore the mask.
        labels = np.where(np.ma.getmaskarray(labels), np.array(None), labels.data)
    try:
        values = np.asarray(labels)
        if values.dtype.kind in "UT":  # NumPy has turned numbers among strings into strings.
            values = np.asarray(labels, object)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        given = np.ones(len(values), bool)
        if values.dtype.kind not in "biu":  # Lists of many integers would take gigabytes.
            given[:] = [not is_missing(x) for x in values.tolist()]
        present = values[given]
        present = np.asarray(present.tolist()) if present.dtype == object else present
    except (TypeError, ValueError) as error:
        raise UserError(f"the labels of {name} are no array: {one_line(error)}") from error
    if values.ndim != 1:
        raise UserError(
            f"the labels of {name} have the shape {list(values.shape)}; expected one class for "
            "each image; for one-hot labels, pass labels.argmax(1)"
        )
    if len(values) != count:
        raise UserError(f"{name} has {count} images but {len(values)} labels")
    if present.dtype.kind == "U" and all(isinstance(x, str) for x in values[given].tolist()):
        names, indices[given] = np.unique(present, return_inverse=True)
        return indices, tuple(str(name) for name in names)
    if present.dtype.kind not in "biuf" or not (present == np.round(present)).all():
        raise UserError(
            f"the labels of {name} are {values.dtype} {list(values.shape)}; expected integers, the "
            "class indices, or strings, the class names"
        )
    for label in (present.min(initial=0).item(), present.max(initial=0).item()):
        if not UNLABELLED <= label < MAX_CLASSES:  # The cast to int32 would wrap around.
            raise UserError(
                f"{name} has the label {label}; expected 0, 1, ... below {MAX_CLASSES}, or -1 for "
                "none"
            )
    indices[given] = present
    return indices, ()


def is_missing(label: Any) -> bool:
    """Return True for a value that stands for no label."""
    try:
        return label is None or label in ("", UNLABELLED, str(UNLABELLED)) or label != label
    except TypeError:  # pandas.NA is neither equal nor unequal to anything
        return True

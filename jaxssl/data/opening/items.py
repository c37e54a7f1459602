"""Read the items of data sets that are given as Python objects: all at once, or when needed."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jaxssl.data.decoders import decoding
from jaxssl.data.opening.tables import IMAGE_KEYS, LABEL_KEYS, PictureFile
from jaxssl.errors import UserError, one_line

log = logging.getLogger("jaxssl")
IN_ADVANCE = 2**30  # largest data set in bytes that is read in advance if it is read by index
PROBED = 64  # number of images of larger data sets that are read first
MAX_ITEMS = 2**31 - 1


def image_and_label(item: Mapping[str, Any], name: str, warn: bool = True) -> tuple[Any, Any]:
    """Return the image and the label (or None) of a mapping."""
    image = next((key for key in IMAGE_KEYS if key in item), None)
    label = next((key for key in LABEL_KEYS if key in item), None)
    if image is None:
        raise UserError(
            f"{name} has the keys {', '.join(map(str, item))}; expected images under one of "
            f"{', '.join(IMAGE_KEYS)}"
        )
    ignored = ", ".join(str(key) for key in item if key != image)
    if warn and ignored and label is None:
        log.warning(
            "data       %s has no labels, and ignores %s; name labels one of %s",
            *(name, ignored, ", ".join(LABEL_KEYS)),
        )
    return item[image], None if label is None else item[label]


def read_items(data: Any, name: str) -> tuple[list[np.ndarray | PictureFile], list[Any] | None]:
    """Return the images, and the labels if any item has one."""
    items = [read_item(data, index, name) for index in range(len(data))]
    labels = [label for _, label in items]
    labels = None if all(label is None for label in labels) else labels
    return [image for image, _ in items], labels


def read_item(data: Any, index: int, name: str) -> tuple[np.ndarray | PictureFile, Any]:
    """Return the image of an item, uint8 [h, w, c] or a file, and its label or None."""
    item, label, name = data[index], None, f"item {index} of {name}"
    image = item
    if isinstance(item, Mapping):
        image, label = image_and_label(item, name, warn=index == 0)
    elif isinstance(item, tuple | list) and len(item) == 2:
        image, label = item
    if isinstance(image, str | Path | bytes):
        content = Path(image).expanduser() if isinstance(image, str) else image
        image_name = f"item {index}" if isinstance(image, bytes) else str(image)
        return PictureFile(image_name, content), label
    if isinstance(image, PictureFile):
        return image, label
    if isinstance(image, Image.Image):
        try:
            # In place, the user's picture would change.
            image = np.asarray(decoding.convert(image.copy(), None, upright=True))
        except Exception as error:  # Pillow's decoders raise many exception types.
            raise UserError(f"{name} {one_line(error)}") from error
    values = np.asarray(image)
    if values.ndim not in (2, 3):
        raise UserError(f"{name} is no image but a {type(image).__name__}")
    return pixels_of(values[None], name)[0], label


class Stream:
    """Images of an object that is read by index, each when it is needed.

    Attributes:
        shape: [h, w, c] of the images, where h and w may be None. () if it is not known yet.
    """

    def __init__(self, data: Any, name: str, channels: int) -> None:
        self._data, self._name, self._channels = data, name, channels
        self.shape: tuple[Any, ...] = ()

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._data)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read the image of an item, and check its shape."""
        image, _ = read_item(self._data, int(index), self._name)
        if isinstance(image, PictureFile):
            picture = decoding.open_picture(image.tobytes(), self._channels, upright=True)
            image = decoding.pixels(picture)
        if self.shape and None not in self.shape and image.shape != self.shape:
            raise UserError(
                f"item {index} of {self._name} has the shape {list(image.shape)}, but the first "
                f"{PROBED} items that were read have {list(self.shape)}; give all of them one shape"
            )
        return image

    def probe(self) -> list[np.ndarray]:
        """Read evenly spaced images, which tell the shape of all of them."""
        chosen = np.linspace(0, len(self) - 1, min(len(self), PROBED)).astype(np.int64)
        return [self[index] for index in chosen]


def is_streamed(data: Any, name: str, channels: int, cache: str) -> bool:
    """Return True for an object that is read by index as training goes on.

    Lists and data sets of up to `IN_ADVANCE` bytes are read in advance, and so is everything if
    ``cache`` is "device". With "none" only lists are.
    """
    by_index = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not by_index or isinstance(data, list | tuple) or cache == "device" or not len(data):
        return False
    if len(data) > MAX_ITEMS:
        raise UserError(f"{name} has {len(data)} items; expected at most {MAX_ITEMS}")
    return cache == "none" or len(data) * Stream(data, name, channels)[0].nbytes > IN_ADVANCE


def label_column(data: Any) -> Any:
    """Return the labels of a Hugging Face data set, which has them in a column, or None."""
    features = getattr(data, "features", None)
    columns = features if isinstance(features, Mapping) else {}
    key = next((key for key in LABEL_KEYS if key in columns), None)
    return None if key is None else data[key]


def pixels_of(images: np.ndarray, name: str) -> np.ndarray:
    """Return uint8 [n, h, w, c] of arrays in any of the accepted forms."""
    if images.ndim == 3:
        images = images[..., None]
    shape = images.shape
    valid = len(shape) == 4 and all(shape[1:]) and shape[-1] <= decoding.MAX_CHANNELS
    # Images of 1 to 4 rows and more channels are those of PyTorch, whose channels come first.
    if not valid or (shape[-1] > 4 >= shape[1]):
        raise UserError(
            f"{name} has the shape {list(shape)}; expected images [n, h, w, c] with 1 to "
            f"{decoding.MAX_CHANNELS} channels last"
        )
    try:
        return decoding.to_8_bits(images)
    except ValueError as error:
        raise UserError(f"{name} {error}") from error

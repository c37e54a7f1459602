"""Sizes of common data sets, so that a dry run need not open them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxssl.data import source


class Metadata(NamedTuple):
    """Image shape, number of examples and classes of a training split.

    Attributes:
        shape: [h, w, c] of an image. Images of many sizes are resized to it.
        num_examples: number of images.
        num_classes: number of classes.
        one_size: whether all images have that shape. If not, the host crops them.
    """

    shape: tuple[int, int, int]
    num_examples: int
    num_classes: int
    one_size: bool = True


COMMON = {
    "digits": Metadata((8, 8, 1), 1297, 10),
    "cifar10": Metadata((32, 32, 3), 50_000, 10),
    "cifar100": Metadata((32, 32, 3), 50_000, 100),
    "stl10": Metadata((96, 96, 3), 105_000, 10),  # labelled and unlabelled training images
    "fashion_mnist": Metadata((28, 28, 1), 60_000, 10),
    "imagenet100": Metadata((256, 256, 3), 126_689, 100, one_size=False),
    "imagenet2012": Metadata((256, 256, 3), 1_281_167, 1000, one_size=False),
}


def find_metadata(data: Mapping[str, Any], size: int) -> Metadata:
    """Look up the sizes of a training split, or read them from the data set.

    Args:
        data: the group `config.data`.
        size: side of a view in pixels. Images of many sizes are resized to it.

    Raises:
        UserError: if the data set cannot be opened.
    """
    if data["name"] in COMMON:
        return COMMON[data["name"]]
    train = source.load(data, data["train_split"])
    return Metadata(train.shape_at(size), len(train), train.num_classes, train.one_size)

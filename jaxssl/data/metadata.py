"""What is known of data sets before they are opened, for dry runs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxssl.data import source


class Facts(NamedTuple):
    """Of the training split that the recipes use.

    Attributes:
        shape: [h, w, c] of an image; of photographs of many sizes, what they are resized to.
        num_examples: how many images there are.
        num_classes: how many labels there are.
        one_size: whether all images have that shape; if not, the host crops them.
    """

    shape: tuple[int, int, int]
    num_examples: int
    num_classes: int
    one_size: bool = True


FACTS = {
    "digits": Facts((8, 8, 1), 1297, 10),
    "cifar10": Facts((32, 32, 3), 50_000, 10),
    "cifar100": Facts((32, 32, 3), 50_000, 100),
    "stl10": Facts((96, 96, 3), 105_000, 10),  # train and unlabelled
    "fashion_mnist": Facts((28, 28, 1), 60_000, 10),
    "imagenet100": Facts((256, 256, 3), 126_689, 100, one_size=False),
    "imagenet2012": Facts((256, 256, 3), 1_281_167, 1000, one_size=False),
}


def facts(data: Mapping[str, Any], size: int) -> Facts:
    """Sizes of a training split; of a set that is not listed here by opening it.

    Args:
        data: the group `config.data`.
        size: pixels a side of a view, which images of many sizes are cut to.

    Raises:
        UserError: if it cannot be opened.
    """
    if data["name"] in FACTS:
        return FACTS[data["name"]]
    train = source.load(data, data["train_split"])
    return Facts(train.shape_at(size), len(train), train.num_classes, train.one_size)

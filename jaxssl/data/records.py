"""A prepared split of a data set: its records, and what is made of one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxssl.data import decoding
from jaxssl.errors import UserError, one_line

UNLABELLED = -1
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A named split as it was prepared.

    Attributes:
        records: random access to dicts of features.
        image: the feature that is the picture: a file's bytes, or uint8 [h, w, c].
        label: the feature that is the label; None if there is none.
        channels: of the pictures.
        num_classes: the labels are below it.
        upright: whether pictures are turned as their EXIF data say.
        decode: makes an example of a record, where that is no picture.
        captions: makes a picture's tokens [k, length] int32 of a record; None if there are none.
        keep: beginning of the paths of arrays kept beside the records; None keeps none.
    """

    records: Sequence[Record]
    image: str = "image"
    label: str | None = "label"
    channels: int = 3
    num_classes: int = 2**31
    upright: bool = False
    keep: Path | None = None
    decode: Callable[[Record], Any] | None = None
    captions: Callable[[Record], np.ndarray] | None = None

    def get(self, places: Sequence[int]) -> list[Record]:
        """Some of the records; those of a file are read together."""
        places = [int(place) for place in places]
        try:
            if hasattr(self.records, "__getitems__"):
                return list(self.records.__getitems__(places))
            return [self.records[place] for place in places]
        except Exception as error:  # of many kinds, for a damaged file
            where = self.keep or "a data set"
            raise UserError(
                f"records of {where} cannot be read ({one_line(error)}); "
                "prepare or copy the set again"
            ) from error

    def label_of(self, record: Record) -> int:
        """The label, or `UNLABELLED`.

        Raises:
            UserError: if there is no such class.
        """
        if self.label is None:
            return UNLABELLED
        label = int(record[self.label])
        if not UNLABELLED <= label < self.num_classes:
            raise UserError(f"records of {self.keep} have the label {label} of {self.num_classes}")
        return label

    def example_of(self, record: Record) -> Any:
        """The decoded example: a picture as Pillow has it, or a graph."""
        if self.decode is not None:
            return self.decode(record)
        found = record[self.image]
        if isinstance(found, np.ndarray):
            return decoding.from_pixels(found)
        return decoding.open_picture(found, self.channels, upright=self.upright)


class Example(NamedTuple):
    """A decoded example: a Pillow image or a `graphs.Graph`, its label, its captions' tokens."""

    picture: Any
    label: int
    text: np.ndarray | None = None

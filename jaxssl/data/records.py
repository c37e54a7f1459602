"""Records of a prepared split, and their conversion to examples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from jaxssl.data.decoders import decoding, tokens
from jaxssl.data.decoders.arrays import BLOCK, load_or_compute
from jaxssl.errors import TransientError, UserError, is_transient, one_line

UNLABELLED = -1
CAPTION_FEATURES = ("captions", "caption")  # caption feature names in our data sets and in TFDS
CAPTIONS_PER_IMAGE = 5  # COCO's retrieval protocol uses five captions per image.

Record = Mapping[str, Any]


def find_feature(features: Any, kind: type, preferred: str) -> str | None:
    """Return the name of a feature of a kind: ``preferred``, else the first one, else None."""
    names = [name for name, feature in features.items() if isinstance(feature, kind)]
    return preferred if preferred in names else next(iter(names), None)


class Example(NamedTuple):
    """A decoded example: an image, clip or graph, with label and captions.

    Attributes:
        input: a Pillow image, a clip [t, h, w, c] or a `jaxssl.kinds.graph.Graph`.
        label: the label, or `UNLABELLED`.
        text: tokens of the image's captions [k, length] int32. None if they were not asked for.
    """

    input: Any
    label: int
    text: np.ndarray | None = None


class CaptionReader(NamedTuple):
    """Function that tokenizes the captions of a record.

    Attributes:
        feature: name of the feature that holds the captions.
        context: number of tokens of a caption.
    """

    feature: str
    context: int

    def __call__(self, record: Record) -> np.ndarray:
        """Tokenize a record's captions to int32 [`CAPTIONS_PER_IMAGE`, context]."""
        captions = record[self.feature]
        if isinstance(captions, Mapping):  # In COCO each caption is stored with an id.
            captions = captions["text"]
        if isinstance(captions, str | bytes):
            captions = [captions]
        try:
            texts = [x.decode() if isinstance(x, bytes) else str(x) for x in captions]
        except UnicodeDecodeError as error:
            raise UserError(
                f"a caption of the data set is not UTF-8 ({error}); prepare the set from UTF-8 text"
            ) from error
        if not texts:
            raise UserError("an image of the data set has no caption; remove the image")
        chosen = [texts[i % len(texts)] for i in range(CAPTIONS_PER_IMAGE)]
        return tokens.tokenize(chosen, self.context)


class PictureReader(NamedTuple):
    """Function that decodes the image of a record.

    Attributes:
        feature: name of the image feature, either the bytes of a file or uint8 [h, w, c].
        channels: number of channels of the images.
        upright: whether images are rotated as their EXIF orientation says.
    """

    feature: str = "image"
    channels: int = 3
    upright: bool = False

    def __call__(self, record: Record) -> decoding.Picture:
        """Decode the image of a record."""
        image = record[self.feature]
        if isinstance(image, np.ndarray):
            return decoding.from_pixels(image)
        return decoding.open_picture(image, self.channels, upright=self.upright)


@dataclass(frozen=True)
class PreparedSplit:
    """One prepared split of a data set, with the functions that decode its records.

    Attributes:
        records: random access to dicts of features.
        decode: converts a record to the input: a picture, a clip or a graph.
        label: name of the label feature. None if the set has no labels.
        num_classes: number of classes. Labels are below it. The default allows every int32 label.
        path: prefix of the paths of cached arrays. None disables the cache.
        captions: returns the tokens of a record's captions. None if the set has no captions.
        labels: the label of every record, if they are known without reading the records.
        streamed: whether records are only read when they are needed, and never all in advance.
        light: the records, decoded only as far as labels need it. None if that saves nothing.
    """

    records: Sequence[Record]
    decode: Callable[[Record], Any] = PictureReader()
    label: str | None = "label"
    num_classes: int = 2**31
    path: Path | None = None
    captions: CaptionReader | None = None
    labels: np.ndarray | None = None
    streamed: bool = False
    light: Sequence[Record] | None = None

    def read_records(self, indices: Iterable[int] | np.ndarray) -> list[Record]:
        """Read records of a prepared split by index, one file after the other."""
        indices = [int(index) for index in indices]
        read_many = getattr(self.records, "__getitems__", None)
        try:
            return list(read_many(indices)) if read_many else [self.records[i] for i in indices]
        except UserError:
            raise
        except Exception as error:  # A damaged file raises many exception types.
            fault = TransientError if is_transient(error) else UserError
            raise fault(
                f"records of {self.path or 'a data set'} cannot be read ({one_line(error)}); "
                "prepare or copy the set again"
            ) from error

    def iter_records(self, indices: np.ndarray) -> Iterator[Record]:
        """Iterate over the records at ``indices``, which are read in blocks."""
        for start in range(0, len(indices), BLOCK):
            yield from self.read_records(indices[start : start + BLOCK])

    def cache(
        self, name: str, shape: tuple[int, ...], dtype: type, compute: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Return an array [n, *shape] with a row per record, from the cache file if possible."""
        if self.path is None:
            return compute()
        path = self.path.with_name(f"decoded-{self.path.name}-{name}.npy")
        return load_or_compute(path, (len(self.records), *shape), dtype, compute)

    def all_labels(self) -> np.ndarray:
        """Return the labels of all records, int32 [n], from the cache if possible."""
        if self.labels is not None:
            return self.labels

        def read() -> np.ndarray:
            part = self if self.light is None else replace(self, records=self.light)
            records = part.iter_records(np.arange(len(self.records)))
            return np.array([self.label_of(record) for record in records], np.int32)

        return self.cache("labels", (), np.int32, read)

    def label_of(self, record: Record) -> int:
        """Return the label of a record, or `UNLABELLED` (-1).

        Raises:
            UserError: if the label is missing, or not below `num_classes`.
        """
        if self.label is None:
            return UNLABELLED
        value = record.get(self.label)
        try:
            if UNLABELLED <= (label := int(cast(Any, value))) < self.num_classes:
                return label
        except (TypeError, ValueError):
            pass  # The value is not a number.
        raise UserError(
            f"a record of {self.path} has the label {value!s:.80}, expected a label below "
            f"{self.num_classes}; prepare or copy the set again"
        )

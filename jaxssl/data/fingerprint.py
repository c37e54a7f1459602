"""Fingerprint of a split, by which a run checks that it resumes with the same training data."""

import hashlib
from collections.abc import Mapping

import numpy as np

from jaxssl.data.decoders import files
from jaxssl.data.decoders.arrays import RECORD_FILES
from jaxssl.data.decoders.decoding import PNG_SIGNATURE
from jaxssl.data.records import PictureReader, PreparedSplit, Record
from jaxssl.data.splits import Source
from jaxssl.errors import UserError, one_line

# Evenly spaced records are hashed: `FEWEST` to `MOST`, in between as many as fill `MOST_BYTES`.
MOST_BYTES = 2**25
FEWEST, MOST = 64, 1024
# Results of this process by indices, reader, and names, sizes and times of the files. A run hashes
# the same splits several times.
_known: dict[tuple[object, ...], str] = {}


def fingerprint(source: Source) -> str:
    """Hash the number and order of the examples, the classes, and the content of some examples.

    All examples are read if they are small and no more than `MOST`. PNG files are compared by the
    pixels that training sees, because a set that is prepared again may be compressed in another
    way.

    Raises:
        UserError: if a record cannot be read or decoded.
    """
    description = [source.kind, source.class_names, source.shape, len(source), source.relabel]
    chosen = hashlib.sha256(_content([description, *(i for _, i in source.parts)])).digest()
    origins = [
        (part.decode, str(part.path), files.fingerprint(part.path.parent, RECORD_FILES))
        for part, _ in source.parts
        if part.path and isinstance(part.decode, PictureReader)
    ]
    if len(origins) < len(source.parts):  # The records of a part are in no known files.
        return _hash(source, description)
    key = chosen, *origins
    if key not in _known:
        _known[key] = _hash(source, description)
    return _known[key]


def _hash(source: Source, description: list[object]) -> str:
    digest = hashlib.sha256(_content(description))
    for part, indices in source.parts:
        digest.update(_content(indices.astype(np.int64)))
        if not len(indices):
            continue
        num_bytes = len(_record_content(part, part.read_records(indices[:1])[0]))
        count = min(len(indices), MOST, max(FEWEST, MOST_BYTES // num_bytes))
        chosen = indices[np.linspace(0, len(indices) - 1, count).astype(np.int64)]
        for record in part.iter_records(chosen):
            digest.update(_record_content(part, record))
    return digest.hexdigest()


def _record_content(part: PreparedSplit, record: Record) -> bytes:
    """Return a record's content as bytes to be hashed, where the pixels replace a PNG file."""
    feature = getattr(part.decode, "feature", "")
    image = record.get(feature)
    if isinstance(image, bytes) and image.startswith(PNG_SIGNATURE):
        try:
            record = {**record, feature: np.asarray(part.decode(record))}
        except Exception as error:  # Pillow's decoders raise many exception types.
            raise UserError(
                f"a picture of {part.path or 'a data set'} cannot be decoded ({one_line(error)}); "
                "prepare or copy the set again"
            ) from error
    return _content(record)


def _content(value: object) -> bytes:
    """Return bytes by which values of different contents differ, the same in each process."""
    if isinstance(value, Mapping):
        value = [item for name in sorted(value) for item in (name, value[name])]
    if isinstance(value, list | tuple):
        return b"%d:" % len(value) + b"".join(_content(item) for item in value)
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return b"%d:" % len(text) + text
    if value is None:
        return b"none"
    array = np.asarray(value)
    if array.dtype == object:  # The bytes of such an array are memory addresses.
        return _content(array.tolist() if array.ndim else repr(value))
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()

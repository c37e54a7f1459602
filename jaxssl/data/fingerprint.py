"""Fingerprint of a split: it tells whether the data are still the ones that a run started with."""

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from jaxssl.data.lazy_array import BLOCK
from jaxssl.data.source import Source

# Records that are read: evenly spaced ones, as many as this number of bytes has room for.
MOST_BYTES = 2**25
FEWEST, MOST = 64, 1024
PNG = b"\x89PNG"


def fingerprint(source: Source) -> str:
    """Hash the number and order of the examples, the classes, and the content of some examples.

    All examples are read if there are at most `MOST` and they are small. PNG files are compared by
    their pixels, because a set that is prepared again may be compressed in another way.

    Raises:
        UserError: if a record cannot be read.
    """
    digest = hashlib.sha256()
    about = [source.kind, source.class_names, source.shape, len(source), source.relabel]
    digest.update(_content(about))
    for part, indices in source.parts:
        digest.update(_content(indices.astype(np.int64)))
        if not len(indices):
            continue
        first = len(_content(part.read_records(indices[:1])[0]))
        count = min(len(indices), MOST, max(FEWEST, MOST_BYTES // first))
        chosen = indices[np.linspace(0, len(indices) - 1, count).astype(np.int64)]
        for start in range(0, count, BLOCK):
            for record in part.read_records(chosen[start : start + BLOCK]):
                digest.update(_content(record))
    return digest.hexdigest()


def _content(value: Any) -> bytes:
    """Return bytes that tell values of different contents apart."""
    if isinstance(value, Mapping):
        value = [item for name in sorted(value) for item in (name, value[name])]
    if isinstance(value, list | tuple):
        parts = [_content(item) for item in value]
        return b"%d:" % len(parts) + b"".join(parts)
    if isinstance(value, bytes) and value.startswith(PNG):
        with Image.open(io.BytesIO(value)) as image:
            return _content(np.asarray(image))
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return b"%d:" % len(text) + text
    if value is None:
        return b"none"
    array = np.asarray(value)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()

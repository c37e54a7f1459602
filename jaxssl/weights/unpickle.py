"""Pickles read without running anything that they name.

A pickle is a program. Of the functions that it may call, only PyTorch's rebuilding of tensors is
known here, and that makes plain descriptions; any other name is a placeholder that does nothing.
"""

import io
import pickle
import pickletools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
    "ComplexFloatStorage": np.complex64,
    "ComplexDoubleStorage": np.complex128,
    "UntypedStorage": np.uint8,
}
DTYPES = {"uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64}
MAX_AXES = 16
EXPANDED = 1 << 20  # numbers that a tensor may have beyond those stored, by a stride of 0


class Storage(NamedTuple):
    """Where a tensor's numbers lie.

    Attributes:
        key: of the storage in its file.
        dtype: of the numbers.
        first: number of the storage at which this part of it starts.
        count: numbers of this part.
    """

    key: str
    dtype: np.dtype
    first: int
    count: int


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count numbers, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Inert:
    """Whatever a pickle names that is not known here: it takes everything and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Inert":
        """An empty one."""
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is kept."""

    def __setstate__(self, state: Any) -> None:
        """Nothing is kept."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Nothing is kept."""

    def __call__(self, *args: Any, **kwargs: Any) -> "Inert":
        """Nothing is done."""
        return Inert()

    def append(self, item: Any) -> None:
        """Nothing is kept."""

    extend = add = append


class Dict(dict):
    """In place of an OrderedDict; ``state`` holds the attributes that were set on it."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keeps the attributes apart, so that none can hide a method."""
        self.state = state


class _Known:
    """A function or type of PyTorch that is stood for by ours."""

    __slots__ = ("call", "dtype")

    def __init__(self, call: Callable[..., Any] | None = None, dtype: Any = None) -> None:
        self.call, self.dtype = call, None if dtype is None else np.dtype(dtype)

    def __call__(self, *args: Any) -> Any:
        return Inert() if self.call is None else self.call(*args)

    def __setstate__(self, state: Any) -> None:
        """A pickle cannot change it."""


def check(file: BinaryIO) -> bytes:
    """Read one pickle, up to its end, and nothing behind it.

    Raises:
        ValueError: if it is cut off, or its memo is numbered so that it would fill the memory.
    """
    start = file.tell()
    with warnings.catch_warnings(action="ignore"):  # of odd escapes in strings
        for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > number:
                raise ValueError(f"memo entry {argument} at instruction {number}")
    end = file.tell()
    file.seek(start)
    return file.read(end - start)


def load(text: bytes) -> tuple[Any, dict[str, np.dtype]]:
    """What a checked pickle holds: dicts, lists, numbers, strings, `Tensor` and `Inert`.

    Returns:
        It, and the type of each storage by its key.

    Raises:
        Exception: of many kinds, if it is damaged.
    """
    unpickler = _Unpickler(io.BytesIO(text), encoding="latin-1")  # which Python 2's strings need
    with warnings.catch_warnings(action="ignore"):
        return unpickler.load(), unpickler.storages


class _Unpickler(pickle.Unpickler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.storages: dict[str, np.dtype] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Never imports: a fresh stand-in of each known name, `Inert` for all others."""
        if (module, name) == ("collections", "OrderedDict"):
            return Dict
        if module in ("torch", "torch.storage") and name in STORAGES:
            return _Known(dtype=STORAGES[name])
        if module == "torch" and name in DTYPES:
            return _Known(dtype=DTYPES[name])
        if module in ("torch._utils", "torch._tensor") and name in REBUILD:
            return _Known(REBUILD[name])
        return Inert

    def persistent_load(self, pid: Any) -> Any:
        """A storage; its numbers are read later, if they are wanted."""
        kind, storage, key, _, count, *view = pid
        dtype = getattr(storage, "dtype", None)
        if kind != "storage" or dtype is None:
            return Inert()
        if not isinstance(key, str) or not _natural(count):
            raise ValueError(f"a storage of key {key!r:.40} and size {count!r:.40}")
        self.storages[key] = dtype
        first = 0
        if view and view[0] is not None:
            _, first, count = view[0]
            if not (_natural(first) and _natural(count)):
                raise ValueError("a part of a storage that is none")
        return Storage(key, dtype, first, count)


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
    if not isinstance(storage, Storage):
        return Inert()
    shape, strides = tuple(shape), tuple(strides)
    fits = len(shape) == len(strides) <= MAX_AXES
    if not fits or not all(map(_natural, (offset, *shape, *strides))):
        raise ValueError(f"a tensor of shape {shape!r:.60} and strides {strides!r:.60}")
    size, last = 1, offset
    for length, stride in zip(shape, strides, strict=True):
        size *= length
        last += (length - 1) * stride
    if size and last >= storage.count:
        raise ValueError(f"a tensor of shape {shape!r:.60} goes beyond its storage")
    if size > storage.count + EXPANDED:
        raise ValueError(f"a tensor of {size} numbers, of which {storage.count} are stored")
    return Tensor(storage, offset, shape, strides)


def _rebuild_tensor_of(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    gradient: Any,
    hooks: Any,
    dtype: Any,
    *_: Any,
) -> Any:
    """`_rebuild_tensor` of a storage that has no type of its own."""
    if not isinstance(storage, Storage) or not isinstance(dtype, _Known) or dtype.dtype is None:
        return Inert()
    size = dtype.dtype.itemsize
    typed = Storage(storage.key, dtype.dtype, storage.first // size, storage.count // size)
    return _rebuild_tensor(typed, offset, shape, strides)


def _rebuild_parameter(tensor: Any = None, *_: Any) -> Any:
    return tensor


def _rebuild_of_type(rebuild: Any, kind: Any, args: Any, *_: Any) -> Any:
    """A tensor with attributes, or of a class of its own."""
    return rebuild(*args) if isinstance(rebuild, _Known) else Inert()


REBUILD: Mapping[str, Callable[..., Any]] = {
    "_rebuild_tensor": _rebuild_tensor,
    "_rebuild_tensor_v2": _rebuild_tensor,
    "_rebuild_tensor_v3": _rebuild_tensor_of,
    "_rebuild_parameter": _rebuild_parameter,
    "_rebuild_parameter_with_state": _rebuild_parameter,
    "_rebuild_from_type_v2": _rebuild_of_type,
}


def _natural(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 62

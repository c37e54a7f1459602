"""Read PyTorch's pickles without running the code that they name.

A pickle is a program. Calls of PyTorch's functions that rebuild tensors return descriptions of the
tensors. Names that PyTorch's format does not know become placeholders that do nothing. Sets become
placeholders too, and dicts leave out keys that are neither text nor numbers: a short pickle can
hold a tuple that contains another tuple twice, which contains a third one twice, and so on, and its
hash would take forever.
"""

import mmap
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NamedTuple

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
MAX_EXPANSION = 1 << 20  # how many more numbers than its storage a tensor may have


class Storage(NamedTuple):
    """A storage of numbers in a PyTorch file, or a contiguous part of a storage.

    Attributes:
        key: name of the storage in its file.
        dtype: type of its numbers.
        first: index of the part's first number in the storage.
        size: numbers in the part.
    """

    key: str
    dtype: np.dtype
    first: int
    size: int


class Tensor(NamedTuple):
    """A view of a PyTorch storage. Offset and strides count numbers, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Inert:
    """Placeholder for an unknown class or function in a pickle, which does nothing."""

    def __new__(cls, *_: object, **__: object) -> "Inert":
        """Create a placeholder. ``cls`` is one too if a call in the pickle returned the class."""
        return object.__new__(Inert)

    def __call__(self, *_: object, **__: object) -> "Inert":
        """Return another placeholder for the result of a call."""
        return Inert()

    def __init__(self, *_: object, **__: object) -> None:
        """Ignore the arguments, and all attributes and items that the pickle sets."""

    __setstate__ = __setitem__ = append = extend = add = __init__


class Dict(dict):
    """Dict with text or numbers as keys. ``state`` holds the attributes that the pickle sets."""

    state: object = None

    def __init__(self, items: Iterable[tuple[object, object]] = ()) -> None:
        """Create the dict from items, which pickles of Python 2 pass as a constructor argument."""
        super().__init__()
        for key, value in items:
            self[key] = value

    def __setitem__(self, key: object, value: object) -> None:
        """Set an item, but ignore keys that are neither text nor numbers."""
        if type(key) in (str, bytes, int, float):
            super().__setitem__(key, value)

    def __setstate__(self, state: object) -> None:
        """Store attributes that the pickle sets in ``state``, where they cannot replace methods."""
        self.state = state


class _TorchName(NamedTuple):
    """Replacement for a supported function or type of PyTorch."""

    call: Callable[..., object] = Inert
    dtype: np.dtype | None = None

    def __call__(self, *args: object) -> object:
        return self.call(*args)

    def __setstate__(self, state: object) -> None:
        """Ignore attributes: a pickle must not change the replacement of a PyTorch function."""


def load(file: IO[bytes] | mmap.mmap) -> tuple[Any, dict[str, np.dtype]]:
    """Load the next pickle of a file, and return the object with the dtypes of its storages.

    Returns:
        The object, made of dicts, lists, numbers, strings, `Tensor` and `Inert`, and the type of
        each storage by its key.

    Raises:
        Exception: of any type, if the pickle is damaged.
    """
    unpickler = _Unpickler(file)
    # Python warns of invalid escapes in strings of the pickle.
    with warnings.catch_warnings(action="ignore"):
        return unpickler.load(), unpickler.storages


# Type checkers do not know the methods of this class of the standard library.
_PythonUnpickler: Any = pickle._Unpickler


class _Unpickler(_PythonUnpickler):
    """Pickle's unpickler in pure Python: its instructions can be replaced, its memo is a dict."""

    def __init__(self, file: IO[bytes] | mmap.mmap) -> None:
        super().__init__(file, encoding="latin-1")  # decodes strings that Python 2 pickled
        self.storages: dict[str, np.dtype] = {}

    def find_class(self, module: str, name: str) -> object:
        """Return a replacement for a class named in a pickle, without importing anything."""
        if (module, name) == ("collections", "OrderedDict"):
            return Dict
        if module in ("torch", "torch.storage") and name in STORAGES:
            return _TorchName(dtype=np.dtype(STORAGES[name]))
        if module == "torch" and name in DTYPES:
            return _TorchName(dtype=np.dtype(DTYPES[name]))
        if module in ("torch._utils", "torch._tensor") and name in REBUILD:
            return _TorchName(REBUILD[name])
        return Inert

    def persistent_load(self, pid: tuple) -> object:
        """Return the storage that a pickle names, without reading the numbers.

        Files before version 1.6 name the class of a module in the same way.
        """
        if pid[0] != "storage":
            return Inert
        _, storage, key, _, count, *view = pid
        dtype = getattr(storage, "dtype", None)
        if dtype is None:
            return Inert()
        if not isinstance(key, str) or not _natural(count):
            raise ValueError(f"a storage has the invalid key {_brief(key)} or size {_brief(count)}")
        self.storages[key] = dtype
        first = 0
        if view and view[0] is not None:
            _, first, count = view[0]
            if not (_natural(first) and _natural(count)):
                raise ValueError("a tensor has an invalid offset or size in its storage")
        return Storage(key, dtype, first, count)

    def load_empty_dict(self) -> None:
        self.append(Dict())

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append(Dict(zip(items[::2], items[1::2], strict=True)))

    def load_empty_set(self) -> None:
        self.append(Inert())

    def load_frozenset(self) -> None:
        self.pop_mark()
        self.append(Inert())

    def load_bytearray8(self) -> None:
        # An array of bytes would take as much memory as the pickle claims.
        raise ValueError("the pickle has an array of bytes, which torch.save does not write")

    dispatch = _PythonUnpickler.dispatch | {
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.DICT[0]: load_dict,
        pickle.EMPTY_SET[0]: load_empty_set,
        pickle.FROZENSET[0]: load_frozenset,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


def _rebuild_tensor(
    storage: object, offset: int, shape: Iterable[int], strides: Iterable[int], *_: object
) -> object:
    if not isinstance(storage, Storage):
        return Inert()
    shape, strides = tuple(shape), tuple(strides)
    fits = len(shape) == len(strides) <= MAX_AXES
    if not fits or not all(map(_natural, (offset, *shape, *strides))):
        texts = [", ".join(map(_brief, x[:4])) for x in (shape, strides)]
        raise ValueError(f"a tensor has the invalid shape [{texts[0]}] or strides [{texts[1]}]")
    size, last = 1, offset
    for length, stride in zip(shape, strides, strict=True):
        size *= length
        last += (length - 1) * stride
    if size and last >= storage.size:
        raise ValueError(f"a tensor of shape {list(shape)} goes beyond its storage")
    if size > storage.size + MAX_EXPANSION:
        raise ValueError(f"a tensor has {size} numbers, but its storage has {storage.size}")
    return Tensor(storage, offset, shape, strides)


def _rebuild_typed_tensor(storage: object, *args: Any) -> object:
    """Rebuild a tensor from an untyped storage and a dtype."""
    offset, shape, strides, _, _, dtype, *_ = args
    if not isinstance(storage, Storage) or not isinstance(dtype, _TorchName) or dtype.dtype is None:
        return Inert()
    size = dtype.dtype.itemsize
    typed = Storage(storage.key, dtype.dtype, storage.first // size, storage.size // size)
    return _rebuild_tensor(typed, offset, shape, strides)


def _rebuild_parameter(tensor: object, *_: object) -> object:
    return tensor


def _rebuild_subclass(rebuild: object, _: object, args: Iterable[object], *__: object) -> object:
    """Rebuild a tensor of a subclass, or with attributes."""
    return rebuild(*args) if isinstance(rebuild, _TorchName) else Inert()


REBUILD: Mapping[str, Callable[..., object]] = {
    "_rebuild_tensor": _rebuild_tensor,
    "_rebuild_tensor_v2": _rebuild_tensor,
    "_rebuild_tensor_v3": _rebuild_typed_tensor,
    "_rebuild_parameter": _rebuild_parameter,
    "_rebuild_parameter_with_state": _rebuild_parameter,
    "_rebuild_from_type_v2": _rebuild_subclass,
}


def _natural(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 62


def _brief(value: object) -> str:
    """Return a number or string as text, and only the type of anything else."""
    return f"{value!r:.40}" if type(value) in (int, str) else type(value).__name__

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
MAX_ITEMS = 10_000  # of a tuple, those of tuples in it counted
FILLING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")
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
        ValueError: if it is cut off, its memo is numbered so that it would fill the memory, or its
            tuples are nested so that a hash of one would take for ever or exhaust the stack.
    """
    start, sizes = file.tell(), _Sizes()
    with warnings.catch_warnings(action="ignore"):  # of odd escapes in strings
        for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > number:
                raise ValueError(f"memo entry {argument} at instruction {number}")
            sizes.step(opcode, argument)
    end = file.tell()
    file.seek(start)
    return file.read(end - start)


class _Sizes:
    """The stack of a pickle's machine, of each value only how many items its hash looks at.

    A tuple may hold another one twice, that one a third twice, and so on: short to write down,
    endless to hash, as Python does with the keys of a dict.
    """

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, int] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """One instruction."""
        stack, name = self.stack, opcode.name
        if name == "MARK":
            self.marks.append(len(stack))
        elif name == "POP" and self.marks and self.marks[-1] == len(stack):
            self.marks.pop()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        else:
            self._other(opcode)

    def _other(self, opcode: pickletools.OpcodeInfo) -> None:
        before, stack, taken = opcode.stack_before, self.stack, []
        count = len(before)
        if pickletools.markobject in before:
            count, height = before.index(pickletools.markobject), self.marks.pop()
            taken = stack[height:]
            del stack[height:]
        taken = stack[len(stack) - count :] + taken
        del stack[len(stack) - count :]
        if not opcode.stack_after:
            return
        if opcode.name in FILLING:
            size = taken[0]
        else:
            size = 1 if opcode.name in ("LIST", "DICT") else 1 + sum(taken)  # those have no hash
        if size > MAX_ITEMS:
            raise ValueError(f"a tuple of more than {MAX_ITEMS} items, those of inner ones counted")
        stack.append(size)


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
            raise ValueError(f"a storage of key {_shown(key)} and size {_shown(count)}")
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
        said = [", ".join(map(_shown, x[:4])) for x in (shape, strides)]
        raise ValueError(f"a tensor of shape [{said[0]}] and strides [{said[1]}]")
    size, last = 1, offset
    for length, stride in zip(shape, strides, strict=True):
        size *= length
        last += (length - 1) * stride
    if size and last >= storage.count:
        raise ValueError(f"a tensor of shape {list(shape)} goes beyond its storage")
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
    # `_Sizes` counts what a tuple holds, but not what a list does.
    return rebuild(*args) if isinstance(rebuild, _Known) and type(args) is tuple else Inert()


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


def _shown(value: Any) -> str:
    """A number or a string; of anything else only its type, as its text may be endless."""
    return f"{value!r:.40}" if type(value) in (int, str) else type(value).__name__

"""Name Python objects of users, so that runs with other code or values are distinguished."""

import dataclasses
import functools
import hashlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, NoneType
from typing import Any

from jaxssl import components

DIGITS = 8  # of a digest
# Values that describe a class without source code, with its functions.
PLAIN = (int, float, complex, str, bytes, tuple, list, Mapping, set, frozenset, NoneType)


def register(group: str, value: Any) -> str:
    """Register a Python object as a component of a group, and return its name.

    The name ends in a digest of the object's source code, its settings and the values that they
    use, so that another object of the same class, or the same one after a change, has another name.

    Args:
        group: a key of `components.GROUPS`.
        value: a factory of the group, or a component.
    """
    digest = hashlib.sha256(describe(value).encode()).hexdigest()[:DIGITS]
    return components.register(group, value, digest)


def describe(value: Any, outer: tuple[int, ...] = (), seen: dict[int, Any] | None = None) -> str:
    """Return a text that differs for objects of different code, settings or captured values.

    Code of the user is followed to the global values, functions and classes that it names. Objects
    of packages are described by their repr, without addresses, which differ by process.

    Args:
        value: the object.
        outer: ids of the containers around it, because a container may hold itself.
        seen: functions and classes that have been described, by id. They may refer to each other.
    """
    seen = {} if seen is None else seen
    if id(value) in outer:
        return ""
    inside = functools.partial(describe, outer=(*outer, id(value)), seen=seen)
    if isinstance(value, functools.partial):
        return inside((value.func, value.args, value.keywords))
    if inspect.ismethod(value):
        return inside((value.__func__, value.__self__))
    if isinstance(value, Mapping):
        return inside(tuple(value.items()))
    value = _in_order(value)
    if isinstance(value, tuple | list):  # such as (init, apply), or an `Objective`
        return f"({', '.join(map(inside, value))})"
    if hasattr(value, "tobytes") and hasattr(value, "shape") and not isinstance(value, type):
        if value.dtype == object:  # The bytes would be memory addresses.
            return inside(value.tolist())
        return f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if inspect.isfunction(value) or isinstance(value, type):
        if id(value) in seen:
            return value.__qualname__
        seen[id(value)] = value
        if inspect.isfunction(value):
            values = value.__defaults__, value.__kwdefaults__, _references(value)
            return f"{_source(value, inside)} {inside(values)}"
        if not _is_own(value):
            return f"{value.__module__}.{value.__qualname__}"
        refer = (value.__bases__, *map(_references, _methods(value)))
        attributes = _attributes(value)
        return f"{_source(value, inside)} {inside(refer)}{inside(attributes) if attributes else ''}"
    if callable(getattr(value, "__wrapped__", None)):  # such as `jax.jit` or `jax.custom_vjp` gives
        rules = [getattr(value, name, None) for name in ("fwd", "bwd", "jvp")]
        return f"{type(value).__name__} {inside((value.__wrapped__, rules))}"
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != "parent"]
        return inside((type(value), *((name, getattr(value, name, None)) for name in names)))
    own = (type(value), _instance_values(value)) if _is_own(type(value)) else ()
    if own and type(value).__repr__ is object.__repr__:  # which tells no settings
        return inside(own)
    return f"{re.sub(r' at 0x[0-9a-fA-F]+', '', repr(value))} {inside(own) if own else ''}"


def _methods(owner: type) -> list[Any]:
    """Return the functions of a class, those of its properties among them."""
    members = vars(owner).values()
    inner = [getattr(x, "fget", None) or getattr(x, "func", None) or x for x in members]
    functions = filter(inspect.isfunction, map(inspect.unwrap, inner))
    return [x for x in functions if x.__module__ == owner.__module__]


def _attributes(owner: type) -> dict[str, Any]:
    """Return the values of a class that own code of it or its bases names, except the fields."""
    methods = itertools.chain(*(_methods(base) for base in owner.__mro__ if _is_own(base)))
    used = set(itertools.chain(*(_names(method.__code__) for method in methods)))
    used -= getattr(owner, "__dataclass_fields__", {}).keys()  # which instances describe
    values = _select(vars(owner), sorted(used))
    return {name: x for name, x in values.items() if not hasattr(type(x), "__get__")}


def _instance_values(value: Any) -> dict[str, Any]:
    """Return the values of an instance, in its `__dict__` and in slots."""
    members = itertools.chain(*(vars(base).items() for base in type(value).__mro__))
    slots = [name for name, x in members if inspect.ismemberdescriptor(x) and hasattr(value, name)]
    return getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in slots}


def _references(function: Any) -> dict[str, Any]:
    """Return the values that a function has captured, and the global ones that own code names."""
    values = dict(inspect.getclosurevars(function).nonlocals)
    names = _names(function.__code__) if _is_own(function) else []
    for name, value in _select(function.__globals__, names).items():
        if inspect.ismodule(value) and _is_own_module(value.__name__):
            values[name] = _of_module(value, names, {value})
        elif _is_own(value) or not _is_code(value):
            values[name] = value
    return values


def _is_code(value: Any) -> bool:
    """Return True for a module, function or class, and False for settings, such as a partial."""
    is_settings = isinstance(value, functools.partial) or dataclasses.is_dataclass(value)
    return inspect.ismodule(value) or (callable(value) and not is_settings)


def _of_module(module: ModuleType, names: Sequence[str], seen: set[ModuleType]) -> dict[str, Any]:
    """Return the values of a module, and of own modules inside it, that code names."""
    values = _select(vars(module), names)
    for name, value in values.items():
        if inspect.ismodule(value) and _is_own_module(value.__name__):
            inside = {} if value in seen else _of_module(value, names, seen | {value})
            values[name] = inside
    return values


def _select(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _names(code: CodeType) -> list[str]:
    """Return the names in compiled code and in the functions inside it."""
    inside = (x for x in code.co_consts if inspect.iscode(x))
    return list(dict.fromkeys([*code.co_names, *itertools.chain(*map(_names, inside))]))


def _is_own(value: Any) -> bool:
    """Return True for a function or class that is not of an installed package."""
    name = getattr(value, "__module__", None)
    return isinstance(name, str) and _is_own_module(name)


def _is_own_module(name: str) -> bool:
    top = name.partition(".")[0]
    if top == "jaxssl" or top in sys.stdlib_module_names:
        return False
    file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    return not {"site-packages", "dist-packages"} & set(file.parts)


def _source(value: Any, inside: Callable[[Any], str]) -> str:
    """Return the source code of a function or class, or describe its parts if it has no source."""
    try:
        source = inspect.getsource(value)
        return source + (_compiled(value.__code__) if value.__name__ == "<lambda>" else "")
    except (OSError, TypeError):  # Of a class of a notebook, only the functions have a source.
        if hasattr(value, "__code__"):
            return _compiled(value.__code__)
        members = vars(value).items() if isinstance(value, type) else ()
        kept = [(n, x) for n, x in members if isinstance(x, PLAIN) or inspect.isfunction(x)]
        return inside([member for member in kept if member[0] != "__module__"])


def _compiled(code: CodeType) -> str:
    """Describe compiled code without addresses."""
    constants = [_compiled(x) if inspect.iscode(x) else repr(_in_order(x)) for x in code.co_consts]
    return f"{code.co_names} {constants} {code.co_code.hex()}"


def _in_order(value: Any) -> Any:
    """Return the members of a set in an order that does not differ by process."""
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else value

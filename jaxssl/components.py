"""Look up configs and components (losses, networks, protocols and others) by name.

A component is a public file of its group's folder that defines the group's factory. A new file is a
new component without registration. Other files of the folder are not components, and files whose
names begin with an underscore are private to the folder.

Users add components of their own without changing the package. "path/to/file.py:factory" names a
function of a file, and `register` gives a name to a Python object.
"""

import ast
import errno
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jaxssl.errors import UserError, one_line, suggest

Settings = Mapping[str, Any]  # values by name, as in a group of a config


class Group(NamedTuple):
    """A kind of component, such as losses: the package of its files, and the name each defines.

    Attributes:
        package: folder of the components, as a dotted name.
        factory: name that a file defines if it is a component.
    """

    package: str
    factory: str


GROUPS = {
    "net": Group("jaxssl.models", "net"),
    "text": Group("jaxssl.models", "net"),
    "head": Group("jaxssl.models.heads", "head"),
    "predictor": Group("jaxssl.models.heads", "predictor"),
    "loss": Group("jaxssl.losses", "objective"),
    "method": Group("jaxssl.methods", "method"),
    "augment": Group("jaxssl.augment.recipes", "recipe"),
    "kind": Group("jaxssl.kinds", "kind"),
    "data": Group("jaxssl.data.formats", "builder"),
    "toy": Group("jaxssl.data.toy", "Builder"),
    "protocol": Group("jaxssl.evaluation.protocols", "protocol"),
    "log": Group("jaxssl.training.output.loggers", "logger"),
    "study": Group("jaxssl.studies", "run"),
}


class _Registered(NamedTuple):
    """A Python object that a user has registered, with a number that no other object has."""

    value: Any
    number: int


PACKAGE = Path(__file__).parent
# The configs of the package. In a source checkout it is a link to the folder of the same name.
CONFIGS = PACKAGE / "configs"
FROM_PYTHON = "python:"
IN_FILE = re.compile(r"(.+\.py)(:[A-Za-z_]\w*(:.+)?)")  # with a preset for a protocol
# The line of a key in the config `base`, or of a group, and its comment.
_COMMENT = re.compile(r"^    config\.([\w.]+) = (?:\(\n\s+)?[^#\n]*# (.*)$", re.MULTILINE)
DIGITS = 16  # hexadecimal digits of a digest
MOST_BYTES = 2**24  # size limit of the file of a user's component
_REGISTERED: dict[tuple[str, str], _Registered] = {}
_NUMBERS = itertools.count()
_PINNED: list[dict[Path, bytes]] = []  # contents of users' files, while `pinned` is active


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """Return the sorted names of a group's components (such as "loss") without importing them."""
    factory = GROUPS[group].factory
    definition = re.compile(rf"^((def|class) {factory}\(|{factory}(: .*)? = )", re.MULTILINE)
    public = sorted(file(group, "").parent.glob("[!_]*.py"))
    return tuple(p.stem for p in public if definition.search(p.read_text(encoding="utf-8")))


def file(group: str, name: str) -> Path:
    """Return the path of a component's Python file."""
    return PACKAGE.joinpath(*GROUPS[group].package.split(".")[1:], f"{name}.py")


def summary(path: Path) -> str:
    """Return the first line of a Python file's docstring, without importing the file."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def packaged(noun: str = "config") -> dict[str, Path]:
    """Return the files of the packaged configs by name, such as "graphs/necklaces".

    With ``noun="suite"``, return the files of the suites.
    """
    suites = CONFIGS / "suites"
    if noun == "suite":
        return {path.stem: path for path in sorted(suites.glob("*.py"))}
    files = [path for path in sorted(CONFIGS.glob("**/*.py")) if suites not in path.parents]
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def variants(path: Path) -> dict[str, str]:
    """Return the variants of a packaged config file with a line about each, or {} without any."""
    rows = getattr(load_file(path, "config file"), "VARIANTS", {})
    return {name: row["about"] for name, row in rows.items()}


def configs() -> list[str]:
    """Return the names of all packaged configs and variants: "digits", "auc_cl:cifar10", ..."""
    result = []
    for name, path in packaged().items():
        result += [f"{name}:{variant}" for variant in variants(path)] or [name]
    return result


def key_comments() -> dict[str, str]:
    """Return the comment of each key and group in the file of the config `base`."""
    return dict(_COMMENT.findall((CONFIGS / "base.py").read_text(encoding="utf-8")))


def module(group: str, name: str) -> Any:
    """Import the Python file of a component, such as the loss "nt_xent".

    A registered Python object is returned itself. Its attributes are the constants of a file.

    Raises:
        UserError: if the group has no component of this name. The message suggests the closest one.
    """
    if name.startswith(FROM_PYTHON):
        return _registered(group, name).value
    if is_custom(name):
        return _load_plugin(*read_file(name))
    if name.endswith(".py") or "/" in name:
        raise UserError(f"{name!r} names no function; expected path/to/file.py:NAME")
    if name not in names(group):
        raise UserError(f"{group}.name={name!r} is unknown{suggest(name, names(group))}")
    return importlib.import_module(f"{GROUPS[group].package}.{name}")


def factory(group: str, name: str) -> Callable:
    """Return the function that builds a component, such as the loss "nt_xent".

    Raises:
        UserError: if the group has no component of this name.
    """
    if name.startswith(FROM_PYTHON):
        return _registered(group, name).value
    if not is_custom(name):
        return getattr(module(group, name), GROUPS[group].factory)
    loaded, attribute = module(group, name), name.rpartition(":")[2]
    if not hasattr(loaded, attribute):
        # Other functions, classes and modules are imported by the file.
        public = [
            key
            for key, value in vars(loaded).items()
            if not key.startswith("_")
            and (
                getattr(value, "__module__", None) == loaded.__name__
                or not (callable(value) or inspect.ismodule(value))
            )
        ]
        hint = suggest(attribute, public) if public else "; it defines nothing"
        raise UserError(f"{name!r}: the file has no {attribute!r}{hint}")
    return getattr(loaded, attribute)


def is_custom(name: str) -> bool:
    """Return True for the name of a user's component, from a file or from Python."""
    return name.startswith(FROM_PYTHON) or bool(IN_FILE.fullmatch(name))


def absolute(name: str) -> str:
    """Make the path of a user's component absolute, so that it holds in any working directory."""
    in_file = IN_FILE.fullmatch(name)
    return f"{Path(os.path.expanduser(in_file[1])).resolve()}{in_file[2]}" if in_file else name


def short_name(name: str) -> str:
    """Return a component's name without the folder of a user's file."""
    return Path(name).name if is_custom(name) else name


def digest(name: str) -> str:
    """Return the start of the SHA-256 of the file of a user's component "path/to/file.py:NAME".

    Raises:
        UserError: if the file cannot be read.
    """
    return hashlib.sha256(read_file(name)[1]).hexdigest()[:DIGITS]


def register(group: str, value: Any, digest: str) -> str:
    """Register a Python object as a component of a group, and return its name.

    The name holds until the process ends.

    Args:
        group: a key of `GROUPS`.
        value: a factory of the group, or a component.
        digest: distinguishes the object from others of its class, and ends the name.
    """
    name = f"{FROM_PYTHON}{getattr(value, '__name__', type(value).__name__)}-{digest}"
    before = _REGISTERED.get((group, name))
    if before is None or before.value is not value:
        _REGISTERED[group, name] = _Registered(value, next(_NUMBERS))
    return name


def number(group: str, name: str) -> int | None:
    """Return the number of a registered Python object, or None for another component."""
    return _registered(group, name).number if name.startswith(FROM_PYTHON) else None


@contextmanager
def pinned() -> Iterator[dict[Path, bytes]]:
    """Read each file of a user only once, so that edits do not change a run that has begun.

    Yields:
        The contents of the files that have been read, which is filled while the context is active.
    """
    _PINNED.append({})
    try:
        yield _PINNED[-1]
    finally:
        _PINNED.pop()


def read_file(name: str) -> tuple[Path, bytes]:
    """Return path and content of the file of a user's component "path/to/file.py:NAME".

    Raises:
        UserError: if it is no regular file, is larger than `MOST_BYTES`, or cannot be read.
    """
    path = Path(os.path.expanduser(name.rpartition(".py:")[0] + ".py"))
    contents = _PINNED[-1] if _PINNED else {}
    try:
        if path not in contents:
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "the path is not a regular file")
            if path.stat().st_size > MOST_BYTES:
                raise OSError(errno.EFBIG, f"the file has more than {MOST_BYTES} bytes")
            contents[path] = path.read_bytes()
        return path, contents[path]
    except OSError as error:
        raise UserError(
            f"{name!r}: the file cannot be read ({error.strerror}); expected path/to/file.py:NAME"
        ) from error


def load_file(path: Path, noun: str, content: bytes | None = None) -> ModuleType:
    """Execute a Python file of a user as a module.

    Args:
        path: the file.
        noun: name for the file in messages, such as "config file".
        content: of the file, if it has been read already.

    Raises:
        UserError: if the file cannot be read, is not a Python file, or raises an exception.
    """
    name = f"jaxssl_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:DIGITS]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UserError(f"{noun} {str(path)!r} must be a Python file whose name ends in .py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded  # Dataclasses and `pickle` look their module up here.
    try:
        # The import system would take cached bytecode after an edit within the same second.
        content = path.read_bytes() if content is None else content
        exec(compile(content, path, "exec"), vars(loaded))
    except (Exception, SystemExit) as error:  # A script may exit when it is not called as one.
        del sys.modules[name]
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{noun} {str(path)!r} failed: {reason}") from error
    return loaded


@functools.cache
def _load_plugin(path: Path, content: bytes) -> ModuleType:
    import cloudpickle  # here, because it takes longer to import than the rest of this module

    loaded = load_file(path, "component file", content)  # A file that has changed is loaded again.
    # Processes that read data get the file's objects from Grain, and cannot import the module.
    cloudpickle.register_pickle_by_value(loaded)
    return loaded


def _registered(group: str, name: str) -> _Registered:
    if (group, name) not in _REGISTERED:
        raise UserError(
            f"{group}.name={name!r} was given as a Python object, which is not stored; call "
            f"jaxssl.train again with the same arguments, or put the object into a file and name "
            f"it: file.py:{name.removeprefix(FROM_PYTHON).partition('-')[0]}"
        )
    return _REGISTERED[group, name]

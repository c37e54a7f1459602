"""Look up losses, networks, heads, methods, augmentations and protocols by name.

A component is a public file of its group's folder that defines the group's factory. A new file is a
new component without registration. Other files of the folder are not components, and files whose
names begin with an underscore are private to the folder.
"""

import ast
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jaxssl.errors import UserError, suggest


class Group(NamedTuple):
    """A kind of component: the package that holds its files, and the function that each defines.

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
    "data": Group("jaxssl.data.formats", "builder"),
    "toy": Group("jaxssl.data.toy", "builder"),
    "protocol": Group("jaxssl.evaluation.protocols", "protocol"),
    "log": Group("jaxssl.training.loggers", "logger"),
    "study": Group("jaxssl.studies", "run"),
}


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """Return the sorted names of all components of a group (such as "loss") without imports."""
    package, factory = GROUPS[group]
    folder = importlib.import_module(package).__path__
    public = sorted(m.name for m in pkgutil.iter_modules(folder) if m.name[0] != "_")
    return tuple(name for name in public if factory in _definitions(f"{package}.{name}"))


def summary(group: str, name: str) -> str:
    """Return the first line of a component's docstring, without importing the component."""
    docstring = ast.get_docstring(_parse(f"{GROUPS[group].package}.{name}")) or ""
    return docstring.partition("\n")[0]


def module(group: str, name: str) -> ModuleType:
    """Import the Python file of a component, such as the loss "nt_xent".

    Raises:
        UserError: if the group has no component of this name. The message suggests the closest one.
    """
    if name not in names(group):
        raise UserError(f"{group}.name={name!r} is unknown{suggest(name, names(group))}")
    return importlib.import_module(f"{GROUPS[group].package}.{name}")


def factory(group: str, name: str) -> Callable[..., Any]:
    """Return the function that builds a component, such as the loss "nt_xent".

    Raises:
        UserError: if the group has no component of this name.
    """
    return getattr(module(group, name), GROUPS[group].factory)


def _parse(name: str) -> ast.Module:
    """Parse a module's source, or return an empty syntax tree if it is not a Python file."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ast.parse("")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _definitions(name: str) -> set[str]:
    """Return the names that a module assigns or defines at its top level."""
    defined = set()
    for node in _parse(name).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return defined

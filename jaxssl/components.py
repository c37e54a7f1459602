"""Find components by name: losses, networks, heads, methods, recipes of views, protocols, studies.

A component is a public file of its group's folder that defines the group's factory. Adding a file
adds the component, and nothing has to be registered. Other files of the folder are not components,
and files whose names begin with an underscore are private to the folder.
"""

import ast
import functools
import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any, NamedTuple

from jaxssl.errors import UserError, suggest


class Group(NamedTuple):
    """Where the components of a group are.

    Attributes:
        package: the folder, as a dotted name.
        factory: the name that a file defines to be a component.
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
    "study": Group("jaxssl.studies", "run"),
}


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """The names of a group's components, sorted; none of them is imported."""
    package, factory = GROUPS[group]
    folder = importlib.import_module(package).__path__
    public = sorted(m.name for m in pkgutil.iter_modules(folder) if m.name[0] != "_")
    return tuple(name for name in public if factory in _definitions(f"{package}.{name}"))


def module(group: str, name: str) -> ModuleType:
    """The file of a component, imported.

    Raises:
        UserError: if the group has no component of that name; the message suggests the nearest one.
    """
    if name not in names(group):
        raise UserError(f"{group}.name={name!r} is unknown{suggest(name, names(group))}")
    return importlib.import_module(f"{GROUPS[group].package}.{name}")


def factory(group: str, name: str) -> Any:
    """The factory of a component: a function, or of a protocol the `Protocol`.

    Raises:
        UserError: if the group has no component of that name.
    """
    return getattr(module(group, name), GROUPS[group].factory)


def _definitions(name: str) -> set[str]:
    """The names that a module assigns or defines at its top level, read from its source."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_source"):
        return set()
    defined = set()
    for node in ast.parse(spec.loader.get_source(name) or "").body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return defined

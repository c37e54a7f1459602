"""Describe the settings of a config and of its components: type, value, and a line of text."""

import inspect
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.training.config.groups import GROUPS, OPTIONAL, VIEW_GROUPS, factory
from jaxssl.training.config.values import TYPES, argument_types, describe_type, flat_keys

_ARGUMENT = re.compile(r"^ +((?:\w+, )*\w+)(?: \([^)]*\))?: (\S.*(?:\n {8,}\S.*)*)", re.MULTILINE)

# "Objective" describes arguments that the objective of a loss takes and its function does not.
_SECTION = re.compile(r"\n(?:Args|Objective):\n(.*?)(?=\n\n|$)", re.DOTALL)


class Setting(NamedTuple):
    """A config key.

    Attributes:
        key: such as "loss.temperature".
        type: the type in words.
        value: the default, or the value in a config.
        line: what the key sets, possibly "".
    """

    key: str
    type: str
    value: Any
    line: str


def common_keys() -> dict[str, str]:
    """Return a line for each key of the config `base`, the comments of its file."""
    return {f"{k}.name" if k in GROUPS else k: v for k, v in components.key_comments().items()}


def component_settings(group: str, name: str) -> list[Setting]:
    """Return the settings of a component, such as the loss "nt_xent", with their defaults.

    Raises:
        UserError: if the group has no component of this name.
    """
    make = factory(group, name)
    kinds, lines = argument_types(make), _argument_lines(group, name)
    return [
        Setting(
            f"{group}.{key}",
            describe_type(kinds[key]),
            "required" if one.default is inspect.Parameter.empty else one.default,
            lines.get(key, ""),
        )
        for key, one in inspect.signature(make).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    ]


def config_settings(config: ConfigDict) -> list[Setting]:
    """Return all keys of a complete config with their values."""
    lines = common_keys()
    kinds = {key: describe_type(kind) for key, kind in TYPES.items()}
    for group in GROUPS:
        for one in component_settings(group, config[group].name):
            kinds[one.key], lines[one.key] = one.type, one.line
        lines[f"{group}.preset"] = "settings of a paper or code: PRESETS of the component's file"
    lines["crops.number"] = lines["crops"]
    for key in flat_keys(config):
        group, _, leaf = key.partition(".")
        if group in VIEW_GROUPS and key not in lines:
            kinds[key], lines[key] = (at[f"augment.{leaf}"] for at in (kinds, lines))
    return [
        Setting(key, kinds.get(key, "str"), value, lines.get(key, ""))
        for key, value in flat_keys(config).items()
    ]


def table(settings: Sequence[Setting]) -> list[str]:
    """Return the lines of a table of settings, with aligned columns."""
    cells = [(one.key, one.type, _text(one.value), one.line) for one in settings]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][:-1]
    return [
        "  ".join([*(f"{c:{w}}" for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in cells
    ]


def _text(value: object) -> str:
    return str(value.to_dict() if isinstance(value, ConfigDict) else value) or "''"


def _argument_lines(group: str, name: str) -> dict[str, str]:
    """Return the first sentence about each argument in the docstrings of a component's file."""
    if group in OPTIONAL and name == "none":
        return {}
    module = components.module(group, name)
    functions = [one for one in vars(module).values() if callable(one)]
    # The functions of the file come before those that it imports.
    functions.sort(key=lambda one: getattr(one, "__module__", "") != module.__name__)
    docstrings = [inspect.getdoc(one) or "" for one in functions]
    lines: dict[str, str] = {}
    for docstring in docstrings:
        for names, text in _ARGUMENT.findall("\n".join(_SECTION.findall(docstring))):
            sentence = re.split(r"(?<=\.)\s", " ".join(text.split()))[0]
            lines = dict.fromkeys(names.split(", "), sentence) | lines
    return lines

"""Describe the settings of configs and of components: type, value, and a line of text."""

import inspect
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.training.config.groups import GROUPS, OPTIONAL, VIEW_GROUPS, factory
from jaxssl.training.config.values import TYPES, argument_types, describe_type, flat_keys

# "name (type): text" or "first, second: text" in a section of a docstring, with its further lines.
_ARGUMENT = re.compile(r"^ +((?:\w+, )*\w+)(?: \([^)]*\))?: (\S.*(?:\n {8,}\S.*)*)", re.MULTILINE)

# The section "Objective" has arguments that a loss has as an objective and not as a function.
_SECTION = re.compile(r"\n(?:Args|Objective):\n(.*?)(?=\n\n|$)", re.DOTALL)


class Setting(NamedTuple):
    """A config key with type, default value and description.

    Attributes:
        key: such as "loss.temperature".
        type: the type in words.
        value: the default, or the value in a config.
        line: description of the key, possibly "".
    """

    key: str
    type: str
    value: Any
    line: str


def component_settings(group: str, name: str) -> list[Setting]:
    """Return the settings of a component, such as the loss "nt_xent", with default values.

    Raises:
        UserError: if the group has no component of this name.
    """
    make = factory(group, name)
    types, lines = argument_types(make), _argument_lines(group, name)
    return [
        Setting(
            f"{group}.{argument}",
            describe_type(types[argument]),
            "required" if parameter.default is inspect.Parameter.empty else parameter.default,
            lines.get(argument, ""),
        )
        for argument, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]


def config_settings(config: ConfigDict) -> list[Setting]:
    """Return all keys of a complete config with their values."""
    comments = components.key_comments()
    lines = {f"{key}.name" if key in GROUPS else key: line for key, line in comments.items()}
    lines["crops.number"] = comments["crops"]
    types = {key: describe_type(kind) for key, kind in TYPES.items()}
    for group in GROUPS:
        lines[f"{group}.preset"] = "settings of a paper or code: PRESETS of the component's file"
        for setting in component_settings(group, config[group].name):
            types[setting.key], lines[setting.key] = setting.type, setting.line

    settings = []
    for key, value in flat_keys(config).items():
        group, _, leaf = key.partition(".")
        # Groups for only some views have the recipe's arguments, described under "augment".
        described = f"augment.{leaf}" if group in VIEW_GROUPS and key not in lines else key
        settings.append(Setting(key, types.get(described, "str"), value, lines.get(described, "")))
    return settings


def table(settings: Sequence[Setting]) -> list[str]:
    """Return the lines of a table of settings, with aligned columns."""
    rows = [(key, kind, _text(value), line) for key, kind, value, line in settings]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _text(value: object) -> str:
    return str(value.to_dict() if isinstance(value, ConfigDict) else value) or "''"


def _argument_lines(group: str, name: str) -> dict[str, str]:
    """Return the first sentence about each argument in the docstrings of a component's file."""
    if group in OPTIONAL and name == "none":
        return {}
    module = components.module(group, name)
    functions = [value for value in vars(module).values() if callable(value)]
    # Functions that the file defines are sorted before those that it imports.
    functions.sort(key=lambda function: getattr(function, "__module__", "") != module.__name__)
    lines: dict[str, str] = {}
    for function in functions:
        sections = "\n".join(_SECTION.findall(inspect.getdoc(function) or ""))
        for names, text in _ARGUMENT.findall(sections):
            sentence = re.split(r"(?<=\.)\s", " ".join(text.split()))[0]
            lines |= {name: sentence for name in names.split(", ") if name not in lines}
    return lines

"""Settings of the config groups that name components, such as `loss`.

A group has the name of a component, which is the name of a file, and the keyword arguments of the
component's factory. Missing arguments are filled in from the component's preset and from the
defaults of its factory, so that the printed and saved config has every value.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.errors import UserError, printable, suggest
from jaxssl.training.config import custom, values

# Each of these groups names a component. The name of an optional component may be "none".
GROUPS = ("net", "text", "loss", "method", "augment", "head", "predictor")
OPTIONAL = ("text", "predictor")
# Groups of augment arguments that hold for only some of the views, and the keys that each group has
# in addition.
VIEW_GROUPS = {"second_view": set(), "crops": {"number"}}


def factory(group: str, name: str) -> Callable:
    """Return the factory ``(**arguments) -> component`` of a component, or of a user's component.

    Args:
        group: a group of the config, one of `GROUPS`.
        name: ``config[group].name``.

    Raises:
        UserError: if the group has no component of this name.
    """
    if group in OPTIONAL and name == "none":
        return _no_component
    value = components.factory(group, name)
    return custom.make_factory(group, name, value) if components.is_custom(name) else value


def _no_component() -> None:
    """Stand for a predictor or a text network that is not used."""


def arguments(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of a component: all keys of a group except "name" and "preset"."""
    return {k: v for k, v in config.items() if k not in ("name", "preset")}


def argument_types(config: ConfigDict, group: str) -> dict[str, object]:
    """Return the type of each argument of the component to which the keys of a group belong."""
    component = _component_of(group)
    return values.argument_types(factory(component, config[component].name))


def label(group: str, config: Settings) -> str:
    """Return a component's name with the settings that differ from the defaults.

    For example "auc_cl (released_cifar, alpha=0.5)".
    """
    choice = {k: config[k] for k in ("name", "preset") if k in config}
    defaults = complete_group(group, ConfigDict(choice)).to_dict()
    details = [config["preset"]] if "preset" in config else []
    for key, value in arguments(config).items():
        if json.dumps(value, default=dict) != json.dumps(defaults.get(key)):
            text = f"{value['schedule']} schedule" if values.is_schedule(value) else value
            details.append(f"{key}={text}")
    name = components.short_name(config["name"])
    return f"{name} ({', '.join(details)})" if details else name


def complete_group(group: str, config: ConfigDict) -> ConfigDict:
    """Fill in a group's missing arguments from the preset and the component's defaults.

    Raises:
        UserError: if the group has an unknown key or preset, or lacks an argument.
    """
    given = arguments(config.to_dict())
    name, preset = config["name"], config.get("preset")
    parameters = inspect.signature(factory(group, name)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        key = f"{group}.{printable(unknown[0])}"
        raise UserError(
            f"{key} is not a setting of {printable(name)!r}; to change {group}.name in a config, "
            f"replace the whole group{suggest(unknown[0], defaults)}"
        )
    choice = {"name": name}
    if preset is not None:
        is_none = group in OPTIONAL and name == "none"
        presets = {} if is_none else getattr(components.module(group, name), "PRESETS", {})
        if not presets:
            raise UserError(f"{group}.preset={preset!r}: {name!r} has no presets; leave it out")
        if not isinstance(preset, str) or preset not in presets:
            raise UserError(f"{group}.preset={preset!r} is unknown{suggest(str(preset), presets)}")
        choice["preset"] = preset
        defaults |= presets[preset]
    complete = defaults | given
    for argument in sorted(complete):
        if complete[argument] is inspect.Parameter.empty:
            raise UserError(f"{group}.{argument}: {name!r} has no default for it; give it one")
    return ConfigDict(choice | complete)


def check_arguments(config: ConfigDict) -> None:
    """Raise UserError if an argument of a component has a wrong type or range, or is unknown."""
    for group in (*GROUPS, *VIEW_GROUPS):
        types, component = argument_types(config, group), _component_of(group)
        is_custom = components.is_custom(config[component].name)
        if group in VIEW_GROUPS:
            unknown = sorted(set(config[group]) - set(config.augment) - VIEW_GROUPS[group])
            if unknown:
                valid = ", ".join(sorted(arguments(config.augment)))
                raise UserError(
                    f"{group}.{printable(unknown[0])} is not an argument of augment "
                    f"{config.augment.name!r}, which has: {valid}"
                )
        for name, value in arguments(config[group]).items():
            if name in types:
                values.require(f"{group}.{name}", value, types[name])
            if name == "size" or not is_custom:  # The package reads only the size of a user's own.
                values.check_argument(f"{group}.{name}", component, value)
    if "size" in config.second_view:
        raise UserError("second_view.size: all views have the same size; set augment.size")


def _component_of(group: str) -> str:
    """Return the group that names the component whose arguments a group has."""
    return "augment" if group in VIEW_GROUPS else group

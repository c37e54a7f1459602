"""Read a config file and command-line overrides into one complete, locked `ConfigDict`.

A group such as `loss` has the name of a component, which is the name of a file, and the keyword
arguments of the component's factory. Missing arguments are filled in from the component's preset
and from the defaults of its factory, so that the printed and saved config has every value.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.configs.base import CHANGEABLE_KEYS
from jaxssl.errors import UserError, one_line, printable, suggest
from jaxssl.training.config import custom, types
from jaxssl.training.config import trust as trusted
from jaxssl.training.config.files import find, read, split_variant
from jaxssl.training.config.keys import find_group, full_key
from jaxssl.training.config.overrides import convert
from jaxssl.training.config.ranges import check_argument, check_common_ranges
from jaxssl.training.output import regular_files
from jaxssl.training.output.console import show

# Each of these groups names a component. The name of an optional component may be "none".
GROUPS = ("net", "text", "loss", "method", "augment", "head", "predictor")
OPTIONAL = ("text", "predictor")
# These groups hold the augment arguments that differ in some views, and the further keys of each
# group.
VIEW_GROUPS = {"second_view": set(), "crops": {"number"}}
# Set from the training images when a run starts, unlike all other keys.
MEASURED_KEYS = ("data.mean", "data.std")
LENGTH_KEYS = ("epochs", "total_steps", "extended")  # differ before and after --extend_to


def load(
    path: str | Path, overrides: Sequence[tuple[str, Any]] = (), *, trust: bool = False
) -> ConfigDict:
    """Return the complete config of a config file and command-line overrides.

    Args:
        path: a Python file with `get_config() -> ConfigDict`, the config.json of a run, or the name
            of a packaged config, such as "digits". A file with `get_config(variant)` is followed by
            a variant, as in "auc_cl:cifar10".
        overrides: pairs (key, value), where texts are parsed as on the command line. A new name or
            preset of a group resets the group to the component's defaults. The group of a key may
            be left out if no other group has the key: "lr" is "optim.lr".
        trust: as for `jaxssl.load_encoder`, for the config.json of a run.

    Raises:
        UserError: on a missing file, an unknown key or component, or a value that is not valid.
    """
    name, variant = split_variant(path)
    file = find(name)
    if file.name != "config.json" or variant:
        config = _unlocked(read(file, variant), f"config file {str(file)!r}")
        return complete(config, overrides)
    config = read_config(file.parent)
    trusted.require(custom.names(config.to_dict()).values(), file, trust)
    named = {key.removeprefix("data.") for key, _ in overrides}
    trusted.require_data({k: v for k, v in config.data.items() if k not in named}, file, trust)
    with config.unlocked():
        for name in ("mean", "std"):  # A run measures its own images.
            if name in config.data:
                del config.data[name]
    return complete(config, overrides)


def complete(config: ConfigDict, overrides: Sequence[tuple[str, Any]] = ()) -> ConfigDict:
    """Return a locked copy of a config with all values, from presets and defaults.

    Args:
        config: from the get_config() of a config file, or changed in Python.
        overrides: as in `load`.

    Raises:
        UserError: as `load`.
    """
    config = _unlocked(config, "config")
    # Names and presets are set first, because they decide which other keys exist.
    choices = [item for item in overrides if _is_choice(item[0])]
    for key, text in sorted(choices, key=lambda item: item[0].endswith(".preset")):
        group, leaf = key.split(".")
        name = {} if leaf == "name" else {"name": config[group].name}
        if config[group].get(leaf) != text:
            config[group] = ConfigDict({**name, leaf: text})
    for group in GROUPS:
        config[group].name = components.absolute(config[group].name)
        config[group] = _complete(group, config[group])
    config.crops.number = config.crops.get("number", 0)
    types.add_later_keys(config)
    _check_view_groups(config)
    others = [(full_key(config, k), value) for k, value in overrides if not _is_choice(k)]
    apply_overrides(config, others)
    validate(config)
    _shorten_warmup(config, dict(others))
    custom.record(config)
    return config.lock()


def read_config(workdir: Path) -> ConfigDict:
    """Read the complete config of a run from its workdir.

    Raises:
        UserError: if the workdir has no readable config.
    """
    path = workdir / "config.json"
    try:
        return from_json(regular_files.read_json(path))
    except OSError as error:
        raise UserError(
            f"{workdir} holds no run (cannot read {path}: {error.strerror}); train first: "
            f"jaxssl train --workdir {workdir}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not the config of a run ({one_line(error)}); choose another --workdir"
        ) from error


def from_json(document: Any) -> ConfigDict:
    """Return the config of a run that was read from a JSON document.

    Raises:
        ValueError: if the document is not a mapping with the groups of a config.
    """
    try:
        config = ConfigDict(document)
    except (TypeError, AttributeError, KeyError) as error:  # for example, a key "items"
        raise ValueError(one_line(error)) from error
    for group in ("data", "eval", "optim", "loss", "net", "method", "augment"):
        if not isinstance(config.get(group), ConfigDict):
            raise ValueError(f"it lacks the group {group!r}")
    return config


def complete_stored(config: ConfigDict) -> ConfigDict:
    """Check the config of a run that was read from a file, and add the defaults of new keys.

    This imports the files of its components.

    Raises:
        UserError: if a group or a key is missing or unknown, or a value has another type or is out
            of its range.
    """
    config = _unlocked(config, "it")
    for group in GROUPS:
        config[group] = _complete(group, config[group])
    types.add_later_keys(config)
    _check_view_groups(config)
    validate(config)
    return config


def apply_overrides(config: ConfigDict, overrides: Sequence[tuple[str, Any]]) -> None:
    """Set existing config keys to new values.

    Args:
        config: changed in place.
        overrides: pairs (dotted key, value), where texts are parsed.

    Raises:
        UserError: on an unknown key or a value of another type.
    """
    for key, text in overrides:
        *groups, leaf = key.split(".")
        in_view_group = groups[:1] and groups[0] in VIEW_GROUPS
        if in_view_group and leaf in arguments(config.augment):
            with config.unlocked():
                config[groups[0]][leaf] = config[groups[0]].get(leaf, config.augment[leaf])
        node = find_group(config, key)
        with node.ignore_type():  # A preset may have set a value of another valid type.
            node[leaf] = convert(key, text, _type_of(config, key, node[leaf]))


def factory(group: str, name: str) -> Callable[..., Any]:
    """Return the factory function of the component that ``config[group].name`` names.

    Raises:
        UserError: if the group has no component of this name.
    """
    if group in OPTIONAL and name == "none":
        return _no_component
    value = components.factory(group, name)
    return custom.make_factory(group, name, value) if components.is_custom(name) else value


def _no_component() -> None:
    """Stand for a predictor or a text network that is not used."""


def _component_group(group: str) -> str:
    """Return the group that names the component whose arguments a group has."""
    return "augment" if group in VIEW_GROUPS else group


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's keyword arguments for its factory: all keys except "name" and "preset"."""
    return {k: v for k, v in config.items() if k not in ("name", "preset")}


def label(group: str, config: Mapping[str, Any]) -> str:
    """Return a component's name with the settings that differ from the defaults.

    For example "auc_cl (released_cifar, alpha=0.5)".
    """
    choice = {k: config[k] for k in ("name", "preset") if k in config}
    defaults = _complete(group, ConfigDict(choice)).to_dict()
    details = list(choice.values())[1:]
    for key, value in arguments(config).items():
        if _as_json(value) != _as_json(defaults.get(key)):
            text = f"{value['schedule']} schedule" if types.is_schedule(value) else value
            details.append(f"{key}={text}")
    name = components.short_name(choice["name"])
    return f"{name} ({', '.join(details)})" if details else name


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List "key: theirs -> ours" for each key that differs between two configs."""
    lines = []
    for key in sorted(set(ours) | set(theirs)):
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {b!r} -> {a!r}")
    return lines


def conflicts(ours: ConfigDict, theirs: Mapping[str, Any]) -> list[str]:
    """List the config differences that prevent a run from resuming.

    Args:
        ours: the config of this command.
        theirs: the config of the run, as read from JSON.
    """
    now = json.loads(json.dumps(ours.to_dict()))
    lines = differences(_comparable(now), _comparable(theirs))
    before, lengths = list(theirs.get("extended", ())), now.get("extended", [])
    is_extension = len(lengths) > len(before) and lengths[: len(before)] == before
    free = (*CHANGEABLE_KEYS, *LENGTH_KEYS) if is_extension else CHANGEABLE_KEYS
    free += () if "mean" in ours.data else MEASURED_KEYS
    return [line for line in lines if line.partition(":")[0] not in free]


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the keys of later versions to a config, and remove its local folders."""
    config = json.loads(json.dumps(custom.without_folders(config)))
    types.add_later_keys(config)
    return json.loads(json.dumps(config))


def _check_view_groups(config: ConfigDict) -> None:
    """Raise UserError if a view has an argument that the augmentation does not have."""
    for group, further in VIEW_GROUPS.items():
        unknown = sorted(set(config[group]) - set(config.augment) - further)
        if unknown:
            valid = ", ".join(sorted(arguments(config.augment)))
            raise UserError(
                f"{group}.{printable(unknown[0])} is not an argument of augment "
                f"{config.augment.name!r}, which has: {valid}"
            )


def validate(config: ConfigDict) -> None:
    """Check types of config values, and ranges that no component checks.

    Raises:
        UserError: on a missing key, or a value of another type or out of its range.
    """
    types.check_common_keys(config)
    for group in (*GROUPS, *VIEW_GROUPS):
        component = _component_group(group)
        kinds = types.argument_types(factory(component, config[component].name))
        for name, value in arguments(config[group]).items():
            key = f"{group}.{name}"
            if name in kinds:
                types.require(key, value, kinds[name])
            check_argument(key, component, value)
    check_common_ranges(config)
    if "size" in config.second_view:
        raise UserError("second_view.size: all views have the same size; set augment.size")


def _as_json(value: Any) -> Any:
    """Return a config value as it reads back from JSON."""
    return list(value) if isinstance(value, tuple) else value


def _unlocked(config: ConfigDict, source: str) -> ConfigDict:
    """Return an unlocked copy of a config that has all groups.

    Args:
        config: not necessarily complete.
        source: origin of the config, for the message.
    """
    config = ConfigDict(config.to_dict()).unlock()
    for group in (*GROUPS, *VIEW_GROUPS):
        node = config.get(group)
        default = None if group in GROUPS else ""
        if not isinstance(node, ConfigDict) or not isinstance(node.get("name", default), str):
            raise UserError(f"{source} lacks the group {group!r}, or the name of its component")
    return config


def _shorten_warmup(config: ConfigDict, overrides: Mapping[str, Any]) -> None:
    """Fit the warm-up of a config file into a run that an override of `epochs` has shortened."""
    schedule, given = config.schedule, {"schedule.warmup_epochs", "total_steps"} & set(overrides)
    if "epochs" in overrides and not given and 0 < config.epochs <= schedule.warmup_epochs:
        before, schedule.warmup_epochs = schedule.warmup_epochs, config.epochs / 10
        show(
            f"schedule.warmup_epochs={schedule.warmup_epochs:g}, a tenth of epochs, because the "
            f"{before:g} of the config do not fit into {config.epochs:g} epochs"
        )


def _is_choice(key: str) -> bool:
    """Return True for keys that choose a component, such as "loss.name" and "loss.preset"."""
    group, _, leaf = key.partition(".")
    return group in GROUPS and leaf in ("name", "preset")


def _complete(group: str, config: ConfigDict) -> ConfigDict:
    """Fill in a group's missing arguments from its preset and its factory's defaults."""
    values = config.to_dict()
    name, preset = values.pop("name"), values.pop("preset", None)
    parameters = inspect.signature(factory(group, name)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    unknown = sorted(set(values) - set(defaults))
    if unknown:
        key = f"{group}.{printable(unknown[0])}"
        raise UserError(f"{key} is unknown{suggest(unknown[0], defaults)}")
    effective = {"name": name}
    if preset is not None:
        is_none = group in OPTIONAL and name == "none"
        presets = {} if is_none else getattr(components.module(group, name), "PRESETS", {})
        if not isinstance(preset, str) or preset not in presets:
            raise UserError(f"{group}.preset={preset!r} is unknown{suggest(str(preset), presets)}")
        effective["preset"] = preset
        defaults |= presets[preset]
    for argument in sorted(set(defaults) - set(values)):
        if defaults[argument] is inspect.Parameter.empty:
            raise UserError(f"{group}.{argument}: {name!r} has no default for it; give it one")
    return ConfigDict(effective | defaults | values)


def _type_of(config: ConfigDict, key: str, value: Any) -> Any:
    """Return the type that a config key expects."""
    group, _, leaf = key.partition(".")
    if key in types.TYPES:
        return types.TYPES[key]
    if group in (*GROUPS, *VIEW_GROUPS):
        component = _component_group(group)
        return types.argument_types(factory(component, config[component].name)).get(leaf, Any)
    return type(value)

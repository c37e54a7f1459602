"""From a config file and command-line overrides to one locked, complete `ConfigDict`.

A group such as `loss` names a component ("name", the name of a file) and holds the keyword
arguments of its factory. What the config leaves out is filled in from the component's preset and
its factory's signature, so the printed and saved config holds every effective value.
"""

import ast
import importlib.util
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.errors import UserError, one_line, printable, suggest
from jaxssl.training import _config_types as config_types

# The groups of a config that name a component; of the optional ones, "none" is a name too.
GROUPS = ("net", "text", "loss", "method", "augment", "head", "predictor")
OPTIONAL = ("text", "predictor")
# Groups that hold some of augment's arguments, those that differ, and what they have besides.
PARTIAL = {"second_view": set(), "crops": {"number"}}
# Where things lie and how images are read; a run may go on with other values.
CHANGEABLE_KEYS = ("data.dir", "data.cache", "data.workers", "optim.sharded")
NETWORKS = ("net", "text", "head", "predictor")  # whose whole numbers are sizes
MOST_VIEWS = 1000


def load(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> ConfigDict:
    """The effective config.

    Args:
        path: a Python file with `get_config() -> ConfigDict`.
        overrides: (dotted key, text of the value), as given on the command line. One that changes
            the name or the preset of a group starts that group from the component's defaults.

    Raises:
        UserError: on a missing file, an unknown key or component, or a value of another type.
    """
    config = _run_file(Path(path))
    # Names come first: they decide which other keys there are.
    ordered = sorted(overrides, key=lambda item: not item[0].endswith((".name", ".preset")))
    ordered.sort(key=lambda item: not item[0].endswith(".name"))
    choices = [item for item in ordered if _is_choice(item[0])]
    for key, text in choices:
        group, leaf = key.split(".")
        kept = {} if leaf == "name" else {"name": config[group].name}
        if config[group].get(leaf) != text:
            config[group] = ConfigDict({**kept, leaf: text})
    for group in GROUPS:
        config[group] = _complete(group, config[group])
    config.crops.number = config.crops.get("number", 0)
    for group, own in PARTIAL.items():
        unknown = sorted(set(config[group]) - set(config.augment) - own)
        if unknown:
            recipe = f"augment {config.augment.name!r}"
            known = ", ".join(sorted(arguments(config.augment)))
            name = f"{group}.{printable(unknown[0])}"
            raise UserError(f"{name} is no argument of {recipe}, which has: {known}")
    config.lock()
    apply_overrides(config, [item for item in ordered if not _is_choice(item[0])])
    validate(config)
    return config


def read_config(workdir: Path) -> ConfigDict:
    """The effective config of a run.

    Raises:
        UserError: if the workdir holds none.
    """
    path = workdir / "config.json"
    try:
        config = ConfigDict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{workdir} holds no run (cannot read {path}); train first: "
            f"python train.py --workdir {workdir}"
        ) from error
    if not isinstance(config.get("data"), ConfigDict) or "loss" not in config:
        raise UserError(f"{path} is no config of a run; take another --workdir")
    return config


def apply_overrides(config: ConfigDict, overrides: Sequence[tuple[str, str]]) -> None:
    """Set values, each (dotted key, text of the value); keys that are not there are refused.

    Raises:
        UserError: on an unknown key or a value of another type.
    """
    for key, text in overrides:
        _set(config, key, text)


def factory(group: str, name: str) -> Callable[..., Any]:
    """The factory that ``config[group].name`` stands for.

    Raises:
        UserError: if there is none of that name.
    """
    if group in OPTIONAL and name == "none":
        return _nothing
    return components.factory(group, name)


def _nothing() -> None:
    """No predictor, no network of captions."""


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments in a group: all but "name" and "preset"."""
    return {k: v for k, v in config.items() if k not in ("name", "preset")}


def label(group: str, config: Mapping[str, Any]) -> str:
    """The component with what is not its default: "auc_cl (released_cifar, alpha=0.5)"."""
    values = {k: config[k] for k in ("name", "preset") if k in config}
    usual = _complete(group, ConfigDict(values)).to_dict()
    own = arguments(config).items()
    changed = [f"{k}={_word(v)}" for k, v in own if _plain(v) != _plain(usual.get(k))]
    inside = ", ".join([*list(values.values())[1:], *changed])
    return f"{values['name']} ({inside})" if inside else values["name"]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One "key: theirs -> ours" for each leaf in which two configs differ."""
    found = []
    for key in sorted(set(ours) | set(theirs)):
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {b!r} -> {a!r}")
    return found


def conflicts(ours: ConfigDict, theirs: Mapping[str, Any]) -> list[str]:
    """`differences` of a config from one that was read from JSON, but for `CHANGEABLE_KEYS`."""
    found = differences(json.loads(json.dumps(ours.to_dict())), theirs)
    return [change for change in found if change.partition(":")[0] not in CHANGEABLE_KEYS]


def _word(value: Any) -> str:
    is_schedule = isinstance(value, Mapping | ConfigDict) and "schedule" in value
    return f"{value['schedule']} schedule" if is_schedule else str(value)


def _plain(value: Any) -> Any:
    """A value as JSON would give it back."""
    return list(value) if isinstance(value, tuple) else value


def _run_file(path: Path) -> ConfigDict:
    if not path.is_file():
        raise UserError(f"config file {str(path)!r} does not exist; expected a Python file")
    spec = importlib.util.spec_from_file_location(f"jaxssl_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"config file {str(path)!r} is no Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config() if hasattr(module, "get_config") else None
    except Exception as error:
        kind = type(error).__name__
        raise UserError(f"config file {str(path)!r} failed: {kind}: {one_line(error)}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"config file {str(path)!r} has no get_config() that returns a ConfigDict")
    for group in (*GROUPS, *PARTIAL):
        found = config.get(group)
        whole = isinstance(found, ConfigDict) and isinstance(found.get("name", ""), str)
        if not whole or (group in GROUPS and "name" not in found):
            raise UserError(
                f"config file {str(path)!r} lacks the group {group!r}, or the name of its component"
            )
    return ConfigDict(config.to_dict()).unlock()


def _is_choice(key: str) -> bool:
    group, _, leaf = key.partition(".")
    return group in GROUPS and leaf in ("name", "preset")


def _complete(group: str, given: ConfigDict) -> ConfigDict:
    """The group with its preset and its factory's defaults filled in; given values win."""
    values = given.to_dict()
    name, preset = values.pop("name"), values.pop("preset", None)
    parameters = inspect.signature(factory(group, name)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    unknown = sorted(set(values) - set(defaults))
    if unknown:
        raise UserError(
            f"{group}.{printable(unknown[0])} is unknown{suggest(unknown[0], defaults)}"
        )
    effective = {"name": name}
    if preset is not None:
        is_none = group in OPTIONAL and name == "none"
        presets = {} if is_none else getattr(components.module(group, name), "PRESETS", {})
        if preset not in presets:
            raise UserError(f"{group}.preset={preset!r} is unknown{suggest(preset, presets)}")
        effective["preset"] = preset
        defaults |= presets[preset]
    return ConfigDict(effective | defaults | values)


def _set(config: ConfigDict, key: str, text: str) -> None:
    *groups, leaf = key.split(".")
    if groups and groups[0] in PARTIAL and leaf in arguments(config.augment):
        with config.unlocked():
            config[groups[0]][leaf] = config[groups[0]].get(leaf, config.augment[leaf])
    node = config
    for i, group in enumerate(groups):
        if group not in node or not isinstance(node[group], ConfigDict):
            raise UserError(f"config key {key!r} is unknown{_near(groups[: i + 1], node)}")
        node = node[group]
    if leaf not in node or (isinstance(node[leaf], ConfigDict) and "schedule" not in node[leaf]):
        raise UserError(f"config key {key!r} is unknown{_near([*groups, leaf], node)}")
    value = _parse(text)
    if isinstance(node[leaf], tuple) and isinstance(value, str):
        value = tuple(value.split(","))
    schedule = isinstance(value, dict) and "schedule" in value
    if schedule and groups[:1] not in (["loss"], ["method"]) and key != "optim.weight_decay":
        raise UserError(
            f"config key {key!r} takes no schedule; those of loss and method, and "
            "optim.weight_decay, do (the learning rate's is the group schedule)"
        )
    try:
        if schedule or (isinstance(node[leaf], ConfigDict) and isinstance(value, int | float)):
            with node.ignore_type():
                node[leaf] = ConfigDict(value) if schedule else float(value)
        elif isinstance(value, str) and _accepts(config, groups, leaf, str):
            with node.ignore_type():
                node[leaf] = text
        elif type(value) in (int, float) and _accepts(config, groups, leaf, float):
            with node.ignore_type():  # a preset may have a word there
                node[leaf] = float(value)
        else:
            node[leaf] = value if not isinstance(node[leaf], str) else text
    except (TypeError, ValueError) as error:  # the latter of keys of a schedule
        expected = type(node[leaf]).__name__
        raise UserError(f"config key {key!r} expects {expected}, got {text!r}") from error


def _accepts(config: ConfigDict, groups: list[str], leaf: str, kind: type) -> bool:
    """Whether a component's argument may be a value of this type, among others."""
    if len(groups) != 1 or groups[0] not in GROUPS:
        return False
    parameters = inspect.signature(factory(groups[0], config[groups[0]].name)).parameters
    return kind in typing.get_args(parameters[leaf].annotation)


def _near(path: list[str], node: ConfigDict) -> str:
    prefix = ".".join(path[:-1])
    valid = [f"{prefix}.{name}" if prefix else name for name in node]
    return suggest(".".join(path), valid)


def _parse(text: str) -> Any:
    """A Python literal, true / false, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text  # the last three of odd keys and deep nesting
    return tuple(value) if isinstance(value, list) else value


def validate(config: ConfigDict) -> None:
    """Types, and bounds that no component checks for itself.

    Raises:
        UserError: on a missing key, or a value of another type or out of its range.
    """
    config_types.check(config)
    for group in (*GROUPS, *PARTIAL):
        of = "augment" if group in PARTIAL else group
        parameters = inspect.signature(factory(of, config[of].name)).parameters
        values = {k: v for k, v in arguments(config[group]).items() if k in parameters}
        config_types.check_arguments(group, values, parameters)
        if group in NETWORKS:
            for name, value in values.items():
                sizes = value if isinstance(value, tuple) else (value,)
                if any(type(size) is int and size < 0 for size in sizes):
                    raise UserError(f"config key '{group}.{name}' must be >= 0, got {value}")
    lowest = {"total_steps": 0, "epochs": 0, "seed": 0}
    lowest |= dict.fromkeys(
        ("batch_size", "views", "log_every", "accumulate_steps", "max_skipped"), 1
    )
    for key, bound in lowest.items():
        if config[key] < bound:
            raise UserError(f"config key {key!r} must be >= {bound}, got {config[key]}")
    for key, number in (("views", config.views), ("crops.number", config.crops.number)):
        if number > MOST_VIEWS:
            raise UserError(f"config key {key!r} must be <= {MOST_VIEWS}, got {number}")
    if not config.total_steps and not config.epochs:
        raise UserError("one of the config keys 'epochs' and 'total_steps' must be > 0")
    for group, key in (("optim", "lr"), ("eval", "every"), ("checkpoint", "every")):
        if not config[group][key] > 0:
            raise UserError(f"config key '{group}.{key}' must be > 0, got {config[group][key]}")
    if "size" in config.second_view:
        raise UserError("second_view.size: all views have one size, leave it to augment.size")
    if config.crops.number < 0:
        raise UserError(f"config key 'crops.number' must be >= 0, got {config.crops.number}")

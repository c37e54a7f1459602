"""Read a config file and command-line overrides into one complete, locked `ConfigDict`."""

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.buckets import as_path, fetch, is_bucket
from jaxssl.components import Settings
from jaxssl.configs.base import CHANGEABLE_KEYS
from jaxssl.errors import (
    JSON_ERRORS,
    MAX_NAMED,
    UserError,
    closest_key,
    one_line,
    suggest,
    train_first,
)
from jaxssl.training.config import custom, values
from jaxssl.training.config import trust as trusted
from jaxssl.training.config.groups import GROUPS, VIEW_GROUPS, check_arguments, complete_group
from jaxssl.training.config.groups import arguments as arguments
from jaxssl.training.config.groups import factory as factory
from jaxssl.training.config.groups import label as label
from jaxssl.training.config.overrides import apply_overrides, full_key
from jaxssl.training.output import file_io
from jaxssl.training.output.console import screen, show

LENGTH_KEYS = ("epochs", "total_steps", "extended")  # keys that --extend_to changes


def load(
    path: str | Path, overrides: Sequence[tuple[str, object]] = (), *, trust: bool = False
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
    file = as_path(name)
    if file.name != "config.json" or variant:
        file = find(name)
        config = _unlocked(read(file, variant), f"config file {str(file)!r}")
        return complete(config, overrides)
    config = read_config(file.parent)
    named = {full_key(config, key) for key, _ in overrides}
    lists = {"eval.protocols": config.eval.get("protocols"), "log": config.get("log")}
    listed = [name for key, x in lists.items() if key not in named for name in custom.texts(x)]
    trusted.require([*custom.names(config.to_dict()).values(), *listed], file, trust)
    data = {k: v for k, v in config.data.items() if f"data.{k}" not in named}
    trusted.require_data(data, file, trust)
    return _complete(config, overrides)


def complete(config: ConfigDict, overrides: Sequence[tuple[str, object]] = ()) -> ConfigDict:
    """Return a locked copy of a config with all values, from presets and defaults.

    Args:
        config: from the get_config() of a config file, or changed in Python.
        overrides: as in `load`.

    Raises:
        UserError: as `load`.
    """
    _require_known_keys(config)
    return _complete(config, overrides)


def _require_known_keys(config: ConfigDict) -> None:
    """Raise UserError for a key that no part of the package reads. Components check their own."""
    known = (*values.TYPES, *values.MEASURED_KEYS, "plugins", "extended")
    for key in values.flat_keys(config):
        if key.split(".")[0] not in (*GROUPS, *VIEW_GROUPS) and key not in known:
            close = closest_key(key, values.TYPES)
            raise UserError(
                f"config key {key!r} is unknown; "
                + (f"did you mean {close!r}?" if close else "remove it")
            )


def _complete(config: ConfigDict, overrides: Sequence[tuple[str, object]]) -> ConfigDict:
    """Return the complete config, see `complete`. Unknown keys of stored runs are ignored."""
    config = _unlocked(config, "config")
    for key in {"mean", "std"} & set(config.data):  # A run measures mean and std itself.
        del config.data[key]
    if "extended" in config:  # These are earlier lengths of another run.
        del config["extended"]
    # Names and presets are set first, because they decide which other keys exist.
    choices = [item for item in overrides if _is_choice(item[0])]
    for key, text in sorted(choices, key=lambda item: item[0].endswith(".preset")):
        group, leaf = key.split(".")
        if leaf == "name":
            values.require(key, text, str)
        if config[group].get(leaf) != text:
            config[group] = ConfigDict({"name": config[group].name} | {leaf: text})
    for group in GROUPS:
        config[group].name = components.absolute(config[group].name)
    config.crops.number = config.crops.get("number", 0)
    _add_defaults(config)
    others = [(full_key(config, k), value) for k, value in overrides if not _is_choice(k)]
    apply_overrides(config, others)
    _write_times_as_text(config)
    validate(config)
    _shorten_warmup(config, dict(others))
    custom.record(config)
    return config.lock()


def read_config(workdir: Path) -> ConfigDict:
    """Read the complete config of a run from the run's workdir.

    Raises:
        UserError: if the workdir has no readable config.
    """
    path = workdir / "config.json"
    try:
        config = ConfigDict(file_io.read_json(path))
        for group in ("data", "eval", "optim", "loss", "net", "method", "augment"):
            if not isinstance(config.get(group), ConfigDict):
                raise ValueError(f"the config lacks the group {group!r}")
        return config
    except OSError as error:
        raise UserError(
            f"{workdir} holds no run (cannot read {path}: {error.strerror}); {train_first(workdir)}"
        ) from error
    except JSON_ERRORS as error:
        raise UserError(
            f"{path} is not the config of a run ({one_line(error)}); choose another --workdir"
        ) from error


def complete_stored(config: ConfigDict) -> ConfigDict:
    """Check the config of a run that was read from a file, and add the defaults of new keys.

    This imports the files of its components.

    Raises:
        UserError: if a group or a key is missing or unknown, or a value has another type or is out
            of its range.
    """
    config = _unlocked(config, "it")
    _add_defaults(config)
    validate(config)
    return config


def differences(
    ours: Mapping[str, object], theirs: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """List "key: theirs -> ours" for each key that differs between two nested mappings.

    Args:
        ours: values of this command or process.
        theirs: the values that they are compared with. A missing key counts as None.
        prefix: of the keys.
    """
    lines = []
    for key in sorted(set(ours) | set(theirs)):
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {b!r} -> {a!r}")
    return lines


def join_differences(lines: list[str]) -> str:
    """Join the first three lines of a list of differences, and state the number of the others."""
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more


def conflicts(ours: ConfigDict, theirs: Settings) -> list[str]:
    """List the config differences that prevent a run from resuming.

    Args:
        ours: the config of this command.
        theirs: the config of the run, as read from JSON.
    """
    lines = differences(_comparable(ours.to_dict()), _comparable(theirs))
    # Files may have moved. The fingerprint of the training split tells whether they are the same.
    may_differ = {*CHANGEABLE_KEYS, *(f"data.{key}" for key in trusted.data_paths(ours.data))}
    earlier, lengths = (custom.texts(config.get("extended")) for config in (theirs, ours))
    if len(lengths) > len(earlier) and lengths[: len(earlier)] == earlier:
        may_differ |= {*LENGTH_KEYS}  # This command extends the run.
    if "mean" not in ours.data:
        may_differ |= {*values.MEASURED_KEYS}  # The images of this command are not measured yet.
    return [line for line in lines if line.partition(":")[0] not in may_differ]


def validate(config: ConfigDict) -> None:
    """Check types of config values, and ranges that no component checks.

    Raises:
        UserError: on a missing key, or a value of another type or out of its range.
    """
    values.check_common_keys(config)
    check_arguments(config)


def _write_times_as_text(config: ConfigDict) -> None:
    """Write the times of "steps" schedules as `values.time_as_text`."""
    for key, value in values.flat_keys(config).items():
        if not isinstance(value, ConfigDict) or not isinstance(value.get("values"), ConfigDict):
            continue
        numbers = value["values"].items()
        value["values"] = {values.time_as_text(key, time): number for time, number in numbers}


def _add_defaults(config: ConfigDict) -> None:
    """Add missing component arguments, and the keys that later versions have introduced."""
    for group in GROUPS:
        config[group] = complete_group(group, config[group])
    values.add_later_keys(config)


def _comparable(config: Mapping[str, object]) -> dict[str, object]:
    """Return a config as JSON stores it, without local folders.

    Missing keys and arguments, which an earlier version did not have, get their defaults. This
    imports no files of users.
    """
    result: Any = json.loads(json.dumps(custom.without_folders(config)))
    if isinstance(init := result.get("init"), str) and init:
        result["init"] = trusted.absolute(init)  # Earlier versions stored it as it was given.
    values.add_later_keys(result)
    for group, name in custom.names(result).items():
        if group in GROUPS and not components.is_custom(name):
            with suppress(UserError, ValueError):  # A group that is not valid stays as it is.
                result[group] = complete_group(group, ConfigDict(result[group])).to_dict()
    return json.loads(json.dumps(result))


def _unlocked(config: ConfigDict, source: str) -> ConfigDict:
    """Return an unlocked copy of a config that has all groups.

    Args:
        config: not necessarily complete.
        source: origin of the config, for the message.

    Raises:
        UserError: if a group or the name of its component is missing.
    """
    config = ConfigDict(config.to_dict()).unlock()
    for group in (*GROUPS, *VIEW_GROUPS):
        node = config.get(group)
        default = None if group in GROUPS else ""
        if not isinstance(node, ConfigDict) or not isinstance(node.get("name", default), str):
            raise UserError(
                f"{source} lacks the group {group!r}, or the name of its component; begin with a "
                "complete config, such as jaxssl.get_config('digits')"
            )
    return config


def _shorten_warmup(config: ConfigDict, overrides: Mapping[str, object]) -> None:
    """Fit the warm-up of a config file into a run that an override of `epochs` has shortened."""
    if config.total_steps or "epochs" not in overrides or "schedule.warmup_epochs" in overrides:
        return
    schedule = config.schedule
    if config.epochs <= schedule.warmup_epochs:
        before, schedule.warmup_epochs = schedule.warmup_epochs, config.epochs / 10
        _show_once(
            f"schedule.warmup_epochs reduced from {before:g} to {schedule.warmup_epochs:g} (10 % "
            f"of epochs), because epochs={config.epochs:g}"
        )


def _show_once(text: str) -> None:
    if not screen.quiet:
        _show(text)


@cache  # A grid loads the config of a run several times.
def _show(text: str) -> None:
    show(text)


def _is_choice(key: str) -> bool:
    """Return True for keys that choose a component, such as "loss.name" and "loss.preset"."""
    group, _, leaf = key.partition(".")
    return group in GROUPS and leaf in ("name", "preset")


def split_variant(config: str | Path) -> tuple[str, str]:
    """Split "FILE:VARIANT" into file and variant. Without a variant, the second part is ""."""
    file, _, variant = str(config).rpartition(":")
    # The path of a run in a bucket may have a colon before its last slash.
    is_whole = not file or (is_bucket(config) and "/" in variant) or Path(config).is_file()
    return (str(config), "") if is_whole else (file, variant)


def run_name(config: str | Path) -> str:
    """Return the name of a config for a folder: "auc_cl_cifar10" for "auc_cl:cifar10"."""
    file, variant = split_variant(config)
    return "_".join(filter(None, (Path(file).stem, variant)))


def find(path: str | Path, noun: str = "config") -> Path:
    """Return the file of a config or of a suite of data sets.

    Args:
        path: a Python file, or the name of a packaged file. Outside a checkout, "configs/NAME.py"
            and "configs/suites/NAME.py" are packaged files too.
        noun: "config" or "suite".

    Raises:
        UserError: if neither a file nor a packaged file has this name.
    """
    if is_bucket(path) or Path(path).is_file():
        return fetch(path)
    files = components.packaged(noun)
    for name, file in files.items():
        if str(path) in (name, f"configs/{file.relative_to(components.CONFIGS).as_posix()}"):
            return file
    hint = suggest(str(path), files)
    variants = [x for x in components.configs() if x.partition(":")[2] == str(path)]
    if noun == "config" and variants:
        hint = f"; did you mean {' or '.join(map(repr, variants[:MAX_NAMED]))}?"
    if Path(f"{path}.py").is_file():
        hint = f"; did you mean {f'{path}.py'!r}?"
    raise UserError(
        f"{noun} {str(path)!r} does not exist; expected a Python file or the name of a "
        f"packaged {noun}{hint}"
    )


def read(path: Path, variant: str = "") -> ConfigDict:
    """Execute a config file, and return the result of get_config() or get_config(variant) in it.

    Args:
        path: a Python file. If it has `VARIANTS`, these are the names of its variants.
        variant: name of a variant, or "" if the file has none.

    Raises:
        UserError: if the file fails, returns no config, or has no such variant.
    """
    loaded, source = components.load_file(path, "config file"), f"config file {str(path)!r}"
    get_config = getattr(loaded, "get_config", None)
    if variant and get_config and not inspect.signature(get_config).parameters:
        raise UserError(f"{source} has no variants; leave ':{variant}' out")
    names = getattr(loaded, "VARIANTS", {})
    if names and variant not in names:
        fault = f"has no variant {variant!r}" if variant else "needs a variant, as in NAME:VARIANT"
        raise UserError(f"{source} {fault}{suggest(variant, names)}")
    try:
        config = get_config(*filter(None, [variant])) if get_config else None
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{source} failed: {reason}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"{source} has no get_config() that returns a ConfigDict")
    return config

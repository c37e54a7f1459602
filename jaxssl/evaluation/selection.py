"""Select evaluation protocols by name, and drop protocols that do not fit the data set."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

import numpy as np

from jaxssl import components
from jaxssl.data import IN_MEMORY
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError, one_line, suggest
from jaxssl.evaluation.protocol import Protocol, Result
from jaxssl.training.output import logs


class Selected(NamedTuple):
    """An evaluation protocol and its preset, selected to run.

    Attributes:
        text: the request, "NAME" or "NAME:PRESET".
        name: name of the protocol. For a user's file it is FILE.py:NAME without the folder.
        preset: name of the preset, or None for the protocol's default.
        protocol: the protocol.
        named: whether the request names it, rather than "all".
    """

    text: str
    name: str
    preset: str | None
    protocol: Protocol
    named: bool = True


def select_protocols(names: Iterable[str], examples: str | None = None) -> list[Selected]:
    """Look up evaluation protocols by NAME or NAME:PRESET.

    Args:
        names: "NAME", "NAME:PRESET", or "all" for every protocol that fits the kind of examples.
        examples: kind of examples, a name of `jaxssl.data.kind`. None for every kind.

    Raises:
        UserError: if a protocol or preset is unknown.
    """
    names = list(names)
    selected = [_select(text) for text in names if text != "all"]
    if "all" not in names:
        return selected
    fitting = []
    for one in [_select(name) for name in components.names("protocol") if name not in names]:
        kinds = one.protocol.examples  # None stands for all kinds.
        if kinds is None or (kinds if examples is None else examples in kinds):
            fitting.append(one._replace(named=False))
    return fitting + selected


def _select(text: str) -> Selected:
    """Look up a protocol by NAME or NAME:PRESET, where NAME may be path/to/file.py:NAME."""
    folder_and_file, suffix, rest = text.rpartition(".py:")
    name, _, preset = rest.partition(":")
    name = f"{folder_and_file}{suffix}{name}"
    names = components.names("protocol")
    if name not in names and not components.is_custom(name) and not name.endswith(".py"):
        raise UserError(f"protocol {name!r} is unknown{suggest(name, [*names, 'all'])}")
    protocol = _as_protocol(name, components.factory("protocol", name))
    if preset and preset not in protocol.presets:
        raise UserError(
            f"preset {preset!r} of protocol {name!r} is unknown{suggest(preset, protocol.presets)}"
        )
    settings = protocol.presets.get(preset)
    if isinstance(settings, Mapping) and "training" in settings:  # It trains on images.
        protocol = protocol._replace(needs_features=False)
    return Selected(text, components.short_name(name), preset or None, protocol)


def _as_protocol(name: str, component: object) -> Protocol:
    """Return a component that is a protocol, or a user's function as a protocol without presets.

    Raises:
        UserError: if it is something else, or a function with other arguments.
    """
    if isinstance(component, Protocol):
        return component
    if not callable(component):
        raise UserError(
            f"protocol {name!r} must be a function (context, *, seed) or a Protocol, got "
            f"{type(component).__name__}"
        )
    try:
        inspect.signature(component).bind("context", seed=0)
    except (TypeError, ValueError) as error:  # ValueError: a built-in function without signature
        raise UserError(
            f"protocol {name!r} must be a function (context, *, seed) that needs no other "
            f"arguments, or a Protocol with presets: {one_line(error)}"
        ) from error
    return Protocol(cast(Callable[..., list[Result]], component), {})


def drop_unlabelled(selected: list[Selected], splits: Splits, *, strict: bool) -> list[Selected]:
    """Drop the protocols that do not fit the labels of the data set.

    These are protocols that need labels if the set has none or a single class, and protocols that
    do not support test images of classes without training images if the set has some.

    Args:
        selected: the protocols.
        splits: the data set.
        strict: raise an error instead of dropping a protocol that was requested by name.

    Raises:
        UserError: if such a protocol would be dropped.
    """
    if not splits.labelled:
        unfit = [one for one in selected if one.protocol.needs_labels]
        if names := [one.text for one in unfit if strict and one.named]:
            raise UserError(
                f"protocols {','.join(names)} need labels, and {splits.test.name!r} has none in "
                "data.bank_split (or train_split) or data.test_split"
            )
        reason = f"{splits.test.name!r} has no labels"
    elif len(np.union1d(splits.bank.labels, splits.test.labels)) < 2:
        unfit = [one for one in selected if one.protocol.needs_labels]
        reason = f"all labels of {splits.test.name!r} are the same"
        if names := [one.text for one in unfit if strict and one.named]:
            raise UserError(f"{reason}, so that any features have 100 % in {','.join(names)}")
    else:
        of_known = of_known_classes(selected)
        reason = describe_novel_classes(splits) if of_known else ""
        unfit = of_known if reason else []
        if any(strict and one.named for one in unfit):
            in_memory = splits.test.name == IN_MEMORY
            advice = "pass (train, test)" if in_memory else "choose another data.test_split"
            raise UserError(f"{reason}; {advice}, or a protocol for novel classes")
    if unfit:
        level = logging.WARNING if splits.labelled else logging.INFO
        logs.log.log(level, "left out, as %s: %s", reason, ",".join(one.text for one in unfit))
    return [one for one in selected if one not in unfit]


def of_known_classes(selected: Iterable[Selected]) -> list[Selected]:
    """Return the protocols that do not support test images of classes without training images."""
    return [x for x in selected if x.protocol.needs_labels and not x.protocol.novel_classes]


def describe_novel_classes(splits: Splits) -> str:
    """Describe the classes of test images without images in the bank, "" if the set has none."""
    novel = np.setdiff1d(splits.test.labels, splits.bank.labels)
    if not len(novel):
        return ""
    names = ", ".join(splits.test.class_names[label] for label in novel[:3])
    return (
        f"{splits.test.split!r} of {splits.test.name!r} has images of classes without images in "
        f"{splits.bank.split!r} ({len(novel)}: {names})"
    )

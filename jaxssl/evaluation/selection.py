"""Select evaluation protocols by name, and drop those that do not fit the data set."""

import inspect
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import numpy as np

from jaxssl import components
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError, one_line, suggest
from jaxssl.evaluation.protocol import Protocol, Result
from jaxssl.training.output import logs


class Selected(NamedTuple):
    """An evaluation protocol and its preset, selected to run.

    Attributes:
        text: the request, "NAME" or "NAME:PRESET".
        name: name of the protocol. For a user's file it is FILE.py:NAME without the folder.
        preset: name of the preset; None for the protocol's default.
        protocol: the protocol.
    """

    text: str
    name: str
    preset: str | None
    protocol: Protocol


def select_protocols(names: Iterable[str], examples: str = "image") -> list[Selected]:
    """Look up evaluation protocols by NAME or NAME:PRESET.

    Args:
        names: "NAME", "NAME:PRESET", or "all" for every protocol that fits the kind of examples.
        examples: kind of examples, a name of `jaxssl.data.kind`.

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
        if kinds is None or examples in kinds:
            fitting.append(one)
    return fitting + selected


def _select(text: str) -> Selected:
    """Look up a protocol by NAME or NAME:PRESET, where NAME may be path/to/file.py:NAME."""
    folder_and_file, suffix, rest = text.rpartition(".py:")
    name, _, preset = rest.partition(":")
    name = f"{folder_and_file}{suffix}{name}"
    names = components.names("protocol")
    if name not in names and not components.is_custom(name):
        raise UserError(f"protocol {name!r} is unknown{suggest(name, [*names, 'all'])}")
    protocol = _as_protocol(name, components.factory("protocol", name))
    if preset and preset not in protocol.presets:
        raise UserError(
            f"preset {preset!r} of protocol {name!r} is unknown{suggest(preset, protocol.presets)}"
        )
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
    except TypeError as error:
        raise UserError(
            f"protocol {name!r} must be a function (context, *, seed) that needs no other "
            f"arguments, or a Protocol with presets: {one_line(error)}"
        ) from error
    return Protocol(cast(Callable[..., list[Result]], component), {})


def drop_unlabelled(selected: list[Selected], splits: Splits, *, strict: bool) -> list[Selected]:
    """Drop the protocols that need labels if the data set has none.

    Args:
        selected: the protocols.
        splits: the data set.
        strict: raise an error instead of dropping a protocol.

    Raises:
        UserError: if a protocol would be dropped and ``strict`` is set, or if the test split has
            classes without training images and a protocol does not support that.
    """
    if splits.labelled:
        if any(x.protocol.needs_labels and not x.protocol.novel_classes for x in selected):
            _require_no_novel_classes(splits)
        return selected
    dropped = [one.text for one in selected if one.protocol.needs_labels]
    if dropped and strict:
        raise UserError(
            f"protocols {','.join(dropped)} need labels, and {splits.test.name!r} has none in "
            "data.bank_split (or train_split) or data.test_split"
        )
    if dropped:
        logs.log.info("left out, as %r has no labels: %s", splits.test.name, ",".join(dropped))
    return [one for one in selected if one.text not in dropped]


def _require_no_novel_classes(splits: Splits) -> None:
    """Raise UserError if the test split has images of a class without images in the bank."""
    novel = np.setdiff1d(splits.test.labels, splits.bank.labels)
    if len(novel):
        names = [splits.test.class_names[label] for label in novel[:3]]
        raise UserError(
            f"{splits.test.split!r} of {splits.test.name!r} has images of classes without "
            f"images in {splits.bank.split!r} ({len(novel)}: {', '.join(names)}); choose "
            "another data.test_split or a protocol for novel classes"
        )

"""Select evaluation protocols by name, and drop those that do not fit the data set."""

import inspect
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxssl import components
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError, one_line, suggest
from jaxssl.evaluation.protocol import Protocol
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
    others = [_select(name) for name in components.names("protocol") if name not in names]
    # A protocol that names no kinds of examples takes all of them.
    fitting = [
        one for one in others if (kinds := one.protocol.examples) is None or examples in kinds
    ]
    return fitting + selected


def _select(text: str) -> Selected:
    # NAME may be path/to/file.py:NAME.
    folder_and_file, suffix, rest = text.rpartition(".py:")
    name, _, preset = rest.partition(":")
    name = f"{folder_and_file}{suffix}{name}"
    names = components.names("protocol")
    if name not in names and not components.is_custom(name):
        raise UserError(f"protocol {name!r} is unknown{suggest(name, [*names, 'all'])}")
    protocol = components.factory("protocol", name)
    if not isinstance(protocol, Protocol):
        if not callable(protocol):
            raise UserError(
                f"protocol {name!r} must be a function (context, *, seed) or a Protocol, got "
                f"{type(protocol).__name__}"
            )
        try:
            inspect.signature(protocol).bind("context", seed=0)
        except TypeError as error:
            raise UserError(
                f"protocol {name!r} must be a function (context, *, seed) that needs no other "
                f"arguments, or a Protocol with presets: {one_line(error)}"
            ) from error
        protocol = Protocol(protocol, {})
    if preset and preset not in protocol.presets:
        raise UserError(
            f"preset {preset!r} of protocol {name!r} is unknown{suggest(preset, protocol.presets)}"
        )
    return Selected(text, components.short_name(name), preset or None, protocol)


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
        unseen = np.setdiff1d(splits.test.labels, splits.bank.labels)
        if len(unseen) and not all(one.protocol.novel_classes for one in selected):
            names = [splits.test.class_names[label] for label in unseen[:3]]
            raise UserError(
                f"{splits.test.split!r} of {splits.test.name!r} has images of classes without "
                f"images in {splits.bank.split!r} ({len(unseen)}: {', '.join(names)}); choose "
                "another data.test_split or a protocol for novel classes"
            )
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

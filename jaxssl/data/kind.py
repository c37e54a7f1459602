"""Kinds of examples: images, images with captions, videos and graphs.

Each file of `jaxssl/kinds/` defines one kind. The rest of the package reads all that depends on the
kind from its `Kind`. A recipe of views and a network name their kind in the constant ``EXAMPLES``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.records import CaptionReader, Record
from jaxssl.errors import UserError

if TYPE_CHECKING:
    from jaxssl.data.batches import Plan, Reader

Shape = tuple[Any, ...]  # sizes of the axes of an example, None where examples differ


class Opened(NamedTuple):
    """Shape and decoders of the examples of a prepared data set.

    Attributes:
        shape: shape of the examples, see `jaxssl.data.splits.Source`.
        decode: see `jaxssl.data.records.PreparedSplit`.
        captions: see `jaxssl.data.records.PreparedSplit`.
        decoders: for TFDS, the features that it must not decode.
        for_labels: the features that it must not decode if only labels are read.
    """

    shape: Shape
    decode: Callable[[Record], Any]
    captions: CaptionReader | None = None
    decoders: dict[str, object] = {}
    for_labels: dict[str, object] = {}


class Kind(NamedTuple):
    """A kind of examples (images, clips, ...): all functions that differ between kinds.

    Attributes:
        units: the examples in words, such as "images".
        data: name of the kind of data set, which is "image" for captioned images.
        open: ``(folder, features, metadata, config.data) -> Opened`` for a prepared data set.
        describe: ``shape -> text``, the size of the examples in words.
        plan: ``(source, crops, cache, workers) -> Plan``, see `jaxssl.data.batches`.
        make_reader: ``(source, order, rows, crops) -> Reader`` of batches, see
            `jaxssl.data.batches`.
        array: ``(source, inputs) -> examples``, all examples of a split for evaluation.
        views: ``recipe of each view -> augment``. For images it also takes ``crops``, the recipes
            of small crops, and ``scale``, see `jaxssl.augment.views.make_views`.
        find_crops: ``(size, arguments of each view, of each small crop) -> Crops`` that the host
            can cut.
        view_shapes: ``(config, inputs) -> views`` of a batch of two, as `jax.ShapeDtypeStruct`.
        inputs: ``(config, shape of an example) -> inputs``, which prepare examples for a network.
        infer_inputs: ``(config, network, variables) -> inputs`` of a trained network.
        fit_inputs: ``(inputs, test split) -> inputs``. Raises UserError if they do not fit.
        raw_features: ``(examples, extract) -> [n, f]``, features without a network.
        show: ``(source, indices, size) -> images`` uint8 [n, h, w, c] of examples, for people.
        draw: ``examples [..., *shape] -> images [..., h, w, c]``.
        is_drawn: ``inputs -> bool``, whether a page can show the examples.
        statistics: ``(config.data.normalise, split, size) -> entries of config.data`` by which the
            views are scaled. None if examples cannot be measured.
        batch_of: ``images -> input`` of the views, without labels and captions. None if protocols
            cannot draw views.
        left_out: ``(settings of a view, channels) -> names`` of its operations that are left out.
        check: ``() -> None``. Raises UserError if an optional package is missing.
        small_crops: whether small crops may be used in addition to the views.
        pictures: whether arrays and files of pictures from Python can be trained on and embedded.
        captions: whether the examples have captions, which need a network for text.
        frames: number of frames in the drawing of an example.
    """

    units: str
    data: str
    open: Callable[..., Opened]
    describe: Callable[[Shape], str]
    plan: "Callable[..., Plan]"
    make_reader: "Callable[..., Reader]"
    array: Callable
    views: Callable
    view_shapes: Callable[..., dict]
    inputs: Callable
    infer_inputs: Callable
    fit_inputs: Callable
    raw_features: Callable[..., np.ndarray]
    find_crops: Callable[..., Crops] = lambda size, views, small: Crops((), (), size)
    show: Callable[..., np.ndarray] | None = None
    draw: Callable[[np.ndarray], np.ndarray] = lambda examples: examples
    is_drawn: Callable[..., bool] = lambda inputs: True
    statistics: Callable[..., dict[str, tuple[float, ...]]] | None = None
    batch_of: Callable | None = None
    left_out: Callable[..., list[str]] = lambda settings, channels: []
    check: Callable[[], object] = lambda: None
    small_crops: bool = False
    pictures: bool = False
    captions: bool = False
    frames: int = 0


def get(name: str) -> Kind:
    """Return the kind of examples of this name, which is a file name in `jaxssl/kinds/`."""
    return components.module("kind", name).kind


def name_of(config: Settings) -> str:
    """Return the name of a run's kind of examples, which the augmentation recipe determines."""
    return getattr(components.module("augment", config["augment"]["name"]), "EXAMPLES", "image")


def of(config: Settings) -> Kind:
    """Return the kind of examples that a run is trained on, from the run's config."""
    return get(name_of(config))


def of_network(net: str) -> str:
    """Return the name of the kind of examples that a network takes."""
    return getattr(components.module("net", net), "EXAMPLES", "image")


def require(name: str, stored: str, expected: str) -> None:
    """Raise UserError unless the data set of this name holds examples of the expected kind."""
    if stored != expected:
        raise UserError(
            f"data.name={name!r} holds {units(stored)}, but augment.name or the encoder takes "
            f"{units(expected)}; change one of them"
        )


def units(name: str) -> str:
    """Return the examples of a kind in words, such as "images", or the name of an unknown kind."""
    return get(name).units if name in components.names("kind") else name

"""What protocols are run on: the features, images and network of a backbone on a data set."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import encoder as networks
from jaxssl import parallel
from jaxssl.augment import recipes
from jaxssl.augment.views import Inputs, make_views, preprocess, resized, standardise, to_uint8
from jaxssl.backbone import Backbone, Variables, make_encode
from jaxssl.build import make_augment
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evals import Features, Subject
from jaxssl.features import extract
from jaxssl.tune import Network

RAW = Inputs(size=32, channels=3)  # raw pixels are compared at this size, if images are larger
BLOCK = 256  # images whose views are made at a time


def subjects(
    found: Backbone,
    config: ConfigDict | None,
    splits: source.Splits,
    kinds: Sequence[str],
    mesh: Mesh,
    *,
    layer: str = "backbone",
    features: bool = True,
    seed: int,
) -> Iterator[tuple[str, Subject]]:
    """Each kind, and what protocols are run on: its features, images and network.

    Args:
        found: the pretrained backbone.
        config: of its run, whose views are taken; None takes SimCLR's.
        splits: of the data set.
        kinds: some of `KINDS`.
        mesh: the devices.
        layer: "backbone" or "projector".
        features: whether those of all images are taken; else they are empty.
        seed: of the untrained network.

    Raises:
        UserError: if the network does not take the images, or has no such layer.
    """
    channels = splits.test.shape[2]
    if channels > found.inputs.channels:
        raise UserError(
            f"the network takes images of {found.inputs.channels} channel, those of "
            f"{splits.test.name!r} have {channels}"
        )
    # Pictures of many sizes are cut to the middle when they are read.
    inputs = found.inputs if splits.test.one_size else found.inputs._replace(crop=0.0)
    apply = make_encode(found, inputs, layer)
    # Views are of the network's size already, and whole.
    of_views = make_encode(found, inputs._replace(crop=0.0), layer) if inputs.crop else apply
    augment, images = _make_augment(config, inputs), arrays(splits, inputs.size)

    def subject(kind: str) -> Subject:
        network, encode = None, partial(raw_pixels, mesh=mesh)
        encode_views = encode
        if kind != "raw":
            untrained = kind == "untrained"
            variables = found.untrained(seed) if untrained else (found.net, found.projector)
            on_devices = parallel.replicate(variables, mesh)
            encode, encode_views = (
                partial(extract, apply=encode, variables=on_devices, mesh=mesh)
                for encode in (apply, of_views)
            )
            network = make_network(found, variables[0]) if layer == "backbone" else None
        none = np.zeros((0, 0), np.float32)
        of_all = []
        for split in ("train", "test"):
            own = parallel.own_part(len(images[split]["label"]))
            of_all += [
                encode(images[split]["image"], part=own) if features else none,
                images[split]["label"][own],
            ]
        return Subject(
            Features(*of_all),
            splits.bank,
            splits.test,
            encode,
            partial(_views, augment, encode_views),
            network,
            inputs.size,
            mesh,
        )

    for kind in kinds:
        yield kind, subject(kind)


def make_network(found: Backbone, variables: Variables) -> Network:
    """A backbone as `jaxssl.tune` trains it."""
    inputs, encoder = found.inputs, found.encoder

    def apply(
        variables: Any,
        images: Array,
        *,
        train: bool,
        axis_name: str | None = None,
        keys: Array | None = None,
    ) -> tuple[Array, Any]:
        x = standardise(images, inputs)
        params, stats = variables["params"], variables["batch_stats"]
        if not train:
            return networks.features(encoder, params, stats, x), variables
        h, stats = networks.features_in_training(
            encoder, params, stats, x, axis_name=axis_name, keys=keys
        )
        return h, {"params": params, "batch_stats": stats}

    tree = {"params": variables.params, "batch_stats": variables.batch_stats}
    return Network(apply, tree, inputs.size, inputs.channels, inputs.crop)


def _make_augment(config: ConfigDict | None, inputs: Inputs) -> Any:
    """The jitted ``(key, uint8 images, index) -> uint8 [n, s, s, c]``, one view of each."""
    if config is None:
        augment = make_views([recipes.simclr(size=inputs.size)])
    else:
        augment = make_augment(ConfigDict({**config.to_dict(), "views": 1, "crops": {"number": 0}}))

    @jax.jit
    def view(key: Array, images: Array, index: Array) -> Array:
        return to_uint8(augment(key, images, index)["views"])[0]

    return view


def _views(augment: Any, encode: Any, images: np.ndarray, number: int, seed: int) -> np.ndarray:
    """`Subject.views`; the views of a block of images are made when they are encoded."""
    key, found = jax.random.key(seed), []
    size = min(BLOCK, len(images))
    for first in range(0, len(images), size):
        part = images[first : first + size]
        filled = np.zeros((size, *part.shape[1:]), part.dtype)
        filled[: len(part)] = part
        index = np.arange(first, first + size, dtype=np.int32)
        keys = (jax.random.fold_in(key, view) for view in range(number))
        made = (np.asarray(augment(k, filled, index))[: len(part)] for k in keys)
        found.append(np.stack([encode(view) for view in made]))
    return np.concatenate(found, axis=1)


def arrays(splits: source.Splits, size: int) -> dict[str, dict[str, Any]]:
    """Images and labels of the "train" part, which evaluation learns from, and of the "test" part.

    Images of many sizes are cut to ``size``; those of too large a split are decoded when used.
    """
    parts = {"train": splits.bank, "test": splits.test}
    return {name: {"image": s.images(size), "label": s.labels} for name, s in parts.items()}


def raw_pixels(images: np.ndarray, mesh: Mesh, part: slice | None = None) -> np.ndarray:
    """[n, f] pixels in [0, 1], of images larger than `RAW` resized to it; of ``part`` or all."""
    if max(images.shape[1:3]) <= RAW.size:
        images = images[part or slice(None)]
        return np.reshape(images, (len(images), -1)) / np.float32(255)
    inputs = RAW._replace(channels=images.shape[3])
    return extract(images, _shrink, inputs, mesh, part)


@partial(jax.jit, static_argnums=0)
def _shrink(inputs: Inputs, block: Array) -> Array:
    return resized(block, inputs).reshape(len(block), -1)


def make_encoder(method: Any, inputs: Inputs) -> Any:
    """The jitted `((params, carried), uint8 images) -> backbone features` of a run in progress."""

    def encode(variables: tuple[Any, Any], images: Array) -> Array:
        return method.features(*variables, preprocess(images, inputs))

    return jax.jit(encode)

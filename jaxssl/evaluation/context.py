"""What protocols are run on: the features, images and network of a backbone on a data set."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.augment import recipes
from jaxssl.augment.views import Inputs, make_views, resize_images, standardise, to_uint8
from jaxssl.data import source
from jaxssl.data.packing import GraphArray
from jaxssl.errors import UserError
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.finetuning import Network
from jaxssl.evaluation.protocol import EvalContext, Features, Joint
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Variables
from jaxssl.pretrained.encoder import Backbone, make_encode, make_encode_text
from jaxssl.training import modality
from jaxssl.training.build import make_augment

DEGREES = 32  # of nodes, are told apart
RAW_FRAME = 16  # pixels a side of a frame, where raw clips are compared
RAW = Inputs(size=32, channels=3)  # raw pixels are compared at this size, if images are larger
BLOCK = 256  # images whose views are made at a time


def eval_contexts(
    found: Backbone,
    config: ConfigDict | None,
    splits: source.Splits,
    kinds: Sequence[str],
    mesh: Mesh,
    *,
    layer: str = "backbone",
    features: bool = True,
    seed: int,
) -> Iterator[tuple[str, EvalContext]]:
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
    is_image = found.inputs.kind == "image"
    inputs = _fitting(found.inputs, splits.test)
    if inputs.kind == "video":
        inputs = inputs._replace(copies=10)
    apply = make_encode(found, inputs, layer)
    of_views, augment, images = apply, None, arrays(splits, inputs)
    if is_image:
        augment = _make_augment(config, inputs)
        # Views are of the network's size already, and whole.
        of_views = make_encode(found, inputs._replace(crop=0.0), layer) if inputs.crop else apply
    raw = {"image": partial(raw_pixels, mesh=mesh), "graph": histograms}
    raw["video"] = partial(raw_clips, mesh=mesh)
    joint = _make_joint(found, inputs, splits, mesh, seed) if found.text else None

    def context(kind: str) -> EvalContext:
        network, encode = None, raw[inputs.kind]
        encode_views = encode
        if kind != "raw":
            untrained = kind == "untrained"
            variables = found.untrained(seed) if untrained else (found.net, found.projector)
            on_devices = distributed.replicate(variables, mesh)
            encode, encode_views = (
                partial(extract, apply=encode, variables=on_devices, mesh=mesh)
                for encode in (apply, of_views)
            )
            if is_image and layer == "backbone":
                network = make_network(found, variables[0])
        none = np.zeros((0, 0), np.float32)
        of_all = []
        for split in ("train", "test"):
            own = distributed.process_slice(len(images[split]["label"]))
            of_all += [
                encode(images[split]["input"], part=own) if features else none,
                images[split]["label"][own],
            ]
        return EvalContext(
            Features(*of_all),
            splits.bank,
            splits.test,
            encode,
            partial(_views, augment, encode_views) if is_image else None,
            network,
            inputs.size if is_image else 0,
            mesh,
            joint(kind) if joint and kind != "raw" else None,
        )

    for kind in kinds:
        yield kind, context(kind)


def _make_joint(
    found: Backbone, inputs: Any, splits: source.Splits, mesh: Mesh, seed: int
) -> Callable[[str], Joint]:
    """Where images and texts meet, by the kind of features; the towers are compiled once."""
    encode, encode_text = make_encode(found, inputs, "projector"), make_encode_text(found)

    def joint(kind: str) -> Joint:
        towers = (found.net, found.projector), found.text
        if kind == "untrained":
            towers = found.untrained(seed), found.untrained_text(seed)
        of_images, of_texts = distributed.replicate(towers, mesh)
        return Joint(
            lambda: extract(splits.test.images(inputs.size), encode, of_images, mesh),
            lambda texts: extract(texts, encode_text, of_texts, mesh),
            found.facts["config"]["data"]["context"],
        )

    return joint


def _fitting(inputs: Any, test: source.Source) -> Any:
    """How the network wants the examples of a set, if it can take them."""
    if inputs.kind == "graph":
        (num_tags,) = test.shape
        if num_tags != inputs.num_tags:
            raise UserError(
                f"the network takes graphs of {inputs.num_tags} tags, those of {test.name!r} have "
                f"{num_tags}"
            )
        return inputs
    channels = test.shape[-1]
    if inputs.kind == "video":
        if channels != inputs.channels or (test.shape[0] or inputs.span) < inputs.span:
            raise UserError(
                f"the network takes clips of {inputs.span} frames or more and {inputs.channels} "
                f"channels, those of {test.name!r} have {test.shape[0] or 'any'} and {channels}"
            )
        return inputs
    if channels > inputs.channels:
        raise UserError(
            f"the network takes images of {inputs.channels} channel, those of {test.name!r} have "
            f"{channels}"
        )
    # Pictures of many sizes are cut to the middle when they are read.
    return inputs if test.one_size else inputs._replace(crop=0.0)


def make_network(found: Backbone, variables: Variables) -> Network:
    """A backbone as `jaxssl.evaluation.finetuning` trains it."""
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

    captions = config is not None and modality.example_kind(config) == "image_text"

    @jax.jit
    def view(key: Array, images: Array, index: Array) -> Array:
        given: Any = images
        if captions:  # any: only the view of the image is looked at
            given = {"image": images, "text": jnp.zeros((len(images), 1, 1), jnp.int32)}
        return to_uint8(augment(key, given, index)["views"])[0]

    return view


def _views(augment: Any, encode: Any, images: np.ndarray, number: int, seed: int) -> np.ndarray:
    """`EvalContext.views`; the views of a block of images are made when they are encoded."""
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


def arrays(splits: source.Splits, inputs: Any) -> dict[str, dict[str, Any]]:
    """Inputs and labels of the "train" part, which evaluation learns from, and of the "test" part.

    Images of many sizes are cut to the network's; those of too large a split are decoded when used.
    """
    parts = {"train": splits.bank, "test": splits.test}

    def of(s: source.Source) -> Any:
        if s.kind == "video":
            return s.video_array(inputs.span)
        return s.graph_array if s.kind == "graph" else s.images(inputs.size)

    return {name: {"input": of(s), "label": s.labels} for name, s in parts.items()}


def histograms(graphs: GraphArray, part: slice | None = None) -> np.ndarray:
    """[n, f] what of a graph is known without learning: counts of degrees and of tags, its size.

    Degrees above 32 count as 32; of nodes and edges the logarithm of one more than there are.
    """
    rows = []
    for tag, edge in graphs.graphs[part or slice(None)]:
        degree = np.bincount(edge.ravel(), minlength=len(tag))
        size = np.log1p([len(tag), len(edge)])
        of_degree = np.bincount(np.minimum(degree, DEGREES), minlength=DEGREES + 1)
        rows.append(np.concatenate([of_degree, np.bincount(tag, minlength=graphs.num_tags), size]))
    return np.array(rows, np.float32)


def raw_pixels(images: np.ndarray, mesh: Mesh, part: slice | None = None) -> np.ndarray:
    """[n, f] pixels in [0, 1], of images larger than `RAW` resized to it; of ``part`` or all."""
    if max(images.shape[1:3]) <= RAW.size:
        images = images[part or slice(None)]
        return np.reshape(images, (len(images), -1)) / np.float32(255)
    inputs = RAW._replace(channels=images.shape[3])
    return extract(images, _shrink, inputs, mesh, part)


def raw_clips(clips: Any, mesh: Mesh, part: slice | None = None) -> np.ndarray:
    """[n, f] the pixels of all frames, in [0, 1], resized to `RAW_FRAME` pixels a side."""
    return extract(clips, _shrink, Inputs(RAW_FRAME, clips.shape[4]), mesh, part)


@partial(jax.jit, static_argnums=0)
def _shrink(inputs: Inputs, block: Array) -> Array:
    images = block.reshape(-1, *block.shape[-3:])  # the frames of clips, one by one
    return resize_images(images, inputs).reshape(len(block), -1)

"""Build the contexts that protocols evaluate: features, images and encoder on a data set."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.augment import recipes
from jaxssl.augment.views import Inputs, make_views, to_uint8
from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import raw_features
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.protocol import EvalContext, Features
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode, make_encode_text
from jaxssl.training import modality
from jaxssl.training.build import make_augment

BLOCK = 256  # number of images whose random views are made together


class _Programs(NamedTuple):
    """Jitted feature functions, which pretrained and untrained weights share."""

    encode: Callable[..., Array]
    encode_views: Callable[..., Array]
    embed_images: Callable[..., Array] | None = None  # None for an encoder without text
    embed_texts: Callable[..., Array] | None = None


def make_contexts(
    pretrained: PretrainedEncoder,
    config: ConfigDict | None,
    splits: source.Splits,
    kinds: Sequence[str],
    mesh: Mesh,
    *,
    layer: str = "backbone",
    features: bool = True,
    seed: int,
) -> Iterator[tuple[str, EvalContext]]:
    """Yield each kind of features with the context that protocols evaluate.

    Args:
        pretrained: the encoder.
        config: the run's config, which defines the augmented views, or None for SimCLR's views.
        splits: the data set.
        kinds: some of "raw", "untrained", "pretrained".
        mesh: the devices.
        layer: "backbone" or "projector".
        features: extract the features of all images. Otherwise they are empty.
        seed: of the untrained network.

    Raises:
        UserError: if the encoder cannot take the examples, or has no such layer.
    """
    inputs = resolve_inputs(pretrained.inputs, splits.test)
    programs = _make_programs(pretrained, inputs, layer)
    data = arrays(splits, inputs)
    augment = _make_augment(config, inputs) if inputs.kind == "image" else None
    for kind in kinds:
        fields: dict[str, Any] = {}
        if kind == "raw":
            encode = encode_views = raw_features.make_encode(inputs.kind, mesh)
        else:
            variables = pretrained.untrained(seed) if kind == "untrained" else pretrained.variables
            run = _make_run(distributed.replicate(variables, mesh), mesh)
            encode, encode_views = (partial(run, program) for program in programs[:2])
            if augment is not None and layer == "backbone":
                fields["encoder"] = pretrained._replace(variables=variables)
            if programs.embed_texts is not None:
                fields["embed_images"] = partial(run, programs.embed_images, data["test"]["input"])
                fields["embed_texts"] = partial(run, programs.embed_texts)
                fields["text_length"] = pretrained.metadata["config"]["data"]["context"]
        if augment is not None:
            fields["views"] = partial(_encode_views, augment, encode_views)
            fields["size"] = inputs.size
        columns = _features(encode if features else None, data)
        yield kind, EvalContext(columns, splits.bank, splits.test, encode, mesh=mesh, **fields)


def arrays(splits: source.Splits, inputs: Any) -> dict[str, dict[str, Any]]:
    """Return inputs and labels of evaluation's training part (the bank) and test part.

    Images of different sizes are cropped to the network's size. A split that does not fit into
    memory is decoded when it is read.
    """

    def examples(split: source.Source) -> Any:
        if split.kind == "video":
            return split.video_array(inputs.span)
        return split.graph_array if split.kind == "graph" else split.images(inputs.size)

    parts = {"train": splits.bank, "test": splits.test}
    return {name: {"input": examples(s), "label": s.labels} for name, s in parts.items()}


def resolve_inputs(inputs: Any, test: source.Source) -> Any:
    """Adapt an encoder's input settings to a data set, or raise UserError if they do not fit.

    Raises:
        UserError: if the encoder cannot take its examples.
    """
    if inputs.kind == "graph":
        (num_tags,) = test.shape
        if num_tags != inputs.num_tags:
            raise UserError(
                f"the encoder takes graphs with {inputs.num_tags} node tags, but {test.name!r} has "
                f"{num_tags}"
            )
        return inputs
    channels = test.shape[-1]
    if inputs.kind == "video":
        if channels != inputs.channels or (test.shape[0] or inputs.span) < inputs.span:
            raise UserError(
                f"the encoder takes clips of {inputs.span} frames or more and {inputs.channels} "
                f"channels, {test.name!r} has {test.shape[0] or 'any'} and {channels}"
            )
        return inputs._replace(copies=10)
    if channels > inputs.channels:
        raise UserError(
            f"the encoder takes images of {inputs.channels} channel, {test.name!r} has {channels}"
        )
    # Images of different sizes are already centre-cropped when they are read.
    return inputs if test.one_size else inputs._replace(crop=0.0)


def _make_programs(pretrained: PretrainedEncoder, inputs: Any, layer: str) -> _Programs:
    encode = encode_views = make_encode(pretrained, inputs, layer)
    if inputs.kind == "image" and inputs.crop:
        # Random views are not cropped again, because they already have the network's size.
        encode_views = make_encode(pretrained, inputs._replace(crop=0.0), layer)
    if pretrained.encoder.text is None:
        return _Programs(encode, encode_views)
    embed = make_encode(pretrained, inputs, "projector"), make_encode_text(pretrained)
    return _Programs(encode, encode_views, *embed)


def _make_run(variables: Any, mesh: Mesh) -> Callable[..., np.ndarray]:
    def run(program: Callable[..., Array], examples: Any, part: slice | None = None) -> np.ndarray:
        return extract(examples, program, variables, mesh, part)

    return run


def _features(encode: Callable[..., np.ndarray] | None, data: dict[str, Any]) -> Features:
    """Return this process's share of features and labels.

    Without ``encode``, features are empty.
    """
    columns = []
    for split in (data["train"], data["test"]):
        part = distributed.process_slice(len(split["label"]))
        empty = np.zeros((0, 0), np.float32)
        columns += [encode(split["input"], part=part) if encode else empty, split["label"][part]]
    return Features(*columns)


def _make_augment(config: ConfigDict | None, inputs: Inputs) -> Callable[..., Array]:
    """Return the jitted function that draws one random view of each image as uint8."""
    if config is None:
        augment = make_views([recipes.simclr(size=inputs.size)])
    else:
        augment = make_augment(ConfigDict({**config.to_dict(), "views": 1, "crops": {"number": 0}}))
    has_text = config is not None and modality.example_kind(config) == "image_text"

    @jax.jit
    def view(key: Array, images: Array, index: Array) -> Array:
        batch: Any = images
        if has_text:  # The view of the caption is not used.
            batch = {"image": images, "text": jnp.zeros((len(images), 1, 1), jnp.int32)}
        return to_uint8(augment(key, batch, index)["views"])[0]

    return view


def _encode_views(
    augment: Any, encode: Callable[..., np.ndarray], images: np.ndarray, number: int, seed: int
) -> np.ndarray:
    """Return the features of ``number`` random views of each image, [number, n, f]."""
    key, blocks = jax.random.key(seed), []
    size = min(BLOCK, len(images))
    for first in range(0, len(images), size):
        block = images[first : first + size]
        padded, index = (
            distributed.pad_rows(block, size),
            np.arange(first, first + size, dtype=np.int32),
        )
        keys = [jax.random.fold_in(key, view) for view in range(number)]
        views = (np.asarray(augment(k, padded, index))[: len(block)] for k in keys)
        blocks.append(np.stack([encode(view) for view in views]))
    return np.concatenate(blocks, axis=1)

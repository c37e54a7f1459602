"""PretrainedEncoder: networks, variables, input settings and metadata in one type."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.typing import VariableDict
from jax import Array
from jax import numpy as jnp

from jaxssl.augment.views import Inputs
from jaxssl.components import Settings
from jaxssl.errors import UserError
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder
from jaxssl.training.workdir import digests, run_record

LAYERS = ("backbone", "projector")
Variables = Mapping[str, VariableDict]  # {"params", "batch_stats"} by the name of a network


class PretrainedEncoder(NamedTuple):
    """An encoder with variables, the input format that the backbone expects, and metadata.

    Attributes:
        encoder: the networks.
        variables: {"params", "batch_stats"} of each network by name: "net" (the backbone),
            "projector" unless the weights have none, and, after training on captions, "text" with
            another "net" and "projector".
        inputs: size, channels and scaling of the backbone's inputs: `jaxssl.augment.views.Inputs`,
            or the type of another kind of examples in `jaxssl.kinds`.
        untrained: ``(seed) -> variables`` as they are before training.
        metadata: JSON-able, with "source", "step", "checkpoint", "loss", "net" (the config of the
            backbone), "config" if the encoder is from a run, and
            `jaxssl.pretrained.position_tables.Fitted.origin` for learned positions of a file.
    """

    encoder: Encoder
    variables: Variables
    inputs: Any
    untrained: Callable[[int], Variables]
    metadata: Settings


def weights_digest(pretrained: PretrainedEncoder) -> str:
    """Return a digest of an encoder's variables, network and input format.

    Several processes must call this together.
    """
    network, inputs = pretrained.metadata["net"], repr(pretrained.inputs)
    return run_record.digest([digests.compute(pretrained.variables), dict(network), inputs])


def make_apply(pretrained: PretrainedEncoder) -> Callable[[VariableDict, Array], Array]:
    """Return the backbone in evaluation mode as a pure function.

    It is ``(variables, x [n, s, s, c]) -> [n, f]`` float32. Its variables are
    ``pretrained.variables["net"]``, and x comes from ``pretrained.inputs.prepare``. Integers, such
    as uint8 images, raise UserError.
    """

    def apply(variables: VariableDict, x: Any) -> Array:
        if any(jnp.issubdtype(jnp.result_type(leaf), jnp.integer) for leaf in _images(x)):
            raise UserError("apply takes prepared images, got integers; pass preprocess(images)")
        return _features(pretrained.encoder, {"net": variables}, x)

    return apply


def _images(x: object) -> list[Array]:
    """Return images as a list. Return [] for graphs, because their edges are integers."""
    return [] if isinstance(x, Mapping) else jax.tree.leaves(x)


def make_encode(
    pretrained: PretrainedEncoder, inputs: Inputs, layer: str = "backbone"
) -> Callable[[Variables, Array], Array]:
    """Return the jitted feature function ``(variables, uint8 images) -> [n, f]`` float32.

    Args:
        pretrained: the networks. Variables are an argument of the result, so that one compiled
            function serves pretrained and untrained variables.
        inputs: ``pretrained.inputs``, or without the central crop if images are cropped already.
        layer: "backbone" for its features, "projector" for embeddings.

    Raises:
        UserError: if the layer is unknown, or the weights have no projector.
    """
    if layer not in LAYERS:
        raise UserError(f"layer must be one of {', '.join(LAYERS)}, got {layer!r}")
    if layer == "projector" and "projector" not in pretrained.variables:
        raise UserError("layer 'projector': these weights have no projector; use 'backbone'")

    def encode(variables: Variables, images: Array) -> Array:
        h = _features(pretrained.encoder, variables, inputs.prepare(images))
        if inputs.copies > 1:  # The features of several crops of one example are averaged.
            h = h.reshape(-1, inputs.copies, h.shape[1]).mean(axis=1)
        return h if layer == "backbone" else _project(pretrained.encoder, variables, h)

    return jax.jit(encode)


def make_encode_text(pretrained: PretrainedEncoder) -> Callable[[Variables, Array], Array]:
    """Return the jitted text function ``(variables, tokens [n, length]) -> [n, d]`` float32.

    Raises:
        ValueError: if the encoder has no text tower.
    """
    tower = pretrained.encoder.text
    if tower is None:
        raise ValueError(
            "the encoder has no text network; load a model that was trained on captions"
        )

    def encode(variables: Variables, tokens: Array) -> Array:
        text = variables["text"]
        return _project(tower, text, _features(tower, text, tokens))

    return jax.jit(encode)


def require_valid(variables: object, source: object) -> None:
    """Raise UserError if an array is not finite or a variance negative.

    Features may be finite all the same.

    Args:
        variables: NumPy arrays.
        source: the file or folder of the variables, for the message.
    """
    for name, array in digests.by_name(variables).items():
        fault = None
        if not np.isfinite(array).all():
            fault = "values that are not finite"
        elif name.startswith("batch_stats/") and name.endswith("/var") and (array < 0).any():
            fault = "a negative variance"
        if fault:
            raise UserError(
                f"{source}: {name} has {fault}; the training diverged, or the file is damaged"
            )


def _features(encoder: Encoder, variables: Variables, x: networks.Images) -> Array:
    net = variables["net"]
    return networks.features(encoder, net["params"], net["batch_stats"], x)


def _project(encoder: Encoder, variables: Variables, h: Array) -> Array:
    projector = variables["projector"]
    return networks.project(encoder, projector["params"], projector["batch_stats"], h)

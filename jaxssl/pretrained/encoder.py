"""A pretrained backbone and what it takes to use it, wherever it comes from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder, Variables

LAYERS = ("backbone", "projector")


class Backbone(NamedTuple):
    """A pretrained backbone.

    Attributes:
        encoder: the networks.
        net: the backbone's variables.
        projector: those of the projector; None if there is none.
        inputs: how it wants its images; or `jaxssl.augment.graph.GraphInputs`.
        untrained: ``(seed) -> (net, projector)``, the variables that training starts from.
        facts: what is known of it, JSON-able: "source", "step", "checkpoint", "loss", "net" and
            more; labels and model cards show them.
        text: the variables of the captions' network and its projector; None if there is none.
        untrained_text: (seed) -> the same, where training starts from.
    """

    encoder: Encoder
    net: Variables
    projector: Variables | None
    inputs: Inputs
    untrained: Callable[[int], tuple[Variables, Variables | None]]
    facts: dict[str, Any]
    text: tuple[Variables, Variables] | None = None
    untrained_text: Callable[[int], tuple[Variables, Variables]] | None = None


def apply(backbone: Backbone) -> Callable[[Any, Array], Array]:
    """``(variables, x [n, s, s, c]) -> [n, f]`` float32, pure, in evaluation mode.

    Variables are {"params", "batch_stats"} of the backbone, x is what `preprocess` gives.
    """

    def features(variables: Any, x: Array) -> Array:
        return networks.features(backbone.encoder, variables["params"], variables["batch_stats"], x)

    return features


def make_encode(
    backbone: Backbone, inputs: Inputs, layer: str = "backbone"
) -> Callable[[tuple[Variables, Variables | None], Array], Array]:
    """The jitted ``((net, projector), uint8 images) -> [n, f]`` float32.

    Args:
        backbone: whose networks to run.
        inputs: its own, or without the crop if the images are cut already.
        layer: one of `LAYERS`: features of the backbone, or the projector's embeddings.

    Raises:
        UserError: if there is no such layer.
    """
    if layer not in LAYERS:
        raise UserError(f"layer {layer!r} is unknown; valid: {', '.join(LAYERS)}")
    if layer == "projector" and backbone.projector is None:
        raise UserError("layer 'projector': these weights have no projector; take 'backbone'")

    def encode(variables: tuple[Variables, Variables | None], images: Array) -> Array:
        net, projector = variables
        h = networks.features(backbone.encoder, *net, inputs.prepare(images))
        if inputs.copies > 1:
            h = jnp.mean(h.reshape(-1, inputs.copies, h.shape[1]), axis=1)
        if layer == "backbone":
            return h
        return networks.project(backbone.encoder, *projector, h)

    return jax.jit(encode)


def make_encode_text(backbone: Backbone) -> Callable[[tuple[Variables, Variables], Array], Array]:
    """The jitted ``((net, projector), tokens [n, length]) -> [n, d]`` float32 of captions."""
    tower = backbone.encoder.text

    def encode(variables: tuple[Variables, Variables], tokens: Array) -> Array:
        net, projector = variables
        return networks.project(tower, *projector, networks.features(tower, *net, tokens))

    return jax.jit(encode)


def require_finite(variables: Any, source: Any) -> None:
    """Raise UserError if a parameter is not finite: the network might give figures all the same.

    Args:
        variables: of a network, as NumPy arrays.
        source: what they were read from, for the message.
    """
    for path, array in jax.tree_util.tree_leaves_with_path(variables):
        if not np.isfinite(array).all():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                f"{source}: {name} has values that are not finite; the training went wrong, or the "
                "file is damaged"
            )

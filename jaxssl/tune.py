"""Train a classifier on a pretrained network: all of it, or a linear layer on frozen features."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array


class Network(NamedTuple):
    """A pretrained backbone that may be trained further.

    Attributes:
        apply: ``(variables, images [b, s, s, c] in [0, 1], *, train, axis_name=None, keys=None) ->
            (features [b, f] float32, variables)``. In training BatchNorm uses the batch and its
            statistics move; else variables come back as they were. ``keys`` [b] are for stochastic
            depth.
        variables: {"params", "batch_stats"}.
        size: s, pixels a side.
        channels: c.
    """

    apply: Callable[..., tuple[Array, Any]]
    variables: Any
    size: int
    channels: int

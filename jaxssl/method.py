"""A method: how a batch becomes embeddings, then pairs, then a loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

Batch = dict[str, Array]  # "views" [V, b, h, w, c] float, "index" [b] int, "label" [b] int


class Carried(NamedTuple):
    """What a step hands on besides what the optimiser moves.

    Attributes:
        batch_stats: BatchNorm's running statistics.
        target: the momentum copy of the parameters, or ().
        memory: what the objective remembers, or ().
    """

    batch_stats: Any
    target: Any
    memory: Any


class Method(NamedTuple):
    """Pure functions that a training step calls.

    Attributes:
        init: ``(key, batch, num_examples) -> (params, Carried)``.
        loss: ``(params, carried, batch, *, step, key, axis_name) -> (scalar, (carried, metrics,
            embeddings))``. The scalar is this device's share; embeddings are [V, b, d].
        after: ``(params, carried, step) -> carried``, once the parameters have moved.
        features: ``(params, batch_stats, images) -> [b, f]``, the backbone in evaluation mode.
    """

    init: Callable[..., tuple[Any, Carried]]
    loss: Callable[..., tuple[Array, tuple[Carried, dict[str, Array], Array]]]
    after: Callable[[Any, Carried, Array], Carried]
    features: Callable[[Any, Any, Array], Array]

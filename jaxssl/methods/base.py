"""A method: how a batch becomes embeddings, then pairs, then a loss."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array

from jaxssl.losses.objective import Metrics, Objective
from jaxssl.losses.pairs import Pairs

# "views" [V, b, h, w, c] float, for multi-crop also "crops" [L, b, s, s, c] float,
# "index" [b] int, "label" [b] int. Views may be dicts of arrays in place of one.
Batch = dict[str, Any]


class Carried(NamedTuple):
    """What a step hands on besides what the optimiser moves.

    Attributes:
        batch_stats: BatchNorm's running statistics.
        target: the momentum network's parameters and statistics, or ().
        memory: what the objective and the method remember.
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
        features: ``(params, carried, images) -> [b, f]``, the backbone in evaluation mode.
        per_example: a `Carried` whose nodes, here and there a whole branch, say what is made of
            numbers for every example, whose rows the devices may share.
    """

    init: Callable[..., tuple[Any, Carried]]
    loss: Callable[..., tuple[Array, tuple[Carried, Metrics, Array]]]
    after: Callable[[Any, Carried, Array], Carried]
    features: Callable[[Any, Carried, Array], Array]
    per_example: Carried = Carried(False, False, False)


def image_groups(batch: Batch) -> list[Any]:
    """The batch's views, then its small crops if there are any."""
    return [batch[name] for name in ("views", "crops") if name in batch]


def count_views(group: Any) -> int:
    """How many views are in a group."""
    return jax.tree.leaves(group)[0].shape[0]


def weighted_loss(
    objective: Objective,
    terms: Sequence[tuple[float, Pairs]],
    params: Any,
    memory: Any,
    *,
    step: Array,
    key: Array,
) -> tuple[Array, Any, Metrics]:
    """The weighted sum of an objective over several pairings of one batch.

    Each starts from the memory of the step before, and has its own random key; what they would
    remember is merged.

    Args:
        objective: the loss.
        terms: weights and pairs.
        params: what the objective learned.
        memory: what it remembers.
        step: number of the step.
        key: random key of the step.

    Returns:
        The sum, this device's share; the new memory; the metrics' weighted mean.
    """
    weights = [weight for weight, _ in terms]
    values, memories, metrics = zip(
        *(
            objective.loss(pairs, params, memory, step=step, key=jax.random.fold_in(key, number))
            for number, (_, pairs) in enumerate(terms)
        ),
        strict=True,
    )
    total = sum(w * value for w, value in zip(weights, values, strict=True))
    shown = {
        name: sum(w * m[name] for w, m in zip(weights, metrics, strict=True)) / sum(weights)
        for name in metrics[0]
    }
    return total, objective.merge(memories), shown

"""Interface of a training scheme: a batch becomes embeddings, then pairs, then a loss."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from flax.typing import Collection, MutableCollection
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.memory import empty_queue
from jaxssl.losses.objective import Metrics, Objective, check
from jaxssl.losses.pairs import Pairs
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder, Images

# A batch holds "views" [V, b, h, w, c] float, "index" [b] int and "label" [b] int. With multi-crop
# it also holds "crops" [L, b, s, s, c] float, and with captions "texts". Views may be dicts of
# arrays.
Batch = dict[str, Any]


class Carried(NamedTuple):
    """Non-trainable state between steps: BatchNorm statistics, momentum network, loss memory.

    Attributes:
        batch_stats: running statistics of BatchNorm, by network.
        target: parameters and statistics of the momentum (EMA) network, or () without one.
        memory: buffers of the objective and of the scheme, such as a queue of keys.
    """

    batch_stats: Any
    target: Any
    memory: object


class Method(NamedTuple):
    """A training scheme as pure functions, called by the training step and by evaluation.

    Attributes:
        encoder: the networks.
        init: ``(key, batch, num_examples) -> (params, Carried)``.
        loss: ``(params, carried, batch, *, step, key, axis_name) -> (scalar, (carried, metrics,
            embeddings))``. The scalar is this device's share: the mean over devices is the loss.
            Embeddings are [V, b, d].
        constrain: ``(params, step) -> params`` within their bounds, called after each update with
            the next step; by default nothing changes.
        after: ``(params, carried, step) -> carried``, called with the updated parameters; by
            default nothing changes.
        backbone: ``(params, carried) -> (params, batch_stats)`` of the backbone that is evaluated;
            by default the trained one.
        check_views: ``(num_views, num_crops) -> None`` raises ValueError for numbers of views and
            small crops that the scheme cannot train; by default it accepts all.
        per_example: pytree prefix of bools for `Carried`: True marks per-example buffers, which
            are sharded over devices along axis 0.
    """

    encoder: Encoder
    init: Callable[..., tuple[Collection, Carried]]
    loss: Callable[..., tuple[Array, tuple[Carried, Metrics, Array]]]
    constrain: Callable[..., Collection] = lambda params, step: params
    after: Callable[..., Carried] = lambda params, carried, step: carried
    backbone: Callable[[Collection, Carried], tuple[Collection, Collection]] = (
        lambda params, carried: (params["net"], carried.batch_stats["net"])
    )
    check_views: Callable[[int, int], None] = lambda num_views, num_crops: None
    per_example: Carried = Carried(False, False, False)

    def features(self, params: Collection, carried: Carried, images: Images) -> Array:
        """Compute backbone features [b, f] in evaluation mode."""
        return networks.features(self.encoder, *self.backbone(params, carried), images)


def init_variables(
    method: Method, views: Batch, num_examples: int, key: Array
) -> tuple[Collection, Carried]:
    """Draw initial parameters and carried state of a training scheme. ``views`` may be shapes.

    The second half of ``jax.random.split(key)`` is left to the steps of the run.
    """
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), views)
    return method.init(jax.random.split(key)[0], blank, num_examples)


def init_trained(
    encoder: Encoder,
    objective: Objective,
    key: Array,
    batch: Batch,
    num_examples: int,
    queue_size: int = 0,
) -> tuple[MutableCollection, Carried]:
    """Draw the parameters of an encoder and an objective, and the carried state without a target.

    Args:
        encoder: backbone, projector and optionally a predictor.
        objective: the loss and its trained parameters.
        key: random key.
        batch: a batch, of which only shapes and dtypes matter.
        num_examples: number of examples of the data set, for per-example buffers.
        queue_size: number of keys in a queue, 0 for none. With a queue, the memory is a dict of the
            "objective" memory and the "queue". Otherwise it is the objective's memory.
    """
    net_key, objective_key, queue_key = jax.random.split(key, 3)
    params, stats, dim = networks.init(encoder, net_key, image_groups(batch))
    params["objective"], memory = objective.init(objective_key, num_examples, dim)
    if queue_size:
        memory = {"objective": memory, "queue": empty_queue(queue_key, queue_size, dim)}
    return params, Carried(stats, (), memory)


def constrain_objective(objective: Objective, params: Collection, step: Array) -> Collection:
    """Put the trained parameters of an objective within their bounds."""
    return {**params, "objective": objective.constrain(params["objective"], step)}


def check_queue(queue_size: int, labels: bool) -> None:
    """Raise ValueError for a negative queue size, or a queue in a scheme with class labels."""
    check({"queue_size": ">= 0"}, queue_size=queue_size)
    if queue_size and labels:
        raise ValueError(
            "the queue has no labels, so it would hold an anchor's positives as negatives; set "
            "method.queue_size=0 or method.labels=False"
        )


def image_groups(batch: Batch) -> list[Images]:
    """Return the views of a batch, followed by the batch's small multi-crop images if any."""
    return [batch["views"], batch["crops"]] if "crops" in batch else [batch["views"]]


def count_views(group: Images) -> int:
    """Return the number of views in an array [V, b, ...] or in a dict of such arrays."""
    return jax.tree.leaves(group)[0].shape[0]


def weighted_loss(
    objective: Objective,
    terms: Sequence[tuple[float, Pairs]],
    params: Collection,
    memory: object,
    *,
    step: Array,
    key: Array,
) -> tuple[Array, object, Metrics]:
    """Sum the loss over several view pairings of one batch, with a weight for each.

    Every term starts from the memory of the previous step and draws from a random key of its own.
    The new memories are merged.

    Args:
        objective: the loss.
        terms: weights and pairs.
        params: trained parameters of the objective.
        memory: memory of the objective.
        step: number of the step.
        key: random key of the step.

    Returns:
        This device's contribution to the sum, the new memory, and the weighted means of the
        metrics.
    """
    results = []
    for number, (_, pairs) in enumerate(terms):
        term_key = jax.random.fold_in(key, number)
        results.append(objective.loss(pairs, params, memory, step=step, key=term_key))
    values, memories, metrics = zip(*results, strict=True)
    weights = [weight for weight, _ in terms]

    def weighted_sum(*numbers: Array) -> Array:
        return jnp.asarray(sum(w * x for w, x in zip(weights, numbers, strict=True)))

    means = jax.tree.map(lambda *numbers: weighted_sum(*numbers) / sum(weights), *metrics)
    return weighted_sum(*values), objective.merge(memories), means

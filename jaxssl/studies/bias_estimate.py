"""Estimate bias and variance of minibatch gradients relative to the full-data gradient."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree
from scipy.stats import t

from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_views

Embed = Callable[..., Array]  # maps (params, index [b]) to embeddings [V, b, d]
CHUNK = 32  # random batches that are computed together and form one group of the jackknife


class BiasEstimate(NamedTuple):
    """How a minibatch gradient g deviates from the full-data gradient g*.

    Attributes:
        bias: |E g - g*| / |g*|, >= 0: the root of an unbiased estimate, clipped at 0.
        low: lower end of the interval of ``bias``, 0 if the bias may be 0.
        high: upper end of the interval.
        deviation: sqrt(E |g - E g|^2) / |g*|, the noise of a single minibatch.
        cosine: cosine of E g and g*, below 1 if their directions differ.
    """

    bias: float
    low: float
    high: float
    deviation: float
    cosine: float


class _Programs(NamedTuple):
    """Static arguments of the compiled functions, which are compiled once for all seeds.

    Attributes:
        objective: the loss.
        embed: embeds views of examples.
        batch_size: of a minibatch.
        visits: epochs of the memory before each measurement.
    """

    objective: Objective
    embed: Embed
    batch_size: int
    visits: tuple[int, ...]


class _Point(NamedTuple):
    """The point at which gradients are taken.

    Attributes:
        params: of the embedding function.
        z: embeddings of all examples, [V, N, d].
        learned: learned parameters of the loss.
        memory: of the loss.
    """

    params: object
    z: Array
    learned: object
    memory: object


def estimate_gradient_bias(
    objective: Objective,
    embed: Embed,
    params: object,
    num_examples: int,
    batch_size: int,
    *,
    target: Objective | None = None,
    visits: Sequence[int] = (0,),
    draws: int = 1024,
    seed: int = 0,
    chunk: int = CHUNK,
    level: float = 0.95,
) -> list[BiasEstimate]:
    r"""Estimate the bias of the gradient of minibatches of one size.

    .. math:: \text{bias}^2 = \frac{1}{G (G - 1)} \sum_{a \ne b} (\bar g_a - g^*)^\top
              (\bar g_b - g^*)

    with the mean gradients of G groups of independent minibatches. This estimate is unbiased. Its
    interval comes from a jackknife over the groups. Minibatches are drawn without replacement. The
    memory of an objective is first filled by some epochs at the same parameters.

    Args:
        objective: the loss, with learned parameters at their initial values.
        embed: ``(params, index) -> [V, b, d]``, the embeddings of the views of examples.
        params: where gradients are taken.
        num_examples: N.
        batch_size: B, in [2, N].
        target: objective that defines g* by its gradient over all examples, by default
            ``objective`` with empty memory.
        visits: epochs of the memory before each measurement, increasing. They make no difference
            without memory.
        draws: number of independent minibatches, rounded up to whole groups, at least 4 groups.
        seed: of the draws.
        chunk: number of draws computed together.
        level: of the intervals.

    Returns:
        A `BiasEstimate` for each of ``visits``.

    Raises:
        ValueError: if ``batch_size`` or ``visits`` are out of range.
    """
    if not 2 <= batch_size <= num_examples:
        raise ValueError(f"batch_size must be in [2, {num_examples}], got {batch_size}")
    if list(visits) != sorted(set(visits)) or min(visits) < 0:
        raise ValueError(f"visits must be increasing numbers >= 0, got {tuple(visits)}")
    all_examples = jnp.arange(num_examples, dtype=jnp.int32)
    z = jax.jit(embed)(params, all_examples)
    init_key, key = jax.random.split(jax.random.key(seed))
    point, reference = (
        _Point(params, z, *one.init(init_key, num_examples, z.shape[2]))
        for one in (objective, target or objective)
    )
    full = jax.jit(_gradient, static_argnums=(0, 1))
    truth = np.asarray(full(target or objective, embed, reference, all_examples, key), np.float64)
    group = partial(_group, _Programs(objective, embed, batch_size, tuple(visits)), point)
    groups = max(4, -(-draws // chunk))
    keys = jax.random.split(key, groups * chunk).reshape(groups, chunk)
    means, squares = zip(*(jax.device_get(group(group_keys)) for group_keys in keys), strict=True)
    means = np.stack(means).astype(np.float64)  # shape [groups, visits, parameters]
    squares = np.mean(np.stack(squares).astype(np.float64), axis=0)
    # Half of the interval, in standard errors. Few groups estimate the error poorly.
    width = float(t.ppf((1 + level) / 2, groups - 1))
    return [_summary(means[:, v], squares[v], truth, width) for v in range(len(visits))]


@partial(jax.jit, static_argnums=0)
def _group(programs: _Programs, point: _Point, keys: Array) -> tuple[Array, Array]:
    """Return mean gradient [visits, parameters] and mean squared norm [visits] of some batches."""
    g = jax.vmap(partial(_draw, programs, point))(keys)
    return jnp.mean(g, axis=0), jnp.mean(jnp.sum(g**2, axis=2), axis=0)


def _draw(programs: _Programs, point: _Point, key: Array) -> Array:
    """Return the gradient of a random batch after each number of epochs, [visits, parameters]."""
    examples = jnp.arange(point.z.shape[1], dtype=jnp.int32)
    gradients, epochs_seen = [], 0
    for number, visit in enumerate(programs.visits):
        epochs_key, index_key, loss_key = jax.random.split(jax.random.fold_in(key, number), 3)
        if visit > epochs_seen and jax.tree.leaves(point.memory):
            epoch = partial(_epoch, programs, point)
            keys = jax.random.split(epochs_key, visit - epochs_seen)
            point = point._replace(memory=jax.lax.scan(epoch, point.memory, keys)[0])
        epochs_seen = visit
        index = jax.random.choice(index_key, examples, (programs.batch_size,), replace=False)
        gradients.append(_gradient(programs.objective, programs.embed, point, index, loss_key))
    return jnp.stack(gradients)


def _epoch(programs: _Programs, point: _Point, memory: object, key: Array) -> tuple[object, None]:
    """Return the loss memory after one more epoch, without an incomplete last batch."""
    order_key, loss_key = jax.random.split(key)
    count = point.z.shape[1]
    batches = count // programs.batch_size
    order = jax.random.permutation(order_key, jnp.arange(count, dtype=jnp.int32))

    def step(memory: object, batch: tuple[Array, Array]) -> tuple[object, None]:
        index, number = batch
        pairs = pair_views(point.z[:, index], index)
        options = {"step": jnp.int32(0), "key": jax.random.fold_in(loss_key, number)}
        return programs.objective.loss(pairs, point.learned, memory, **options)[1], None

    used = order[: batches * programs.batch_size].reshape(batches, programs.batch_size)
    return jax.lax.scan(step, memory, (used, jnp.arange(batches, dtype=jnp.int32)))[0], None


def _gradient(objective: Objective, embed: Embed, point: _Point, index: Array, key: Array) -> Array:
    """Return the gradient of the loss on a batch as a vector [parameters]."""

    def loss(params: object) -> Array:
        pairs = pair_views(embed(params, index), index)
        options = {"step": jnp.int32(0), "key": key}
        return objective.loss(pairs, point.learned, point.memory, **options)[0]

    return ravel_pytree(jax.grad(loss)(point.params))[0]


def _summary(means: np.ndarray, square: float, truth: np.ndarray, width: float) -> BiasEstimate:
    """Estimate the bias from the mean gradients of groups of minibatches.

    Args:
        means: mean gradients, [groups, parameters].
        square: mean squared norm of the gradient of a minibatch.
        truth: the reference gradient g*, [parameters].
        width: half of the interval, in standard errors.
    """
    size = float(np.linalg.norm(truth))
    off = means - truth
    groups, total = len(off), off.sum(axis=0)
    norms = np.sum(off**2, axis=1)

    def squared_bias(total_square: np.ndarray, norm_sum: np.ndarray, count: int) -> np.ndarray:
        """Return the mean product of two different groups from the sums over all groups."""
        return (total_square - norm_sum) / (count * (count - 1))

    value = squared_bias(total @ total, norms.sum(), groups)
    # The estimate without each of the groups in turn, for the jackknife.
    without = squared_bias(total @ total - 2 * off @ total + norms, norms.sum() - norms, groups - 1)
    error = np.sqrt((groups - 1) / groups * np.sum((without - without.mean()) ** 2))
    low, middle, high = (
        float(np.sqrt(max(v, 0.0))) / size
        for v in (value - width * error, value, value + width * error)
    )
    mean = means.mean(axis=0)
    # The squared mean of n random gradients exceeds the true square by 1 / n of the variance, which
    # is negligible here.
    variance = max(square - float(mean @ mean), 0.0)
    cosine = float(mean @ truth / (np.linalg.norm(mean) * size))
    return BiasEstimate(middle, low, high, float(np.sqrt(variance)) / size, cosine)

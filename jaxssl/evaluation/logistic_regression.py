"""Multinomial logistic regression of many examples, by L-BFGS in whitened coordinates."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
import scipy.optimize
from jax import Array, lax
from jax import numpy as jnp
from jax.sharding import Mesh
from threadpoolctl import threadpool_limits

from jaxssl import distributed
from jaxssl.evaluation.sampling import stratified

CHOICE = 10_000  # examples at most that the strength is chosen on, or this many of each class:
CHOICE_OF_CLASS = 50
COARSE = 10  # times the tolerance, for the fits that choose
TURNED = 2**31  # bytes up to which a transposed copy is kept
SCORES = 2**26  # scores of examples and classes that are computed at a time


ROUNDING = 1e-6  # a norm of the gradient below this is none


class Fit(NamedTuple):
    """A fitted classifier: the class of x [f] is argmax of x @ weights + bias.

    Attributes:
        weights: [f, c].
        bias: [c].
        gradient_norm: of the whitened problem, as a share of that of zero weights.
        num_steps: of L-BFGS.
    """

    weights: np.ndarray
    bias: np.ndarray
    gradient_norm: float
    num_steps: int


class Examples(NamedTuple):
    """Labelled rows as `regression` reads them.

    Attributes:
        x: [n, f] float32, standardised.
        turned: [f, n], the same; None if that would take too much memory.
        labels: [n] in [0, c).
        num_classes: c.
        covariance: [f, f] of x, float64.
    """

    x: Array
    turned: Array | None
    labels: Array
    num_classes: int
    covariance: np.ndarray


class Probe(NamedTuple):
    """A classifier of features as they come.

    Attributes:
        fit: of standardised features.
        mean: [f] that is taken off.
        scale: [f] that is divided by.
        C: inverse L2 strength.
    """

    fit: Fit
    mean: np.ndarray
    scale: np.ndarray
    C: float


def fit_probe(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    C: Sequence[float],
    validation: float,
    tolerance: float,
    max_iter: int,
    seed: int,
) -> Probe:
    """Logistic regression on standardised features, of the strength that does best on a part.

    The features are spread over the devices. Several processes share the work: each calls this with
    its part of the examples, and gets the classifier of the whole.

    Strengths are tried from the strongest regularisation on, until one is worse than another, each
    fit beginning where the last one ended, on at most `CHOICE` examples, or `CHOICE_OF_CLASS` of
    each class if that is more. Between near equals accuracy is a matter of luck, so the strongest
    regularisation is taken whose hits are within one standard error of the most. The classifier is
    then fitted on all examples.

    Args:
        features: [n, f], finite.
        labels: [n] in [0, c).
        C: inverse L2 strengths to choose from, as in `regression`.
        validation: share of the examples for the choice, in (0, 1).
        tolerance: of the last fit; those that choose are `COARSE` times as coarse.
        max_iter: of L-BFGS.
        seed: of the split.

    Raises:
        ValueError: if no class has images enough for a part to choose on.
    """
    x, y, real, mesh = _spread(features, labels)
    labels = distributed.gather_process_rows(labels)
    num_classes = int(labels.max()) + 1
    x, mean, scale, gram = _standardised(x, real)
    covariance = np.asarray(gram, np.float64) / len(labels)
    # A product along the rows is what a CPU does fast: x.T @ residual takes five times as long.
    turned = jnp.array(x.T) if x.nbytes <= TURNED * mesh.size else None
    whole = Examples(x, turned, y, num_classes, covariance)

    # Rows of x that are examples, in the order of the labels; and those to choose on.
    rows = places = np.flatnonzero(distributed.replicate_global(real, mesh))
    tried, tried_labels = whole, labels
    limit = max(CHOICE, CHOICE_OF_CLASS * num_classes)
    if len(labels) > limit:
        chosen = stratified(labels, limit / len(labels), seed=seed, least=1)
        places, tried_labels = np.arange(len(chosen)), labels[chosen]
        part = distributed.replicate_global(x[rows[chosen]], mesh)
        tried = whole._replace(x=part, turned=part.T, labels=jnp.asarray(tried_labels))
    kept = stratified(tried_labels, validation, seed=seed)
    if not len(kept):
        raise ValueError(
            f"{validation:.0%} of no class makes an image to choose the strength on: a class needs "
            f"{np.ceil(1 / (2 * validation)):.0f} training images or more"
        )
    used = np.zeros(len(tried.x), np.float32)
    used[np.delete(places, kept)] = 1
    held = np.asarray(distributed.replicate_global(tried.x[places[kept]], mesh))
    held_labels = tried_labels[kept]
    tried_c, fits, hits = sorted(C), [None], []
    for c in tried_c:
        options = {"C": c, "tolerance": COARSE * tolerance, "max_iter": max_iter}
        fits.append(regression(tried, used, **options, start=fits[-1]))
        scores = held @ fits[-1].weights + fits[-1].bias
        hits.append(np.argmax(scores, axis=1) == held_labels)
        if any(_worse(hits[-1], before) for before in hits):
            break
    best = hits[int(np.argmax([hit.sum() for hit in hits]))]
    chosen = next(number for number, hit in enumerate(hits) if not _worse(hit, best))
    options = {"C": tried_c[chosen], "tolerance": tolerance, "max_iter": max_iter}
    fit = regression(whole, real, **options, start=fits[chosen + 1])
    return Probe(fit, np.asarray(mean), np.asarray(scale), options["C"])


def _spread(features: np.ndarray, labels: np.ndarray) -> tuple[Array, Array, Array, Mesh]:
    """Features, labels, and 1 for each row that is an example, over all devices.

    Every process has as many rows there, which are filled up with others.
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = distributed.make_mesh(devices)
    most, own = distributed.gather_processes(np.int32(len(labels))).max(), jax.local_device_count()
    fill = -(-int(most) // own) * own - len(labels)
    x = np.asarray(features, np.float32)
    rows = x, np.asarray(labels, np.int32), np.ones(len(labels), np.float32)
    if fill:
        rows = [np.pad(a, [(0, fill)] + [(0, 0)] * (a.ndim - 1)) for a in rows]
    return *distributed.shard_rows(tuple(rows), mesh), mesh


def _worse(hit: np.ndarray, other: np.ndarray) -> bool:
    """Whether fewer hits than those of ``other`` are more than chance: one standard error."""
    lost, won = np.sum(other & ~hit), np.sum(hit & ~other)
    return bool(lost - won > np.sqrt(lost + won))


def scores(probe: Probe, features: np.ndarray) -> np.ndarray:
    """[m, c] of features [m, f]; the class is the largest."""
    x = np.asarray((features - probe.mean) / probe.scale, np.float32)
    return x @ probe.fit.weights + probe.fit.bias


def regression(
    rows: Examples,
    used: Array | np.ndarray,
    *,
    C: float,
    tolerance: float,
    max_iter: int,
    start: Fit | None = None,
) -> Fit:
    r"""Multinomial logistic regression by L-BFGS in coordinates that even out the features.

    .. math:: \min_{W, b} \frac{1}{2} |W|^2 + C \sum_i \log \frac{\sum_j e^{x_i W_j + b_j}}
        {e^{x_i W_{y_i} + b_{y_i}}}

    W = T V, where T T^T inverts covariance / c + I / (C n): the Hessian in V is then about the
    identity, and a few dozen steps do for features of any conditioning. The optimum is the same.

    Args:
        rows: features and labels.
        used: [n] 1 for examples that count, 0 for others.
        C: inverse L2 strength, as scikit-learn's.
        tolerance: share of the gradient's norm at zero weights at which to stop.
        max_iter: steps at most.
        start: where to begin; None is zero weights.
    """
    f, c, n = rows.x.shape[1], rows.num_classes, float(used.sum())
    strength = 1 / (C * n)
    factor = np.linalg.cholesky(rows.covariance / c + strength * np.eye(f))
    turn = jnp.asarray(scipy.linalg.solve_triangular(factor, np.eye(f), lower=True).T, jnp.float32)
    share = jnp.asarray(used) / n
    norm = np.inf

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal norm
        v = jnp.asarray(v.reshape(f + 1, c), jnp.float32)
        weights = _weights(v, turn)
        parts = [_part(weights, v[-1], *part) for part in _parts(rows, share)]
        value, gradient = (sum(x) for x in zip(*parts, strict=True))
        value, gradient = jax.device_get(_regularised(value, gradient, weights, turn, strength))
        gradient = gradient.astype(np.float64).ravel()
        norm = np.linalg.norm(gradient)
        return float(value), gradient

    first = np.zeros((f + 1, c))
    zero_norm = np.linalg.norm(objective(first)[1])

    def stop(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        if norm <= max(tolerance * zero_norm, ROUNDING):
            raise StopIteration

    if start is not None:
        first[:-1], first[-1] = factor.T @ start.weights, start.bias
    options = {"maxiter": max_iter, "gtol": 0, "ftol": 0}
    # BLAS threads would wait for SciPy's next small product on the cores that JAX works on.
    with threadpool_limits(1, user_api="blas"):
        found = scipy.optimize.minimize(
            objective, first.ravel(), jac=True, method="L-BFGS-B", callback=stop, options=options
        )
    v = found.x.reshape(f + 1, c).astype(np.float32)
    # Features that say nothing have their optimum at zero weights.
    share_left = float(np.linalg.norm(found.jac) / zero_norm) if zero_norm > ROUNDING else 0.0
    return Fit(np.asarray(turn) @ v[:-1], v[-1], share_left, found.nit)


def _parts(rows: Examples, share: Array) -> Iterator[tuple[Array, Array | None, Array, Array]]:
    """The examples, as many at a time as `SCORES` allows; mostly all of them."""
    size = max(1, SCORES // rows.num_classes)
    if len(rows.x) <= size:
        yield rows.x, rows.turned, rows.labels, share
        return
    for first in range(0, len(rows.x), size):
        part = slice(first, first + size)
        turned = None if rows.turned is None else rows.turned[:, part]
        yield rows.x[part], turned, rows.labels[part], share[part]


@jax.jit
def _weights(v: Array, turn: Array) -> Array:
    return jnp.matmul(turn, v[:-1], precision=lax.Precision.HIGHEST)


@jax.jit
def _part(
    weights: Array, bias: Array, x: Array, turned: Array | None, labels: Array, share: Array
) -> tuple[Array, Array]:
    """The loss of some examples, and its gradient by weights and, in the last row, bias."""
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    log_p = jax.nn.log_softmax(dot(x, weights) + bias[None, :])
    target = jax.nn.one_hot(labels, len(bias))
    value = -jnp.sum(share * jnp.sum(target * log_p, axis=1))
    residual = share[:, None] * (jnp.exp(log_p) - target)
    gradient = dot(residual.T, x).T if turned is None else dot(turned, residual)
    return value, jnp.concatenate([gradient, jnp.sum(residual, axis=0)[None, :]])


@jax.jit
def _regularised(
    value: Array, gradient: Array, weights: Array, turn: Array, strength: float
) -> tuple[Array, Array]:
    """The objective and its gradient in the coordinates of the search."""
    of_weights = gradient[:-1] + strength * weights
    turned = jnp.matmul(turn.T, of_weights, precision=lax.Precision.HIGHEST)
    gradient = jnp.concatenate([turned, gradient[-1:]])
    return value + 0.5 * strength * jnp.sum(weights**2), gradient


@jax.jit
def _standardised(x: Array, real: Array) -> tuple[Array, ...]:
    """Rows of mean 0 and deviation 1, what was taken off and divided by, and their Gram matrix.

    Rows that are not ``real`` are 0.
    """
    share = (real / jnp.sum(real))[:, None]
    one = x[jnp.argmax(real)]  # taken off first: what never changes is then 0, whatever its size
    mean = one + jnp.sum(share * (x - one[None]), axis=0)
    x = jnp.where(real[:, None] > 0, x - mean[None], 0)
    std = jnp.sqrt(jnp.sum(share * x**2, axis=0))
    scale = jnp.where(std > 0, std, 1)
    x = x / scale[None]
    return x, mean, scale, jnp.matmul(x.T, x, precision=lax.Precision.HIGHEST)

"""Multinomial logistic regression of many examples, by L-BFGS in whitened coordinates.

Unlike scikit-learn's solvers, it runs on all devices of a process.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.linalg
import scipy.optimize
from jax import Array, lax
from jax import numpy as jnp
from threadpoolctl import threadpool_limits

from jaxssl import distributed
from jaxssl.evaluation.protocol import stratified, validation_part
from jaxssl.losses.objective import check

RANGES = {"tolerance": "> 0", "max_iter": ">= 1"}
# C is chosen on at most this many examples, or on CHOICE_OF_CLASS per class if that is more.
CHOICE = 10_000
CHOICE_OF_CLASS = 50
COARSE = 10  # factor by which fits that choose C are less exact than the last fit
TRANSPOSED = 2**31  # Larger feature arrays (in bytes) are not also stored transposed.
SCORES = 2**26  # number of scores (examples times classes) that are computed at once
ROUNDING = 1e-6  # smaller gradient norms count as zero
Labelled = tuple[np.ndarray, np.ndarray]  # features [n, f] and labels [n]


class Fit(NamedTuple):
    """A fitted linear classifier, which predicts argmax(x @ weights + bias) for x [f].

    Attributes:
        weights: [f, c].
        bias: [c].
        gradient_norm: gradient norm of the whitened problem, relative to the norm at zero weights.
        num_steps: L-BFGS steps.
    """

    weights: np.ndarray
    bias: np.ndarray
    gradient_norm: float
    num_steps: int


class Examples(NamedTuple):
    """Labelled examples on the devices, in the layout that the logistic regression reads.

    Attributes:
        x: [n, f] float32, standardised.
        transposed: [f, n], the transpose of x, or None if it would take too much memory.
        labels: [n] in [0, c).
        num_classes: c.
        covariance: [f, f] of x, float64.
    """

    x: Array
    transposed: Array | None
    labels: Array
    num_classes: int
    covariance: np.ndarray


class _Batch(NamedTuple):
    """Some of the `Examples`, with the weight of each example in the mean loss (0: not used)."""

    x: Array
    transposed: Array | None
    labels: Array
    weight: Array


class Probe(NamedTuple):
    """A linear classifier of raw features, with their standardisation.

    Attributes:
        fit: classifier of standardised features.
        mean: [f], subtracted from the features.
        scale: [f], divides the features.
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
    """Fit a logistic regression on standardised features and choose C, its inverse L2 strength.

    The features are distributed over the devices of this process.

    C is chosen on a part of the examples (see `CHOICE`). Strengths are tried from the strongest
    regularisation on, each warm-started from the previous one, until accuracy drops. The result is
    the strongest regularisation with an accuracy within one standard error of the best. The
    classifier is then fitted on all examples.

    Args:
        features: [n, f], finite.
        labels: [n] in [0, c).
        C: inverse L2 strengths to choose from, as in `regression`, > 0.
        validation: share of the examples that are held out for the choice, in (0, 1).
        tolerance: of the last fit, > 0. The fits that choose C are `COARSE` times as coarse.
        max_iter: maximum number of L-BFGS steps, >= 1.
        seed: seed of the split.

    Raises:
        ValueError: if a setting is out of range, or every class has too few examples to hold one
            out.
    """
    if not len(C) or not all(0 < c < np.inf for c in C):
        raise ValueError(f"C must be one or more finite numbers > 0, got {C}")
    check(RANGES, "setting", tolerance=tolerance, max_iter=max_iter)
    # ---- The standardised examples. The rows beyond them are padding.
    mesh = distributed.make_mesh(jax.local_devices())
    size = distributed.round_up(len(labels), mesh.size)
    columns = (features, np.float32), (labels, np.int32), (np.ones(len(labels)), np.float32)
    x, y, is_real = distributed.shard(
        tuple(distributed.pad_rows(np.asarray(x, dtype), size) for x, dtype in columns), mesh
    )
    num_classes = int(labels.max()) + 1
    x, mean, scale, gram = _standardise(x, is_real)
    covariance = np.asarray(gram, np.float64) / len(labels)
    # On a CPU, a product along contiguous rows is fast. x.T @ residual takes five times as long.
    transposed = jnp.array(x.T) if x.nbytes <= TRANSPOSED * mesh.size else None
    examples = Examples(x, transposed, y, num_classes, covariance)

    # ---- The choice of C.
    subset, subset_labels = examples, labels
    limit = max(CHOICE, CHOICE_OF_CLASS * num_classes)
    if len(labels) > limit:
        drawn = stratified(labels, limit / len(labels), seed=seed, least=1)
        subset_labels = labels[drawn]
        rows = distributed.replicate_global(x[drawn], mesh)
        subset = examples._replace(x=rows, transposed=rows.T, labels=jnp.asarray(subset_labels))
    held_out = validation_part(subset_labels, validation, seed=seed)
    used = (np.arange(len(subset.x)) < len(subset_labels)).astype(np.float32)  # not the padding
    used[held_out] = 0
    validation_set = np.asarray(subset.x[held_out]), subset_labels[held_out]
    options = {"tolerance": COARSE * tolerance, "max_iter": max_iter}
    best, start = _choose(subset, used, validation_set, sorted(C), **options)

    # ---- The fit on all examples.
    options["tolerance"] = tolerance
    fit = regression(examples, is_real, C=best, **options, start=start)
    return Probe(fit, np.asarray(mean), np.asarray(scale), best)


def _choose(
    examples: Examples,
    used: np.ndarray,
    validation: Labelled,
    candidates: list[float],
    **options: Any,
) -> tuple[float, Fit]:
    """Choose C by the accuracy on validation examples.

    Args:
        examples: features and labels.
        used: [n], 1 for examples to fit, 0 for others.
        validation: the validation examples.
        candidates: for C, the smallest first.
        **options: ``tolerance`` and ``max_iter`` of `regression`.

    Returns:
        The chosen C, and the classifier that was fitted with it.
    """
    x, labels = validation
    fits: list[Fit] = []
    hits: list[np.ndarray] = []  # whether each validation example is classified correctly
    for c in candidates:
        start = fits[-1] if fits else None
        fit = regression(examples, used, C=c, **options, start=start)
        hit = np.argmax(x @ fit.weights + fit.bias, axis=1) == labels
        fits.append(fit)
        hits.append(hit)
        if any(_is_worse(hit, earlier) for earlier in hits):
            break
    best = max(hits, key=np.sum)  # the first of equals
    chosen = next(i for i, hit in enumerate(hits) if not _is_worse(hit, best))
    return candidates[chosen], fits[chosen]


def _is_worse(hit: np.ndarray, other: np.ndarray) -> bool:
    """Return True if ``hit`` is less accurate than ``other`` by over one standard error."""
    lost, won = int(np.sum(other & ~hit)), int(np.sum(hit & ~other))
    return bool(lost - won > np.sqrt(lost + won))


def scores(probe: Probe, features: np.ndarray) -> np.ndarray:
    """Compute the logits [m, c] of a fitted probe for features [m, f]."""
    x = np.asarray((features - probe.mean) / probe.scale, np.float32)
    return x @ probe.fit.weights + probe.fit.bias


def regression(
    examples: Examples,
    used: Array | np.ndarray,
    *,
    C: float,
    tolerance: float,
    max_iter: int,
    start: Fit | None = None,
) -> Fit:
    r"""Fit a multinomial logistic regression by L-BFGS in whitened coordinates.

    .. math:: \min_{W, b} \frac{1}{2} |W|^2 + C \sum_i \log \frac{\sum_j e^{x_i W_j + b_j}}
        {e^{x_i W_{y_i} + b_{y_i}}}

    L-BFGS runs in V, where W = T V and T T^T is the inverse of covariance / c + I / (C n). A larger
    multiple of I replaces the last term where rounding could make the sum indefinite. The Hessian
    in V is close to the identity, so a few dozen steps suffice for features of any conditioning.
    The optimum is the same.

    Args:
        examples: features and labels.
        used: [n], 1 for examples to fit, 0 for others.
        C: inverse L2 strength, as scikit-learn's. For two classes, where scikit-learn has one
            weight vector, its optimum at 2 C is the same.
        tolerance: gradient norm at which to stop, relative to the norm at zero weights.
        max_iter: maximum number of steps.
        start: warm start, or None for zero weights.

    Returns:
        The classifier of the standardised features.
    """
    f, c, n = examples.x.shape[1], examples.num_classes, float(used.sum())
    strength = 1 / (C * n)
    # Rounding of the covariance in float32 may make small eigenvalues negative, by up to 5e-8 of
    # the trace. The factor is a preconditioner only, so the optimum does not depend on the ridge.
    ridge = max(strength, 3e-7 * np.trace(examples.covariance) / c)
    factor = np.linalg.cholesky(examples.covariance / c + ridge * np.eye(f))
    inverse = scipy.linalg.solve_triangular(factor, np.eye(f), lower=True)
    transform = jnp.asarray(inverse.T, jnp.float32)
    weight = jnp.asarray(used) / n
    norm = np.inf

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal norm
        v = jnp.asarray(flat.reshape(f + 1, c), jnp.float32)
        weights = _weights(v, transform)
        terms = [_loss_and_gradient(weights, v[-1], x) for x in _batches(examples, weight)]
        value, gradient = (sum(x) for x in zip(*terms, strict=True))
        value, gradient = jax.device_get(_regularise(value, gradient, weights, transform, strength))
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
    # BLAS threads that wait for SciPy's next small product would occupy the cores that JAX uses.
    with threadpool_limits(1, user_api="blas"):
        result = scipy.optimize.minimize(
            objective, first.ravel(), jac=True, method="L-BFGS-B", callback=stop, options=options
        )
    v = result.x.reshape(f + 1, c).astype(np.float32)
    # For uninformative features the gradient vanishes at zero weights, which are then the optimum.
    relative_norm = float(np.linalg.norm(result.jac) / zero_norm) if zero_norm > ROUNDING else 0.0
    return Fit(np.asarray(transform) @ v[:-1], v[-1], relative_norm, result.nit)


def _batches(examples: Examples, weight: Array) -> Iterator[_Batch]:
    """Yield the examples in batches of at most `SCORES` class scores, usually in a single batch."""
    size = max(1, SCORES // examples.num_classes)
    if len(examples.x) <= size:
        yield _Batch(examples.x, examples.transposed, examples.labels, weight)
        return
    for first in range(0, len(examples.x), size):
        rows = slice(first, first + size)
        transposed = None if examples.transposed is None else examples.transposed[:, rows]
        yield _Batch(examples.x[rows], transposed, examples.labels[rows], weight[rows])


@jax.jit
def _weights(v: Array, transform: Array) -> Array:
    return jnp.matmul(transform, v[:-1], precision=lax.Precision.HIGHEST)


@jax.jit
def _loss_and_gradient(weights: Array, bias: Array, batch: _Batch) -> tuple[Array, Array]:
    """Compute loss and gradient [f + 1, c] (row f: the bias) of one batch of the examples."""
    x, transposed, labels, weight = batch
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    log_p = jax.nn.log_softmax(dot(x, weights) + bias[None, :])
    target = jax.nn.one_hot(labels, len(bias))
    value = -jnp.sum(weight * jnp.sum(target * log_p, axis=1))
    residual = weight[:, None] * (jnp.exp(log_p) - target)
    gradient = dot(residual.T, x).T if transposed is None else dot(transposed, residual)
    return value, jnp.concatenate([gradient, jnp.sum(residual, axis=0)[None, :]])


@jax.jit
def _regularise(
    value: Array, gradient: Array, weights: Array, transform: Array, strength: float
) -> tuple[Array, Array]:
    """Add the L2 term to the loss, and transform the loss's gradient to whitened coordinates."""
    by_weights = gradient[:-1] + strength * weights
    whitened = jnp.matmul(transform.T, by_weights, precision=lax.Precision.HIGHEST)
    gradient = jnp.concatenate([whitened, gradient[-1:]])
    return value + 0.5 * strength * jnp.sum(weights**2), gradient


@jax.jit
def _standardise(x: Array, is_real: Array) -> tuple[Array, Array, Array, Array]:
    """Standardise the features of examples to mean 0 and std 1, and set padding rows to 0.

    Returns:
        Rows of mean 0 and standard deviation 1, the mean, the standard deviation (1 for constant
        features), and the Gram matrix of the rows.
    """
    share = (is_real / jnp.sum(is_real))[:, None]
    one = x[jnp.argmax(is_real)]  # subtracted before the mean, so constant features become 0
    x = jnp.where(is_real[:, None] > 0, x - one[None], 0)
    # Scaling by a power of two is exact, and keeps squares from over- and underflowing.
    # Features below 2^-100 count as constant, because their deviation could underflow.
    largest = jnp.max(jnp.abs(x), axis=0)
    x = jnp.where(largest[None] < 2.0**-100, 0, x)
    exponent = jnp.maximum(jnp.frexp(largest)[1], -100)
    x = jnp.ldexp(x, -exponent[None])
    mean = jnp.sum(share * x, axis=0)
    x = jnp.where(is_real[:, None] > 0, x - mean[None], 0)
    std = jnp.sqrt(jnp.sum(share * x**2, axis=0))
    x = x / jnp.where(std > 0, std, 1)[None]
    mean = one + jnp.ldexp(mean, exponent)
    scale = jnp.where(std > 0, jnp.ldexp(std, exponent), 1)
    return x, mean, scale, jnp.matmul(x.T, x, precision=lax.Precision.HIGHEST)

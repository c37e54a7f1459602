"""Multinomial logistic regression of many examples, by L-BFGS in whitened coordinates."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
import scipy.optimize
from jax import Array, lax
from jax import numpy as jnp


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


def regression(
    x: Array,
    y: np.ndarray,
    num_classes: int,
    covariance: np.ndarray,
    used: np.ndarray,
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
        x: [n, f] float32, standardised.
        y: [n] in [0, c).
        num_classes: c.
        covariance: [f, f] of x.
        used: [n] 1 for examples that count, 0 for others.
        C: inverse L2 strength, as scikit-learn's.
        tolerance: share of the gradient's norm at zero weights at which to stop.
        max_iter: steps at most.
        start: where to begin; None is zero weights.
    """
    f, n = x.shape[1], used.sum()
    strength = 1 / (C * n)
    factor = np.linalg.cholesky(covariance / num_classes + strength * np.eye(f))
    turn = jnp.asarray(scipy.linalg.solve_triangular(factor, np.eye(f), lower=True).T, jnp.float32)
    labels, share = jnp.asarray(y), jnp.asarray(used / n)
    norm = np.inf

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal norm
        v = jnp.asarray(v.reshape(f + 1, num_classes), jnp.float32)
        value, gradient = jax.device_get(_objective(v, turn, x, labels, share, strength))
        gradient = gradient.astype(np.float64).ravel()
        norm = np.linalg.norm(gradient)
        return float(value), gradient

    first = np.zeros((f + 1, num_classes))
    objective(first)
    zero_norm = norm

    def stop(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        if norm <= tolerance * zero_norm:
            raise StopIteration

    if start is not None:
        first[:-1], first[-1] = factor.T @ start.weights, start.bias
    options = {"maxiter": max_iter, "gtol": 0, "ftol": 0}
    found = scipy.optimize.minimize(
        objective, first.ravel(), jac=True, method="L-BFGS-B", callback=stop, options=options
    )
    v = found.x.reshape(f + 1, num_classes).astype(np.float32)
    share_left = float(np.linalg.norm(found.jac) / zero_norm)
    return Fit(np.asarray(turn) @ v[:-1], v[-1], share_left, found.nit)


@jax.jit
def _objective(
    v: Array, turn: Array, x: Array, labels: Array, share: Array, strength: float
) -> tuple[Array, Array]:
    """Value and gradient of the mean loss; the last row of v is the bias."""
    dot = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    weights = dot(turn, v[:-1])
    log_p = jax.nn.log_softmax(dot(x, weights) + v[-1][None, :])
    target = jax.nn.one_hot(labels, v.shape[1])
    value = -jnp.sum(share * jnp.sum(target * log_p, axis=1))
    residual = share[:, None] * (jnp.exp(log_p) - target)
    gradient = dot(residual.T, x).T + strength * weights  # faster than x.T @ residual on a CPU
    gradient = jnp.concatenate([dot(turn.T, gradient), jnp.sum(residual, axis=0)[None, :]])
    return value + 0.5 * strength * jnp.sum(weights**2), gradient


def covariance_of(x: Array) -> np.ndarray:
    """[f, f] of centred rows, in float64 in the end."""
    product = jnp.matmul(x.T, x, precision=lax.Precision.HIGHEST)
    return np.asarray(product, np.float64) / len(x)

"""Linear probe: multinomial logistic regression on frozen, cached features."""

import warnings
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
import scipy.optimize
from jax import Array, lax
from jax import numpy as jnp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from jaxssl.evals import Features, Row, Subject

# C: inverse L2 strengths tried; validation: the share of the training set that chooses among them;
# tolerance: gradient's norm, as a share of that of zero weights, at which a fit ends.
PRESETS = {
    "fast": {
        "C": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
        "validation": 0.2,
        "tolerance": 1e-3,
        "max_iter": 500,
    }
}
COARSE = 10  # times the tolerance, for the fits that choose C


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


def evaluate(
    features: Features,
    *,
    C: tuple[float, ...],
    validation: float,
    tolerance: float,
    max_iter: int,
    seed: int,
) -> dict[str, float]:
    """Accuracy of a linear classifier fitted by L-BFGS on standardised features.

    The L2 strength is the one that does best on a stratified split of the training set (the
    strongest of equals); the classifier is then fitted again on all of it. The test set is used
    once.

    Args:
        features: of a training and a test set; each training class needs two examples or more.
        C: inverse strengths to choose from, as in `regression`.
        validation: share of the training set for the choice, in (0, 1).
        tolerance: of the last fit; those that choose are `COARSE` times as coarse.
        max_iter: of L-BFGS.
        seed: of the split.

    Returns:
        "linear_top1" and "linear_top5" in percent, "C", the strength chosen, and "gradient_norm"
        of the last fit.
    """
    mean, std = features.train.mean(axis=0), features.train.std(axis=0)
    scale = np.where(std > 0, std, 1)
    x, x_test = (
        np.asarray((h - mean) / scale, np.float32) for h in (features.train, features.test)
    )
    classes, y = np.unique(features.train_labels, return_inverse=True)
    chosen, kept = train_test_split(
        np.arange(len(y)), test_size=validation, random_state=seed, stratify=y
    )
    used = np.zeros(len(y), np.float32)
    used[chosen] = 1
    on_device = jnp.asarray(x)
    covariance = _covariance(on_device)
    fit_to = partial(regression, on_device, y, len(classes), covariance, max_iter=max_iter)
    scores, fits = [], [None]
    for c in sorted(C):
        fits.append(fit_to(used, C=c, tolerance=COARSE * tolerance, start=fits[-1]))
        predicted = np.argmax(x[kept] @ fits[-1].weights + fits[-1].bias, axis=1)
        scores.append(np.mean(predicted == y[kept]))
    best = int(np.argmax(scores))
    chosen_c = sorted(C)[best]
    final = fit_to(np.ones_like(used), C=chosen_c, tolerance=tolerance, start=fits[best + 1])
    ranked = classes[np.argsort(-(x_test @ final.weights + final.bias), axis=1)[:, :5]]
    hit = ranked == features.test_labels[:, None]
    return {
        "linear_top1": 100 * float(hit[:, 0].mean()),
        "linear_top5": 100 * float(hit.any(axis=1).mean()),
        "C": chosen_c,
        "gradient_norm": final.gradient_norm,
    }


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


def _covariance(x: Array) -> np.ndarray:
    """[f, f] of centred rows, in float64 in the end."""
    product = jnp.matmul(x.T, x, precision=lax.Precision.HIGHEST)
    return np.asarray(product, np.float64) / len(x)


def fit(x: np.ndarray, y: np.ndarray, C: float, max_iter: int) -> LogisticRegression:
    """Logistic regression of few examples with inverse L2 strength C."""
    with warnings.catch_warnings():
        # Weak regularisation on separable features has its optimum far away; stopping early is
        # what the bound on iterations is for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=C, max_iter=max_iter).fit(x, y)


def run(subject: Subject, *, seed: int, preset: str = "fast") -> list[Row]:
    """`evaluate` with a preset's settings."""
    scores = evaluate(subject.features, **PRESETS[preset], seed=seed)
    found = {name: scores.pop(name) for name in ("C", "gradient_norm")}
    details = {"preset": preset, **PRESETS[preset], **found}
    return [Row(metric, value, None, details) for metric, value in scores.items()]

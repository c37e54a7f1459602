"""Linear probe: multinomial logistic regression on frozen, cached features."""

import warnings
from functools import partial

import numpy as np
from jax import numpy as jnp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from jaxssl.evals import Features, Row, Subject
from jaxssl.logistic import covariance_of, regression

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
    covariance = covariance_of(on_device)
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

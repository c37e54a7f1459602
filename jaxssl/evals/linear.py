"""Linear probe: multinomial logistic regression on frozen, cached features."""

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from jaxssl.evals import Features, Row

# C: inverse L2 strengths tried; validation: the share of the training set that chooses among them.
PRESETS = {"fast": {"C": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0), "validation": 0.2, "max_iter": 500}}


def evaluate(
    features: Features, *, C: tuple[float, ...], validation: float, max_iter: int, seed: int
) -> dict[str, float]:
    """Accuracy of a linear classifier fitted by L-BFGS on standardised features.

    The L2 strength is the one that does best on a stratified split of the training set (the
    strongest of equals); the classifier is then fitted again on all of it. The test set is used
    once.

    Args:
        features: of a training and a test set; each training class needs two examples or more.
        C: inverse strengths to choose from.
        validation: share of the training set for the choice, in (0, 1).
        max_iter: of L-BFGS.
        seed: of the split.

    Returns:
        "linear_top1" and "linear_top5" in percent, and "C", the strength chosen.
    """
    mean, std = features.train.mean(axis=0), features.train.std(axis=0)
    scale = np.where(std > 0, std, 1)
    x, x_test = (features.train - mean) / scale, (features.test - mean) / scale
    y = features.train_labels
    x_fit, x_val, y_fit, y_val = train_test_split(
        x, y, test_size=validation, random_state=seed, stratify=y
    )
    scores = [fit(x_fit, y_fit, c, max_iter).score(x_val, y_val) for c in sorted(C)]
    best = sorted(C)[int(np.argmax(scores))]
    model = fit(x, y, best, max_iter)
    scores = model.decision_function(x_test)
    if scores.ndim == 1:  # two classes
        scores = np.stack([-scores, scores], axis=1)
    ranked = model.classes_[np.argsort(-scores, axis=1)[:, :5]]
    hit = ranked == features.test_labels[:, None]
    return {
        "linear_top1": 100 * float(hit[:, 0].mean()),
        "linear_top5": 100 * float(hit.any(axis=1).mean()),
        "C": best,
    }


def fit(x: np.ndarray, y: np.ndarray, C: float, max_iter: int) -> LogisticRegression:
    """Logistic regression with inverse L2 strength C."""
    with warnings.catch_warnings():
        # Weak regularisation on separable features has its optimum far away; stopping early is
        # what the bound on iterations is for, and validation judges the outcome.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=C, max_iter=max_iter).fit(x, y)


def run(features: Features, *, seed: int, preset: str = "fast") -> list[Row]:
    """`evaluate` with a preset's settings."""
    scores = evaluate(features, **PRESETS[preset], seed=seed)
    details = {"preset": preset, **PRESETS[preset], "C": scores.pop("C")}
    return [Row(metric, value, None, details) for metric, value in scores.items()]

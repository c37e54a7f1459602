"""Ten-fold cross-validation of support vector machines, the protocol of graph classification."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from jaxssl.data.files import cpu_count
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
PRESETS: dict[str, dict[str, Any]] = {
    # Of features as they are, the released code's choice between two machines.
    "graphcl": {"C": STRENGTHS, "machines": ("kernel", "linear"), "standardised": False},
    "kernel": {"C": STRENGTHS, "machines": ("kernel",), "standardised": True},
}
FOLDS, INNER = 10, 5
KERNEL_BYTES = 2**32  # that folds, fitted at the same time, may take


def evaluate(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    C: tuple[float, ...],
    machines: tuple[str, ...],
    standardised: bool,
    seed: int,
) -> np.ndarray:
    """Accuracy in percent on each of ten stratified folds, [10].

    On the other nine, five-fold cross-validation chooses C for each machine; of the machines the
    one counts that did better there. (The released code looks at the fold itself to choose among
    machines; this does not.)

    Args:
        features: [n, f] of all examples.
        labels: [n] int; each class needs ten examples.
        C: the machines' strengths to choose from, > 0.
        machines: "kernel" (RBF, gamma 1 / (f variance)), "linear" (squared hinge), or both.
        standardised: whether each feature is scaled to mean 0 and deviation 1 on the nine folds.
        seed: of the folds.

    Raises:
        ValueError: if a class has too few examples, or features are not finite.

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, 5.2 (after Sun et al.,
        InfoGraph, 2020).
    """
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2 or counts.min() < FOLDS:
        raise ValueError(
            f"ten folds need two classes of {FOLDS} examples or more, got {counts.tolist()}"
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    wide = features.astype(np.float64)

    def on_fold(fold: tuple[np.ndarray, np.ndarray]) -> float:
        train, test = fold
        x = StandardScaler().fit(wide[train]).transform(wide) if standardised else wide
        fitted = [_fit(machine, x, labels, train, test, C) for machine in machines]
        return max(fitted, key=lambda one: one[0])[1]

    # Threads are enough: the solvers let go of Python's lock. Each holds kernel matrices.
    threads = max(1, min(FOLDS, cpu_count(), KERNEL_BYTES // (2 * 8 * len(labels) ** 2)))
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.array(list(pool.map(on_fold, folds.split(features, labels))))


def _fit(
    machine: str,
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    C: tuple[float, ...],
) -> tuple[float, float]:
    """Accuracy in cross-validation on the training part, and on the test part in percent."""
    own, other = x[train], x[test]
    model: Any = LinearSVC(dual=False, max_iter=1000)
    if machine == "kernel":
        # Once for all strengths; SVC would compute it again for each.
        gamma = 1 / (x.shape[1] * max(own.var(), 1e-12))
        own, other = (
            np.exp(-gamma * euclidean_distances(rows, x[train], squared=True))
            for rows in (own, other)
        )
        model = SVC(kernel="precomputed", cache_size=1000)
    search = GridSearchCV(model, {"C": list(C)}, cv=INNER)
    search.fit(own, y[train])
    return search.best_score_, 100 * search.score(other, y[test])


def _places(source: Any) -> list[tuple[Any, int]]:
    """Of each example of a split: which prepared split it is of, and its place there."""
    return [(part.path, place) for part, places in source.parts for place in places.tolist()]


def run(context: EvalContext, *, seed: int, preset: str = "graphcl") -> list[Result]:
    """`evaluate` of all labelled examples, those of both splits, each once."""
    settings = PRESETS[preset]
    features, labels = context.features.train, context.features.train_labels
    if context.train is not None and context.test is not None:
        known = {*_places(context.train)}
        new = np.array([place not in known for place in _places(context.test)], bool)
        features = np.concatenate([features, context.features.test[new]])
        labels = np.concatenate([labels, context.features.test_labels[new]])
    accuracy = evaluate(features, labels, **settings, seed=seed)
    details = {"preset": preset, **settings, "folds": FOLDS, "examples": len(labels)}
    return [Result("svm_top1", float(accuracy.mean()), float(accuracy.std()), details)]


protocol = Protocol(run, PRESETS, examples=("graph",), novel_classes=True)

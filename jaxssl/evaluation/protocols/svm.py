"""Ten-fold cross-validation of support vector machines, the protocol of graph classification."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from jaxssl.data.decoders.files import cpu_count
from jaxssl.data.splits import in_both
from jaxssl.evaluation.protocol import (
    EvalContext,
    Features,
    Presets,
    Protocol,
    Result,
    check_split,
    make_results,
)

MACHINES = ("kernel", "linear")
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
PRESETS: Presets = {
    # GraphCL's code does not standardise features. Its linear machine is commented out.
    "graphcl": {"C": STRENGTHS, "machines": MACHINES, "standardised": False},
    "kernel": {"C": STRENGTHS, "machines": ("kernel",), "standardised": True},
}
FOLDS, INNER = 10, 5
MAX_KERNEL = 2**35  # largest size in bytes of a kernel matrix, for 65 536 examples
KERNEL_BYTES = 2**32  # largest memory in bytes of the kernel matrices of concurrent folds


class Score(NamedTuple):
    """Accuracy of an SVM, in [0, 1]: in cross-validation on training data, and on test data."""

    validation: float
    test: float


def evaluate(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    C: Sequence[float] | float = STRENGTHS,
    machines: Sequence[str] | str = MACHINES,
    standardised: bool = False,
    seed: int = 0,
) -> np.ndarray:
    """Compute the SVM's accuracy on each of ten stratified folds.

    Five-fold cross-validation on the other nine folds chooses C for each machine, and then the
    machine. The default settings are those of the preset "graphcl".

    Differs from GraphCL's released code, which has only the kernel machine.

    Args:
        features: [n, f], features of all examples.
        labels: [n] int. Each class needs ten examples.
        C: inverse regularisation strengths to choose from, finite and > 0.
        machines: "kernel" (RBF, gamma 1 / (f variance)), "linear" (squared hinge), or both.
        standardised: whether each feature is standardised on the nine training folds.
        seed: seed of the folds.

    Returns:
        [10] accuracies in percent.

    Raises:
        ValueError: if a class has too few examples, features are not finite, or a machine or C is
            not as above.

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, 5.2 (after Sun et al.,
        InfoGraph, 2020).
    """
    features, labels = check_split("", features, labels)
    machines = (machines,) if isinstance(machines, str) else tuple(machines)
    if not machines or not set(machines) <= set(MACHINES):
        raise ValueError(f"machines must be one or more of {MACHINES}, got {machines}")
    strengths = np.atleast_1d(np.asarray(C, np.float64))
    if strengths.ndim > 1 or not strengths.size or not all(0 < c < np.inf for c in strengths):
        raise ValueError(f"C must be one or more finite numbers > 0, got {C}")
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2 or counts.min() < FOLDS:
        raise ValueError(
            f"ten folds need at least 2 classes, each with at least {FOLDS} examples; got classes "
            f"of {counts.tolist()} examples"
        )
    if not np.isfinite(features).all():
        raise ValueError("features must be finite, got NaN or infinity; check the encoder")
    kernel_bytes = 8 * len(labels) ** 2
    if "kernel" in machines and kernel_bytes > MAX_KERNEL:
        raise ValueError(f"the kernel matrix of {len(labels)} examples takes over 32 GiB")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed % 2**32)
    wide = features.astype(np.float64)

    def on_fold(fold: tuple[np.ndarray, np.ndarray]) -> float:
        """Return the test accuracy of the machine with the best cross-validation accuracy."""
        train, test = (wide[indices] for indices in fold)
        if standardised:
            scaler = StandardScaler().fit(train)
            train, test = (np.asarray(scaler.transform(x)) for x in (train, test))
        data = Features(train, labels[fold[0]], test, labels[fold[1]])
        scores = [_fit(machine, strengths, data) for machine in machines]
        return 100 * max(scores, key=lambda score: score.validation).test

    # Threads suffice because the solvers release the GIL. Memory limits their number.
    threads = max(1, min(FOLDS, cpu_count(), KERNEL_BYTES // (2 * kernel_bytes)))
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.array(list(pool.map(on_fold, folds.split(features, labels))))


def _fit(machine: str, strengths: np.ndarray, data: Features) -> Score:
    """Choose C by cross-validation on training data, fit on all of them, and score the SVM."""
    train_x, labels, test_x, _ = data
    # scikit-learn's annotation of ``dual`` lacks bool.
    model = LinearSVC(dual=False, max_iter=1000)  # pyright: ignore[reportArgumentType]
    if machine == "kernel":
        # The kernel is precomputed, because SVC would compute it again for each C.
        gamma = 1 / (train_x.shape[1] * max(train_x.var(), 1e-12))
        train_x, test_x = (rbf_kernel(x, data.train, gamma) for x in (train_x, test_x))
        model = SVC(kernel="precomputed", cache_size=1000)
    folds = list(StratifiedKFold(INNER).split(train_x, labels))

    def choose(rows: np.ndarray, fitted: np.ndarray) -> np.ndarray:
        return train_x[np.ix_(rows, fitted)] if machine == "kernel" else train_x[rows]

    def accuracy(fitted: np.ndarray, held_out: np.ndarray) -> float:
        model.fit(choose(fitted, fitted), labels[fitted])
        return float(model.score(choose(held_out, fitted), labels[held_out]))

    # GridSearchCV would reset the warning filters of all threads for a moment, and warn of that.
    accuracies = []
    for strength in strengths:
        model.set_params(C=strength)
        accuracies.append(float(np.mean([accuracy(*fold) for fold in folds])))
    best = int(np.argmax(accuracies))
    model.set_params(C=strengths[best]).fit(train_x, labels)
    return Score(accuracies[best], float(np.mean(model.predict(test_x) == data.test_labels)))


def run(context: EvalContext, *, seed: int, preset: str = "graphcl") -> list[Result]:
    """Cross-validate SVMs on both splits together. An example in both counts once."""
    settings = PRESETS[preset]
    features, labels = context.features.train, context.features.train_labels
    if context.train is not None and context.test is not None:
        new = ~in_both(context.train, context.test)
        features = np.concatenate([features, context.features.test[new]])
        labels = np.concatenate([labels, context.features.test_labels[new]])
    accuracy = evaluate(features, labels, **settings, seed=seed)
    counts = {"folds": FOLDS, "examples": len(labels)}
    return make_results({"svm_top1": accuracy}, preset=preset, **settings, **counts)


protocol = Protocol(run, PRESETS, examples=("graph",), novel_classes=True)

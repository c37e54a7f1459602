"""Few-shot probe: logistic regression on n labelled examples of each class, many draws."""

import numpy as np

from jaxssl.evals import Features, Row, Subject
from jaxssl.evals.linear import fit

PRESETS = {"default": {"shots": (1, 5), "draws": 20, "C": 10.0, "max_iter": 1000}}


def evaluate(
    features: Features, *, shots: int, draws: int, C: float, max_iter: int, seed: int
) -> np.ndarray:
    """Test accuracy of each draw of ``shots`` training examples a class.

    Features are set to length 1; the classifier is multinomial logistic regression. Draw r takes
    the same examples whatever the features are, so that features can be compared.

    Args:
        features: of a training and a test set.
        shots: examples of each class.
        draws: how many times examples are drawn.
        C: inverse L2 strength, fixed: with so few labels there is nothing to choose it on.
        max_iter: of L-BFGS.
        seed: of the draws.

    Returns:
        [draws] accuracies in percent.

    Raises:
        ValueError: if a class has fewer than ``shots`` training examples.
    """
    labels = features.train_labels
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < shots:
        rare = classes[counts.argmin()]
        raise ValueError(f"class {rare} has {counts.min()} training examples, {shots} are needed")
    train, test = _unit(features.train), _unit(features.test)
    accuracy = []
    for draw in range(draws):
        rng = np.random.default_rng((seed, shots, draw))
        chosen = np.concatenate(
            [rng.choice(np.flatnonzero(labels == c), shots, replace=False) for c in classes]
        )
        model = fit(train[chosen], labels[chosen], C, max_iter)
        accuracy.append(100 * model.score(test, features.test_labels))
    return np.array(accuracy)


def run(subject: Subject, *, seed: int, preset: str = "default") -> list[Row]:
    """`evaluate` for each number of shots of a preset; mean and deviation over the draws."""
    settings = dict(PRESETS[preset])
    rows = []
    for shots in settings.pop("shots"):
        accuracy = evaluate(subject.features, shots=shots, **settings, seed=seed)
        details = {"preset": preset, "shots": shots, **settings}
        name = f"fewshot_{shots}shot_top1"
        rows.append(Row(name, float(accuracy.mean()), float(accuracy.std()), details))
    return rows


def _unit(features: np.ndarray) -> np.ndarray:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)

"""Few-shot episodes: classification by nearest class mean in many small random tasks."""

from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.evaluation.protocol import (
    EvalContext,
    Presets,
    Protocol,
    Result,
    check_split,
    indices_by_class,
    make_results,
)
from jaxssl.losses.objective import check
from jaxssl.losses.pairs import dot, unit

CDFSL = {"ways": 5, "queries": 15, "episodes": 600, "distance": "euclidean"}
PRESETS: Presets = {
    "cdfsl_5way_20shot": {**CDFSL, "shots": 20},
    "cdfsl_5way_5shot": {**CDFSL, "shots": 5},
    "cdfsl_5way_1shot": {**CDFSL, "shots": 1},
    "cosine_5way_20shot": {**CDFSL, "shots": 20, "distance": "cosine"},
}
RANGES = {"ways": ">= 2", "shots": ">= 1", "queries": ">= 1", "episodes": ">= 1"}
DISTANCES = ("euclidean", "cosine")
BLOCK = 20  # episodes computed at once (5 ways x 35 examples x 2048 features take 28 MB)


def evaluate(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    ways: int,
    shots: int,
    queries: int,
    episodes: int,
    distance: str = "euclidean",
    seed: int,
) -> np.ndarray:
    r"""Compute the accuracy of the nearest class prototype in many small tasks.

    .. math:: \hat y(q) = \arg\min_c |q - p_c|^2, \quad p_c = \frac{1}{K} \sum_{x \in S_c} x

    An episode draws classes, and for each class a support set and disjoint queries. The draws
    depend only on labels and seed, so that all encoders get the same tasks. Classes with fewer than
    ``shots + queries`` examples are never drawn.

    Args:
        features: [m, f] float32, not normalised ("cosine" normalises queries and prototypes).
        labels: [m] int.
        ways: classes per episode, >= 2.
        shots: K, support examples per class, >= 1.
        queries: queries per class, >= 1.
        episodes: number of episodes, >= 1.
        distance: "euclidean", or "cosine" for the largest cosine similarity to a prototype.
        seed: seed of the draws.

    Returns:
        [episodes] accuracies in percent.

    Raises:
        ValueError: if a setting is out of range, the distance is unknown, an array has another
            shape or dtype, fewer than ``ways`` classes have enough examples, or a feature is not
            finite.

    References:
        Snell et al., Prototypical Networks for Few-shot Learning, 2017, eq. 1-2; Guo et al., A
        Broader Study of Cross-Domain Few-Shot Learning, 2020 (600 episodes, 15 queries).
    """
    check(RANGES, "setting", ways=ways, shots=shots, queries=queries, episodes=episodes)
    if distance not in DISTANCES:
        raise ValueError(f"distance must be one of {DISTANCES}, got {distance!r}")
    features, labels = check_split("", features, labels)
    if not np.isfinite(features).all():
        raise ValueError("features must be finite, got NaN or infinity; check the encoder")
    index = jnp.asarray(draw(labels, ways, shots + queries, episodes, seed))
    h = jnp.asarray(features, jnp.float32)
    return 100 * np.asarray(_accuracies(h, index, shots=shots, distance=distance), np.float64)


def draw(labels: np.ndarray, ways: int, per_class: int, episodes: int, seed: int) -> np.ndarray:
    """Draw the classes and examples of every few-shot episode.

    Args:
        labels: [m] int.
        ways: classes per episode.
        per_class: examples per class, all different.
        episodes: number of episodes.
        seed: seed of the draws.

    Returns:
        [episodes, ways, per_class] int32, indices of the examples.

    Raises:
        ValueError: if fewer than ``ways`` classes have ``per_class`` examples.
    """
    classes = indices_by_class(labels)
    members = [indices for indices in classes if len(indices) >= per_class]
    if len(members) < ways:
        raise ValueError(
            f"episodes need {ways} classes with {per_class} examples or more; only {len(members)} "
            f"of {len(classes)} classes have that many, the largest has "
            f"{max(map(len, classes), default=0)}; "
            "choose a test split with more, or a preset with fewer shots"
        )
    rng = np.random.default_rng(seed)
    drawn = np.empty((episodes, ways, per_class), np.int32)
    for episode in drawn:
        for way, c in enumerate(rng.choice(len(members), ways, replace=False)):
            episode[way] = rng.choice(members[c], per_class, replace=False)
    return drawn


@partial(jax.jit, static_argnames=("shots", "distance"))
def _accuracies(h: Array, index: Array, *, shots: int, distance: str) -> Array:
    """Return the share of correctly classified queries in each episode, [episodes]."""

    def accuracy(index: Array) -> Array:
        examples = h[index]
        prototypes, queries = jnp.mean(examples[:, :shots], axis=1), examples[:, shots:]
        if distance == "cosine":
            scores = dot(unit(queries), unit(prototypes))
        else:
            # |q - p|^2 is smallest where q p - |p|^2 / 2 is largest. Subtracting the mean of the
            # prototypes changes no distance, and avoids cancellation.
            centre = jnp.mean(prototypes, axis=0)
            queries, prototypes = queries - centre[None, None, :], prototypes - centre[None, :]
            scores = dot(queries, prototypes) - jnp.sum(prototypes**2, axis=1)[None, None, :] / 2
        is_correct = jnp.argmax(scores, axis=2) == jnp.arange(len(index))[:, None]
        return jnp.mean(is_correct, dtype=h.dtype)

    return lax.map(accuracy, index, batch_size=BLOCK)


def run(context: EvalContext, *, seed: int, preset: str = "cdfsl_5way_20shot") -> list[Result]:
    """Evaluate few-shot episodes on the test images, with a 95 % confidence interval.

    Episodes are drawn from the test split only, because the network may have been pretrained on the
    training images. CD-FSL tests on classes that were not trained on. Whether that holds depends on
    the data set.
    """
    settings = PRESETS[preset]
    features = context.features
    accuracy = evaluate(features.test, features.test_labels, **settings, seed=seed)
    ci95 = 1.96 * float(accuracy.std()) / len(accuracy) ** 0.5
    name = f"episodes_{settings['ways']}way_{settings['shots']}shot_top1"
    details = {"preset": preset, **settings, "from": "test", "ci95": ci95}
    return make_results({name: accuracy}, **details)


protocol = Protocol(run, PRESETS, novel_classes=True)

"""Few-shot episodes: classification by nearest class mean in many small random tasks."""

from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.evaluation.protocol import EvalContext, Presets, Protocol, Result, make_results
from jaxssl.losses.pairs import unit

CDFSL = {"ways": 5, "queries": 15, "episodes": 600, "distance": "euclidean"}
PRESETS: Presets = {
    "cdfsl_5way_20shot": {**CDFSL, "shots": 20},
    "cdfsl_5way_5shot": {**CDFSL, "shots": 5},
    "cdfsl_5way_1shot": {**CDFSL, "shots": 1},
    "cosine_5way_20shot": {**CDFSL, "shots": 20, "distance": "cosine"},
}
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

    An episode draws classes, and for each class a support set and disjoint queries. The draws do
    not depend on the features, so that features can be compared. Classes with fewer than
    ``shots + queries`` examples are never drawn.

    Args:
        features: [m, f] float32, used without normalisation.
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
        ValueError: if a setting is out of range, the distance is unknown, fewer than ``ways``
            classes have enough examples, or a feature is not finite.

    References:
        Snell et al., Prototypical Networks for Few-shot Learning, 2017, eq. 1-2; Guo et al., A
        Broader Study of Cross-Domain Few-Shot Learning, 2020 (600 episodes, 15 queries).
    """
    if ways < 2 or min(shots, queries, episodes) < 1:
        raise ValueError(
            "ways must be >= 2, shots, queries and episodes >= 1, "
            f"got {ways}, {shots}, {queries} and {episodes}"
        )
    if distance not in DISTANCES:
        raise ValueError(f"distance must be one of {DISTANCES}, got {distance!r}")
    if not np.isfinite(features).all():
        raise ValueError("features must be finite, got NaN or infinity; check the encoder")
    index = draw(labels, ways, shots + queries, episodes, seed)
    h = jnp.asarray(features, jnp.float32)
    return 100 * np.asarray(_accuracies(h, index, shots=shots, distance=distance), np.float64)


def draw(labels: np.ndarray, ways: int, each: int, episodes: int, seed: int) -> np.ndarray:
    """Draw the classes and examples of every few-shot episode.

    Args:
        labels: [m] int.
        ways: classes per episode.
        each: examples per class, all different.
        episodes: number of episodes.
        seed: seed of the draws.

    Returns:
        [episodes, ways, each] int32, indices of the examples.

    Raises:
        ValueError: if fewer than ``ways`` classes have ``each`` examples.
    """
    classes, counts = np.unique(labels, return_counts=True)
    members = [np.flatnonzero(labels == c) for c in classes[counts >= each]]
    if len(members) < ways:
        raise ValueError(
            f"episodes need {ways} classes with {each} examples or more; only {len(members)} of "
            f"{len(classes)} classes have that many, the largest has {max(counts, default=0)}"
        )
    rng = np.random.default_rng(seed)
    drawn = np.empty((episodes, ways, each), np.int32)
    for episode in drawn:
        for way, c in enumerate(rng.choice(len(members), ways, replace=False)):
            episode[way] = rng.choice(members[c], each, replace=False)
    return drawn


@partial(jax.jit, static_argnames=("shots", "distance"))
def _accuracies(h: Array, index: np.ndarray, *, shots: int, distance: str) -> Array:
    """Return the share of correctly classified queries in each episode, [episodes]."""

    def one(index: Array) -> Array:
        examples = h[index]
        prototypes = jnp.mean(examples[:, :shots], axis=1)
        queries = examples[:, shots:]
        if distance == "cosine":
            queries, prototypes = unit(queries), unit(prototypes)
            length = jnp.zeros(len(index), jnp.float32)
        else:
            # Centring the prototypes leaves distances unchanged and avoids cancellation. |q|^2 is
            # dropped, because it is the same for all classes.
            centre = jnp.mean(prototypes, axis=0)
            queries = queries - centre[None, None, :]
            prototypes = prototypes - centre[None, :]
            length = jnp.sum(prototypes**2, axis=1)
        scores = jnp.matmul(queries, prototypes.T, precision=lax.Precision.HIGHEST)
        nearest = jnp.argmax(scores - 0.5 * length[None, None, :], axis=2)
        return jnp.mean((nearest == jnp.arange(len(index))[:, None]).astype(h.dtype))

    return lax.map(one, jnp.asarray(index), batch_size=BLOCK)


def run(context: EvalContext, *, seed: int, preset: str = "cdfsl_5way_20shot") -> list[Result]:
    """Evaluate few-shot episodes on the test images, with a 95 % confidence interval.

    Episodes are drawn from the test split only, because the network may have been pretrained on the
    training images. CD-FSL evaluates novel classes, which is up to the data set here.
    """
    settings = PRESETS[preset]
    features = context.features
    accuracy = evaluate(features.test, features.test_labels, **settings, seed=seed)
    ci95 = 1.96 * float(accuracy.std()) / len(accuracy) ** 0.5
    name = f"episodes_{settings['ways']}way_{settings['shots']}shot_top1"
    details = {"preset": preset, **settings, "from": "test", "ci95": ci95}
    return make_results({name: accuracy}, **details)


protocol = Protocol(run, PRESETS, novel_classes=True)

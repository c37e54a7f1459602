"""k-nearest-neighbour classification with noise on the similarities: how wide are the margins?

Gaussian noise is added to the cosine similarities before the neighbours are taken, and the noisy
similarities vote. DeCL (2022, fig. 2) perturbs the similarities of training in the same way, and
shows the accuracy after it; here training is over, and it is the representation that is tried.
"""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.evaluation.protocol import EvalContext, Features, Protocol, Result
from jaxssl.evaluation.protocols import knn
from jaxssl.losses.pairs import unit

# stddevs: of the noise; draws: of it; limit: queries at most, drawn by the seed.
PRESETS = {
    "cifar_simclr": {
        "stddevs": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5),
        "draws": 3,
        "limit": 1000,
        "k": knn.PRESETS["cifar_simclr"]["k"],
        "temperature": knn.PRESETS["cifar_simclr"]["temperature"],
    }
}
QUERY_BLOCK = 100  # queries at a time
BANK_BLOCK = 2**16  # rows of the bank at a time


def evaluate(
    features: Features,
    *,
    stddevs: Sequence[float],
    draws: int,
    k: int,
    temperature: float,
    seed: int,
) -> np.ndarray:
    """k-NN accuracy at each level of noise, for each draw of it.

    A query's noise is keyed by the seed, the draw and its place. Levels share it, each times its
    own deviation, so that they can be compared.

    Args:
        features: of a bank and of queries.
        stddevs: of the noise, >= 0; 0 is `jaxssl.evaluation.protocols.knn`.
        draws: how many times noise is drawn.
        k: neighbours; all if there are fewer.
        temperature: of the votes, > 0.
        seed: of the noise.

    Returns:
        [number of stddevs, draws] accuracies in percent.

    Raises:
        ValueError: if a deviation is negative, or as `jaxssl.evaluation.protocols.knn.evaluate`.
    """
    if min(stddevs, default=0) < 0:
        raise ValueError(f"the noise's stddevs must be >= 0, got {tuple(stddevs)}")
    clean = knn.evaluate(*features, k=k, temperature=temperature)["knn_top1"]
    found = np.full((len(stddevs), draws), clean)
    noisy = np.flatnonzero(np.asarray(stddevs) > 0)
    levels = jnp.asarray(np.asarray(stddevs)[noisy], jnp.float32)
    train_labels, test_labels = (
        np.asarray(labels) for labels in (features.train_labels, features.test_labels)
    )
    num_classes = int(max(train_labels.max(), test_labels.max())) + 1
    for draw in range(draws if len(noisy) else 0):
        key = jax.random.fold_in(jax.random.key(seed), draw)
        similarity, place = neighbours(features.train, features.test, k, levels, key)
        for row, s, p in zip(noisy, similarity, place, strict=True):
            votes = knn.votes(s, train_labels[p], num_classes=num_classes, temperature=temperature)
            hit = np.argmax(np.asarray(votes), axis=1) == test_labels
            found[row, draw] = 100 * hit.mean()
    return found


def neighbours(
    bank: np.ndarray, queries: np.ndarray, k: int, stddevs: Array, key: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy cosine similarities and places of the k nearest rows of the bank, at each level.

    Args:
        bank: [n, f].
        queries: [m, f].
        k: neighbours; n if there are fewer.
        stddevs: [s] float32.
        key: of the noise.

    Returns:
        [s, m, k] float32 and int32, nearest first.
    """
    n, m, k = len(bank), len(queries), min(k, len(bank))
    found = []
    for start in range(0, m, QUERY_BLOCK):
        block = np.zeros((QUERY_BLOCK, queries.shape[1]), np.float32)
        part = queries[start : start + QUERY_BLOCK]
        block[: len(part)] = part
        index = np.arange(start, start + QUERY_BLOCK, dtype=np.int32)
        shape = (len(stddevs), QUERY_BLOCK, k)
        best = (jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32))
        for first in range(0, n, BANK_BLOCK):
            rows = jnp.asarray(bank[first : first + BANK_BLOCK], jnp.float32)
            noise = _noise(key, index, first, len(rows))
            best = _nearer(*best, stddevs, _cosine(block, rows), noise, first)
        found.append([np.asarray(x)[:, : len(part)] for x in best])
    similarity, place = (np.concatenate(x, axis=1) for x in zip(*found, strict=True))
    return similarity, place


# Three programs: for features of another width, the small one alone is compiled again.
@jax.jit
def _cosine(queries: Array, bank: Array) -> Array:
    return jnp.matmul(unit(queries), unit(bank).T, precision=lax.Precision.HIGHEST)


@partial(jax.jit, static_argnums=3)
def _noise(key: Array, index: Array, first: Array, rows: int) -> Array:
    """[q, rows] of the queries at places [q], for the rows of the bank from ``first`` on."""

    def of_query(i: Array) -> Array:
        return jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, i), first), (rows,))

    return jax.vmap(of_query)(index)


@jax.jit
def _nearer(
    similarity: Array, place: Array, stddevs: Array, exact: Array, noise: Array, first: Array
) -> tuple[Array, Array]:
    """The best so far, or better ones from a part of the bank that begins at ``first``."""

    def at_level(given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        stddev, old, old_place = given
        found, where = lax.top_k(exact + stddev * noise, min(old.shape[1], exact.shape[1]))
        found = jnp.concatenate([old, found], axis=1)
        where = jnp.concatenate([old_place, where.astype(jnp.int32) + first], axis=1)
        found, chosen = lax.top_k(found, old.shape[1])
        return found, jnp.take_along_axis(where, chosen, axis=1)

    return lax.map(at_level, (stddevs, similarity, place))


def run(context: EvalContext, *, seed: int, preset: str = "cifar_simclr") -> list[Result]:
    """`evaluate` on at most ``limit`` test images; mean and deviation over the draws."""
    settings = dict(PRESETS[preset])
    limit, features = settings.pop("limit"), context.features
    if len(features.test) > limit:
        chosen = np.random.default_rng(seed).choice(len(features.test), limit, replace=False)
        chosen.sort()
        features = features._replace(
            test=features.test[chosen], test_labels=features.test_labels[chosen]
        )
    found = evaluate(features, **settings, seed=seed)
    details = {"preset": preset, **PRESETS[preset], "images": len(features.test)}
    return [
        Result(f"noise_{s:g}_top1", float(x.mean()), float(x.std()), {**details, "stddev": s})
        for s, x in zip(settings["stddevs"], found, strict=True)
    ]


protocol = Protocol(run, PRESETS)

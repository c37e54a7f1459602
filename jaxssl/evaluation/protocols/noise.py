"""k-NN accuracy with noise on the similarities, a test of the margins between classes.

Gaussian noise is added to the cosine similarities, and the noisy similarities choose the neighbours
and vote. DeCL (2022, fig. 2) perturbs the similarities in training instead.
"""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.distributed import pad_rows
from jaxssl.evaluation.nearest_neighbours import merge_nearest, slices, unit_rows
from jaxssl.evaluation.protocol import EvalContext, Features, Protocol, Result, make_results, subset
from jaxssl.evaluation.protocols import knn
from jaxssl.losses.objective import check
from jaxssl.losses.pairs import dot

# "stddevs" and "draws" belong to the noise. "limit" is the largest number of queries, drawn at
# random.
PRESETS = {
    "cifar_simclr": {
        "stddevs": (0.0, 0.05, 0.1, 0.2, 0.3, 0.5),
        "draws": 3,
        "limit": 1000,
        **knn.PRESETS["cifar_simclr"],
    }
}
RANGES = {"stddevs": ">= 0", "draws": ">= 1"}
QUERY_BLOCK = 100  # number of queries per block
BANK_BLOCK = 2**16  # number of bank examples per block


def evaluate(
    features: Features,
    *,
    stddevs: Sequence[float],
    draws: int,
    k: int,
    temperature: float,
    seed: int,
) -> np.ndarray:
    """Compute the k-NN accuracy at each noise level, for each draw of the noise.

    The noise of a query is keyed by the seed, the draw and the index of the query. All levels scale
    the same noise, so that they can be compared.

    Args:
        features: features of a bank and of queries.
        stddevs: standard deviations of the noise, >= 0. 0 gives `jaxssl.evaluation.protocols.knn`.
        draws: number of draws, >= 1.
        k: number of neighbours. At most the size of the bank is used.
        temperature: temperature of the votes, > 0.
        seed: seed of the noise.

    Returns:
        [number of stddevs, draws] accuracies in percent.

    Raises:
        ValueError: if a standard deviation or the number of draws is out of range, or as
            `jaxssl.evaluation.protocols.knn.accuracy`.
    """
    check(RANGES, "setting", stddevs=stddevs, draws=draws)
    clean = knn.accuracy(features, k=k, temperature=temperature)["knn_top1"]
    accuracy = np.full((len(stddevs), draws), clean)
    noisy = np.flatnonzero(np.asarray(stddevs) > 0)
    levels = jnp.asarray(np.asarray(stddevs)[noisy], jnp.float32)
    train_labels, test_labels = features.train_labels, features.test_labels
    num_classes = int(max(train_labels.max(), test_labels.max())) + 1
    vote = partial(knn.votes, num_classes=num_classes, temperature=temperature)
    for draw in range(draws if len(noisy) else 0):
        key = jax.random.fold_in(jax.random.key(seed), draw)
        similarity, index = neighbours(features.train, features.test, k, levels, key)
        for level, s, i in zip(noisy, similarity, index, strict=True):
            hits = [
                np.argmax(vote(s[part], train_labels[i[part]]), axis=1) == test_labels[part]
                for part in slices(len(s), QUERY_BLOCK)
            ]
            accuracy[level, draw] = 100 * np.concatenate(hits).mean()
    return accuracy


def neighbours(
    bank: np.ndarray, queries: np.ndarray, k: int, stddevs: Array, key: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k nearest neighbours by noisy cosine similarity, at each noise level.

    Args:
        bank: [n, f].
        queries: [m, f].
        k: number of neighbours. At most n are returned.
        stddevs: [s] float32.
        key: key of the noise.

    Returns:
        Similarities [s, m, k] float32 and indices [s, m, k] int32, nearest first.
    """
    n, m, k = len(bank), len(queries), min(k, len(bank))
    starts, shape = range(0, m, QUERY_BLOCK), (len(stddevs), QUERY_BLOCK, k)
    queries = pad_rows(queries, len(starts) * QUERY_BLOCK)
    best = [(jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.int32)) for _ in starts]
    for first in range(0, n, BANK_BLOCK):
        # A block of the bank is copied to the device once, for all queries.
        rows = unit_rows(bank, slice(first, first + BANK_BLOCK), "the bank")
        for i, start in enumerate(starts):
            block = unit_rows(queries, slice(start, start + QUERY_BLOCK), "queries")
            exact = _dot(block, rows)
            query_index = jnp.arange(start, start + QUERY_BLOCK, dtype=jnp.int32)
            noise = _noise(key, query_index, first, len(rows))
            best[i] = jax.block_until_ready(_update(*best[i], stddevs, exact, noise, first))
    similarity, index = (np.concatenate(x, axis=1)[:, :m] for x in zip(*best, strict=True))
    return similarity, index


# A program of its own, so that another feature width recompiles only this part.
_dot = jax.jit(dot)


@partial(jax.jit, static_argnums=3)
def _noise(key: Array, query_index: Array, first: int, rows: int) -> Array:
    """Draw the noise [q, rows] on similarities of queries [q] to bank rows from ``first`` on."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, i), first))(query_index)
    return jax.vmap(lambda key: jax.random.normal(key, (rows,), jnp.float32))(keys)


@jax.jit
def _update(
    similarity: Array, index: Array, stddevs: Array, exact: Array, noise: Array, first: int
) -> tuple[Array, Array]:
    """Merge the nearest neighbours so far with the bank rows from ``first`` on."""

    def at_level(level: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        stddev, old, old_index = level
        return merge_nearest(old, old_index, exact + stddev * noise, first)

    return lax.map(at_level, (stddevs, similarity, index))


def run(context: EvalContext, *, seed: int, preset: str = "cifar_simclr") -> list[Result]:
    """Evaluate noisy k-NN on at most ``limit`` test images, as mean and std over the draws."""
    settings, features = dict(PRESETS[preset]), context.features
    drawn = subset(len(features.test), settings.pop("limit"), seed=seed)
    test, test_labels = features.test[drawn], features.test_labels[drawn]
    features = features._replace(test=test, test_labels=test_labels)
    accuracy = evaluate(features, **settings, seed=seed)
    details = {"preset": preset, **PRESETS[preset], "images": len(drawn)}
    details["k"] = min(details["k"], len(features.train))
    results = []
    for stddev, draws in zip(settings["stddevs"], accuracy, strict=True):
        results += make_results({f"noise_{stddev:g}_top1": draws}, **details, stddev=stddev)
    return results


protocol = Protocol(run, PRESETS)

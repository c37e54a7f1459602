"""k-nearest-neighbour classification with weighted votes."""

from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.evals import Row, Subject
from jaxssl.pairs import unit

# k and temperature of public protocols.
PRESETS = {
    "instdisc": {"k": 200, "temperature": 0.1},
    "cifar_simclr": {"k": 200, "temperature": 0.5},
    "moco_v3_10": {"k": 10, "temperature": 0.07},
    "moco_v3_20": {"k": 20, "temperature": 0.07},
    "moco_v3_100": {"k": 100, "temperature": 0.07},
    "uniform": {"k": 1, "temperature": 1.0},
}
QUERY_BLOCK = 100  # queries at a time: their similarities stay in cache
BANK_BLOCK = 2**27  # bytes of the bank that are on the device at a time


def evaluate(
    train_features: Array | np.ndarray,
    train_labels: Array | np.ndarray,
    test_features: Array | np.ndarray,
    test_labels: Array | np.ndarray,
    *,
    k: int,
    temperature: float,
) -> dict[str, float]:
    """Accuracy of votes of the k most cosine-similar training examples, each exp(sim / T).

    Args:
        train_features: [n, f], the bank; it may be a memory map.
        train_labels: [n] int >= 0.
        test_features: [m, f].
        test_labels: [m] int >= 0.
        k: neighbours; all n if there are fewer.
        temperature: T, > 0.

    Returns:
        "knn_top1" and "knn_top5" (100 if there are five classes or fewer), in percent.

    Raises:
        ValueError: if k < 1, T <= 0, or features and labels differ in length.
    """
    if k < 1 or temperature <= 0:
        raise ValueError(f"k must be >= 1 and temperature > 0, got {k} and {temperature}")
    if len(train_features) != len(train_labels) or len(test_features) != len(test_labels):
        raise ValueError("features and labels must have the same length")
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    num_classes = int(max(train_labels.max(), test_labels.max())) + 1
    similarity, place = neighbours(train_features, test_features, k)
    scores = votes(
        similarity, train_labels[place], num_classes=num_classes, temperature=temperature
    )
    _, ranked = lax.top_k(scores, min(5, num_classes))
    hit = np.asarray(ranked) == test_labels[:, None]
    return {
        "knn_top1": 100.0 * float(hit[:, 0].mean()),
        "knn_top5": 100.0 * float(hit.any(axis=1).mean()),
    }


@partial(jax.jit, static_argnames="num_classes")
def votes(
    similarity: Array | np.ndarray,
    labels: Array | np.ndarray,
    *,
    num_classes: int,
    temperature: float,
) -> Array:
    """[m, num_classes] summed weights of each query's neighbours [m, k], nearest first."""
    # Relative to the nearest: exp(1 / T) would overflow for small T; the ranking is the same.
    weight = jnp.exp((similarity - similarity[:, :1]) / temperature)
    total = partial(jax.ops.segment_sum, num_segments=num_classes)
    return jax.vmap(total)(weight, labels)


def neighbours(
    bank: Array | np.ndarray, queries: Array | np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine similarities and places of the k rows of ``bank`` nearest to each query.

    Both sides are taken in blocks. Above the bank, memory is a block of it (128 MiB), the queries,
    their k neighbours, and `QUERY_BLOCK` rows of similarities.

    Args:
        bank: [n, f], any length.
        queries: [m, f], any length.
        k: neighbours; n if there are fewer.

    Returns:
        [m, k] float32 and int32, nearest first; of equal ones the first in the bank.
    """
    (n, f), m, k = bank.shape, len(queries), min(k, len(bank))
    rows = min(n, max(k, BANK_BLOCK // (4 * f)))
    padded = np.zeros((-(-m // QUERY_BLOCK) * QUERY_BLOCK, f), np.float32)
    padded[:m] = queries
    blocks = unit(jnp.asarray(padded)).reshape(-1, QUERY_BLOCK, f)
    best = (
        jnp.full((*blocks.shape[:2], k), -jnp.inf),
        jnp.zeros((*blocks.shape[:2], k), jnp.int32),
    )
    for first in range(0, n, rows):
        part = jnp.asarray(bank[first : first + rows], jnp.float32)
        best = _nearer(*best, blocks, part, first)
    similarity, place = (np.asarray(x).reshape(-1, k)[:m] for x in best)
    return similarity, place


@jax.jit
def _nearer(similarity: Array, place: Array, queries: Array, bank: Array, first: int) -> tuple:
    """The best so far, or better ones from a part of the bank that begins at ``first``."""
    # The similarities are scaled, not the bank: it need not be copied.
    scale = 1 / jnp.maximum(jnp.linalg.norm(bank, axis=1), 1e-12)
    k = similarity.shape[-1]

    def of_block(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        query, old, old_place = block
        found = jnp.matmul(query, bank.T, precision=lax.Precision.HIGHEST) * scale[None, :]
        found, where = lax.top_k(found, min(k, len(bank)))
        found = jnp.concatenate([old, found], axis=1)
        where = jnp.concatenate([old_place, where.astype(jnp.int32) + first], axis=1)
        found, chosen = lax.top_k(found, k)
        return found, jnp.take_along_axis(where, chosen, axis=1)

    return lax.map(of_block, (queries, similarity, place))


def run(subject: Subject, *, seed: int, preset: str = "cifar_simclr") -> list[Row]:
    """`evaluate` with a preset's k and temperature."""
    del seed
    hyper = PRESETS[preset]
    scores = evaluate(*subject.features, **hyper)
    return [
        Row(metric, value, None, {"preset": preset, **hyper}) for metric, value in scores.items()
    ]

"""k-nearest-neighbour classification with weighted votes."""

from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.evals import Features, Row
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
QUERY_BLOCK = 100  # rows of test features at a time: the similarities stay in cache


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

    Memory is that of the features plus a block of `QUERY_BLOCK` x n similarities.

    Args:
        train_features: [n, f].
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
    num_classes = int(max(np.max(train_labels), np.max(test_labels))) + 1
    scores = votes(
        jnp.asarray(train_features),
        jnp.asarray(train_labels),
        jnp.asarray(test_features),
        num_classes=num_classes,
        k=min(k, len(train_features)),
        temperature=temperature,
    )
    labels = jnp.asarray(test_labels)
    _, ranked = lax.top_k(scores, min(5, num_classes))
    hit = np.asarray(ranked == labels[:, None])
    return {
        "knn_top1": 100.0 * float(hit[:, 0].mean()),
        "knn_top5": 100.0 * float(hit.any(axis=1).mean()),
    }


@partial(jax.jit, static_argnames=("num_classes", "k"))
def votes(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    *,
    num_classes: int,
    k: int,
    temperature: float,
) -> Array:
    """[m, num_classes] summed weights of the k nearest neighbours of each test example."""
    bank = unit(train_features)

    def of_query(query: Array) -> Array:
        similarity, neighbour = nearest_neighbours(bank, query, k)
        # Relative to the nearest: exp(1 / T) would overflow for small T; the ranking is the same.
        weight = jnp.exp((similarity - similarity[0]) / temperature)
        return jax.ops.segment_sum(weight, train_labels[neighbour], num_segments=num_classes)

    return lax.map(of_query, unit(test_features), batch_size=QUERY_BLOCK)


def nearest_neighbours(bank: Array, query: Array, k: int) -> tuple[Array, Array]:
    """Similarities and places of the k rows of ``bank`` nearest to ``query``, nearest first."""
    return lax.top_k(jnp.matmul(bank, query, precision=lax.Precision.HIGHEST), k)


def run(features: Features, *, seed: int, preset: str = "cifar_simclr") -> list[Row]:
    """`evaluate` with a preset's k and temperature."""
    del seed
    hyper = PRESETS[preset]
    scores = evaluate(*features, **hyper)
    return [
        Row(metric, value, None, {"preset": preset, **hyper}) for metric, value in scores.items()
    ]

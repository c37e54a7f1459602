"""The pictures of a run as arrays: augmented pairs, nearest neighbours, a map of the embedding."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from ml_collections import ConfigDict
from sklearn.manifold import TSNE

from jaxssl.augment.views import to_uint8
from jaxssl.build import Parts
from jaxssl.evals import Features
from jaxssl.evals.knn import nearest_neighbours
from jaxssl.pairs import unit

PAIRS, QUERIES, NEIGHBOURS, MAP_POINTS = 10, 10, 8, 1000


def write(
    workdir: Path,
    config: ConfigDict,
    parts: Parts,
    features: Features,
    data: dict[str, dict[str, np.ndarray]],
    class_names: tuple[str, ...],
) -> Path:
    """Write gallery.npz, which `jaxssl.report` shows.

    Args:
        workdir: of the run.
        config: its config.
        parts: whose augmentation makes the pairs.
        features: of the pretrained encoder.
        data: "train" and "test", each "image" uint8 [n, h, w, c] and "label" [n].
        class_names: name of each label.
    """
    train, test = data["train"], data["test"]
    index = np.arange(PAIRS)
    images = train["image"][:PAIRS]
    views = jax.jit(parts.augment)(jax.random.key(config.seed), images, index[: len(images)])
    query, neighbour = _neighbours(features, test["label"])
    points = min(MAP_POINTS, len(features.test))
    arrays: dict[str, Any] = {
        "pairs": np.asarray(to_uint8(views["views"])).swapaxes(0, 1),
        "pairs_original": images,
        "query": test["image"][query],
        "neighbour": train["image"][neighbour],
        "query_label": test["label"][query],
        "neighbour_label": train["label"][neighbour],
        "map": _map(features.test[:points], config.seed),
        "map_label": test["label"][:points],
        "class_names": np.array(class_names),
    }
    path = workdir / "gallery.npz"
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def _neighbours(features: Features, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One test example of each class (then more), and its nearest training examples."""
    _, first = np.unique(labels, return_index=True)
    query = np.concatenate([first, np.setdiff1d(np.arange(len(labels)), first)])[:QUERIES]
    bank, rows = unit(jnp.asarray(features.train)), unit(jnp.asarray(features.test[query]))
    k = min(NEIGHBOURS, len(features.train))
    _, neighbour = jax.vmap(lambda row: nearest_neighbours(bank, row, k))(rows)
    return query, np.asarray(neighbour)


def _map(features: np.ndarray, seed: int) -> np.ndarray:
    """[n, 2] t-SNE of the features by cosine distance."""
    perplexity = min(30.0, (len(features) - 1) / 3)
    tsne = TSNE(
        metric="cosine", init="random", perplexity=perplexity, max_iter=500, random_state=seed
    )
    return tsne.fit_transform(features)

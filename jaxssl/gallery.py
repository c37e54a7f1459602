"""The pictures of a run as arrays: augmented pairs, nearest neighbours, a map of the embedding."""

import io
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from jaxssl import record
from jaxssl.augment.views import to_uint8
from jaxssl.build import make_augment, make_crops
from jaxssl.data import batches
from jaxssl.data.source import Images, Source, Splits
from jaxssl.evals import Features
from jaxssl.evals.knn import neighbours

PAIRS, QUERIES, NEIGHBOURS, MAP_POINTS = 10, 10, 8, 1000


def write(
    workdir: Path,
    config: ConfigDict,
    splits: Splits,
    features: Features,
    data: dict[str, dict[str, Any]],
    step: int,
) -> Path:
    """Write gallery.npz, which `jaxssl.report` shows.

    Args:
        workdir: of the run.
        config: its config.
        splits: of its data set.
        features: of the pretrained encoder.
        data: "train" and "test", each "image" uint8 [n, h, w, c] and "label" [n].
        step: of the checkpoint.
    """
    train, test = data["train"], data["test"]
    originals, views = pairs(config, splits.train, PAIRS)
    query, neighbour = _neighbours(features, test["label"])
    points = min(MAP_POINTS, len(features.test))
    arrays: dict[str, Any] = {
        "step": np.array(step),
        "pairs": views["views"],
        "pairs_original": originals,
        "query": test["image"][query],
        "neighbour": train["image"][neighbour],
        "query_label": test["label"][query],
        "neighbour_label": train["label"][neighbour],
        "map": _map(features.test[:points], config.seed),
        "map_label": test["label"][:points],
        "class_names": np.array(splits.bank.class_names),
    }
    path = workdir / "gallery.npz"
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    record.write_bytes(path, content.getvalue())
    return path


def step_of(workdir: Path) -> int | None:
    """The step of the checkpoint that gallery.npz is of; None if there is no such file."""
    try:
        with np.load(workdir / "gallery.npz") as file:
            return int(file["step"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def pairs(
    config: ConfigDict, source: Source, count: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The first images of a source and their views, made as in training.

    Returns:
        uint8 images [n, h, w, c], those of many sizes cut to the views' size, and
        {"views": [n, V, s, s, c]}, with small crops {"crops": [n, L, t, t, c]} too.
    """
    crops = make_crops(config)
    way = batches.plan(source, crops, cache=config.data.cache)
    crops = crops if way.host else None
    places = np.arange(min(count, len(source)), dtype=np.int32)
    batch = batches.Reader(source, crops, config.seed)(0, places)
    augment = jax.jit(make_augment(config, crops))
    views = augment(jax.random.key(config.seed), batch["image"], batch["index"])
    views = {name: np.asarray(to_uint8(found)).swapaxes(0, 1) for name, found in views.items()}
    return Images(source, source.shape_at(config.augment.size))[places], views


def sheet(config: ConfigDict, source: Source, rows: int, path: Path) -> None:
    """Write a PNG of the first images of a source with their labels, and the views of each.

    Raises:
        OSError: if it cannot be written.
    """
    originals, views = pairs(config, source, rows)
    labels = [example.label for example in source.read(np.arange(len(originals)))]
    columns = {"image": originals[:, None], **dict(sorted(views.items(), reverse=True))}
    titles = [
        name if len(found[0]) == 1 else f"{name.removesuffix('s')} {i + 1}"
        for name, found in columns.items()
        for i in range(len(found[0]))
    ]
    figure = Figure(figsize=(1.4 * len(titles) + 0.6, 1.45 * len(originals) + 0.3))
    grid = figure.subplots(len(originals), len(titles), squeeze=False)
    for row, axes in enumerate(grid):
        pictures = [image for found in columns.values() for image in found[row]]
        for title, axis, picture in zip(titles, axes, pictures, strict=True):
            shown = picture[:, :, 0] if picture.shape[2] == 1 else picture
            axis.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(title, fontsize=9)
        label = source.class_names[labels[row]] if labels[row] >= 0 else "unlabelled"
        axes[0].set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center", parse_math=False)
    figure.savefig(path, format="png", dpi=120, bbox_inches="tight")


def _neighbours(features: Features, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One test example of each class (then more), and its nearest training examples."""
    _, first = np.unique(labels, return_index=True)
    query = np.concatenate([first, np.setdiff1d(np.arange(len(labels)), first)])[:QUERIES]
    return query, neighbours(features.train, features.test[query], NEIGHBOURS)[1]


def _map(features: np.ndarray, seed: int) -> np.ndarray:
    """[n, 2] t-SNE of the features by cosine distance."""
    from sklearn.manifold import TSNE  # late, it takes a second

    perplexity = min(30.0, (len(features) - 1) / 3)
    tsne = TSNE(
        metric="cosine", init="random", perplexity=perplexity, max_iter=500, random_state=seed
    )
    return tsne.fit_transform(features)

"""The pictures of a run as arrays: augmented pairs, nearest neighbours, a map of the embedding.

What the loss sees of a block of training images is in `jaxssl.evaluation.loss_inspection`.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict
from threadpoolctl import threadpool_limits

from jaxssl.augment.views import to_uint8
from jaxssl.data import batches, readers
from jaxssl.data.source import Source, Splits
from jaxssl.evaluation import loss_inspection
from jaxssl.evaluation.protocol import Features
from jaxssl.evaluation.protocols.knn import neighbours
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.training import atomic_files, compile_cache, modality
from jaxssl.training.build import make_augment, make_crops

FLOW = 2  # channels, which are no colours
PAIRS, QUERIES, NEIGHBOURS, MAP_POINTS = 10, 10, 8, 1000
MATCHED = 10_000  # test images whose nearest training image is looked for


def write(
    workdir: Path,
    config: ConfigDict,
    splits: Splits,
    features: Features,
    data: dict[str, dict[str, Any]],
    found: PretrainedEncoder,
) -> Path:
    """Write gallery.npz, which `jaxssl.report` shows.

    Args:
        workdir: of the run.
        config: its config.
        splits: of its data set.
        features: of the pretrained backbone.
        data: "train" and "test", each "input", uint8 [n, h, w, c], and "label" [n]; of other
            examples than images there are no pictures.
        found: the pretrained network.
    """
    train, test = data["train"], data["test"]
    points = min(MAP_POINTS, len(features.test))
    arrays: dict[str, Any] = {
        "step": np.array(found.metadata["step"]),
        "map": _map(features.test[:points], config.seed),
        "map_label": test["label"][:points],
        "class_names": np.array(splits.bank.class_names),
    }
    of_labels = train["label"], test["label"]
    matches = nearest_classes(
        features.train, of_labels[0], features.test, of_labels[1], config.seed
    )
    if len(matches):
        arrays["nearest_classes"] = matches
    kind = found.inputs.kind
    if kind == "image" or (kind == "video" and found.inputs.channels != FLOW):
        originals, views = pairs(config, splits.train, PAIRS)
        query, neighbour = _neighbours(features, test["label"])
        arrays |= {
            "pairs": views["views"],
            "pairs_original": originals,
            "query": _pictures(test["input"][query], kind == "video"),
            "neighbour": _pictures(train["input"][neighbour], kind == "video"),
            "query_label": test["label"][query],
            "neighbour_label": train["label"][neighbour],
        }
    arrays["block_size"] = np.array(0)
    if kind == "image":
        arrays |= loss_inspection.arrays(workdir, config, splits.train, found)
    elif kind == "video":
        arrays["frames"] = np.array(4)
    path = workdir / "gallery.npz"
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    atomic_files.write_bytes(path, content.getvalue())
    return path


def step_of(workdir: Path) -> int | None:
    """The step of the checkpoint that gallery.npz is of; None if there is no such file.

    None too for one of an earlier version, which has less: it is to be written again.
    """
    try:
        with np.load(workdir / "gallery.npz") as file:
            return int(file["step"]) if "block_size" in file else None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def nearest_classes(
    train: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    seed: int = 0,
) -> np.ndarray:
    """How often test images of a class have a nearest training image, by cosine, of a class.

    Args:
        train: [n, f] features.
        train_labels: [n] int; images with the label -1 are left out.
        test: [m, f]; of more than 10 000 labelled ones, so many are drawn.
        test_labels: [m] int, as the others.
        seed: of that draw.

    Returns:
        [k, 3] int32: class, class of the nearest, how many images, without zeros; k is 0 where
        there are no labels.
    """
    known = [np.flatnonzero(np.asarray(labels) >= 0) for labels in (train_labels, test_labels)]
    if not all(map(len, known)):
        return np.zeros((0, 3), np.int32)
    bank, queries = known
    if len(queries) > MATCHED:
        queries = np.sort(np.random.default_rng(seed).choice(queries, MATCHED, replace=False))
    if len(bank) < len(train):
        train, train_labels = train[bank], train_labels[bank]
    nearest = neighbours(train, test[queries], 1)[1][:, 0]
    classes = np.stack([test_labels[queries], train_labels[nearest]], axis=1)
    found, count = np.unique(classes, axis=0, return_counts=True)
    return np.column_stack([found, count]).astype(np.int32)


def pairs(
    config: ConfigDict, source: Source, count: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The first images of a source and their views, made as in training.

    Returns:
        uint8 images [n, h, w, c], those of many sizes cut to the views' size, and
        {"views": [n, V, s, s, c]}, with small crops {"crops": [n, L, t, t, c]} too. Clips are shown
        by four frames each, see `film`.
    """
    crops = make_crops(config)
    way = batches.make_plan(source, crops, cache=config.data.cache)
    crops = crops if way.host else None
    places = np.arange(min(count, len(source)), dtype=np.int32)
    captions = modality.example_kind(config) == "image_text"
    batch = readers.Reader(source, crops, config.seed, captions)(0, places)
    augment = jax.jit(
        make_augment(config, crops), compiler_options=compile_cache.fast_compile_options()
    )
    views = augment(jax.random.key(config.seed), batch["input"], batch["index"])
    shown = (name for name in ("views", "crops") if name in views)
    views = {
        name: _pictures(np.asarray(to_uint8(views[name])).swapaxes(0, 1), source.kind == "video")
        for name in shown
    }
    if source.kind == "video":
        examples = source.read(places)
        return np.stack([film(example.input) for example in examples]), views
    return source.lazy_images(config.augment.size)[places], views


def film(clip: np.ndarray) -> np.ndarray:
    """[2 h, 2 w, c]: four frames of a clip [t, h, w, c], from the first to the last, in rows."""
    first, second, third, last = clip[np.linspace(0, len(clip) - 1, 4).round().astype(int)]
    return np.concatenate([np.concatenate([first, second], 1), np.concatenate([third, last], 1)])


def _pictures(found: np.ndarray, is_video: bool) -> np.ndarray:
    """Images as they are; `film` of clips [..., t, h, w, c]."""
    if not is_video:
        return found
    rows = [film(clip) for clip in found.reshape(-1, *found.shape[-4:])]
    return np.stack(rows).reshape(*found.shape[:-4], *rows[0].shape)


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
    query = loss_inspection.one_of_each(labels, QUERIES)
    return query, neighbours(features.train, features.test[query], NEIGHBOURS)[1]


def _map(features: np.ndarray, seed: int) -> np.ndarray:
    """[n, 2] t-SNE of the features by cosine distance."""
    from sklearn.manifold import TSNE  # late, it takes a second

    perplexity = min(30.0, (len(features) - 1) / 3)
    tsne = TSNE(
        metric="cosine", init="random", perplexity=perplexity, max_iter=500, random_state=seed
    )
    # Threads wait for each other in every one of its short steps, and their number would change the
    # map.
    with threadpool_limits(1):
        return tsne.fit_transform(features)

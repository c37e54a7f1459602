"""Write gallery.npz, the images of a run's report: views, neighbours and an embedding map.

`jaxssl.evaluation.loss_inspection` adds the arrays that show a batch as the loss sees it.
"""

import io
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict
from threadpoolctl import threadpool_limits

from jaxssl import distributed
from jaxssl.augment.views import measured_scale, to_uint8
from jaxssl.data import kind
from jaxssl.data.batches import Order, make_plan
from jaxssl.data.decoders.files import ARCHIVE_ERRORS
from jaxssl.data.splits import Source, Splits
from jaxssl.errors import UserError, explain_write_errors, one_line
from jaxssl.evaluation import loss_inspection
from jaxssl.evaluation.context import Arrays
from jaxssl.evaluation.nearest_neighbours import neighbours
from jaxssl.evaluation.protocol import Features, subset
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report.images import shrink
from jaxssl.training.config.method import make_augment, make_crops
from jaxssl.training.output import compile_cache, file_io, logs

PAIRS, QUERIES, NEIGHBOURS, MAP_POINTS = 10, 10, 8, 1000
MATCHED = 10_000  # maximum number of test images that `nearest_classes` classifies


def write(
    workdir: Path,
    config: ConfigDict,
    splits: Splits,
    features: Features,
    data: Arrays,
    encoder: PretrainedEncoder,
    content: str,
) -> Path:
    """Write gallery.npz, the images that `jaxssl.report` shows. All processes must call this.

    Args:
        workdir: workdir of the run.
        config: config of the run.
        splits: splits of its data set.
        features: features of the pretrained backbone.
        data: the examples. Only images and videos are shown.
        encoder: the pretrained network.
        content: `jaxssl.evaluation.rows.content` of the splits.

    Returns:
        The path of the file.
    """
    ours = kind.get(encoder.inputs.kind)
    is_drawn = ours.is_drawn(encoder.inputs)
    arrays = {
        "step": np.array(encoder.metadata["step"]),
        "content": np.array(content),
        "class_names": np.array(splits.bank.class_names),
        "block_size": np.array(0),
    }
    if is_drawn:
        originals, views = example_views(config, splits.train, PAIRS)
        pairs = shrink(ours.draw(views["views"]))
        arrays |= {"pairs": pairs, "pairs_original": shrink(originals)}
    if features.is_finite:
        shown = subset(len(features.test), MAP_POINTS, seed=config.seed)
        arrays["map"] = _map(features.test[shown], config.seed)
        arrays["map_label"] = data.test_labels[shown]
        arrays["nearest_classes"] = nearest_classes(*features, config.seed)
        if is_drawn:
            query = loss_inspection.one_of_each(data.test_labels, QUERIES)
            neighbour = neighbours(features.train, features.test[query], NEIGHBOURS).indices
            arrays["query"] = shrink(ours.draw(data.test[query]))
            arrays["query_label"] = data.test_labels[query]
            arrays["neighbour"] = shrink(ours.draw(data.train[neighbour]))
            arrays["neighbour_label"] = data.train_labels[neighbour]
    else:
        logs.log.warning("the report has no neighbours and no map: the features are not finite")
    if ours.pictures:
        arrays |= loss_inspection.inspect_batch(workdir, config, splits.train, encoder)
    if ours.frames:
        arrays["frames"] = np.array(ours.frames)
    path = workdir / "gallery.npz"
    if distributed.is_first_process():
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **arrays)
        file_io.write_bytes(path, file.getvalue())
    return path


def read_origin(workdir: Path) -> tuple[int, str] | None:
    """Return the checkpoint step and the ``content`` of the data that gallery.npz was made from.

    Returns:
        None if the file is missing, damaged or from an earlier version, and must be written again.
    """
    try:
        with (workdir / "gallery.npz").open("rb") as raw, np.load(raw) as file:
            return int(file["step"]), str(file["content"])
    # Beside the errors of archives: arrays are missing or of another shape, or a flipped bit asks
    # for a password.
    except (OSError, KeyError, TypeError, RuntimeError, *ARCHIVE_ERRORS):
        return None


def nearest_classes(
    train: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    seed: int = 0,
) -> np.ndarray:
    """Count test images by their class and the class of their nearest training image.

    Args:
        train: [n, f] features.
        train_labels: [n] int. Images with label -1 are ignored.
        test: [m, f] features. At most 10 000 labelled test images are used, drawn at random.
        test_labels: [m] int. Images with label -1 are ignored.
        seed: seed of the draw.

    Returns:
        [k, 3] int32: class, class of the nearest image by cosine similarity, and count > 0. k = 0
        without labels.
    """
    bank = np.flatnonzero(np.asarray(train_labels) >= 0)
    queries = np.flatnonzero(np.asarray(test_labels) >= 0)
    if not len(bank) or not len(queries):
        return np.zeros((0, 3), np.int32)
    queries = queries[subset(len(queries), MATCHED, seed=seed)]
    if len(bank) < len(train):  # Otherwise the bank need not be copied.
        train, train_labels = train[bank], train_labels[bank]
    nearest = neighbours(train, test[queries], 1).indices[:, 0]
    classes = np.stack([test_labels[queries], train_labels[nearest]], axis=1)
    unique, count = np.unique(classes, axis=0, return_counts=True)
    return np.column_stack([unique, count]).astype(np.int32)


def example_views(
    config: ConfigDict, source: Source, count: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the first images of a data set and their views, augmented as in training.

    Returns:
        uint8 images [n, h, w, 1 or 3] to look at, and {"views": uint8 [n, V, s, s, c]} of V views
        with c channels, with "crops" [n, L, t, t, c] if the run uses L small crops. Images of
        different sizes are cropped to s x s pixels. Views of videos have all frames.

    Raises:
        UserError: if the augmentation rejects its settings or the images.
    """
    crops = make_plan(source, make_crops(config), cache=config.data.cache).crops
    indices = np.arange(min(count, len(source)), dtype=np.int32)
    ours = kind.of(config)
    order = Order(len(source), len(indices), config.seed)
    reader = ours.make_reader(source, order, 1, crops)
    batch = reader.read(0, indices)
    options = compile_cache.fast_compile_options()
    try:
        augment = jax.jit(make_augment(config, crops), compiler_options=options)
        views = augment(jax.random.key(config.seed), batch["input"], batch["index"])
    except ValueError as error:
        raise UserError(one_line(error, 1000)) from error
    scale = measured_scale(config.data)
    views = {
        name: np.asarray(to_uint8(views[name], scale)).swapaxes(0, 1)
        for name in ("views", "crops")
        if name in views
    }
    assert ours.show is not None
    return ours.show(source, indices, config.augment.size), views


def write_sheet(config: ConfigDict, source: Source, rows: int, path: Path) -> None:
    """Write a PNG file with the first images of a data set, their labels and their views.

    Raises:
        UserError: as `example_views`, or if the file cannot be written.
    """
    originals, views = example_views(config, source, rows)
    labels = [example.label for example in source.read(np.arange(len(originals)))]
    drawn = {name: kind.of(config).draw(views[name]) for name in sorted(views, reverse=True)}
    columns = {"image": originals[:, None], **drawn}
    titles = [
        name if images.shape[1] == 1 else f"{name.removesuffix('s')} {i + 1}"
        for name, images in columns.items()
        for i in range(images.shape[1])
    ]
    figure = Figure(figsize=(1.4 * len(titles) + 0.6, 1.45 * len(originals) + 0.3))
    grid = figure.subplots(len(originals), len(titles), squeeze=False)
    for row, axes in enumerate(grid):
        pictures = [image for images in columns.values() for image in images[row]]
        for title, axis, picture in zip(titles, axes, pictures, strict=True):
            pixels = picture[:, :, 0] if picture.shape[2] == 1 else picture
            axis.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(title, fontsize=9)
        label = source.class_names[labels[row]] if labels[row] >= 0 else "unlabelled"
        axes[0].set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center", parse_math=False)
    with explain_write_errors(path):
        figure.savefig(path, format="png", dpi=120, bbox_inches="tight")


def _map(features: np.ndarray, seed: int) -> np.ndarray:
    """Compute a t-SNE map [n, 2] of the features by cosine distance."""
    if len(features) < 2:  # t-SNE needs neighbours.
        return np.zeros((len(features), 2), np.float32)
    # scikit-learn is imported here because the import takes a second.
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    tsne = TSNE(
        metric="cosine", init="random", perplexity=perplexity, max_iter=500, random_state=seed
    )
    # Steps of t-SNE are short, and with more threads the map would depend on the thread count.
    with threadpool_limits(1):
        return tsne.fit_transform(features)

"""Hardest negatives and MMCL's support vectors of a batch of training images, for the report."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl.components import Settings
from jaxssl.data import kind
from jaxssl.data.splits import Source
from jaxssl.evaluation.features import encode_images
from jaxssl.evaluation.nearest_neighbours import nearest_others
from jaxssl.losses.mmcl import RANGES, mmcl_info, mmcl_loss
from jaxssl.losses.objective import check
from jaxssl.losses.pairs import pair_towers
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.report.images import shrink
from jaxssl.report.workdir import iterate_metrics
from jaxssl.training.config import arguments, schedules
from jaxssl.training.config.method import run_length
from jaxssl.training.output import logs

SIZE = 256  # number of images in the inspected batch
QUERIES, HARDEST = 8, 8
ANCHORS = 6
# How many negatives are shown per SVM: with alpha at the bound, with the largest alpha below it,
# and with alpha = 0.
SHOWN = 3, 5, 3
# These arguments of `mmcl_loss` are traced, so that other values do not recompile the program.
NUMBERS = ("gamma", "eta", "C", "regularization")
DEFAULTS = {name: inspect.signature(mmcl_loss).parameters[name].default for name in NUMBERS}


def inspect_batch(
    workdir: Path, config: ConfigDict, train: Source, encoder: PretrainedEncoder
) -> dict[str, np.ndarray]:
    """Compute the arrays of gallery.npz that describe a random batch of training images.

    Args:
        workdir: workdir of the run. Its log has the learned settings.
        config: config of the run.
        train: the training images.
        encoder: the pretrained network.

    Returns:
        "block_size", the number of images, and, if the embeddings are finite, "block"
        [b, h, w, c], the images to show, "block_label" [b], and arrays of `_hardest` and
        `_support`. Names that end in "_query" or "_place" are indices into "block".
    """
    rng = np.random.default_rng(config.seed)
    number = min(SIZE, len(train))
    indices = np.sort(rng.choice(len(train), number, replace=False))
    result: dict[str, np.ndarray] = {"block_size": np.array(number)}
    images = train.lazy_images(config.augment.size)[indices]
    # Images of different sizes were cropped when they were read, and are not cropped again.
    inputs = encoder.inputs if train.one_size else encoder.inputs._replace(crop=0.0)
    z = encode_images(encoder, images, inputs)
    if number < 2 or not np.isfinite(z).all():
        reason = "a single image" if number < 2 else "embeddings are not finite"
        logs.log.warning("no hardest negatives: %s", reason)
        return result
    labels = np.array([example.label for example in train.read(indices)])
    result |= _hardest(z, labels)
    if config.loss.name == "mmcl":
        settings = mmcl_settings(workdir, config, len(train), encoder.metadata["step"])
        result |= _support(z, labels, settings)
    # Only the images that are shown are stored, so the indices are renumbered.
    names = [name for name in result if name.endswith(("_query", "_place"))]
    shown = np.unique(np.concatenate([result[name].ravel() for name in names]))
    shown = shown[shown >= 0]  # -1 is padding
    for name in names:
        index = result[name]
        result[name] = np.where(index >= 0, np.searchsorted(shown, index), -1).astype(np.int32)
    drawn = kind.of(config).draw(images[shown])
    return result | {"block": shrink(drawn), "block_label": labels[shown]}


def mmcl_settings(workdir: Path, config: ConfigDict, num_examples: int, step: int) -> Settings:
    """Return the arguments of `mmcl_loss` at a checkpoint, with schedules and learned values.

    Args:
        workdir: workdir of the run. Its metrics.jsonl has the learned values.
        config: config of the run.
        num_examples: number of training images.
        step: step of the checkpoint.

    Returns:
        Python numbers and texts.
    """
    length = run_length(config, num_examples)._asdict()
    specs: dict[str, Any] = arguments(config.loss.to_dict())
    learned = specs.pop("learn", ())
    settings = {}
    for name, spec in specs.items():
        value: Any = schedules.from_spec(spec, **length)
        value = value(step) if callable(value) else value
        settings[name] = value.item() if hasattr(value, "item") else value
    for row in iterate_metrics(workdir / "metrics.jsonl"):
        if row["step"] <= step:
            settings |= {name: row[name] for name in learned if row.get(name) is not None}
    return settings


def one_of_each(labels: np.ndarray, number: int) -> np.ndarray:
    """Return the indices of one example of each class, followed by further examples.

    Unlabelled examples have the label -1, which is no class.
    """
    first = np.unique(labels, return_index=True)[1]
    first = first[labels[first] >= 0]
    return np.concatenate([first, np.setdiff1d(np.arange(len(labels)), first)])[:number]


class SupportVectors(NamedTuple):
    """Statistics of MMCL's SVMs of n anchors, each against the n - 1 other images.

    Attributes:
        alpha: [n, n] float32 in [0, C], the weight of image j in the SVM of anchor i, and 0 for
            j = i. Each image is one candidate, its first view.
        support: share of support vectors (alpha > 0) among the negatives of all anchors, 0 without
            negatives.
        at_bound: share with alpha = C, which MMCL treats as false negatives.
        same_class_support: share of the support vectors that have the class of their anchor, None
            without labels.
        same_class_bound: the same share among the negatives with alpha = C, None without them.
        same_class_all: the same share among all negatives.
    """

    alpha: np.ndarray
    support: float
    at_bound: float
    same_class_support: float | None
    same_class_bound: float | None
    same_class_all: float | None


def support_vectors(
    z: np.ndarray, labels: np.ndarray | None, **mmcl_settings: Any
) -> SupportVectors:
    """Solve MMCL's SVMs of a batch as the released code does.

    There, the anchor is a second view, its positive is the first view of the same image, and its
    negatives are the first views of the n - 1 other images. The SVM separates the positive from the
    negatives, so that the anchor itself takes no part.

    Args:
        z: [n, d] embeddings of one view of each image.
        labels: [n] int, -1 for unlabelled images, or None without labels. They are used for the
            shares only, not by the SVMs.
        **mmcl_settings: arguments of `jaxssl.losses.mmcl_loss`, without schedules or arrays.

    Raises:
        ValueError: as `mmcl_loss`, or if the embeddings are not finite.
    """
    if not np.isfinite(z).all():
        raise ValueError("embeddings must be finite, got NaN or infinity")
    numbers = {k: float(mmcl_settings.pop(k, default)) for k, default in DEFAULTS.items()}
    check(RANGES, **numbers)
    options = tuple(sorted(mmcl_settings.items()))
    alpha = np.asarray(_alpha(jnp.asarray(z), numbers, options))
    is_support, is_bound = alpha > 0, alpha >= np.float32(numbers["C"])
    pairs = max(len(alpha) * (len(alpha) - 1), 1)
    return SupportVectors(
        alpha=alpha,
        support=float(is_support.sum() / pairs),
        at_bound=float(is_bound.sum() / pairs),
        same_class_support=same_class_share(labels, is_support),
        same_class_bound=same_class_share(labels, is_bound),
        same_class_all=same_class_share(labels, np.ones_like(is_support)),
    )


def same_class_share(labels: np.ndarray | None, mask: np.ndarray) -> float | None:
    """Return the share of pairs with equal labels among the labelled pairs of a mask.

    Args:
        labels: [n] int, -1 for unlabelled images, or None without labels.
        mask: [n, n] bool, the pairs to count. The diagonal is ignored.

    Returns:
        Share in [0, 1], or None if no pair is labelled.
    """
    if labels is None:
        return None
    labels = np.asarray(labels)
    counted = mask & (labels[:, None] >= 0) & (labels[None, :] >= 0)
    counted &= ~np.eye(len(labels), dtype=bool)
    same = counted & (labels[:, None] == labels[None, :])
    return float(same.sum() / counted.sum()) if counted.any() else None


@partial(jax.jit, static_argnames="options")
def _alpha(z: Array, numbers: dict[str, float], options: tuple) -> Array:
    return mmcl_info(pair_towers(z, z), **numbers, **dict(options)).alpha


def _hardest(z: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Find the most similar images of each image, and the share of them that have its class.

    Args:
        z: [n, d] embeddings.
        labels: [n] int, -1 for unlabelled images.

    Returns:
        The arrays "hard_..." of gallery.npz. "hard_share" is the share among the most similar
        images, then among all.
    """
    similarity, index = nearest_others(z, HARDEST)
    is_hard = np.zeros((len(z), len(z)), bool)
    np.put_along_axis(is_hard, index, True, axis=1)
    shares = [same_class_share(labels, mask) for mask in (is_hard, np.ones_like(is_hard))]
    query = one_of_each(labels, QUERIES)
    return {
        "hard_query": query,
        "hard_place": index[query],
        "hard_similarity": similarity[query],
        "hard_share": np.array(shares, float),  # NaN for None
    }


def _support(z: np.ndarray, labels: np.ndarray, settings: Settings) -> dict[str, np.ndarray]:
    """Solve MMCL's SVMs of a batch, and select the anchors and negatives to show.

    Args:
        z: [n, d] embeddings.
        labels: [n] int, -1 for unlabelled images.
        settings: from `mmcl_settings`.

    Returns:
        The arrays "svm_..." of gallery.npz.
    """
    svms = support_vectors(z, labels, **settings)
    _, by_similarity = nearest_others(z, len(z))
    query = one_of_each(labels, ANCHORS)
    place = np.stack([_select_shown(svms.alpha[i], by_similarity[i], settings["C"]) for i in query])
    alpha = np.where(place >= 0, svms.alpha[query[:, None], place], np.nan)
    words = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()]
    return {
        "svm_query": query,
        "svm_place": place,
        "svm_alpha": alpha,
        "svm_C": np.array(float(settings["C"])),
        "svm_share": np.array(svms[1:], float),  # as SVM_SHARES of the report; NaN for None
        "svm_settings": np.array(", ".join(words)),
    }


def _select_shown(alpha: np.ndarray, others: np.ndarray, bound: float) -> np.ndarray:
    """Select an anchor's negatives to show, in three groups of fixed size, padded with -1.

    The groups are: alpha at the bound, the largest alpha below it, and alpha = 0. Negatives of
    equal alpha keep the order of ``others``.
    """
    others = others[np.argsort(-alpha[others], kind="stable")]
    weight = alpha[others]
    at_bound = weight >= np.float32(bound)
    groups = at_bound, (weight > 0) & ~at_bound, weight == 0
    shown = []
    for group, number in zip(groups, SHOWN, strict=True):
        padded = np.append(others[group], np.full(number, -1))
        shown.append(padded[:number])
    return np.concatenate(shown)

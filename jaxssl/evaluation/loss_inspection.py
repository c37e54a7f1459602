"""A block of training images as the loss sees it: hardest negatives, MMCL's support vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.data.source import Source
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.hard_negatives import hardest_negatives
from jaxssl.evaluation.support_vectors import support_vectors
from jaxssl.losses.objective import at_step
from jaxssl.pretrained.encoder import PretrainedEncoder, make_encode
from jaxssl.training import logs, metrics_writer, schedules
from jaxssl.training.build import build
from jaxssl.training.config import arguments

SIZE = 256  # images
QUERIES, HARDEST = 8, 8
ANCHORS = 6
SHOWN = 3, 5, 3  # images of an anchor's SVM: at the bound, the largest below it, at zero
THUMBNAIL = 64  # pixels: larger pictures are averaged down to at most twice that


def arrays(
    workdir: Path, config: ConfigDict, train: Source, found: PretrainedEncoder
) -> dict[str, Any]:
    """What gallery.npz says of a block of training images, drawn at random.

    Args:
        workdir: of the run, whose log has the settings that were learned.
        config: of the run.
        train: the images that were trained on.
        found: the pretrained network.

    Returns:
        "block_size" always; the others if the embeddings can be compared. "block" [b, h, w, c] are
        the images shown, "block_label" [b]; what ends in "_query" or "_place" counts them.
    """
    rng = np.random.default_rng(config.seed)
    number = min(SIZE, len(train))
    places = np.sort(rng.choice(len(train), number, replace=False))
    out: dict[str, Any] = {"block_size": np.array(number)}
    images = train.lazy_images(config.augment.size)[places]
    z = _embeddings(images, train, found)
    if number < 2 or not np.isfinite(z).all():
        logs.log.warning("no hardest negatives: too few images, or embeddings not finite")
        return out
    labels = np.array([example.label for example in train.read(places)])
    out |= _hardest(z, labels)
    if config.loss.name == "mmcl":
        settings = mmcl_settings(workdir, config, len(train), found.metadata["step"])
        out |= _support(z, labels, settings)
    of_images = [name for name in out if name.endswith(("_query", "_place"))]
    used = np.unique(np.concatenate([out[name].ravel() for name in of_images]))
    used = used[used >= 0]
    for name in of_images:
        out[name] = np.where(out[name] >= 0, np.searchsorted(used, out[name]), -1).astype(np.int32)
    return out | {"block": thumbnails(images[used]), "block_label": labels[used]}


def mmcl_settings(
    workdir: Path, config: ConfigDict, num_examples: int, step: int
) -> dict[str, Any]:
    """The arguments of `mmcl_loss` at a checkpoint: schedules at its step, what is learned too.

    Args:
        workdir: of the run; metrics.jsonl has the values of what is learned.
        config: of the run.
        num_examples: training images.
        step: of the checkpoint.
    """
    parts = build(config, num_examples)
    length = {"steps_per_epoch": parts.steps_per_epoch, "total_steps": parts.total_steps}
    values = arguments(config.loss.to_dict())
    learned = values.pop("learn", ())
    values = at_step({k: schedules.from_spec(v, **length) for k, v in values.items()}, step)
    for row in metrics_writer.read_metrics(workdir / "metrics.jsonl"):
        if row["step"] <= step:
            values |= {k: row[k] for k in learned if row.get(k) is not None}
    return {k: v.item() if hasattr(v, "item") else v for k, v in values.items()}


def one_of_each(labels: np.ndarray, number: int) -> np.ndarray:
    """Places of one example of each class, then of more."""
    _, first = np.unique(labels, return_index=True)
    return np.concatenate([first, np.setdiff1d(np.arange(len(labels)), first)])[:number]


def thumbnails(images: np.ndarray) -> np.ndarray:
    """uint8 images [n, h, w, c], large ones averaged down by a whole factor."""
    n, h, w, c = images.shape
    shrink = max(1, min(h, w) // THUMBNAIL)
    h, w = h // shrink, w // shrink
    blocks = images[:, : h * shrink, : w * shrink].reshape(n, h, shrink, w, shrink, c)
    return blocks.mean((2, 4)).astype(np.uint8)


def _embeddings(images: np.ndarray, train: Source, found: PretrainedEncoder) -> np.ndarray:
    # Pictures of many sizes are cut to the middle when they are read.
    inputs = found.inputs if train.one_size else found.inputs._replace(crop=0.0)
    mesh = distributed.local_mesh()
    variables = distributed.replicate(found.variables, mesh)
    return extract(images, make_encode(found, inputs, "projector"), variables, mesh)


def _hardest(z: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    hardest = hardest_negatives(z, labels, HARDEST)
    query = one_of_each(labels, QUERIES)
    return {
        "hard_query": query,
        "hard_place": hardest.place[query],
        "hard_similarity": hardest.similarity[query],
        "hard_share": _numbers(hardest.same_class, hardest.same_class_all),
    }


def _support(z: np.ndarray, labels: np.ndarray, settings: Mapping[str, Any]) -> dict[str, Any]:
    found = support_vectors(z, z, labels, **settings)
    similar = hardest_negatives(z, None, len(z)).place
    query = one_of_each(labels, ANCHORS)
    place = np.stack([_shown(found.alpha[i], similar[i], settings["C"]) for i in query])
    alpha = np.where(place >= 0, found.alpha[query[:, None], place], np.nan)
    words = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items()]
    return {
        "svm_query": query,
        "svm_place": place,
        "svm_alpha": alpha,
        "svm_C": np.array(float(settings["C"])),
        "svm_share": _numbers(*found[1:]),
        "svm_settings": np.array(", ".join(words)),
    }


def _shown(alpha: np.ndarray, others: np.ndarray, bound: float) -> np.ndarray:
    """Places of an anchor's negatives: at the bound, the largest below it, at zero; -1 is none.

    Those of one weight keep the order of ``others``.
    """
    others = others[np.argsort(-alpha[others], kind="stable")]
    weight = alpha[others]
    at_bound = weight >= np.float32(bound)
    groups = at_bound, (weight > 0) & ~at_bound, weight == 0
    found = []
    for group, number in zip(groups, SHOWN, strict=True):
        places = others[group][:number]
        found.append(np.pad(places, (0, number - len(places)), constant_values=-1))
    return np.concatenate(found)


def _numbers(*shares: float | None) -> np.ndarray:
    return np.array([np.nan if share is None else share for share in shares])

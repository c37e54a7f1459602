"""Fine-tuning of all weights, with a search of learning rate and weight decay."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.evaluation import finetuning, training_settings
from jaxssl.evaluation.finetuning import Tuner
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result
from jaxssl.evaluation.sampling import stratified
from jaxssl.evaluation.training_settings import Training

if TYPE_CHECKING:
    from jaxssl.data.source import Source
    from jaxssl.pretrained.encoder import PretrainedEncoder

METRICS = ("top1", "top5", "mean_per_class")
# MoCo-v3's transfer by DeiT's code, whose rate is lr * batch / 512. It crops and flips, without
# RandAugment. Its stochastic depth of 0.1 (Pets: 0) is here that which the network was made with,
# and a patch projection that pretraining kept frozen stays so.
MOCO_V3 = Training(
    optimiser="adamw",
    batch_size=1024,
    epochs=100,
    warmup=3,
    lr_batch=512,
    crop_scale=(0.05, 1.0),
    smoothing=0.1,
)
# The many-shot recipe of Kornblith et al. as ssl-transfer has it.
# Differs from the released code: that takes the predefined validation sets of DTD and Flowers (here
# a share is drawn of all training images), decays all parameters (here matrices only), and keeps
# the whole short side of test images (here 87.5 % of it for pictures of many sizes).
SSL_TRANSFER = {
    "training": Training(nesterov=True, batch_size=64, steps=5000),
    "lr": (1e-4, 1e-3, 1e-2, 1e-1),
    "weight_decay": (0.0, 1e-6, 1e-5, 1e-4, 1e-3),
    "validation": 0.2,
    "decay_over_lr": True,
}


def _moco_v3(*decays: float, **changes: float) -> dict[str, Any]:
    return {
        "training": MOCO_V3._replace(**changes),
        "lr": (3e-4,),
        "weight_decay": decays,
        "validation": 0.2,
    }


# lr, weight_decay: those that are tried; validation: the share of the training set that chooses,
# by metric (top1 if none is named).
PRESETS = {
    # For laptops and small sets: seconds on a small network. Without flips, which not every set
    # bears.
    "quick": {
        "training": Training(
            optimiser="adamw",
            batch_size=64,
            steps=100,
            warmup=1,
            crop_scale=(0.5, 1.0),
            flip=0.0,
        ),
        "lr": (3e-3,),
        "weight_decay": (0.01,),
        "validation": 0.2,
    },
    # For sets of one's own.
    "moco_v3": _moco_v3(0.1, 0.3),
    "moco_v3_mix": _moco_v3(0.1, 0.3, mixup=0.8, cutmix=1.0),
    # As its README's commands are; the erasing that they ask for on Flowers is not in its
    # datasets.py, which takes the place of DeiT's.
    "moco_v3_cifar10": _moco_v3(0.1, mixup=0.8, cutmix=1.0),
    "moco_v3_cifar100": _moco_v3(0.1, mixup=0.5, cutmix=1.0),
    "moco_v3_flowers": _moco_v3(0.3, erasing=0.25),
    "moco_v3_pets": _moco_v3(0.1, mixup=0.8),
    "ssl_transfer": SSL_TRANSFER,
    "ssl_transfer_per_class": {**SSL_TRANSFER, "metric": "mean_per_class"},
}


def evaluate(
    encoder: "PretrainedEncoder",
    train: "Source",
    test: "Source",
    *,
    training: Training,
    lr: tuple[float, ...],
    weight_decay: tuple[float, ...],
    validation: float,
    decay_over_lr: bool = False,
    metric: str = "top1",
    seed: int,
    mesh: Mesh,
) -> dict[str, Any]:
    """Accuracy of a network trained further, all of it, with a linear layer on top.

    If there is more than one pair of learning rate and weight decay, each is trained on a part of
    the training images and judged by ``metric`` on the rest; the best one (the first of equals) is
    trained again on all of them. The test images are used once.

    Args:
        encoder: the backbone to start from; its variables are not modified.
        train: labelled images.
        test: images of the same classes.
        training: the settings.
        lr: rates to choose from, before their scaling by the batch.
        weight_decay: decays to choose from.
        validation: share of each class's training images that chooses, in (0, 1).
        decay_over_lr: whether the decays are divided by the rate.
        metric: that chooses, one of `METRICS`.
        seed: of the split, the linear layer, order and augmentation.
        mesh: the devices.

    Returns:
        "finetune_top1", "finetune_top5" and "finetune_mean_per_class" in percent; "lr" and
        "weight_decay", those chosen; "train_loss" of the last epoch; and "grid", the pairs and
        what they reached, "validation_" and the metric's name.

    Raises:
        ValueError: if the training images do not fit, or are too few for a search, or on an unknown
            metric.

    References:
        Kornblith, Shlens and Le, Do Better ImageNet Models Transfer Better?, 2019, A.5;
        Ericsson, Gouk and Hospedales, How Well Do Self-Supervised Models Transfer?, 2021;
        Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021.
    """
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; expected one of {', '.join(METRICS)}")
    finetuning.check_labels(train)
    tuner = finetuning.make_tuner(encoder, training, train.num_classes, mesh)
    pairs = [
        {"lr": rate, "weight_decay": decay / rate if decay_over_lr else decay}
        for rate, decay in itertools.product(lr, weight_decay)
    ]
    choice = {"validation": validation, "metric": metric, "seed": seed}
    grid = search(tuner, train, pairs, **choice) if pairs[1:] else pairs
    best = max(grid, key=lambda point: point.get(f"validation_{metric}", 0.0))
    chosen = {name: best[name] for name in ("lr", "weight_decay")}
    classifier = tuner.fit(train, **chosen, seed=seed)
    scores = finetuning.accuracies(tuner.logits(classifier, test), test.labels)
    metrics = {f"finetune_{name}": scores[name] for name in METRICS}
    return metrics | chosen | {"train_loss": classifier.loss, "grid": grid}


def search(
    tuner: Tuner,
    source: "Source",
    pairs: list[dict[str, float]],
    *,
    validation: float,
    metric: str = "top1",
    seed: int,
) -> list[dict[str, float]]:
    """Each of ``pairs``, "lr" and "weight_decay", and its "validation_METRIC" in percent.

    Raises:
        ValueError: if the part for validation would be empty.
    """
    kept = stratified(source.labels, validation, seed=seed)
    if not len(kept):
        raise ValueError(
            f"the search needs a class with {np.ceil(1 / (2 * validation)):.0f} training images "
            f"or more, to keep {validation:.0%} of them for validation"
        )
    used = source.take(np.setdiff1d(np.arange(len(source)), kept))
    held_out = source.take(kept)
    found = []
    for pair in pairs:
        classifier = tuner.fit(used, **pair, seed=seed)
        scores = finetuning.accuracies(tuner.logits(classifier, held_out), held_out.labels)
        found.append({**pair, f"validation_{metric}": scores[metric]})
    return found


def run(context: EvalContext, *, seed: int, preset: str = "quick") -> list[Result]:
    """`evaluate` with a preset's settings.

    Raises:
        ValueError: as `evaluate`, and if there is no network.
    """
    if context.encoder is None or context.train is None or context.test is None:
        raise ValueError("fine-tuning needs a network: take backbone features, and no raw pixels")
    settings, mesh = PRESETS[preset], context.mesh or distributed.make_mesh()
    images = (context.encoder, context.train, context.test)
    found = evaluate(*images, **settings, seed=seed, mesh=mesh)
    metrics = {name: found.pop(name) for name in [f"finetune_{m}" for m in METRICS]}
    chosen = {name: found.pop(name) for name in ("lr", "weight_decay")}
    details = {
        "preset": preset,
        "validation": settings["validation"],
        **training_settings.summarise(
            settings["training"], **chosen, num_examples=len(context.train), num_devices=mesh.size
        ),
        **found,
    }
    return [Result(metric, value, None, details) for metric, value in metrics.items()]


protocol = Protocol(
    run, PRESETS, examples=("image", "image_text"), kinds=("pretrained",), needs_features=False
)

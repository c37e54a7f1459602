"""Linear probe of a frozen backbone, on cached features or on random crops of the images."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxssl.evaluation import finetuning, logistic_regression
from jaxssl.evaluation import protocol as base
from jaxssl.evaluation.features import l2_normalise

# "C" lists inverse L2 strengths to choose from. "validation" is the share of the training set to
# choose on. "tolerance" is the gradient norm at which a fit ends, relative to the norm at zero
# weights.
FAST: dict[str, object] = {
    "C": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
    "validation": 0.2,
    "tolerance": 3e-3,
    "max_iter": 500,
}
DEFAULT = "fast"
# Makes a preset from the learning rate, the weight decay, and fields of `Training`.
_on_crops = partial(finetuning.preset, frozen=True)
HCL = {"optimiser": "adam", "batch_size": 512, "epochs": 100, "schedule": "constant"}
SOLO_LEARN = {"batch_size": 256, "epochs": 100, "schedule": "step", "milestones": (60, 80)}
PRESETS: base.Presets = {
    "fast": FAST,
    # CoCLR and MMCL probe videos like this, on features averaged over ten crops. Standardisation
    # after the L2 normalisation replaces their last BatchNorm.
    "video": {**FAST, "normalised": True},
    # These are the settings of MoCo-v3's script for ResNets, and below for ViTs. Its learning rate
    # is lr * batch / 256, 0.4 at batch size 1024 for ResNets.
    "paper_imagenet": _on_crops(0.1, 0.0, batch_size=1024, epochs=90, lr_batch=256, head_std=0.01),
    "moco_v3_vit": _on_crops(3.0, 0.0, batch_size=1024, epochs=90, lr_batch=256, head_std=0.01),
    # MoCo's script, for ResNets of MoCo-v1 and v2
    "moco_v2": _on_crops(30.0, 0.0, **SOLO_LEARN, head_std=0.01),
    "cifar": _on_crops(1e-3, 1e-6, **HCL),
    "cifar_sgd": _on_crops(0.1, 0.0, **SOLO_LEARN),
    # TCL's appendices A.1 (linear layer after pretraining with labels) and A.3 (without labels).
    # The paper states neither batch size nor crops, and a weight decay only with labels.
    "tcl": _on_crops(0.5, 1e-4, batch_size=256, epochs=50, augment="pad"),
    "tcl_imagenet": _on_crops(0.5, 1e-4, batch_size=256, epochs=50),
    "tcl_views": _on_crops(0.5, 0.0, batch_size=256, epochs=100),
    # These are the settings of MMCL's ImageNet code, with the paper's number of epochs.
    "mmcl_imagenet": _on_crops(1.6, 0.0, batch_size=4096, epochs=100, schedule="linear"),
    # This preset follows the released code of HCL and MMCL, for comparison with its numbers: the
    # frozen backbone's BatchNorm is in training mode, and the best test accuracy of every 5th epoch
    # is reported.
    "hcl_quirks": {
        **_on_crops(1e-3, 1e-6, **HCL, moving_statistics=True, augment="simclr", blur=0.5),
        "best_of_every": 5,
    },
}


def evaluate(
    train_features: ArrayLike,
    train_labels: ArrayLike,
    test_features: ArrayLike,
    test_labels: ArrayLike,
    *,
    preset: str = "default",
    seed: int = 0,
    **settings: object,
) -> dict[str, float]:
    """Compute the accuracy of a linear probe on cached features, with the settings of a preset.

        scores = linear.evaluate(train_features, train_labels, test_features, test_labels)

    Features are [n, f] and [m, f], labels are class indices [n] and [m].
    `jaxssl.evaluation.protocols` describes the arguments, which four protocols share. Presets are
    "fast", the default, and "video". The others train on images, see `jaxssl.evaluate`. Settings
    are arguments of `accuracy`. ``seed`` draws the validation split.

    Returns:
        "linear_top1" and "linear_top5" in percent, "C" and "gradient_norm", see `accuracy`.
    """
    presets = {name: values for name, values in PRESETS.items() if "training" not in values}
    if preset in PRESETS and preset not in presets:
        raise ValueError(
            f"preset {preset!r} trains on crops of images, not on features; take one of "
            f"{', '.join(presets)}, or call jaxssl.evaluate with 'linear:{preset}'"
        )
    features = base.check_features(train_features, train_labels, test_features, test_labels)
    chosen = base.choose_settings(presets, preset, DEFAULT, settings)
    return accuracy(features, **chosen, seed=base.check_seed(seed))


def accuracy(
    features: base.Features,
    *,
    C: Sequence[float],
    validation: float,
    tolerance: float,
    max_iter: int,
    seed: int,
    normalised: bool = False,
) -> dict[str, float]:
    """Compute the accuracy of logistic regression on standardised features.

    C is chosen on a stratified part of the training set: the strongest regularisation within one
    standard error of the best. The classifier is then fitted on the whole training set. The test
    set is used once.

    Args:
        features: features of a training and a test set.
        C: inverse L2 strengths to choose from, > 0.
        validation: share of each class's training examples that C is chosen on, in (0, 1).
        tolerance: gradient norm at which the last fit stops, relative to that at zero weights, > 0.
        max_iter: maximum number of L-BFGS steps, >= 1.
        seed: seed of the split that C is chosen on.
        normalised: whether to L2-normalise the features first.

    Returns:
        "linear_top1" and "linear_top5" in percent, the chosen "C", and "gradient_norm" of the last
        fit.

    Raises:
        ValueError: if a feature is not finite, a setting is out of range, there is one class, or
            every class is too small to choose C on.
    """
    features.require_finite()
    if normalised:
        train, test = l2_normalise(features.train), l2_normalise(features.test)
        features = features._replace(train=train, test=test)
    classes, y = np.unique(features.train_labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError("train_labels have one class; a linear classifier needs two")
    options = {"validation": validation, "tolerance": tolerance, "max_iter": max_iter, "seed": seed}
    probe = logistic_regression.fit_probe(features.train, y, C=C, **options)
    logits = logistic_regression.scores(probe, features.test)
    scores = base.top1_top5(classes[base.rank(logits)], features.test_labels, "linear_")
    return scores | {"C": probe.C, "gradient_norm": probe.fit.gradient_norm}


class Outcome(NamedTuple):
    """The test accuracy of a linear classifier that was trained on crops.

    Attributes:
        accuracy: "top1", "top5" and "mean_per_class" in percent.
        train_loss: mean over the last epoch, None if it was not finite.
        best_epoch: the reported epoch if the best one is chosen on the test images, or None.
    """

    accuracy: dict[str, float]
    train_loss: float | None
    best_epoch: float | None = None


def evaluate_on_crops(
    images: base.Images,
    *,
    training: finetuning.Training,
    lr: float,
    weight_decay: float,
    best_of_every: int = 0,
    seed: int,
) -> Outcome:
    """Compute the accuracy of a linear classifier trained on random crops, on a frozen backbone.

    Args:
        images: the backbone, which is not modified, labelled training images, and test images of
            the same classes.
        training: settings with ``frozen=True``.
        lr: learning rate, before scaling with the batch size.
        weight_decay: >= 0.
        best_of_every: 0 to report the last epoch. k > 0 to report the best test accuracy of every
            k-th and the last epoch, which is optimistic.
        seed: seed of initial weights, order and crops.

    Raises:
        ValueError: if the training images are unlabelled or too few.
    """
    encoder, train, test, mesh, data = images
    tuner = finetuning.make_tuner(encoder, training, train.num_classes, mesh, data)
    hyper = {"lr": lr, "weight_decay": weight_decay, "seed": seed}
    accuracies, loss = [], None
    for classifier in tuner.epochs(train, **hyper, every=best_of_every):
        accuracies.append(finetuning.accuracies(tuner.logits(classifier, test), test.labels))
        loss = classifier.loss
    if not best_of_every:
        return Outcome(accuracies[-1], loss)
    best = int(np.argmax([accuracy["top1"] for accuracy in accuracies]))
    return Outcome(accuracies[best], loss, min((best + 1) * best_of_every, training.epochs))


def run(context: base.EvalContext, *, seed: int, preset: str = DEFAULT) -> list[base.Result]:
    """Evaluate the linear probe with the settings of a preset.

    Presets that train on crops give no results for raw pixels.
    """
    settings = PRESETS[preset]
    if "training" not in settings:
        details = accuracy(context.features, **settings, seed=seed)
        scores = {name: details.pop(name) for name in ("linear_top1", "linear_top5")}
        return base.make_results(scores, preset=preset, **{**settings, **details})
    if context.encoder is None:
        return []
    images = base.images_of(context)
    outcome = evaluate_on_crops(images, **settings, seed=seed)
    training, lr, decay = (settings[name] for name in ("training", "lr", "weight_decay"))
    details = finetuning.summarise(training, lr, decay, len(images.train), images.mesh.size)
    details["train_loss"] = outcome.train_loss
    if outcome.best_epoch is not None:
        details["best_of_every"] = settings["best_of_every"]
        details["best_epoch"] = outcome.best_epoch
    scores = {f"linear_{name}": outcome.accuracy[name] for name in ("top1", "top5")}
    return base.make_results(scores, preset=preset, **details)


protocol = base.Protocol(run, PRESETS)

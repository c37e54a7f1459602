"""Linear probe of a frozen backbone: on cached features, or trained on crops of the images."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import Mesh
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from jaxssl import distributed
from jaxssl.evaluation import finetuning, logistic_regression, training_settings
from jaxssl.evaluation.protocol import EvalContext, Features, Protocol, Result
from jaxssl.evaluation.training_settings import Training

if TYPE_CHECKING:
    from jaxssl.data.source import Source
    from jaxssl.pretrained.encoder import PretrainedEncoder

HCL = Training(
    optimiser="adam",
    batch_size=512,
    epochs=100,
    schedule="constant",
    frozen=True,
    moving_statistics=True,
    augment="simclr",
)
PRESETS = {
    # C: inverse L2 strengths tried; validation: the share of the training set that chooses among
    # them; tolerance: gradient's norm, as a share of that of zero weights, at which a fit ends.
    "fast": {
        "C": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
        "validation": 0.2,
        "tolerance": 3e-3,
        "max_iter": 500,
    },
    # CoCLR's and MMCL's for videos, on cached features of ten crops: L2-normalised, then scaled as
    # their last BatchNorm does.
    "video": {
        "C": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
        "validation": 0.2,
        "tolerance": 3e-3,
        "max_iter": 500,
        "normalised": True,
    },
    # MoCo-v3's script: its rate is lr * batch / 256, 0.4 at 1024.
    "paper_imagenet": {
        "training": Training(batch_size=1024, epochs=90, lr_batch=256, head_std=0.01, frozen=True),
        "lr": 0.1,
        "weight_decay": 0.0,
    },
    "cifar": {
        "training": HCL._replace(moving_statistics=False, augment="resized"),
        "lr": 1e-3,
        "weight_decay": 1e-6,
    },
    # solo-learn's.
    "cifar_sgd": {
        "training": Training(
            batch_size=256, epochs=100, schedule="step", milestones=(60, 80), frozen=True
        ),
        "lr": 0.1,
        "weight_decay": 0.0,
    },
    # What the code of HCL and MMCL does, and no protocol should: BatchNorm of the frozen backbone
    # stays in training mode, and the figure is the best on the test images, of every 5th epoch.
    "hcl_quirks": {"training": HCL, "lr": 1e-3, "weight_decay": 1e-6, "best_of_every": 5},
}


def evaluate(
    features: Features,
    *,
    C: tuple[float, ...],
    validation: float,
    tolerance: float,
    max_iter: int,
    seed: int,
    normalised: bool = False,
) -> dict[str, float]:
    """Accuracy of a linear classifier fitted by L-BFGS on standardised features.

    The L2 strength is the one that does best on a stratified split of the training set (the
    strongest regularisation within one standard error); the classifier is
    then fitted again on all of it. The test set is used once.

    Args:
        features: of a training and a test set; each training class needs two examples or more.
        C: inverse strengths to choose from, as in `logistic_regression.regression`.
        validation: share of the training set for the choice, in (0, 1).
        tolerance: of the last fit, the gradient's norm as a share of that at zero weights.
        max_iter: of L-BFGS.
        seed: of the split.
        normalised: whether features are divided by their length first.

    Returns:
        "linear_top1" and "linear_top5" in percent, "C", the strength chosen, and "gradient_norm"
        of the last fit.
    """

    def check() -> None:
        for name, rows in (("training", features.train), ("test", features.test)):
            if not np.isfinite(rows).all():
                raise ValueError(f"features must be finite, some of the {name} images are not")

    distributed.raise_together(check)
    if normalised:
        features = features._replace(train=_unit(features.train), test=_unit(features.test))
    every = distributed.gather_process_rows(features.train_labels)
    classes = np.unique(every)
    y = np.searchsorted(classes, features.train_labels)
    options = {"validation": validation, "tolerance": tolerance, "max_iter": max_iter}
    probe = logistic_regression.fit_probe(features.train, y, C=C, **options, seed=seed)
    ranked = classes[np.argsort(-logistic_regression.scores(probe, features.test), axis=1)[:, :5]]
    hit = ranked == features.test_labels[:, None]
    return {
        "linear_top1": 100 * distributed.mean_over_processes(hit[:, 0]),
        "linear_top5": 100 * distributed.mean_over_processes(hit.any(axis=1)),
        "C": probe.C,
        "gradient_norm": probe.fit.gradient_norm,
    }


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def fit(x: np.ndarray, y: np.ndarray, C: float, max_iter: int) -> LogisticRegression:
    """Logistic regression of few examples with inverse L2 strength C."""
    with warnings.catch_warnings():
        # Weak regularisation on separable features has its optimum far away; stopping early is
        # what the bound on iterations is for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=C, max_iter=max_iter).fit(x, y)


def evaluate_on_crops(
    encoder: "PretrainedEncoder",
    train: "Source",
    test: "Source",
    *,
    training: Training,
    lr: float,
    weight_decay: float,
    best_of_every: int = 0,
    seed: int,
    mesh: Mesh,
) -> dict[str, Any]:
    """Accuracy of a linear classifier trained on random crops, through the frozen backbone.

    Args:
        encoder: the backbone; it is not modified.
        train: labelled images.
        test: images of the same classes.
        training: the settings, `frozen`.
        lr: before its scaling by the batch.
        weight_decay: >= 0.
        best_of_every: 0 takes the last epoch; k the best on the test images of every k-th and the
            last, which flatters.
        seed: of weights, order and crops.
        mesh: the devices.

    Returns:
        "linear_top1" and "linear_top5" in percent, "train_loss" of the last epoch, and
        "best_epoch" if it was chosen.

    Raises:
        ValueError: if the training images do not fit.
    """
    tuner = finetuning.make_tuner(encoder, training, train.num_classes, mesh)
    hyper = {"lr": lr, "weight_decay": weight_decay, "seed": seed, "every": best_of_every}
    found = []
    for classifier in tuner.epochs(train, **hyper):
        accuracy = finetuning.accuracies(tuner.logits(classifier, test), test.labels)
        found.append({f"linear_{name}": accuracy[name] for name in ("top1", "top5")})
    best = int(np.argmax([scores["linear_top1"] for scores in found]))
    last = {"train_loss": classifier.loss}
    if not best_of_every:
        return found[-1] | last
    return found[best] | last | {"best_epoch": min((best + 1) * best_of_every, training.epochs)}


def run(context: EvalContext, *, seed: int, preset: str = "fast") -> list[Result]:
    """`evaluate` or `evaluate_on_crops` with a preset's settings; raw pixels have no crops."""
    settings = PRESETS[preset]
    if "training" not in settings:
        scores = evaluate(context.features, **settings, seed=seed)
        details = {"preset": preset, **settings}
    elif context.encoder is None or context.train is None or context.test is None:
        return []
    else:
        mesh = context.mesh or distributed.make_mesh()
        images = (context.encoder, context.train, context.test)
        scores = evaluate_on_crops(*images, **settings, seed=seed, mesh=mesh)
        hyper = {name: settings[name] for name in ("training", "lr", "weight_decay")}
        in_effect = training_settings.summarise(
            **hyper, num_examples=len(context.train), num_devices=mesh.size
        )
        details = {"preset": preset, **in_effect}
        if "best_of_every" in settings:
            details["best_of_every"] = settings["best_of_every"]
    metrics = {name: scores.pop(name) for name in ("linear_top1", "linear_top5")}
    return [Result(metric, value, None, details | scores) for metric, value in metrics.items()]


protocol = Protocol(run, PRESETS, shared_presets=("fast", "video"))

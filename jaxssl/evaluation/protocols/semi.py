"""Semi-supervised: fine-tuning of all weights on the labels of a small share of the images."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.evaluation import finetuning, training_settings
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result
from jaxssl.evaluation.sampling import stratified
from jaxssl.evaluation.training_settings import Training

if TYPE_CHECKING:
    from jaxssl.data.source import Source
    from jaxssl.pretrained.encoder import PretrainedEncoder

QUICK = {
    "training": Training(
        optimiser="adamw",
        batch_size=8,
        steps=100,
        head_lr=10.0,
        crop_scale=(0.5, 1.0),
        flip=0.0,
    ),
    "lr": 1e-3,
    "weight_decay": 0.01,
}
SIMCLR = Training(nesterov=True, batch_size=4096, lr_batch=256)
SWAV = Training(batch_size=256, epochs=20, schedule="step", milestones=(12, 16), gamma=0.2)
# Settings of each share of the labels.
PRESETS = {
    # For laptops and small sets: seconds on a small network. Without flips, which not every set
    # bears.
    "quick": {0.01: QUICK, 0.1: QUICK},
    "simclr": {
        0.01: {"training": SIMCLR._replace(epochs=60), "lr": 0.05, "weight_decay": 0.0},
        0.1: {"training": SIMCLR._replace(epochs=30), "lr": 0.05, "weight_decay": 0.0},
    },
    # SwAV's, which Barlow Twins and others took over; its linear layer has a rate of its own.
    "swav": {
        0.01: {"training": SWAV._replace(head_lr=250.0), "lr": 0.02, "weight_decay": 0.0},
        0.1: {"training": SWAV._replace(head_lr=20.0), "lr": 0.01, "weight_decay": 0.0},
    },
}


def evaluate(
    encoder: "PretrainedEncoder",
    train: "Source",
    test: "Source",
    *,
    shares: Mapping[float, Mapping[str, Any]],
    seed: int,
    mesh: Mesh,
) -> dict[float, dict[str, Any]]:
    """Accuracy after training on a share of the labels, for each share.

    Examples are drawn class by class, at least one of each; the same ones whatever the network is,
    and a larger share holds those of a smaller one.

    Args:
        encoder: the backbone to start from; its variables are not modified.
        train: labelled images.
        test: images of the same classes.
        shares: settings of each share in (0, 1): "training", "lr", "weight_decay".
        seed: of the draw of examples, the linear layer, order and augmentation.
        mesh: the devices.

    Returns:
        Of each share "top1", "top5" in percent, "images", "train_loss", and the settings in effect.

    Raises:
        ValueError: if the training images do not fit.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        B.5; Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster
        Assignments, 2020.
    """
    finetuning.check_labels(train)
    found, tuners = {}, {}  # shares of the same training share its compiled step
    for share, settings in shares.items():
        few = train.take(stratified(train.labels, share, seed=seed, least=1))
        hyper = {name: settings[name] for name in ("lr", "weight_decay")}
        training = settings["training"]
        if training not in tuners:
            tuners[training] = finetuning.make_tuner(encoder, training, train.num_classes, mesh)
        tuner = tuners[training]
        classifier = tuner.fit(few, **hyper, seed=seed)
        scores = finetuning.accuracies(tuner.logits(classifier, test), test.labels)
        found[share] = {
            **{name: scores[name] for name in ("top1", "top5")},
            "images": len(few),
            "train_loss": classifier.loss,
            **training_settings.summarise(
                training, **hyper, num_examples=len(few), num_devices=mesh.size
            ),
        }
    return found


def run(context: EvalContext, *, seed: int, preset: str = "quick") -> list[Result]:
    """`evaluate` with a preset's settings.

    Raises:
        ValueError: as `evaluate`, and if there is no network.
    """
    if context.encoder is None or context.train is None or context.test is None:
        raise ValueError("fine-tuning needs a network: take backbone features, and no raw pixels")
    images = (context.encoder, context.train, context.test)
    mesh = context.mesh or distributed.make_mesh()
    rows = []
    for share, found in evaluate(*images, shares=PRESETS[preset], seed=seed, mesh=mesh).items():
        details = {"preset": preset, "share": share, **found}
        accuracy = {name: details.pop(name) for name in ("top1", "top5")}
        for name, value in accuracy.items():
            rows.append(Result(f"semi_{100 * share:g}pct_{name}", value, None, details))
    return rows


protocol = Protocol(
    run, PRESETS, examples=("image", "image_text"), kinds=("pretrained",), needs_features=False
)

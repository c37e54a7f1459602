"""Semi-supervised learning: fine-tune all weights on a small share of the labels."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.evaluation import finetuning, training_settings
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result
from jaxssl.evaluation.sampling import stratified
from jaxssl.evaluation.training_settings import Training

if TYPE_CHECKING:
    from jaxssl.data.splits import Source
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
# Each preset maps a share of the labels to training settings.
PRESETS = {
    # This preset takes seconds on a laptop with a small network. It has no flips, because flips
    # change the class in data sets such as digits.
    "quick": {0.01: QUICK, 0.1: QUICK},
    "simclr": {
        0.01: {"training": SIMCLR._replace(epochs=60), "lr": 0.05, "weight_decay": 0.0},
        0.1: {"training": SIMCLR._replace(epochs=30), "lr": 0.05, "weight_decay": 0.0},
    },
    # These are SwAV's settings, also used by Barlow Twins. The linear layer has a higher learning
    # rate.
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
    """Compute the accuracy after fine-tuning on each share of the labels.

    At least one example of each class is drawn. The draw does not depend on the network, and a
    larger share contains the smaller ones.

    Args:
        encoder: the backbone to start from. Its variables are not modified.
        train: labelled images.
        test: images of the same classes.
        shares: settings ("training", "lr", "weight_decay") by share, in (0, 1).
        seed: of the draw of examples, the linear layer, the order of images and the augmentation.
        mesh: the devices.

    Returns:
        For each share, "top1" and "top5" in percent, "images", "train_loss" and the settings in
        effect.

    Raises:
        ValueError: if the training images do not fit.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        B.5; Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster
        Assignments, 2020.
    """
    finetuning.check_labels(train)
    scores, tuners = {}, {}  # Label shares with equal settings use the same compiled step.
    for share, settings in shares.items():
        subset = train.take(stratified(train.labels, share, seed=seed, least=1))
        hyper = {name: settings[name] for name in ("lr", "weight_decay")}
        training = settings["training"]
        if training not in tuners:
            tuners[training] = finetuning.make_tuner(encoder, training, train.num_classes, mesh)
        tuner = tuners[training]
        classifier = tuner.fit(subset, **hyper, seed=seed)
        accuracy = finetuning.accuracies(tuner.logits(classifier, test), test.labels)
        scores[share] = {
            **{name: accuracy[name] for name in ("top1", "top5")},
            "images": len(subset),
            "train_loss": classifier.loss,
            **training_settings.summarise(
                training, **hyper, num_examples=len(subset), num_devices=mesh.size
            ),
        }
    return scores


def run(context: EvalContext, *, seed: int, preset: str = "quick") -> list[Result]:
    """Evaluate semi-supervised fine-tuning with the settings of a preset.

    Raises:
        ValueError: as `evaluate`, and if there is no encoder of images to fine-tune.
    """
    if context.encoder is None or context.train is None or context.test is None:
        raise ValueError("fine-tuning needs the backbone layer of an encoder of images")
    mesh, shares = context.mesh or distributed.make_mesh(), PRESETS[preset]
    scores = evaluate(
        context.encoder, context.train, context.test, shares=shares, seed=seed, mesh=mesh
    )
    results = []
    for share, details in scores.items():
        accuracy = {name: details.pop(name) for name in ("top1", "top5")}
        details = {"preset": preset, "share": share, **details}
        for name, value in accuracy.items():
            results.append(Result(f"semi_{100 * share:g}pct_{name}", value, None, details))
    return results


protocol = Protocol(
    run, PRESETS, examples=("image", "image_text"), kinds=("pretrained",), needs_features=False
)

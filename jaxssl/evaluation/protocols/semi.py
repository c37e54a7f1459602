"""Semi-supervised learning: fine-tune all weights on a small share of the labels."""

from jaxssl.evaluation import finetuning
from jaxssl.evaluation import protocol as base
from jaxssl.training.output import logs

FAR = 1.5  # A share of the labels that differs by a larger factor from that of its name is logged.

SIMCLR = {"nesterov": True, "batch_size": 4096, "lr_batch": 256}
SWAV = {"batch_size": 256, "epochs": 20, "schedule": "step", "milestones": (12, 16), "gamma": 0.2}
# This preset takes seconds on a laptop with a small network. It has no flips, because flips change
# the class in data sets such as digits.
QUICK = {"optimiser": "adamw", "batch_size": 8, "steps": 100, "crop_scale": (0.5, 1.0), "flip": 0.0}
# Each preset maps a share of the labels to training settings.
PRESETS = {
    "quick": dict.fromkeys((0.01, 0.1), finetuning.preset(1e-3, 0.01, **QUICK, head_lr=10.0)),
    # SimCLR, B.5: the learning rate is 0.05 * batch / 256, without warm-up and weight decay.
    "simclr": {
        0.01: finetuning.preset(0.05, 0.0, **SIMCLR, epochs=60),
        0.1: finetuning.preset(0.05, 0.0, **SIMCLR, epochs=30),
    },
    # SwAV's README: --lr 0.02 --lr_last_layer 5 for 1 % of the labels, --lr 0.01
    # --lr_last_layer 0.2 for 10 %. The other values are the defaults of its eval_semisup.py.
    "swav": {
        0.01: finetuning.preset(0.02, 0.0, **SWAV, head_lr=5 / 0.02),
        0.1: finetuning.preset(0.01, 0.0, **SWAV, head_lr=0.2 / 0.01),
    },
}


def run(context: base.EvalContext, *, seed: int, preset: str = "quick") -> list[base.Result]:
    """Evaluate the accuracy after fine-tuning on each share of the labels.

    At least one example per class is drawn. The subsets are nested and do not depend on the
    network. ``seed`` also seeds the linear layer, the order of images and the augmentation.

    Raises:
        ValueError: without an encoder of images to fine-tune, if training images have no label or
            one class, or if a share has fewer images than the number of devices.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        B.5; Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster
        Assignments, 2020.

    Differs from the released code: SwAV uses SimCLR's fixed lists of ImageNet files, reports the
    best test epoch and does not zero-initialise the linear layer.
    """
    encoder, train, test, mesh, data = base.images_of(context)
    base.check_labels(train)
    results = []
    tuners = {}  # by settings, so that label shares with equal settings use the same compiled step
    for share, settings in PRESETS[preset].items():
        training, lr, decay = settings["training"], settings["lr"], settings["weight_decay"]
        subset = train.take(base.stratified(train.labels, share, seed=seed, least=1))
        effective = len(subset) / len(train)
        if max(effective / share, share / effective) > FAR:
            logs.log.warning(
                "semi: instead of %g %% of the training images, %d of %d (%.1f %%) are labelled: "
                "shares are rounded for each class, to one image or more",
                *(100 * share, len(subset), len(train), 100 * effective),
            )
        if training not in tuners:
            arguments = encoder, training, train.num_classes, mesh, data
            tuners[training] = finetuning.make_tuner(*arguments)
        tuner = tuners[training]
        classifier = tuner.fit(subset, lr=lr, weight_decay=decay, seed=seed)
        accuracy = finetuning.accuracies(tuner.logits(classifier, test), test.labels)
        scores = {f"semi_{100 * share:g}pct_{name}": accuracy[name] for name in ("top1", "top5")}
        details = finetuning.summarise(training, lr, decay, len(subset), mesh.size)
        details |= {"share": share, "images": len(subset), "train_loss": classifier.loss}
        results += base.make_results(scores, preset=preset, **details)
    return results


protocol = base.Protocol(
    run, PRESETS, examples=("image", "image_text"), kinds=("pretrained",), needs_features=False
)

"""Surface normals: angles between true normals and those that a dense head on a ResNet predicts."""

from functools import partial

import numpy as np

from jaxssl.evaluation import protocol as base
from jaxssl.evaluation import surface_normals
from jaxssl.evaluation.dense_head import Training, fit_dense_head

# SSL-transfer's code for NYUv2, whose script freezes all stages of the backbone.
# Differs from the released code: directions are k-means of the training normals (there a file), and
# labels are taken at the maps' resolution at once (there after two resizings).
SSL_TRANSFER = Training(sides=(300, 375, 450, 525, 600), steps=150 * 90, batch_size=2)
PRESETS: base.Presets = {
    "quick": {"training": Training(sides=(96,), steps=300, batch_size=8, width=64)},
    "ssl_transfer": {"training": SSL_TRANSFER},
    "ssl_transfer_finetuned": {"training": SSL_TRANSFER._replace(frozen=False)},
}
WITHIN = (11.25, 22.5, 30.0)


def summarise(angles: np.ndarray) -> dict[str, float]:
    """Compute mean and median of angles [n] in degrees, and shares below `WITHIN` in percent."""
    scores = {"mean_angle": np.mean(angles, dtype=np.float64), "median_angle": np.median(angles)}
    scores |= {f"within_{limit:g}": 100 * np.mean(angles < limit) for limit in WITHIN}
    return {f"normals_{name}": float(score) for name, score in scores.items()}


def run(context: base.EvalContext, *, seed: int, preset: str = "quick") -> list[base.Result]:
    """Evaluate the angles at all pixels of the test images whose normals are known.

    Raises:
        ValueError: if images have no normals or several sizes, the encoder is no ResNet, or no
            normal of the test images is known.

    References:
        Ericsson, Gouk and Hospedales, How Well Do Self-Supervised Models Transfer?, 2021.
        Goyal et al., Scaling and Benchmarking Self-Supervised Visual Representation Learning, 2019.
    """
    images, training = base.images_of(context), PRESETS[preset]["training"]
    for source in (images.train, images.test):
        surface_normals.check(source, context.data)
    read = partial(surface_normals.read, images.train, data=context.data)
    predict, _ = fit_dense_head(images.encoder, training, read, len(images.train), seed)
    errors = []
    for i in range(len(images.test)):
        [(picture, normals)] = surface_normals.read(images.test, np.array([i]), context.data)
        errors.append(surface_normals.angles(predict(picture, normals.shape[:2]), normals))
    angles = np.concatenate(errors)
    if not len(angles):
        raise ValueError(f"no pixel of {images.test.split!r} has a known normal")
    details = {"preset": preset, **training._asdict(), "training_images": len(images.train)}
    results = base.make_results(summarise(angles), **details)
    return [x._replace(unit="°") if x.metric.endswith("_angle") else x for x in results]


protocol = base.Protocol(
    run, PRESETS, examples=(), kinds=base.NETWORKS, needs_labels=False, needs_features=False
)

"""Settings of a classifier's training: sizes and rates, and the presets of papers."""

import numpy as np
import pytest

from jaxssl.evaluation import finetuning
from jaxssl.evaluation.finetuning import Training
from jaxssl.evaluation.protocols import linear, semi

pytestmark = pytest.mark.fast


def test_rate_falls_at_milestones_in_epochs():
    training = Training(schedule="step", milestones=(1, 2.5), epochs=3, batch_size=10)
    resolved = finetuning.resolve(training, 40, 1)  # four steps an epoch
    rates = finetuning.learning_rates(resolved, 2.0, 40)
    np.testing.assert_allclose(rates, [2.0] * 4 + [0.2] * 6 + [0.02] * 2, rtol=1e-6)


def test_rate_rises_over_the_epochs_of_the_warmup():
    training = Training(schedule="constant", warmup=1.5, epochs=3, batch_size=10)
    resolved = finetuning.resolve(training, 40, 1)  # four steps an epoch
    rates = finetuning.learning_rates(resolved, 3.0, 40)
    np.testing.assert_allclose(rates, [0, 0.5, 1, 1.5, 2, 2.5] + [3.0] * 6, rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "devices", "batch", "steps"), [(100, 1, 64, 3), (50, 8, 48, 3), (50, 1, 50, 3)]
)
def test_fine_tuning_batch_size_is_at_most_the_training_set_size(n, devices, batch, steps):
    settled = finetuning.resolve(Training(batch_size=64, epochs=3.0), n, devices)
    assert (settled.batch_size, settled.steps) == (batch, steps)
    details = finetuning.summarise(
        Training(batch_size=64, epochs=3.0, lr_batch=256), 0.1, 0, n, devices
    )
    assert details["peak_lr"] == pytest.approx(0.1 * batch / 256)
    assert details.get("batch_size_asked", batch) == 64


SGD = {"optimiser": "sgd", "momentum": 0.9, "moving_statistics": False, "augment": "resized"}
ADAM = {"optimiser": "adam", "batch_size": 512, "epochs": 100, "schedule": "constant"}
LINEAR = {  # the learning rate at the preset's batch size, the weight decay, and the settings
    # MoCo-v3's main_lincls.py: --lr .1 * 1024 / 256
    "paper_imagenet": (0.4, 0.0, {**SGD, "batch_size": 1024, "epochs": 90, "schedule": "cosine"}),
    # as HCL's, but with fixed statistics and without colour distortion
    "cifar": (1e-3, 1e-6, {**ADAM, "moving_statistics": False, "augment": "resized"}),
    # solo-learn
    "cifar_sgd": (
        *(0.1, 0.0),
        {**SGD, "batch_size": 256, "epochs": 100, "schedule": "step", "milestones": (60, 80)},
    ),
    # TCL, appendix A.1: 50 epochs with labels; A.3: 100 epochs without
    "tcl": (0.5, 1e-4, {**SGD, "augment": "pad", "epochs": 50, "schedule": "cosine"}),
    "tcl_imagenet": (0.5, 1e-4, {**SGD, "epochs": 50, "schedule": "cosine"}),
    "tcl_views": (0.5, 0.0, {**SGD, "epochs": 100, "schedule": "cosine"}),
    # MMCL's ImageNet code: batch size 4096, rate 1.6 without scaling, zero weights at the start
    "mmcl_imagenet": (
        *(1.6, 0.0),
        {**SGD, "batch_size": 4096, "epochs": 100, "schedule": "linear", "head_std": 0.0},
    ),
    # HCL's linear.py leaves BatchNorm in training mode.
    "hcl_quirks": (1e-3, 1e-6, {**ADAM, "moving_statistics": True, "augment": "simclr"}),
}
SWAV = {"batch_size": 256, "epochs": 20, "schedule": "step", "milestones": (12, 16), "gamma": 0.2}
SIMCLR = {"batch_size": 4096, "nesterov": True, "schedule": "cosine", "warmup": 0}
SEMI = {  # the same for 1 % and 10 % of the labels
    # SimCLR, appendix B.5: rate 0.05 * 4096 / 256, without warm-up and weight decay
    ("simclr", 0.01): (0.8, 0.0, {**SIMCLR, "epochs": 60}),
    ("simclr", 0.1): (0.8, 0.0, {**SIMCLR, "epochs": 30}),
    # SwAV's README: --lr 0.02 --lr_last_layer 5 and --lr 0.01 --lr_last_layer 0.2
    ("swav", 0.01): (0.02, 0.0, {**SWAV, "head_lr": 5 / 0.02}),
    ("swav", 0.1): (0.01, 0.0, {**SWAV, "head_lr": 0.2 / 0.01}),
}


def check_preset(preset, peak, decay, settings):
    training = preset["training"]
    assert finetuning.peak_lr(training, preset["lr"]) == pytest.approx(peak)
    assert preset["weight_decay"] == decay
    assert training._asdict().items() >= settings.items()


@pytest.mark.parametrize("name", LINEAR)
def test_linear_presets_on_crops_have_the_settings_of_their_sources(name):
    preset = linear.PRESETS[name]
    assert preset["training"].frozen
    assert preset.get("best_of_every", 0) == (5 if name == "hcl_quirks" else 0)
    check_preset(preset, *LINEAR[name])


@pytest.mark.parametrize(("name", "share"), SEMI)
def test_semi_supervised_presets_have_the_settings_of_their_papers(name, share):
    preset = semi.PRESETS[name][share]
    assert not preset["training"].frozen
    check_preset(preset, *SEMI[name, share])

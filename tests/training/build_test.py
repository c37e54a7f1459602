"""The numbers and views that a config describes."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from tiny import DIGITS, TINY

from jaxssl.training import build, config


def settings(**changes):
    return config.load(DIGITS, list({**TINY, **changes}.items()))


def test_rate_is_scaled_by_the_batch_and_changes_at_fractions_of_epochs():
    """Ten steps are an epoch: half an epoch of warm-up, and milestones after 1.5 and 3 epochs."""
    schedule = {"name": "step", "milestones": "(1.5, 3)", "gamma": "0.1", "warmup_epochs": "0.5"}
    changes = {f"schedule.{name}": value for name, value in schedule.items()}
    changes |= {"batch_size": "64", "epochs": "4", "optim.lr": "0.1"}
    setup = build.build(settings(**changes, **{"optim.lr_scaling": "linear"}), 645, 1)
    peak = 0.1 * 64 / 256
    assert (setup.steps_per_epoch, setup.total_steps, setup.warmup_steps) == (10, 40, 5)
    assert setup.peak_rate == pytest.approx(peak)
    expected = {0: 0, 2: 0.4, 5: 1, 14: 1, 15: 0.1, 29: 0.1, 30: 0.01, 39: 0.01}
    for step, factor in expected.items():
        assert setup.learning_rate(step) == pytest.approx(factor * peak, rel=1e-5), step


def test_only_the_second_view_has_the_settings_of_the_second_view():
    """Only the second of three views of a uniform image has noise."""
    plain = {f"augment.{name}": "0.0" for name in ("degrees", "shear", "zoom", "shift", "noise")}
    plain |= {"second_view.noise": "0.5", "views": "3"}
    augment = jax.jit(build.make_augment(settings(**plain)))
    image = jnp.full((1, 8, 8, 1), 128, jnp.uint8)
    views = augment(jax.random.key(0), image, jnp.zeros(1, jnp.int32))["views"]
    spread = np.asarray(views).std(axis=(1, 2, 3, 4))
    assert spread[1] > 0.1 and max(spread[0], spread[2]) < 1e-5

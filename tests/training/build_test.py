"""The numbers and views that a config describes."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from tiny import DIGITS, TINY

from jaxssl.training import build, config, optim
from jaxssl.training.config.method import make_networks


def settings(**changes):
    return config.load(DIGITS, list({**TINY, **changes}.items()))


def test_learning_rate_is_scaled_by_batch_size_and_changes_within_epochs():
    """Ten steps are an epoch: half an epoch of warm-up, and milestones after 1.5 and 3 epochs."""
    schedule = {"name": "step", "milestones": "(1.5, 3)", "gamma": "0.3"}
    schedule |= {"warmup_epochs": "0.5", "warmup_start": "0.5"}
    changes = {f"schedule.{name}": value for name, value in schedule.items()}
    changes |= {"batch_size": "64", "epochs": "4.1", "optim.lr": "0.1"}
    setup = build.build(settings(**changes, **{"optim.lr_scaling": "linear"}), 645, 1)
    peak = 0.1 * 64 / 256
    assert (setup.steps_per_epoch, setup.total_steps, setup.warmup_steps) == (10, 41, 5)
    assert setup.learning_rate(setup.warmup_steps) == pytest.approx(peak)
    expected = {0: 0.5, 2: 0.7, 5: 1, 14: 1, 15: 0.3, 29: 0.3, 30: 0.09, 39: 0.09}
    for step, factor in expected.items():
        assert setup.learning_rate(step) == pytest.approx(factor * peak, rel=1e-5), step


def test_learning_rate_ends_at_the_end_factor_of_the_config():
    changes = {"schedule.end_factor": "0.25", "schedule.warmup_epochs": "0.5", "epochs": "2"}
    setup = build.build(settings(**changes), 160, 1)
    assert setup.learning_rate(20) == pytest.approx(0.25 * setup.learning_rate(setup.warmup_steps))


OF_SGD = {"nesterov": True, "momentum": 0.5, "weight_decay": 0.3, "clip_norm": 0.1}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [*(("sgd", *item) for item in OF_SGD.items())]
    + [("lars", "trust_coefficient", 0.5), ("larc", "lars_clip", True)],
)
def test_optimiser_has_the_settings_of_the_config(name, key, value):
    """Two updates of a matrix equal those of an optimiser with the same settings."""
    usual = {"weight_decay": 1e-2, "momentum": 0.9, "clip_norm": 0.0}
    usual |= {"trust_coefficient": 0.02} if name != "sgd" else {}
    changes = {f"optim.{k}": str(v) for k, v in {"name": name, **usual, key: value}.items()}
    setup = build.build(settings(**changes), 160, 1)
    params = {"w": jnp.asarray([[1.0, -2.0], [0.5, 3.0]])}

    def updates(optimiser):
        state, steps = optimiser.init(params), []
        for scale in (1.0, 3.0):
            update, state = optimiser.update({"w": scale * jnp.cos(params["w"])}, state, params)
            steps.append(np.asarray(update["w"]))
        return np.stack(steps)

    actual = updates(setup.optimiser)
    expected = updates(optim.optimiser(name, setup.learning_rate, **{**usual, key: value}))
    without = updates(optim.optimiser(name, setup.learning_rate, **usual))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert not np.allclose(actual, without, rtol=1e-3)


def test_example_order_uses_the_seed_of_the_config(monkeypatch):
    monkeypatch.setattr(build.batches, "make_batches", lambda *_, **options: options["seed"])
    assert build.make_batches(settings(seed="3"), None, None) == 3


def test_text_network_has_precision_and_accumulation_of_the_image_network():
    captions = config.load(DIGITS.parent / "image_text" / "digit_captions.py", [])
    captions.update({"precision": "bf16", "accumulate_steps": 4})
    for encoder in (networks := make_networks(captions), networks.text):
        assert (encoder.precision, encoder.num_chunks) == ("bf16", 4)


def test_second_view_settings_apply_only_to_the_second_view():
    """Only the second of three views of a uniform image has noise, and no small crop has."""
    plain = {f"augment.{name}": "0.0" for name in ("degrees", "shear", "zoom", "shift", "noise")}
    plain |= {"second_view.noise": "0.5", "views": "3", "crops.number": "1", "crops.size": "8"}
    augment = jax.jit(build.make_augment(settings(**plain)))
    image = jnp.full((1, 8, 8, 1), 128, jnp.uint8)
    images = augment(jax.random.key(0), image, jnp.zeros(1, jnp.int32))
    spread = np.asarray(images["views"]).std(axis=(1, 2, 3, 4))
    assert np.asarray(images["crops"]).std() < 1e-5
    assert spread[1] > 0.1 and max(spread[0], spread[2]) < 1e-5

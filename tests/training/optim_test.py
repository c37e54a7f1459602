"""Optimisers against their equations in float64 and against public implementations."""

from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.training.optim import effective_lr, optimiser

pytestmark = pytest.mark.fast

# Fixed gradients, and the parameters after each step of public code (see golden/README.md).
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "optim.npz")
NAMES = ("adam", "adamw", "larc", "lars", "sgd")
each_name = pytest.mark.parametrize("name", NAMES)
SETTINGS = {"weight_decay": 0.3, "momentum": 0.8, "clip_norm": 0}


def params_and_gradients(steps=3):
    """Return a matrix, a bias and a trained scalar, and the gradients of each step."""
    rng = np.random.default_rng(0)
    shapes = {"matrix": (3, 4), "bias": (4,), "scalar": ()}
    draw = lambda: {k: rng.normal(size=shape).astype(np.float32) for k, shape in shapes.items()}  # noqa: E731
    return draw(), [draw() for _ in range(steps)]


def run(name, lr, params, gradients, **settings):
    """Return the parameters after each step; assert that all steps share one compilation."""
    transform, traces = optimiser(name, lr, **settings), []

    def step(params, state, gradient):
        traces.append(name)
        updates, state = transform.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    step = jax.jit(step)
    state, trail = transform.init(params), []
    for gradient in gradients:
        params, state = step(params, state, gradient)
        trail.append(params)
    assert len(traces) == 1
    return trail


def lr(step):
    """Return a different rate at each step."""
    return 0.1 / (1 + jnp.asarray(step, jnp.float32))


def growing_decay(step):
    return 0.2 + 0.1 * jnp.asarray(step, jnp.float32)


def oracle(name, p, gradients, matrix, *, weight_decay=0.3, nesterov=False,
           trust_coefficient=0.001, lars_clip=False):  # fmt: skip
    """Return one parameter after each step."""
    p = np.asarray(p, np.float64)
    first = second = velocity = np.zeros_like(p)
    trail = []
    for t, g in enumerate(gradients):
        g, rate = np.asarray(g, np.float64), 0.1 / (1 + t)
        decay = float(weight_decay(t)) if callable(weight_decay) else weight_decay
        decayed = g + decay * p if matrix else g
        if name.startswith("adam"):  # Kingma and Ba, algorithm 1
            d = decayed if name == "adam" else g
            first, second = 0.9 * first + 0.1 * d, 0.999 * second + 0.001 * d**2
            first_hat, second_hat = first / (1 - 0.9 ** (t + 1)), second / (1 - 0.999 ** (t + 1))
            move = first_hat / (np.sqrt(second_hat) + 1e-8)
            if name == "adamw":  # Loshchilov and Hutter, algorithm 2
                move = move + decayed - g
        else:
            ratio = 1.0
            if matrix and name == "lars":
                ratio = trust_coefficient * np.linalg.norm(p) / np.linalg.norm(decayed)
            if matrix and name == "larc":  # You, Gitman and Ginsburg, eq. 6
                norm = np.linalg.norm(p)
                ratio = trust_coefficient * norm / (np.linalg.norm(g) + decay * norm)
                ratio = min(ratio / rate, 1) if lars_clip else ratio
            velocity = 0.8 * velocity + ratio * decayed
            move = ratio * decayed + 0.8 * velocity if nesterov else velocity
        p = p - rate * move
        trail.append(p)
    return trail


def assert_follows_oracle(name, trail, params, gradients, **options):
    for key, p in params.items():
        expected = oracle(name, p, [g[key] for g in gradients], key == "matrix", **options)
        for step, (one, other) in enumerate(zip(trail, expected, strict=True)):
            message = f"{key}, step {step}"
            np.testing.assert_allclose(one[key], other, rtol=1e-5, atol=1e-6, err_msg=message)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        *((name, {"weight_decay": growing_decay}) for name in NAMES),
        *((name, {"trust_coefficient": 0.02}) for name in ("lars", "larc")),
        *((name, {"nesterov": True}) for name in ("sgd", "lars", "larc")),
        # With these values, the trust ratio is capped never, from the second step on, and always.
        *(("larc", {"trust_coefficient": c, "lars_clip": True}) for c in (0.02, 0.12, 10.0)),
    ],
)
def test_three_optimiser_steps_match_the_float64_oracle(name, options):
    params, gradients = params_and_gradients()
    trail = run(name, lr, params, gradients, **{**SETTINGS, **options})
    assert_follows_oracle(name, trail, params, gradients, **options)
    if options.get("trust_coefficient") == 10:
        assert_follows_oracle("sgd", trail, params, gradients)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_decay_all_option_decays_biases_and_scalars_like_matrices(name):
    params, gradients = params_and_gradients()
    trail = run(name, lr, params, gradients, **SETTINGS, decay_all=True)
    for key, p in params.items():
        own = [{"matrix": step[key]} for step in trail]
        assert_follows_oracle(name, own, {"matrix": p}, [{"matrix": g[key]} for g in gradients])


def test_larc_with_lars_clip_is_finite_at_a_rate_of_zero():
    params, gradients = params_and_gradients()
    from_zero = lambda step: 0.1 * jnp.asarray(step, jnp.float32)  # noqa: E731
    trail = run("larc", from_zero, params, gradients, **SETTINGS, lars_clip=True)
    jax.tree.map(np.testing.assert_array_equal, trail[0], params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trail))
    assert (trail[1]["matrix"] != params["matrix"]).all()


@each_name
def test_weight_decay_at_zero_gradient_changes_only_matrices(name):
    params, gradients = params_and_gradients(1)
    params["positions"] = np.ones((2, 3), np.float32)  # learned positions of a transformer
    params["query"] = {"bias": np.ones((2, 3), np.float32)}  # of Linen's attention
    gradients = [jax.tree.map(np.zeros_like, params)]
    [after] = run(name, lr, params, gradients, **SETTINGS)
    for key in ("bias", "scalar", "positions"):
        np.testing.assert_array_equal(after[key], params[key])
    np.testing.assert_array_equal(after["query"]["bias"], params["query"]["bias"])
    moved = np.sign(after["matrix"] - params["matrix"])
    # Solo-learn's code, which larc follows, leaves a matrix without a gradient alone.
    expected = 0 * moved if name == "larc" else -np.sign(params["matrix"])
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("name", ["lars", "larc"])
def test_trust_ratio_of_a_zero_matrix_is_one(name):
    params, gradients = params_and_gradients(1)
    params["matrix"] = np.zeros_like(params["matrix"])
    [after] = run(name, lr, params, gradients, **SETTINGS)
    np.testing.assert_allclose(after["matrix"], -0.1 * gradients[0]["matrix"], rtol=1e-6)


def clipped(gradients, clip_norm):
    for gradient in gradients:
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradient.values()))
        yield {key: g * min(1, clip_norm / norm) for key, g in gradient.items()}


@each_name
@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
def test_gradients_are_clipped_by_global_norm_before_the_decay(name, clip_norm):
    params, gradients = params_and_gradients()
    trail = run(name, lr, params, gradients, **{**SETTINGS, "clip_norm": clip_norm})
    assert_follows_oracle(name, trail, params, list(clipped(gradients, clip_norm)))


@each_name
def test_frozen_modules_have_no_updates_optimiser_state_or_part_in_the_clip_norm(name):
    params, gradients = params_and_gradients()
    stem = {"kernel": np.full((2, 3), 2.0, np.float32), "bias": np.ones(3, np.float32)}
    blown = jax.tree.map(lambda p: np.full_like(p, np.nan), stem)
    whole = {"net": {"frozen_stem": {"conv": stem}, "head": params}}
    whole_gradients = [{"net": {"frozen_stem": {"conv": blown}, "head": g}} for g in gradients]
    settings = {**SETTINGS, "clip_norm": 0.5}
    trail = run(name, lr, whole, whole_gradients, **settings)
    heads = [one["net"]["head"] for one in trail]
    assert_follows_oracle(name, heads, params, list(clipped(gradients, 0.5)))
    jax.tree.map(np.testing.assert_array_equal, trail[-1]["net"]["frozen_stem"]["conv"], stem)
    state = optimiser(name, lr, **settings).init(whole)
    assert not {(2, 3), (3,)} & {jnp.shape(leaf) for leaf in jax.tree.leaves(state)}


def test_modules_are_frozen_only_by_the_prefix_frozen():
    params = {"unfrozen_stem": {"kernel": np.ones((2, 2), np.float32)}, "frozen": np.ones(2, "f")}
    [after] = run("sgd", lr, params, [params], **SETTINGS)
    assert all((leaf != 1).all() for leaf in jax.tree.leaves(after))


CLIPPED = {"trust_coefficient": 0.02, "lars_clip": True}
TRAILS = {
    "torch_adam_lr1em3_wd1em6": ("adam", 1e-3, 1e-6, {}),
    "torch_adamw_lr1em3_wd1em4": ("adamw", 1e-3, 1e-4, {}),
    "torch_sgd_m0p9_wd1em4": ("sgd", 0.1, 1e-4, {}),
    "mmcl_lars_wd1em4": ("lars", None, 1e-4, {}),
    "auccl_barlow_lars_wd1em4": ("lars", None, 1e-4, {}),
    "solo_lars_noclip_wd1em4_eta0p001": ("larc", None, 1e-4, {}),
    "solo_lars_clip_wd1em4_eta0p02": ("larc", None, 1e-4, CLIPPED),
}


# In float32, SGD moves a parameter from 0.1 to -3e-4, where the rounding error of 0.1 is large.
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, {"rtol": 1e-12}), (np.float32, {"rtol": 1e-5, "atol": 2e-8})],
)
@pytest.mark.parametrize("trail", TRAILS)
def test_optimiser_steps_match_public_implementations(trail, dtype, tolerance):
    name, rate, decay, options = TRAILS[trail]
    keys = [key for key in "Wb" if f"{trail}/{key}" in GOLDEN]
    rates = np.full(5, rate) if rate else GOLDEN[f"{trail}/lr"]
    params = {key: GOLDEN[f"{key}0"].astype(dtype) for key in keys}
    gradients = [{key: GOLDEN[f"grads_{key}"][t].astype(dtype) for key in keys} for t in range(5)]
    settings = {"weight_decay": decay, "momentum": 0.9, "clip_norm": 0, **options}
    with jax.enable_x64(dtype == np.float64):
        at = lambda step: jnp.asarray(rates, dtype)[step]  # noqa: E731
        steps = run(name, at, params, gradients, **settings)
        for key in keys:
            one = np.stack([p[key] for p in steps])
            assert one.dtype == dtype
            np.testing.assert_allclose(one, GOLDEN[f"{trail}/{key}"], **tolerance)


def test_learning_rate_may_be_a_number_and_other_settings_have_defaults():
    params, updates = {"w": jnp.ones((2, 3))}, []
    for rate in (0.1, lambda step: jnp.float32(0.1)):
        transform = optimiser("larc", rate, lars_clip=True)
        updates.append(transform.update(params, transform.init(params), params)[0])
    chex.assert_trees_all_equal(*updates)


def test_learning_rate_scales_with_the_batch_size():
    for scaling, rates in {
        "linear": {64: 0.075, 256: 0.3, 4096: 4.8},
        "sqrt": {64: 2.4},
        "none": {64: 0.3, 4096: 0.3},
    }.items():
        assert {b: effective_lr(0.3, scaling, b) for b in rates} == pytest.approx(rates), scaling
    with pytest.raises(ValueError, match=r"optim.lr_scaling must be one of .*'sqrt'.* got 'root'"):
        effective_lr(0.3, "root", 64)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adamW", {}, r"optim.name must be one of \['adam', .*'lars', 'sgd'\], got 'adamW'"),
        ("lars", {"lars_clip": True}, "optim.lars_clip needs optim.name \"larc\", got 'lars'"),
        ("lars", {"decay_all": True}, "optim.decay_all needs .* \"sgd\", got 'lars'"),
        ("larc", {"decay_all": True}, "optim.decay_all needs .* \"sgd\", got 'larc'"),
    ],
)
def test_impossible_optimiser_settings_raise_an_error(name, options, message):
    with pytest.raises(ValueError, match=message):
        optimiser(name, lr, **SETTINGS, **options)

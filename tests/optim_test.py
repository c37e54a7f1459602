"""Optimisers against their equations in float64 and against public codes."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.optim import effective_lr, optimiser

# float64 results of torch 2.13 (adam: lr 1e-3, decay 1e-6; adamw: 1e-3, 1e-4; sgd: 0.1, 1e-4,
# momentum 0.9) and of anshulbshah/MMCL @ d6f747a, utils/lars_optimizer.py (0.1, 1e-4, 0.9).
GOLDEN = np.load(Path(__file__).parent / "golden" / "optim.npz")
NAMES = ("adam", "adamw", "lars", "sgd")
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax' Adam raises a float to its integer step count, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def params_and_gradients(steps=3):
    """A matrix, a bias and a trained scalar; the gradients of each step."""
    rng = np.random.default_rng(0)
    shapes = {"matrix": (3, 4), "bias": (4,), "scalar": ()}
    draw = lambda: {k: rng.normal(size=shape).astype(np.float32) for k, shape in shapes.items()}  # noqa: E731
    return draw(), [draw() for _ in range(steps)]


def run(transform, params, gradients):
    """Parameters after each step."""

    @jax.jit
    def step(params, state, gradient):
        updates, state = transform.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    state, trail = transform.init(params), []
    for gradient in gradients:
        params, state = step(params, state, gradient)
        trail.append(params)
    return trail


def lr(step):
    """Another rate at each step."""
    return 0.1 / (1 + step)


def oracle(name, p, gradients, *, decay, momentum, adapt):
    """One parameter after each step; `adapt` tells whether LARS' trust ratio applies."""
    p = np.asarray(p, np.float64)
    first = second = velocity = np.zeros_like(p)
    trail = []
    for t, g in enumerate(gradients):
        g = np.asarray(g, np.float64)
        if name != "adamw":
            g = g + decay * p
        if name.startswith("adam"):  # Kingma and Ba, algorithm 1
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            first_hat, second_hat = first / (1 - 0.9 ** (t + 1)), second / (1 - 0.999 ** (t + 1))
            move = first_hat / (np.sqrt(second_hat) + 1e-8)
            if name == "adamw":  # Loshchilov and Hutter, algorithm 2
                move = move + decay * p
            p = p - lr(t) * move
        elif name == "lars":  # You, Gitman and Ginsburg, algorithm 1
            trust = 0.001 * np.linalg.norm(p) / np.linalg.norm(g) if adapt else 1
            velocity = momentum * velocity + lr(t) * trust * g
            p = p - velocity
        else:
            velocity = momentum * velocity + g
            p = p - lr(t) * velocity
        trail.append(p)
    return trail


def assert_follows_oracle(name, found, params, gradients, *, decay, momentum):
    for key, p in params.items():
        matrix = key == "matrix"
        expected = oracle(
            name,
            p,
            [g[key] for g in gradients],
            decay=decay if matrix else 0,
            momentum=momentum,
            adapt=matrix,
        )
        for step, (one, other) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_allclose(
                one[key], other, rtol=1e-4, atol=1e-6, err_msg=f"{key}, step {step}"
            )


@each_name
def test_three_steps_follow_the_equations_and_spare_biases_and_scalars(name):
    params, gradients = params_and_gradients()
    transform = optimiser(name, lr, weight_decay=0.3, momentum=0.8, clip_norm=0)
    found = run(transform, params, gradients)
    assert_follows_oracle(name, found, params, gradients, decay=0.3, momentum=0.8)


@each_name
def test_without_a_gradient_only_matrices_decay(name):
    params, gradients = params_and_gradients(1)
    gradients = [{key: np.zeros_like(g) for key, g in gradients[0].items()}]
    transform = optimiser(name, lr, weight_decay=0.3, momentum=0.8, clip_norm=0)
    [found] = run(transform, params, gradients)
    for key in ("bias", "scalar"):
        np.testing.assert_array_equal(found[key], params[key])
    moved = np.sign(found["matrix"] - params["matrix"])
    np.testing.assert_array_equal(moved, -np.sign(params["matrix"]))


@each_name
@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
def test_gradients_are_clipped_to_their_global_norm_before_the_decay(name, clip_norm):
    params, gradients = params_and_gradients()
    transform = optimiser(name, lr, weight_decay=0.3, momentum=0.8, clip_norm=clip_norm)
    found = run(transform, params, gradients)
    clipped = []
    for gradient in gradients:
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradient.values()))
        clipped.append({key: g * min(1, clip_norm / norm) for key, g in gradient.items()})
    assert_follows_oracle(name, found, params, clipped, decay=0.3, momentum=0.8)


@pytest.mark.parametrize(
    ("name", "rate", "decay"),
    [("adam", 1e-3, 1e-6), ("adamw", 1e-3, 1e-4), ("sgd", 0.1, 1e-4), ("lars", 0.1, 1e-4)],
)
def test_steps_are_those_of_public_codes(name, rate, decay):
    keys = [key for key in "Wb" if f"{name}/{key}" in GOLDEN]
    params = {key: GOLDEN[f"{key}0"] for key in keys}
    # Of LARS the first step only: MMCL multiplies by the rate after the momentum, the paper before.
    steps = len(GOLDEN[f"{name}/W"])
    gradients = [{key: GOLDEN[f"grads_{key}"][t] for key in keys} for t in range(steps)]
    transform = optimiser(name, lambda step: rate, weight_decay=decay, momentum=0.9, clip_norm=0)
    with jax.enable_x64(True):
        found = run(transform, jax.tree.map(jnp.asarray, params), gradients)
        for t, key in itertools.product(range(steps), keys):
            np.testing.assert_allclose(found[t][key], GOLDEN[f"{name}/{key}"][t], rtol=1e-9)


@pytest.mark.parametrize(
    ("scaling", "batch_size", "expected"),
    [
        ("linear", 64, 0.075),
        ("linear", 256, 0.3),
        ("linear", 4096, 4.8),
        ("sqrt", 64, 2.4),
        ("none", 64, 0.3),
        ("none", 4096, 0.3),
    ],
)
def test_the_learning_rate_scales_with_the_batch(scaling, batch_size, expected):
    assert effective_lr(0.3, scaling, batch_size) == pytest.approx(expected)


def test_unknown_names_are_answered_with_the_valid_ones():
    with pytest.raises(ValueError, match=r"optim.lr_scaling must be one of .*'sqrt'.* got 'root'"):
        effective_lr(0.3, "root", 64)
    message = r"optim.name must be one of \['adam', 'adamw', 'lars', 'sgd'\], got 'adamW'"
    with pytest.raises(ValueError, match=message):
        optimiser("adamW", lr, weight_decay=0, momentum=0.9, clip_norm=0)

"""Whole training steps: the same on any number of devices, one compilation, donated state."""

import logging
from importlib import import_module

import jax
import numpy as np
import optax
import oracles
import pytest
from jax import numpy as jnp

from jaxssl import parallel
from jaxssl.augment import recipes
from jaxssl.augment.views import make_views
from jaxssl.methods import siamese
from jaxssl.nets import convnet
from jaxssl.nets.heads import Projector
from jaxssl.pairs import pair_views
from jaxssl.state import init_state, make_train_step

HYPER = {"auc_cl": {}, "nt_xent": {"temperature": 0.2}}
OBJECTIVES = {
    name: import_module(f"jaxssl.losses.{name}").objective(**hyper) for name, hyper in HYPER.items()
}
STEPS, BATCH, NUM_EXAMPLES = 3, 8, 24
AUGMENT = make_views(recipes.digits(size=8), 2)


def batch_at(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "image": rng.integers(0, 256, (BATCH, 8, 8, 1), np.uint8),
        "label": rng.integers(0, 3, BATCH, np.int32),
        "index": rng.choice(NUM_EXAMPLES, BATCH, replace=False).astype(np.int32),
    }


def parts(name: str):
    method = siamese.method(
        convnet.net(widths=(4, 8), strides=(2, 2)), Projector(8, 6, 2), OBJECTIVES[name]
    )
    # Plain SGD: Adam would turn rounding in a vanishing gradient into a full step.
    return method, optax.sgd(0.05, momentum=0.9)


def run(name: str, devices: int):
    """States after each step, as NumPy, the losses, and the embeddings of the first step."""
    method, optimiser = parts(name)
    mesh = parallel.make_mesh(jax.devices()[:devices])
    state = init_state(method, optimiser, AUGMENT, batch_at(0), NUM_EXAMPLES, 0, mesh)
    step = make_train_step(method, optimiser, AUGMENT, mesh)
    losses, first = [], None
    for i in range(STEPS):
        state, metrics, embeddings = step(state, parallel.shard(batch_at(i), mesh))
        losses.append(float(metrics["loss"]))
        first = np.asarray(embeddings) if first is None else first
    tree = state.replace(key=jax.random.key_data(state.key))
    return jax.tree.map(np.asarray, tree), losses, first


@pytest.fixture(scope="module", params=sorted(OBJECTIVES))
def one_device(request):
    return request.param, run(request.param, 1)


def test_the_loss_of_a_step_is_the_oracles(one_device):
    name, (_, losses, embeddings) = one_device
    pairs = pair_views(jnp.asarray(embeddings))
    expected = getattr(oracles, name)(pairs, **HYPER[name]).mean()
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_steps_do_not_depend_on_the_number_of_devices(one_device, devices):
    name, (state, losses, embeddings) = one_device
    found, found_losses, found_embeddings = run(name, devices)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-4)
    np.testing.assert_allclose(found_embeddings, embeddings, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, state)


def test_every_part_of_the_state_moves(one_device):
    name, (state, _, _) = one_device
    method, optimiser = parts(name)
    fresh = init_state(
        method, optimiser, AUGMENT, batch_at(0), NUM_EXAMPLES, 0, parallel.make_mesh()
    )
    assert int(state.step) == STEPS
    for before, after in (
        (fresh.params, state.params),
        (fresh.carried.batch_stats, state.carried.batch_stats),
    ):
        changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after)
        assert all(jax.tree.leaves(changed)), changed


def test_steps_compile_once_and_donate_the_state(caplog):
    method, optimiser = parts("auc_cl")
    mesh = parallel.make_mesh()
    state = init_state(method, optimiser, AUGMENT, batch_at(0), NUM_EXAMPLES, 0, mesh)
    step = make_train_step(method, optimiser, AUGMENT, mesh)
    old = state
    state, _, _ = step(state, parallel.shard(batch_at(0), mesh))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.params))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for i in range(1, STEPS):
            state, _, _ = step(state, parallel.shard(batch_at(i), mesh))
        # The log does report compilations: this is one.
        assert "Compiling" not in caplog.text
        jax.jit(lambda x: x + len(caplog.text) + 12345)(1.0)
        assert "Compiling" in caplog.text

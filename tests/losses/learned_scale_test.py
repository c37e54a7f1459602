"""Tests of trained temperatures, as in CLIP: `clip`, and `decl` with learn_scale."""

from functools import partial
from importlib import import_module

import jax
import numpy as np
import oracles
import pytest
from jax import numpy as jnp
from loss_cases import embeddings

from jaxssl import losses
from jaxssl.losses.pairs import pair_towers

B, DIM, KEY = 6, 4, jax.random.key(0)
close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


DECL = {"rate": "buffer", "u": "mean", "weight": 0.5, "momentum": 1.0, "learn_scale": True}


def scaled(name, scale, **hyper):
    """Value and derivative of a loss at a learned scale, with constant memory."""
    objective, z = losses.objective(name, **hyper), jnp.asarray(embeddings(b=B))
    index = jnp.arange(B, dtype=jnp.int32)
    params, memory = objective.init(KEY, B, DIM)
    memory = jnp.linspace(-1.0, 1.0, B) if name == "decl" else memory

    def value(scale):
        params = {"logit_scale": scale}
        return objective.loss(pair_towers(*z, index), params, memory, step=0, key=KEY)[0]

    return params, *jax.jit(jax.value_and_grad(value))(jnp.float32(scale))


@pytest.mark.parametrize(("name", "hyper"), [("clip", {}), ("decl", DECL)])
def test_learned_scale_is_clipped_at_a_hundred(name, hyper):
    at_bound = scaled(name, np.log(100), **hyper)[1]
    for scale in (np.log(101), 9.0):
        _, value, slope = scaled(name, scale, **hyper)
        close(value, at_bound)
        assert slope == 0
    assert scaled(name, np.log(99), **hyper)[2] != 0


def test_decl_scale_starts_at_the_given_temperature():
    params, value, slope = scaled("decl", np.log(2), **DECL, temperature=0.07)
    close(params["logit_scale"], np.log(1 / 0.07))
    preset = import_module("jaxssl.losses.decl").PRESETS["clip"]
    close(losses.objective("decl", **preset).init(KEY, B, DIM)[0]["logit_scale"], np.log(1 / 0.07))
    fixed = losses.objective("decl", **DECL | {"learn_scale": False})
    assert fixed.init(KEY, B, DIM)[0] == {}

    def expected(scale):  # float64
        rate = np.exp(np.linspace(-1.0, 1.0, B))
        pairs = pair_towers(*jnp.asarray(embeddings(b=B)))
        return oracles.decl(pairs, rate, weight=0.5, temperature=np.exp(-scale)).mean()

    step = 1e-4
    close(value, expected(np.log(2)))
    difference = (expected(np.log(2) + step) - expected(np.log(2) - step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-4)
    assert abs(difference) > 0.1

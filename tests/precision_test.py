"""JAX_ENABLE_X64 changes neither random draws nor the types of losses, views and their state."""

from collections.abc import Iterator
from importlib import import_module

import jax
import pytest
from jax import numpy as jnp
from jax.extend.core import jaxprs_in_params
from loss_cases import embeddings

from jaxssl import components
from jaxssl.losses.pairs import pair_towers, pair_views

pytestmark = pytest.mark.fast
RECIPES = [
    *[(name, {}) for name in components.names("augment") if name != "graph"],
    ("policy", {"policy": "autoaugment_cifar"}),
    ("policy", {"policy": "randaugment"}),
]


@pytest.fixture(autouse=True)
def wide():
    """Set JAX_ENABLE_X64. Whole numbers may then be of 32 or of 64 bits."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def wide_arrays(jaxpr) -> Iterator[str]:
    """List the operations that make a float64 array. Python's numbers are float64 scalars."""
    for equation in jaxpr.eqns:
        for inner in jaxprs_in_params(equation.params):
            yield from wide_arrays(inner)
        for out in equation.outvars:
            wide = getattr(out.aval, "dtype", None) == jnp.float64
            if wide and out.aval.shape and not out.aval.weak_type:
                yield str(equation)


@pytest.mark.parametrize(("name", "settings"), RECIPES, ids=str)
def test_views_are_computed_in_float32(name, settings):
    recipe = import_module(f"jaxssl.augment.recipes.{name}").recipe(size=8, **settings)
    shape = (32, 9, 9, 3) if name == "video" else (9, 9, 3)
    traced = jax.make_jaxpr(recipe)(jax.random.key(0), jnp.zeros(shape, jnp.float32))
    assert list(wide_arrays(traced.jaxpr)) == []
    assert [out.dtype for out in traced.out_avals] == [jnp.float32]


@pytest.mark.parametrize("name", components.names("loss"))
def test_losses_and_their_memory_are_float32(name):
    hyper = {"cross_entropy": {"num_classes": 3}, "decl": {"noise": 0.1}}.get(name, {})
    objective = import_module(f"jaxssl.losses.{name}").objective(**hyper)
    z, index = jnp.asarray(embeddings()), jnp.arange(8, dtype=jnp.int32)
    if objective.needs_two_towers or objective.needs_other_keys:
        pairs = pair_towers(*z, index=index)
    else:
        pairs = pair_views(z, index, index % 3 if objective.needs_labels else None)

    def loss(key):
        params, memory = objective.init(key, 8, 4)
        return params, objective.loss(pairs, params, memory, step=jnp.int32(0), key=key)

    traced = jax.make_jaxpr(loss)(jax.random.key(0))
    assert list(wide_arrays(traced.jaxpr)) == []
    assert all(out.dtype != jnp.float64 for out in traced.out_avals)

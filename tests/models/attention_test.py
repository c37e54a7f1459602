"""`attend` against `jax.nn.dot_product_attention`: values and gradients."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.models._layers import attend


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention_and_gradients_equal_jax_dot_product_attention(causal):
    q, k, v = (normal(seed, 3, 5, 2, 4) for seed in range(3))
    weights = normal(9, 3, 5, 2, 4)

    def gradient(function):
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(function(*x) * weights), (0, 1, 2)))

    actual = gradient(partial(attend, causal=causal))(q, k, v)
    expected = gradient(partial(jax.nn.dot_product_attention, is_causal=causal))(q, k, v)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

"""The text transformer against NumPy and a published parameter count; causality, precision."""

import math
from functools import cache, partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from net_cases import (
    KEY,
    count_params,
    dtypes_of,
    exact_gelu,
    init_shapes,
    layer_norm,
    random_variables,
    transformer_block,
)

from jaxssl.models import text
from jaxssl.training.optim import optimiser

VOCABULARY, CONTEXT, DIM, LAYERS, HEADS = 11, 6, 8, 2, 2
END = VOCABULARY - 1
SMALL = dict(vocabulary=VOCABULARY, context=CONTEXT, dim=DIM, layers=LAYERS, num_heads=HEADS)
# The end-of-text token at different positions; one text has no padding, one has no words.
TOKENS = jnp.asarray(
    [[9, 3, 4, END, 0, 0], [9, 1, 2, 3, 4, END], [9, 9, END, 0, 0, 0], [END, 0, 0, 0, 0, 0]]
)
ENDS = [3, 5, 2, 0]


# Embeddings and positions are so small that LayerNorm's epsilon matters.
VARIABLES = jax.tree.map_with_path(
    lambda path, x: x / 15 if path[-1].key in ("embedding", "positions") else x,
    random_variables(text.net(**SMALL), TOKENS),
)


@cache
def program(activation="quick_gelu"):
    net = text.net(**SMALL, activation=activation)
    return jax.jit(partial(net.apply, train=False))


ACTIVATIONS = {
    "quick_gelu": lambda u: u / (1 + np.exp(-1.702 * u)),
    "gelu": exact_gelu,
    "gelu_tanh": lambda u: u / (1 + np.exp(-1.5957691216 * (u + 0.044715 * u**3))),
}


def in_numpy(params, tokens, activation):
    """Return features [n, dim] in float64, looping over texts."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    features = []
    for row in np.asarray(tokens):
        x = p["embedding"][row] + p["positions"][: len(row)]
        for layer in range(LAYERS):
            act = ACTIVATIONS[activation]
            x = transformer_block(p[f"Block_{layer}"], x, HEADS, act, 1e-5, causal=True)
        features.append(layer_norm(p["LayerNorm_0"], x, 1e-5)[row.tolist().index(max(row))])
    return np.stack(features)


@pytest.mark.parametrize("activation", text.ACTIVATIONS)
def test_text_transformer_equals_numpy(activation):
    expected = in_numpy(VARIABLES["params"], TOKENS, activation)
    actual = program(activation)(VARIABLES, TOKENS)
    assert (actual.shape, actual.dtype) == ((4, DIM), jnp.float32)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_default_parameter_count_is_that_of_clip_vit_b_32():
    d, matrices_of_block, vectors_of_block = 512, 3 + 1 + 4 + 4, 2 + 2 + 3 + 1 + 4 + 1
    layers = 12 * (matrices_of_block * d**2 + vectors_of_block * d)
    expected = 49408 * d + 77 * d + layers + 2 * d
    # OpenAI's model has 151 277 313 with image tower, two projections and temperature.
    patches_and_class = 3 * 32**2 * 768 + 768 + (7**2 + 1) * 768
    blocks = 12 * (matrices_of_block * 768**2 + vectors_of_block * 768)
    image = patches_and_class + blocks + 2 * 2 * 768 + 768 * 512
    assert expected == 151_277_313 - image - 512 * 512 - 1
    assert count_params(init_shapes(text.net(), 2, 77, dtype=jnp.int32)[0]) == expected


def test_text_features_do_not_depend_on_tokens_after_the_end_of_text():
    features = program()(VARIABLES, TOKENS)
    # Tokens after the end-of-text token, the one with the largest id, have no effect; others have.
    later = np.array(TOKENS)
    for row, end in zip(later, ENDS, strict=True):
        row[end + 1 :] = 7
    np.testing.assert_array_equal(program()(VARIABLES, jnp.asarray(later)), features)
    assert np.abs(program()(VARIABLES, TOKENS.at[0, 1].set(7)) - features)[0].max() > 0.01


def test_text_features_do_not_depend_on_padding():
    short = program()(VARIABLES, TOKENS[:1, :4])
    np.testing.assert_allclose(short, program()(VARIABLES, TOKENS)[:1], rtol=1e-5, atol=1e-6)


def test_token_outside_the_vocabulary_gives_nan():
    actual = program()(VARIABLES, TOKENS.at[2, 1].set(VOCABULARY))
    assert np.isnan(actual[2]).all() and np.isfinite(actual[np.array([0, 1, 3])]).all()


def test_gradients_reach_only_embeddings_of_tokens_up_to_the_end_of_text():
    def gradient(remat):
        apply = text.net(**SMALL, remat=remat).apply
        loss = lambda p: jnp.sum(jnp.cos(apply({"params": p}, TOKENS, train=True)))  # noqa: E731
        return jax.jit(jax.grad(loss))(VARIABLES["params"])

    actual = gradient(False)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, gradient(True), actual)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(actual))
    # Tokens 5 to 8 do not occur, and 0 occurs only after the end.
    moved = np.asarray(actual["embedding"]).any(axis=1)
    assert moved.tolist() == [i in (1, 2, 3, 4, 9, END) for i in range(VOCABULARY)]
    assert np.asarray(actual["positions"]).any(axis=1).all()
    assert all(leaf.any() for leaf in jax.tree.leaves(actual["Block_0"]))


def test_clip_initialisation_follows_the_released_code():
    d, layers = 64, 3
    net = text.TextTransformer(200, 50, d, layers=layers, heads=2)
    params = jax.jit(partial(net.init, train=False))(KEY, TOKENS)["params"]
    block = params["Block_1"]
    deviations = {
        "qkv": d**-0.5,
        "attention_out": d**-0.5 * (2 * layers) ** -0.5,
        "mlp_in": (2 * d) ** -0.5,
        "mlp_out": d**-0.5 * (2 * layers) ** -0.5,
    }
    leaves = [(params["embedding"], 0.02), (params["positions"], 0.01)]
    for leaf, std in leaves + [(block[k]["kernel"], std) for k, std in deviations.items()]:
        z = np.asarray(leaf).ravel() / std
        np.testing.assert_allclose([z.mean(), z.std()], [0, 1], atol=5 / math.sqrt(z.size))
    assert not any(block[name]["bias"].any() for name in deviations)


def test_weight_decay_skips_positions_biases_and_norms():
    zeros = jax.tree.map(jnp.zeros_like, VARIABLES["params"])
    rule = optimiser("sgd", lambda _: 0.1, weight_decay=0.1, momentum=0.9, clip_norm=0)
    updates, _ = jax.jit(lambda p: rule.update(zeros, rule.init(p), p))(VARIABLES["params"])
    leaves = jax.tree.leaves_with_path(updates)
    decayed = {path[-1].key for path, leaf in leaves if leaf.any()}
    assert decayed == {"embedding", "kernel"}


def test_bfloat16_runs_products_in_bfloat16_and_norms_and_softmax_in_float32():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), VARIABLES)
    dtypes = dtypes_of(jax.jit(partial(text.net(**SMALL).apply, train=True)).lower(half, TOKENS))
    assert dtypes["dot_general"] == [{"bf16"}] * (LAYERS * 6)
    # One exponential per softmax; the others belong to the sigmoids of the MLP.
    assert dtypes["exponential"].count({"f32"}) == LAYERS
    assert dtypes["rsqrt"] == [{"f32"}] * (LAYERS * 2 + 1)
    out = program()(half, TOKENS)
    assert out.dtype == jnp.bfloat16
    full = program()(VARIABLES, TOKENS)
    np.testing.assert_allclose(out.astype(jnp.float32), full, atol=0.1, rtol=0.1)

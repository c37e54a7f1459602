"""Vision transformers against published parameter counts, NumPy and formulas; attention."""

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
    normal,
    random_variables,
    transformer_block,
)

from jaxssl.models import vit
from jaxssl.models._layers import attend

# parameters of DeiT's and timm's ViT-Ti/S/B: patches of 16, images of 224 pixels, 1000 classes
PUBLISHED = {"tiny": 5_717_416, "small": 22_050_664, "base": 86_567_656}
SMALL = dict(patch_size=2, dim=8, layers=3, num_heads=2, drop_path=0.6)


def small(**changes):
    return vit.net(**{**SMALL, **changes})


@pytest.mark.parametrize("size", PUBLISHED)
def test_vit_parameter_count_is_the_published_one(size):
    variables, out = init_shapes(vit.net(size=size), 2, 224, 224, 3)
    dim = vit.SIZES[size][0]
    classifier = dim * 1000 + 1000
    learned_positions = (1 + 14 * 14) * dim
    assert count_params(variables) == PUBLISHED[size] - classifier - learned_positions
    assert (out.shape, out.dtype) == ((2, dim), jnp.float32)


def test_vit_with_fixed_positions_accepts_images_of_any_size():
    _, out = init_shapes(small(), 2, 4, 10, 1)
    assert out.shape == (2, 8)
    assert init_shapes(small(), 2, 4, 4, 3)[0] == init_shapes(small(), 2, 12, 6, 3)[0]


def test_vit_initialisation_follows_moco_v3():
    net = vit.net(patch_size=4, dim=64, layers=1, num_heads=2)
    params = jax.jit(partial(net.init, train=False))(KEY, jnp.zeros((1, 4, 4, 3)))["params"]
    block = params["Block_0"]
    bounds = {
        "patches": (params["frozen_patches"]["kernel"], 3 * 4 * 4 + 64),
        "qkv": (block["qkv"]["kernel"], 64 + 64),  # q, k and v: three matrices of 64 x 64
        "attention_out": (block["attention_out"]["kernel"], 64 + 64),
        "mlp_in": (block["mlp_in"]["kernel"], 64 + 256),
        "mlp_out": (block["mlp_out"]["kernel"], 256 + 64),
    }
    for name, (kernel, fans) in bounds.items():
        share = np.asarray(kernel) / math.sqrt(6 / fans)
        assert 0.99 < np.abs(share).max() <= 1.00001, name
        np.testing.assert_allclose(share.std(), 1 / math.sqrt(3), rtol=0.05, err_msg=name)
    assert 0.5e-6 < np.std(params["token"]) < 1.5e-6
    biases = [leaf for path, leaf in jax.tree.leaves_with_path(params) if "bias" in str(path)]
    assert len(biases) == 1 + 4 + 3 and not any(leaf.any() for leaf in biases)


IMAGES = normal(4, 4, 6, 3)
KEYS = jax.random.split(jax.random.key(5), 4)


# Class token, biases and LayerNorm parameters differ from their initial values.
VARIABLES = random_variables(small(), IMAGES)


@cache
def program(train, pool="token"):
    net = small(pool=pool)
    return jax.jit(lambda variables, x, keys: net.apply(variables, x, train=train, keys=keys))


# Sines and cosines of the row, then of the column, of 2 x 3 patches, with d = 8 and two
# frequencies: 10000^0 and 10000^(-1/2).
POSITIONS = [
    [wave(place * rate) for place in place_of for wave in (np.sin, np.cos) for rate in (1, 0.01)]
    for place_of in np.ndindex(2, 3)
]


def in_numpy(params, images, factors):
    """Return tokens [n, t, dim] after the last norm in float64, looping over images."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    out = []
    for image, factor in zip(np.asarray(images, np.float64), factors, strict=True):
        patches = [image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].ravel() for i, j in np.ndindex(2, 3)]
        embedded = np.stack(patches) @ p["frozen_patches"]["kernel"] + p["frozen_patches"]["bias"]
        x = np.concatenate([p["token"][None], embedded + POSITIONS])
        for layer in range(3):
            block = p[f"Block_{layer}"]
            x = transformer_block(block, x, 2, exact_gelu, 1e-6, factors=factor[layer])
        out.append(layer_norm(p["LayerNorm_0"], x, 1e-6))
    return np.stack(out)


def test_vit_forward_pass_equals_numpy():
    expected = in_numpy(VARIABLES["params"], IMAGES, np.ones((4, 3, 2)))
    # Evaluation ignores the keys; training without keys drops nothing.
    token = program(False)(VARIABLES, IMAGES, KEYS)
    mean = program(True, "mean")(VARIABLES, IMAGES, None)
    np.testing.assert_allclose(token, expected[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mean, expected[:, 1:].mean(1), rtol=1e-4, atol=1e-4)


def test_stochastic_depth_scales_the_branches_of_each_layer():
    factors = np.asarray(vit.depth_scales(KEYS, layers=3, drop_path=0.6))
    assert (factors == 0).any() and (factors[:, 1:] > 1).any()
    expected = in_numpy(VARIABLES["params"], IMAGES, factors)[:, 0]
    actual = program(True)(VARIABLES, IMAGES, KEYS)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_stochastic_depth_of_an_image_depends_only_on_its_key():
    whole = program(True)(VARIABLES, IMAGES, KEYS)
    order = np.array([2, 0, 3, 1])
    others = IMAGES[order].at[1:].set(0)
    other_keys = KEYS[order].at[1:].set(jax.random.key(9))
    np.testing.assert_array_equal(program(True)(VARIABLES, others, other_keys)[0], whole[2])
    assert np.abs(program(True)(VARIABLES, IMAGES, KEYS[order]) - whole).max() > 0.1


def test_stochastic_depth_scales_have_linear_rates_and_mean_one():
    n, layers = 4000, 4
    draw = jax.jit(partial(vit.depth_scales, layers=layers, drop_path=0.6))
    scales = np.asarray(draw(jax.random.split(KEY, n)))
    assert (scales.shape, scales.dtype) == ((n, layers, 2), np.float32)
    for layer, rate in enumerate([0, 0.2, 0.4, 0.6]):
        for half in range(2):
            drawn = scales[:, layer, half]
            assert np.all((drawn == 0) | np.isclose(drawn, 1 / (1 - rate), rtol=1e-6))
            deviation = math.sqrt(rate * (1 - rate) / n)
            assert abs((drawn == 0).mean() - rate) <= 4 * deviation
            assert abs(drawn.mean() - 1) <= 4 * deviation / (1 - rate) + 1e-6
    # Drops of different layers and branches are uncorrelated up to sampling error.
    dropped = scales[:, 1:].reshape(n, -1) == 0
    np.testing.assert_allclose(np.corrcoef(dropped.T), np.eye(6), atol=4 / math.sqrt(n))
    assert not np.any(vit.depth_scales(KEYS, layers=1, drop_path=0.6) != 1)


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_patch_embedding_has_no_gradient_but_input_images_have(frozen):
    net = small(layers=1, frozen_patches=frozen)

    def loss(params, x):
        return net.apply({"params": params}, x, train=True)[:, 0].sum()

    def start_and_gradient(x):
        return jax.grad(loss, argnums=(0, 1))(net.init(KEY, x, train=False)["params"], x)

    grads, images = jax.jit(start_and_gradient)(IMAGES)
    patches = grads.pop("frozen_patches" if frozen else "patches")
    assert set(grads) == {"token", "Block_0", "LayerNorm_0"}
    assert all(bool(leaf.any()) != frozen for leaf in patches.values())
    assert images.any() and all(grads["Block_0"]["qkv"]["kernel"].any(axis=0))


def test_bfloat16_runs_products_in_bfloat16_and_norms_and_softmax_in_float32():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (VARIABLES, IMAGES))
    for remat in (False, True):
        net = small(remat=remat)
        actual = dtypes_of(jax.jit(partial(net.apply, train=True)).lower(*half, keys=KEYS))
        assert actual["dot_general"] == [{"bf16"}] * (1 + 3 * 6)
        assert actual["exponential"] == [{"f32"}] * 3
        assert actual["rsqrt"] == [{"f32"}] * (3 * 2 + 1)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention_and_gradients_equal_jax_dot_product_attention(causal):
    q, k, v, weights = (normal(3, 5, 2, 4, seed=seed) for seed in range(4))

    def gradient(function):
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(function(*x) * weights), (0, 1, 2)))

    actual = gradient(partial(attend, causal=causal))(q, k, v)
    expected = gradient(partial(jax.nn.dot_product_attention, is_causal=causal))(q, k, v)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

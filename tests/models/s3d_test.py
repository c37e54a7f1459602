"""S3D against published sizes and NumPy; devices, precision, rematerialisation."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from net_cases import KEY, count_params, init_shapes, intermediate_shapes, normal, random_variables

from jaxssl.models import s3d

# parameters of torchvision's s3d without its classifier of 400 classes
TORCHVISION = 8_320_048 - (1024 * 400 + 400)
BRANCHES = (2, 3, 4, 2, 1, 2)
TINY = partial(s3d.S3D, (2, 3), ((BRANCHES,), (BRANCHES,), (BRANCHES,)))
SHAPE = (4, 5, 17, 18, 2)


def test_s3d_parameter_count_and_feature_size_equal_torchvision():
    variables, out = init_shapes(s3d.net(), 2, 16, 64, 64, 3)
    assert count_params(variables) == TORCHVISION
    assert (out.shape, out.dtype) == ((2, 1024), jnp.float32)


def test_s3d_gating_adds_a_dense_layer_per_temporal_convolution():
    variables, _ = init_shapes(s3d.net(gating=True), 2, 8, 32, 32, 3)
    widths = [64, 192, 128, 32, 192, 96, 208, 48, 224, 64, 256, 64, 288, 64, 320, 128, 320, 128]
    widths += [384, 128]
    assert count_params(variables) == TORCHVISION + sum(w * w + w for w in widths)


@pytest.mark.parametrize(("width", "features"), [(2, 2048), (1 / 8, 128), (1e-9, 4)])
def test_width_scales_all_channels_to_at_least_one(width, features):
    net = s3d.net(width=width)
    assert init_shapes(net, 2, 8, 32, 32, 1)[1].shape == (2, features)
    assert net.stem == (max(1, 64 * width), max(1, 192 * width))


def test_s3d_feature_maps_have_the_published_sizes():
    # The paper's figure has 64 frames of 224 x 224 pixels.
    seen = intermediate_shapes(s3d.net(), 1, 64, 224, 224, 3)
    expected = [(32, 28, c) for c in (256, 480)]
    expected += [(16, 14, c) for c in (512, 512, 512, 528, 832)]
    expected += [(8, 7, c) for c in (832, 1024)]
    actual = [seen[f"Inception_{i}"].shape for i in range(len(expected))]
    assert actual == [(1, t, side, side, c) for t, side, c in expected]
    assert seen["Stem_0"].shape == (1, 32, 28, 28, 192)


def test_s3d_kernels_are_normal_with_the_standard_deviation_of_coclr():
    module = s3d.Separable(32, 3)
    variables = jax.jit(partial(module.init, train=False))(KEY, jnp.zeros((1, 2, 2, 2, 16)))
    kernels = [variables["params"][f"Conv_{i}"]["kernel"] for i in range(2)]
    assert [k.shape for k in kernels] == [(3, 3, 16, 32), (3, 1, 32, 32)]
    z = np.concatenate([np.ravel(k) for k in kernels]) / 0.01
    np.testing.assert_allclose([z.mean(), z.std()], [0, 1], atol=0.05)
    assert np.abs(z).max() > 3  # not truncated at two standard deviations, unlike Flax's default


# Oracles in float64 NumPy


def boxes(x, window, stride, padding, fill):
    """Return [n, t', h', w', c, *window], the values in the window at each position."""
    pads = [(0, 0), *((p, p) for p in padding), (0, 0)]
    padded = np.pad(x, pads, constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, window, axis=(1, 2, 3))
    return every[:, :: stride[0], :: stride[1], :: stride[2]]


def pooled(x, window, stride, padding):
    return boxes(x, window, stride, padding, -np.inf).max(axis=(-3, -2, -1))


def unit(x, variables, i, window, stride=1):
    """Convolution over time, rows and columns, then BatchNorm in evaluation mode and ReLU."""
    params, stats = variables["params"], variables["batch_stats"][f"BatchNorm_{i}"]
    kernel = np.asarray(params[f"Conv_{i}"]["kernel"], np.float64)
    kernel = kernel.reshape(*window, *kernel.shape[2:])
    strides = [1 if side == 1 else stride for side in window]
    seen = boxes(x, window, strides, [side // 2 for side in window], 0)
    y = np.einsum("nxyzcijk,ijkcd->nxyzd", seen, kernel)
    y = (y - stats["mean"]) / np.sqrt(np.asarray(stats["var"], np.float64) + 1e-5)
    norm = params[f"BatchNorm_{i}"]
    return np.maximum(y * norm["scale"] + norm["bias"], 0)


def separable(x, variables, side, stride=1, gating=False):
    x = unit(x, variables, 0, (1, side, side), stride)
    x = unit(x, variables, 1, (side, 1, 1), stride)
    if gating:
        dense = variables["params"]["Dense_0"]
        logits = x.mean(axis=(1, 2, 3)) @ np.asarray(dense["kernel"], np.float64) + dense["bias"]
        x = x / (1 + np.exp(-logits))[:, None, None, None]
    return x


def below(variables, name):
    return {kind: tree[name] for kind, tree in variables.items()}


def positive_variables(module, x):
    """Random variables with positive variances, scales and biases, so that ReLUs stay active."""
    return jax.tree.map_with_path(
        lambda path, leaf: jnp.abs(leaf) if path[-1].key in ("var", "scale", "bias") else leaf,
        random_variables(module, x),
    )


def applied(module, shape):
    """Return random variables, videos, and the output in evaluation mode."""
    x = normal(*shape)
    variables = positive_variables(module, x)
    out = jax.jit(partial(module.apply, train=False))(variables, x)
    return jax.device_get(variables), np.asarray(x, np.float64), out


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [
        ((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
        ((2, 2, 2), (2, 2, 2), (0, 0, 0)),
        ((3, 3, 3), (1, 1, 1), (1, 1, 1)),
    ],
)
def test_max_pool_equals_numpy_and_ignores_padding(window, stride, padding):
    x = -1 - jnp.abs(normal(2, 4, 7, 5, 3))  # negative, so that a padding of 0 would be visible
    actual = jax.jit(s3d.max_pool, static_argnums=(1, 2, 3))(x, window, stride, padding)
    expected = pooled(np.asarray(x), window, stride, padding)
    np.testing.assert_array_equal(actual, expected)
    # The gradient of the sum counts the windows in which a value is the maximum.
    counts = jax.jit(jax.grad(lambda x: jnp.sum(s3d.max_pool(x, window, stride, padding))))(x)
    largest = [np.count_nonzero(expected == value) for value in np.asarray(x).ravel()]
    np.testing.assert_array_equal(np.ravel(counts), largest)


def inception(x, variables, branches, gating=False):
    one, two_in, _, three_in, *_ = branches
    y = unit(x, variables, 0, (1, 1, 1))
    second, third = y[..., one : one + two_in], y[..., one + two_in :]
    assert third.shape[-1] == three_in
    branches = [
        y[..., :one],
        separable(second, below(variables, "Separable_0"), 3, 1, gating),
        separable(third, below(variables, "Separable_1"), 3, 1, gating),
        unit(pooled(x, (3, 3, 3), (1, 1, 1), (1, 1, 1)), variables, 1, (1, 1, 1)),
    ]
    return np.concatenate(branches, axis=-1)


@pytest.mark.parametrize("gating", [False, True])
def test_s3d_equals_numpy(gating):
    variables, x, out = applied(TINY(gating=gating), (2, 9, 33, 17, 3))
    stem = below(variables, "Stem_0")
    half = (1, 3, 3), (1, 2, 2), (0, 1, 1)
    x = pooled(separable(x, below(stem, "Separable_0"), 7, 2, gating), *half)
    x = unit(x, stem, 0, (1, 1, 1))
    x = pooled(separable(x, below(stem, "Separable_1"), 3, 1, gating), *half)
    for i, pool in enumerate([None, (3, 1), (2, 0)]):
        if pool is not None:
            x = pooled(x, (pool[0],) * 3, (2,) * 3, (pool[1],) * 3)
        x = inception(x, below(variables, f"Inception_{i}"), BRANCHES, gating)
    np.testing.assert_allclose(out, x.mean(axis=(1, 2, 3)), rtol=1e-4, atol=1e-4)


# Properties that S3D shares with all networks


def test_s3d_factory_passes_gating_and_remat_to_the_module():
    nets = s3d.net(), s3d.net(gating=True, remat=True)
    assert [(net.gating, net.remat) for net in nets] == [(False, False), (True, True)]


def test_s3d_computes_in_the_dtype_of_parameters_and_inputs():
    net = TINY(gating=True)
    half = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16))
    variables, _ = init_shapes(net, *SHAPE)

    def loss(params, stats, x):
        variables = {"params": params, "batch_stats": stats}
        out, updated = net.apply(variables, x, train=True, mutable=["batch_stats"])
        return jnp.sum(out), (out, updated)

    grads, (out, updated) = jax.eval_shape(
        jax.grad(loss, argnums=(0, 2), has_aux=True),
        half(variables["params"]),
        variables["batch_stats"],
        half(jax.ShapeDtypeStruct(SHAPE, jnp.float32)),
    )
    assert {leaf.dtype for leaf in jax.tree.leaves([grads, out])} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(updated)} == {jnp.dtype("float32")}

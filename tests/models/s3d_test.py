"""S3D against published sizes and NumPy; devices, precision, rematerialisation."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from net_cases import KEY, count_params, init_shapes, intermediate_shapes, normal, random_variables

from jaxssl import distributed
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


@pytest.mark.parametrize("channels", [1, 2])
def test_s3d_accepts_flow_and_grey_videos(channels):
    variables, out = init_shapes(s3d.net(), 2, 8, 32, 32, channels)
    assert count_params(variables) == TORCHVISION - (3 - channels) * 64 * 7 * 7
    assert out.shape == (2, 1024)


def test_gating_adds_a_dense_layer_per_temporal_convolution():
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


@pytest.mark.parametrize("shape", [(5, 17, 17), (8, 32, 32), (16, 32, 48)])
def test_s3d_keeps_at_least_one_position_for_small_videos(shape):
    seen = intermediate_shapes(TINY(), 2, *shape, 1)
    left = -(-shape[0] // 4) // 2, *(-(-side // 16) // 2 for side in shape[1:])
    assert min(left) == 1
    assert seen["Inception_2"].shape == (2, *left, 9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: s3d.net(width=0), "net.width must be > 0, got 0"),
        (
            lambda: init_shapes(s3d.net(), 1, 4, 32, 32, 3),
            "5 frames of 17 x 17 .* got 4 of 32 x 32",
        ),
        (
            lambda: init_shapes(s3d.net(), 1, 8, 32, 16, 3),
            "5 frames of 17 x 17 .* got 8 of 32 x 16",
        ),
    ],
)
def test_invalid_width_and_too_small_videos_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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


@pytest.mark.parametrize(
    ("side", "stride", "gating"), [(3, 1, False), (3, 1, True), (7, 2, False), (7, 2, True)]
)
def test_separable_convolution_equals_numpy(side, stride, gating):
    module = s3d.Separable(4, side, stride, gating)
    variables, x, out = applied(module, (2, 5, 6, 9, 3))
    expected = separable(x, variables, side, stride, gating)
    assert out.shape == expected.shape == (2, *(-(-a // stride) for a in (5, 6, 9)), 4)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def inception(x, variables, branches, gating=False):
    one, two_in, _, three_in, *_ = branches
    y = unit(x, variables, 0, (1, 1, 1))
    second, third = y[..., one : one + two_in], y[..., one + two_in :]
    assert third.shape[-1] == three_in
    return np.concatenate(
        [
            y[..., :one],
            separable(second, below(variables, "Separable_0"), 3, 1, gating),
            separable(third, below(variables, "Separable_1"), 3, 1, gating),
            unit(pooled(x, (3, 3, 3), (1, 1, 1), (1, 1, 1)), variables, 1, (1, 1, 1)),
        ],
        axis=-1,
    )


@pytest.mark.parametrize("gating", [False, True])
def test_inception_block_equals_numpy(gating):
    branches = (3, 2, 4, 1, 2, 3)
    variables, x, out = applied(s3d.Inception(branches, gating), (2, 3, 4, 5, 4))
    assert out.shape == (2, 3, 4, 5, 3 + 4 + 2 + 3)
    expected = inception(x, variables, branches, gating)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


def test_s3d_equals_numpy():
    variables, x, out = applied(TINY(), (2, 9, 33, 17, 3))
    stem = below(variables, "Stem_0")
    half = (1, 3, 3), (1, 2, 2), (0, 1, 1)
    x = pooled(separable(x, below(stem, "Separable_0"), 7, 2), *half)
    x = unit(x, stem, 0, (1, 1, 1))
    x = pooled(separable(x, below(stem, "Separable_1"), 3), *half)
    for i, pool in enumerate([None, (3, 1), (2, 0)]):
        if pool is not None:
            x = pooled(x, (pool[0],) * 3, (2,) * 3, (pool[1],) * 3)
        x = inception(x, below(variables, f"Inception_{i}"), BRANCHES)
    np.testing.assert_allclose(out, x.mean(axis=(1, 2, 3)), rtol=1e-4, atol=1e-4)


# Properties of all networks


def test_evaluation_does_not_depend_on_the_other_videos():
    net, x = TINY(gating=True), normal(*SHAPE)
    variables = positive_variables(net, x)
    evaluate = jax.jit(partial(net.apply, train=False))
    whole = evaluate(variables, x)
    for i in range(len(x)):
        np.testing.assert_allclose(evaluate(variables, x[i : i + 1])[0], whole[i], rtol=1e-5)
    assert np.ptp(whole, axis=0).max() > 1e-3


@cache
def step(remat, gating=True):
    """Return gradients of parameters and videos, features and statistics in training."""
    net, x = TINY(gating=gating, remat=remat), normal(*SHAPE)
    variables = positive_variables(net, x)
    params, stats = variables["params"], variables["batch_stats"]

    def loss(params, x):
        variables = {"params": params, "batch_stats": stats}
        out, updated = net.apply(variables, x, train=True, mutable=["batch_stats"])
        return jnp.sum(jnp.cos(out)), (out, updated)

    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)


@pytest.mark.long
def test_gradients_are_finite_and_reach_all_parameters_and_frames():
    params, x = step(remat=False)[0]
    for leaf in jax.tree.leaves(params):
        assert np.isfinite(leaf).all() and np.any(leaf)
    assert np.isfinite(x).all()
    assert np.abs(x).max(axis=(0, 2, 3, 4)).min() > 0


@pytest.mark.long
def test_remat_changes_neither_values_nor_gradients():
    x = SHAPE[1:]
    assert init_shapes(TINY(), 2, *x) == init_shapes(TINY(remat=True), 2, *x)

    def close(actual, expected):
        # The entries are sums with cancellation, so rounding scales with the largest entry.
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * scale)

    jax.tree.map(close, step(remat=True), step(remat=False))


def test_s3d_factory_passes_gating_and_remat_to_the_module():
    net = s3d.net(gating=True, remat=True)
    assert (net.gating, net.remat) == (True, True)
    plain = s3d.net()
    assert (plain.gating, plain.remat) == (False, False)


def test_batch_norm_uses_the_statistics_of_all_devices():
    module = s3d.Separable(3, 3, gating=True)
    # The means of the devices' videos differ, so local statistics would be visible.
    x = normal(4, 2, 3, 3, 2) + jnp.arange(4.0).reshape(4, 1, 1, 1, 1)
    variables = positive_variables(module, x)

    def features(devices, axis_name):
        def apply(variables, x):
            return module.apply(
                variables, x, train=True, axis_name=axis_name, mutable=["batch_stats"]
            )[0]

        mesh = distributed.make_mesh(jax.devices()[:devices])
        mapped = distributed.spmd(apply, mesh, (P(), P("data")), P("data"))
        return jax.device_get(jax.jit(mapped)(variables, x))

    whole = features(1, None)
    np.testing.assert_allclose(features(4, "data"), whole, rtol=1e-4, atol=1e-5)
    assert np.abs(features(4, None) - whole).max() > 0.1


def test_remat_does_not_repeat_the_all_reduce_of_batch_norm():
    def reductions(remat):
        net = s3d.S3D((1, 1), (((1,) * 6,),), remat=remat)
        variables, _ = init_shapes(net, *SHAPE)

        def gradient(variables, x):
            def out(params):
                out, _ = net.apply(
                    {**variables, "params": params},
                    x,
                    train=True,
                    axis_name="data",
                    mutable=["batch_stats"],
                )
                return out.sum()

            return jax.grad(out)(variables["params"])

        mesh = distributed.make_mesh(jax.devices()[:2])
        mapped = distributed.spmd(gradient, mesh, (P(), P("data")), P())
        x = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
        return jax.jit(mapped).lower(variables, x).as_text().count("all_reduce")

    assert reductions(True) == reductions(False) > 0


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

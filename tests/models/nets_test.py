"""ResNets and convnets against published sizes; BatchNorm over devices; half precision."""

from functools import cache, partial

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from net_cases import KEY, count_params, init_shapes, intermediate_shapes, normal, random_variables

from jaxssl import distributed
from jaxssl.models import clip_resnet, convnet, heads, resnet, s3d, vit
from jaxssl.models._layers import MaskedBatchNorm, batch_norm_groups
from jaxssl.models.encoder import Encoder, embed, init

# parameters of torchvision's ResNets with a classifier of 1000 classes
TORCHVISION = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160}
FEATURES = {18: 512, 34: 512, 50: 2048, 101: 2048}
STEM_DIFFERENCE = 64 * 3 * (7 * 7 - 3 * 3)  # parameters saved by a 3x3 instead of a 7x7 convolution


@pytest.mark.parametrize(
    ("depth", "stem"), [(18, "cifar"), (50, "cifar"), *((d, "imagenet") for d in TORCHVISION)]
)
def test_resnet_parameter_count_and_feature_size_equal_torchvision(depth, stem):
    size = {"cifar": 32, "imagenet": 224}[stem]
    variables, out = init_shapes(resnet.net(depth=depth, stem=stem), 2, size, size, 3)
    features = FEATURES[depth]
    saved = STEM_DIFFERENCE if stem == "cifar" else 0
    assert count_params(variables) + features * 1000 + 1000 == TORCHVISION[depth] - saved
    assert (out.shape, out.dtype) == ((2, features), jnp.float32)


def test_resnet_kernels_are_normal_with_fan_out_variance():
    # Kaiming's variance is 2 / (9 * output channels). Of normal values, 0.27 % lie beyond three
    # standard deviations. None would with Flax's default, which is truncated at two.
    net = resnet.ResNet(stages=(1, 1), bottleneck=False, stem="cifar", width=32)
    variables = jax.jit(partial(net.init, train=False))(KEY, jnp.zeros((1, 4, 4, 3)))
    kernel = variables["params"]["Block_1"]["Conv_0"]["kernel"]
    assert kernel.shape == (3, 3, 32, 64)
    z = np.asarray(kernel).ravel() / np.sqrt(2 / (9 * 64))
    np.testing.assert_allclose([z.mean(), z.std()], [0, 1], atol=0.03)
    assert 0.001 < (np.abs(z) > 3).mean() < 0.005


@pytest.mark.parametrize("zero_init", [True, False])
@pytest.mark.parametrize("bottleneck", [True, False])
def test_zero_init_makes_a_block_the_identity_at_initialisation(bottleneck, zero_init):
    block = resnet.Block(3, 1, bottleneck, zero_init)
    x = jnp.abs(normal(2, 4, 4, 12 if bottleneck else 3))

    def start(x):
        variables = block.init(KEY, x, train=False)
        return block.apply(variables, x, train=True, mutable=["batch_stats"])[0], variables

    out, variables = jax.jit(start)(x)
    assert bool((out == x).all()) == zero_init
    last = max(variables["params"], key=lambda name: (name[:9] == "BatchNorm", name))
    zeros = {k: not v["scale"].any() for k, v in variables["params"].items() if "scale" in v}
    assert zeros == {k: zero_init and k == last for k in zeros}


def test_zero_init_residual_setting_applies_to_every_block():
    assert resnet.net(zero_init_residual=True).zero_init_residual
    assert not resnet.net().zero_init_residual
    net = resnet.ResNet((2, 1), bottleneck=True, stem="cifar", width=2, zero_init_residual=True)
    variables = jax.jit(partial(net.init, train=False))(KEY, jnp.zeros((1, 4, 4, 3)))
    blocks = [v for k, v in variables["params"].items() if k.startswith("Block")]
    assert len(blocks) == 3
    assert all(not block["BatchNorm_2"]["scale"].any() for block in blocks)


@pytest.mark.parametrize(
    ("shape", "strides", "padding"),
    [
        pytest.param((2, 16, 16, 1), (2, 2), ((1, 1), (1, 1)), marks=pytest.mark.long),
        ((3, 7, 10, 4), (2, 2), ((1, 1), (1, 1))),
        pytest.param((2, 9, 8, 3), (3, 1), ((0, 2), (1, 0)), marks=pytest.mark.long),
        pytest.param((2, 5, 6, 3), (1, 1), ((1, 1), (1, 1)), marks=pytest.mark.long),
    ],
)
def test_strided_conv_equals_lax_convolution_with_gradients(shape, strides, padding):
    layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    x, kernel = normal(*shape), normal(3, 3, shape[3], 5, seed=1)

    def convolve(x, kernel):
        return lax.conv_general_dilated(x, kernel, strides, padding, **layout)

    def ours(x, kernel):
        return convnet.strided_conv(x, kernel, strides, padding, **layout)

    expected, pull_expected = jax.vjp(convolve, x, kernel)
    value, pull = jax.vjp(ours, x, kernel)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    cotangent = normal(*expected.shape, seed=2)
    for ours_, expected_ in zip(pull(cotangent), pull_expected(cotangent), strict=True):
        np.testing.assert_allclose(ours_, expected_, rtol=1e-5, atol=1e-5 * np.abs(expected_).max())


@pytest.mark.parametrize(("platform", "convolutions"), [("cpu", 0), ("cuda", 2), ("tpu", 2)])
def test_strided_convolutions_are_matrix_products_on_cpus_only(platform, convolutions):
    net = convnet.net(widths=(4, 8), strides=(2, 2))
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
    variables, _ = init_shapes(net, *images.shape)
    apply = jax.jit(partial(net.apply, train=False))
    exported = jax.export.export(apply, platforms=[platform])(variables, images)
    assert exported.mlir_module().count("stablehlo.convolution") == convolutions


def test_convnet_sizes_follow_from_widths_and_strides():
    net = convnet.net(widths=(5, 7, 6), strides=(1, 2, 2))
    variables, out = init_shapes(net, 2, 9, 12, 3)
    weights = 9 * (3 * 5 + 5 * 7 + 7 * 6)
    norms = 2 * (5 + 7 + 6)
    assert count_params(variables) == weights + norms
    seen = intermediate_shapes(net, 2, 9, 12, 3)
    shapes = [seen[f"Conv_{i}"].shape for i in range(3)]
    assert shapes == [(2, 9, 12, 5), (2, 5, 6, 7), (2, 3, 3, 6)]
    assert out.shape == (2, 6)


MODULES = {
    "convnet": (convnet.net(widths=(3, 4), strides=(2, 1)), (16, 6, 6, 1)),
    "resnet": (resnet.ResNet((1,), bottleneck=False, stem="cifar", width=8), (16, 4, 4, 1)),
    "projector": (heads.mlp(proj_hidden_dim=6, proj_output_dim=3), (16, 5)),
    "fixed": (heads.mlp(proj_output_dim=3, proj_layers=1, proj_last_norm="bn_fixed"), (16, 5)),
    "clip_resnet": (clip_resnet.Block(3, 1), (16, 4, 4, 2)),
    "s3d": (s3d.Separable(3, 3, gating=True), (16, 2, 3, 3, 2)),
}


class Masked(nn.Module):
    """Normalise rows, and leave those out whose first entry is not positive."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None):
        return MaskedBatchNorm(not train, axis_name)(x, x[:, 0] > 0)


GROUPED = {
    "convnet": MODULES["convnet"],
    "resnet": (resnet.ResNet((1,), False, "cifar", width=8, remat=True), (16, 4, 4, 1)),
    "masked": (Masked(), (16, 5)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_batch_norm_in_groups_uses_the_statistics_of_each_group(name):
    module, shape = GROUPED[name]
    x = normal(*shape) + jnp.arange(16.0).reshape(16, *[1] * (len(shape) - 1)) / 8
    variables = random_variables(module, x)
    run = partial(module.apply, variables, train=True, mutable=["batch_stats"])

    def apply(x):
        with batch_norm_groups(2, "data"):
            out, state = run(x, axis_name="data")
        return out, jax.tree.map(lambda s: s[None], state["batch_stats"])

    out, stats = jax.jit(distributed.spmd(apply, distributed.make_mesh(), P("data"), P("data")))(x)
    alone = [jax.jit(run)(x[i : i + 4]) for i in range(0, 16, 4)]
    expected = jnp.concatenate([part for part, _ in alone])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    for actual, *parts in zip(*map(jax.tree.leaves, (stats, *(s for _, s in alone))), strict=True):
        np.testing.assert_allclose(actual, np.repeat(parts, 2, axis=0), rtol=1e-4, atol=1e-5)


@cache
def trained(name, axis_name, devices=8):
    """Return the output and statistics in training, with the batch split over devices."""
    module, shape = MODULES[name]
    # The means of the devices' examples differ, so local statistics would be visible.
    x = normal(*shape) + jnp.arange(16.0).reshape(16, *[1] * (len(shape) - 1))

    def apply(variables, x):
        out, state = module.apply(
            variables, x, train=True, axis_name=axis_name, mutable=["batch_stats"]
        )
        # Return the statistics of every device, to see whether they agree.
        return out, jax.tree.map(lambda s: s[None], state["batch_stats"])

    mesh = distributed.make_mesh(jax.devices()[:devices])
    split = distributed.spmd(apply, mesh, (P(), P("data")), (P("data"), P("data")))
    return jax.device_get(jax.jit(split)(random_variables(module, x), x))


@pytest.mark.parametrize("name", MODULES)
def test_batch_norm_uses_the_statistics_of_all_devices(name):
    (out, stats), (expected, expected_stats) = trained(name, "data"), trained(name, None, 1)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    for actual, whole in zip(jax.tree.leaves(stats), jax.tree.leaves(expected_stats), strict=True):
        assert actual.shape[0] == 8
        np.testing.assert_allclose(actual, np.repeat(whole, 8, axis=0), rtol=1e-4, atol=1e-5)


def test_running_statistics_have_momentum_0_9_and_serve_evaluation():
    net = convnet.net(widths=(3,), strides=(1,))
    x = normal(4, 5, 5, 2)
    variables = jax.jit(partial(net.init, train=False))(KEY, x)
    _, state = jax.jit(partial(net.apply, train=True, mutable=["batch_stats"]))(variables, x)
    kernel = np.asarray(variables["params"]["Conv_0"]["kernel"], np.float64)
    padded = np.pad(np.asarray(x, np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    maps = sum(padded[:, i : i + 5, j : j + 5] @ kernel[i, j] for i, j in np.ndindex(3, 3))
    stats = state["batch_stats"]["BatchNorm_0"]
    mean, var = 0.1 * maps.mean((0, 1, 2)), 0.9 + 0.1 * maps.var((0, 1, 2))
    np.testing.assert_allclose(stats["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(stats["var"], var, rtol=1e-5)
    out = jax.jit(partial(net.apply, train=False))({**variables, **state}, x)
    expected = np.maximum((maps - mean) / np.sqrt(var + 1e-5), 0).mean((1, 2))
    np.testing.assert_allclose(out, expected, atol=1e-5)


PRECISIONS = {
    "convnet": MODULES["convnet"],
    "resnet": (resnet.ResNet((1,), True, "imagenet", width=4), (8, 8, 8, 3)),
    "vit": (vit.net(patch_size=2, dim=8, layers=2, num_heads=2, drop_path=0.5), (4, 4, 6, 3)),
    "mlp": (heads.mlp(proj_hidden_dim=8, proj_output_dim=4, proj_last_norm="bn"), (16, 5)),
    "dino": (heads.dino(proj_hidden_dim=8, proj_bottleneck_dim=4, proj_output_dim=9), (4, 5)),
}


SLOW = [pytest.param(name, marks=pytest.mark.long) for name in ("convnet", "resnet", "dino")]


@pytest.mark.parametrize("name", ["vit", "mlp", *SLOW])
def test_networks_compute_in_the_dtype_of_parameters_and_inputs(name):
    module, shape = PRECISIONS[name]
    x = normal(*shape)
    variables = dict(random_variables(module, x))
    params, stats = variables.pop("params"), variables
    extra = {"keys": jax.random.split(KEY, shape[0])} if name == "vit" else {}

    def loss(params, x):
        how = {"train": True, "mutable": ["batch_stats"], **extra}
        out, updated = module.apply({"params": params, **stats}, x, **how)
        weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        return jnp.sum(out.astype(jnp.float32) * weights), (out, updated)

    # Round to bfloat16, so that both dtypes start from the same numbers.
    params, x = jax.tree.map(lambda leaf: jax.lax.reduce_precision(leaf, 8, 7), (params, x))
    actual = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        cast = partial(jax.tree.map, lambda leaf, dtype=dtype: leaf.astype(dtype))
        step = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
        grads, (out, updated) = step(cast(params), cast(x))
        assert {leaf.dtype for leaf in jax.tree.leaves([grads, out])} == {jnp.dtype(dtype)}
        assert {leaf.dtype for leaf in jax.tree.leaves(updated)} <= {jnp.dtype(jnp.float32)}
        actual[dtype] = [
            np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
            for tree in (out, grads)
        ]
    # Gradients get a larger bound: they jump where rounding flips a ReLU or a maximum.
    for full, half, bound in zip(*actual.values(), (0.02, 0.1), strict=True):
        assert np.linalg.norm(half - full) < bound * np.linalg.norm(full)


def test_pooled_shortcut_keeps_the_dtype_of_bfloat16_images():
    net = resnet.ResNet((1, 1), False, "cifar", width=4, pooled_shortcut=True)
    images = jax.ShapeDtypeStruct((2, 7, 7, 3), jnp.float32)
    variables = jax.eval_shape(partial(net.init, train=False), KEY, images)
    cast = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16)  # noqa: E731
    params, half = jax.tree.map(cast, (variables["params"], images))
    jaxpr = jax.make_jaxpr(partial(net.apply, train=False))({**variables, "params": params}, half)
    kernels = [e.invars for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert len(kernels) == 6
    assert {x.aval.dtype for pair in kernels for x in pair} == {jnp.dtype(jnp.bfloat16)}


def test_bf16_gradients_of_the_chunks_of_a_batch_are_added_in_float32():
    encoder = Encoder(convnet.net(widths=(4,), strides=(1,)), heads.mlp(proj_layers=1))
    encoder = encoder._replace(precision="bf16", num_chunks=4)
    images = jnp.zeros((2, 8, 4, 4, 3))
    params, stats, _ = jax.eval_shape(partial(init, encoder, KEY), [images])
    params, stats = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (params, stats))

    def loss(params):
        index = jnp.arange(8)
        return embed(encoder, params, stats, [images], index, key=None, axis_name=None).z.sum()

    equations = jax.make_jaxpr(jax.grad(loss))(params).jaxpr.eqns
    scans = [e for e in equations if e.primitive.name == "scan"]
    results = [v.aval for e in scans for v in e.outvars]
    sums = [x for x in results if x.shape == (3, 3, 3, 4)]  # the gradient of the first kernel
    assert sums and {x.dtype for x in sums} == {jnp.dtype("float32")}

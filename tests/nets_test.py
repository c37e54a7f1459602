"""Sizes of networks against published counts and arithmetic; BatchNorm over several devices."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxssl import parallel
from jaxssl.nets import convnet, resnet
from jaxssl.nets.heads import Projector

# torchvision's ResNets, less their classifiers of 1000 classes: 11 689 512 - 513 000 and so on.
TORCHVISION = {18: 11_176_512, 34: 21_284_672, 50: 23_508_032}
STEM_DIFFERENCE = 64 * 3 * (7 * 7 - 3 * 3)  # a 3x3 convolution in place of the 7x7
KEY = jax.random.key(0)


def shapes(net, *shape, train=False):
    """Variables, output and the output of every module, as shapes: nothing is computed."""

    def apply(images):
        variables = net.init(KEY, images, train=False)
        mutable = ["intermediates", "batch_stats"] if train else ["intermediates"]
        out, state = net.apply(
            variables, images, train=train, mutable=mutable, capture_intermediates=True
        )
        seen = {
            name: value["__call__"][0]
            for name, value in state["intermediates"].items()
            if name != "__call__"
        }
        return variables, out, seen

    return jax.eval_shape(apply, jax.ShapeDtypeStruct(shape, jnp.float32))


def count(variables):
    return sum(x.size for x in jax.tree.leaves(variables["params"]))


@pytest.mark.parametrize("stem", resnet.STEMS)
@pytest.mark.parametrize("depth", TORCHVISION)
def test_a_resnet_has_the_parameters_and_features_of_torchvisions(depth, stem):
    size = {"cifar": 32, "imagenet": 224}[stem]
    variables, out, _ = shapes(resnet.net(depth=depth, stem=stem), 2, size, size, 3)
    saved = STEM_DIFFERENCE if stem == "cifar" else 0
    assert count(variables) == TORCHVISION[depth] - saved
    assert (out.shape, out.dtype) == ((2, 2048 if depth == 50 else 512), jnp.float32)


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(
    ("stem", "size", "after_stem", "sides"),
    [("cifar", 32, 32, [32, 16, 8, 4]), ("imagenet", 224, 112, [56, 28, 14, 7])],
)
def test_the_stem_and_each_stage_reduce_the_image_as_they_should(
    depth, stem, size, after_stem, sides
):
    _, _, seen = shapes(resnet.net(depth=depth, stem=stem), 1, size, size, 3, train=True)
    assert seen["Conv_0"].shape == (1, after_stem, after_stem, 64)
    stages, bottleneck = resnet.DEPTHS[depth]
    expansion = 4 if bottleneck else 1
    expected = [
        (1, side, side, 64 * 2**stage * expansion)
        for stage, (side, blocks) in enumerate(zip(sides, stages, strict=True))
        for _ in range(blocks)
    ]
    assert [seen[f"Block_{i}"].shape for i in range(len(expected))] == expected
    assert f"Block_{len(expected)}" not in seen


def test_a_resnet_takes_grey_images():
    variables, out, _ = shapes(resnet.net(depth=18, stem="cifar"), 2, 8, 8, 1)
    assert count(variables) == TORCHVISION[18] - STEM_DIFFERENCE - 64 * 2 * 3 * 3
    assert out.shape == (2, 512)


def test_a_convnet_has_the_parameters_and_sizes_that_its_widths_and_strides_give():
    net = convnet.net(widths=(5, 7, 6), strides=(1, 2, 2))
    variables, out, seen = shapes(net, 2, 9, 12, 3)
    weights = 9 * (3 * 5 + 5 * 7 + 7 * 6)
    norms = 2 * (5 + 7 + 6)
    assert count(variables) == weights + norms
    sizes = [seen[f"Conv_{i}"].shape for i in range(3)]
    assert sizes == [(2, 9, 12, 5), (2, 5, 6, 7), (2, 3, 3, 6)]
    assert out.shape == (2, 6)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_projector_has_as_many_layers_as_asked_for(layers):
    variables, out, _ = shapes(Projector(hidden_dim=7, output_dim=4, layers=layers), 3, 5)
    expected = {1: 5 * 4 + 4, 2: 5 * 7 + 14 + 7 * 4 + 4, 3: 5 * 7 + 14 + 49 + 14 + 7 * 4 + 4}
    assert count(variables) == expected[layers]
    assert out.shape == (3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resnet.net(depth=19), r"net.depth must be one of \[18, 34, 50\], got 19"),
        (lambda: resnet.net(stem="cifer"), "net.stem must be one of .*'cifar'.* got 'cifer'"),
        (
            lambda: convnet.net(widths=(8, 16), strides=(2,)),
            r"net.widths \(8, 16\) and net.strides \(2,\) must have equal lengths",
        ),
    ],
)
def test_wrong_settings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


MODULES = {
    "convnet": (convnet.net(widths=(3, 4), strides=(2, 1)), (16, 6, 6, 1)),
    "resnet": (resnet.ResNet(stages=(1,), bottleneck=False, stem="cifar"), (16, 4, 4, 1)),
    "projector": (Projector(hidden_dim=6, output_dim=3, layers=2), (16, 5)),
}


def split_and_whole(name, axis_name, devices=8):
    """Output and statistics in training, split over devices and on one."""
    module, shape = MODULES[name]
    # Each device's examples differ from the others': local statistics would show.
    x = np.random.default_rng(0).normal(size=shape) + np.arange(16).reshape(
        16, *[1] * (len(shape) - 1)
    )
    x = jnp.asarray(x, jnp.float32)
    variables = jax.jit(partial(module.init, train=False))(KEY, x)

    def apply(variables, x, axis_name=None):
        out, state = module.apply(
            variables, x, train=True, axis_name=axis_name, mutable=["batch_stats"]
        )
        # A replicated result shows one device's value only; this shows all of them.
        return out, jax.tree.map(lambda s: s[None], state["batch_stats"])

    mesh = parallel.make_mesh(jax.devices()[:devices])
    split = parallel.spmd(
        partial(apply, axis_name=axis_name), mesh, (P(), P("data")), (P("data"), P("data"))
    )
    return jax.jit(split)(variables, x), jax.jit(apply)(variables, x)


@pytest.mark.parametrize("name", MODULES)
def test_batch_norm_trains_with_the_statistics_of_all_devices(name):
    (out, stats), (expected, expected_stats) = split_and_whole(name, "data")
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    for found, whole in zip(jax.tree.leaves(stats), jax.tree.leaves(expected_stats), strict=True):
        assert found.shape[0] == 8
        np.testing.assert_allclose(found, np.repeat(whole, 8, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_without_an_axis_batch_norm_would_train_with_local_statistics(name):
    (out, _), (expected, _) = split_and_whole(name, None)
    assert np.abs(out - expected).max() > 0.1


def test_running_statistics_move_by_a_tenth_and_evaluation_uses_them():
    net = convnet.net(widths=(3,), strides=(1,))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5, 5, 2)), jnp.float32)
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

"""CLIP's ResNets: published parameter counts, shapes and initial values.

`pretrained/public_encoders_test.py` compares features with those of open_clip.
"""

import math
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from net_cases import KEY, count_params, init_shapes, intermediate_shapes, normal

from jaxssl.models import clip_resnet

# OpenAI's models: (image side, parameters of the image tower, of the whole model, width and output
# dimension of the text tower)
PUBLISHED = {
    "50": (224, 38_316_896, 102_007_137, 512, 1024),
    "101": (224, 56_259_936, 119_688_033, 512, 512),
    "50x4": (288, 87_137_080, 178_300_601, 640, 640),
}
TINY = dict(stages=(1,), width=4, heads=2, dim=3, stem="cifar")
IMAGES = normal(2, 8, 8, 3)


def tiny(**changes):
    return clip_resnet.ClipResNet(**{**TINY, **changes})


@pytest.mark.parametrize("size", PUBLISHED)
def test_clip_resnet_parameter_count_and_feature_size_equal_openai(size):
    side, image, whole, d, dim = PUBLISHED[size]
    text = (49408 + 77) * d + 12 * (12 * d**2 + 13 * d) + 2 * d
    assert image == whole - text - d * dim - 1
    variables, out = init_shapes(clip_resnet.net(size=size), 2, side, side, 3)
    assert count_params(variables) == image
    assert (out.shape, out.dtype) == ((2, dim), jnp.float32)
    assert variables["params"]["AttentionPool_0"]["positions"].shape[0] == 1 + (side // 32) ** 2


def test_default_number_of_heads_gives_head_dimension_64():
    heads = {size: clip_resnet.net(size=size).heads for size in PUBLISHED}
    assert heads == {"50": 32, "101": 32, "50x4": 40}
    assert clip_resnet.net(width=8).heads == 4 and clip_resnet.net(num_heads=8).heads == 8


@pytest.mark.parametrize(
    ("stem", "side", "stem_sides", "sides"),
    [("imagenet", 64, [32, 32, 32], [16, 8, 4, 2]), ("cifar", 32, [32] * 3, [32, 16, 8, 4])],
)
def test_stem_and_stages_give_feature_maps_of_the_expected_shapes(stem, side, stem_sides, sides):
    seen = intermediate_shapes(tiny(stages=(1, 1, 1, 1), stem=stem), 1, side, side, 3)
    widths = zip(stem_sides, (2, 2, 4), strict=True)
    assert [seen[f"Conv_{i}"].shape for i in range(3)] == [(1, s, s, c) for s, c in widths]
    shapes = [(1, s, s, 4 * 4 * 2**i) for i, s in enumerate(sides)]
    assert [seen[f"Block_{i}"].shape for i in range(4)] == shapes


def test_average_pool_equals_the_mean_of_each_square_of_pixels():
    x = jnp.arange(2 * 5 * 7 * 3, dtype=jnp.float32).reshape(2, 5, 7, 3)
    actual = clip_resnet.average_pool(x, 2)
    assert actual.shape == (2, 2, 3, 3)  # the odd last row and column are dropped
    for i in range(2):
        for j in range(3):
            square = np.asarray(x)[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            np.testing.assert_allclose(actual[:, i, j], square.mean((1, 2)), rtol=1e-6)
    assert clip_resnet.average_pool(x, 1) is x


def test_residual_block_is_the_identity_at_initialisation():
    block = clip_resnet.Block(3, 1)
    x = jnp.abs(normal(2, 4, 4, 12))
    start = jax.jit(lambda x: block.apply(block.init(KEY, x, train=False), x, train=False))
    np.testing.assert_array_equal(start(x), x)


def test_clip_initialisation_follows_the_released_code():
    params = jax.jit(partial(tiny(width=32).init, train=False))(KEY, IMAGES)["params"]
    kernel = np.asarray(params["Block_0"]["Conv_1"]["kernel"])  # shape [3, 3, 32, 32]
    bound = (9 * 32) ** -0.5  # bound of PyTorch's default initialisation
    assert 0.99 * bound < np.abs(kernel).max() <= bound
    np.testing.assert_allclose(kernel.std(), bound / math.sqrt(3), rtol=0.03)
    pool = params["AttentionPool_0"]
    leaves = [pool[name]["kernel"] for name in ("query", "key", "value", "out")]
    for leaf in [*leaves, pool["positions"]]:
        z = np.asarray(leaf).ravel() * math.sqrt(4 * 32)
        np.testing.assert_allclose([z.mean(), z.std()], [0, 1], atol=5 / math.sqrt(z.size))

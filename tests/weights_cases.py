"""Weights of the networks whose features public implementations gave, drawn again."""

import math
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl.errors import UserError
from jaxssl.pretrained import parameter_names

GOLDEN = np.load(Path(__file__).parent / "golden" / "weights.npz")
VIT = {"name": "vit", "size": "small", "layers": 3, "frozen_patches": False, "pool": "token"}
LEARNED, FIXED = {"positions": "learned"}, {"positions": "fixed"}
NETS = {
    "resnet18_imagenet": {"name": "resnet", "depth": 18, "stem": "imagenet", "width": 64},
    "resnet50_imagenet": {"name": "resnet", "depth": 50, "stem": "imagenet", "width": 64},
    "resnet18_cifar": {"name": "resnet", "depth": 18, "stem": "cifar", "width": 64},
    "resnet50_cifar": {"name": "resnet", "depth": 50, "stem": "cifar", "width": 64},
    "resnet18_solo": {"name": "resnet", "depth": 18, "stem": "cifar_wide", "width": 64},
    "vit_tiny": {**VIT, **LEARNED, "size": "tiny", "dim": 192, "patch_size": 16, "num_heads": 3},
    "vit_small": {**VIT, **LEARNED, "dim": 384, "patch_size": 8, "num_heads": 6},
    "vit_small_moco": {**VIT, **FIXED, "dim": 384, "patch_size": 16, "num_heads": 12},
}
TINY = {"name": "vit", "dim": 8, "layers": 1, "num_heads": 2, "patch_size": 2, **LEARNED}
RESNET = {"name": "resnet", "depth": 18, "stem": "cifar", "width": 4}


def public_shapes(net, size):
    """Shapes in PyTorch's layout by public name, fixed positions included."""
    module = parameter_names.make_net(net)
    image = jnp.zeros((1, size, size, 3))
    tree = jax.eval_shape(partial(module.init, train=False), jax.random.key(0), image)
    fixed = parameter_names.fixed_positions(module, size)
    shapes = {name: array.shape for name, array in fixed.items()}
    entries = parameter_names.entries(module, tree)
    return shapes | {entry.name: entry.public_shape for entry in entries}


def draw_arrays(shapes):
    """Weights of a typical size for arrays of the given shapes, in the order of their names."""
    rng, arrays = np.random.default_rng(0), {}
    for name, shape in sorted(shapes.items()):
        x = rng.standard_normal(shape, np.float32)
        if name.endswith("running_var"):
            x = 0.5 + np.abs(x)
        elif name.endswith("weight") and len(shape) == 1:
            x = 1 + x / 4
        elif name.endswith("weight"):
            x *= np.float32(math.sqrt((2 if len(shape) == 4 else 1) / math.prod(shape[1:])))
        else:
            x = x / 4
        arrays[name] = np.asarray(x, np.float32)
    return arrays


def draw_picture(h, w):
    """A picture [h, w, 3] of waves and noise."""
    y, x = np.mgrid[:h, :w]
    waves = sum(np.sin(x / a + y / b) for a, b in ((37, 50), (9, -13), (3, 4)))
    noise = np.random.default_rng(0).normal(0, 25, (h, w, 3))
    return np.clip(127 + 30 * waves[..., None] + noise, 0, 255).astype(np.uint8)


@contextmanager
def refused(match):
    """Expect a UserError of one line."""
    with pytest.raises(UserError, match=match) as error:
        yield
    assert "\n" not in str(error.value)


@cache
def draw_weights(case, size):
    """The weights that the reference numbers were computed with."""
    net = {"tiny": TINY, "resnet": RESNET, **NETS}[case]
    arrays = draw_arrays(public_shapes(net, size))
    return {**arrays, **parameter_names.fixed_positions(parameter_names.make_net(net), size)}

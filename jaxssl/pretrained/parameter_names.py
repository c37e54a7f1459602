"""Map our networks' parameters to the names and layouts of public implementations.

ResNets have torchvision's names, ViTs and ConvNeXts timm's. Stage i of a ConvNet is
``stages.i.conv.weight`` and ``stages.i.norm.{weight,bias,running_mean,running_var}``. Arrays with a
public name have PyTorch's layout.

A network's table maps the path of a module or an array, such as "Block_0/qkv", to its public name.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
from flax import traverse_util

from jaxssl import components
from jaxssl.errors import one_line
from jaxssl.models import clip_resnet, convnet, convnext, resnet, vit

# Names of arrays that count as zeros if they are absent from all blocks.
OPTIONAL = re.compile(r"(patch_embed\.proj|blocks\.\d+\.attn\.qkv)\.bias")
# Maps our name of a module's array to its name in public files.
ARRAYS = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
# Numbers of leading axes of length 1 that arrays of these names have only in public files.
LEADING_AXES = {"cls_token": 2, "dist_token": 2, "reg_token": 1, "pos_embed": 1}
LEADING_AXES |= {"attn_pool.latent": 1}
VIT = {
    "patches": "patch_embed.proj",
    "frozen_patches": "patch_embed.proj",
    "token": "cls_token",
    "distillation": "dist_token",
    "positions": "pos_embed",
    "registers": "reg_token",
    "pre_norm": "norm_pre",
    "LayerNorm_0": "norm",
    "pool/query": "attn_pool.latent",
    "pool/qkv": "attn_pool.qkv",
    "pool/attention_out": "attn_pool.proj",
    "pool/LayerNorm_0": "attn_pool.norm",
    "pool/mlp_in": "attn_pool.mlp.fc1",
    "pool/mlp_out": "attn_pool.mlp.fc2",
    "projection/kernel": "proj",
}
VIT_BLOCK = {
    "LayerNorm_0": "norm1",
    "qkv": "attn.qkv",
    "attention_out": "attn.proj",
    "attention_scale": "ls1.gamma",
    "LayerNorm_1": "norm2",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
    "mlp_scale": "ls2.gamma",
}
CONVNEXT_BLOCK = {
    "Conv_0": "conv_dw",
    "LayerNorm_0": "norm",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
    "response_norm": "mlp.grn",
    "scale": "gamma",
}
ATTENTION_POOL = {
    "AttentionPool_0/positions": "attnpool.positional_embedding",
    "AttentionPool_0/query": "attnpool.q_proj",
    "AttentionPool_0/key": "attnpool.k_proj",
    "AttentionPool_0/value": "attnpool.v_proj",
    "AttentionPool_0/out": "attnpool.c_proj",
}


class Entry(NamedTuple):
    """Our name and the public name of one parameter or statistic, and how the array layouts differ.

    Attributes:
        name: public name.
        path: keys in our variables, beginning with "params" or "batch_stats".
        shape: shape of our array.
        view: shape in which our array has the axes of the public one, in another order.
        axes: order of these axes in the public array.
    """

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]
    view: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def public_shape(self) -> tuple[int, ...]:
        """Return the array's shape in public files."""
        return tuple(self.view[axis] for axis in self.axes)

    def to_public(self, array: np.ndarray) -> np.ndarray:
        """Convert an array of our network to PyTorch's layout."""
        return array.reshape(self.view).transpose(self.axes)

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Convert a public array to our layout. Axes of length 1 may be missing or added."""
        array = array.reshape(self.public_shape).transpose(np.argsort(self.axes))
        return np.ascontiguousarray(array).reshape(self.shape)


def make_net(config: Mapping[str, object]) -> nn.Module:
    """Build the backbone of the config group `net`.

    Raises:
        ValueError: if the network or a setting is unknown, or a setting has another type.
    """
    name = str(config.get("name"))
    if components.is_custom(name):
        raise ValueError(
            f"the file has the arrays of the network {name!r}, which is not part of jaxssl; load "
            "the run, or its export as StableHLO"
        )
    if name not in NETS:
        raise ValueError(f"the network must be one of {', '.join(NETS)}, got {name!r}")
    settings = {k: v for k, v in config.items() if k not in ("name", "preset")}
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    try:
        return components.factory("net", name)(**settings)
    except TypeError as error:
        raise ValueError(
            f"network {name!r} does not take the settings {sorted(settings)}: {one_line(error)}"
        ) from error


def accepts(name: object, setting: str) -> bool:
    """Return False if a network of this package lacks a setting. `make_net` refuses other names."""
    name = str(name)
    if name not in NETS:
        return True
    return setting in inspect.signature(components.factory("net", name)).parameters


def entries(net: nn.Module, variables: Mapping[str, object]) -> list[Entry]:
    """List path, public name and layout of every array of a network's variables.

    Args:
        net: the network.
        variables: its variables, or their shapes.

    Raises:
        ValueError: if the network has no public names.
    """
    if type(net) not in TABLES:
        raise ValueError(f"a {type(net).__name__} has no public parameter names")
    table, result = TABLES[type(net)](net), []
    arrays: Any = traverse_util.flatten_dict(dict(variables))
    for path, array in arrays.items():
        *module, leaf = path[1:]
        name = table.get("/".join(path[1:]))
        if name is None:  # The table names the module and not the array.
            name = f"{table['/'.join(module)]}.{ARRAYS[leaf]}"
        view = (1,) * LEADING_AXES.get(name, 0) + array.shape
        if isinstance(net, vit.ViT) and name == "patch_embed.proj.weight":
            # The embedding of patches is a convolution in PyTorch, and a matrix here.
            view = (net.patch_size, net.patch_size, array.shape[0] // net.patch_size**2, net.dim)
        axes = tuple(range(len(view)))
        if leaf == "kernel" and name.endswith(".weight"):
            axes = (3, 2, 0, 1) if len(view) == 4 else (1, 0)
        result.append(Entry(name, path, array.shape, view, axes))
    return result


def fixed_positions(net: nn.Module, size: int) -> dict[str, np.ndarray]:
    """Return a ViT's fixed position embeddings, which public files store as a parameter.

    Args:
        net: the backbone.
        size: side length of the images in pixels.

    Returns:
        "pos_embed" [1, 1 + patches, dim], with zeros for the class token. Empty for other networks.
    """
    if not isinstance(net, vit.ViT) or net.positions != "fixed":
        return {}
    grid = size // net.patch_size
    positions = vit.sine_positions(grid, grid, net.dim)
    zeros = np.zeros((net.num_class_tokens, net.dim), positions.dtype)
    return {"pos_embed": np.concatenate([zeros, positions])[None]}


def _vit(net: vit.ViT) -> dict[str, str]:
    return VIT | _blocks((f"blocks.{i}" for i in range(net.layers)), VIT_BLOCK)


def _convnet(net: convnet.ConvNet) -> dict[str, str]:
    return {
        f"{ours}_{i}": f"stages.{i}.{public}"
        for i in range(len(net.widths))
        for ours, public in (("Conv", "conv"), ("BatchNorm", "norm"))
    }


def _convnext(net: convnext.ConvNeXt) -> dict[str, str]:
    names = {"Conv_0": "stem.0", "LayerNorm_0": "stem.1", "norm": "norm"}
    for stage in range(1, len(net.depths)):
        names[f"LayerNorm_{stage}"] = f"stages.{stage}.downsample.0"
        names[f"Conv_{stage}"] = f"stages.{stage}.downsample.1"
    places = (f"stages.{stage}.blocks.{i}" for stage, i in _positions(net.depths))
    return names | _blocks(places, CONVNEXT_BLOCK)


def _resnet(net: resnet.ResNet) -> dict[str, str]:
    # The convolutions of a deep stem are "conv1.0", "conv1.3" and "conv1.6", with norms after them.
    last = len(resnet.STEMS[net.stem]) - 1
    names = {f"Conv_{i}": f"conv1.{3 * i}" if last else "conv1" for i in range(last + 1)}
    names |= {f"BatchNorm_{i}": f"conv1.{3 * i + 1}" for i in range(last)}
    names[f"BatchNorm_{last}"] = "bn1"
    return names | _residual_blocks(net.stages, 3 if net.bottleneck else 2, net.pooled_shortcut)


def _clip_resnet(net: clip_resnet.ClipResNet) -> dict[str, str]:
    return ATTENTION_POOL | _conv_norms(3) | _residual_blocks(net.stages, 3, False)


def _residual_blocks(stages: Sequence[int], convolutions: int, pooled: bool) -> dict[str, str]:
    # Public names number the layers of a shortcut: a pool if any, a convolution and a norm.
    conv = 1 if pooled else 0
    shortcut = {f"Conv_{convolutions}": f"downsample.{conv}"}
    shortcut[f"BatchNorm_{convolutions}"] = f"downsample.{conv + 1}"
    places = (f"layer{stage + 1}.{i}" for stage, i in _positions(stages))
    return _blocks(places, _conv_norms(convolutions) | shortcut)


def _conv_norms(count: int) -> dict[str, str]:
    """Return the names of convolutions with a BatchNorm each."""
    names = {f"Conv_{i}": f"conv{i + 1}" for i in range(count)}
    return names | {f"BatchNorm_{i}": f"bn{i + 1}" for i in range(count)}


def _positions(stages: Sequence[int]) -> list[tuple[int, int]]:
    """Return for each block of a network the stage and the block's number in the stage."""
    return [(stage, i) for stage, blocks in enumerate(stages) for i in range(blocks)]


def _blocks(places: Iterable[str], block: Mapping[str, str]) -> dict[str, str]:
    """Repeat ``block``, a map of our names to public ones, for blocks at public ``places``."""
    return {
        f"Block_{number}/{ours}": f"{place}.{public}"
        for number, place in enumerate(places)
        for ours, public in block.items()
    }


# Networks whose parameters have public names.
NETS = ("clip_resnet", "convnet", "convnext", "resnet", "vit")
TABLES: Mapping[type, Callable[[Any], dict[str, str]]] = {
    clip_resnet.ClipResNet: _clip_resnet,
    convnet.ConvNet: _convnet,
    convnext.ConvNeXt: _convnext,
    resnet.ResNet: _resnet,
    vit.ViT: _vit,
}

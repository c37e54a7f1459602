"""Map our networks' parameters to the names and layouts of public implementations.

ResNets have torchvision's names, ViTs and ConvNeXts timm's. Stage i of a ConvNet is
``stages.i.conv.weight`` and ``stages.i.norm.{weight,bias,running_mean,running_var}``. Arrays with a
public name have PyTorch's layout.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from jaxssl import components
from jaxssl.models import clip_resnet, convnet, convnext, resnet, vit

NETS = {
    "clip_resnet": clip_resnet.net,
    "convnet": convnet.net,
    "convnext": convnext.net,
    "resnet": resnet.net,
    "vit": vit.net,
}
# Arrays whose absence, in all blocks, means zeros.
OPTIONAL = re.compile(r"(patch_embed\.proj|blocks\.\d+\.attn\.qkv)\.bias")


class Layout(NamedTuple):
    """Conversions of an array between our layout and PyTorch's.

    Attributes:
        ours: from PyTorch's layout to ours.
        public: from ours to PyTorch's.
    """

    ours: Callable[[np.ndarray], np.ndarray]
    public: Callable[[np.ndarray], np.ndarray]


class Entry(NamedTuple):
    """One parameter or statistic with its name in our network and its public name.

    Attributes:
        name: public name.
        path: keys in our variables, beginning with "params" or "batch_stats".
        layout: layouts of the array.
    """

    name: str
    path: tuple[str, ...]
    layout: Layout


def _to_oihw(x: np.ndarray) -> np.ndarray:
    """Transpose a kernel [height, width, in, out] to [out, in, height, width]."""
    return x.transpose(3, 2, 0, 1)


def _to_hwio(x: np.ndarray) -> np.ndarray:
    return x.transpose(2, 3, 1, 0)


SAME = Layout(lambda x: x, lambda x: x)
# Some projects store these as convolutions of 1 x 1 pixels.
DENSE = Layout(lambda x: x.reshape(x.shape[:2]).transpose(1, 0), lambda x: x.transpose(1, 0))
CONV = Layout(_to_hwio, _to_oihw)
# Some projects store these arrays with fewer or more axes of length 1.
TOKEN = Layout(lambda x: x.reshape(x.shape[-1:]), lambda x: x[None, None])
TOKENS = Layout(lambda x: x.reshape(x.shape[-2:]), lambda x: x[None])
QUERY = Layout(lambda x: x.reshape(1, x.shape[-1]), lambda x: x[None])
VECTOR = Layout(lambda x: x.reshape(max(x.shape)), lambda x: x)


def _patches(side: int) -> Layout:
    """Return the layout of a patch projection: a convolution in PyTorch, a matrix here."""

    def ours(x: np.ndarray) -> np.ndarray:
        return _to_hwio(x).reshape(-1, x.shape[0])

    return Layout(ours, lambda x: _to_oihw(x.reshape(side, side, -1, x.shape[1])))


def make_net(config: Mapping[str, Any]) -> nn.Module:
    """Build the backbone of the config group `net`.

    Raises:
        ValueError: if the network or a setting is unknown.
    """
    name = config.get("name")
    if isinstance(name, str) and components.is_custom(name):
        raise ValueError(
            f"the file has the arrays of the network {name!r}, which is not part of jaxssl; load "
            "the run, or its export as StableHLO"
        )
    if name not in NETS:
        raise ValueError(f"the network must be one of {', '.join(NETS)}, got {name!r}")
    settings = {k: v for k, v in config.items() if k not in ("name", "preset")}
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    try:
        return NETS[name](**settings)
    except TypeError as error:
        raise ValueError(
            f"network {name!r} does not have all of the settings {sorted(settings)}"
        ) from error


def entries(net: nn.Module) -> list[Entry]:
    """List a parameter-name entry for every array of a network's variables.

    Raises:
        ValueError: if the network has no public names.
    """
    tables: dict[type, Callable[[Any], list[Entry]]] = {
        resnet.ResNet: _resnet,
        clip_resnet.ClipResNet: _clip_resnet,
        vit.ViT: _vit,
        convnet.ConvNet: _convnet,
        convnext.ConvNeXt: _convnext,
    }
    if type(net) not in tables:
        raise ValueError(f"a {type(net).__name__} has no public parameter names")
    return tables[type(net)](net)


def fixed_positions(net: nn.Module, size: int) -> dict[str, np.ndarray]:
    """Return a ViT's fixed positions, which other projects store as a parameter.

    Args:
        net: the backbone.
        size: side length of the images in pixels.

    Returns:
        "pos_embed" [1, 1 + patches, dim], with zeros for the class token. Empty for other networks.
    """
    if not isinstance(net, vit.ViT) or net.positions != "fixed":
        return {}
    grid = size // net.patch_size
    positions = vit.positions(grid, grid, net.dim)
    zeros = np.zeros((net.tokens, net.dim), positions.dtype)
    return {"pos_embed": np.concatenate([zeros, positions])[None]}


def _convnet(net: convnet.ConvNet) -> list[Entry]:
    table = []
    for i in range(len(net.widths)):
        table += [_conv(f"stages.{i}.conv", (), i), *_batch_norm(f"stages.{i}.norm", (), i)]
    return table


def _convnext(net: convnext.ConvNeXt) -> list[Entry]:
    table, number = _layer_norm("norm", ("norm",)), 0
    for stage, depth in enumerate(net.depths):
        conv, norm = ("stem.0", "stem.1")
        if stage:
            norm, conv = (f"stages.{stage}.downsample.{i}" for i in range(2))
        table += _dense(conv, (f"Conv_{stage}",), CONV)
        table += _layer_norm(norm, (f"LayerNorm_{stage}",))
        for i in range(depth):
            ours, public = f"Block_{number}", f"stages.{stage}.blocks.{i}"
            table += _dense(f"{public}.conv_dw", (ours, "Conv_0"), CONV)
            table += _layer_norm(f"{public}.norm", (ours, "LayerNorm_0"))
            table += _mlp(f"{public}.mlp", (ours,))
            if net.response_norm:
                path, grn = ("params", ours, "response_norm"), f"{public}.mlp.grn"
                table += [Entry(f"{grn}.weight", (*path, "scale"), VECTOR)]
                table += [Entry(f"{grn}.bias", (*path, "bias"), VECTOR)]
            else:
                table += [Entry(f"{public}.gamma", ("params", ours, "scale"), VECTOR)]
            number += 1
    return table


def _resnet(net: resnet.ResNet) -> list[Entry]:
    # The convolutions of a deep stem are "conv1.0", "conv1.3" and "conv1.6", with norms after them.
    last = len(resnet.STEMS[net.stem]) - 1
    table = [*_batch_norm("bn1", (), last)]
    for i in range(last + 1):
        table += [_conv(f"conv1.{3 * i}" if last else "conv1", (), i)]
        table += _batch_norm(f"conv1.{3 * i + 1}", (), i) if i < last else []
    # The first block of a stage changes the shape of its input, except in the first stage of a
    # ResNet with basic blocks.
    shortcuts = range(0 if net.bottleneck else 1, len(net.stages))
    convolutions = 3 if net.bottleneck else 2
    return table + _residual_blocks(net.stages, convolutions, shortcuts, int(net.pooled_shortcut))


def _clip_resnet(net: clip_resnet.ClipResNet) -> list[Entry]:
    table = _residual_blocks(net.stages, 3, range(len(net.stages)), 0)
    for i in range(3):
        table += [_conv(f"conv{i + 1}", (), i), *_batch_norm(f"bn{i + 1}", (), i)]
    pool = "AttentionPool_0"
    for name in ("query", "key", "value", "out"):
        public = "c" if name == "out" else name[0]
        table += _dense(f"attnpool.{public}_proj", (pool, name))
    return [*table, Entry("attnpool.positional_embedding", ("params", pool, "positions"), SAME)]


def _residual_blocks(
    stages: Sequence[int], convolutions: int, shortcuts: Sequence[int], pooled: int
) -> list[Entry]:
    """Return the entries of residual blocks; ``shortcuts`` are the stages that begin with one."""
    table, number = [], 0
    for stage, blocks in enumerate(stages):
        for i in range(blocks):
            ours, public = (f"Block_{number}",), f"layer{stage + 1}.{i}"
            for c in range(convolutions):
                table += [_conv(f"{public}.conv{c + 1}", ours, c)]
                table += _batch_norm(f"{public}.bn{c + 1}", ours, c)
            if i == 0 and stage in shortcuts:
                table += [_conv(f"{public}.downsample.{pooled}", ours, convolutions)]
                table += _batch_norm(f"{public}.downsample.{1 + pooled}", ours, convolutions)
            number += 1
    return table


def _vit(net: vit.ViT) -> list[Entry]:
    patches = "frozen_patches" if net.freeze_patches else "patches"
    projection = "patch_embed.proj"
    table = [
        Entry(f"{projection}.weight", ("params", patches, "kernel"), _patches(net.patch_size)),
        Entry(f"{projection}.bias", ("params", patches, "bias"), SAME),
        *_layer_norm("norm", ("LayerNorm_0",)),
    ]
    if net.class_token:
        table += [Entry("cls_token", ("params", "token"), TOKEN)]
    if net.distilled:
        table += [Entry("dist_token", ("params", "distillation"), TOKEN)]
    if net.positions == "learned":
        table += [Entry("pos_embed", ("params", "positions"), TOKENS)]
    if net.registers:
        table += [Entry("reg_token", ("params", "registers"), TOKENS)]
    if net.pre_norm:
        table += _layer_norm("norm_pre", ("pre_norm",))
    for i in range(net.layers):
        ours, public = f"Block_{i}", f"blocks.{i}"
        table += _layer_norm(f"{public}.norm1", (ours, "LayerNorm_0"))
        table += _dense(f"{public}.attn.qkv", (ours, "qkv"))
        table += _dense(f"{public}.attn.proj", (ours, "attention_out"))
        table += _layer_norm(f"{public}.norm2", (ours, "LayerNorm_1"))
        table += _mlp(f"{public}.mlp", (ours,))
        if net.layer_scale:
            for number, branch in enumerate(("attention_scale", "mlp_scale"), 1):
                table += [Entry(f"{public}.ls{number}.gamma", ("params", ours, branch), SAME)]
    if net.pool == "attention":
        table += [Entry("attn_pool.latent", ("params", "pool", "query"), QUERY)]
        table += _dense("attn_pool.qkv", ("pool", "qkv"))
        table += _dense("attn_pool.proj", ("pool", "attention_out"))
        table += _layer_norm("attn_pool.norm", ("pool", "LayerNorm_0"))
        table += _mlp("attn_pool.mlp", ("pool",))
    if net.projection:
        table += [Entry("proj", ("params", "projection", "kernel"), SAME)]
    return table


def _conv(public: str, ours: Sequence[str], number: int) -> Entry:
    return Entry(f"{public}.weight", ("params", *ours, f"Conv_{number}", "kernel"), CONV)


def _mlp(public: str, ours: Sequence[str]) -> list[Entry]:
    return [
        *_dense(f"{public}.fc1", (*ours, "mlp_in")),
        *_dense(f"{public}.fc2", (*ours, "mlp_out")),
    ]


def _dense(public: str, ours: Sequence[str], layout: Layout = DENSE) -> list[Entry]:
    return [
        Entry(f"{public}.weight", ("params", *ours, "kernel"), layout),
        Entry(f"{public}.bias", ("params", *ours, "bias"), SAME),
    ]


def _layer_norm(public: str, ours: Sequence[str]) -> list[Entry]:
    return [
        Entry(f"{public}.weight", ("params", *ours, "scale"), SAME),
        Entry(f"{public}.bias", ("params", *ours, "bias"), SAME),
    ]


def _batch_norm(public: str, ours: Sequence[str], number: int) -> list[Entry]:
    path = (*ours, f"BatchNorm_{number}")
    return [
        *_layer_norm(public, path),
        Entry(f"{public}.running_mean", ("batch_stats", *path, "mean"), SAME),
        Entry(f"{public}.running_var", ("batch_stats", *path, "var"), SAME),
    ]

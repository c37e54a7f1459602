"""Public names of our networks' parameters: one table for both ways.

ResNets have torchvision's names, ViTs timm's. ConvNets have plain ones: stage i is
``stages.i.conv.weight`` and ``stages.i.norm.{weight,bias,running_mean,running_var}``.
Arrays lie under a public name as PyTorch lays them out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from jaxssl.models import convnet, resnet, vit

NETS = {"convnet": convnet.net, "resnet": resnet.net, "vit": vit.net}
Net = Mapping[str, Any]  # the group `net` of a config


class Layout(NamedTuple):
    """How an array lies.

    Attributes:
        ours: from PyTorch's to ours.
        public: from ours to PyTorch's.
    """

    ours: Callable[[np.ndarray], np.ndarray]
    public: Callable[[np.ndarray], np.ndarray]


class Entry(NamedTuple):
    """A parameter or statistic.

    Attributes:
        name: the public one.
        path: in our variables, from "params" or "batch_stats" on.
        layout: of the array.
    """

    name: str
    path: tuple[str, ...]
    layout: Layout


def _turned(x: np.ndarray) -> np.ndarray:
    """[height, width, in, out] as [out, in, height, width]."""
    return x.transpose(3, 2, 0, 1)


def _turned_back(x: np.ndarray) -> np.ndarray:
    return x.transpose(2, 3, 1, 0)


SAME = Layout(lambda x: x, lambda x: x)
DENSE = Layout(lambda x: x.transpose(1, 0), lambda x: x.transpose(1, 0))
CONV = Layout(_turned_back, _turned)
TOKEN = Layout(lambda x: x.reshape(x.shape[2:]), lambda x: x[None, None])
POSITIONS = Layout(lambda x: x.reshape(x.shape[1:]), lambda x: x[None])


def _patches(side: int) -> Layout:
    """A projection of patches: PyTorch's is a convolution, ours a matrix."""

    def ours(x: np.ndarray) -> np.ndarray:
        return _turned_back(x).reshape(-1, x.shape[0])

    return Layout(ours, lambda x: _turned(x.reshape(side, side, -1, x.shape[1])))


def make(net: Net) -> nn.Module:
    """The backbone of a config's group.

    Raises:
        ValueError: on an unknown network or setting.
    """
    name, hyper = net.get("name"), {k: v for k, v in net.items() if k not in ("name", "preset")}
    if name not in NETS:
        raise ValueError(f"network {name!r} has no public names; those with are {sorted(NETS)}")
    hyper = {k: tuple(v) if isinstance(v, list) else v for k, v in hyper.items()}
    try:
        return NETS[name](**hyper)
    except TypeError as error:
        raise ValueError(f"{name} has no such settings: {sorted(hyper)}") from error


def entries(module: nn.Module) -> list[Entry]:
    """The table of a network: an entry for every array of its variables.

    Raises:
        ValueError: if it has no public names.
    """
    if isinstance(module, resnet.ResNet):
        return _resnet(module)
    if isinstance(module, vit.ViT):
        return _vit(module)
    if isinstance(module, convnet.ConvNet):
        return _convnet(len(module.widths))
    raise ValueError(f"a {type(module).__name__} has no public names")


def derived(module: nn.Module, size: int) -> dict[str, np.ndarray]:
    """What has a public name and is no parameter of ours: fixed positions, of images of ``size``.

    The first is the class token's, which has none.
    """
    if not isinstance(module, vit.ViT) or module.positions != "fixed":
        return {}
    grid = size // module.patch_size
    positions = vit.positions(grid, grid, module.dim)
    return {"pos_embed": np.concatenate([np.zeros_like(positions[:1]), positions])[None]}


def _convnet(stages: int) -> list[Entry]:
    return [
        entry
        for i in range(stages)
        for entry in [
            _conv(f"stages.{i}.conv", (), i),
            *_batch_norm(f"stages.{i}.norm", (), i),
        ]
    ]


def _resnet(module: resnet.ResNet) -> list[Entry]:
    found = [_conv("conv1", (), 0), *_batch_norm("bn1", (), 0)]
    convolutions = 3 if module.bottleneck else 2
    places = [(s, i) for s, blocks in enumerate(module.stages) for i in range(blocks)]
    for number, (stage, i) in enumerate(places):
        ours, public = (f"Block_{number}",), f"layer{stage + 1}.{i}"
        for c in range(convolutions):
            found += [_conv(f"{public}.conv{c + 1}", ours, c)]
            found += _batch_norm(f"{public}.bn{c + 1}", ours, c)
        # The first block of a stage changes the shape; that of basic blocks' first one does not.
        if i == 0 and (module.bottleneck or stage > 0):
            found += [_conv(f"{public}.downsample.0", ours, convolutions)]
            found += _batch_norm(f"{public}.downsample.1", ours, convolutions)
    return found


def _vit(module: vit.ViT) -> list[Entry]:
    patches = "frozen_patches" if module.freeze_patches else "patches"
    projection = "patch_embed.proj"
    found = [
        Entry("cls_token", ("params", "token"), TOKEN),
        Entry(f"{projection}.weight", ("params", patches, "kernel"), _patches(module.patch_size)),
        Entry(f"{projection}.bias", ("params", patches, "bias"), SAME),
        *_layer_norm("norm", ("LayerNorm_0",)),
    ]
    if module.positions == "learned":
        found += [Entry("pos_embed", ("params", "positions"), POSITIONS)]
    for i in range(module.layers):
        ours, public = f"Block_{i}", f"blocks.{i}"
        found += _layer_norm(f"{public}.norm1", (ours, "LayerNorm_0"))
        found += _dense(f"{public}.attn.qkv", (ours, "qkv"))
        found += _dense(f"{public}.attn.proj", (ours, "attention_out"))
        found += _layer_norm(f"{public}.norm2", (ours, "LayerNorm_1"))
        found += _dense(f"{public}.mlp.fc1", (ours, "mlp_in"))
        found += _dense(f"{public}.mlp.fc2", (ours, "mlp_out"))
    return found


def _conv(public: str, ours: Sequence[str], number: int) -> Entry:
    return Entry(f"{public}.weight", ("params", *ours, f"Conv_{number}", "kernel"), CONV)


def _dense(public: str, ours: Sequence[str]) -> list[Entry]:
    return [
        Entry(f"{public}.weight", ("params", *ours, "kernel"), DENSE),
        Entry(f"{public}.bias", ("params", *ours, "bias"), SAME),
    ]


def _layer_norm(public: str, ours: Sequence[str]) -> list[Entry]:
    return [
        Entry(f"{public}.weight", ("params", *ours, "scale"), SAME),
        Entry(f"{public}.bias", ("params", *ours, "bias"), SAME),
    ]


def _batch_norm(public: str, ours: Sequence[str], number: int) -> list[Entry]:
    place = (*ours, f"BatchNorm_{number}")
    return [
        *_layer_norm(public, place),
        Entry(f"{public}.running_mean", ("batch_stats", *place, "mean"), SAME),
        Entry(f"{public}.running_var", ("batch_stats", *place, "var"), SAME),
    ]

"""Find the encoder in a checkpoint of another project, and infer its network."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxssl.augment.views import Inputs
from jaxssl.models import resnet, vit
from jaxssl.pretrained import parameter_names

MAX_NAMES, MAX_NODES, MAX_LENGTH, MAX_DEPTH = 100_000, 1_000_000, 1_000, 4
# The prefix of an encoder's array names ends where one of these names begins.
MARKS = ("layer1.0.conv1.weight", "patch_embed.proj.weight", "conv_proj.weight")
# If a file has two encoders, names that match this pattern belong to the one not meant for use: a
# momentum copy, or DINO's student.
SECONDARY = re.compile(r"momentum|encoder_k|student|target|ema\b|_ema")
HEADS = re.compile(
    r"(fc|heads?|head_dist|mlp_head|pre_logits|linear|classifier|project(or|ion)\w*|prototypes|"
    r"predict(or|ion)\w*|online_\w+|momentum_\w+|queue\w*|dino_head|last_layer)\b"
)
# Maps torchvision's array names of a ViT to timm's, which DINO and MoCo-v3 use too.
TORCHVISION_VIT = {
    r"class_token": "cls_token",
    r"conv_proj\.": "patch_embed.proj.",
    r"encoder\.pos_embedding": "pos_embed",
    r"encoder\.ln\.": "norm.",
    r"encoder\.layers\.encoder_layer_(\d+)\.": r"blocks.\1.",
    r"(blocks\.\d+\.)ln_(\d)\.": r"\1norm\2.",
    r"(blocks\.\d+\.)self_attention\.in_proj_": r"\1attn.qkv.",
    r"(blocks\.\d+\.)self_attention\.out_proj\.": r"\1attn.proj.",
    r"(blocks\.\d+\.mlp\.)(0|linear_1)\.": r"\1fc1.",
    r"(blocks\.\d+\.mlp\.)(3|linear_2)\.": r"\1fc2.",
}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CIFAR = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
IMAGENET_CROP = 0.875
# Maps the width to the number of heads, for ViTs without 64 channels a head.
WIDE_HEADS = {1280: 16}


class Shaped(Protocol):
    """Name, shape and dtype of an array that has not been read from its file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the unread array."""
        ...


Read = Callable[[Any], np.ndarray]


class EncoderArrays(NamedTuple):
    """The arrays of an encoder in another project's checkpoint, with their name prefix.

    Attributes:
        arrays: by their public names, without heads.
        prefix: start of the encoder's names in the file, "" if they have none.
        other_names: names in the file that do not belong to the encoder.
    """

    arrays: dict[str, Shaped]
    prefix: str
    other_names: list[str]


def find_encoder(tree: Mapping[str, Any]) -> EncoderArrays:
    """Find the encoder in a checkpoint of another project.

    If there are two, the one trained by gradients is used, such as MoCo's ``base_encoder`` or
    ``encoder_q``. For DINO it is the teacher.

    Raises:
        ValueError: if there is no ResNet or ViT, or the checkpoint has too many entries.
    """
    arrays: dict[str, Shaped] = {}
    for number, (name, value) in enumerate(_flatten(tree, "", 0)):
        # A dict that occurs at several keys is visited once for each, so the total is limited.
        if number >= MAX_NODES:
            raise ValueError(f"the file has more than {MAX_NODES} values")
        if hasattr(value, "shape"):
            arrays[name] = value
        if len(arrays) > MAX_NAMES:
            raise ValueError(f"the file has more than {MAX_NAMES} arrays")
    prefixes = [
        name.removesuffix(mark)
        for name in arrays
        for mark in MARKS
        if name == mark or name.endswith("." + mark)
    ]
    if not prefixes:
        names = abbreviate([f"{name} {list(array.shape)}" for name, array in arrays.items()])
        raise ValueError(f"expected a ResNet or ViT with names of torchvision or timm, got {names}")
    prefix = min(prefixes, key=lambda prefix: bool(SECONDARY.search(prefix)))
    encoder, other_names = {}, []
    for name, array in arrays.items():
        inner = name.removeprefix(prefix)
        if not name.startswith(prefix) or HEADS.match(inner):
            other_names.append(name)
        elif not inner.endswith("num_batches_tracked"):
            encoder[_timm_name(inner) if prefix + MARKS[2] in arrays else inner] = array
    return EncoderArrays(encoder, prefix, other_names)


def infer(
    encoder: EncoderArrays, read: Read, *, num_heads: int | None, stem: str | None
) -> tuple[dict[str, Any], Inputs]:
    """Infer the network (as the config group `net`) and its usual input settings.

    Args:
        encoder: the arrays.
        read: reads one of them.
        num_heads: attention heads of a ViT, or None for the usual number.
        stem: stem of a ResNet, or None to infer it from the first kernel.

    Raises:
        ValueError: if the arrays belong to no supported network.
    """
    if "patch_embed.proj.weight" in encoder.arrays:
        return _infer_vit(encoder, read, num_heads)
    return _infer_resnet(encoder, stem)


def abbreviate(items: list[str], most: int = 3) -> str:
    """List the first items of a collection and the number of all, for messages."""
    text = ", ".join(item[:80] for item in items[:most])
    return f"{text} ... ({len(items)})" if len(items) > most else text or "nothing"


def as_float32(array: np.ndarray) -> np.ndarray:
    """Return a contiguous float32 copy of an array in native byte order.

    Raises:
        ValueError: if the numbers are complex.
    """
    if array.dtype.kind == "c":
        raise ValueError("the arrays must be real, got complex numbers")
    with np.errstate(all="ignore"):  # Values that are not finite are checked later.
        return np.array(array, np.float32, order="C")


def _flatten(tree: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested checkpoint with its dotted name."""
    for key, value in tree.items():
        if not isinstance(key, str):
            yield "", None
            continue
        if len(prefix) + len(key) > MAX_LENGTH:
            raise ValueError(f"the file has a name of more than {MAX_LENGTH} characters")
        yield prefix + key, value
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from _flatten(value, f"{prefix}{key}.", depth + 1)


def _timm_name(name: str) -> str:
    for pattern, replacement in TORCHVISION_VIT.items():
        name = re.sub("^" + pattern, replacement, name)
    return name


def _kernel_shape(encoder: EncoderArrays, name: str) -> tuple[int, ...]:
    """Return the shape [out, in, side, side] of an encoder's first convolution."""
    shape = encoder.arrays[name].shape if name in encoder.arrays else None
    if shape is None or len(shape) != 4 or shape[2] != shape[3] or shape[1] not in (1, 3):
        fault = "is missing" if shape is None else f"has shape {list(shape)}"
        raise ValueError(f"{name} {fault}; expected [out, 3, side, side]")
    return shape


def _infer_resnet(encoder: EncoderArrays, stem: str | None) -> tuple[dict[str, Any], Inputs]:
    width, channels, side, _ = _kernel_shape(encoder, "conv1.weight")
    matches = (re.match(r"layer(\d+)\.(\d+)\.", name) for name in encoder.arrays)
    blocks = {(int(m[1][:6]), int(m[2][:6])) for m in matches if m}
    stages = tuple(sum(s == stage for s, _ in blocks) for stage in sorted({s for s, _ in blocks}))
    bottleneck = "layer1.0.conv3.weight" in encoder.arrays
    depths = [depth for depth, form in resnet.DEPTHS.items() if form == (stages, bottleneck)]
    if not depths:
        form = "bottleneck" if bottleneck else "basic"
        raise ValueError(
            f"the depth of a ResNet must be one of {', '.join(map(str, resnet.DEPTHS))}, got "
            f"{list(stages)[:8]} {form} blocks"
        )
    if side not in (3, 7):
        raise ValueError(f"the kernel conv1.weight must be 3 x 3 or 7 x 7, got {side} x {side}")
    if stem is None:
        # Solo-learn pads the 3 x 3 kernel by two pixels. Its files are recognised by the classifier
        # beside the backbone.
        parent = re.sub(r"(momentum_)?(backbone|encoder)\.$", "", encoder.prefix)
        solo = parent != encoder.prefix and f"{parent}classifier.weight" in encoder.other_names
        stem = "imagenet" if side == 7 else "cifar_wide" if solo else "cifar"
    net = {"name": "resnet", "depth": depths[0], "stem": stem, "width": width}
    return net, _imagenet_inputs(224, channels) if side == 7 else _inputs(32, channels, CIFAR)


def _infer_vit(
    encoder: EncoderArrays, read: Read, num_heads: int | None
) -> tuple[dict[str, Any], Inputs]:
    dim, channels, patch, _ = _kernel_shape(encoder, "patch_embed.proj.weight")
    matches = (re.match(r"blocks\.(\d+)\.", name) for name in encoder.arrays)
    layers = len({m[1] for m in matches if m})
    shape = encoder.arrays["pos_embed"].shape if "pos_embed" in encoder.arrays else ()
    grid = math.isqrt(max(shape[1] - 1, 0)) if len(shape) == 3 else 0
    if not grid or shape != (1, 1 + grid * grid, dim):
        raise ValueError(
            f"pos_embed has shape {list(shape)}; expected [1, 1 + patches, {dim}] of a class token "
            "and a square grid of patches"
        )
    sizes = [name for name, values in vit.SIZES.items() if values[0] == dim] or ["small"]
    net = {"name": "vit", "size": sizes[0], "dim": dim, "layers": layers, "patch_size": patch}
    net |= {"frozen_patches": False, "pool": "token"}
    fixed = False
    if dim % 4 == 0:
        module = vit.ViT(dim, layers, 1, patch)
        positions = parameter_names.fixed_positions(module, grid * patch)["pos_embed"]
        stored = as_float32(read(encoder.arrays["pos_embed"]))
        fixed = np.allclose(stored, positions, rtol=0, atol=1e-4)
    net["positions"] = "fixed" if fixed else "learned"
    if num_heads is None:
        if dim % 64:
            raise ValueError(
                f"num_heads cannot be inferred for a ViT of width {dim}; set num_heads"
            )
        # MoCo-v3's small ViT has 12 heads. MoCo-v3's ViTs are the only public ones with fixed
        # positions.
        moco = fixed or re.search(r"(base|momentum)_encoder\.$", encoder.prefix)
        num_heads = 12 if moco and dim == 384 else WIDE_HEADS.get(dim, dim // 64)
    net["num_heads"] = num_heads
    return net, _imagenet_inputs(grid * patch, channels)


def _imagenet_inputs(size: int, channels: int) -> Inputs:
    return _inputs(size, channels, IMAGENET)._replace(crop=IMAGENET_CROP)


def _inputs(size: int, channels: int, statistics: Mapping[str, tuple[float, ...]]) -> Inputs:
    """Return input settings. One channel gets the mean of the three channels' statistics."""
    mean, std = statistics["mean"], statistics["std"]
    if channels == 1:
        mean, std = ((round(sum(values) / 3, 4),) for values in (mean, std))
    return Inputs(size, channels, mean, std)

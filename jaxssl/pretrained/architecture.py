"""Find the encoder in a checkpoint of another project, and infer the network's settings."""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxssl import components
from jaxssl.augment.views import Inputs
from jaxssl.components import Settings
from jaxssl.errors import abbreviate
from jaxssl.models import clip_resnet, resnet, vit
from jaxssl.pretrained import names, parameter_names
from jaxssl.pretrained.names import CLIP, SIGLIP, Dialect, Stored

# Limits for a damaged checkpoint: arrays, values, characters of a name, nested dicts.
MAX_NAMES, MAX_NODES, MAX_LENGTH, MAX_DEPTH = 100_000, 1_000_000, 1_000, 4
# If a file has two encoders, names that match this pattern belong to the one not meant for use: a
# momentum copy, or DINO's student.
SECONDARY = re.compile(r"momentum|encoder_k|key_encoder|student|target|(^|[._])ema[._]|(^|\.)text")
CIFAR = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
# Number of blocks of public ViTs by their width.
DEPTHS = {192: 12, 384: 12, 768: 12, 1024: 24, 1152: 27, 1280: 32, 1408: 40, 1536: 40, 1664: 48}
# Maps the width to the number of heads, for ViTs without 64 channels a head.
WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
XXLARGE = (384, 768, 1536, 3072)  # widths of open_clip's convnext_xxlarge, with epsilon 1e-5


class EncoderArrays(NamedTuple):
    """The arrays of an encoder in another project's checkpoint, with their name prefix.

    Attributes:
        arrays: by their common names, without heads.
        prefix: start of the encoder's names in the file, "" if they have none.
        other_names: names in the file that do not belong to the encoder.
        dialect: the names that the file uses.
    """

    arrays: dict[str, Stored]
    prefix: str
    other_names: list[str]
    dialect: Dialect


class Inferred(NamedTuple):
    """Settings of an encoder that are inferred from the arrays of a checkpoint.

    Attributes:
        net: the network, as the config group `net`.
        inputs: the usual input settings.
    """

    net: dict[str, Any]
    inputs: Inputs


def find_encoder(stored: Mapping[str, Stored]) -> EncoderArrays:
    """Find the encoder in a checkpoint of another project.

    Of two encoders, the one trained by gradients is used, such as MoCo's ``base_encoder`` or
    ``encoder_q``. For DINO it is the teacher.

    Args:
        stored: arrays by their dotted names.

    Raises:
        ValueError: if the checkpoint has no supported network.
    """
    candidates = []
    for dialect in names.DIALECTS.values():
        for name in stored:
            if name == dialect.mark or name.endswith("." + dialect.mark):
                candidates.append((name.removesuffix(dialect.mark), dialect))
    if not candidates:
        _refuse_others(stored)
        arrays = abbreviate([f"{x} {list(array.shape)}" for x, array in stored.items()])
        raise ValueError(
            "expected a ResNet, ViT or ConvNeXt with names of torchvision, timm, transformers or "
            f"open_clip, got {arrays}"
        )
    prefix, dialect = min(candidates, key=lambda item: bool(SECONDARY.search(item[0])))
    parent = re.sub(r"vision_model\.$", "", prefix)
    encoder, other_names = {}, []
    for name, array in stored.items():
        inner = name.removeprefix(prefix) if name.startswith(prefix) else ""
        if dialect.outside and name == parent + dialect.outside:
            inner = dialect.outside
        common = names.translate(dialect.network, inner)
        if common and not names.IGNORED.match(common) and 0 not in array.shape:
            encoder[common] = array
        elif not name.endswith("num_batches_tracked"):
            other_names.append(name)
    _refuse_others(encoder)
    return EncoderArrays(names.combine(encoder), prefix, other_names, dialect)


def infer(encoder: EncoderArrays, options: Settings, fallback: Settings) -> Inferred:
    """Infer the network (as the config group `net`) and the usual input settings from arrays.

    Args:
        encoder: the arrays.
        options: settings of the network that replace the inferred ones. Settings that this kind of
            network does not have are ignored.
        fallback: settings that apply where neither the options nor the arrays give a value.

    Raises:
        ValueError: if the arrays belong to no supported network.
    """
    net, inputs = INFER[encoder.dialect.network](encoder, {**fallback, **options})
    allowed = inspect.signature(components.factory("net", net["name"])).parameters
    stated = {key: x for key, x in {**fallback, **net, **options}.items() if key in allowed}
    return Inferred({"name": net["name"], **stated}, inputs)


def as_float32(array: np.ndarray) -> np.ndarray:
    """Return a contiguous float32 array in native byte order.

    Raises:
        ValueError: if the numbers are complex.
    """
    if array.dtype.kind == "c":
        raise ValueError("the arrays must be real, got complex numbers")
    with np.errstate(all="ignore"):  # NaN and infinity are refused later.
        return np.array(array, np.float32, order="C")


def flatten(tree: Mapping[str, object], read: Callable[[Any], np.ndarray]) -> dict[str, Stored]:
    """Return the arrays of a nested checkpoint by their dotted names.

    Args:
        tree: entries with a shape by name, or nested dicts of them.
        read: reads the array of an entry.

    Raises:
        ValueError: if the checkpoint has too many entries.
    """
    arrays: dict[str, Stored] = {}
    for number, (name, value) in enumerate(_flatten(tree, "", 0)):
        # A dict that occurs under several keys is visited once per key, so the total is limited.
        if number >= MAX_NODES:
            raise ValueError(f"the file has more than {MAX_NODES} values")
        if hasattr(value, "shape"):
            arrays[name] = Stored(tuple(value.shape), partial(read, value))
        if len(arrays) > MAX_NAMES:
            raise ValueError(f"the file has more than {MAX_NAMES} arrays")
    return arrays


def _flatten(tree: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
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


def _refuse_others(arrays: Mapping[str, Stored]) -> None:
    """Raise ValueError if an array's name belongs to a network that is not supported."""
    for pattern, network in names.OTHER_NETWORKS.items():
        name = next(filter(re.compile(pattern).search, arrays), None)
        if name is not None:
            raise ValueError(
                f"{name[:80]!r} looks like {network}; supported: ResNet, ViT, ConvNeXt, and the "
                "image networks of CLIP and SigLIP"
            )


def _kernel_shape(encoder: EncoderArrays, name: str) -> tuple[int, ...]:
    """Return the shape [out, in, side, side] of an encoder's first convolution."""
    shape = encoder.arrays[name].shape if name in encoder.arrays else None
    if shape is None or len(shape) != 4 or shape[2] != shape[3] or shape[1] not in (1, 3):
        fault = "is missing" if shape is None else f"has shape {list(shape)}"
        raise ValueError(f"the array {name} {fault}; expected [out, 1 or 3, side, side]")
    return shape


def _shape(encoder: EncoderArrays, name: str) -> tuple[int, ...]:
    """Return the shape of an array, ones if it is missing, which `weights` reports later."""
    return encoder.arrays[name].shape if name in encoder.arrays else (1, 1, 1, 1)


def _without_defaults(network: str, settings: Mapping[str, object]) -> dict[str, object]:
    defaults = inspect.signature(components.factory("net", network)).parameters
    return {key: value for key, value in settings.items() if value != defaults[key].default}


def _count_blocks(arrays: Mapping[str, Stored], pattern: str) -> tuple[int, ...]:
    """Count the blocks of each stage. The groups of the pattern are the stage and the block."""
    matches = (re.match(pattern, name) for name in arrays)
    stages = [stage for stage, _ in {(m[1].zfill(9), m[2]) for m in matches if m}]
    return tuple(stages.count(stage) for stage in sorted({*stages}))


def _infer_resnet(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    arrays, is_deep = encoder.arrays, "conv1.0.weight" in encoder.arrays
    first = "conv1.0.weight" if is_deep else "conv1.weight"
    width, channels, side, _ = _kernel_shape(encoder, first)
    if is_deep and "bn1.weight" in arrays:  # The first convolution has half as many channels.
        width = arrays["bn1.weight"].shape[0]
    stages = _count_blocks(arrays, r"layer(\d{1,9})\.(\d+)\.")
    bottleneck = "layer1.0.conv3.weight" in arrays
    depths = [depth for depth, form in resnet.DEPTHS.items() if form == (stages, bottleneck)]
    if not depths:
        form = "bottleneck" if bottleneck else "basic"
        raise ValueError(
            f"the depth of a ResNet must be one of {', '.join(map(str, resnet.DEPTHS))}, got "
            f"{list(stages)[:8]} {form} blocks"
        )
    if side not in (3, 7):
        raise ValueError(f"the kernel conv1.weight must be 3 x 3 or 7 x 7, got {side} x {side}")
    stem = "deep" if is_deep else "imagenet" if side == 7 else _cifar_stem(encoder)
    net = {"name": "resnet", "depth": depths[0], "stem": stem, "width": width}
    extras: dict[str, object] = {"pooled_shortcut": "layer2.0.downsample.2.weight" in arrays}
    if bottleneck:
        inner = _shape(encoder, "layer1.0.conv1.weight")[0]
        grouped = _shape(encoder, "layer1.0.conv2.weight")  # [inner, inner / groups, 3, 3]
        groups = max(inner // max(grouped[1], 1), 1) if len(grouped) == 4 else 1
        extras |= {"groups": groups, "base_width": inner * 64 // (max(width, 1) * groups)}
    net |= _without_defaults("resnet", extras)
    if stem.startswith("cifar"):
        return Inferred(net, make_inputs(32, channels, CIFAR))
    return Inferred(net, make_inputs(224, channels, encoder.dialect.inputs))


def _cifar_stem(encoder: EncoderArrays) -> str:
    """Return the stem of a ResNet with a first kernel of 3 x 3.

    Solo-learn pads the kernel by two pixels. Its files have a classifier next to the backbone.
    """
    parent = re.sub(r"(momentum_)?(backbone|encoder)\.$", "", encoder.prefix)
    if parent != encoder.prefix and f"{parent}classifier.weight" in encoder.other_names:
        return "cifar_wide"
    return "cifar"


def _infer_clip_resnet(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    _, channels, _, _ = _kernel_shape(encoder, "conv1.weight")
    stages = _count_blocks(encoder.arrays, r"layer(\d{1,9})\.(\d+)\.")
    sizes = [name for name, (form, *_) in clip_resnet.SIZES.items() if form == stages]
    if not sizes:
        raise ValueError(
            f"the size of CLIP's ResNet must be one of {', '.join(clip_resnet.SIZES)}, got "
            f"{list(stages)[:8]} blocks"
        )
    width = _shape(encoder, "conv3.weight")[0]
    dim = _shape(encoder, "attnpool.c_proj.weight")[0]
    grid = math.isqrt(max(_shape(encoder, "attnpool.positional_embedding")[0] - 1, 1))
    net = {"name": "clip_resnet", "size": sizes[0], "width": width, "dim": dim}
    return Inferred(net, make_inputs(32 * grid, channels, CLIP))


def _infer_convnext(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    _, channels, _, _ = _kernel_shape(encoder, "stem.0.weight")
    depths = _count_blocks(encoder.arrays, r"stages\.(\d{1,9})\.blocks\.(\d+)\.")
    stages = range(len(depths))
    widths = [_shape(encoder, f"stages.{i}.blocks.0.norm.weight")[0] for i in stages]
    net = {"name": "convnext", "depths": [*depths], "widths": widths}
    extras = {
        "response_norm": "stages.0.blocks.0.mlp.grn.weight" in encoder.arrays,
        "epsilon": 1e-5 if tuple(widths) == XXLARGE else 1e-6,
    }
    net |= _without_defaults("convnext", extras)
    inputs = CLIP if encoder.prefix.endswith(names.OPEN_CLIP) else encoder.dialect.inputs
    return Inferred(net, make_inputs(224, channels, inputs))


def _infer_vit(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    arrays = encoder.arrays
    dim, channels, patch_size, _ = _kernel_shape(encoder, "patch_embed.proj.weight")
    (layers,) = _count_blocks(arrays, r"(blocks)\.(\d+)\.") or (0,)
    if layers < DEPTHS.get(dim, 0) and "layers" not in options:
        raise ValueError(
            f"the file has {layers} blocks, but a ViT of width {dim} usually has {DEPTHS[dim]}, so "
            f"it may be a part of a checkpoint; set layers={layers} if it is complete"
        )
    sizes = [name for name, values in vit.SIZES.items() if values[0] == dim] or ["small"]
    net = {"name": "vit", "size": sizes[0], "dim": dim, "patch_size": patch_size}
    net |= {"layers": layers, "frozen_patches": False}
    net["positions"], grid = _vit_positions(encoder, dim, patch_size)
    # timm's names do not tell CLIP and SigLIP from other ViTs, but the parts of the network do.
    inputs, net["pool"] = encoder.dialect.inputs, "token" if "cls_token" in arrays else "mean"
    if "norm_pre.weight" in arrays:
        inputs = CLIP
    if "attn_pool.latent" in arrays:
        inputs, net["pool"] = SIGLIP, "attention"
    if net["positions"] == "fixed":  # MoCo-v3, whose code resizes as torchvision does by default.
        inputs = {**inputs, "interpolation": "bilinear"}
    net |= _without_defaults("vit", _vit_extras(encoder, dim, net["positions"]))
    if options.get("num_heads") is None:
        net["num_heads"] = _vit_heads(encoder, dim, net["positions"])
    if "norm_pre.weight" in arrays and "attn_pool.latent" in arrays:
        raise ValueError("a ViT with norm_pre and attn_pool (Perception Encoder) is not supported")
    return Inferred(net, make_inputs(grid * patch_size, channels, inputs))


def _vit_positions(encoder: EncoderArrays, dim: int, patch_size: int) -> tuple[str, int]:
    """Return the kind of a ViT's positions, and the side of the grid of patches."""
    if "pos_embed" not in encoder.arrays:
        # timm gives DINOv3's names to ViTs with other rotary positions, which have no registers.
        is_timm = encoder.dialect is names.DIALECTS["timm's ViT"]
        if is_timm and "reg_token" not in encoder.arrays:
            raise ValueError("a ViT without pos_embed and reg_token is not supported")
        return "rotary", 224 // patch_size
    stored, class_token = encoder.arrays["pos_embed"], "cls_token" in encoder.arrays
    grid = _grid(stored.shape, dim, class_token + ("dist_token" in encoder.arrays))
    is_fixed = class_token and _has_fixed_positions(stored, dim, grid)
    return "fixed" if is_fixed else "learned", grid


def _vit_extras(encoder: EncoderArrays, dim: int, positions: str) -> dict[str, object]:
    """Return settings of a ViT that mostly have their default values."""
    arrays, pre_norm = encoder.arrays, "norm_pre.weight" in encoder.arrays
    # OpenAI's files store the size of the images next to the networks.
    is_openai = any(name.endswith("input_resolution") for name in encoder.other_names)
    extras = {
        "class_token": "cls_token" in arrays,
        "distilled": "dist_token" in arrays,
        "registers": arrays["reg_token"].shape[-2] if "reg_token" in arrays else 0,
        "pre_norm": pre_norm,
        "layer_scale": "blocks.0.ls1.gamma" in arrays,
        "activation": "quick_gelu" if is_openai else "gelu",
        "epsilon": 1e-5 if pre_norm or positions == "rotary" else 1e-6,
        "projection": arrays["proj"].shape[-1] if "proj" in arrays else 0,
        **encoder.dialect.settings,
    }
    first, last = (arrays.get(f"blocks.0.mlp.fc{i}.weight") for i in (1, 2))
    if first is not None and last is not None:
        mlp_dim = last.shape[-1]
        extras["mlp_dim"] = None if mlp_dim == 4 * dim else mlp_dim
        if first.shape[0] == 2 * mlp_dim:
            extras["activation"] = "swiglu"
    return extras


def _vit_heads(encoder: EncoderArrays, dim: int, positions: str) -> int:
    """Return the number of attention heads that public ViTs of this width have."""
    if dim % 64:
        raise ValueError(f"num_heads cannot be inferred for a ViT of width {dim}; set num_heads")
    if positions == "fixed" and dim == 384:  # MoCo-v3, others have 6 heads.
        return 12
    if positions == "rotary":  # DINOv3
        return {4096: 32}.get(dim, dim // 64)
    if dim == 1536 and "cls_token" not in encoder.arrays:  # SigLIP's giant
        return 16
    return WIDE_HEADS.get(dim, dim // 64)


def _grid(shape: tuple[int, ...], dim: int, most_tokens: int) -> int:
    """Return the side of the grid of patches that a table of positions belongs to."""
    count = shape[-2] if len(shape) in (2, 3) else 0
    for tokens in range(most_tokens, -1, -1):
        grid = math.isqrt(max(count - tokens, 0))
        if grid and shape[-2:] == (tokens + grid * grid, dim) and shape[:-2] in ((), (1,)):
            return grid
    raise ValueError(
        f"pos_embed has shape {list(shape)}; expected [1, 1 + patches, {dim}] of a class token and "
        "a square grid of patches"
    )


def _has_fixed_positions(stored: Stored, dim: int, grid: int) -> bool:
    if dim % 4 or stored.shape[-2] != 1 + grid * grid:
        return False
    positions = parameter_names.fixed_positions(vit.ViT(dim, 1, 1, 1), grid)["pos_embed"]
    array = stored.load()
    rounding = 2**-8 if array.dtype.itemsize == 2 else 1e-4  # half precision
    return np.allclose(as_float32(array), positions, rtol=0, atol=rounding)


def make_inputs(size: int, channels: int, settings: Settings) -> Inputs:
    """Return an encoder's input settings. For grey images, RGB means and stds are averaged."""
    mean, std = settings["mean"], settings["std"]
    if channels == 1:
        mean, std = ((round(sum(values) / 3, 4),) for values in (mean, std))
    return Inputs(size, channels, **{**settings, "mean": mean, "std": std})


INFER = {
    "resnet": _infer_resnet,
    "clip_resnet": _infer_clip_resnet,
    "vit": _infer_vit,
    "convnext": _infer_convnext,
}

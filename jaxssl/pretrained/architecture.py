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
from jaxssl.models import clip_resnet, resnet, vit
from jaxssl.pretrained import names, parameter_names
from jaxssl.pretrained.names import CLIP, SIGLIP, Dialect, Stored

Inferred = tuple[dict[str, Any], Inputs]

MAX_NAMES, MAX_NODES, MAX_LENGTH, MAX_DEPTH = 100_000, 1_000_000, 1_000, 4
# If a file has two encoders, names that match this pattern belong to the one not meant for use: a
# momentum copy, or DINO's student.
SECONDARY = re.compile(r"momentum|encoder_k|student|target|ema\b|_ema|(^|\.)text")
CIFAR = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
MISSING = Stored((1, 1, 1, 1), partial(np.zeros, 1))
# Number of blocks of public ViTs by their width.
DEPTHS = {192: 12, 384: 12, 768: 12, 1024: 24, 1152: 27, 1280: 32, 1408: 40, 1536: 40, 1664: 48}
# Maps the width to the number of heads, for ViTs without 64 channels a head.
WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}


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


def find_encoder(stored: Mapping[str, Stored]) -> EncoderArrays:
    """Find the encoder in a checkpoint of another project.

    If there are two, the one trained by gradients is used, such as MoCo's ``base_encoder`` or
    ``encoder_q``. For DINO it is the teacher.

    Args:
        stored: arrays by their dotted names.

    Raises:
        ValueError: if there is no supported network.
    """
    found = [
        (name.removesuffix(dialect.mark), dialect)
        for dialect in names.DIALECTS.values()
        for name in stored
        if name == dialect.mark or name.endswith("." + dialect.mark)
    ]
    if not found:
        _refuse_others(stored)
        texts = abbreviate([f"{name} {list(array.shape)}" for name, array in stored.items()])
        raise ValueError(
            "expected a ResNet, ViT or ConvNeXt with names of torchvision, timm, transformers or "
            f"open_clip, got {texts}"
        )
    prefix, dialect = min(found, key=lambda item: bool(SECONDARY.search(item[0])))
    parent = re.sub(r"vision_model\.$", "", prefix)
    encoder, other_names = {}, []
    for name, array in stored.items():
        inside = name.startswith(prefix)
        if dialect.outside and name == parent + dialect.outside:
            inner = dialect.outside
        else:
            inner = name.removeprefix(prefix) if inside else ""
        inner = names.translate(dialect.network, inner)
        if inner and not names.IGNORED.match(inner) and 0 not in array.shape:
            encoder[inner] = array
        elif not name.endswith("num_batches_tracked"):
            other_names.append(name)
    _refuse_others(encoder)
    return EncoderArrays(names.combine(encoder), prefix, other_names, dialect)


def infer(encoder: EncoderArrays, options: Mapping[str, object] = {}) -> Inferred:
    """Infer the network (as the config group `net`) and the usual input settings from arrays.

    Args:
        encoder: the arrays.
        options: settings of the network that replace the inferred ones. Those that are not
            settings of this kind of network are ignored.

    Raises:
        ValueError: if the arrays belong to no supported network.
    """
    net, inputs = INFER[encoder.dialect.network](encoder, options)
    allowed = inspect.signature(components.factory("net", net["name"])).parameters
    return net | {key: value for key, value in options.items() if key in allowed}, inputs


def abbreviate(items: list[str], most: int = 3) -> str:
    """List the first items of a collection and the number of all, for messages."""
    text = ", ".join(item[:80] for item in items[:most])
    return f"{text} ... ({len(items)})" if len(items) > most else text or "nothing"


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
        raise ValueError(f"the array {name} {fault}; expected [out, 3, side, side]")
    return shape


def _without_defaults(network: str, settings: Mapping[str, object]) -> dict[str, object]:
    defaults = inspect.signature(components.factory("net", network)).parameters
    return {key: value for key, value in settings.items() if value != defaults[key].default}


def _count_blocks(arrays: Mapping[str, Stored], pattern: str) -> tuple[int, ...]:
    """Return the blocks of each stage, from names whose start matches "(stage) (block)"."""
    matches = (re.match(pattern, name) for name in arrays)
    stages = [stage for stage, _ in {(m[1].zfill(9), m[2]) for m in matches if m}]
    return tuple(stages.count(stage) for stage in sorted({*stages}))


def _infer_resnet(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    arrays, deep = encoder.arrays, "conv1.0.weight" in encoder.arrays
    out, channels, side, _ = _kernel_shape(encoder, "conv1.0.weight" if deep else "conv1.weight")
    width = arrays["bn1.weight"].shape[0] if deep and "bn1.weight" in arrays else out
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
    stem = "deep" if deep else "imagenet" if side == 7 else "cifar"
    # Solo-learn pads the 3 x 3 kernel by two pixels. Its files are recognised by the classifier
    # beside the backbone.
    parent = re.sub(r"(momentum_)?(backbone|encoder)\.$", "", encoder.prefix)
    solo = parent != encoder.prefix and f"{parent}classifier.weight" in encoder.other_names
    stem = "cifar_wide" if stem == "cifar" and solo else stem
    net = {"name": "resnet", "depth": depths[0], "stem": stem, "width": width}
    extras: dict[str, object] = {"pooled_shortcut": "layer2.0.downsample.2.weight" in arrays}
    if bottleneck:
        inner, group = (arrays.get(f"layer1.0.conv{i}.weight", MISSING).shape for i in (1, 2))
        extras["groups"] = max(inner[0] // max(group[1], 1), 1) if len(group) == 4 else 1
        extras["base_width"] = inner[0] * 64 // (max(width, 1) * extras["groups"])
    net |= _without_defaults("resnet", extras)
    if stem.startswith("cifar"):
        return net, make_inputs(32, channels, CIFAR)
    return net, make_inputs(224, channels, encoder.dialect.inputs)


def _infer_clip_resnet(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    arrays, (_, channels, _, _) = encoder.arrays, _kernel_shape(encoder, "conv1.weight")
    stages = _count_blocks(arrays, r"layer(\d{1,9})\.(\d+)\.")
    sizes = [name for name, (form, *_) in clip_resnet.SIZES.items() if form == stages]
    if not sizes:
        raise ValueError(
            f"the size of CLIP's ResNet must be one of {', '.join(clip_resnet.SIZES)}, got "
            f"{list(stages)[:8]} blocks"
        )
    width, dim, table = (
        arrays.get(name, MISSING).shape
        for name in ("conv3.weight", "attnpool.c_proj.weight", "attnpool.positional_embedding")
    )
    net = {"name": "clip_resnet", "size": sizes[0], "width": width[0], "dim": dim[0]}
    return net, make_inputs(32 * math.isqrt(max(table[0] - 1, 1)), channels, CLIP)


def _infer_convnext(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    _, channels, _, _ = _kernel_shape(encoder, "stem.0.weight")
    depths = _count_blocks(encoder.arrays, r"stages\.(\d{1,9})\.blocks\.(\d+)\.")
    firsts = [f"stages.{i}.blocks.0.norm.weight" for i in range(len(depths))]
    net = {
        "name": "convnext",
        "depths": [*depths],
        "widths": [encoder.arrays.get(name, MISSING).shape[0] for name in firsts],
    }
    norm = {"response_norm": "stages.0.blocks.0.mlp.grn.weight" in encoder.arrays}
    net |= _without_defaults("convnext", norm)
    return net, make_inputs(224, channels, encoder.dialect.inputs)


def _infer_vit(encoder: EncoderArrays, options: Mapping[str, object]) -> Inferred:
    arrays, inputs = encoder.arrays, encoder.dialect.inputs
    dim, channels, patch, _ = _kernel_shape(encoder, "patch_embed.proj.weight")
    (layers,) = _count_blocks(arrays, r"(blocks)\.(\d+)\.") or (0,)
    if layers < DEPTHS.get(dim, 0) and "layers" not in options:
        raise ValueError(
            f"the file has {layers} blocks, but a ViT of width {dim} usually has {DEPTHS[dim]}, so "
            f"it may be a part of a checkpoint; set layers={layers} if it is complete"
        )
    sizes = [name for name, values in vit.SIZES.items() if values[0] == dim] or ["small"]
    net = {"name": "vit", "size": sizes[0], "dim": dim, "patch_size": patch}
    net |= {"layers": layers, "frozen_patches": False}
    distilled, class_token = "dist_token" in arrays, "cls_token" in arrays
    rotary, grid, fixed = "pos_embed" not in arrays, 224 // patch, False
    if not rotary:
        grid = _grid(arrays["pos_embed"].shape, dim, class_token + distilled)
        fixed = class_token and _has_fixed_positions(arrays["pos_embed"], dim, grid)
    net["positions"] = "rotary" if rotary else "fixed" if fixed else "learned"
    pooled, clip = "attn_pool.latent" in arrays, "norm_pre.weight" in arrays
    net["pool"] = "attention" if pooled else "token" if class_token else "mean"
    # timm's names do not tell CLIP and SigLIP from other ViTs, but the parts of the network do.
    inputs = CLIP if clip else SIGLIP if pooled else inputs
    # OpenAI's files store the size of the images beside the networks.
    openai = any(name.endswith("input_resolution") for name in encoder.other_names)
    extras = {
        "class_token": class_token,
        "distilled": distilled,
        "registers": arrays["reg_token"].shape[-2] if "reg_token" in arrays else 0,
        "pre_norm": clip,
        "layer_scale": "blocks.0.ls1.gamma" in arrays,
        "activation": "quick_gelu" if openai else "gelu",
        "epsilon": 1e-5 if clip or rotary else 1e-6,
        "projection": arrays["proj"].shape[-1] if "proj" in arrays else 0,
    } | dict(encoder.dialect.settings)
    first, last = (arrays.get(f"blocks.0.mlp.fc{i}.weight") for i in (1, 2))
    if first is not None and last is not None:
        extras["mlp_dim"] = None if last.shape[-1] == 4 * dim else last.shape[-1]
        if first.shape[0] == 2 * last.shape[-1]:
            extras["activation"] = "swiglu"
    net |= _without_defaults("vit", extras)
    if options.get("num_heads") is None:
        if dim % 64:
            raise ValueError(
                f"num_heads cannot be inferred for a ViT of width {dim}; set num_heads"
            )
        # MoCo-v3's small ViT has 12 heads. MoCo-v3's ViTs are the only public ones with fixed
        # positions.
        moco = fixed or re.search(r"(base|momentum)_encoder\.$", encoder.prefix)
        net["num_heads"] = 12 if moco and dim == 384 else WIDE_HEADS.get(dim, dim // 64)
    return net, make_inputs(grid * patch, channels, inputs)


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
    return np.allclose(as_float32(stored.load()), positions, rtol=0, atol=1e-4)


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

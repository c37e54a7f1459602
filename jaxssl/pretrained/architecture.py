"""Where the encoder is in somebody's checkpoint, and which network it is."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxssl.augment.views import Inputs
from jaxssl.models import resnet, vit
from jaxssl.pretrained import parameter_names

MAX_NAMES, MAX_NODES, MAX_LENGTH, MAX_DEPTH = 100_000, 1_000_000, 1_000, 4
# A name that tells where an encoder of a kind begins.
MARKS = ("layer1.0.conv1.weight", "patch_embed.proj.weight", "conv_proj.weight")
# What a method does not hand on: the copy that follows the trained encoder, but DINO's teacher.
SECOND = re.compile(r"momentum|encoder_k|student|target|ema\b|_ema")
HEADS = re.compile(
    r"(fc|heads?|head_dist|mlp_head|pre_logits|linear|classifier|project(or|ion)\w*|prototypes|"
    r"predict(or|ion)\w*|online_\w+|momentum_\w+|queue\w*|dino_head|last_layer)\b"
)
# torchvision's ViTs by timm's names, which DINO and MoCo-v3 have too
RENAMED = {
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
HEADS_OF = {1280: 16}  # the huge ViT, whose heads are wider than the 64 of all others


class Shaped(Protocol):
    """An array that is still in its file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        ...


Read = Callable[[Any], np.ndarray]


class Found(NamedTuple):
    """An encoder in a checkpoint.

    Attributes:
        arrays: by their public names, without heads.
        place: what stands before the names in the file; "" if nothing.
        others: the names of the file that do not belong to it.
    """

    arrays: dict[str, Shaped]
    place: str
    others: list[str]


def encoder(tree: Mapping[str, Any]) -> Found:
    """The encoder in what was saved.

    Of several, the one that was trained by gradients is taken, as MoCo's ``base_encoder`` or
    ``encoder_q``; of DINO's two it is the teacher.

    Raises:
        ValueError: if there is none of a known kind.
    """
    arrays: dict[str, Shaped] = {}
    for number, (name, value) in enumerate(_flat(tree, "", 0)):
        # A dict that lies at many places is visited at each.
        if number >= MAX_NODES:
            raise ValueError(f"it holds more than {MAX_NODES} values")
        if hasattr(value, "shape"):
            arrays[name] = value
        if len(arrays) > MAX_NAMES:
            raise ValueError(f"it holds more than {MAX_NAMES} arrays")
    places = [name.removesuffix(mark) for name in arrays for mark in MARKS if _ends(name, mark)]
    if not places:
        shown = listed([f"{name} {list(array.shape)}" for name, array in arrays.items()])
        raise ValueError(f"no ResNet or ViT by torchvision's or timm's names in it, but {shown}")
    place = min(places, key=lambda place: bool(SECOND.search(place)))
    own, others = {}, []
    for name, array in arrays.items():
        inner = name.removeprefix(place)
        if not name.startswith(place) or HEADS.match(inner):
            others.append(name)
        elif not inner.endswith("num_batches_tracked"):
            own[_timm(inner) if place + MARKS[2] in arrays else inner] = array
    return Found(own, place, others)


def describe(
    found: Found, read: Read, *, num_heads: int | None, stem: str | None
) -> tuple[dict[str, Any], Inputs]:
    """The network of an encoder, as the group `net` of a config, and how it wants its images.

    Args:
        found: the encoder.
        read: reads one of its arrays.
        num_heads: of a ViT, in place of the usual ones.
        stem: of a ResNet, in place of what the first kernel tells.

    Raises:
        ValueError: if there is no such network here.
    """
    if "patch_embed.proj.weight" in found.arrays:
        return _vit(found, read, num_heads)
    return _resnet(found, stem)


def listed(items: list[str], most: int = 3) -> str:
    """The first few and how many there are."""
    shown = ", ".join(item[:80] for item in items[:most])
    return f"{shown} ... ({len(items)})" if len(items) > most else shown or "nothing"


def _flat(tree: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Every value, dicts too; None for one without a name."""
    for key, value in tree.items():
        if not isinstance(key, str):
            yield "", None
            continue
        if len(prefix) + len(key) > MAX_LENGTH:
            raise ValueError(f"it holds a name of more than {MAX_LENGTH} characters")
        yield prefix + key, value
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from _flat(value, f"{prefix}{key}.", depth + 1)


def _ends(name: str, mark: str) -> bool:
    return name == mark or name.endswith("." + mark)


def _timm(name: str) -> str:
    for pattern, by in RENAMED.items():
        name = re.sub("^" + pattern, by, name)
    return name


def _kernel(found: Found, name: str) -> tuple[int, int, int, int]:
    """The shape [out, in, side, side] of the first convolution."""
    shape = found.arrays[name].shape if name in found.arrays else None
    if shape is None or len(shape) != 4 or shape[2] != shape[3] or shape[1] not in (1, 3):
        said = "is missing" if shape is None else f"has shape {list(shape)}"
        raise ValueError(f"{name} {said}; expected [out, 3, side, side]")
    return shape


def _resnet(found: Found, stem: str | None) -> tuple[dict[str, Any], Inputs]:
    width, channels, side, _ = _kernel(found, "conv1.weight")
    matches = (re.match(r"layer(\d+)\.(\d+)\.", name) for name in found.arrays)
    blocks = {(int(m[1][:6]), int(m[2][:6])) for m in matches if m}
    stages = tuple(sum(s == stage for s, _ in blocks) for stage in sorted({s for s, _ in blocks}))
    bottleneck = "layer1.0.conv3.weight" in found.arrays
    depths = [depth for depth, form in resnet.DEPTHS.items() if form == (stages, bottleneck)]
    form = "bottleneck" if bottleneck else "basic"
    if not depths:
        raise ValueError(
            f"a ResNet of {list(stages)[:8]} {form} blocks; known are those of depth "
            f"{', '.join(map(str, resnet.DEPTHS))}"
        )
    if side not in (3, 7):
        raise ValueError(f"conv1.weight is a {side} x {side} kernel; expected 3 x 3 or 7 x 7")
    if stem is None:
        # Of solo-learn alone the small kernel has two pixels of padding. Its files have a
        # classifier beside the backbone.
        before = re.sub(r"(momentum_)?(backbone|encoder)\.$", "", found.place)
        solo = before != found.place and f"{before}classifier.weight" in found.others
        stem = "imagenet" if side == 7 else "cifar_wide" if solo else "cifar"
    net = {"name": "resnet", "depth": depths[0], "stem": stem, "width": width}
    if side == 7:
        return net, Inputs(224, channels, **_grey(IMAGENET, channels), crop=IMAGENET_CROP)
    return net, Inputs(32, channels, **_grey(CIFAR, channels))


def _vit(found: Found, read: Read, num_heads: int | None) -> tuple[dict[str, Any], Inputs]:
    dim, channels, patch, _ = _kernel(found, "patch_embed.proj.weight")
    matches = (re.match(r"blocks\.(\d+)\.", name) for name in found.arrays)
    layers = len({m[1] for m in matches if m})
    shape = found.arrays["pos_embed"].shape if "pos_embed" in found.arrays else ()
    grid = math.isqrt(max(shape[1] - 1, 0)) if len(shape) == 3 else 0
    if not grid or shape != (1, 1 + grid * grid, dim):
        raise ValueError(
            f"pos_embed has shape {list(shape)}; expected [1, 1 + patches, {dim}] of a class token "
            "and a square grid of patches"
        )
    usual = [name for name, values in vit.SIZES.items() if values[0] == dim] or ["small"]
    net = {"name": "vit", "size": usual[0], "dim": dim, "layers": layers, "patch_size": patch}
    net |= {"frozen_patches": False, "pool": "token"}
    fixed = vit.ViT(dim, layers, 1, patch)
    if dim % 4 == 0:
        ours = parameter_names.derived(fixed, grid * patch)["pos_embed"]
        same = np.allclose(as_float32(read(found.arrays["pos_embed"])), ours, rtol=0, atol=1e-4)
    else:
        same = False
    net["positions"] = "fixed" if same else "learned"
    if num_heads is None:
        if dim % 64:
            raise ValueError(f"the number of heads of a ViT of {dim} is not known; give num_heads")
        # MoCo-v3's small ViT has smaller heads; the fixed positions are its own too.
        moco = same or re.search(r"(base|momentum)_encoder\.$", found.place)
        num_heads = 12 if moco and dim == 384 else HEADS_OF.get(dim, dim // 64)
    net["num_heads"] = num_heads
    size = grid * patch
    return net, Inputs(size, channels, **_grey(IMAGENET, channels), crop=IMAGENET_CROP)


def _grey(
    statistics: Mapping[str, tuple[float, ...]], channels: int
) -> dict[str, tuple[float, ...]]:
    """Those of the mean of the channels, for a network of one."""
    if channels == 3:
        return dict(statistics)
    return {name: (round(sum(values) / 3, 4),) for name, values in statistics.items()}


def as_float32(array: np.ndarray) -> np.ndarray:
    """A copy, contiguous and in native order.

    Raises:
        ValueError: if the numbers are complex.
    """
    if array.dtype.kind == "c":
        raise ValueError("an array of complex numbers")
    with np.errstate(all="ignore"):  # what is not finite stays so
        return np.array(array, np.float32, order="C")

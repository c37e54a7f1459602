"""Resize a ViT's learned positions to another patch grid, as the project of the weights does."""

import math

import numpy as np

from jaxssl.models.vit import ViT
from jaxssl.pretrained.architecture import EncoderArrays, as_float32
from jaxssl.pretrained.names import DIALECTS, Stored

# Rules by which projects resize positions: (antialiasing, offset), see `resize`. The names are
# stored in exported files.
RULES = {"timm": (True, 0.0), "torch": (False, 0.0), "dino": (False, 0.1)}


def fit(encoder: EncoderArrays, net: ViT, size: int, rule: str) -> EncoderArrays:
    """Return an encoder's arrays, with positions resized to images of ``size`` x ``size`` pixels.

    Positions are interpolated bicubically by one of `RULES`.
    """
    if rule not in RULES:
        valid = ", ".join(RULES)
        raise ValueError(f"the positions in the header must be one of {valid}, got {rule!r:.80}")
    stored, patches = encoder.arrays["pos_embed"], (size // net.patch_size) ** 2
    shape = (net.num_class_tokens + patches, net.dim)
    if stored.shape[-2:] == shape:
        return encoder
    antialias, offset = RULES[rule]

    def load() -> np.ndarray:
        table = as_float32(stored.load()).reshape(-1, net.dim)
        return resize(table, net.num_class_tokens, patches, antialias=antialias, offset=offset)

    return encoder._replace(arrays=encoder.arrays | {"pos_embed": Stored(shape, load)})


def find_rule(encoder: EncoderArrays, net: ViT) -> str:
    """Return the rule of the project that an encoder's arrays are from.

    timm smooths before it shrinks positions (antialiasing), and so do all networks with registers.
    The code of DINO and DINOv2 samples the grid at steps of old / (new + 0.1).
    """
    if net.registers > 0:
        return "timm"
    if _is_dino(encoder):
        return "dino"
    return "timm" if encoder.dialect is DIALECTS["timm's ViT"] else "torch"


def _is_dino(encoder: EncoderArrays) -> bool:
    """Return True for a checkpoint of DINO or DINOv2, which use timm's names."""
    teachers = ("teacher.", "teacher.backbone.", "teacher.module.backbone.")
    if encoder.dialect is not DIALECTS["timm's ViT"]:
        return False
    # Files of MAE's pretraining have a mask token too, but also a decoder.
    names = encoder.other_names
    has_mask_token = any(name.endswith("mask_token") for name in names)
    has_decoder = any("decoder_" in name for name in names)
    return (has_mask_token and not has_decoder) or encoder.prefix.endswith(teachers)


def resize(
    table: np.ndarray, tokens: int, patches: int, *, antialias: bool = True, offset: float = 0.0
) -> np.ndarray:
    """Interpolate learned positions bicubically for another square grid of patches.

    Args:
        table: [old tokens + old patches, dim].
        tokens: number of positions before the patches. If the table has another number of them,
            they become zero.
        patches: new number of patches.
        antialias: whether to smooth before the grid is shrunk, as timm does.
        offset: the grid is sampled at steps of old side / (new side + offset).

    Returns:
        [tokens + patches, dim], float32 for a float32 table.
    """
    old, side = math.isqrt(len(table)), math.isqrt(patches)
    first, grid = np.split(table, [len(table) - old * old])
    first = first if len(first) == tokens else np.zeros((tokens, table.shape[1]), np.float32)
    if old == side:
        return np.concatenate([first, grid])
    matrix = _resampling(side, old, antialias=antialias, offset=offset)
    grid = np.einsum("yi,xj,ijd->yxd", matrix, matrix, grid.reshape(old, old, -1), optimize=True)
    return np.concatenate([first, grid.reshape(side * side, -1)])


def _resampling(new: int, old: int, *, antialias: bool, offset: float) -> np.ndarray:
    """Return the matrix [new, old] of a bicubic interpolation with PyTorch's coefficients."""
    step = old / (new + offset)
    scale = max(step, 1) if antialias else 1
    margin = 0 if antialias else 3
    places = np.arange(-margin, old + margin)
    centres = (np.arange(new)[:, None] + 0.5) * step
    weights = _cubic(np.abs(places + 0.5 - centres) / scale, -0.5 if antialias else -0.75)
    if antialias:
        return weights / weights.sum(1, keepdims=True)
    # Places outside the grid take the value at its border.
    return weights @ np.eye(old, dtype=np.float32)[places.clip(0, old - 1)]


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Return Keys' cubic convolution kernel at distances x >= 0."""
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)

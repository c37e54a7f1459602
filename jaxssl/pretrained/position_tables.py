"""Resize a ViT's learned positions to another patch grid, as the project of the weights does."""

import logging
import math
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from jaxssl.components import Settings
from jaxssl.models.vit import ViT
from jaxssl.pretrained.architecture import EncoderArrays, as_float32
from jaxssl.pretrained.names import DIALECTS, Stored

log = logging.getLogger("jaxssl")

# Rules by which projects resize positions: (antialiasing, offset), see `resize`. The names are
# stored in exported files.
RULES: dict[str, tuple[bool, float | None]] = {
    "timm": (True, 0.0),
    "torch": (False, 0.0),
    "dino": (False, 0.1),
    "torchvision": (False, None),
}


class Fitted(NamedTuple):
    """An encoder's arrays with positions of the wanted size.

    Attributes:
        encoder: the arrays.
        origin: entries for the header of an export: "positions", one of `RULES`, and
            "resized_from", the size in pixels for which the positions were trained, if not this.
    """

    encoder: EncoderArrays
    origin: Settings


def fit(encoder: EncoderArrays, net: nn.Module, size: int, header: Settings) -> Fitted:
    """Resize an encoder's learned positions, if it has any, to ``size`` x ``size`` pixels.

    Positions are interpolated bicubically by the rule in the ``header`` of an exported file, or the
    rule of the project that the arrays are from. If the tokens before the patches have none, they
    get zeros.

    Raises:
        ValueError: if the header's rule is unknown.
    """
    if not isinstance(net, ViT) or net.positions != "learned" or "pos_embed" not in encoder.arrays:
        return Fitted(encoder, {})
    # Exported files have the names of timm, whatever project they are from.
    rule, trained = header.get("positions") or _rule(encoder, net), header.get("resized_from")
    if not isinstance(rule, str) or rule not in RULES:
        valid = ", ".join(RULES)
        raise ValueError(f"the positions in the header must be one of {valid}, got {rule!r:.80}")
    stored, patches = encoder.arrays["pos_embed"], (size // net.patch_size) ** 2
    shape = (net.num_class_tokens + patches, net.dim)
    if stored.shape[-2:] == shape:
        return Fitted(encoder, {"positions": rule, "resized_from": trained})
    old_size = math.isqrt(stored.shape[-2]) * net.patch_size
    is_resized = old_size != size // net.patch_size * net.patch_size
    if trained and is_resized:
        log.warning(
            "the positions were resized from images of %s pixels before, and are resized again to "
            "%s; load the original weights with size=%s instead",
            *(trained, size, size),
        )
    antialias, offset = RULES[rule]
    trained = trained or (old_size if is_resized else None)

    def load() -> np.ndarray:
        table = as_float32(stored.load()).reshape(-1, net.dim)
        return resize(table, net.num_class_tokens, patches, antialias=antialias, offset=offset)

    encoder = encoder._replace(arrays=encoder.arrays | {"pos_embed": Stored(shape, load)})
    return Fitted(encoder, {"positions": rule, "resized_from": trained})


def _rule(encoder: EncoderArrays, net: ViT) -> str:
    """Return the rule of the project that an encoder's arrays are from.

    timm and open_clip smooth before they shrink positions (antialiasing), and so do all networks
    with registers. The code of DINO and DINOv2 samples the grid at steps of old / (new + 0.1), and
    torchvision from corner to corner. MAE's code, of which a decoder tells, and transformers use
    PyTorch's defaults.
    """
    if net.registers > 0:
        return "timm"
    if _is_dino(encoder):
        return "dino"
    if encoder.dialect is DIALECTS["torchvision's ViT"]:
        return "torchvision"
    smooth = "timm's ViT", "OpenAI's and open_clip's CLIP"
    is_smooth = any(encoder.dialect is DIALECTS[name] for name in smooth)
    return "timm" if is_smooth and not _has_decoder(encoder) else "torch"


def _has_decoder(encoder: EncoderArrays) -> bool:
    return any("decoder_" in name for name in encoder.other_names)


def _is_dino(encoder: EncoderArrays) -> bool:
    """Return True for a checkpoint of DINO or DINOv2, which use timm's names."""
    teachers = ("teacher.", "teacher.backbone.", "teacher.module.backbone.")
    if encoder.dialect is not DIALECTS["timm's ViT"]:
        return False
    # Files of MAE's pretraining have a mask token too, but also a decoder.
    has_mask_token = any(name.endswith("mask_token") for name in encoder.other_names)
    is_teacher = encoder.prefix.endswith(teachers)
    return (has_mask_token and not _has_decoder(encoder)) or is_teacher


def resize(
    table: np.ndarray,
    tokens: int,
    patches: int,
    *,
    antialias: bool = True,
    offset: float | None = 0.0,
) -> np.ndarray:
    """Interpolate learned positions bicubically for another square grid of patches.

    Args:
        table: [old tokens + old patches, dim].
        tokens: number of positions before the patches. If the table has another number of them,
            they become zero.
        patches: new number of patches.
        antialias: whether to smooth before the grid is shrunk, as timm does.
        offset: the grid is sampled at steps of old side / (new side + offset), or from corner to
            corner if it is None.

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


def _resampling(new: int, old: int, *, antialias: bool, offset: float | None) -> np.ndarray:
    """Return the matrix [new, old] of a bicubic interpolation with PyTorch's coefficients."""
    step = (old - 1) / max(new - 1, 1) if offset is None else old / (new + offset)
    scale = max(step, 1) if antialias else 1
    margin = 0 if antialias else 3
    places = np.arange(-margin, old + margin)
    centres = np.arange(new)[:, None] * step + (0.5 if offset is None else 0.5 * step)
    weights = _cubic(np.abs(places + 0.5 - centres) / scale, -0.5 if antialias else -0.75)
    if antialias:
        return weights / weights.sum(1, keepdims=True)
    # Places outside the grid take the value at its border.
    return weights @ np.eye(old, dtype=np.float32)[places.clip(0, old - 1)]


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Return Keys' cubic convolution kernel at distances x >= 0."""
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(np.float32)

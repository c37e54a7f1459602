"""Resize video clips and select windows of their frames."""

import numpy as np
from PIL import Image


def resize(clip: np.ndarray, side: int) -> np.ndarray:
    """Resize the frames of a uint8 clip [t, h, w, c] to [t, side, side, c]."""
    if clip.shape[1:3] == (side, side):
        return clip
    t, _, _, c = clip.shape
    out = np.empty((t, side, side, c), np.uint8)
    for i, k in np.ndindex(t, c):
        plane = Image.fromarray(clip[i, :, :, k])
        out[i, :, :, k] = np.asarray(plane.resize((side, side), Image.Resampling.BILINEAR))
    return out


def window(
    clip: np.ndarray, frames: int, stride: int, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Take every ``stride``-th frame of a random part of a clip. A short clip is repeated.

    Args:
        clip: [t, h, w, c], t > 0.
        frames: number of frames of the result, > 0.
        stride: distance between the chosen frames, > 0.
        rng: draws the first frame. With None the window is in the middle. If the frames left over
            are odd in number, one more of them follows the window than precedes it.

    Returns:
        [frames, h, w, c].

    Differs from CoCLR's released code, which repeats the first frame before a clip that is too
    short.
    """
    rest = len(clip) - ((frames - 1) * stride + 1)
    start = 0
    if rest > 0:
        start = rest // 2 if rng is None else int(rng.integers(rest + 1))
    return clip[(start + stride * np.arange(frames)) % len(clip)]

"""Validate a network's input settings from a file or a user."""

import math
from typing import Any

import flax.linen as nn
import numpy as np
from jax import Array

from jaxssl.augment.image import INTERPOLATIONS
from jaxssl.augment.views import Inputs
from jaxssl.components import Settings
from jaxssl.data.decoders.decoding import MAX_CHANNELS
from jaxssl.errors import UserError
from jaxssl.models import convnet, convnext, vit
from jaxssl.training.config.values import MOST_LAYERS, MOST_PIXELS

MAX_POSITIONS = 1 << 24  # largest number of values in the position embeddings of one image


def override(inputs: Inputs, net: nn.Module, **settings: object) -> Inputs:
    """Replace input settings of a network by the user's.

    Args:
        inputs: the settings of the file, or the defaults.
        net: the backbone.
        **settings: ``mean``, ``std``, ``crop``, ``size`` or ``interpolation``.

    Raises:
        UserError: if a setting is out of range, or a ViT cannot take images of the size.
    """
    try:
        result = validate(inputs._asdict() | settings)
    except ValueError as error:
        raise UserError(str(error)) from error
    if isinstance(net, vit.ViT) and "size" in settings and result.size % net.patch_size:
        raise UserError(
            f"size must be a multiple of the network's patches of {net.patch_size} pixels, got "
            f"{result.size}"
        )
    return result


def validate(settings: Settings) -> Inputs:
    """Validate input settings. ``mean`` and ``std`` may be a number, a list or an array.

    Raises:
        ValueError: if a value has the wrong type or is out of range.
    """
    inputs = Inputs(**settings)
    size, channels = inputs.size, inputs.channels
    if type(size) is not int or not 0 < size <= MOST_PIXELS:
        raise ValueError(f"size must be an int from 1 to {MOST_PIXELS}, got {size!r:.80}")
    if type(channels) is not int or not 0 < channels <= MAX_CHANNELS:
        raise ValueError(f"channels must be from 1 to {MAX_CHANNELS}, got {channels!r:.80}")
    mean = _statistics("mean", inputs.mean, channels)
    std = _statistics("std", inputs.std, channels)
    crop = inputs.crop if inputs.crop is None else _numbers(inputs.crop)
    if crop is not None and (len(crop) != 1 or not 0 <= crop[0] <= 1):
        raise ValueError(
            "crop must be a number in [0, 1], a fraction of the short side (0 resizes the whole "
            f"image), got {inputs.crop!r:.80}"
        )
    if inputs.interpolation not in tuple(INTERPOLATIONS):  # A list has no hash.
        raise ValueError(
            f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got "
            f"{inputs.interpolation!r:.80}"
        )
    return inputs._replace(mean=mean, std=std, crop=crop and crop[0])


def check_limits(net: nn.Module, size: int) -> None:
    """Refuse a network with a size, from a damaged file, that would exhaust time or memory.

    Args:
        net: the backbone.
        size: side of the images in pixels.

    Raises:
        ValueError: if the network has more than `MOST_LAYERS` layers, or its position embeddings
            have more than `MAX_POSITIONS` values.
    """
    layers = positions = 0
    if isinstance(net, vit.ViT):
        layers, positions = net.layers, (size // net.patch_size) ** 2 * net.dim
    elif isinstance(net, convnet.ConvNet):
        layers = len(net.widths)
    elif isinstance(net, convnext.ConvNeXt):
        layers = sum(net.depths)
    if layers > MOST_LAYERS:
        raise ValueError(f"the network must have at most {MOST_LAYERS} layers, got {layers}")
    if positions > MAX_POSITIONS:
        raise ValueError(
            f"the positions of a ViT must have at most {MAX_POSITIONS} numbers, got {positions} "
            f"(width {net.dim}, patches of {net.patch_size} pixels, images of {size}); use smaller "
            "images"
        )


def _statistics(name: str, value: object, channels: int) -> tuple[float, ...]:
    """Return the setting "mean" or "std" as a tuple with one number, or one for each channel."""
    numbers = _numbers(value)
    in_range = all(0 <= x <= 1 for x in numbers) and not (name == "std" and 0 in numbers)
    if not in_range or len(numbers) not in (1, channels):
        count = "a number" if channels == 1 else f"a number or {channels}"
        interval = "(0, 1]" if name == "std" else "[0, 1]"
        raise ValueError(
            f"{name} must be {count} in {interval}, for images of {channels} channels from 0 to 1, "
            f"got {value!r:.80}"
        )
    return numbers


def _numbers(value: Any) -> tuple[float, ...]:
    """Return one or several numbers as a tuple, or () if one of them is not a finite number."""
    value = value.tolist() if isinstance(value, np.ndarray | Array) else value
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if any(isinstance(x, str | bytes | bool) for x in values):
        return ()
    try:
        return tuple(map(float, values)) if all(map(math.isfinite, values)) else ()
    except (TypeError, ValueError, OverflowError):
        return ()

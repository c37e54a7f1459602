"""How a network wants its images: what a file or a user says of it, checked."""

import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.models import convnet, vit

MAX_SIZE = 8192  # pixels a side
MAX_LAYERS = 1000
MAX_POSITIONS = 1 << 24  # numbers of the positions of one image


def given(inputs: Inputs, module: nn.Module, **values: Any) -> Inputs:
    """The images of a network, with what a user says of them in place of the rest.

    Args:
        inputs: what the file says, or what is assumed.
        module: the network.
        **values: some of ``mean``, ``std``, ``crop`` and ``size``; None leaves what there is.

    Raises:
        UserError: on values that no images have, or a size that learned positions do not fit.
    """
    values = {name: value for name, value in values.items() if value is not None}
    try:
        found = checked(inputs._asdict() | values)
    except ValueError as error:
        raise UserError(str(error)) from error
    if isinstance(module, vit.ViT):
        if module.positions == "learned" and found.size != inputs.size:
            raise UserError(
                f"size must be {inputs.size}, which the network's learned positions are for, got "
                f"{found.size}"
            )
        if "size" in values and found.size % module.patch_size:
            raise UserError(
                f"size must be a multiple of the network's patches of {module.patch_size} pixels, "
                f"got {found.size}"
            )
    return found


def checked(values: Mapping[str, Any]) -> Inputs:
    """`Inputs` of its fields; ``mean`` and ``std`` may be a number or a list.

    Raises:
        ValueError: on another type, or a value out of its range.
    """
    inputs = Inputs(**values)
    size, channels = inputs.size, inputs.channels
    if type(size) is not int or not 0 < size <= MAX_SIZE:
        raise ValueError(f"size must be a number of pixels from 1 to {MAX_SIZE}, got {size!r:.80}")
    if type(channels) is not int or channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels!r:.80}")
    found = {"mean": _numbers(inputs.mean), "std": _numbers(inputs.std)}
    for name, range_ in (("mean", "[0, 1]"), ("std", "(0, 1]")):
        numbers = found[name]
        low = name == "std" and 0.0 in numbers
        if low or len(numbers) not in (1, channels) or not all(0 <= x <= 1 for x in numbers):
            many = "a number" if channels == 1 else f"a number or {channels}"
            raise ValueError(
                f"{name} must be {many} in {range_}, for images of {channels} channels from 0 to "
                f"1, got {getattr(inputs, name)!r:.80}"
            )
    crop = _numbers(inputs.crop)
    if len(crop) != 1 or not 0 <= crop[0] <= 1:
        raise ValueError(
            f"crop must be a number in [0, 1], the share of the short side that is kept (0: all of "
            f"the image), got {inputs.crop!r:.80}"
        )
    return Inputs(size, channels, **found, crop=crop[0])


def check_extent(module: nn.Module, size: int) -> None:
    """Refuses networks that take for ever, or all memory, before they are compared with a file.

    Raises:
        ValueError: if it has too many layers, or too many positions for images of ``size``.
    """
    if isinstance(module, vit.ViT):
        layers, positions = module.layers, (size // module.patch_size) ** 2 * module.dim
    else:
        layers, positions = len(module.widths) if isinstance(module, convnet.ConvNet) else 0, 0
    if layers > MAX_LAYERS:
        raise ValueError(f"a network of {layers} layers; at most {MAX_LAYERS} are read")
    if positions > MAX_POSITIONS:
        raise ValueError(
            f"a ViT of {module.dim} with patches of {module.patch_size} pixels, for images of "
            f"{size}: too many positions"
        )


def _numbers(value: Any) -> tuple[float, ...]:
    """One or several; nothing if any of them is none."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    try:
        return tuple(_number(x) for x in values)
    except (TypeError, ValueError, OverflowError):
        return ()


def _number(value: Any) -> float:
    if isinstance(value, str | bytes | bool) or not math.isfinite(value):
        raise ValueError
    return float(value)

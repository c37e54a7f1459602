"""Checks of the settings of networks and heads, which raise ValueError."""

from collections.abc import Iterable
from typing import Any


def require_at_least(bound: int, prefix: str = "net.", **settings: int) -> None:
    """Raise a ValueError for the first network setting below ``bound``."""
    for name, value in settings.items():
        if value < bound:
            raise ValueError(f"{prefix}{name} must be >= {bound}, got {value}")


def require_choice(choices: Iterable[Any], prefix: str = "net.", **settings: Any) -> None:
    """Raise a ValueError for the first network setting that is not one of ``choices``."""
    options = tuple(choices)
    for name, value in settings.items():
        if value not in options:
            raise ValueError(f"{prefix}{name} must be one of {options}, got {value!r}")

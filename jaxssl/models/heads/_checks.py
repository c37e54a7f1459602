"""Checks of the settings of heads."""


def require_at_least(bound: int, name: str, value: int) -> None:
    if value < bound:
        raise ValueError(f"{name} must be >= {bound}, got {value}")

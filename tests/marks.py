"""Marks of parametrised tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_except(kept: Collection, values: Iterable) -> list[Any]:
    """Mark the values of a parameter "long", except those that `make test` keeps."""
    return [x if x in kept else pytest.param(x, marks=pytest.mark.long) for x in values]

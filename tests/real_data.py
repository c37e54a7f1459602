"""Archives of real data sets: beside the checkout, or in the folder that JAXSSL_DATA names."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("JAXSSL_DATA") or Path(__file__).parents[2] / "shared" / "data")


def real_data(name: str) -> Path:
    """Return the path of an archive. Without it the test is skipped."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{FOLDER / name} is not here; JAXSSL_DATA names its folder")
    return FOLDER / name

"""Files of weights that several test files read."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from weights_cases import GOLDEN


@pytest.fixture
def file(tmp_path):
    """Return a function that writes arrays as a .safetensors file, or bytes as a .pth file."""

    def write(content, name=None, prefix="", metadata=None):
        if isinstance(content, dict):
            path = tmp_path / (name or "x.safetensors")
            arrays = {prefix + k: np.ascontiguousarray(v) for k, v in content.items()}
            save_file(arrays, path, metadata)
        else:
            path = tmp_path / (name or "x.pth")
            path.write_bytes(content)
        return path

    return write


@pytest.fixture(params=("zip", "legacy"))
def checkpoint(request, file):
    """A checkpoint with DINO's layout that PyTorch wrote."""
    return file(GOLDEN[f"file/{request.param}"].tobytes(), "checkpoint.pth.tar")

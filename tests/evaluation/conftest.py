"""The devices of the tests of evaluation."""

import jax
import pytest

from jaxssl import distributed


@pytest.fixture(scope="session")
def mesh():
    """One device."""
    return distributed.make_mesh(jax.devices()[:1])

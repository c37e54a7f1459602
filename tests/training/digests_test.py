"""Digests of arrays notice every change, on any devices, except zeros at the end."""

import hashlib

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.training.workdir import digests

RNG = np.random.default_rng(0)
ARRAYS = {
    "float": RNG.normal(size=(8, 3)).astype(np.float32),
    "bfloat": np.asarray(jnp.asarray(RNG.normal(size=(8,)), jnp.bfloat16)),
    "int": RNG.integers(-128, 128, (8, 2), np.int8),
    "bool": np.array([True, False] * 4),
    "fortran": np.asfortranarray(RNG.integers(0, 2**32, (8, 4), np.uint32)),
    "scalar": np.array(-0.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}


def test_digest_is_the_sha256_of_the_bytes_without_zeros_at_the_end():
    expected = {
        name: hashlib.sha256(x.tobytes().rstrip(b"\0")).hexdigest() for name, x in ARRAYS.items()
    }
    assert digests.compute(ARRAYS) == expected


@pytest.mark.parametrize("size", [0, 1, digests.BLOCK - 1, digests.BLOCK, 3 * digests.BLOCK + 5])
def test_zeros_at_the_end_do_not_change_a_digest(size):
    x = np.arange(1, 200, dtype=np.uint8)
    padded = np.pad(x, (0, size))
    assert digests.compute([padded]) == digests.compute([x])
    assert digests.compute([np.pad(x, (size, 0))]) != digests.compute([x]) or not size
    assert digests.compute([np.zeros(size, np.uint8)]) == digests.compute([x[:0]])


@pytest.mark.parametrize("split", [False, True])
def test_arrays_on_devices_have_the_digests_of_the_host(split):
    mesh = distributed.make_mesh()
    place = distributed.shard if split else distributed.replicate
    rows = {name: x for name, x in ARRAYS.items() if x.ndim and len(x)} if split else ARRAYS
    key = jax.random.key(3)
    expected = digests.compute({**rows, "key": np.asarray(jax.random.key_data(key))})
    assert digests.compute({**place(rows, mesh), "key": key}) == expected
    digests.verify({**place(rows, mesh), "key": key}, expected)


@pytest.mark.parametrize("count", [1, 2, 4, 24])
def test_sign_flips_are_noticed(count):
    expected = digests.compute(ARRAYS)
    flipped = ARRAYS["float"].copy()
    flipped.reshape(-1)[RNG.permutation(flipped.size)[:count]] *= -1
    with pytest.raises(ValueError, match="'float' does not match its checksum"):
        digests.verify({**ARRAYS, "float": flipped}, expected)


def test_sums_of_version_0_1_are_verified():
    sums = {}
    for name, x in ARRAYS.items():
        bits = [int.from_bytes(one.tobytes(), "little") for one in x.reshape(-1)]
        sums[name] = sum((2 * i + 1) * value for i, value in enumerate(bits)) % 2**32
    digests.verify(ARRAYS, sums)
    with pytest.raises(ValueError, match="'scalar' does not match its checksum"):
        digests.verify({**ARRAYS, "scalar": np.array(0.5, np.float32)}, sums)

"""Tests of gradient accumulation with all negatives."""

from functools import cache

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl import distributed, losses
from jaxssl.losses.accumulate import accumulate

LABELS = jnp.array([0, 1, 0, 2, 1, 0, 3, 1])
LOSSES = {
    "nt_xent": lambda z: losses.nt_xent(*z, temperature=0.1),
    "nt_xent blockwise": lambda z: losses.nt_xent(*z, block_size=4),
    "auc_cl": lambda z: losses.auc_cl(*z, b=0.2),
    "mmcl": lambda z: losses.mmcl(*z),
    "tcl with labels": lambda z: losses.tcl(*z, labels=LABELS, k1=50.0),
    "vicreg": lambda z: losses.vicreg(*z),
}


def encode(params, chunk):
    hidden = [jnp.tanh(chunk[view] @ params["in"]) for view in ("one", "two")]
    return tuple(h @ params["out"] for h in hidden)


def parts(b: int = 8, width: int = 16):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {"in": draw(6, width), "out": draw(width, 4)}, {"one": draw(b, 6), "two": draw(b, 6)}


@cache
def value_and_gradient(num_chunks: int):
    """Value and gradient of every loss, in one program."""

    def value(params, batch, loss):
        if num_chunks == 0:
            return loss(encode(params, batch))
        return accumulate(lambda chunk: encode(params, chunk), loss, batch, num_chunks)

    return jax.jit(
        lambda params, batch: {
            name: jax.value_and_grad(value)(params, batch, loss) for name, loss in LOSSES.items()
        }
    )(*parts())


@pytest.mark.parametrize("num_chunks", [2, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_with_chunks_equals_gradient_of_the_whole_batch(name, num_chunks):
    actual, expected = value_and_gradient(num_chunks)[name], value_and_gradient(0)[name]

    def close(x, y):
        # Gradients are sums that cancel, so rounding errors scale with the largest entry.
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6 * max(1.0, np.abs(y).max()))

    jax.tree.map(close, actual, expected)


def test_each_device_encodes_its_own_examples_under_jit():
    """Of a network without parameters, four devices take a quarter of the operations each."""

    def value(x, weights):
        encode = lambda chunk: jnp.tanh(chunk @ weights) @ weights  # noqa: E731
        return accumulate(encode, lambda z: jnp.mean(z * z), x, 4)

    operations = []
    for devices in (1, 4):
        mesh = distributed.make_mesh(jax.devices()[:devices])
        split, whole = distributed.data_sharding(mesh), distributed.replicated_sharding(mesh)
        x = jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=split)
        weights = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=whole)
        cost = jax.jit(jax.grad(value)).lower(x, weights).compile().cost_analysis()
        operations.append(cost["flops"])
    assert operations[1] == pytest.approx(operations[0] / 4, rel=0.05)


def test_accumulation_stores_activations_of_only_one_chunk():
    params, batch = parts(b=512, width=2048)

    def memory(num_chunks):
        value = lambda params: accumulate(  # noqa: E731
            lambda chunk: encode(params, chunk), LOSSES["auc_cl"], batch, num_chunks
        )
        return jax.jit(jax.grad(value)).lower(params).compile().memory_analysis().temp_size_in_bytes

    activations = 2 * 512 * 2048 * 4
    assert memory(1) > activations
    assert memory(16) < activations / 4


@pytest.mark.parametrize(
    ("change", "num_chunks", "message"),
    [
        ({}, 3, "num_chunks must divide the batch size 8, got 3"),
        ({}, 0, "num_chunks must divide the batch size 8, got 0"),
        ({}, 4.0, "num_chunks must divide the batch size 8, got 4.0"),
        ({"two": jnp.ones((7, 6))}, 1, r"the same length, got shapes \[\(8, 6\), \(7, 6\)\]"),
        ({"two": jnp.float32(1)}, 1, r"the same length, got shapes \[\(8, 6\), \(\)\]"),
    ],
)
def test_batch_not_divisible_into_chunks_raises(change, num_chunks, message):
    params, batch = parts()
    with pytest.raises(ValueError, match=message):
        accumulate(lambda chunk: encode(params, chunk), jnp.sum, batch | change, num_chunks)


def test_encoder_that_averages_over_a_chunk_raises():
    with pytest.raises(ValueError, match=r"encode must return arrays \[4, ...\], got \[6\]"):
        accumulate(lambda chunk: chunk["one"].mean(axis=0), jnp.sum, parts()[1], 2)

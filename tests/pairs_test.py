"""Who is whose positive, for any number of views, labels, towers and devices."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxssl import pairs as pairs_lib
from jaxssl import parallel
from jaxssl.pairs import negatives, pair_towers, pair_views, positives, unit


def embeddings(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("num_views", [1, 2, 3])
def test_positives_of_a_view_are_the_other_views_of_its_example(num_views):
    b = 4
    pairs = pair_views(embeddings(num_views, b, 5))
    expected = np.zeros((num_views * b, num_views * b), bool)
    for view, other in np.ndindex(num_views, num_views):
        for i in range(b):
            expected[view * b + i, other * b + i] = view != other
    np.testing.assert_array_equal(positives(pairs), expected)
    same_example = np.tile(np.eye(b, dtype=bool), (num_views, num_views))
    np.testing.assert_array_equal(negatives(pairs), ~same_example)


def test_with_labels_all_views_of_a_class_are_positives():
    pairs = pair_views(embeddings(2, 3, 5), labels=jnp.array([7, 9, 7]))
    labels = np.array([7, 9, 7, 7, 9, 7])
    same = labels[:, None] == labels[None, :]
    np.testing.assert_array_equal(positives(pairs), same & ~np.eye(6, dtype=bool))
    np.testing.assert_array_equal(negatives(pairs), ~same)
    np.testing.assert_array_equal(pairs.index, np.tile(np.arange(3), 2))


def test_a_query_has_its_own_key_as_positive_and_the_queue_only_as_negatives():
    queue = embeddings(5, 4)
    pairs = pair_towers(embeddings(3, 4), embeddings(3, 4, seed=1), queue=queue)
    expected = np.concatenate([np.eye(3, dtype=bool), np.zeros((3, 5), bool)], axis=1)
    np.testing.assert_array_equal(positives(pairs), expected)
    np.testing.assert_array_equal(negatives(pairs), ~expected)
    np.testing.assert_array_equal(pairs.candidate[3:], queue)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_split_over_devices_every_anchor_sees_the_whole_batch(devices):
    z, index = embeddings(2, 8, 3), jnp.arange(8) + 100
    whole = pair_views(z, index)
    fields = P("data")
    local = parallel.spmd(
        lambda z, index: pair_views(z, index, axis_name="data"),
        parallel.make_mesh(jax.devices()[:devices]),
        (P(None, "data"), P("data")),
        pairs_lib.Pairs(fields, P(), fields, P(), fields, fields),
    )(z, index)
    np.testing.assert_array_equal(local.candidate, whole.candidate)
    np.testing.assert_array_equal(local.candidate_id, whole.candidate_id)
    # Anchors are ordered view by view on each device: undo the split.
    order = np.arange(16).reshape(2, devices, -1).swapaxes(0, 1).reshape(-1)
    for name in ("anchor", "anchor_id", "self_index", "index"):
        np.testing.assert_array_equal(getattr(local, name), getattr(whole, name)[order], name)
    np.testing.assert_array_equal(local.candidate[local.self_index], local.anchor)


@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e30])
def test_unit_has_length_one_whatever_the_scale(scale):
    z = embeddings(6, 5)
    expected = np.asarray(z) / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(unit(z * scale), expected, rtol=1e-5)


def test_unit_of_zero_is_zero_with_zero_gradient():
    np.testing.assert_array_equal(unit(jnp.zeros((2, 3))), 0)
    np.testing.assert_array_equal(jax.grad(lambda z: unit(z).sum())(jnp.zeros((2, 3))), 0)


def test_unit_keeps_float64_and_widens_bfloat16():
    assert unit(jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert unit(jnp.ones((1, 2), jnp.float64)).dtype == jnp.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pair_views(jnp.ones((4, 3))), r"must have shape \[b, d\] per view, got \(3,\)"),
        (lambda: pair_views([jnp.ones((4, 3)), jnp.ones((5, 3))]), r"one shape \[b, d\], got"),
        (lambda: pair_views([]), "one or more arrays"),
        (lambda: pair_views(jnp.ones((2, 4, 3), jnp.int32)), "must be floating point, got int32"),
        (lambda: pair_views(jnp.ones((2, 4, 3)), jnp.arange(3)), r"index must be \[4\] integers"),
        (lambda: pair_views(jnp.ones((2, 4, 3)), labels=jnp.ones(4)), r"labels must be \[4\] int"),
        (lambda: pair_towers(jnp.ones((4, 3)), jnp.ones((4, 2))), r"one shape \[b, d\], got"),
        (
            lambda: pair_towers(jnp.ones((4, 3)), jnp.ones((4, 3)), queue=jnp.ones((4, 2))),
            r"queue must have shape \[k, 3\]",
        ),
    ],
)
def test_wrong_arrays_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Tests of pairs: positives and negatives for views, labels, towers, queues and devices."""

from dataclasses import fields

import chex
import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxssl import distributed
from jaxssl.losses.decl import distance
from jaxssl.losses.pairs import (
    Pairs,
    count_positives,
    gather_by_view,
    negatives,
    not_self,
    pair_towers,
    pair_views,
    partners,
    positives,
    stack_views,
    swap,
    unit,
)

pytestmark = pytest.mark.fast
MASKED = np.ma.array([0, 0, 1, 1], mask=[1, 0, 0, 0])


def embeddings(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def arrays(pairs: Pairs) -> dict[str, jax.Array]:
    return {f.name: getattr(pairs, f.name) for f in fields(pairs) if "static" not in f.metadata}


@pytest.mark.parametrize("num_views", [1, 2, 3])
def test_positives_without_labels_are_the_other_views_of_the_example(num_views):
    b = 4
    pairs = pair_views(embeddings(num_views, b, 5), jnp.arange(b))
    expected = np.zeros((num_views * b, num_views * b), bool)
    for view, other in np.ndindex(num_views, num_views):
        for i in range(b):
            expected[view * b + i, other * b + i] = view != other
    np.testing.assert_array_equal(positives(pairs), expected)
    same_example = np.tile(np.eye(b, dtype=bool), (num_views, num_views))
    np.testing.assert_array_equal(negatives(pairs), ~same_example)


def test_positives_with_labels_are_all_views_of_the_class():
    pairs = pair_views(embeddings(2, 3, 5), labels=jnp.array([7, 9, 7]))
    labels = np.array([7, 9, 7, 7, 9, 7])
    same = labels[:, None] == labels[None, :]
    np.testing.assert_array_equal(positives(pairs), same & ~np.eye(6, dtype=bool))
    np.testing.assert_array_equal(negatives(pairs), ~same)
    np.testing.assert_array_equal(pairs.index, np.tile(np.arange(3), 2))


def test_positive_of_a_query_is_the_key_of_its_image_and_queue_rows_are_negatives():
    queue = embeddings(5, 4)
    pairs = pair_towers(embeddings(3, 4), embeddings(3, 4, seed=1), queue=queue)
    expected = np.concatenate([np.eye(3, dtype=bool), np.zeros((3, 5), bool)], axis=1)
    np.testing.assert_array_equal(positives(pairs), expected)
    np.testing.assert_array_equal(negatives(pairs), ~expected)
    np.testing.assert_array_equal(pairs.candidate[3:], queue)


def test_float32_queue_beside_bfloat16_embeddings_keeps_its_numbers():
    queue = jax.random.normal(jax.random.key(0), (3, 4))
    pairs = pair_towers(*jnp.ones((2, 2, 4), jnp.bfloat16), queue=queue)
    np.testing.assert_array_equal(pairs.candidate[2:], queue)
    assert pairs.anchor.dtype == jnp.bfloat16


def test_with_batch_negatives_off_only_queue_rows_are_negatives():
    z, queue = embeddings(2, 3, 4), embeddings(5, 4)
    pairs = pair_towers(z[0], z[1], queue=queue, batch_negatives=False)
    of_queue = np.repeat([[False] * 3 + [True] * 5], 3, axis=0)
    np.testing.assert_array_equal(negatives(pairs), of_queue)
    np.testing.assert_array_equal(not_self(pairs), of_queue | positives(pairs))


@pytest.mark.parametrize("labels", [None, jnp.array([2, 0, 2, 1])])
@pytest.mark.parametrize("num_views", [1, 2, 3])
def test_count_positives_equals_the_row_sums_of_the_mask(num_views, labels):
    pairs = pair_views(embeddings(num_views, 4, 5), jnp.arange(4), labels)
    np.testing.assert_array_equal(count_positives(pairs), positives(pairs).sum(1))


def test_partners_are_the_other_views_of_an_image_or_the_key_of_a_query():
    z = embeddings(3, 4, 5)
    pairs = pair_views(z)
    np.testing.assert_array_equal(stack_views(pairs, "x"), z)
    first, second = partners(pairs, "x")
    np.testing.assert_array_equal(first, pairs.partner)
    np.testing.assert_array_equal(first, jnp.concatenate([z[1], z[2], z[0]]))
    np.testing.assert_array_equal(second, jnp.concatenate([z[2], z[0], z[1]]))
    towers = pair_towers(z[0], z[1])
    np.testing.assert_array_equal(partners(towers, "x"), z[1:2])
    np.testing.assert_array_equal(stack_views(towers, "x"), z[:2])


def test_swapping_pairs_exchanges_queries_and_keys():
    z, index, labels = embeddings(2, 4, 5), jnp.array([7, 2, 9, 4]), jnp.array([0, 1, 0, 1])
    swapped = swap(pair_towers(z[0], z[1], index, labels))
    chex.assert_trees_all_equal(swapped, pair_towers(z[1], z[0], index, labels))
    views = pair_views(z)
    assert swap(views) is views
    with pytest.raises(ValueError, match="swap needs pairs without a queue"):
        swap(pair_towers(z[0], z[1], queue=z[0]))


def test_distance_is_exact_at_any_scale_with_zero_gradient_between_equal_rows():
    z = embeddings(2, 4, 5)
    for scale in (1e-3, 1.0, 1e25):
        pairs = pair_towers(z[0] * scale, z[1] * scale)
        expected = np.linalg.norm(np.asarray(z[0])[:, None] - np.asarray(z[1]), axis=-1) * scale
        np.testing.assert_allclose(distance(pairs), expected, rtol=1e-5)
    gradient = jax.grad(lambda z: distance(pair_towers(z, jnp.ones((2, 3)))).sum())
    np.testing.assert_array_equal(gradient(jnp.ones((2, 3))), 0)


def test_distance_is_exact_for_rows_with_a_common_offset_and_beside_a_large_row():
    z = np.asarray(embeddings(2, 4, 5))
    expected = np.linalg.norm(z[0][:, None] - z[1], axis=-1)
    shifted = pair_towers(jnp.asarray(z[0] + 1024), jnp.asarray(z[1] + 1024))
    np.testing.assert_allclose(distance(shifted), expected, atol=1e-3)
    large = [jnp.asarray(np.r_[view, np.full((1, 5), 1e4)]) for view in z]
    np.testing.assert_allclose(distance(pair_towers(*large))[:4, :4], expected, rtol=1e-5)


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.long), 8])
@pytest.mark.parametrize("given", ["index", "labels", "both", "none"])
def test_pairs_on_several_devices_contain_the_whole_batch(devices, given):
    z = embeddings(2, 8, 3)
    ids = {"index": jnp.arange(8) + 100, "labels": jnp.array([0, 1, 0, 2, 1, 0, 3, 1])}
    ids = {name: x for name, x in ids.items() if given in (name, "both")}
    whole = pair_views(z, **ids)
    local = jax.jit(
        distributed.spmd(
            lambda z, ids: arrays(pair_views(z, **ids, axis_name="data")),
            distributed.make_mesh(jax.devices()[:devices]),
            (P(None, "data"), P("data")),
            {name: P() if "candidate" in name else P("data") for name in arrays(whole)},
        )
    )(z, ids)
    for name in ("candidate", "candidate_id"):
        np.testing.assert_array_equal(local[name], getattr(whole, name))
    # Each device has its anchors view by view: put those of the whole batch in the same order.
    order = np.arange(16).reshape(2, devices, -1).swapaxes(0, 1).reshape(-1)
    for name in ("anchor", "partner", "anchor_id", "self_index", "index"):
        np.testing.assert_array_equal(local[name], getattr(whole, name)[order], name)
    np.testing.assert_array_equal(local["candidate"][local["self_index"]], local["anchor"])
    np.testing.assert_array_equal(gather_by_view(whole, whole.index), whole.index.reshape(2, 8))


@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e30, 5e37])  # up to about 1.5e38
def test_normalised_embedding_has_length_one_at_any_scale(scale):
    z = embeddings(6, 5)
    expected = np.asarray(z) / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(unit(z * scale), expected, rtol=1e-5)


def test_positives_and_distances_of_an_empty_batch_are_empty():
    pairs = pair_views(jnp.ones((3, 0, 2)))
    assert partners(pairs, "auc_cl").shape == (2, 0, 2)
    assert distance(pairs).shape == (0, 0)


def test_normalised_zero_embedding_is_zero_with_zero_gradient():
    np.testing.assert_array_equal(unit(jnp.zeros((2, 3))), 0)
    np.testing.assert_array_equal(jax.grad(lambda z: unit(z).sum())(jnp.zeros((2, 3))), 0)


def test_normalisation_keeps_float64_and_casts_bfloat16_to_float32():
    assert unit(jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert unit(jnp.ones((1, 2), jnp.float64)).dtype == jnp.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pair_views(jnp.ones((4, 3))), r"or a list \[z1, z2\], got shape \(4, 3\)"),
        (lambda: pair_views(*jnp.ones((2, 4, 3))), r"or a list \[z1, z2\], got shape \(4, 3\)"),
        (lambda: pair_views(3.0), r"or a list \[z1, z2\], got shape \(\)"),
        (lambda: pair_views([jnp.ones(3)]), r"per view, d > 0, got \(3,\)"),
        (lambda: pair_views(jnp.ones((1, 4, 3))), "no positives; pass two views or labels"),
        (lambda: pair_views([jnp.ones((4, 3)), jnp.ones((5, 3))]), r"one shape \[b, d\], got"),
        (lambda: pair_views([]), "one or more arrays"),
        (lambda: pair_views(jnp.ones((2, 4, 0))), r"must have shape \[b, d\] per view, d > 0, got"),
        (lambda: pair_views(jnp.ones((2, 4, 3)), labels=list("abcd")), r"integers, got <U1\[4\]"),
        (lambda: pair_views(jnp.ones((2, 4, 3)), labels=MASKED), "not be a masked array"),
        (lambda: pair_views(jnp.ones((2, 2, 3)), labels=[0, -1]), r"in \[0, 2\^31\), got -1"),
        (lambda: pair_views(jnp.ones((2, 2, 3)), [0, 2**40]), r"index must be .* got 1099511"),
        (lambda: pair_views(jnp.ones((2, 4, 3), jnp.int32)), "must be floating point, got int32"),
        (lambda: pair_views(jnp.ones((2, 4, 3)), jnp.arange(3)), r"index must be \[4\] integers"),
        (lambda: pair_views(jnp.ones((2, 4, 3)), labels=jnp.ones(4)), r"labels must be \[4\] int"),
        (lambda: pair_towers(jnp.ones((4, 3)), jnp.ones((4, 2))), r"one shape \[b, d\], got"),
        (
            lambda: pair_towers(jnp.ones((4, 3)), jnp.ones((4, 3)), queue=jnp.ones((4, 2))),
            r"queue must have shape \[k, 3\]",
        ),
        (
            lambda: pair_towers(jnp.ones((4, 3)), jnp.ones((4, 3)), gathered=jnp.ones((5, 3))),
            r"gathered must have shape \(4, 3\), a row per key, got \(5, 3\)",
        ),
    ],
)
def test_pairs_reject_invalid_arrays(call, message):
    with pytest.raises(ValueError, match=message):
        call()

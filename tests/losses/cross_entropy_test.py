"""Tests of cross-entropy against NumPy and scikit-learn, and on several devices."""

from functools import partial

import chex
import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from loss_cases import LABELS, embeddings
from sklearn.metrics import log_loss

from jaxssl import collectives, distributed, losses
from jaxssl.losses.cross_entropy import objective
from jaxssl.losses.pairs import pair_towers, pair_views

pytestmark = pytest.mark.fast

Z = jnp.asarray(embeddings())
WEIGHTS = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)), jnp.float32)
BIAS = jnp.arange(5, dtype=jnp.float32) / 5
loss = partial(losses.cross_entropy_loss, weights=WEIGHTS, bias=BIAS)


def pairs_of(z, labels=LABELS, **kwargs):
    return pair_views(z, labels=jnp.asarray(labels, jnp.int32), **kwargs)


def test_cross_entropy_equals_scikit_learn_log_loss():
    actual = loss(pairs_of(Z))
    logits = np.asarray(Z.reshape(16, 4) @ WEIGHTS.T + BIAS[None], np.float64)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.tile(LABELS, 2)
    np.testing.assert_allclose(actual, -np.log(p[np.arange(16), labels]), rtol=1e-5)
    np.testing.assert_allclose(actual.mean(), log_loss(labels, p, labels=range(5)), rtol=1e-5)


def test_label_smoothing_adds_the_mean_loss_over_classes():
    smooth = loss(pairs_of(Z), label_smoothing=0.3)
    of_class = [loss(pairs_of(Z, np.full(8, k))) for k in range(5)]
    np.testing.assert_allclose(smooth, 0.7 * loss(pairs_of(Z)) + 0.3 * sum(of_class) / 5, rtol=1e-5)


def test_objective_trains_the_classifier_equally_on_any_number_of_devices():
    classifier = objective(num_classes=5)
    params, memory = classifier.init(jax.random.key(0), 20, 4)
    assert memory == ()
    assert {k: v.shape for k, v in params.items()} == {"weights": (5, 4), "bias": (5,)}

    def value(params, z, labels, axis_name):
        pairs = pairs_of(z, labels, axis_name=axis_name)
        share, _, metrics = classifier.loss(pairs, params, (), step=0, key=None)
        return share, metrics

    def step(params, z, labels, axis_name=None):
        grad = jax.value_and_grad(value, has_aux=True)
        return collectives.mean(grad(params, z, labels, axis_name), axis_name)

    params = {"weights": WEIGHTS, "bias": BIAS}
    expected = jax.jit(step)(params, Z, LABELS)
    np.testing.assert_allclose(expected[0][0], loss(pairs_of(Z)).mean(), rtol=1e-6)
    hit = np.argmax(Z.reshape(16, 4) @ WEIGHTS.T + BIAS[None], axis=1) == np.tile(LABELS, 2)
    np.testing.assert_allclose(expected[0][1]["accuracy"], 100 * hit.mean(), rtol=1e-6)
    mesh = distributed.make_mesh()
    specs = (P(), P(None, "data"), P("data"))
    split = distributed.spmd(partial(step, axis_name="data"), mesh, specs, P())
    chex.assert_trees_all_close(jax.jit(split)(params, Z, LABELS), expected, rtol=1e-5, atol=1e-6)


def test_gradient_is_finite_for_huge_features():
    grad = jax.grad(lambda z: loss(pairs_of(z)).mean())
    assert np.isfinite(grad(Z * 1e30)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loss(pair_views(Z)), "needs class labels, got none; set"),
        (
            lambda: loss(pairs_of(Z), weights=WEIGHTS[:, :3]),
            r"must have shapes \[K, 4\] and \[K\] for K classes, got \(5, 3\) and \(5,\)",
        ),
        (lambda: objective(num_classes=0), "num_classes must be > 0"),
        (
            lambda: loss(pairs_of(Z), label_smoothing=2.0),
            r"label_smoothing must be in \[0, 1\], got 2.0",
        ),
    ],
)
def test_cross_entropy_rejects_invalid_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_cross_entropy_ignores_the_second_tower():
    pairs = pair_towers(Z[0], Z[1], labels=jnp.asarray(LABELS, jnp.int32))
    np.testing.assert_allclose(loss(pairs), loss(pairs_of(Z))[:8], rtol=1e-6)

"""Tests of options that studies use: noise on similarities, and TCL's gradients."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from loss_cases import embeddings
from oracles import relations, rows, softmax

from jaxssl.losses.decl import gaussian, objective
from jaxssl.losses.pairs import anchor_keys, pair_views
from jaxssl.losses.tcl import objective as tcl_objective
from jaxssl.losses.tcl import tcl_gradients


def cosines(z):
    """Cosines of all pairs of rows [V b, d], in float64."""
    u = rows(z.reshape(-1, z.shape[2]))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    return u @ u.T


def decl(z, **hyper):
    hyper = {"temperature": 0.5, **hyper}
    loss = objective(rate="batch", weight=0.0, include_positive=True, **hyper)
    return loss.loss(pair_views(z), {}, (), step=jnp.int32(0), key=jax.random.key(3))[0]


@pytest.mark.parametrize("noise_on", ["similarity", "score"])
def test_decl_noise_is_added_to_similarities_or_to_their_exponentials(noise_on):
    z = embeddings()
    pairs = pair_views(jnp.asarray(z))
    noise = 0.7 * np.asarray(gaussian(jax.random.key(3), pairs), np.float64)
    s = cosines(z)
    if noise_on == "similarity":
        s = (s + noise) / 0.5
    else:
        s = np.log(np.maximum(np.exp(s / 0.5) + noise, 1e-3))
        assert s.min() == np.log(1e-3)  # some exponentials are raised to 1e-3
    terms = []
    for i, (pos, neg) in enumerate(zip(*relations(pairs), strict=True)):
        terms += [-np.log(softmax(s[i][[p, *neg]])[0]) for p in pos]
    actual = decl(jnp.asarray(z), noise=0.7, noise_on=noise_on)
    assert actual == pytest.approx(np.mean(terms), rel=1e-5)


def test_decl_noise_on_scores_is_finite_at_a_temperature_whose_scores_overflow():
    settings = {"temperature": 0.01, "noise": 0.7, "noise_on": "score"}
    value, gradient = jax.value_and_grad(lambda z: decl(z, **settings))(jnp.asarray(embeddings()))
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_decl_noise_is_normal_and_follows_the_example_index():
    z = jnp.zeros((2, 40, 3))
    key = jax.random.key(0)
    drawn = np.asarray(gaussian(key, pair_views(z)))
    assert drawn.shape == (80, 80)
    assert abs(drawn.mean()) < 0.05 and drawn.std() == pytest.approx(1, abs=0.03)
    index = jnp.arange(40, dtype=jnp.int32)[::-1]
    turned = np.asarray(gaussian(key, pair_views(z, index)))
    np.testing.assert_array_equal(turned[:40], drawn[:40][::-1])


def test_decl_gaussian_noise_is_not_drawn_with_the_keys_of_the_gamma_samples():
    pairs, key = pair_views(jnp.zeros((2, 8, 3))), jax.random.key(0)
    keys = anchor_keys(key, pairs)
    of_samples = jax.vmap(lambda key: jax.random.normal(key, (16,)))(keys)
    assert not np.any(np.asarray(gaussian(key, pairs)) == np.asarray(of_samples))


SETTINGS = {"temperature": 0.3, "k1": 40.0, "k2": 1.7}


def loss_of_row(s, pos, neg):
    """TCL of an anchor with similarities s, in float64."""
    tau, k1, k2 = (SETTINGS[name] for name in ("temperature", "k1", "k2"))
    total = np.sum(np.exp(s[pos] / tau) + k1 * np.exp(-s[pos])) + k2 * np.sum(np.exp(s[neg] / tau))
    return np.mean(np.log(total) - s[pos] / tau)


@pytest.mark.parametrize("labels", [None, [0, 1, 0, 2, 1, 0, 3, 2]])
def test_tcl_gradients_equal_finite_differences_of_the_loss(labels):
    """Central differences with respect to each similarity."""
    z = embeddings()
    labels = None if labels is None else jnp.asarray(labels, jnp.int32)
    pairs = pair_views(jnp.asarray(z), labels=labels)
    s = cosines(z)
    pull, push = tcl_gradients(pairs, **SETTINGS)
    for i, (pos, neg) in enumerate(zip(*relations(pairs), strict=True)):
        slope = np.zeros(len(s))
        for j in (*pos, *neg):
            ends = []
            for off in (1e-5, -1e-5):
                row = s[i] + off * (np.arange(len(s)) == j)
                ends.append(loss_of_row(row, pos, neg))
            slope[j] = (ends[0] - ends[1]) / 2e-5
        assert pull[i] == pytest.approx(np.abs(slope[pos]).mean(), rel=1e-4)
        assert push[i] == pytest.approx(slope[neg].mean(), rel=1e-4)


def test_tcl_metrics_are_means_over_anchors_with_a_positive():
    pairs = pair_views(jnp.asarray(embeddings())[:1], labels=jnp.array([0, 1, 0, 2, 1, 0, 3, 4]))
    loss = tcl_objective(**SETTINGS, gradients=True).loss
    _, _, metrics = loss(pairs, {}, (), step=jnp.int32(0), key=None)
    for name, each in zip(("positive", "negative"), tcl_gradients(pairs, **SETTINGS), strict=True):
        np.testing.assert_array_equal(each[np.array([3, 6, 7])], 0)
        assert metrics[f"{name}_gradient"] == pytest.approx(float(each.sum() / 5), rel=1e-6)


@pytest.mark.long
def test_tcl_gradients_are_finite_without_positives_and_for_equal_rows():
    alone = pair_views(jnp.ones((1, 4, 3)), labels=jnp.arange(4))
    np.testing.assert_array_equal(np.stack(tcl_gradients(alone)), 0)
    for z in (jnp.zeros((2, 4, 3)), jnp.ones((2, 4, 3))):
        actual = tcl_gradients(pair_views(z), temperature=0.01, k1=5e4)
        assert np.isfinite(np.stack(actual)).all()

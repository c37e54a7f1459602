"""Identities between losses, and results of their papers, in float64."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from loss_cases import embeddings
from marks import long_except

from jaxssl import losses
from jaxssl.losses.decl import exponential
from jaxssl.losses.decl import objective as decl_objective
from jaxssl.losses.pairs import pair_towers, pair_views, swap, unit
from jaxssl.losses.swav import sinkhorn

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def views(b: int = 8, d: int = 4) -> jax.Array:
    return jnp.asarray(embeddings(b=b, d=d), jnp.float64)


def of_views(loss, **hyper):
    return lambda z: loss(pair_views(z), **hyper).mean()


def of_towers(loss, **hyper):
    return lambda z: loss(pair_towers(*z), **hyper).mean()


def decl_with_batch_rates(z):
    objective = decl_objective(rate="batch", u="mean", temperature=0.3)
    return objective.loss(pair_views(z), {}, (), step=0, key=jax.random.key(0))[0]


def dcl_in_both_directions(pairs):
    return sum(losses.dcl_loss(p, temperature=0.3) for p in (pairs, swap(pairs)))


DCL = of_views(losses.dcl_loss, temperature=0.3)
# The oracle of the contract tests does not give gradients of DeCL, SogCLR and FastCLIP.
SAME = {
    "DeCL's L2 with the positive is NT-Xent": (
        of_views(losses.decl_loss, weight=0.0, include_positive=True, temperature=0.5),
        of_views(losses.nt_xent_loss, temperature=0.5),
    ),
    "DeCL's L2 is DCL": (of_views(losses.decl_loss, weight=0.0, temperature=0.3), DCL),
    "DeCL with rates of the batch is DCL": (decl_with_batch_rates, DCL),
    "SogCLR with gamma = 1 is 2 tau times DCL": (
        of_views(losses.sogclr_loss, gamma=1.0, temperature=0.3),
        lambda z: 2 * 0.3 * DCL(z),
    ),
    "FastCLIP with gamma = 1 is DCL in both directions": (
        of_towers(losses.fastclip_loss, gamma=1.0, temperature=0.3),
        of_towers(dcl_in_both_directions),
    ),
}


@pytest.mark.parametrize("identity", SAME)
def test_losses_that_are_equal_by_theory_have_the_same_gradient(identity):
    actual, expected = (jax.jit(jax.grad(loss))(views()) for loss in SAME[identity])
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


def test_decl_exponential_samples_have_mean_and_variance_one_and_are_uncorrelated():
    draws = exponential(jax.random.key(0), pair_views(jnp.zeros((2, 20000, 1))))
    np.testing.assert_allclose([draws.mean(), draws.var()], 1, atol=0.05)
    other = exponential(jax.random.key(1), pair_views(jnp.zeros((2, 20000, 1))))
    assert abs(np.corrcoef(draws, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[:20000], draws[20000:])[0, 1]) < 0.02


info_of = jax.jit(losses.mmcl_info, static_argnames=("solver", "num_steps"))


def test_mmcl_info_counts_support_vectors_and_alphas_at_the_bound():
    pairs = pair_views(views())
    info = info_of(pairs, C=0.5, num_steps=1000)
    negatives = 2 * 8 - 2
    np.testing.assert_allclose(info.support, (info.alpha > 0).sum(1) / negatives)
    np.testing.assert_allclose(info.at_bound, (info.alpha == 0.5).sum(1) / negatives)
    assert 0 < info.at_bound.mean() < info.support.mean() < 1
    assert (info_of(pairs, C=jnp.inf, num_steps=1000).at_bound == 0).all()


def ressl_with_constant_target(z):
    """ReSSL of two towers, written out: only the query's softmax has a gradient."""
    q, k = unit(z[0]), unit(z[1])
    others = ~jnp.eye(len(q), dtype=bool)
    of = lambda u, tau: jnp.where(others, u @ k.T / tau, -jnp.inf)  # noqa: E731
    target = jax.lax.stop_gradient(jax.nn.softmax(of(k, 0.04), axis=1))
    log_p = jnp.where(others, jax.nn.log_softmax(of(q, 0.1), axis=1), 0)
    return -(target * log_p).sum(1).mean()


def swav_with_constant_codes(z, prototypes):
    """SwAV of two views, written out: only the softmax has a gradient."""
    scores = unit(z) @ unit(prototypes).T
    codes = [jax.lax.stop_gradient(sinkhorn(s)) for s in scores]
    log_p = jax.nn.log_softmax(scores / 0.1, axis=2)
    return -sum((codes[1 - v] * log_p[v]).sum(1).mean() for v in range(2)) / 2


def test_sinkhorn_codes_of_bfloat16_scores_are_float32_and_their_rows_sum_to_one():
    codes = sinkhorn(jnp.asarray(embeddings()[0], jnp.bfloat16))
    assert codes.dtype == jnp.float32
    np.testing.assert_allclose(codes.sum(axis=1), 1, rtol=1e-5)


def test_target_of_ressl_and_codes_of_swav_are_constants():
    prototypes = jnp.asarray(embeddings(num_views=1, b=6, seed=1)[0], jnp.float64)
    towers = lambda z: losses.ressl_loss(pair_towers(z[0], z[1])).mean()  # noqa: E731
    of_views = lambda z, c: losses.swav_loss(pair_views(z), c).mean()  # noqa: E731

    @jax.jit
    def gradients(z, prototypes):
        actual = jax.grad(towers)(z), jax.grad(of_views, argnums=(0, 1))(z, prototypes)
        ressl = jax.grad(ressl_with_constant_target)(z)
        return actual, (ressl, jax.grad(swav_with_constant_codes, argnums=(0, 1))(z, prototypes))

    actual, expected = gradients(views(), prototypes)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10), actual, expected)


@pytest.mark.parametrize("changed", ["candidate", "anchor"])
def test_blockwise_loss_of_changed_pairs_equals_the_full_matrix_loss(changed):
    """Constant candidates have no gradient. Other anchors make the matrix not symmetric."""

    def value(z, **how):
        pairs = pair_views(z)
        constant, others = jax.lax.stop_gradient(pairs.candidate), pairs.anchor[::-1] ** 3
        new = {"candidate": constant, "anchor": others}
        return losses.nt_xent_loss(replace(pairs, **{changed: new[changed]}), **how).mean()

    actual, expected = (
        jax.jit(jax.value_and_grad(partial(value, **how)))(views(d=5))
        for how in ({"block_size": 3}, {})
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10), actual, expected)


@pytest.mark.long
@pytest.mark.parametrize("loss", [losses.nt_xent_loss, losses.tcl_loss, losses.dcl_loss])
def test_second_derivatives_of_blockwise_losses_equal_those_of_the_full_matrix(loss):
    z = views(d=5)

    def derivative(z, temperature, **how):
        def value(z, temperature):
            return loss(pair_views(z), temperature=temperature, **how).mean()

        by_z, by_temperature = jax.grad(value, argnums=(0, 1))(z, temperature)
        return jnp.vdot(by_z, jnp.cos(jnp.arange(z.size)).reshape(z.shape)) + by_temperature

    actual, expected = (
        jax.jit(jax.grad(partial(derivative, **how), argnums=(0, 1)))(z, jnp.float64(0.3))
        for how in ({"block_size": 3}, {})
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-10), actual, expected)


def test_second_derivative_of_a_blockwise_loss_without_negatives_is_that_of_the_full_matrix():
    """The anchor's own logit, 1 / temperature, has no maximum to subtract."""

    def penalty(z, **how):
        def value(z):
            return losses.sup_con_loss(pair_views(z, jnp.zeros(4, int)), **how).mean()

        return (jax.grad(value)(z) ** 2).sum()

    z = views(d=5)[:, :4].astype(jnp.float32)
    actual, expected = (
        jax.jit(jax.grad(partial(penalty, **k)))(z) for k in ({"block_size": 3}, {})
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


# Logits of distant rows differ by up to 2 / temperature. In float32, e^-87 is the smallest normal
# number, so positives and negatives must each subtract the maximum of their own logits.
@pytest.mark.parametrize("dtype", long_except(["float32"], ["float32", "float64"]))
@pytest.mark.parametrize("spread", ["random", "opposite", "simplex"])
@pytest.mark.parametrize("loss", [losses.nt_xent_loss, losses.tcl_loss])
def test_blockwise_loss_equals_full_matrix_loss_at_any_temperature(loss, spread, dtype):
    def value(z, temperature, **how):
        per_anchor = loss(pair_views(z), temperature=temperature, **how)
        return per_anchor @ jnp.linspace(0.5, 2, len(per_anchor), dtype=z.dtype)

    @jax.jit
    def blocks(z, temperature):
        return jax.value_and_grad(partial(value, block_size=3), argnums=(0, 1))(z, temperature)

    z = {
        "random": views(d=16),
        "opposite": jnp.stack([views(d=16)[0], -views(d=16)[0]]),
        "simplex": jnp.eye(16).reshape(2, 8, 16) - 1 / 16 + 1e-3 * views(d=16),
    }[spread]
    matrix = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
    for inverse in (2.0, 29.0, 31.0, 35.0, 39.0, 41.0, 48.0, 100.0):
        actual, gradient = blocks(z.astype(dtype), jnp.asarray(1 / inverse, dtype))
        expected, plain = matrix(z, jnp.float64(1 / inverse))
        tolerance = 1e-9 if dtype == "float64" else 3e-4
        np.testing.assert_allclose(actual, expected, rtol=tolerance)
        for one, other in zip(gradient, plain, strict=True):
            atol = tolerance * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=atol)

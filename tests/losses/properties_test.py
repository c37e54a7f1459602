"""Invariances of losses, tested with hypothesis."""

from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import numpy as jnp
from loss_cases import DEFAULTS, embeddings, inputs, kinds, loss_of, pairs_of

from jaxssl import losses
from jaxssl.losses.pairs import pair_views

DIM, BATCH = 4, 8
# These losses change if the embeddings are scaled or rotated.
BY_FEATURE = {"arb", "barlow_twins", "lejepa", "vicreg", "w_mse", "dino", "auc_dino"}
ONLY_ROTATION = {"spectral", *BY_FEATURE}
draws = settings(max_examples=10, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**31 - 1)
scales = st.floats(1e-4, 1e4)


def rotation(seed: int) -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(DIM, DIM)))
    return q.astype(np.float32)


@cache
def values():
    """Compile `(z [2, b, d], turn [d, d]) -> {name: [n]}`. Extra inputs are rotated too."""

    def run(z, turn):
        out = {}
        for case in DEFAULTS:
            pairs = pairs_of(kinds(case)[0], z)
            extra = {name: x @ turn for name, x in inputs(pairs, case.extra).items()}
            out[case.name] = loss_of(case.name)(pairs, **extra)
        return out

    return jax.jit(run)


def close(actual: dict, expected: dict, names: list[str]) -> None:
    for name in names:
        scale = max(1.0, float(np.abs(expected[name]).max()))
        tolerance = {"rtol": 2e-3, "atol": 2e-4 * scale, "err_msg": name}
        np.testing.assert_allclose(actual[name], expected[name], **tolerance)


NAMES = [case.name for case in DEFAULTS]
STILL = np.eye(DIM, dtype=np.float32)


@draws
@given(seeds)
def test_losses_of_inner_products_are_invariant_to_rotation(seed):
    z, turn = embeddings(seed=seed), rotation(seed + 1)
    # Rotation changes losses in BY_FEATURE, and MMCL with the kernel "min", which is not tested.
    names = [name for name in NAMES if name not in BY_FEATURE]
    close(values()(z @ turn, turn), values()(z, STILL), names)


@draws
@given(seeds, scales)
def test_losses_of_cosines_are_invariant_to_scale(seed, scale):
    z = embeddings(seed=seed)
    names = [name for name in NAMES if name not in ONLY_ROTATION]
    close(values()(z * np.float32(scale), STILL), values()(z, STILL), names)


@draws
@given(seeds, st.permutations(range(BATCH)))
def test_losses_are_equivariant_to_permutation(seed, order):
    z = embeddings(seed=seed)
    straight, shuffled = values()(z, STILL), values()(z[:, order], STILL)
    straight = {k: v.reshape(-1, BATCH)[:, order].reshape(-1) for k, v in straight.items()}
    close(shuffled, straight, NAMES)


@pytest.mark.parametrize(
    ("name", "scale", "rtol"), [("barlow_twins", 1e25, 1e-5), ("arb", 1e34, 1e-4)]
)
def test_huge_embeddings_with_a_zero_feature_keep_their_value(name, scale, rtol):
    """At these scales epsilon, divided by the scale or its square, underflows to zero."""
    z = embeddings()
    z[:, :, 0] = 0
    run = jax.jit(jax.value_and_grad(lambda z: loss_of(name)(pair_views(z)).mean()))
    value, gradient = run(z * np.float32(scale))
    np.testing.assert_allclose(value, run(z * np.float32(1e3))[0], rtol=rtol)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("scale", [1e8, 1e9])
@pytest.mark.parametrize("name", ["dino", "auc_dino"])
def test_softmax_of_huge_logits_is_finite_when_it_is_compiled(name, scale):
    z, loss = embeddings(b=16, d=8) * np.float32(scale), getattr(losses, name)
    np.testing.assert_allclose(jax.jit(loss)(*z), loss(*z), rtol=1e-4)


def test_fastclip_of_one_example_is_zero_because_it_has_no_negatives():
    assert losses.fastclip(*embeddings(b=1)) == 0


def test_arrays_of_a_loss_may_be_lists():
    z = embeddings()
    rows = z[0].tolist()
    of_lists = losses.nt_xent_loss(pair_views(z, queue=rows))
    np.testing.assert_array_equal(of_lists, losses.nt_xent_loss(pair_views(z, queue=z[0])))
    np.testing.assert_array_equal(losses.decl(*z, [2.0] * 16), losses.decl(*z, np.full(16, 2.0)))
    np.testing.assert_array_equal(losses.dino(*z, [0.0] * 4), losses.dino(*z, jnp.zeros(4)))
    assert losses.mean_over_anchors([2.0] * len(rows) * 2, pair_views(z))[0] == 2
    with pytest.raises(ValueError, match="queue must be floating point, got int32"):
        pair_views(z, queue=np.ones((2, 4), np.int32))
    with pytest.raises(ValueError, match="rate must have shape"):
        losses.decl(*z, 1.0)


@pytest.mark.parametrize("form", [np.array, list])
def test_labels_of_two_arrays_are_checked_before_they_are_converted(form):
    z = embeddings(b=4)
    with pytest.raises(ValueError, match="labels .*4294967296"):
        losses.nt_xent(*z, labels=form([0, 1, 2**32, 2**32 + 1]))
    with pytest.raises(ValueError, match="labels"):
        jax.jit(lambda z: losses.nt_xent(*z, labels=form([0, 1, -1, 0])))(z)


@pytest.mark.long
@pytest.mark.parametrize("name", ["nt_xent", "tcl", "auc_cl", "mmcl", "vicreg"])
def test_jit_vmap_and_grad_compose(name):
    """vmap over batches gives the gradients of the single batches."""
    z = jnp.stack([jnp.asarray(embeddings(seed=seed)) for seed in range(3)])
    gradient = jax.grad(lambda z: loss_of(name)(pair_views(z)).mean())
    together = jax.jit(jax.vmap(gradient))(z)
    single = jax.jit(gradient)
    for actual, x in zip(together, z, strict=True):
        np.testing.assert_allclose(actual, single(x), rtol=1e-3, atol=1e-5)
    second = jax.jit(lambda z, v: jax.jvp(gradient, (z,), (v,))[1])
    assert np.isfinite(second(z[0], jnp.ones_like(z[0]))).all()

"""Bias and noise of minibatch gradients against an enumeration of all batches."""

from functools import partial
from itertools import combinations

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except

from jaxssl import losses
from jaxssl.losses.auc_cl import PRESETS
from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, pair_views
from jaxssl.studies.bias_estimate import estimate_gradient_bias
from jaxssl.training.config import factory

N, DIM = 6, 3
RNG = np.random.default_rng(0)
EXAMPLES = RNG.normal(size=(N, DIM))
VIEWS = (EXAMPLES + 0.3 * RNG.normal(size=(2, N, DIM))).astype(np.float32)


def embed(weights, index):
    return jnp.matmul(jnp.asarray(VIEWS)[:, index], weights)


def objective(name, **hyper):
    return factory("loss", name)(**hyper)


def measure(loss, batch_size, **settings):
    return estimate_gradient_bias(loss, embed, jnp.eye(DIM), N, batch_size, **settings)


def exact(loss, batch_size):
    """Return mean gradient, full gradient and deviation over all batches, without memory."""
    learned, memory = loss.init(jax.random.key(0), N, DIM)

    @jax.jit
    def gradient(index):
        def value(weights):
            pairs = pair_views(embed(weights, index), index)
            return loss.loss(pairs, learned, memory, step=0, key=jax.random.key(0))[0]

        return jax.grad(value)(jnp.eye(DIM)).ravel()

    batches = np.array(list(combinations(range(N), batch_size)), np.int32)
    gradients = np.stack([np.asarray(gradient(batch), np.float64) for batch in batches])
    full = np.asarray(gradient(np.arange(N, dtype=np.int32)), np.float64)
    noise = np.sqrt(np.mean(np.sum((gradients - gradients.mean(0)) ** 2, axis=1)))
    return gradients.mean(axis=0), full, noise


@pytest.mark.parametrize(
    "batch_size", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 5))]
)
def test_estimated_bias_equals_the_bias_over_all_batches(batch_size):
    loss = objective("nt_xent", temperature=0.2)
    mean, full, noise = exact(loss, batch_size)
    size = np.linalg.norm(full)
    [estimate] = measure(loss, batch_size, draws=4096, chunk=128)
    bias = np.linalg.norm(mean - full) / size
    assert estimate.low <= bias <= estimate.high
    assert estimate.high - estimate.low < 0.2 * bias + 0.05
    assert estimate.deviation == pytest.approx(noise / size, rel=0.1)
    assert estimate.cosine == pytest.approx(mean @ full / np.linalg.norm(mean) / size, abs=0.02)


def means_of_auc_cl(batch_size, kind, **hyper):
    """Return the mean over all batches of value and gradients for the weights and b, in float64."""
    with jax.enable_x64(True):
        data = jnp.asarray(VIEWS, jnp.float64)
        batches = np.array(list(combinations(range(N), batch_size)), np.int32)

        def value(weights, b, index):
            z = jnp.matmul(data[:, index], weights)
            pairs = pair_views(z) if kind == "views" else pair_towers(z[0], z[1])
            return losses.auc_cl_loss(pairs, b, **hyper).mean()

        both = jax.jit(jax.vmap(jax.value_and_grad(value, argnums=(0, 1)), (None, None, 0)))
        values = both(jnp.eye(DIM, dtype=jnp.float64), jnp.float64(0.2), batches)
        return jax.tree.map(lambda x: np.asarray(x).mean(0), values)


@pytest.mark.parametrize(
    "batch_size", [2, *(pytest.param(n, marks=pytest.mark.long) for n in range(3, N))]
)
@pytest.mark.parametrize("kind", ["views", "towers"])
@pytest.mark.parametrize("form", long_except(["moments"], ["moments", "matrix"]))
def test_minibatch_gradient_of_auc_cl_is_unbiased(form, kind, batch_size):
    """Theorem 3.3: the means over all batches equal value and gradient of the whole data set."""
    batches = means_of_auc_cl(batch_size, kind, form=form)
    expected = means_of_auc_cl(N, kind, form=form)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), batches, expected)


def test_minibatch_gradient_of_auc_cl_with_a_sum_over_negatives_is_biased():
    (_, batches), (_, expected) = (means_of_auc_cl(b, "views", **PRESETS["paper"]) for b in (2, N))
    assert np.linalg.norm(batches[0] - expected[0]) > 0.5 * np.linalg.norm(expected[0])


def test_estimated_gradient_bias_of_auc_cl_is_not_significant():
    [estimate] = measure(objective("auc_cl"), 3, draws=1024, chunk=128)
    assert estimate.low == 0


def test_estimated_bias_and_noise_of_the_full_batch_gradient_are_zero():
    [estimate] = measure(objective("dcl"), N, draws=8, chunk=2)
    assert estimate.bias < 1e-5
    assert estimate.deviation < 1e-3
    assert estimate.cosine == pytest.approx(1)


@pytest.mark.long
def test_moving_averages_over_steps_reduce_the_gradient_bias():
    loss = objective("decl", u="mean", temperature=0.3, momentum=0.95)
    target = objective("decl", rate="batch", u="mean", temperature=0.3)
    first, _, last = measure(loss, 2, target=target, visits=(0, 1, 60), draws=4096, chunk=128)
    assert last.high < first.low


def test_bias_estimates_with_the_same_seed_are_equal():
    settings = {"draws": 64, "chunk": 16}
    loss = objective("dcl")
    assert measure(loss, 3, **settings) == measure(loss, 3, **settings)
    assert measure(loss, 3, **settings) != measure(loss, 3, **settings, seed=1)


def test_bias_estimate_rejects_invalid_arguments():
    with pytest.raises(ValueError, match=r"batch_size must be in \[2, 6\], got 7"):
        measure(objective("dcl"), 7)
    with pytest.raises(ValueError, match="visits must be increasing"):
        measure(objective("dcl"), 3, visits=(1, 0))


def test_memory_is_filled_by_the_epochs_between_two_visits():
    """The gradient grows by g* with each batch that the memory has seen, two in an epoch."""

    def loss(pairs, learned, memory, *, step, key):
        return memory * jnp.sum(pairs.anchor) / pairs.anchor.size, memory + 1, {}

    counting = Objective(lambda *_: ((), jnp.float32(1)), loss)
    same = lambda params, index: jnp.broadcast_to(params, (2, len(index), DIM))  # noqa: E731
    settings = {"visits": (0, 1, 3), "draws": 4, "chunk": 1}
    found = estimate_gradient_bias(counting, same, jnp.ones(DIM), N, 3, **settings)
    assert [each.bias for each in found] == pytest.approx([0, 2, 6], abs=1e-3)

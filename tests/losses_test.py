"""The contract of every loss, walked from the folder, and what is particular to each."""

import importlib
import pkgutil
from functools import partial

import jax
import numpy as np
import oracles
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jaxssl.losses
from jaxssl import parallel
from jaxssl.losses import auc_cl, auc_cl_loss, nt_xent_loss
from jaxssl.objective import mean_over_anchors
from jaxssl.pairs import pair_towers, pair_views

NAMES = sorted(m.name for m in pkgutil.iter_modules(jaxssl.losses.__path__))
# Settings besides the defaults that the contract is tested with.
HYPER = {
    "auc_cl": [
        {"b": 0.3, "a": 0.8, "negative_weight": 0.5},
        {"b": 0.1, **auc_cl.PRESETS["released_cifar"]},
    ],
    "nt_xent": [{"temperature": 0.1}],
}
CASES = [(name, hyper) for name in NAMES for hyper in [{}, *HYPER.get(name, [])]]
LABELS = np.array([0, 1, 0, 2, 1, 0, 3, 1])  # 2 and 3 are alone in their class
each_case = pytest.mark.parametrize(("name", "hyper"), CASES)
each_name = pytest.mark.parametrize("name", NAMES)


def loss_of(name: str):
    return getattr(importlib.import_module(f"jaxssl.losses.{name}"), f"{name}_loss")


@partial(jax.jit, static_argnames=("name", "hyper"))
def per_anchor(pairs, *, name, hyper):
    return loss_of(name)(pairs, **dict(hyper))


@partial(jax.jit, static_argnames=("name", "hyper"))
def mean_and_gradient(z, *, name, hyper):
    return jax.value_and_grad(lambda z: loss_of(name)(pair_views(z), **dict(hyper)).mean())(z)


def static(hyper: dict) -> tuple:
    return tuple(sorted(hyper.items()))


def embeddings(num_views: int = 2, b: int = 8, d: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_views, b, d)).astype(np.float32)


def pairs_of(kind: str, z: np.ndarray):
    """The shapes of pairs that losses meet."""
    z = jnp.asarray(z)
    labels = jnp.asarray(LABELS)
    return {
        "views": lambda: pair_views(z),
        "labels": lambda: pair_views(z, labels=labels),
        "three views": lambda: pair_views(jnp.concatenate([z, z[:1] + 1])),
        "one view": lambda: pair_views(z[:1], labels=labels),
        "towers": lambda: pair_towers(z[0], z[1], queue=z[0, :3] * 2 + 1),
    }[kind]()


@each_case
@pytest.mark.parametrize("kind", ["views", "labels", "three views", "one view", "towers"])
def test_value_equals_the_oracle(name, hyper, kind):
    pairs = pairs_of(kind, embeddings())
    expected = getattr(oracles, name)(pairs, **hyper)
    found = per_anchor(pairs, name=name, hyper=static(hyper))
    assert found.dtype == jnp.float32
    assert found.shape == (pairs.anchor.shape[0],)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@each_case
def test_gradient_equals_differences_of_the_oracle(name, hyper):
    z, step = embeddings(b=4, d=3).astype(np.float64), 1e-5
    pairs = pair_views(jnp.float32(z))

    def oracle_mean(z):
        rows = z.reshape(-1, z.shape[-1])
        return getattr(oracles, name)(pairs._replace(anchor=rows, candidate=rows), **hyper).mean()

    expected = np.zeros_like(z)
    for at in np.ndindex(*z.shape):
        shift = np.zeros_like(z)
        shift[at] = step
        expected[at] = (oracle_mean(z + shift) - oracle_mean(z - shift)) / (2 * step)
    _, found = mean_and_gradient(jnp.float32(z), name=name, hyper=static(hyper))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5)


@each_case
def test_derivatives_agree_in_float64(name, hyper):
    with jax.enable_x64(True):
        z = jnp.asarray(embeddings(b=4, d=3), jnp.float64)
        value = lambda z: loss_of(name)(pair_views(z), **hyper).mean()  # noqa: E731
        assert value(z).dtype == jnp.float64
        check_grads(value, (z,), order=1, modes=["rev"], rtol=1e-5)


@partial(jax.jit, static_argnames=("name", "hyper", "devices", "mapping"))
def value_and_gradient(z, index, labels, *, name, hyper, devices, mapping):
    """Mean loss and gradient, the batch split over ``devices`` in one of several ways."""
    loss_fn = loss_of(name)

    def local(z, index, labels, axis_name):
        def value(z):
            pairs = pair_views(z, index, labels, axis_name=axis_name)
            return mean_over_anchors(loss_fn(pairs, **dict(hyper)), pairs, axis_name)[0]

        value, gradient = jax.value_and_grad(value)(z)
        # z is this device's own, so its gradient is one share of the mean over devices.
        return parallel.mean(value, axis_name), gradient / parallel.device_count(axis_name)

    if mapping == "whole":
        return local(z, index, labels, None)
    mesh = parallel.make_mesh(jax.devices()[:devices])
    specs = (P(None, "data"), P("data"), P("data"))
    run = parallel.spmd(partial(local, axis_name="data"), mesh, specs, (P(), P(None, "data")))
    return run(z, index, labels)


@each_case
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_value_and_gradient_do_not_depend_on_the_number_of_devices(name, hyper, devices):
    z = jnp.asarray(embeddings())
    # Three anchors have no positive, and not equally many on each device.
    index, labels = jnp.arange(8) * 3, jnp.asarray(LABELS)
    call = partial(value_and_gradient, z, index, labels, name=name, hyper=static(hyper))
    expected = call(devices=1, mapping="whole")
    found = call(devices=devices, mapping="spmd")
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)
    oracle = getattr(oracles, name)(pair_views(z, index, labels), **hyper)
    np.testing.assert_allclose(found[0], oracle.mean(), rtol=2e-5)


@each_name
def test_under_pmap_value_and_gradient_equal_those_of_one_device(name):
    z = jnp.asarray(embeddings())

    def local(z):
        def value(z):
            pairs = pair_views(z, axis_name="i")
            return mean_over_anchors(loss_of(name)(pairs), pairs, "i")[0]

        value, gradient = jax.value_and_grad(value)(z)
        return jax.lax.pmean(value, "i"), gradient / 8

    value, gradient = jax.pmap(local, axis_name="i", in_axes=1, out_axes=(0, 1))(z[:, :, None])
    whole = jax.value_and_grad(lambda z: loss_of(name)(pair_views(z)).mean())(z)
    np.testing.assert_allclose(value[0], whole[0], rtol=1e-5)
    np.testing.assert_allclose(gradient[:, :, 0], whole[1], rtol=1e-4, atol=1e-6)


@each_case
def test_order_of_examples_does_not_matter(name, hyper):
    z, order = embeddings(), np.random.default_rng(1).permutation(8)
    straight, shuffled = (
        per_anchor(pair_views(jnp.asarray(x)), name=name, hyper=static(hyper)).reshape(2, 8)
        for x in (z, z[:, order])
    )
    np.testing.assert_allclose(shuffled, straight[:, order], rtol=1e-4, atol=1e-5)


HARD = {
    "equal rows": np.ones((2, 8, 4)),
    "zero rows": np.zeros((2, 8, 4)),
    "some zero rows": np.concatenate([embeddings()[:, :4], np.zeros((2, 4, 4))], axis=1),
    "antipodal views": np.stack([embeddings()[0], -embeddings()[0]]),
    "huge": embeddings() * 1e30,
    "tiny": embeddings() * 1e-30,
    "one example": embeddings(b=1),
    "one row": embeddings(num_views=1, b=1),
}


@each_case
@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_value_and_gradient_are_finite(name, hyper, kind, dtype):
    if "temperature" in hyper:
        hyper = {**hyper, "temperature": 1e-3}
    z = jnp.asarray(HARD[kind], dtype)
    value, gradient = mean_and_gradient(z, name=name, hyper=static(hyper))
    assert value.dtype == jnp.float32
    assert gradient.dtype == dtype
    assert np.isfinite(value)
    assert np.isfinite(np.asarray(gradient, np.float32)).all()


@each_name
def test_an_anchor_without_a_positive_gives_zero_and_is_left_out_of_the_mean(name):
    pairs = pairs_of("one view", embeddings())
    losses = per_anchor(pairs, name=name, hyper=())
    alone = np.isin(LABELS, [2, 3])
    assert (losses[alone] == 0).all() and (losses[~alone] != 0).all()
    mean, share = mean_over_anchors(losses, pairs, None)
    np.testing.assert_allclose(mean, losses[~alone].mean(), rtol=1e-6)
    np.testing.assert_allclose(share, alone.mean())


@each_name
def test_a_schedule_is_followed_without_a_new_compilation(name):
    objective = importlib.import_module(f"jaxssl.losses.{name}").objective
    parameter = {"auc_cl": "alpha", "nt_xent": "temperature"}[name]
    built = objective(**{parameter: lambda step: 0.1 + step})
    params, memory = built.init(jax.random.key(0), 8)
    pairs = pairs_of("views", embeddings())

    @jax.jit
    def value(step):
        return built.loss(pairs, params, memory, step=step, key=None, axis_name=None)[0]

    for step in (0.0, 1.0):
        plain = loss_of(name)(pairs, **{parameter: 0.1 + step}).mean()
        np.testing.assert_allclose(value(jnp.float32(step)), plain, rtol=1e-5)
    assert value._cache_size() == 1


def test_nt_xent_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature must be > 0, got 0"):
        nt_xent_loss(pairs_of("views", embeddings()), temperature=0)


def test_auc_cl_names_the_similarities_there_are():
    with pytest.raises(ValueError, match='"cosine" or "unit", got \'dot\''):
        auc_cl_loss(pairs_of("views", embeddings()), similarity="dot")


def test_auc_cl_without_margin_is_stationary_at_collapse():
    # AUC-CL, Table 11: with alpha = 0 constant embeddings and b = 1 are a minimum.
    collapsed = jnp.ones((2, 8, 4)) + 0.0
    loss = lambda z, b: auc_cl_loss(pair_views(z), b, alpha=0.0).mean()  # noqa: E731
    value, gradient = jax.value_and_grad(loss, argnums=(0, 1))(collapsed, jnp.float32(1))
    np.testing.assert_allclose(value, 0, atol=1e-10)
    np.testing.assert_allclose(gradient[0], 0, atol=1e-5)
    np.testing.assert_allclose(gradient[1], 0, atol=1e-5)


def test_auc_cl_learns_b_and_on_request_a():
    built = auc_cl.objective(a=0.7, learn=("a", "b"))
    params, memory = built.init(jax.random.key(0), 8)
    assert {k: float(v) for k, v in params.items()} == pytest.approx({"a": 0.7, "b": 0.0})
    pairs = pairs_of("views", embeddings())
    loss = lambda params: built.loss(  # noqa: E731
        pairs, params, memory, step=0, key=None, axis_name=None
    )[0]
    gradient = jax.grad(loss)(params)
    pos, neg = oracles.similarities(pairs)
    # dL/db = -2 sum (n - b), dL/da = -2 (p - a)
    np.testing.assert_allclose(gradient["b"], np.mean([-2 * sum(n) for n in neg]), rtol=1e-4)
    np.testing.assert_allclose(gradient["a"], np.mean([-2 * (p[0] - 0.7) for p in pos]), rtol=1e-4)


def test_learning_an_unknown_or_scheduled_hyper_parameter_is_refused():
    with pytest.raises(ValueError, match="learn names 'c', expected some of"):
        auc_cl.objective(learn=("c",))
    with pytest.raises(ValueError, match="b is learned, so its value must be a number"):
        auc_cl.objective(b=lambda step: step)

"""Tests of objectives: trained parameters and memory over steps and devices, and checks.

tests/training/whole_step_test.py compares the memory after whole steps with steps by hand.
"""

import inspect
from functools import cache, partial, reduce
from importlib import import_module
from operator import getitem
from typing import Any

import chex
import jax
import numpy as np
import oracles
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from loss_cases import NAMES, TOWERS, embeddings, equations, loss_of
from marks import long_except

from jaxssl import collectives, distributed, losses
from jaxssl.losses.decl import distance
from jaxssl.losses.lejepa import draw_directions
from jaxssl.losses.pairs import anchor_keys, pair_towers, pair_views, unit

NUM_EXAMPLES, DIM, STEPS = 20, 4, 3
SETTINGS = {
    "auc_cl": ("auc_cl", {"learn": ("a", "b")}),
    "decl by a buffer": ("decl", {"rate": "buffer", "weight": "alternate"}),
    "decl by momentum keys": ("decl", {"rate": "momentum", "weight": "inverse"}),
    "decl by the batch": ("decl", {"rate": "batch", "u": "mean", "weight": 0.5}),
    "decl under noise": ("decl", {"rate": "buffer", "noise": 0.3}),
    "tcl with gradients": ("tcl", {"gradients": True}),
    "sogclr": ("sogclr", {}),
    "isogclr": ("sogclr", {"individual_temperature": True}),
    "fastclip": ("fastclip", {}),
    "swav": ("swav", {"num_prototypes": 6}),
    "dino": ("dino", {}),
    "auc_dino": ("auc_dino", {}),
    "nnclr": ("nnclr", {"support_size": 20}),
    "mochi": ("mochi", {"hardest": 4, "mixed": 3, "mixed_with_anchor": 2}),
    "lejepa": ("lejepa", {"num_slices": 8}),
    "clip": ("clip", {}),
    "siglip": ("siglip", {}),
    "mmcl": ("mmcl", {}),
}


def batch_at(step: int):
    """Views [2, 8, 4] and the indices of their examples. Consecutive batches share examples."""
    index = (np.arange(8) * (step + 1)) % NUM_EXAMPLES
    return jnp.asarray(embeddings(seed=step)), jnp.asarray(index, jnp.int32)


def made(name: str, num_examples: int = NUM_EXAMPLES, **hyper) -> Any:
    """Return an objective with its initial parameters and memory."""
    objective = losses.objective(name, **hyper)
    return objective, *objective.init(jax.random.key(0), num_examples, DIM)


def pairs_for(name: str, z, index=None, rate: str = "", **options):
    """Pair two views as the loss takes them: as towers, or as views of one network."""
    towers = name in TOWERS or rate == "momentum"
    return pair_towers(z[0], z[1], index, **options) if towers else pair_views(z, index, **options)


@cache
def trained(setting: str, devices: int, check_vma: bool = False) -> Any:
    """Losses, gradients, metrics, parameters and memory of some steps of gradient descent."""
    name, hyper = SETTINGS[setting]
    objective, *state = made(name, **hyper)
    axis_name = None if devices == 0 else "data"
    rate, traces = hyper.get("rate", ""), []

    def step(z, index, place, params, memory, number):
        traces.append(number)

        def loss(z, params):
            # Only the examples of this device enter the loss.
            pairs = pairs_for(name, z[:, place], index, rate, axis_name=axis_name)
            key = jax.random.key(number)
            value, after, metrics = objective.loss(pairs, params, memory, step=number, key=key)
            return value, (after, metrics)

        compute = losses.global_value_and_grad(loss, axis_name, argnums=(0, 1), has_aux=True)
        (value, (memory, metrics)), (dz, dparams) = compute(z, params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, dparams)
        return (value, dz, collectives.mean(metrics, axis_name)), params, memory

    if devices:
        mesh = distributed.make_mesh(jax.devices()[:devices])
        in_specs = (P(), P("data"), P("data"), P(), P(), P())
        specs = {"in_specs": in_specs, "out_specs": P(), "check_vma": check_vma}
        step = jax.shard_map(step, mesh=mesh, **specs)
        state = distributed.replicate(state, mesh)
    step = jax.jit(step)
    params, memory = state
    history = []
    for number in range(STEPS):
        batch = (*batch_at(number), jnp.arange(8, dtype=jnp.int32))
        seen, params, memory = step(*batch, params, memory, jnp.int32(number))
        history.append((seen, params, memory))
    assert len(traces) == 1  # schedules and new examples do not retrace
    return jax.tree.map(np.asarray, history)


# Settings that are also tested with check_vma=False; whole_step_test.py tests the other objectives.
UNCHECKED = ("decl by the batch", "decl under noise", "tcl with gradients", "sogclr", "isogclr")
# Settings of `make test`: a trained parameter, a buffer and a queue.
KEPT = ("auc_cl", "decl by a buffer", "nnclr")
UNCHECKED += ("fastclip", "auc_dino", "mochi", "lejepa", "siglip", "mmcl")


@pytest.mark.parametrize(
    ("setting", "check_vma"),
    [
        *((setting, True) for setting in KEPT),
        *(
            pytest.param(setting, True, marks=pytest.mark.long)
            for setting in SETTINGS
            if setting not in KEPT
        ),
        *(pytest.param(setting, False, marks=pytest.mark.long) for setting in UNCHECKED),
    ],
)
def test_loss_parameters_and_memory_do_not_depend_on_the_device_count(setting, check_vma):
    actual, expected = trained(setting, 4, check_vma), trained(setting, 0)
    chex.assert_trees_all_close(actual, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("setting", SETTINGS)
def test_memory_with_a_row_per_example_may_be_sharded(setting):
    name, hyper = SETTINGS[setting]
    objective = losses.objective(name, **hyper)
    _, memory = jax.eval_shape(lambda key: objective.init(key, 37, DIM), jax.random.key(0))
    lengths = {len(x.shape) and x.shape[0] for x in jax.tree.leaves(memory)}
    assert objective.per_example == (37 in lengths)


@pytest.mark.parametrize(
    "name",
    long_except(
        ("nt_xent", "dino", "cross_entropy"),
        ("nt_xent", "dino", "auc_dino", "cross_entropy", "nnclr", "swav", "sogclr"),
    ),
)
def test_objective_evaluates_scheduled_hyper_parameters_at_the_step(name):
    """A schedule has the effect of its value."""
    number = "label_smoothing" if name == "cross_entropy" else "temperature"
    number = "teacher_temperature" if "dino" in name else number
    at = lambda step: 0.2 + 0.1 * jnp.asarray(step, jnp.float32)  # noqa: E731
    labels = jnp.arange(8, dtype=jnp.int32) if name == "cross_entropy" else None
    options: Any = {} if labels is None else {"labels": labels}
    pairs = pairs_for(name, jnp.asarray(embeddings()), **options)
    values = []
    for hyper in ({number: at}, {number: 0.5}, {number: 0.2}):
        objective, params, memory = made(name, 8, **hyper)
        wave = lambda x: jnp.sin(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)  # noqa: E731
        params = jax.tree.map(wave, params)
        loss = jax.jit(partial(objective.loss, key=None))
        values.append(loss(pairs, params, memory, step=jnp.int32(3))[0])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)
    assert values[1] != values[2]


@pytest.mark.parametrize(
    ("name", "number", "hyper"),
    [
        ("decl", "momentum", {"rate": "buffer"}),
        ("sogclr", "gamma", {}),
        ("dino", "center_momentum", {}),
        ("auc_dino", "center_momentum", {}),
    ],
)
def test_loss_memory_is_updated_with_the_scheduled_hyper_parameter_of_the_step(name, number, hyper):
    at = lambda step: 0.2 + 0.1 * jnp.asarray(step, jnp.float32)  # noqa: E731
    memories = []
    for value in (at, 0.5, 0.2):
        objective, params, memory = made(name, 8, **{**hyper, number: value})
        for seed in range(2):  # The first update of some memories ignores the hyper-parameter.
            z, index = jnp.asarray(embeddings(seed=seed)), jnp.arange(8, dtype=jnp.int32)
            pairs = pairs_for(name, z, index)
            how = {"step": jnp.int32(3), "key": jax.random.key(0)}
            _, memory, _ = objective.loss(pairs, params, memory, **how)
        memories.append(memory)
    chex.assert_trees_all_close(memories[0], memories[1], rtol=1e-6)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(memories[1], memories[2], rtol=1e-3)


# [16, 16] mask of the negatives of each anchor, for two views of eight examples.
OTHERS = ~np.tile(np.eye(8, dtype=bool), (2, 2))


def test_decl_gamma_rates_are_computed_with_the_similarity_of_the_loss():
    """Without Gamma samples, the rate of an anchor is the mean of its negatives' similarities."""
    z = jnp.asarray(embeddings())
    hyper = {"similarity": "neg_euclidean", "temperature": 0.5}
    objective = losses.objective("decl", rate="batch", u="mean", **hyper)
    pairs = pair_views(z, jnp.arange(8, dtype=jnp.int32))
    value, _, _ = objective.loss(pairs, {}, (), step=0, key=jax.random.key(0))
    rows = np.asarray(z).reshape(16, 4)
    s = np.exp(-np.linalg.norm(rows[:, None] - rows[None], axis=2) / 0.5)
    rate = jnp.asarray((s * OTHERS).sum(1) / 14, jnp.float32)
    np.testing.assert_allclose(value, losses.decl_loss(pairs, rate, **hyper).mean(), rtol=1e-5)


def test_auc_cl_trains_the_targets_a_and_b():
    learned = [params for _, params, _ in trained("auc_cl", 0)]
    assert set(learned[0]) == {"a", "b"}
    for name in "ab":
        assert len({float(p[name]) for p in learned}) == STEPS
    (_, _, metrics), *_ = trained("auc_cl", 0)[1]
    np.testing.assert_allclose(metrics["b"], learned[0]["b"])  # value before the update


def test_learn_option_selects_the_trained_hyper_parameters():
    z = pair_views(jnp.asarray(embeddings()))
    fixed, params, memory = made("auc_cl", learn=(), b=0.4)
    assert params == {}
    value, _, _ = fixed.loss(z, params, memory, step=0, key=None)
    np.testing.assert_allclose(value, losses.auc_cl_loss(z, 0.4).mean(), rtol=1e-6)
    np.testing.assert_allclose(made("clip")[1]["logit_scale"], np.log(1 / 0.07), rtol=1e-6)


def test_learned_temperature_is_trained_as_its_log_and_stays_positive():
    """InfoNCE times its temperature falls with the temperature, so that large steps lower it."""
    z = pair_views(jnp.asarray(embeddings()))
    objective, params, memory = made("info_nce", learn=("temperature",), temperature=0.2)
    close(params["log_temperature"], np.log(0.2))

    def loss(params):
        value, _, metrics = objective.loss(z, params, memory, step=0, key=None)
        return value, metrics

    for _ in range(3):
        (value, metrics), slope = jax.value_and_grad(loss, has_aux=True)(params)
        temperature = np.exp(params["log_temperature"])
        close(metrics["temperature"], temperature)
        close(value, losses.info_nce_loss(z, temperature=temperature).mean())
        params = {"log_temperature": params["log_temperature"] - 5 * slope["log_temperature"]}
    assert 0 < temperature < 0.2


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("decl", ()),
        ("sogclr", ("log_u",)),
        ("fastclip", ("query", "log_u")),
        ("fastclip", ("key", "log_u")),
    ],
)
def test_averages_of_several_pairings_are_means_of_numbers_and_not_of_their_logs(name, path):
    objective, _, memory = made(name, 4)
    logs = [np.log([1.0, 2.0, 3.0, 4.0]), np.log([3.0, 2.0, 9.0, 1.0])]
    memories = [jax.tree.map(lambda _, x=x: jnp.float32(x), memory) for x in logs]
    merged = reduce(getitem, path, objective.merge(memories))
    close(np.exp(merged), [2.0, 2.0, 6.0, 2.5])


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_random_losses_draw_anew_in_every_step(seed):
    """MoCHi draws the mixtures of every anchor, and LeJEPA its directions."""
    key, z, index = jax.random.key(seed), jnp.asarray(embeddings()), jnp.arange(8, dtype=jnp.int32)
    keys = anchor_keys(key, pairs_for("mochi", z, index))
    draws = jnp.stack([jax.random.uniform(each, (13,)) for each in keys])
    for name, drawn in {"mochi": draws, "lejepa": draw_directions(key, DIM, 8)}.items():
        hyper, pairs = SETTINGS[name][1], pairs_for(name, z, index)
        objective, params, memory = made(name, **hyper)
        value, _, _ = objective.loss(pairs, params, memory, step=0, key=key)
        close(value, loss_of(name)(pairs, drawn, **hyper).mean())


def test_siglip_trains_its_scale_and_bias():
    """The gradients are compared with differences of the loss in float64."""
    z = embeddings(b=6)
    objective, params, memory = made("siglip", 6)

    def loss(params):
        pairs = pair_towers(*jnp.asarray(z))
        return objective.loss(pairs, params, memory, step=0, key=None)[0]

    start, step = {name: float(x) for name, x in params.items()}, 1e-4
    slopes = jax.grad(loss)(params)
    assert set(slopes) == {"logit_scale", "bias"}
    for name, slope in slopes.items():
        low, high = (
            oracles.siglip(pair_towers(*jnp.asarray(z)), **{**start, name: start[name] + x}).mean()
            for x in (-step, step)
        )
        np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-4)


def test_isogclr_temperatures_start_at_the_given_value_and_stop_at_their_bounds():
    limits = {"temperature_min": 0.08, "temperature_max": 0.12, "temperature_lr": 10.0}
    settings = {"individual_temperature": True, "temperature": 0.11, "rho": 0.0}
    objective, params, memory = made("sogclr", 8, **settings, **limits)
    np.testing.assert_array_equal(memory["temperature"], np.full(8, np.float32(0.11)))
    for seed in range(2):
        pairs = pair_views(jnp.asarray(embeddings(seed=seed)), jnp.arange(8, dtype=jnp.int32))
        _, memory, _ = objective.loss(pairs, params, memory, step=jnp.int32(seed), key=None)
    assert set(np.asarray(memory["temperature"]).tolist()) == {np.float32(0.08), np.float32(0.12)}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sogclr", {}),
        ("sogclr", {"individual_temperature": True}),
        ("fastclip", {}),
        ("decl", {"rate": "buffer"}),
    ],
)
def test_anchor_without_negatives_leaves_the_memory_of_its_example_unchanged(name, settings):
    objective, params, start = made(name, 8, **settings)
    one_class = jnp.zeros(8, jnp.int32)
    pair = pair_towers if name == "fastclip" else lambda *z, **ids: pair_views(z, **ids)
    index, memory = jnp.arange(8, dtype=jnp.int32), start
    for labels in (one_class, None, one_class):
        pairs = pair(*jnp.asarray(embeddings()), index=index, labels=labels)
        value, new, _ = objective.loss(pairs, params, memory, step=0, key=jax.random.key(0))
        assert np.isfinite(value)
        same = jax.tree.leaves(jax.tree.map(np.array_equal, new, memory))
        memory = new
        assert all(same) == (labels is not None)


@pytest.mark.parametrize(("k1", "k2"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_tcl_at_a_low_temperature_is_finite_if_a_strength_is_zero(k1, k2):
    """With both strengths 0 and one positive the loss is 0, whatever the negatives are."""
    z = jnp.asarray([[[1.0, 0.0], [0.9, 0.4]], [[0.0, 1.0], [0.4, -0.9]]])
    loss = lambda z: losses.tcl(*z, temperature=0.005, k1=k1, k2=k2)  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(loss))(z)
    s = np.asarray(unit(z.reshape(4, 2)) @ unit(z.reshape(4, 2)).T, np.float64)
    rows, partner = np.arange(4), np.array([2, 3, 0, 1])
    positive = s[rows, partner]
    others = np.array([[s[i, j] for j in range(4) if j not in (i, partner[i])] for i in range(4)])
    terms = [positive / 0.005, *(others.T / 0.005 + np.log(k2) if k2 else ())]
    terms += [np.log(k1) - positive] if k1 else []
    expected = np.mean(np.logaddexp.reduce(terms, axis=0) - positive / 0.005)
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(gradient).all()
    pull, push = losses.tcl_gradients(pair_views(list(z)), temperature=0.005, k1=k1, k2=k2)
    assert np.isfinite(pull).all() and np.isfinite(push).all()


def test_distances_of_small_rows_do_not_depend_on_a_large_one():
    q, k = jnp.asarray(embeddings())
    expected = np.linalg.norm(q[1:, None] - k[None], axis=2)
    actual = distance(pair_towers(q.at[0].multiply(1e4), k))
    np.testing.assert_allclose(actual[1:], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings"), [("sogclr", {"individual_temperature": True}), ("fastclip", {})]
)
def test_lower_bound_of_temperatures_above_the_upper_one_is_refused(name, settings):
    limits = {"temperature_min": 0.5, "temperature_max": 0.2}
    with pytest.raises(ValueError, match="^temperature_min must be at most .* got 0.5 and 0.2"):
        made(name, 8, **settings, **limits)


def test_fastclip_trains_the_temperature_of_each_image_and_caption_by_adam():
    """The gradient is that of tau (log u + rho), with u after the update."""
    settings = {"temperature": 0.1, "gamma": 0.6, "rho": 0.5, "temperature_lr": 0.01}
    objective, params, memory = made("fastclip", 8, beta1=0.8, beta2=0.9, **settings)
    tau, u = np.full((2, 8), 0.1), np.zeros((2, 8))
    mean, square = np.zeros((2, 2, 8))
    for t in range(1, 4):
        z = embeddings(seed=t).astype(np.float64)
        z /= np.linalg.norm(z, axis=2, keepdims=True)
        for k, s in enumerate((z[0] @ z[1].T, z[1] @ z[0].T)):
            logits = (s - np.diag(s)[:, None]) / tau[k][:, None]
            e = np.exp(logits) * (1 - np.eye(8)) / 7
            u[k] = 0.4 * u[k] + 0.6 * e.sum(1) if t > 1 else e.sum(1)
            gradient = np.log(u[k]) + 0.5 - (e * logits).sum(1) / u[k]
            gradient = np.clip(gradient, -5, 5)
            mean[k] = 0.8 * mean[k] + 0.2 * gradient
            square[k] = 0.9 * square[k] + 0.1 * gradient**2
            size = np.sqrt(square[k] / (1 - 0.9**t)) + 1e-8
            tau[k] = np.clip(tau[k] - 0.01 * mean[k] / (1 - 0.8**t) / size, 0.01, 1)
        pairs = pair_towers(*jnp.asarray(embeddings(seed=t)))
        _, memory, metrics = objective.loss(pairs, params, memory, step=0, key=None)
        actual = [memory[tower]["temperature"] for tower in ("query", "key")]
        np.testing.assert_allclose(actual, tau, rtol=1e-4)
        np.testing.assert_allclose(metrics["temperature"], tau.mean(), rtol=1e-4)


def test_nnclr_support_set_has_no_gradient():
    pairs, rows = pair_towers(*jnp.asarray(embeddings())), jnp.asarray(embeddings(seed=1)[0])
    value = lambda rows: losses.nnclr_loss(pairs, rows).mean()  # noqa: E731
    assert not np.any(jax.grad(value)(rows))


@pytest.mark.parametrize(
    ("solver", "further"),
    [
        ("pgd", {"num_steps", "tol", "step", "accelerated", "init"}),
        ("admm", {"num_steps", "tol"}),
        ("inv", set()),
    ],
)
def test_mmcl_passes_its_settings_to_the_solver(monkeypatch, solver, further):
    module, settings = import_module("jaxssl.losses.mmcl"), {}
    solve = getattr(module, f"svm_dual_{solver}")

    def record(*problem, **arguments):
        settings.update(arguments)
        return solve(*problem, **arguments)

    monkeypatch.setattr(module, f"svm_dual_{solver}", record)
    values: Any = {"C": 3.0, "regularization": 0.7, "num_steps": 9, "tol": 0.01, "step": 0.1}
    values |= {"accelerated": False}
    start: Any = {"alpha_init": "inv"} if solver == "pgd" else {}
    losses.mmcl_loss(pair_views(jnp.asarray(embeddings())), solver=solver, **values, **start)
    expected = {**values, "init": "inv"}
    assert settings == {name: expected[name] for name in {"C", "regularization"} | further}


@pytest.mark.parametrize("bad", [-1, NUM_EXAMPLES, NUM_EXAMPLES + 3])
@pytest.mark.parametrize("mapping", ["one device", "rows split", "rows split, checked", "checked"])
@pytest.mark.parametrize("setting", ["decl by a buffer", "sogclr", "isogclr"])
def test_index_outside_the_memory_gives_nan_and_changes_no_other_entry(setting, mapping, bad):
    step, before = step_of(setting, mapping)
    index = np.array([2, 5, 9, bad], np.int32)
    value, after = step(jnp.asarray(embeddings(b=4)), jnp.asarray(index), before)
    assert np.isnan(value)
    unseen = np.setdiff1d(np.arange(NUM_EXAMPLES), index)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(np.asarray(new)[unseen], np.asarray(old)[unseen])
        assert np.isfinite(np.asarray(new)[index[:3]]).all()


@cache
def step_of(setting: str, mapping: str) -> Any:
    """Compile `(z, index, memory) -> (loss, memory)`."""
    name, hyper = SETTINGS[setting]
    objective, _, memory = made(name, **hyper)
    axis_name = None if mapping == "one device" else "data"

    def step(z, index, memory):
        pairs = pair_views(z, index, axis_name=axis_name)
        how = {"step": jnp.int32(0), "key": jax.random.key(0)}
        value, memory, _ = objective.loss(pairs, {}, memory, **how)
        return collectives.mean(value, axis_name), memory

    if axis_name:
        rows = P("data") if "split" in mapping else P()
        specs = {"in_specs": (P(None, "data"), P("data"), rows), "out_specs": (P(), rows)}
        mesh = distributed.make_mesh(jax.devices()[:2])
        step = jax.shard_map(step, mesh=mesh, check_vma="checked" in mapping, **specs)
    return jax.jit(step), memory


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda z: losses.auc_cl(*z, negative_reduction="max"),
            'negative_reduction must be one of "mean", "sum", got \'max\'',
        ),
        (lambda z: losses.mmcl(*z, kernel=3), 'kernel must be one of "rbf", .*, got 3'),
        (lambda z: losses.auc_cl(*z, similarity=True), 'must be one of "cosine", "unit", got True'),
        (lambda z: losses.auc_cl(*z, form="moments", labels=jnp.arange(8)), 'set form="matrix"'),
        (
            lambda z: losses.auc_dino(z[0], z[1], jnp.zeros(3)),
            r"center must have shape \[4\] like one embedding, got \(3,\)",
        ),
        (
            lambda z: losses.dino(z[0], z[1], jnp.zeros((8, 4))),
            r"center must have shape \[4\] like one embedding, got \(8, 4\)",
        ),
        (
            lambda z: losses.nt_xent(*z, temperature=lambda step: 0.1),
            "temperature must be constant, got a schedule; set one value",
        ),
        (
            lambda z: losses.sogclr(*z, temperature=jnp.full(8, 0.1)),
            r"temperature must have shape \[16\], one number for each anchor, got \[8\]",
        ),
        (
            lambda z: losses.fastclip(*z, temperature=jnp.full(1, 0.1)),
            r"temperature must have shape \[8\], one number for each anchor, got \[1\]",
        ),
        (lambda z: losses.nt_xent(*z, ring=True), "needs a mapped axis, got axis_name=None"),
        (
            lambda z: losses.mmcl(*z, solver="inv", labels=jnp.arange(8)),
            'solver="inv" with alpha_init=None takes neither labels .* set solver="pgd"',
        ),
        (
            lambda z: losses.mmcl(*z, alpha_init="inv", labels=jnp.arange(8)),
            "alpha_init='inv' takes neither labels .* and alpha_init=None",
        ),
        (lambda z: losses.swav(z[0], z[1], jnp.ones((5, 3))), r"prototypes must have shape"),
        (lambda z: losses.sinkhorn(z[0], num_iters=0), "num_iters must be > 0, got 0"),
        (lambda z: losses.sinkhorn(z[0], num_iters=2.5), "num_iters must be an integer, got 2.5"),
        (lambda z: losses.sinkhorn(z), r"scores must have shape \[b, K\], got \(2, 8, 4\)"),
        (lambda _: losses.sinkhorn([1.0, 2.0]), r"scores must have shape \[b, K\], got \(2,\)"),
        (
            lambda z: losses.decl(*z, rate=jnp.ones((16, 1))),
            r"rate must have shape \[16\], one number for each anchor, got \[16, 1\]",
        ),
        (lambda z: losses.decl(*z, rate="buffer"), r"rate must be an array \[n\] .* got a word"),
        (lambda z: losses.decl(*z, weight="inverse"), "weight a number in .* got a word"),
        (
            lambda z: losses.sogclr(*z, log_u=jnp.zeros((16, 1))),
            r"log_u must have shape \[16\], one number for each anchor, got \[16, 1\]",
        ),
        (lambda z: losses.nnclr(z[0], z[1], jnp.ones((5, 3))), r"support must have shape \[k, 4\]"),
        (lambda z: losses.nt_xent(*z, temperature="a"), "temperature must be > 0, got 'a'"),
        (lambda z: losses.nt_xent(*z, temperature=np.inf), "temperature must be finite, got inf"),
        (lambda z: losses.nt_xent(*z, temperature=1j), "temperature must be real, got 1j"),
        (lambda z: losses.nt_xent(z[0], None), "argument z2 must be an array, got None"),
        (
            lambda z: jax.jit(losses.nt_xent)(*z, block_size=4),
            r"block_size must be constant, .* static_argnames=\('block_size',\) to jax.jit",
        ),
        (lambda z: losses.objective("dcl").loss((z, z), {}, (), step=0, key=None), "got tuple"),
        (
            lambda z: losses.global_value_and_grad(jnp.sum, None)(a=z),
            "argnums=0 needs positional arguments, got 0",
        ),
        (lambda z: jax.jit(losses.nt_xent)(*z, ring=True), "ring must be constant, got a traced"),
    ],
)
def test_invalid_arguments_of_losses_raise_at_trace_time(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        jax.eval_shape(call, jnp.asarray(embeddings()))


def test_number_of_solver_steps_may_be_traced():
    assert jax.eval_shape(losses.mmcl, *jnp.asarray(embeddings()), num_steps=5).shape == ()


@pytest.mark.parametrize(
    "name",
    long_except(
        ("auc_cl", "tcl"),
        ("auc_cl", "mmcl", "tcl", "lejepa", "barlow_twins", "w_mse", "arb", "auc_dino"),
    ),
)
def test_loss_of_an_empty_batch_is_zero(name):
    value, gradient = jax.value_and_grad(getattr(losses, name))(*jnp.zeros((2, 0, 3)))
    assert value == 0 and gradient.shape == (0, 3)


AT = {"temperature": lambda step: 1.0}  # a schedule that is constant


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("auc_cl", {"learn": ("c",)}, "learn must name .* got 'c'"),
        ("nt_xent", {"learn": ("temperature",)} | AT, "is learned"),
        ("nt_xent", {"learn": "temperature"}, "learn must be a tuple of names such as"),
        ("nt_xent", {"learn": ("block_size",)}, "learn must name .* got 'block_size'"),
        ("mmcl", {"learn": ("num_steps",)}, "learn must name .* got 'num_steps'"),
        ("auc_cl", {"learn": ("b", "c")}, "learn must name .* 'b', .* got 'c'"),
        ("nt_xent", {"block_size": AT["temperature"]}, "block_size must be constant, got a sched"),
        ("nt_xent", {"ring": AT["temperature"]}, "ring must be constant, got a schedule; set one"),
        ("swav", {"num_prototypes": AT["temperature"]}, "num_prototypes must be constant"),
        *(
            ("decl", {name: AT["temperature"]}, f"{name} must be constant, got a schedule")
            for name in ("rate", "u", "similarity", "noise_on", "include_positive", "learn_scale")
        ),
        ("nt_xent", {"temprature": 1.0}, "unexpected keyword argument 'temprature'"),
        ("decl", {"learn_scale": True} | AT, "a number if learn_scale=True, got a schedule"),
        ("sogclr", {"individual_temperature": True} | AT, "got a schedule"),
    ],
)
def test_objective_checks_hyper_parameters_at_construction(name, hyper, message):
    with pytest.raises((ValueError, TypeError), match=message):
        losses.objective(name, **hyper)


@pytest.mark.parametrize("shape", [(16, 1), (8,), (16, 16)])
def test_mean_over_anchors_refuses_other_numbers_than_one_for_each_anchor(shape):
    pairs = pair_views(jnp.asarray(embeddings()))
    with pytest.raises(ValueError, match=r"a loss must have the shape \[16\], .* got \["):
        losses.mean_over_anchors(jnp.ones(shape), pairs)


@pytest.mark.parametrize(
    ("name", "expected"), [("inverse", [1, 1 / 2, 1 / 3, 1 / 4]), ("alternate", [1, 0, 1, 0])]
)
def test_weight_schedules_of_decl_have_the_expected_values_by_step(name, expected):
    decl = losses.objective("decl", rate="batch", weight=name)
    pairs = pair_views(jnp.asarray(embeddings()))
    for step, weight in enumerate(expected):
        metrics = decl.loss(pairs, {}, (), step=jnp.int32(step), key=jax.random.key(0))[2]
        assert metrics["weight"] == pytest.approx(weight)


def test_decl_with_gamma_rates_from_momentum_keys_raises_without_a_momentum_network():
    objective = losses.objective("decl", rate="momentum")
    with pytest.raises(ValueError, match="needs keys of a momentum network"):
        objective.loss(pair_views(jnp.asarray(embeddings())), {}, (), step=0, key=jax.random.key(0))


def presets() -> dict[str, tuple[str, dict]]:
    """Return {name of a preset: (loss, its hyper-parameters)} of all losses."""
    actual = {}
    for name in NAMES:
        for preset, hyper in getattr(import_module(f"jaxssl.losses.{name}"), "PRESETS", {}).items():
            actual[f"{name}-{preset}"] = name, hyper
    return actual


# Further settings to test, which no preset has.
FURTHER = {
    "mmcl-tanh": ("mmcl", {"kernel": "tanh", "gamma": 2.0, "eta": 0.7}),
    "mmcl-linear": ("mmcl", {"kernel": "linear", "num_steps": 7, "accelerated": False}),
    "mmcl-admm": ("mmcl", {"kernel": "poly", "solver": "admm", "regularization": 2.0}),
}


@pytest.mark.parametrize(
    ("name", "hyper"), [*presets().values(), *FURTHER.values()], ids=[*presets(), *FURTHER]
)
def test_objective_of_a_preset_has_the_value_of_the_loss_with_the_same_settings(name, hyper):
    objective, params, memory = made(name, **hyper)
    index = jnp.arange(8, dtype=jnp.int32)
    pairs = pairs_for(name, jnp.asarray(embeddings()), index, hyper.get("rate", ""))
    value, _, _ = objective.loss(pairs, params, memory, step=0, key=jax.random.key(0))
    if name in ("decl", "sogclr"):  # arguments such as DeCL's rates come from memory
        assert np.isfinite(value)
    else:
        np.testing.assert_allclose(value, loss_of(name)(pairs, **hyper).mean(), rtol=1e-6)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if "block_size" in inspect.signature(loss_of(n)).parameters]
)
def test_blockwise_objective_never_computes_the_full_similarity_matrix(name):
    pairs = pairs_for(name, jnp.asarray(embeddings()), jnp.arange(8, dtype=jnp.int32))
    n, m = len(pairs.anchor), len(pairs.candidate)

    def shapes(**hyper):
        objective, params, memory = made(name, **hyper)
        loss = partial(objective.loss, step=jnp.int32(0), key=jax.random.key(0))
        jaxpr = jax.make_jaxpr(lambda *args: loss(*args)[0])(pairs, params, memory)
        return {v.aval.shape for e in equations(jaxpr.jaxpr) for v in e.outvars}

    assert (n, m) in shapes() and (n, m) not in shapes(block_size=2)


close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
# A learned temperature, as in CLIP, with memory that does not change.
LEARNED = {"rate": "buffer", "u": "mean", "weight": 0.5, "momentum": 1.0, "learn_scale": True}


def scaled(name, scale, **hyper):
    """Value and derivative of a loss at a learned scale, with constant memory."""
    objective, params, memory = made(name, 6, **hyper)
    z, index = jnp.asarray(embeddings(b=6)), jnp.arange(6, dtype=jnp.int32)
    memory = jnp.linspace(-1.0, 1.0, 6) if name == "decl" else memory

    def value(scale):
        params = {"logit_scale": scale}
        pairs = pair_towers(z[0], z[1], index)
        return objective.loss(pairs, params, memory, step=0, key=jax.random.key(0))[0]

    return params, *jax.jit(jax.value_and_grad(value))(jnp.float32(scale))


@pytest.mark.parametrize(
    ("name", "hyper"), [("clip", {}), pytest.param("decl", LEARNED, marks=pytest.mark.long)]
)
def test_learned_logit_scale_is_clipped_at_a_hundred(name, hyper):
    at_bound = scaled(name, np.log(100), **hyper)[1]
    for scale in (np.log(101), 9.0):
        _, value, slope = scaled(name, scale, **hyper)
        close(value, at_bound)
        assert slope == 0
    assert scaled(name, np.log(99), **hyper)[2] != 0
    # A step may pass the bound. The scale is then lowered to it, where it has its whole gradient.
    objective, *_ = made(name, 6, **hyper)
    constrained = objective.constrain({"logit_scale": jnp.float32(9.0)}, 0)["logit_scale"]
    close(constrained, np.log(100))
    just_below = scaled(name, np.log(100) - 1e-4, **hyper)[2]
    np.testing.assert_allclose(scaled(name, constrained, **hyper)[2], just_below, rtol=1e-2)


def test_bound_of_the_scale_of_clip_may_be_a_schedule_and_other_parameters_stay():
    objective, *_ = made("clip", max_scale=lambda step: 10.0 + step)
    params = {"logit_scale": jnp.float32(5.0), "log_other": jnp.float32(7.0)}
    constrained = objective.constrain(params, 2)
    close(constrained["logit_scale"], np.log(12))
    assert constrained["log_other"] == 7
    objective, *_ = made("clip", learn=())
    assert objective.constrain({}, 0) == {}


def test_learned_scale_of_decl_starts_at_the_given_temperature():
    params, value, slope = scaled("decl", np.log(2), **LEARNED, temperature=0.07)
    close(params["logit_scale"], np.log(1 / 0.07))
    preset = import_module("jaxssl.losses.decl").PRESETS["clip"]
    close(made("decl", **preset)[1]["logit_scale"], np.log(1 / 0.07))
    assert made("decl", **LEARNED | {"learn_scale": False})[1] == {}

    def expected(scale):  # expected value in float64
        rate = np.exp(np.linspace(-1.0, 1.0, 6))
        pairs = pair_towers(*jnp.asarray(embeddings(b=6)))
        return oracles.decl(pairs, rate, weight=0.5, temperature=np.exp(-scale)).mean()

    step = 1e-4
    close(value, expected(np.log(2)))
    difference = (expected(np.log(2) + step) - expected(np.log(2) - step)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-4)
    assert abs(difference) > 0.1


def test_learned_scale_of_decl_above_its_bound_starts_at_the_bound_and_has_a_gradient():
    params, _, slope = scaled("decl", np.log(100), **LEARNED, temperature=0.005)
    close(params["logit_scale"], np.log(100))
    assert slope != 0


@pytest.mark.parametrize("name", ["beta1", "beta2", "temperature", "temperature_max"])
def test_constants_of_fastclip_take_no_schedule(name):
    message = f"^hyper-parameter {name} must be constant, got a schedule"
    with pytest.raises(ValueError, match=message):
        made("fastclip", 8, **{name: lambda step: 0.5})

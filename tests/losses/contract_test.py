"""The contract of every loss in the folder: oracle, gradient, devices, degenerate inputs."""

import inspect
import re
from functools import cache, partial
from importlib import import_module
from typing import get_args

import jax
import numpy as np
import oracles
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from loss_cases import (
    BY_PARTNER,
    CASES,
    DEFAULTS,
    EXPORTED,
    LABELS,
    NAMES,
    NEEDS,
    PROGRAMS,
    VIEWS_ON_ARRAYS,
    embeddings,
    equations,
    inputs,
    kinds,
    loss_of,
    pairs_of,
    with_rows,
)
from marks import long_except

from jaxssl import collectives, distributed, losses
from jaxssl.losses.objective import mean_over_anchors
from jaxssl.losses.pairs import pair_towers, pair_views

each_program = pytest.mark.parametrize("case", PROGRAMS, ids=str)
each_name = pytest.mark.parametrize("name", NAMES)
long = pytest.mark.long
KINDS = sorted({kind for case in CASES for kind in kinds(case)})
RINGS = [c for c in PROGRAMS if "ring" in c.parameters()]
COMMUNICATING = "barlow_twins", "mmcl", "nt_xent", "siglip", "swav"
# Mapping over devices -> the cases that are tested with it. All others are tested with PROGRAMS.
MAPPINGS = {
    "checked": DEFAULTS,
    "further checked": [c for c in PROGRAMS if c not in DEFAULTS],
    # Under pmap, one loss for each kind of communication is tested.
    "pmap": [c for c in DEFAULTS if c.name in COMMUNICATING],
    # Without check_vma, cases are left out that communicate as the defaults do.
    "shard_map": DEFAULTS + [c for c in PROGRAMS if "form" in dict(c.hyper)],
    "ring": [c for c in RINGS if c.name in ("clip", "tcl") and not c.hyper],
    "ring checked": RINGS,
}


def with_entry(value: float, *rows: tuple[int, int]) -> np.ndarray:
    z = embeddings()
    for view, example in rows:
        z[view, example, 1] = value
    return z


# Embeddings with NaN or infinity, for which no loss is defined.
INVALID = {
    "all NaN": np.full((2, 8, 4), np.nan, np.float32),
    "NaN in the first view": with_entry(np.nan, (0, 2)),
    "NaN in the second view": with_entry(np.nan, (1, 2)),
    "infinite": with_entry(np.inf, (0, 2), (1, 5)),
}


@cache
def values_of(kind: str):
    """Compile `z -> {case: [n]}` for all losses that take these pairs."""
    cases = [case for case in CASES if kind in kinds(case)]
    return jax.jit(lambda z: {case: case.loss(pairs_of(kind, z)) for case in cases})


# Each kind of pairs compiles all losses that take it, and `make test` keeps these.
SHORT_KINDS = ("views", "towers", "labels", "queue")


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, marks=() if kind in SHORT_KINDS else long)
        for kind in KINDS
        for case in CASES
        if kind in kinds(case)
    ],
    ids=str,
)
def test_loss_equals_the_numpy_oracle(case, kind):
    z = jnp.asarray(embeddings())
    actual = values_of(kind)(z)[case]
    pairs = pairs_of(kind, z)
    extra = {k: np.asarray(v) for k, v in inputs(pairs, case.extra).items()}
    expected = getattr(oracles, case.name)(pairs, **extra, **dict(case.hyper))
    assert actual.dtype == np.float32
    assert actual.shape == (pairs.anchor.shape[0],)
    np.testing.assert_allclose(actual, expected, rtol=3e-5, atol=3e-5)


def test_loss_cases_set_every_numeric_hyper_parameter_of_every_loss():
    unchanged = []
    for name in NAMES:
        changed = {key for case in CASES if case.name == name for key, _ in case.hyper}
        for parameter in inspect.signature(loss_of(name)).parameters.values():
            number = isinstance(parameter.default, float) or "Scalar" in str(parameter.annotation)
            if number and parameter.name not in changed:
                unchanged.append(f"{name}.{parameter.name}")
    assert not unchanged


# Losses with stop_gradient, and the one tower whose gradient is compared with finite differences.
ONE_TOWER = {name: 0 for name in ("auc_dino", "byol", "dino", "ressl", "simsiam", "swav")}
ONE_TOWER["nnclr"] = 1
# Losses of ONE_TOWER that give the other tower no gradient. identities_test tests ressl and swav.
CONSTANT_TOWER = {"auc_dino", "byol", "dino", "nnclr", "simsiam"}
# Losses that treat weights of their terms as constants. public_figures_test and identities_test
# test their gradients.
CONSTANT_WEIGHTS = {"arb", "fastclip", "sogclr", "decl", "dclw", "mmcl", "mochi"}
DIFFERENTIATED = [case for case in CASES if case.name not in CONSTANT_WEIGHTS]


def weights(n: int) -> np.ndarray:
    """Weights of anchors. With equal weights, gradients of different anchors could be exchanged."""
    return (1 + 0.5 * np.sin(1 + np.arange(n))) / n


def kind_of_gradient(case) -> str:
    return "towers" if case.name in ONE_TOWER else kinds(case)[0]


@cache
def gradient_of(kind: str):
    cases = [case for case in DIFFERENTIATED if kind_of_gradient(case) == kind]

    def weighted(case):
        def value(z):
            per_anchor = case.loss(pairs_of(kind, z))
            return per_anchor @ jnp.asarray(weights(len(per_anchor)), per_anchor.dtype)

        return value

    return jax.jit(lambda z: {case: jax.grad(weighted(case))(z) for case in cases})


@pytest.mark.parametrize("case", DIFFERENTIATED, ids=str)
def test_gradient_equals_finite_differences_of_the_oracle(case):
    z, step = embeddings(b=4, d=3).astype(np.float64), 1e-5
    kind = kind_of_gradient(case)
    pairs = pairs_of(kind, jnp.asarray(z, jnp.float32))
    extra = {k: np.asarray(v) for k, v in inputs(pairs, case.extra).items()}

    def weighted_oracle(z):
        values = getattr(oracles, case.name)(with_rows(pairs, z), **extra, **dict(case.hyper))
        return values @ weights(len(values))

    tower = ONE_TOWER.get(case.name, slice(None))
    expected = np.zeros_like(z)
    for at in np.ndindex(*z[tower].shape):
        shift = np.zeros_like(z)
        shift[tower][at] = step
        change = weighted_oracle(z + shift) - weighted_oracle(z - shift)
        expected[tower][at] = change / (2 * step)
    actual = gradient_of(kind)(jnp.asarray(z, jnp.float32))[case]
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual[tower], expected[tower], rtol=1e-3, atol=3e-5 * scale)
    if case.name in CONSTANT_TOWER:
        assert not actual[1 - tower].any()


@cache
def on_devices(devices: int, mapping: str):
    """Compile `(z, index) -> {case: (loss, gradient)}` for a batch split over devices.

    Every device has all embeddings z, as it has all parameters in training. It passes the rows
    ``index`` of its examples to the loss.
    """

    def local(z, index, axis_name):
        def share(z, case):
            pairs = pairs_of(kinds(case)[0], z[:, index], index, axis_name)
            around = case.with_(ring=True) if mapping.startswith("ring") else case
            # Losses of examples get different weights, so that an exchange of two gradients shows.
            weight = 1 + 0.5 * jnp.sin(pairs.index.astype(jnp.float32))
            return mean_over_anchors(weight * around.loss(pairs), pairs)[0]

        return {
            case: losses.global_value_and_grad(partial(share, case=case), axis_name)(z)
            for case in MAPPINGS.get(mapping, PROGRAMS)
        }

    if mapping == "whole":
        return jax.jit(partial(local, axis_name=None))
    run = partial(local, axis_name="data")
    if mapping == "pmap":
        return jax.pmap(run, axis_name="data", in_axes=(None, 0), out_axes=None)
    mesh = distributed.make_mesh(jax.devices()[:devices])
    checked = {"check_vma": mapping.endswith("checked")}
    return jax.jit(
        jax.shard_map(run, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), **checked)
    )


@cache
def split(devices: int, mapping: str, kind: str = ""):
    z = jnp.asarray(INVALID[kind] if kind else embeddings())
    index = jnp.arange(8, dtype=jnp.int32)
    return on_devices(devices, mapping)(z, index[:, None] if mapping == "pmap" else index)


MAPPED = [
    *((case, 4, "checked") for case in DEFAULTS),
    *(pytest.param(case, 4, "further checked", marks=long) for case in MAPPINGS["further checked"]),
    *(pytest.param(case, 8, "shard_map", marks=long) for case in MAPPINGS["shard_map"]),
    *(pytest.param(case, 8, "pmap", marks=long) for case in MAPPINGS["pmap"]),
    *((case, 4, "ring") for case in MAPPINGS["ring"]),
    *(pytest.param(case, 4, "ring checked", marks=long) for case in MAPPINGS["ring checked"]),
]


@pytest.mark.parametrize(("case", "devices", "mapping"), MAPPED, ids=str)
def test_loss_and_gradient_on_several_devices_equal_one_device(case, devices, mapping):
    actual, expected = split(devices, mapping)[case], split(1, "whole")[case]
    np.testing.assert_allclose(actual[0], expected[0], rtol=2e-5, atol=1e-6)
    scale = max(1.0, np.abs(expected[1]).max())
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-4, atol=2e-6 * scale)


@pytest.mark.parametrize(
    ("case", "kind"),
    [(c, k) for k in ("queue", "queue only") for c in RINGS if not c.hyper and k in kinds(c)],
    ids=str,
)
def test_ring_with_a_queue_is_refused(case, kind):
    local = lambda z: case.with_(ring=True).loss(pairs_of(kind, z, axis_name="data"))  # noqa: E731
    run = distributed.spmd(local, distributed.make_mesh(), P(None, "data"), P("data"))
    with pytest.raises(ValueError, match="ring=True cannot be used with a queue of past keys"):
        jax.eval_shape(run, embeddings())


HALF_ZERO = np.concatenate([embeddings()[:, :4], np.zeros((2, 4, 4), np.float32)], axis=1)
HARD = {
    "equal rows": np.ones((2, 8, 4)),
    "zero rows": np.zeros((2, 8, 4)),
    "some zero rows": HALF_ZERO,
    "duplicates": np.repeat(embeddings()[:, :4], 2, axis=1),
    "antipodal views": np.stack([embeddings()[0], -embeddings()[0]]),
    "large": embeddings() * 1e4,
    "huge": embeddings() * 1e30,
    "tiny": embeddings() * 1e-30,
    "bfloat16": HALF_ZERO.astype(jnp.bfloat16),
    "two examples": embeddings(b=2),
    "one example": embeddings(b=1),
}


def hard_cases(kind: str) -> list:
    """Return the cases of a kind. Those of another shape or dtype are compiled again."""
    if kind == "two examples":  # Each anchor has the fewest negatives, which these losses count.
        return [c for c in DEFAULTS if c.name in ("debiased", "decl", "hcl", "mmcl")]
    return DEFAULTS if kind in ("bfloat16", "one example") else PROGRAMS


@cache
def hard_values(cases: tuple):
    """Compile `(z, temperature) -> {case: (value, gradient)}`; some losses ignore temperature."""

    def run(z, temperature):
        def value(z, case):
            names = [n for n in case.parameters() if n.endswith("temperature")]
            scaled = {n: temperature for n in names if n != "scale_by_temperature"}
            pairs = pairs_of(kinds(case)[0], z)
            hyper = {**dict(case.hyper), **scaled}
            return loss_of(case.name)(pairs, **inputs(pairs, case.extra), **hyper).mean()

        return {case: jax.value_and_grad(value)(z, case) for case in cases}

    return jax.jit(run)


@cache
def hard(kind: str, temperature: float):
    run = hard_values(tuple(hard_cases(kind)))
    return run(jnp.asarray(HARD[kind]), jnp.float32(temperature))


LONG_KINDS = ("one example", "two examples", "bfloat16")  # compile programs of their own


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, marks=long if kind in LONG_KINDS else ())
        for kind in HARD
        for case in hard_cases(kind)
        # These losses sum squares of huge, unnormalised embeddings, which overflow float32.
        if (case.name, kind) not in {("vicreg", "huge"), ("auc_dino", "huge"), ("lejepa", "huge")}
    ],
    ids=str,
)
def test_loss_and_gradient_are_finite_for_degenerate_embeddings(case, kind):
    for temperature in (1e-3, 0.1, 10.0):
        value, gradient = hard(kind, temperature)[case]
        assert value.dtype == jnp.float32
        assert gradient.dtype == (jnp.bfloat16 if kind == "bfloat16" else jnp.float32)
        assert np.isfinite(value), temperature
        assert np.isfinite(np.asarray(gradient, np.float32)).all(), temperature


# Operations that move numbers, and do not compute with them.
MOVES = {"broadcast_in_dim", "concatenate", "copy", "gather", "reshape", "slice", "squeeze"}
MOVES |= {"convert_element_type", "stack", "stop_gradient", "transpose", "unstack"}


@pytest.mark.fast
@each_program
def test_loss_casts_bfloat16_before_it_computes(case):
    z = jnp.asarray(embeddings(), jnp.bfloat16)

    def value(z):
        pairs = pairs_of(kinds(case)[0], z)
        return loss_of(case.name)(pairs, **inputs(pairs, case.extra), **dict(case.hyper))

    jaxpr = jax.make_jaxpr(value)(z)
    [out] = jaxpr.out_avals
    assert out.dtype == jnp.float32
    for equation in equations(jaxpr.jaxpr):
        if any(getattr(v.aval, "dtype", None) == jnp.bfloat16 for v in equation.outvars):
            assert equation.primitive.name in MOVES, equation


@pytest.mark.parametrize("kind", INVALID)
@each_program
def test_loss_of_embeddings_with_nan_or_infinity_is_nan(case, kind):
    run = hard_values(tuple(PROGRAMS))
    value, gradient = run(jnp.asarray(INVALID[kind]), jnp.float32(0.1))[case]
    assert np.isnan(value)
    assert np.isnan(gradient).any()


@pytest.mark.parametrize("case", RINGS, ids=str)
def test_ring_loss_of_embeddings_with_nan_or_infinity_is_nan(case):
    value, gradient = split(4, "ring checked", kind="NaN in the second view")[case]
    assert np.isnan(value) and np.isnan(gradient).any()


@pytest.mark.parametrize("case", [c for c in DEFAULTS if "one view" in kinds(c)], ids=str)
def test_anchor_without_positive_has_loss_zero_and_is_left_out_of_the_mean(case):
    z = jnp.asarray(embeddings())
    per_anchor = values_of("one view")(z)[case]
    alone = np.isin(LABELS, [2, 3])
    assert (per_anchor[alone] == 0).all() and (per_anchor[~alone] != 0).all()
    mean, share = mean_over_anchors(per_anchor, pairs_of("one view", z))
    np.testing.assert_allclose(mean, per_anchor[~alone].mean(), rtol=1e-6)
    np.testing.assert_allclose(share, alone.mean())


@pytest.mark.parametrize("name", sorted({*BY_PARTNER, "mmcl"}))
def test_loss_that_needs_a_positive_raises_for_a_single_view(name):
    pairs = pairs_of("one view", jnp.asarray(embeddings()))
    with pytest.raises(ValueError, match=f"{name} needs two views of each example, got one"):
        loss_of(name)(pairs, **inputs(pairs, ("prototypes",) if name == "swav" else ()))


@cache
def towers_on_devices(kind: str, cases: tuple):
    """Compute `{case: [n]}` of pairs of two towers, with one example on each device."""

    def local(z, index):
        pairs = pairs_of(kind, z, index, "data")
        return {case: case.loss(pairs) for case in cases}

    specs = (P(None, "data"), P("data"))
    run = distributed.spmd(local, distributed.make_mesh(), specs, P("data"))
    return jax.jit(run)(jnp.asarray(embeddings()), jnp.arange(8, dtype=jnp.int32))


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(c, k, marks=() if k == "towers" else long)
        for k in ("towers", "tower labels", "queue")
        for c in DEFAULTS
        if k in kinds(c)
    ],
    ids=str,
)
def test_loss_of_two_towers_on_eight_devices_equals_one_device(case, kind):
    cases = tuple(case for case in DEFAULTS if kind in kinds(case))
    actual, expected = towers_on_devices(kind, cases)[case], values_of(kind)(embeddings())[case]
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6 * scale)


@pytest.mark.parametrize("kind", ["queue", "queue only"])
def test_loss_counts_the_replicated_queue_only_once_on_eight_devices(kind):
    """AUC-CL sums moments over devices, and NT-Xent gathers candidates; both add the queue."""
    cases = tuple(case for case in DEFAULTS if case.name in ("auc_cl", "nt_xent"))
    whole = jax.jit(lambda z: {case: case.loss(pairs_of(kind, z)) for case in cases})(embeddings())
    for case, actual in towers_on_devices(kind, cases).items():
        np.testing.assert_allclose(actual, whole[case], rtol=1e-5)


NUMBERS = {
    "nt_xent": {"temperature": 0.3},
    "dcl": {"temperature": 0.3},
    "tcl": {"temperature": 0.3, "k1": 3.0, "k2": 1.5},
}


@cache
def gradients_of_numbers(how: str):
    """Gradients of the numbers of losses, in one program: blocks, a ring, or the whole matrix."""
    options = {"blocks": {"block_size": 3}, "ring": {"ring": True}}.get(how, {})
    axis_name = None if how == "whole" else "data"

    def run(z):
        def value(numbers, name, kind):
            pairs = pairs_of(kind, z, axis_name=axis_name)
            return loss_of(name)(pairs, **numbers, **options).mean()

        out = {
            (name, kind): jax.grad(value)(jax.tree.map(jnp.float32, numbers), name, kind)
            for name, numbers in NUMBERS.items()
            for kind in ("views", "towers")
        }
        return collectives.mean(out, axis_name)

    if axis_name:
        run = distributed.spmd(run, distributed.make_mesh(), (P(None, "data"),), P())
    return jax.jit(run)(jnp.asarray(embeddings()))


@pytest.mark.parametrize("how", ["blocks", "ring"])
@pytest.mark.parametrize("kind", ["views", "towers"])
@pytest.mark.parametrize("name", NUMBERS)
def test_hyper_parameter_gradients_on_eight_devices_equal_those_of_one_device(name, kind, how):
    actual, expected = gradients_of_numbers(how)[name, kind], gradients_of_numbers("whole")
    for key, slope in expected[name, kind].items():
        assert abs(slope) > 1e-3
        np.testing.assert_allclose(actual[key], slope, rtol=1e-4, err_msg=key)


def test_two_array_loss_with_labels_on_eight_devices_averages_anchors_with_a_positive():
    """The anchors without a positive are spread unevenly, one example on each device."""
    z, labels = jnp.asarray(embeddings()), jnp.asarray(LABELS, jnp.int32)

    def local(z, labels):
        share = losses.sup_con(z[0], z[1], labels=labels, axis_name="data")
        keys = losses.clip(z[0], z[1], labels=labels, axis_name="data")
        return collectives.mean((share, keys), "data")

    specs = (P(None, "data"), P("data"))
    actual = jax.jit(distributed.spmd(local, distributed.make_mesh(), specs, P()))(z, labels)
    of_views, of_towers = pair_views(z, labels=labels), pair_towers(*z, labels=labels)
    np.testing.assert_allclose(actual[0], oracles.sup_con(of_views).mean(), rtol=1e-5)
    np.testing.assert_allclose(actual[1], oracles.clip(of_towers).mean(), rtol=1e-5)


@pytest.mark.fast
@pytest.mark.parametrize("name", long_except(("nt_xent", "vicreg", "siglip"), EXPORTED))
def test_two_array_loss_has_the_argument_labels_only_if_labels_change_it(name):
    labels, loss_fn = jnp.asarray(LABELS, jnp.int32), getattr(losses, f"{name}_loss")
    hyper = {"prototypes": jnp.eye(3, embeddings().shape[2])} if name == "swav" else {}

    def loss(z, labels):
        pairs = (
            pair_views(z, None, labels) if name in losses.VIEWS else pair_towers(*z, None, labels)
        )
        return loss_fn(pairs, **hyper).sum()

    both = jax.jit(lambda z: [jax.grad(loss)(z, x) for x in (None, labels)])
    gradients = both(jnp.asarray(embeddings()))
    changes = not np.array_equal(*gradients)
    assert ("labels" in inspect.signature(getattr(losses, name)).parameters) == changes


@pytest.mark.fast
@pytest.mark.parametrize("name", EXPORTED)
def test_two_array_loss_traces_to_the_same_program_as_the_mean_loss_of_its_pairs(name):
    z, on_arrays = list(jnp.asarray(embeddings())), getattr(losses, name)
    extra = inputs(pair_views(z), NEEDS.get(name, ()))

    def program(loss) -> str:
        jaxpr = jax.make_jaxpr(loss)(*z)
        return re.sub(r"0x\w+", "", str(jaxpr))  # Remove the memory addresses of functions.

    def mean(z1, z2):
        pairs = pair_views([z1, z2]) if name in VIEWS_ON_ARRAYS else pair_towers(z1, z2)
        return mean_over_anchors(loss_of(name)(pairs, **extra), pairs)[0]

    assert program(lambda z1, z2: on_arrays(z1, z2, **extra)) == program(mean)
    assert on_arrays.__name__ == name and f"{name}_loss" in on_arrays.__doc__


BAD = {"finite": "x"}
BAD |= {"> 0": 0, "> 0 or inf": 0, "> 1": 1, ">= 0": -1, "in [0, 1]": 1.5, "in [0, 1)": 1}


@pytest.mark.parametrize(
    ("name", "number", "valid"),
    [
        (name, number, predicate)
        for name in EXPORTED
        for number, valid in getattr(import_module(f"jaxssl.losses.{name}"), "RANGES", {}).items()
        for predicate in ((valid,) if isinstance(valid, str) else (*valid, "one of"))
        if predicate in BAD or predicate == "one of"
    ],
)
def test_hyper_parameter_out_of_range_raises_an_error_with_its_name(name, number, valid):
    bad = BAD.get(valid, "other")
    message = re.escape(f"{number} must be {valid}") + f".*got {bad!r}"
    if number in inspect.signature(loss_of(name)).parameters:
        with pytest.raises(ValueError, match=message):
            extra = inputs(pairs_of("views", jnp.asarray(embeddings())), NEEDS.get(name, ()))
            getattr(losses, name)(*embeddings(), **extra, **{number: bad})
    with pytest.raises(ValueError, match=message):
        losses.objective(name, **{number: bad})


@each_name
def test_hyper_parameter_takes_no_value_of_another_type(name):
    module = import_module(f"jaxssl.losses.{name}")

    def values(signature, but=()):
        for number, parameter in signature.parameters.items():
            kinds = get_args(parameter.annotation) or (parameter.annotation,)
            if {float, int} & set(kinds) and number not in but:
                yield {number: np.full(2, 0.5)}, f"{number} must be one number, got the shape [2]"
            if int in kinds and float not in kinds:
                yield {number: 2.5}, f"{number} must be an integer, got 2.5"
            if type(None) not in kinds and number not in ("pairs", *but):
                word = "True or False" if kinds == (bool,) else ""
                yield {number: None}, f"argument {number} must be {word}"
            if bool in kinds:
                yield {number: "no"}, f"{number} must be True or False, got 'no'"

    per_anchor = getattr(module, "PER_ANCHOR", ())
    for wrong, message in values(inspect.signature(loss_of(name)), per_anchor):
        with pytest.raises(ValueError, match=re.escape(message)):
            extra = inputs(pairs_of("views", jnp.asarray(embeddings())), NEEDS.get(name, ()))
            getattr(losses, name)(*embeddings(), **(extra | wrong))
    for wrong, message in values(inspect.signature(module.objective)):
        with pytest.raises(ValueError, match=re.escape(message)):
            losses.objective(name, **wrong)


@pytest.mark.parametrize("name", ["sogclr", "fastclip"])
def test_temperature_of_each_anchor_gives_the_losses_of_these_temperatures(name):
    pairs = pairs_of("views", jnp.asarray(embeddings()))
    extra, loss = inputs(pairs, NEEDS.get(name, ())), loss_of(name)
    temperatures = jnp.linspace(0.1, 0.9, len(pairs.anchor))
    # Each column has the losses of all anchors at one temperature.
    table = [loss(pairs, **(extra | {"temperature": float(t)})) for t in temperatures]
    ours = loss(pairs, **(extra | {"temperature": temperatures}))
    np.testing.assert_allclose(ours, jnp.diagonal(jnp.stack(table)), rtol=1e-5)


@pytest.mark.parametrize(
    "name", long_except(("auc_cl", "dcl", "decl", "nt_xent", "sogclr", "tcl"), NAMES)
)
def test_number_in_half_precision_is_widened(name):
    parameters = inspect.signature(loss_of(name)).parameters.items()
    numbers = [key for key, p in parameters if float in get_args(p.annotation)]
    extra = inputs(pairs_of("views", jnp.asarray(embeddings())), NEEDS.get(name, ()))
    for number in [key for key in numbers if key not in extra]:
        half = jnp.bfloat16(0.7)
        ours, wide = (
            getattr(losses, name)(*embeddings(), **extra, **{number: value})
            for value in (half, jnp.float32(half))
        )
        assert ours.dtype == jnp.float32 and float(ours) == float(wide), number


@each_name
def test_docstring_documents_every_hyper_parameter(name):
    fn = loss_of(name)
    for parameter in list(inspect.signature(fn).parameters):
        assert f"        {parameter}: " in fn.__doc__, parameter
    assert "References:" in fn.__doc__

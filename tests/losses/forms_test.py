"""The forms of the losses that importers use: signatures, pickling, errors, JAX's modes."""

import copy
import inspect
import pickle
import re
import subprocess
import sys
from importlib import import_module

import jax
import numpy as np
import pytest
import stub
from jax import export
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from loss_cases import DEFAULTS, EXPORTED, PROGRAMS, embeddings, inputs, kinds, pairs_of
from marks import long_except

from jaxssl import losses, solvers
from jaxssl.losses.objective import Number
from jaxssl.losses.pairs import count_positives, pair_towers, pair_views

each_name = pytest.mark.parametrize("name", EXPORTED)
CASES = [case for case in DEFAULTS if case.name in EXPORTED]
# Losses with loops, which JAX compiles anew at each call outside `jax.jit` unless they are compiled
# as a whole.
LOOPS = [case for case in PROGRAMS if case.name == "mmcl" or "block_size" in dict(case.hyper)]


def on_arrays(case, z1, z2):
    extra = inputs(pair_views(list(embeddings())), case.extra)
    return getattr(losses, case.name)(z1, z2, **extra)


def test_losses_work_without_the_packages_for_training():
    """The losses work with jax alone, as after `pip install --no-deps jaxssl`."""
    code = """
import sys
packages = ("absl", "array_record", "chex", "filelock", "flax", "grain", "jinja2", "matplotlib",
    "ml_collections", "optax", "orbax", "PIL", "rich", "sklearn", "tensorboardX", "tensorflow",
    "tensorflow_datasets")
for name in packages:
    sys.modules[name] = None
import jaxssl, jax
z1, z2 = jax.random.normal(jax.random.key(0), (2, 8, 4))
print(float(jaxssl.losses.auc_cl(z1, z2)), jaxssl.solvers.__name__)
"""
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.endswith("jaxssl.solvers\n")


@each_name
def test_losses_of_two_arrays_and_of_pairs_can_be_pickled_and_copied(name):
    for function in (getattr(losses, name), getattr(losses, f"{name}_loss")):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function


def test_type_stub_of_the_losses_equals_their_signatures():
    """If this fails, run `python tests/losses/stub.py`."""
    assert stub.PATH.read_text() == stub.text()


Z = np.ones((4, 3), np.float32)
PAIRS = pair_views([Z, Z])
UNKNOWN = "got an unexpected keyword argument 'temprature'; did you mean 'temperature'?"
GAMA = "got an unexpected keyword argument 'gama'; did you mean 'gamma'?"
TAKES = "takes Pairs, got {}; take pair_views([z1, z2])"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.nt_xent(Z, Z, temprature=1.0), f"nt_xent() {UNKNOWN}"),
        (lambda: losses.info_nce_loss(PAIRS, temprature=1.0), f"info_nce_loss() {UNKNOWN}"),
        (lambda: losses.objective("sogclr", gama=0.5), f'objective("sogclr") {GAMA}'),
        (lambda: losses.nt_xent(Z), "nt_xent(): missing a required argument: 'z2'"),
        (lambda: losses.byol_loss(jnp.asarray(Z)), f"byol_loss() {TAKES.format('ArrayImpl')}"),
        # The type is reported before the missing prototypes.
        (lambda: losses.swav_loss(Z), f"swav_loss() {TAKES.format('ndarray')}"),
    ],
)
def test_wrong_argument_raises_type_error_with_the_function_that_was_called(call, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        call()


@pytest.mark.parametrize(
    ("name", "number", "kind"),
    [
        ("nt_xent", "temperature", Number),
        ("dino", "center_momentum", Number),
        ("sup_con", "base_temperature", Number | None),
        ("nt_xent", "block_size", int | None),
    ],
)
def test_signature_of_an_objective_allows_schedules_for_numbers(name, number, kind):
    signature = inspect.signature(import_module(f"jaxssl.losses.{name}").objective)
    assert signature.parameters[number].annotation == kind


@pytest.mark.parametrize(("name", "close"), [("sogcrl", "sogclr"), ("NT-Xent", "nt_xent")])
def test_unknown_loss_raises_value_error_with_the_closest_name(name, close):
    with pytest.raises(ValueError, match=f"there is no loss '{name}'; did you mean '{close}'"):
        losses.objective(name)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("simclr", "nt_xent"),
        ("pair_view", "pair_views"),
        ("cross_entropy", "cross_entropy_loss"),  # its file is no function of two arrays
    ],
)
def test_unknown_name_of_the_losses_is_reported_with_the_closest_one(name, close):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; .* are {close}"):
        getattr(losses, name)


@pytest.fixture
def compilations():
    """Return a list that gets an entry for each compilation."""
    seen = []

    def listen(event, *_, **__):
        if event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.jit(lambda x: x + 1)(0)
    assert seen  # JAX has not renamed the event.
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    "case", long_except([case for case in LOOPS if case.name != "mmcl"][-2:], LOOPS), ids=str
)
def test_second_call_without_jit_compiles_nothing(case, compilations):
    call = jax.value_and_grad(lambda z: case.loss(pairs_of(kinds(case)[0], z)).mean())
    z = jnp.asarray(embeddings())
    call(z)
    compilations.clear()
    call(z)
    assert not compilations


@pytest.mark.parametrize(
    "solve",
    [
        lambda *rows: solvers.svm_dual_pgd(*rows, C=1.0, init="inv", num_steps=5),
        lambda *rows: solvers.svm_dual_admm(*rows, tol=1e-3),
        solvers.svm_dual_inv,
    ],
)
def test_second_solution_without_jit_compiles_nothing(solve, compilations):
    rows = jnp.eye(6), jnp.arange(2), jnp.arange(2)[:, None]
    solve(*rows)
    compilations.clear()
    solve(*rows)
    assert not compilations


@pytest.mark.long
def test_losses_take_arrays_with_explicit_sharding():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    z = embeddings()
    chosen = [case for case in CASES if case.name == "dcl"]  # only this loss is compiled
    total = lambda cases: lambda z1, z2: sum(on_arrays(case, z1, z2) for case in cases)  # noqa: E731
    expected = jax.jit(jax.value_and_grad(total(chosen)))(*z)
    with jax.set_mesh(mesh):
        z = [jax.device_put(x, NamedSharding(mesh, P("data"))) for x in z]
        shape = jax.eval_shape(jax.grad(total(CASES)), *z)
        actual = jax.jit(jax.value_and_grad(total(chosen)))(*z)
    assert shape.sharding.spec == P("data", None)
    np.testing.assert_allclose(actual[0], expected[0], rtol=2e-5)
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-4, atol=2e-5)


def test_pairs_of_arrays_with_explicit_sharding_raise_an_error_that_names_auto_axes():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        z = jax.device_put(embeddings()[0], NamedSharding(mesh, P("data")))
        with pytest.raises(ValueError, match=r"explicit mesh axes \['data'\]; .*auto_axes"):
            pair_views([z, z])
        loss = lambda z: losses.byol_loss(pair_views([z, z + 1])).mean()  # noqa: E731
        assert np.isfinite(jax.sharding.auto_axes(loss, out_sharding=P())(z))


def symbolic():
    (b,) = export.symbolic_shape("b", constraints=["b >= 4"])
    return jax.ShapeDtypeStruct((b, 4), jnp.float32)


@pytest.mark.long
def test_losses_and_gradients_can_be_exported_with_a_symbolic_batch_size():
    shape = symbolic()
    cases = [case for case in CASES if case.extra in ((), ("prototypes",))]
    both = jax.value_and_grad(on_arrays, argnums=1)
    run = jax.jit(lambda z1, z2: {c.name: both(c, z1, z2) for c in cases})
    assert len(export.export(run)(shape, shape).out_avals) == 2 * len(cases)


@pytest.mark.parametrize("kind", ["views", "towers"])
def test_positives_are_counted_at_a_symbolic_batch_size(kind):
    def count(z):
        pairs = pair_views(jnp.stack([z, z])) if kind == "views" else pair_towers(z, z)
        return count_positives(pairs)

    exported = export.export(jax.jit(count))(symbolic())
    z = jnp.ones((5, 4), jnp.float32)
    np.testing.assert_array_equal(exported.call(z), count(z))
    assert set(np.asarray(count(z)).tolist()) == {1}


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda z: losses.nt_xent(z, z, block_size=3),
            r"block_size and ring need a constant batch size, got 2\*b anchors",
        ),
        (
            lambda z: losses.mmcl(z, z, solver="admm"),
            r"ADMM and INV need a constant batch size, .*use svm_dual_pgd",
        ),
    ],
)
def test_losses_that_need_a_constant_batch_size_refuse_a_symbolic_one(loss, message):
    with pytest.raises(ValueError, match=message):
        export.export(jax.jit(loss))(symbolic())


def test_forward_mode_derivatives_work_except_for_blockwise_losses():
    z = jnp.asarray(embeddings()[0])
    jax.eval_shape(lambda z: jax.jvp(lambda z: [on_arrays(c, z, z) for c in CASES], (z,), (z,)), z)
    loss = lambda z: losses.nt_xent(z, z, block_size=3)  # noqa: E731
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (z,), (z,))

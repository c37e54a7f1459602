"""Rematerialisation keeps parameters, values and gradients, and reduces memory."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from net_cases import KEY, init_shapes, normal, random_variables

from jaxssl import distributed
from jaxssl.models import resnet, s3d, vit

NETS = {
    "vit": partial(vit.net, patch_size=2, dim=8, layers=3, num_heads=2, drop_path=0.5),
    "resnet": partial(resnet.ResNet, (2, 1), bottleneck=True, stem="cifar", width=4),
    "s3d": partial(s3d.S3D, (2, 3), (((2, 3, 4, 2, 1, 2),),), gating=True),
}
IMAGES = normal(8, 4, 4, 3)
INPUTS = {"vit": IMAGES, "resnet": IMAGES, "s3d": normal(8, 5, 17, 18, 2)}
KEYS = jax.random.split(KEY, 8)
slow = pytest.mark.long
each_net = pytest.mark.parametrize("name", ["vit", "resnet", pytest.param("s3d", marks=slow)])


@each_net
def test_remat_changes_neither_names_nor_initial_values_of_parameters(name):
    plain, remat = (NETS[name](remat=remat) for remat in (False, True))
    shape = INPUTS[name].shape
    assert init_shapes(plain, *shape) == init_shapes(remat, *shape)
    init = lambda net: jax.jit(partial(net.init, train=False))(KEY, INPUTS[name])  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, init(remat), init(plain))


def run(name: str, remat: bool, rounding: float = 0.0):
    """Return features in evaluation, and value, statistics and gradients in training.

    The input is multiplied by 1 + ``rounding``.
    """
    net = NETS[name](remat=remat)
    variables = dict(random_variables(net, INPUTS[name]))
    params, stats = variables.pop("params"), variables

    def loss(params, x):
        kwargs = {"train": True, "keys": KEYS, "mutable": ["batch_stats"]}
        out, updated = net.apply({"params": params, **stats}, x, **kwargs)
        return jnp.sum(jnp.cos(out)), (out, updated)

    @jax.jit
    def all_of_it(params, x):
        still = net.apply({"params": params, **stats}, x, train=False, keys=KEYS)
        return still, jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    return all_of_it(params, INPUTS[name] * np.float32(1 + rounding))


@pytest.mark.long
@pytest.mark.parametrize("name", ["vit", *(pytest.param(n, marks=slow) for n in ("resnet", "s3d"))])
def test_remat_changes_neither_values_statistics_nor_gradients(name):
    plain, remat = run(name, False), run(name, True)
    assert jax.tree.structure(plain) == jax.tree.structure(remat)

    def close(x, y, rounded):
        # Terms of an entry cancel, so its rounding error scales with the largest entry. A change
        # of the inputs' last bit shows how far rounding in the layers may move the results.
        scale, floor = np.abs(y).max(), np.abs(rounded - y).max()
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * scale + 8 * floor)

    jax.tree.map(close, remat, plain, run(name, False, rounding=2.0**-23))


def step_of(net, batch: int, side: int):
    """Return the gradient function of a training step, and shapes to compile it for."""
    x = jax.ShapeDtypeStruct((batch, side, side, 3), jnp.float32)
    variables, _ = init_shapes(net, *x.shape)
    out = lambda v, x: net.apply(v, x, train=True, mutable=["batch_stats"])[0].sum()  # noqa: E731
    return jax.grad(out), variables, x


@slow
@pytest.mark.parametrize(
    ("make", "share"),
    [
        (partial(vit.net, patch_size=4, dim=64, layers=6, num_heads=4), 0.3),
        (partial(resnet.ResNet, (2, 2, 2), bottleneck=True, stem="cifar", width=16), 0.5),
    ],
    ids=["vit", "resnet"],
)
def test_remat_reduces_the_memory_of_a_training_step(make, share):
    # Optimisation barriers keep the recomputation in the backward pass. XLA's CPU compiler removes
    # them before it schedules the program, so that pass is disabled here.
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}

    def memory(remat):
        gradient, *shapes = step_of(make(remat=remat), 16, 32)
        compiled = jax.jit(gradient).lower(*shapes).compile(compiler_options=options)
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(True) < share * memory(False)


@pytest.mark.long
@pytest.mark.parametrize("name", ["resnet", "s3d"])
def test_remat_does_not_repeat_the_all_reduce_of_batch_norm(name):
    def reductions(remat):
        net, shape = NETS[name](remat=remat), INPUTS[name].shape
        variables, _ = init_shapes(net, *shape)

        def gradient(variables, x):
            def out(params):
                how = {"train": True, "axis_name": "data", "mutable": ["batch_stats"]}
                return net.apply({**variables, "params": params}, x, **how)[0].sum()

            return jax.grad(out)(variables["params"])

        mapped = distributed.spmd(gradient, distributed.make_mesh(), (P(), P("data")), P())
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        return jax.jit(mapped).lower(variables, x).as_text().count("all_reduce")

    assert reductions(True) == reductions(False) > 0

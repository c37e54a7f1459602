"""Rematerialised blocks: the same parameters, values and gradients, and fewer activations held."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P
from net_cases import KEY, made_up, normal, sizes

from jaxssl import distributed
from jaxssl.models import resnet, vit

NETS = {
    "vit": partial(vit.net, patch_size=2, dim=8, layers=3, num_heads=2, drop_path=0.5),
    "resnet": partial(resnet.ResNet, (2, 1), bottleneck=True, stem="cifar", width=4),
}
IMAGES = normal(8, 4, 4, 3)
KEYS = jax.random.split(KEY, 8)

each_net = pytest.mark.parametrize("name", NETS)


@each_net
def test_parameters_keep_their_names_and_their_start(name):
    plain, remat = (NETS[name](remat=remat) for remat in (False, True))
    assert sizes(plain, *IMAGES.shape) == sizes(remat, *IMAGES.shape)
    init = lambda net: jax.jit(partial(net.init, train=False))(KEY, IMAGES)  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, init(remat), init(plain))


def run(name: str, remat: bool):
    """Features in evaluation and training, statistics, and the gradient of all that is put in."""
    net = NETS[name](remat=remat)
    variables = dict(made_up(net, IMAGES))
    params, stats = variables.pop("params"), variables

    def loss(params, x):
        kwargs = {"train": True, "keys": KEYS, "mutable": ["batch_stats"]}
        out, updated = net.apply({"params": params, **stats}, x, **kwargs)
        return jnp.sum(jnp.cos(out)), (out, updated)

    @jax.jit
    def all_of_it(params, x):
        still = net.apply({"params": params, **stats}, x, train=False, keys=KEYS)
        return still, jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    return all_of_it(params, IMAGES)


@each_net
def test_values_statistics_and_gradients_are_those_without(name):
    plain, remat = run(name, False), run(name, True)
    assert jax.tree.structure(plain) == jax.tree.structure(remat)

    def close(x, y):
        # Entries are sums that cancel: the rounding is that of the largest.
        scale = np.abs(y).max()
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * scale)

    jax.tree.map(close, remat, plain)


def step_of(net, batch: int, side: int):
    """The gradient of a network in training, and shapes to compile it for."""
    x = jax.ShapeDtypeStruct((batch, side, side, 3), jnp.float32)
    variables, _ = sizes(net, *x.shape)
    out = lambda v, x: net.apply(v, x, train=True, mutable=["batch_stats"])[0].sum()  # noqa: E731
    return jax.grad(out), variables, x


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (partial(vit.net, patch_size=4, dim=64, layers=6, num_heads=4), 0.3),
        (partial(resnet.ResNet, (2, 2, 2), bottleneck=True, stem="cifar", width=16), 0.5),
    ],
    ids=NETS,
)
def test_a_step_holds_the_activations_of_one_block(make, share):
    # XLA puts the computing anew where it is needed because of barriers. For a CPU, and only there,
    # it takes them out before it orders the program; this keeps them.
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}

    def memory(remat):
        gradient, *shapes = step_of(make(remat=remat), 16, 32)
        compiled = jax.jit(gradient).lower(*shapes).compile(compiler_options=options)
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(True) < share * memory(False)


def test_a_rematerialised_resnet_sends_its_statistics_once():
    module = NETS["resnet"]

    def reductions(remat):
        net = module(remat=remat)
        variables, _ = sizes(net, 16, 4, 4, 3)

        def gradient(variables, x):
            def out(params):
                out, _ = net.apply(
                    {**variables, "params": params},
                    x,
                    train=True,
                    axis_name="data",
                    mutable=["batch_stats"],
                )
                return out.sum()

            return jax.grad(out)(variables["params"])

        mesh = distributed.make_mesh()
        mapped = distributed.spmd(gradient, mesh, (P(), P("data")), P())
        x = jax.ShapeDtypeStruct((16, 4, 4, 3), jnp.float32)
        return jax.jit(mapped).lower(variables, x).as_text().count("all_reduce")

    assert reductions(True) == reductions(False) > 0

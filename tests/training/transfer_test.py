"""Frozen modules and learning rates by layer."""

import jax
import numpy as np
import pytest
from file_cases import refused
from flax import linen as nn
from flax import nnx
from graph_cases import packed, random_graphs
from jax import numpy as jnp
from marks import long_except
from tiny import DIGITS, SETTINGS

from jaxssl import distributed
from jaxssl.models import convnet, convnext, gin, heads, resnet, s3d, vit
from jaxssl.models.adapters import FunctionNetwork, NnxNetwork
from jaxssl.models.encoder import Encoder
from jaxssl.models.transfer import FixedNorms, Transfer, merge_adapters
from jaxssl.training import config
from jaxssl.training.build import build, make_init
from jaxssl.training.optim import optimiser
from jaxssl.training.state import make_train_step

pytestmark = pytest.mark.fast

VIT = vit.net(dim=8, layers=2, num_heads=2, patch_size=4, positions="learned")
SIGLIP = {"pool": "attention", "class_token": False, "projection": 4}
NETS = {
    "vit": VIT,
    "siglip": vit.net(dim=8, layers=1, num_heads=2, patch_size=4, **SIGLIP),
    "resnet": resnet.net(width=2),
    "convnet": convnet.net(widths=(2, 2, 2)),
    "convnext": convnext.net(depths=(1, 2), widths=(2, 4)),
    "s3d": s3d.net(blocks="first"),
    "gin": gin.net(width=2),
}
IMAGE = jnp.zeros((1, 8, 8, 1))
GRAPHS = packed(random_graphs(2))
INPUTS = {"s3d": jnp.zeros((1, 8, 32, 32, 1))}
INPUTS["gin"] = {**GRAPHS, "x": GRAPHS["x"].astype(np.float32)}


def params_of(name):
    key, x = jax.random.key(0), INPUTS.get(name, IMAGE)
    shapes = jax.eval_shape(lambda: NETS[name].init(key, x, train=False)["params"])
    params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)
    return {"net": params, "projector": {"Dense_0": {"kernel": np.ones((2, 2), np.float32)}}}


def top_level(tree):
    """Return the values of each module of a tree, which are equal within a module."""
    flat = {f"{n}/{m}": {*jax.tree.leaves(x)} for n in tree for m, x in tree[n].items()}
    assert all(len(values) == 1 for values in flat.values())
    return {name: values.pop() for name, values in flat.items()}


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("vit", {"frozen_patches": 0, "token": 0, "positions": 0, "Block_0": 1, "Block_1": 2,
                 "LayerNorm_0": 3}),
        ("siglip", {"frozen_patches": 0, "Block_0": 1, "LayerNorm_0": 2, "pool": 2,
                    "projection": 2}),
        ("convnext", {"Conv_0": 0, "LayerNorm_0": 0, "Block_0": 1, "Conv_1": 2, "LayerNorm_1": 2,
                      "Block_1": 2, "Block_2": 3, "norm": 4}),
        ("resnet", {"Conv_0": 0, "BatchNorm_0": 0, **{f"Block_{i}": i + 1 for i in range(8)}}),
        ("convnet", {f"{kind}_{i}": i for kind in ("Conv", "BatchNorm") for i in range(3)}),
        ("s3d", {"Stem_0": 0, **{f"Inception_{i}": i + 1 for i in range(3)}}),
        ("gin", {**{f"Dense_{i}": i // 2 for i in range(6)},
                 **{f"MaskedBatchNorm_{i}": i for i in range(3)}}),
    ],
)  # fmt: skip
def test_layer_decay_and_freeze_blocks_follow_the_order_of_the_blocks(name, layers):
    params, last = params_of(name), max(layers.values())
    rates = top_level(Transfer(backbone_lr=0.5, layer_decay=0.1).rates(params))
    expected = {f"net/{module}": 0.5 * 0.1 ** (last - i) for module, i in layers.items()}
    assert rates == pytest.approx({**expected, "projector/Dense_0": 1.0})
    frozen = top_level(Transfer(freeze_blocks=1).frozen(params))
    first = {f"net/{module}" for module, i in layers.items() if i <= 1}
    assert {one for one, value in frozen.items() if value} == first


def test_number_of_frozen_blocks_above_that_of_the_last_layer_is_refused():
    with pytest.raises(ValueError, match="must be <= 8, the number of .*, got 9; name the modules"):
        Transfer(freeze_blocks=9).frozen(params_of("resnet"))
    unnumbered = {"net": {"conv1": np.ones(2), "conv2": np.ones(2)}}
    with pytest.raises(ValueError, match="must be <= 0"):
        Transfer(freeze_blocks=1).frozen(unnumbered)


@pytest.mark.parametrize("widths", [(2, 2), (2, 2, 4), (2, 4, 4)])
def test_layers_of_a_convnext_with_stages_of_one_width_are_refused(widths):
    net = convnext.net(depths=(1,) * len(widths), widths=widths)
    x = jnp.zeros((1, 32, 32, 3))
    shapes = jax.eval_shape(lambda key: net.init(key, x, train=False), jax.random.key(0))
    params = {"net": shapes["params"]}
    assert set(top_level(Transfer(backbone_lr=0.5).rates(params)).values()) == {0.5}
    for use in (Transfer(layer_decay=0.5).rates, Transfer(freeze_blocks=1).frozen):
        with pytest.raises(ValueError, match="need a ConvNeXt whose stages differ in width"):
            use(params)


def test_freeze_accepts_names_of_modules_and_parameters_but_no_prefixes():
    params = params_of("vit")
    mark = lambda *names: top_level(Transfer(freeze=names).frozen(params))  # noqa: E731
    assert sum(mark("net").values()) == 6 and not mark("net")["projector/Dense_0"]
    frozen = {name for name, value in mark("net/Block_1", "net/token").items() if value}
    assert frozen == {"net/Block_1", "net/token", "net/frozen_patches"}
    with pytest.raises(ValueError, match="'net/Block' is no network or module; valid: net, net/B"):
        mark("net/Block")


def test_layer_decay_without_several_layers_is_refused():
    params = {"net": {f"layer{i}": {"w": np.ones(2)} for i in range(3)}}
    assert set(top_level(Transfer().rates(params)).values()) == {1.0}
    with pytest.raises(ValueError, match="needs a backbone of several layers.*got layer0, layer1"):
        Transfer(layer_decay=0.5).rates(params)
    with pytest.raises(ValueError, match="needs a backbone of several layers"):
        # before a run writes anything
        optimiser("sgd", 0.1, transfer=Transfer(layer_decay=0.5)).init(params)


def test_norm_after_the_blocks_of_a_users_network_belongs_to_the_last_layer():
    names = ("Dense_0", "Block_0", "Block_1", "RMSNorm_0")
    rates = Transfer(layer_decay=0.5).rates({"net": {name: {"w": np.ones(2)} for name in names}})
    assert [rates["net"][name]["w"] for name in names] == [0.125, 0.25, 0.5, 1]


def test_names_of_modules_may_contain_slashes_as_those_of_haiku():
    layers = {f"mlp/~/linear_{i}": {"w": np.ones(2, np.float32)} for i in range(3)}
    params = {"net": layers, "projector": {"Dense_0": np.ones(2, np.float32)}}
    rates = top_level(Transfer(layer_decay=0.5).rates(params))
    assert [rates[f"net/{name}"] for name in layers] == [0.25, 0.5, 1]
    frozen = top_level(Transfer(freeze=("net/mlp/~/linear_1",)).frozen(params))
    assert [name for name, value in frozen.items() if value] == ["net/mlp/~/linear_1"]
    assert sum(top_level(Transfer(freeze_blocks=1).frozen(params)).values()) == 2


def test_update_is_scaled_by_the_layer_rate_and_frozen_modules_have_no_optimiser_state():
    params = params_of("convnet")
    settings = {"weight_decay": 0.1, "momentum": 0.9, "clip_norm": 0}
    constant = lambda step: jnp.float32(0.1)  # noqa: E731
    transfer = Transfer(backbone_lr=0.5, layer_decay=0.1)
    grads = jax.tree.map(lambda p: 2 * p, params)

    def update(transfer):
        transform = optimiser("adamw", constant, transfer=transfer, **settings)
        state = transform.init(params)
        return transform.update(grads, state, params)[0], state

    (usual, whole), (scaled, _) = update(Transfer()), update(transfer)
    rates = transfer.rates(params)
    jax.tree.map(lambda u, r, s: np.testing.assert_allclose(s, u * r), usual, rates, scaled)
    still, state = update(Transfer(freeze=("net",)))
    assert not any(np.any(x) for x in jax.tree.leaves(still["net"]))
    count = lambda tree: sum(np.size(x) for x in jax.tree.leaves(tree))  # noqa: E731
    assert count(whole) - count(state) == 2 * count(params["net"])


def steps(num_steps=2, **changes):
    """Return the state of a tiny run before and after some steps."""
    settings = config.load(DIGITS, [*SETTINGS.items(), *changes.items()])
    setup, mesh = build(settings, 1297), distributed.make_mesh()
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1), np.uint8)
    batch = {"input": images, "index": np.arange(16, dtype=np.int32)}
    before = jax.device_get(make_init(setup, batch, 1297, mesh)(settings.seed))
    state = make_init(setup, batch, 1297, mesh)(settings.seed)
    step = make_train_step(setup.method, setup.optimiser, setup.augment, mesh)
    for _ in range(num_steps):
        state, _, _ = step(state, distributed.shard(batch, mesh))
    return before, jax.device_get(state)


@pytest.mark.parametrize("keep", long_except(["True"], ["True", "False"]))
def test_frozen_backbone_is_unchanged_and_freeze_stats_decides_on_batch_norm(keep):
    before, after = steps(**{"optim.freeze": "net", "optim.freeze_stats": keep})
    same = lambda one, other: jax.tree.all(jax.tree.map(np.array_equal, one, other))  # noqa: E731
    assert same(before.params["net"], after.params["net"])
    assert not same(before.params["projector"], after.params["projector"])
    stats = before.carried.batch_stats, after.carried.batch_stats
    assert same(stats[0]["net"], stats[1]["net"]) == (keep == "True")
    assert not same(stats[0]["projector"], stats[1]["projector"])


@pytest.mark.long
def test_frozen_blocks_normalise_by_running_statistics_and_others_by_the_batch():
    net, x = NETS["convnet"], np.random.default_rng(0).standard_normal((4, 8, 8, 1), np.float32)
    variables = net.init(jax.random.key(0), x, train=False)
    fixed = FixedNorms(net, Transfer(freeze_blocks=1))
    _, updated = fixed.apply(variables, x, train=True, mutable=["batch_stats"])
    moved = {name: bool(np.any(stats["mean"])) for name, stats in updated["batch_stats"].items()}
    assert moved == {"BatchNorm_0": False, "BatchNorm_1": False, "BatchNorm_2": True}
    whole = FixedNorms(net, Transfer(freeze=("net",))).apply(variables, x, train=True)
    np.testing.assert_array_equal(whole, net.apply(variables, x, train=False))


def test_frozen_parameters_get_no_gradient():
    settings = config.load(DIGITS, [*SETTINGS.items(), ("optim.freeze_blocks", "1")])
    method = build(settings, 1297).method
    example = {"views": jnp.ones((2, 4, 8, 8, 1)), "index": jnp.arange(4, dtype=jnp.int32)}
    params, carried = method.init(jax.random.key(0), example, 4)
    options = {"step": jnp.int32(0), "key": jax.random.key(1), "axis_name": None}
    gradient = jax.grad(lambda p: method.loss(p, carried, example, **options)[0])
    text = jax.make_jaxpr(gradient)(params)
    # Each gradient of a kernel would be one more convolution. Both kernels are frozen.
    assert str(text).count("conv_general_dilated[") == 2


class NormAtCall(nn.Module):
    """A network that chooses the mode of its BatchNorm at the call, as is common in Flax."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        return nn.BatchNorm()(x, use_running_average=not train)


def test_frozen_norm_whose_mode_is_an_argument_of_the_call_uses_its_statistics():
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    variables = NormAtCall().init(jax.random.key(0), x, train=False)
    fixed = FixedNorms(NormAtCall(), Transfer(freeze=("net",)))
    actual = fixed.apply(variables, x, train=True)
    np.testing.assert_array_equal(actual, NormAtCall().apply(variables, x, train=False))


class NormBeforeAttention(nn.Module):
    """A BatchNorm before a layer that gets LoRA adapters."""

    affine: bool

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        norm = nn.BatchNorm(not train, use_scale=self.affine, use_bias=self.affine)
        return nn.Dense(3, name="qkv")(norm(x))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_freeze_stats_decides_on_the_norms_of_a_backbone_with_adapters(keep, affine):
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    encoder = Encoder(NormBeforeAttention(affine), heads.mlp())
    net = Transfer(lora=2, freeze_stats=keep).wrap(encoder).net
    variables = net.init(jax.random.key(0), x, train=False)
    _, updated = net.apply(variables, x, train=True, mutable=["batch_stats"])
    assert keep != np.any(updated["batch_stats"]["BatchNorm_0"]["mean"])


def test_backbone_with_merged_adapters_has_the_features_of_the_adapted_one():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3), np.float32)
    net = NormBeforeAttention(affine=True)
    adapted = Transfer(lora=2).wrap(Encoder(net, heads.mlp())).net
    variables = adapted.init(jax.random.key(0), x, train=False)
    params = variables["params"]
    up = rng.standard_normal(params["lora_qkv"]["up"].shape, np.float32)  # They start at zero.
    params = {**params, "lora_qkv": {**params["lora_qkv"], "up": up}}
    expected = adapted.apply({**variables, "params": params}, x, train=False)
    actual = net.apply({**variables, "params": merge_adapters(params)}, x, train=False)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(actual, net.apply({**variables, "params": params}, x, train=False))


def test_lora_for_attention_that_is_no_dense_layer_is_refused():
    class Heads(nn.Module):
        @nn.compact
        def __call__(self, x, *, train, axis_name=None, keys=None):
            return nn.DenseGeneral((3, 2, 2), name="qkv")(x)

    net = Transfer(lora=2).wrap(Encoder(Heads(), heads.mlp())).net
    with pytest.raises(ValueError, match="optim.lora needs 'qkv' to be nn.Dense"):
        net.init(jax.random.key(0), np.ones((4, 3), np.float32), train=False)


class NormWithoutParameters(nn.Module):
    """A network whose BatchNorm has no parameters, as with ``affine=False`` in PyTorch."""

    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        norm = nn.BatchNorm(not train, use_scale=False, use_bias=False)
        return nn.Dense(2)(norm(x))


@pytest.mark.parametrize(("freeze", "fixed"), [(("net",), True), (("net/Dense_0/bias",), False)])
def test_norm_without_parameters_is_frozen_with_the_module_that_contains_it(freeze, fixed):
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    net = NormWithoutParameters()
    variables = net.init(jax.random.key(0), x, train=False)
    norms = FixedNorms(net, Transfer(freeze=freeze))
    _, updated = norms.apply(variables, x, train=True, mutable=["batch_stats"])
    assert fixed != np.any(updated["batch_stats"]["BatchNorm_0"]["mean"])


class NnxNorms(nnx.Module):
    """Two BatchNorms, of which the first one is in a list."""

    def __init__(self, rngs):
        self.first = nnx.List([nnx.BatchNorm(3, rngs=rngs)])
        self.second = nnx.BatchNorm(3, rngs=rngs)

    def __call__(self, x):
        return self.second(self.first[0](x))


def test_frozen_norm_of_an_nnx_module_uses_its_statistics():
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    net = NnxNetwork(NnxNorms)
    variables = net.init(jax.random.key(0), x)
    _, updated = FixedNorms(net, Transfer(freeze=("net/first",))).apply(
        variables, x, train=True, mutable=["batch_stats"]
    )
    same = jax.tree.map(np.array_equal, variables["batch_stats"], updated["batch_stats"])
    assert all(jax.tree.leaves(same["first"])) and not any(jax.tree.leaves(same["second"]))
    whole = FixedNorms(net, Transfer(freeze=("net",))).apply(variables, x, train=True)
    np.testing.assert_array_equal(whole, net.apply(variables, x, train=False))


@pytest.mark.parametrize(
    ("net", "got"),
    [
        (NnxNetwork(lambda *, rngs: nnx.Linear(2, 2, rngs=rngs)), "an NNX module"),
        (FunctionNetwork(lambda key, x: {}, lambda params, x: x), "a pair of functions"),
    ],
)
def test_lora_adapters_of_other_networks_than_linen_modules_are_refused(net, got):
    with pytest.raises(ValueError, match=f"optim.lora needs a Linen module, got {got}"):
        Transfer(lora=2).wrap(Encoder(net, heads.mlp()))


def test_freezing_a_module_that_the_network_lacks_is_refused_in_one_line():
    with refused("'net/Conv_9' is no network or module; valid: net, net/"):
        steps(0, **{"optim.freeze": "net/Conv_9"})

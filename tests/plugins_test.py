"""Components of users: from files of their own, and as Python objects."""

import argparse
import functools
import inspect
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
from data_cases import data_config
from file_cases import refused
from flax import linen as nn
from flax import nnx
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict
from tiny import TINY
from workdir_cases import ROW

import jaxssl
from jaxssl import cli, components, losses
from jaxssl.api import python_objects
from jaxssl.data import kind, source
from jaxssl.errors import UserError
from jaxssl.evaluation import run as evaluation_run
from jaxssl.evaluation.protocol import Result
from jaxssl.evaluation.selection import select_protocols
from jaxssl.losses.objective import Schedule
from jaxssl.models import adapters
from jaxssl.models.convnet import ConvNet
from jaxssl.training import config
from jaxssl.training.build import build
from jaxssl.training.config import custom
from jaxssl.training.config.method import (
    Length,
    make_augment,
    make_networks,
    scheduled_arguments,
)
from jaxssl.training.output import loggers

EXAMPLES = Path(__file__).parents[1] / "examples"
LOSS = f"{EXAMPLES}/own_loss.py:align_uniform"
DATA = f"{EXAMPLES}/own_data.py:stripes"
PLUGIN = '''
from typing import Literal

import jax
from flax import linen as nn
from flax import nnx
from jaxssl.evaluation.protocol import Protocol, Result
from jaxssl.methods import siamese


class Statistics(nn.Module):
    """A network with BatchNorm that does not take the mapped axis."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(4)(x.reshape(len(x), -1))
        return nn.BatchNorm(use_running_average=not train)(x)


class Stateful(nnx.Module):
    def __init__(module, width=4, *, rngs):
        module.layers = nnx.List([nnx.Conv(1, width, (3, 3), rngs=rngs)])
        module.norm = nnx.BatchNorm(width, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.norm(self.layers[0](x))).mean((1, 2))


def init(key, x):
    return {"kernel": jax.random.normal(key, (x[0].size, 3))}


def apply(params, x):
    return x.reshape(len(x), -1) @ params["kernel"]


functions = init, apply


def noisy(rng, picture, *, size=8, noise=0.1):
    view = jax.image.resize(picture, (size, size, picture.shape[2]), "linear")
    return view + noise * jax.random.normal(rng, view.shape)


def sizeless(*, noise=0.1):
    return None


def keyless(picture, *, size=8):
    return picture


def annotated(
    *, kind: Literal["small", "large"] = "small", widths: list[int] = [4, 8], bare: tuple = (1,)
):
    return Statistics()


def method(encoder, objective, *, labels: bool = False):
    return siamese.method(encoder, objective, labels=labels)


def is_labelled(networks, loss, *, labels=False):
    return labels


def weighted(pairs, *, weight=1.0):
    return weight + 0 * pairs.anchor[:, 0]


def needs_width(*, width):
    return Statistics()


def spread(context, *, seed, preset="default"):
    return [Result("spread", float(context.features.test.std()), None, {}, "")]


def halved(context, *, seed, preset="half"):
    return [Result("spread", float(context.features.test.std()) / 2, None, {}, "")]


probe = Protocol(halved, {"half": {}, "other": {}})
number = 3
built_in = max


def of_two(z1, z2, *, weight=1.0):
    return 0.0


def of_keyword(*, pairs):
    return 0.0


def learns(pairs, *, learn=1.0):
    return 0.0


def with_preset(context, *, seed, preset):
    return []


def nothing(context, *, seed):
    return None


def logger(workdir, step, config):
    return sum  # It has no methods.
'''


@pytest.fixture
def plugin(tmp_path):
    """Return the function ``(name) -> "file.py:name"`` for a file of a user."""
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return lambda name: f"{path}:{name}"


def load(**names):
    """Return a tiny config with components of a user."""
    named = [(f"{group}.name", name) for group, name in names.items()]
    kept = [(k, v) for k, v in TINY.items() if k.split(".")[0] not in names]
    return config.load("digits", [*kept, ("schedule.warmup_epochs", "0"), *named])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the workdir of a run with a network, a loss and a data set from files."""
    folder = tmp_path_factory.mktemp("plugins")
    for name in ("own_network.py", "own_loss.py", "own_data.py"):
        shutil.copy(EXAMPLES / name, folder)
    (folder / "mine.py").write_text(PLUGIN)
    return train(folder, folder / "run")


def train(folder: Path, workdir: Path, *flags: str) -> Path:
    """Train with the files of a folder, with paths relative to it."""
    settings = {k: v for k, v in TINY.items() if not k.startswith(("net.", "eval."))}
    settings |= {"total_steps": "4", "schedule.warmup_epochs": "0", "net.width": "6"}
    settings |= {"net.name": "own_network.py:SmallMixer", "loss.name": "own_loss.py:align_uniform"}
    settings |= {"data.name": "own_data.py:stripes", "augment.name": "mine.py:noisy"}
    settings |= {"method.name": "mine.py:method", "eval.protocols": "knn,mine.py:spread"}
    arguments = [f"--config.{key}={value}" for key, value in settings.items()]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exit_:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["jaxssl"])
        cli.run("train", [*arguments, "--workdir", str(workdir), *flags])
    if exit_.value.code:
        raise UserError(f"status {exit_.value.code}")
    return workdir


@pytest.mark.long
def test_config_records_user_components_with_arguments_and_file_digests(run):
    settings = config.read_config(run)
    net = {"name": f"{run.parent}/own_network.py:SmallMixer", "width": 6, "patch": 4}
    assert settings.net.to_dict() == net
    assert (settings.loss.weight, settings.augment.noise, settings.method.labels) == (1, 0.1, False)
    digests = [text.split() for text in settings.plugins]
    names = {"augment": "mine.py:noisy", "data": "own_data.py:stripes"}
    names |= {"loss": "own_loss.py:align_uniform", "method": "mine.py:method"}
    names |= {"net": "own_network.py:SmallMixer"}
    assert [(group, name) for group, name, _ in digests] == list(names.items())
    assert all(len(digest) == components.DIGITS for _, _, digest in digests)


def test_run_with_user_components_can_be_evaluated_and_embedded(run):
    rows = {(row["protocol"], row["features"]): row for row in jaxssl.Run(run).results}
    assert rows["knn", "pretrained"]["dataset"] == "own_data.py:stripes"
    assert rows["mine.py:spread", "pretrained"]["value"] > 0
    again = jaxssl.evaluate(run, f"{run.parent}/mine.py:spread", kinds=["pretrained"])
    assert again[0]["value"] == rows["mine.py:spread", "pretrained"]["value"]
    assert jaxssl.embed(run, np.zeros((3, 16, 16, 1), np.uint8)).shape == (3, 6)


def test_run_resumes_after_a_component_file_moved_but_not_after_it_changed(run, tmp_path, capsys):
    moved, workdir = tmp_path / "moved", tmp_path / "run"
    shutil.copytree(run.parent, moved)
    shutil.copytree(run, workdir)
    train(moved, workdir)
    assert "evaluate it again" in capsys.readouterr().out
    with (moved / "own_loss.py").open("a") as file:
        file.write("\n# changed\n")
    with pytest.raises(UserError, match="status 2"):
        train(moved, workdir)
    assert "plugins.loss own_loss.py:align_uniform: " in capsys.readouterr().err


@pytest.mark.fast
def test_component_file_edited_during_a_run_does_not_change_the_run(plugin, caplog):
    name = plugin("number")
    path = Path(name.partition(":")[0])
    settings = load(net=plugin("functions")).to_dict()
    with custom.unchanged(settings):
        assert components.factory("net", name) == 3
        path.write_text(PLUGIN.replace("number = 3", "number = 4"))
        assert components.factory("net", name) == 3
        assert custom.digests(settings) == settings["plugins"]
    message = f"{path} has changed during the run, which used its earlier content"
    assert caplog.messages == [message]
    assert components.factory("net", name) == 4
    message = "net mine.py:functions changed while the run was being prepared"
    with pytest.raises(UserError, match=message), custom.unchanged(settings):
        pass


def test_loading_a_run_warns_of_files_changed_since_training(run, caplog):
    path = run.parent / "own_network.py"
    content = path.read_text()
    path.write_text(content + "\n# changed\n")
    try:
        with pytest.raises(UserError, match="own_network.py .SHA-256 .*; read them"):
            jaxssl.load_encoder(run)
        jaxssl.load_encoder(run, trust=True)
    finally:
        path.write_text(content)
    message = f"{run} was trained with another content of net own_network.py:SmallMixer"
    assert caplog.messages == [message]


def test_export_of_a_user_network_names_its_file_in_the_model_card(run, tmp_path):
    from safetensors.numpy import load_file

    from jaxssl.pretrained.export import export

    weights, card = export(run, ["safetensors"], out=tmp_path)
    arrays = load_file(weights)
    kernel = jaxssl.load_encoder(run)[1]["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(arrays["params.Dense_0.kernel"], kernel)
    text = card.read_text().replace("patch=4, width=6", "width=6, patch=4")
    assert "own_network.py:SmallMixer (width=6, patch=4)" in text and str(run.parent) not in text
    with pytest.raises(UserError, match="own_network.py:SmallMixer', which is not part of jaxssl"):
        jaxssl.load_encoder(weights)


@pytest.mark.fast
@pytest.mark.parametrize("name", ["Statistics", "Stateful", "functions"])
def test_linen_nnx_and_function_networks_are_initialised_applied_and_updated(plugin, name):
    net = make_networks(load(net=plugin(name))).net
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, (5, 8, 8, 1)), jnp.float32)
    variables, again = (net.init(jax.random.key(0), x, train=False) for _ in range(2))
    assert set(variables) == {"params", "batch_stats"}
    jax.tree.map(np.testing.assert_array_equal, variables, again)
    first, other = (jax.tree.leaves(net.init(jax.random.key(k), x)["params"]) for k in (0, 1))
    assert any(np.any(a != b) for a, b in zip(first, other, strict=True))
    options = {"axis_name": None, "keys": None, "mutable": ["batch_stats"]}
    trained, updated = net.apply(variables, x, train=True, **options)
    evaluated = net.apply(variables, x, train=False)
    assert trained.shape == evaluated.shape == (5, {"functions": 3}.get(name, 4))
    if name == "functions":
        np.testing.assert_array_equal(trained, evaluated)
        return
    before, after = (jax.tree.structure(x["batch_stats"]) for x in (variables, updated))
    assert before == after
    assert not np.allclose(trained, evaluated)
    again = net.apply({**variables, **updated}, x, train=False)
    assert not np.allclose(again, evaluated)


@pytest.mark.long
@pytest.mark.fast
def test_user_batch_norm_spans_all_devices_in_nnx_and_needs_axis_name_in_linen(plugin):
    mesh = Mesh(np.array(jax.devices()[:2]), "i")
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, (4, 8, 8, 1)), jnp.float32)

    def apply(name):
        net = make_networks(load(net=plugin(name))).net
        variables = net.init(jax.random.key(0), x, train=False)

        def share(x):
            options = {"axis_name": "i", "keys": None, "mutable": ["batch_stats"]}
            return net.apply(variables, x, train=True, **options)[0]

        run = jax.shard_map(share, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        return run(x), net.apply(variables, x, train=True, mutable=["batch_stats"])[0]

    np.testing.assert_allclose(*apply("Stateful"), rtol=1e-5, atol=1e-5)
    settings = load(net=plugin("Stateful"))
    with pytest.raises(UserError, match="networks of NNX average over all devices; leave it at 0"):
        settings.update({"batch_norm_group": 2})
        make_networks(settings)
    with pytest.raises(ValueError, match="Statistics has BatchNorm, which would average over"):
        apply("Statistics")


class Dropout(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dropout(0.5, deterministic=not train)(x.reshape(len(x), -1))


class FullDropout(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, axis_name=None, keys=None):
        return nn.Dropout(0.5, deterministic=not train)(x.reshape(len(x), -1))


class Cached(nn.Module):
    @nn.compact
    def __call__(self, x, **options):
        self.variable("cache", "calls", jnp.zeros, 1)
        return x.reshape(len(x), -1)


class FullMaps(nn.Module):
    @nn.compact
    def __call__(self, x, **options):
        return nn.Conv(2, (3, 3))(x)


class Partitioned(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.ones, (None, "model"))
        return nn.Dense(2, kernel_init=init)(x)


class OfVideos(nn.Module):
    EXAMPLES = "video"


class Alone(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(x.reshape(len(x), -1))


class Fixed(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.BatchNorm(use_running_average=not training)(x.reshape(len(x), -1))


class Maps(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(2, (3, 3))(x)


class RandomNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(x.reshape(len(x), -1))


class CountingNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.calls = nnx.List([nnx.Variable(jnp.zeros(1))])


class ConstantNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.scale = jnp.ones(3)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Dropout(), "Dropout draws random numbers in its layers"),
        (Alone(), "Alone changes its statistics in evaluation; give __call__ the argument train"),
        (Fixed(), "Fixed does not change its statistics in training; give __call__ the argument"),
        (Maps(), r"Maps must map 5 examples to features \[5, f\], got \[5, 8, 8, 2\]"),
        (FullDropout(), "FullDropout draws random numbers in its layers"),
        (FullMaps(), r"FullMaps must map 5 examples to features \[5, f\], got \[5, 8, 8, 2\]"),
        (Cached(), "Cached has variables in the collection 'cache'; expected only params and"),
        ((lambda key, x: [x[0]], lambda p, x: x), "nested dicts of arrays .* got list at params"),
        (
            (lambda key, x: {"n": 3}, lambda p, x: x),
            r"nested dicts of arrays .* got int at params\['n'\]",
        ),
        ((lambda key, x: None, lambda p, x: x), "nested dicts of arrays .* got NoneType at params"),
        ((lambda key: {}, lambda p, x: x), r"function init\(key, x\), got the arguments key$"),
        (
            (lambda key, x: {}, lambda p, rng, x: x),
            r"hk.without_apply_rng\), got the arguments p, rng, x$",
        ),
        (Maps, "expected a network, got the class Maps; call the class"),
        ((lambda key, x: {}, lambda p, x: x.sum()), r"features \[5, f\], got \[\]"),
        ((lambda key, x: {}, lambda p, x: None), r"features \[5, f\], got NoneType"),
        (3, "expected a Linen module, the class of an NNX module, or a pair"),
        (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "an initialised Linear cannot be initialised again"),
    ],
)
def test_network_that_breaks_the_contract_raises_an_error_that_says_how_to_mend_it(value, message):
    x = jnp.zeros((5, 8, 8, 1))
    with pytest.raises(ValueError, match=message):
        net = adapters.adapt(value)
        variables = net.init(jax.random.key(0), x, train=False)
        net.apply(variables, x, train=False)
        net.apply(variables, x, train=True, mutable=["batch_stats"])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (RandomNnx, "RandomNnx draws random numbers in its layers"),
        (CountingNnx, "CountingNnx stores calls.0, which is neither nnx.Param nor nnx.BatchStat"),
        (ConstantNnx, "ConstantNnx stores scale, which is neither nnx.Param nor nnx.BatchStat"),
    ],
)
def test_nnx_network_with_other_variables_than_parameters_raises_an_error(value, message):
    net = custom.make_factory("net", value.__name__, value)()
    for init in (net.init, jax.jit(net.init)):
        with pytest.raises(ValueError, match=message):
            init(jax.random.key(0), jnp.zeros((2, 4)))


class Narrow(ConvNet):
    def __call__(self, x, *, train):
        return super().__call__(x, train=train)


@pytest.mark.fast
@pytest.mark.parametrize("network", [Narrow, type("Same", (ConvNet,), {})])
def test_subclass_of_our_network_receives_the_arguments_that_it_takes(network):
    net, x = adapters.adapt(network(widths=(4,), strides=(1,))), jnp.zeros((2, 8, 8, 1))
    variables = net.init(jax.random.key(0), x, train=False)
    features = net.apply(variables, x, train=False, axis_name=None, keys=None)
    assert features.shape == (2, 4) and isinstance(net, ConvNet) == (network is not Narrow)


@pytest.mark.fast
def test_parameters_with_partitioning_of_a_linen_network_are_plain_arrays():
    variables = adapters.adapt(Partitioned()).init(jax.random.key(0), jnp.zeros((5, 4)))
    assert jax.tree.structure(variables["params"]) == jax.tree.structure(
        {"Dense_0": {"bias": 0, "kernel": 0}}
    )


@pytest.mark.fast
def test_schedules_of_the_floats_of_a_user_loss_apply_at_the_step():
    schedule = "{'schedule': 'linear', 'start': 1.0, 'end': 3.0, 'until': 4}"
    settings = config.load("digits", [("loss.name", LOSS), ("loss.sharpness", schedule)])
    factory = components.factory("loss", LOSS)
    hyper = scheduled_arguments(settings.loss, Length(1, 8))
    pairs = jaxssl.losses.pair_views(jax.random.normal(jax.random.key(0), (2, 6, 4)))
    value, *_ = config.factory("loss", LOSS)(**hyper).loss(pairs, {}, (), step=2, key=None)
    np.testing.assert_allclose(value, factory(pairs, sharpness=2.0).mean(), rtol=1e-6)


@pytest.mark.fast
def test_user_loss_equals_its_formula_and_accepts_settings(plugin):
    settings = config.load("digits", [("loss.name", LOSS), ("loss.sharpness", "3")])
    assert (settings.loss.sharpness, settings.loss.learn) == (3.0, ())
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 6, 4))
    pairs = jaxssl.losses.pair_views(list(jnp.asarray(z, jnp.float32)))
    setup = build(load(loss=LOSS), 1297)
    loss_fn = components.factory("loss", LOSS)
    flat = z.reshape(-1, 4) / np.linalg.norm(z.reshape(-1, 4), axis=1, keepdims=True)
    squared = ((flat[:, None] - flat[None]) ** 2).sum(-1)
    partner = np.roll(np.arange(12), 6)
    energy = np.exp(-2 * squared) * (1 - np.eye(12))
    expected = squared[np.arange(12), partner] + np.log(energy.sum(1) / 11)
    np.testing.assert_allclose(loss_fn(pairs), expected, rtol=1e-5, atol=1e-6)
    assert setup.total_steps > 0


@pytest.mark.fast
def test_user_data_set_supports_splits_slices_and_has_the_name_of_its_file(plugin):
    settings = data_config(name=DATA)
    splits = source.load_splits(settings)
    assert (len(splits.train), len(splits.test)) == (1600, 400)
    assert splits.train.name == "own_data.py:stripes" and splits.train.num_classes == 8
    assert not set(splits.train.parts[0][1]) & set(splits.test.parts[0][1])
    part = source.load(settings, "train[:10%]+test[:5]")
    assert len(part) == 165
    np.testing.assert_array_equal(part.images(16)[:160], splits.train.images(16)[:160])
    with pytest.raises(UserError, match="'own_data.py:stripes' has no split 'tain'; did you mean"):
        source.load(settings, "tain")
    with pytest.raises(UserError, match="takes no argument path; leave data.path empty"):
        source.load({**settings, "path": "x"}, "train")
    with pytest.raises(UserError, match="must be a function that returns the data set"):
        source.load({**settings, "name": plugin("number")}, "train")


@pytest.mark.fast
def test_settings_of_a_user_loss_that_a_config_cannot_hold_keep_their_defaults(tmp_path):
    path = tmp_path / "loss.py"
    path.write_text("def loss(pairs, *, t=0.5, inner=abs, name='x', **rest):\n    return t\n")
    settings = config.load("digits", [("loss.name", f"{path}:loss")])
    assert {*settings.loss} == {"name", "t", "learn"} and settings.loss.name == f"{path}:loss"


@pytest.mark.fast
def test_argument_of_a_user_with_the_default_none_takes_a_value_of_its_annotation(tmp_path):
    path = tmp_path / "loss.py"
    path.write_text("def loss(pairs, *, t: float = None, name_of: str = None):\n    return t\n")
    name = f"{path}:loss"
    assert config.load("digits", [("loss.name", name)]).loss.t is None
    assert config.load("digits", [("loss.name", name), ("loss.t", "0.5")]).loss.t == 0.5
    with pytest.raises(UserError, match="loss.t.*expects"):
        config.load("digits", [("loss.name", name), ("loss.t", "word")])


@pytest.mark.fast
def test_digest_of_a_pair_of_functions_depends_on_their_code(tmp_path):
    digests = []
    for number in (1, 2):
        path = tmp_path / f"pair{number}.py"
        path.write_text(
            f"def init(key):\n    return {{}}\n\n\ndef apply(params, x):\n    return {number} * x\n"
        )
        module = components.load_file(path, "file")
        pairs = (module.init, module.apply), functools.partial(module.apply, {})
        digests.append([python_objects.register("net", x) for x in pairs])
    assert all(one != other for one, other in zip(*digests, strict=True))


@pytest.mark.fast
@pytest.mark.parametrize("preset", ["", ":word", ":k-20", ":T=0.1"])
def test_path_of_a_protocol_with_any_preset_is_made_absolute(preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = f"{tmp_path.resolve()}/mine.py:probe{preset}"
    assert components.absolute(f"mine.py:probe{preset}") == expected


@pytest.mark.fast
def test_limits_of_the_package_do_not_hold_for_defaults_of_a_user_network(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from flax import linen as nn\n\n\nclass Net(nn.Module):\n    axis: int = -1\n"
        "    padding: tuple[int, int] = (0, 0)\n    vocabulary: int = 2_000_000\n"
    )
    net = load(net=f"{path}:Net").net
    assert (net.axis, net.padding, net.vocabulary) == (-1, (0, 0), 2_000_000)


@pytest.mark.fast
@pytest.mark.parametrize("annotation", ["in (0, 1]", "float > 0", "np.Unknown", "Unknown"])
def test_annotation_that_python_cannot_evaluate_leaves_the_type_of_the_default(annotation):
    def loss(pairs, bound=2.0, /, *, scale=1.0):
        return scale * bound + 0 * pairs.anchor[:, 0]

    loss.__annotations__ = {"scale": annotation}
    factory = custom.make_factory("loss", "mine", loss)
    parameters = inspect.signature(factory).parameters
    assert [*parameters] == ["scale", "learn"]
    assert parameters["scale"].annotation == float | Schedule
    pairs = losses.pair_views(jnp.eye(4).reshape(2, 2, 4))
    value = factory(scale=3.0).loss(pairs, {}, {}, step=0, key=None)[0]
    np.testing.assert_allclose(value, 6)


@pytest.mark.fast
def test_path_of_a_user_protocol_with_a_preset_is_stored_as_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    name = components.absolute("mine.py:spread:other")
    assert name == f"{tmp_path}/mine.py:spread:other"
    assert components.short_name(name) == "mine.py:spread:other"


@pytest.mark.fast
def test_streamed_data_of_a_user_file_are_read_by_processes_that_cannot_import_it(
    tmp_path, monkeypatch
):
    lines = "import numpy as np", "class Stream:", "    def __len__(self): return 10"
    item = "    def __getitem__(self, index): return np.full((4, 4, 1), index, np.uint8)"
    path = tmp_path / "streams.py"
    path.write_text("\n".join((*lines, item)))
    train = source.load(data_config(name=f"{path}:Stream", cache="none"), "train")
    assert train.streamed
    sent = cloudpickle.dumps(train)
    module = type(train.parts[0][0].records.images.data).__module__
    monkeypatch.delitem(sys.modules, module)
    values = [np.max(example.input) for example in cloudpickle.loads(sent).read(np.arange(10))]
    assert values == list(range(10))


@pytest.mark.fast
def test_views_of_a_user_augmentation_depend_on_the_key_and_have_augment_size(plugin):
    augment = make_augment(load(augment=plugin("noisy")))
    views = augment(jax.random.key(0), jnp.zeros((2, 9, 9, 1), jnp.uint8), jnp.arange(2))["views"]
    assert views.shape == (2, 2, 8, 8, 1)
    assert np.std(views[0] - views[1]) > 0.05
    cut = custom.make_factory("augment", "cut", lambda key, image, *, size=8: image[:4])(size=8)
    with pytest.raises(UserError, match=r"return views \[8, 8, c\], .* got the shape \[4, 9, 1\]"):
        cut(jax.random.key(0), jnp.zeros((9, 9, 1)))


@pytest.mark.fast
def test_user_components_receive_their_settings_from_the_config(plugin):
    names = {"net": "Stateful", "augment": "noisy", "method": "is_labelled", "loss": "weighted"}
    settings = load(**{group: plugin(name) for group, name in names.items()})
    changes = {"net.width": "6", "augment.size": "6", "augment.noise": "0", "method.labels": "True"}
    changes |= {"second_view.noise": "0.5", "loss.weight": "3"}
    settings = config.complete(settings, list(changes.items()))
    images = jnp.full((2, 9, 9, 1), 128, jnp.uint8)
    views = make_augment(settings)(jax.random.key(0), images, jnp.arange(2))["views"]
    assert views.shape == (2, 2, 6, 6, 1)
    assert np.std(views[0]) < 1e-6 and np.std(views[1]) > 0.5
    variables = make_networks(settings).net.init(jax.random.key(0), views[0], train=False)
    assert variables["params"]["norm"]["scale"].shape == (6,)

    def make(group, *given):
        node = settings[group]
        return config.factory(group, node.name)(*given, **config.arguments(node))

    assert make("method", None, None) is True
    pairs = jaxssl.losses.pair_views([jnp.ones((2, 3)), jnp.ones((2, 3))])
    assert make("loss").loss(pairs, {}, (), step=0, key=None)[0] == 3


@pytest.mark.fast
def test_user_protocols_accept_presets_and_unknown_presets_are_refused(plugin):
    chosen = select_protocols([plugin("spread"), plugin("probe:other")])
    names = [("mine.py:spread", None), ("mine.py:probe", "other")]
    assert [(one.name, one.preset) for one in chosen] == names
    for name, message in (
        ("probe:third", "preset 'third' of protocol .* valid: half, other"),
        ("number", "must be a function .* or a Protocol, got int"),
        ("with_preset", "missing a required argument: 'preset'"),
        ("built_in", r"must be a function \(context, \*, seed\) that needs no other arguments"),
    ):
        with pytest.raises(UserError, match=message):
            select_protocols([plugin(name)])


@pytest.mark.fast
def test_error_about_the_file_of_a_user_protocol_without_a_function_states_the_form():
    with pytest.raises(UserError, match="'mine.py' names no function; expected path/to/file.py:N"):
        select_protocols(["mine.py"])


@pytest.mark.fast
@pytest.mark.parametrize(
    "changes",
    [
        {"value": None},
        {"value": np.float32(0.5)},
        {"value": 10**400},
        {"value": np.ones(1)},
        {"std": "0.5"},
        {"details": None},
        {"details": {"scores": np.ones(2)}},
        {"details": {"preset": 3}},
        {"metric": 3},
        {"unit": None},
    ],
    ids=str,
)
def test_results_that_results_json_cannot_hold_are_refused_before_they_are_written(plugin, changes):
    (one,) = select_protocols([plugin("spread")])
    fields = {name: ROW[name] for name in ROW if name not in ("protocol", *Result._fields)}
    result = Result("spread", 0.5, None, {"preset": "half"})
    assert evaluation_run._make_row(one, result, fields)["value"] == 0.5
    with refused("mine.py:spread' must return texts as metric and unit, a number", "tolist()"):
        evaluation_run._make_row(one, result._replace(**changes), fields)


@pytest.mark.fast
def test_error_about_a_protocol_that_returns_nothing_states_the_expected_type(plugin):
    (one,) = select_protocols([plugin("nothing")])
    with pytest.raises(UserError, match="must return a list of Result, got NoneType"):
        evaluation_run._run_protocol(one, None, "pretrained", 0, strict=True)


@pytest.mark.fast
def test_error_about_a_protocol_that_returns_a_list_of_numbers_states_the_wrong_type(plugin):
    (one,) = select_protocols([plugin("nothing")])
    one = one._replace(protocol=one.protocol._replace(run=lambda context, *, seed: [1.0]))
    with pytest.raises(UserError, match="must return a list of Result, got a list with float"):
        evaluation_run._run_protocol(one, None, "pretrained", 0, strict=True)


@pytest.mark.fast
def test_user_logger_with_wrong_arguments_or_missing_methods_is_refused(plugin, tmp_path):
    with pytest.raises(UserError, match=r"must be a function \(workdir, step, config\)"):
        loggers.check((plugin("of_two"),))
    loggers.check((plugin("logger"),))
    with pytest.raises(UserError, match="without write, sync, close"):
        loggers.open_logger(plugin("logger"), tmp_path, 0, {})


@pytest.mark.fast
@pytest.mark.parametrize("of_class", [True, False])
def test_equinox_module_as_network_is_refused_with_advice(of_class):
    base = type("Module", (), {"__module__": "equinox._module", "__call__": None})
    module = type("Mine", (base,), {})
    with pytest.raises(UserError, match="Equinox module; pass a pair of functions"):
        custom.make_factory("net", "Mine", module if of_class else module())


@pytest.mark.fast
@pytest.mark.parametrize(
    ("value", "got"), [(None, "NoneType"), (np.ones((4, 1)), r"the shape \[4, 1\]")]
)
def test_loss_that_returns_other_than_a_number_for_each_anchor_is_refused(value, got):
    objective = custom.make_factory("loss", "mine", lambda pairs: value)()
    message = rf"loss.name='mine' must return an array \[n\], here \[4\], .* got {got}"
    with pytest.raises(UserError, match=message):
        objective.loss(losses.pair_views(jnp.eye(4).reshape(2, 2, 4)), {}, {}, step=0, key=None)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("net", "Statistic", "has no 'Statistic'; did you mean 'Statistics'"),
        ("net", "function", "has no 'function'; did you mean 'functions'.* valid: Statistics,"),
        ("net", "number", "expected a Linen module"),
        ("loss", "number", "is of type int; expected a name or a function"),
        ("loss", "of_keyword", "must take pairs by position, not only by keyword"),
        ("loss", "learns", "jaxssl adds the setting learn; rename yours"),
        ("loss", "of_two", r"takes \(z1, z2\); expected one argument, pairs"),
        ("augment", "keyless", r"takes \(picture\); expected \(key, image\) and settings with def"),
        ("augment", "sizeless", "must have the argument size, the side of a view in pixels"),
        ("net", "built_in", "built_in' has no signature; call it in a function of Python"),
        ("loss", "built_in", "built_in' has no signature; call it in a function of Python"),
        ("net", "needs_width", "net.width: .* has no default for it; give it one"),
    ],
)
def test_object_that_cannot_be_a_component_of_its_group_is_refused(plugin, group, name, message):
    with pytest.raises(UserError, match=message):
        load(**{group: plugin(name)})


@pytest.mark.fast
def test_annotations_of_choices_and_lists_are_checked(plugin):
    def load_net(**values):
        overrides = [(f"net.{key}", value) for key, value in values.items()]
        return config.load("digits", [("net.name", plugin("annotated")), *overrides]).net

    net = load_net(kind="large", widths="2,3", bare="(1, 'x')")
    assert (net.kind, tuple(net.widths), net.bare) == ("large", (2, 3), (1, "x"))
    for key, value, expected in (
        ("kind", "huge", "expects 'small' or 'large', got 'huge'"),
        ("widths", "(2, 'x')", "expects tuple of int, got"),
        ("bare", "3", "expects tuple, got 3"),
    ):
        with pytest.raises(UserError, match=f"config key 'net.{key}' {expected}"):
            load_net(**{key: value})


@pytest.mark.fast
def test_edited_component_file_is_loaded_again(plugin):
    path = Path(plugin("number").partition(":")[0])
    assert components.factory("net", f"{path}:number") == 3
    for number in (5, 6):  # The second edit keeps the file's size and time in whole seconds.
        path.write_text(f"number = {number}")
        assert components.factory("net", f"{path}:number") == number


@pytest.mark.fast
def test_missing_or_broken_component_files_and_paths_without_a_name_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"the file cannot be read \(No such file or directory\)"):
        load(net=f"{tmp_path}/none.py:net")
    broken = tmp_path / "broken.py"
    for content, message in (
        ("import missing_package_of_a_test\n", "failed: ModuleNotFoundError: No module named"),
        ("raise SystemExit(2)  # as a script does\n", "failed: SystemExit: 2"),
        ("import numpy\n", "the file has no 'net'; it defines nothing"),
    ):
        broken.write_text(content)
        with pytest.raises(UserError, match=f"broken.py.* {message}"):
            load(net=f"{broken}:net")
    with pytest.raises(UserError, match="names no function; expected path/to/file.py:NAME"):
        load(net=str(broken))


@pytest.mark.fast
@pytest.mark.parametrize(
    "make",
    [
        lambda t: argparse.Namespace(t=t),
        lambda t: SimpleNamespace(t=t),
        lambda t: ConfigDict({"t": t}),
        lambda t: functools.partial(losses.nt_xent_loss, temperature=t),
        lambda t: nn.Dense(int(10 * t)),
    ],
)
def test_digest_of_a_function_depends_on_settings_among_the_global_values(make, tmp_path):
    path = tmp_path / "own.py"
    path.write_text("def loss(pairs):\n    return settings, print, np\n")
    module: Any = components.load_file(path, "own")
    names = []
    for t in (0.1, 0.5, 0.1):
        module.settings, module.np = make(t), np
        names.append(python_objects.register("loss", module.loss))
    assert names[0] == names[2] != names[1]


@pytest.mark.fast
def test_digest_of_a_function_depends_on_what_it_has_captured():
    def make(temperature):
        def loss(pairs):
            return losses.nt_xent_loss(pairs, temperature=temperature)

        return loss

    values = [make(0.1), make(0.5), (make(0.1), make(0.5)), jaxssl.losses.objective("nt_xent")]
    values += [jaxssl.losses.objective("nt_xent", temperature=0.1), make(0.1)]
    names = [python_objects.register("loss", x) for x in values]
    assert len(set(names)) == 5 and names[0] == names[-1]
    ones = np.ones(10_000)  # whose repr leaves out most of the numbers
    middle = ones.copy()
    middle[5000] = 2
    forms = (jnp.array, lambda x: {"w": [x]}, lambda x: functools.partial(losses.nt_xent_loss, x))
    for form in forms:
        assert len({python_objects.register("loss", make(form(x))) for x in (ones, middle)}) == 2
    shapes = [python_objects.register("loss", make(np.zeros(shape))) for shape in (4, (2, 2))]
    assert shapes[0] != shapes[1]
    assert python_objects.register("loss", make(np.float32)) != shapes[0]
    texts = [python_objects.register("loss", make(np.array([x], object))) for x in "aab"]
    assert texts[0] == texts[1] != texts[2]

    def once(x):
        return x

    def twice(x):
        return 2 * x

    scaled = (functools.partial(losses.nt_xent_loss, key=f) for f in (once, twice))
    assert len({python_objects.register("loss", x) for x in scaled}) == 2


USING_OTHERS = """
TAU = {number}

def helper(x):
    return TAU * x

def loss(pairs):
    return list(map(lambda pair: helper(pair), pairs))

def step(pairs, helper=helper):
    return helper(pairs)

class Margin:
    def __init__(self, margin):
        super().__init__()
        self.margin, self.again = margin, lambda: Margin(margin)

    def __call__(self, pairs):
        return self.margin * TAU
"""


@pytest.mark.fast
def test_digest_depends_on_global_values_and_on_what_the_code_uses_of_modules(
    tmp_path, monkeypatch
):
    names = []
    for i, number in enumerate((1, 1, 2)):
        path = tmp_path / str(i) / "own.py"
        path.parent.mkdir()
        path.write_text(USING_OTHERS.format(number=number))
        own = components.load_file(path, "file")
        values = [own.loss, jax.jit(own.loss), own.step, own.Margin(3), own.Margin(3).__call__]
        names.append([python_objects.register("loss", x) for x in values])
    assert names[0] == names[1]
    assert not set(names[1]) & set(names[2])
    objects = [own.Margin(3), own.Margin(4), lambda x: x + 1, lambda x: x + 2]
    assert len({python_objects.register("loss", x) for x in objects}) == 4
    for name in ("outer", "outer.inner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["outer"].inner = sys.modules["outer.inner"]
    sys.modules["outer.inner"].outer = sys.modules["outer"]
    sys.modules["outer.inner"].scale = 2
    scope = {"outer": sys.modules["outer"], "__name__": "own"}
    exec("def loss(pairs):\n    return outer.inner.scale", scope)
    before = python_objects.register("loss", scope["loss"])
    sys.modules["outer.inner"].scale = 3
    assert python_objects.register("loss", scope["loss"]) != before
    # A function may have the name of its module.
    exec("def loss(pairs):\n    return outer.outer(pairs)", scope)
    digests = []
    for number in (1, 2):
        exec(f"outer.outer = lambda pairs: {number}", scope)
        digests.append(python_objects.register("loss", scope["loss"]))
    assert digests[0] != digests[1]
    margin = own.Margin(3)
    before = python_objects.register("loss", margin)
    margin.margin = 5
    assert python_objects.register("loss", margin) != before


WITH_ATTRIBUTES = """
import functools

scale = {number}

class Base:
    def __call__(self, pairs):
        return self._tau * pairs

class OfClass(Base):
    pass

OfClass._tau = {number}

class Slots:
    __slots__ = "tau"

    def __call__(self, pairs):
        return pairs

slots = Slots()
slots.tau = {number}

class Property:
    @property
    def tau(self):
        return scale

class CachedProperty:
    @functools.cached_property
    def tau(self):
        return scale
"""


@pytest.mark.fast
def test_digest_depends_on_attributes_of_the_class_slots_and_properties(tmp_path):
    names = []
    for i, number in enumerate((1, 1, 2)):
        path = tmp_path / str(i) / "own.py"
        path.parent.mkdir()
        path.write_text(WITH_ATTRIBUTES.format(number=number))
        own: Any = components.load_file(path, "file")
        values = [own.OfClass(), own.slots, own.Property(), own.CachedProperty()]
        names.append([python_objects.register("loss", x) for x in values])
    assert names[0] == names[1]
    assert not set(names[1]) & set(names[2])


@pytest.mark.fast
def test_digest_of_code_without_a_source_depends_on_the_code():
    names = []
    for number in (1, 1, 2):
        scope = {"__name__": "notebook"}
        exec(USING_OTHERS.format(number=number), scope)
        names.append([python_objects.register("loss", scope[x]) for x in ("loss", "Margin")])
    assert names[0] == names[1] and not set(names[1]) & set(names[2])


def test_python_objects_as_components_have_names_that_depend_on_their_settings():
    name = python_objects.register("net", Alone())
    assert name.startswith("python:Alone-") and components.is_custom(name)
    assert python_objects.register("net", Alone()) == name
    three, four = (python_objects.register("net", nn.Dense(width)) for width in (3, 4))
    assert components.factory("net", three).features == 3
    assert components.factory("net", four).features == 4
    assert kind.of_network(python_objects.register("net", OfVideos())) == "video"
    assert kind.of_network(three) == "image"
    with pytest.raises(UserError, match=r"Python object, which is not stored.* file.py:Missing$"):
        components.factory("net", "python:Missing-0123abcd")


@pytest.mark.long
def test_train_accepts_python_objects_and_refuses_to_resume_with_changed_ones(tmp_path):
    def loss(pairs, *, scale: float = 1.0):
        return scale * jaxssl.losses.nt_xent_loss(pairs)

    class Flat(nn.Module):
        width: int = 3

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x.reshape(len(x), -1))

    settings = jaxssl.get_config("digits")
    settings.total_steps, settings.batch_size, settings.schedule.warmup_epochs = 2, 8, 0
    settings.head.proj_hidden_dim, settings.augment.size, settings.eval.protocols = 8, 8, ()
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), np.uint8)
    arguments = {"data": images, "loss": {"name": loss, "scale": 2.0}, "workdir": tmp_path / "run"}
    run = jaxssl.train(settings, net=Flat(5), **arguments)
    assert run.config.loss.name.startswith("python:loss-") and run.config.loss.scale == 2
    with pytest.raises(UserError, match=r"net.name: 'python:Flat-\w+' -> 'python:Flat-\w+'"):
        jaxssl.train(settings, net=Flat(6), **arguments)
    # The run keeps its own network, although another of the same class has been given since.
    assert jaxssl.embed(run, images).shape == (24, 5)

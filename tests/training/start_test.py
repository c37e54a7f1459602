"""Runs that start from the weights of another run or of a file."""

import shutil

import jax
import numpy as np
import pytest
import weights_cases
from flax.traverse_util import flatten_dict
from jax import numpy as jnp
from safetensors.numpy import save_file
from tiny import DIGITS, SAVED, SETTINGS
from workdir_cases import assert_resumes, assert_same_run, stop

import jaxssl
from jaxssl import distributed
from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain
from jaxssl.pretrained import load, weights
from jaxssl.pretrained.export import export
from jaxssl.pretrained.start import _fit, _settings, adapt_channels, load_init, start
from jaxssl.training import config
from jaxssl.training.build import build, make_init
from jaxssl.training.workdir import checkpoint, run_record

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
MOMENTUM = {"method.name": "momentum", "predictor.name": "mlp", "predictor.pred_hidden_dim": "4"}


def started(settings, images=IMAGES):
    """Return features of images after zero steps, the state and the report."""
    setup = build(settings, 1297)
    example = {"input": images[:2], "index": np.arange(2, dtype=np.int32)}
    state = make_init(setup, example, 1297, distributed.make_mesh())(settings.seed)
    inputs = Inputs(*images.shape[2:])
    params, carried, report = start(settings, state.params, state.carried, inputs)
    state = state.replace(params=params, carried=carried)
    features = setup.method.features(state.params, state.carried, inputs.prepare(images))
    return np.asarray(features), state, report


def settings_of(net, **changes):
    """Return the config of a tiny run with another network."""
    shared = {key: value for key, value in SETTINGS.items() if not key.startswith("net.")}
    return config.load(DIGITS, list({**shared, **net, **changes}.items()))


def equal(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["run", "file"])
def test_network_started_from_weights_has_their_features_to_the_bit(tiny, whole, tmp_path, kind):
    path = whole if kind == "run" else export(whole, ["safetensors"], out=tmp_path)[0]
    features, state, report = started(tiny(init=str(path), **MOMENTUM))
    encoder = load.load_pretrained(path)
    expected = load.make_apply(encoder)(encoder.variables["net"], encoder.inputs.prepare(IMAGES))
    np.testing.assert_array_equal(features, expected)
    target, stats = state.carried.target, state.carried.batch_stats
    assert equal(target["params"]["net"], state.params["net"])
    assert equal(target["batch_stats"]["net"], stats["net"])
    assert report["missing"] == ["objective", "predictor", "projector"]
    assert report["extra"] == (["projector"] if kind == "run" else [])
    assert report["loaded"] == len(jax.tree.leaves(encoder.variables["net"]))
    assert report["reshaped"] == report["differences"] == []


def test_init_projector_also_loads_the_projector_of_the_run(tiny, whole):
    _, state, report = started(tiny(init=str(whole), init_projector="True", **MOMENTUM))
    theirs = load.load_pretrained(whole).variables["projector"]
    assert equal(state.params["projector"], theirs["params"])
    assert equal(state.carried.target["params"]["projector"], theirs["params"])
    assert equal(state.carried.batch_stats["projector"], theirs["batch_stats"])
    assert report["missing"] == ["objective", "predictor"] and not report["extra"]


@pytest.mark.long
def test_run_started_from_weights_resumes_without_them_bit_for_bit(tiny, whole, tmp_path):
    source = shutil.copytree(whole, tmp_path / "source")
    settings = tiny(init=str(source))
    pretrain.train(settings, tmp_path / "uninterrupted")
    stop(settings, tmp_path / "run", SAVED)
    shutil.rmtree(source)
    pretrain.train(settings, tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "uninterrupted")
    report = jaxssl.Run(tmp_path / "run").init
    assert report is not None and report["from"] == str(source)
    facts = checkpoint.read_all_facts(tmp_path / "run")
    assert {one.init["sha256"] for one in facts.values()} == {report["sha256"]}
    assert report["sha256"][:12] in (tmp_path / "run" / "train.log").read_text()


def test_restart_from_other_weights_is_refused_before_the_first_checkpoint(tiny, whole, tmp_path):
    report = {"sha256": "a"}
    record = run_record.RunRecord(None, "data", {}, report)
    settings = tiny(init=str(whole))
    run_record.write(settings, tmp_path, record)
    run_record.write(settings, tmp_path, record)
    with pytest.raises(UserError, match="was started from other weights than"):
        run_record.write(settings, tmp_path, record._replace(init={"sha256": "b"}))


@pytest.mark.parametrize(
    ("case", "net", "options", "reshaped"),
    [
        ("tiny", weights_cases.TINY, {"num_heads": 2}, "patches/kernel [12, 8] -> [4, 8]"),
        pytest.param(
            *("resnet", weights_cases.RESNET, {}, "Conv_0/kernel [3, 3, 3, 4] -> [3, 3, 1, 4]"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_weights_for_colour_are_adapted_to_grey_images(tmp_path, case, net, options, reshaped):
    path = tmp_path / "x.safetensors"
    arrays = weights_cases.draw_weights(case, 8)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    encoder = load.load_pretrained(path, mean=0.5, std=0.5, **options)
    colour = Inputs(8, 3).prepare(jnp.asarray(np.repeat(IMAGES, 3, axis=3)))
    expected = load.make_apply(encoder)(encoder.variables["net"], colour)
    net = {f"net.{key}": str(value) for key, value in net.items()}
    features, _, report = started(settings_of(net, init=str(path)))
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-4)
    assert report["reshaped"] == [f"net/params/{reshaped}"]
    assert any(text.startswith("mean") for text in report["differences"])


VIT = {"net.name": "vit", "net.dim": "8", "net.layers": "2", "net.num_heads": "2"}
VIT |= {"net.patch_size": "2", "net.positions": "learned"}


def vit_settings(**changes):
    return settings_of(VIT, **changes)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run with adapters that started from the weights of an earlier one."""
    folder = tmp_path_factory.mktemp("adapted")
    pretrain.train(vit_settings(**{"net.frozen_patches": "False"}), folder / "first")
    lora = {"init": str(folder / "first"), "optim.lora": "2", "net.frozen_patches": "False"}
    pretrain.train(vit_settings(**lora), folder / "second")
    return folder / "first", folder / "second"


@pytest.mark.long
def test_lora_adapters_start_without_effect_and_only_they_train_in_the_backbone(adapted):
    first, second = adapted
    settings = vit_settings(**{"init": str(first), "optim.lora": "2"})
    features, state, report = started(settings)
    encoder = load.load_pretrained(first)
    expected = load.make_apply(encoder)(encoder.variables["net"], encoder.inputs.prepare(IMAGES))
    np.testing.assert_array_equal(features, expected)
    assert report["loaded"] == len(jax.tree.leaves(encoder.variables["net"]))
    trained = flatten_dict(checkpoint.restore_arrays(second).state["params"]["net"], sep="/")
    before = flatten_dict(encoder.variables["net"]["params"], sep="/")
    moved = {name for name, leaf in trained.items() if not np.array_equal(leaf, before.get(name))}
    layers = [f"Block_{i}/lora_{layer}" for i in range(2) for layer in ("qkv", "attention_out")]
    assert moved == {f"{layer}/{name}" for layer in layers for name in ("down", "up")}


@pytest.mark.long
def test_loaded_and_exported_weights_contain_the_merged_lora_adapters(adapted, tmp_path):
    run = adapted[1]
    merged, trained = load.load_pretrained(run), checkpoint.restore_arrays(run).state["params"]
    settings = config.read_config(run)
    encoder = build(settings, 1297).method.encoder
    x = merged.inputs.prepare(IMAGES)
    expected = encoder.net.apply({"params": trained["net"]}, x, train=False)
    kernel = trained["net"]["Block_0"]["qkv"]["kernel"]
    assert not np.array_equal(merged.variables["net"]["params"]["Block_0"]["qkv"]["kernel"], kernel)
    for path in (run, export(run, ["safetensors"], out=tmp_path)[0]):
        apply, variables, _ = jaxssl.load_encoder(path)
        np.testing.assert_allclose(apply(variables, x), expected, rtol=1e-4, atol=1e-5)


PARTS = {"optim.freeze_blocks": "1", "optim.layer_decay": "0.5", "optim.backbone_lr": "0.5"}


@pytest.mark.parametrize("changes", [None, pytest.param(PARTS, marks=pytest.mark.long)])
def test_run_that_trains_parts_of_a_network_resumes_bit_for_bit(adapted, tmp_path, changes):
    settings, whole = config.read_config(adapted[1]), adapted[1]
    if changes is not None:
        settings, whole = vit_settings(init=str(adapted[0]), **changes), tmp_path / "whole"
        pretrain.train(settings, whole)
    assert_resumes(settings, whole, tmp_path / "run")


def test_lora_adapters_for_a_network_without_attention_are_refused(tiny):
    with pytest.raises(UserError, match="optim.lora needs a backbone with attention"):
        started(tiny(**{"optim.lora": "2"}))


@pytest.mark.long
@pytest.mark.parametrize("prefix", ["", "teacher.backbone."])  # of timm and DINO
def test_positions_are_interpolated_as_by_load_encoder_and_reported(prefix, tmp_path):
    path = tmp_path / "vit.safetensors"
    arrays = weights_cases.draw_weights("tiny", 8)
    save_file({f"{prefix}{name}": np.array(x) for name, x in arrays.items()}, path)
    loaded = weights.load(path, size=12, num_heads=2).variables["net"]["params"]["positions"]
    tiny_vit = {"net.patch_size": "2", "net.layers": "1", "augment.size": "12", "init": str(path)}
    _, state, report = started(vit_settings(**tiny_vit), np.zeros((3, 12, 12, 3), np.uint8))
    positions = np.asarray(state.params["net"]["positions"])
    assert positions.shape == (37, 8)
    np.testing.assert_array_equal(positions, loaded)
    assert report["reshaped"] == ["net/params/positions [17, 8] -> [37, 8]"]


def test_matrix_that_is_no_first_layer_of_patches_is_not_adapted_to_other_channels():
    matrix = np.ones((4, 2), np.float32)
    assert _fit("net/params/patches/kernel", matrix, (2, 2), None, 3, 1, "timm") is matrix


def test_means_in_another_order_of_channels_differ_and_equal_means_of_channels_do_not():
    rgb, bgr = (Inputs(8, 3, mean=mean) for mean in ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1)))
    assert _settings(None, rgb) != _settings(None, bgr)
    assert _settings(None, Inputs(8, 3, mean=(0.5,) * 3)) == _settings(None, Inputs(8, 1))


def test_first_kernel_for_more_channels_repeats_the_channels_with_the_same_sum():
    kernel = np.random.default_rng(0).standard_normal((3, 3, 3, 2), np.float32)
    adapted = adapt_channels(kernel, 6)
    np.testing.assert_allclose(adapted.sum(2), kernel.sum(2), rtol=1e-5)
    np.testing.assert_array_equal(adapted[:, :, 4], kernel[:, :, 1] * np.float32(0.5))


UNFIT = "do not fit the networks.*net/params/BatchNorm_1/bias.*--config"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net.widths": "(4, 16)"}, UNFIT),
        ({"net.widths": "(4, 16)"}, r"weights is .*'--config.net.widths=.4, 8.'"),
        ({"net.widths": "(4, 8, 8)", "net.strides": "(2, 2, 1)"}, "_2/.* is missing"),
        ({"init_projector": "True", "head.proj_output_dim": "4"}, "do not fit.*projector/params"),
        ({"init": "nowhere"}, "nowhere"),
    ],
)
def test_weights_that_do_not_fit_the_network_are_refused_in_one_line(tiny, whole, changes, message):
    with pytest.raises(UserError, match=message) as error:
        started(tiny(**{"init": str(whole), **changes}))
    assert "\n" not in str(error.value)


def test_smaller_network_loads_its_layers_and_ignores_the_others(tiny, whole):
    changes = {"init": str(whole), "net.widths": "(4,)", "net.strides": "(2,)"}
    assert any("Conv_1" in name for name in started(tiny(**changes))[2]["extra"])


def test_init_projector_is_refused_for_a_weights_file_without_a_projector(tiny, whole, tmp_path):
    path, _ = export(whole, ["safetensors"], out=tmp_path)
    with pytest.raises(UserError, match="has no projector; set init_projector=False"):
        started(tiny(init=str(path), init_projector="True"))


def test_number_of_heads_in_the_header_of_an_exported_file_is_kept(monkeypatch):
    seen = {}
    monkeypatch.setattr(weights, "load", lambda path, **options: seen.update(options))
    settings = config.load(DIGITS, [("net.name", "vit"), ("net.num_heads", "2"), ("init", "x.pth")])
    load_init(settings)
    assert seen["fallback"]["num_heads"] == 2 and "num_heads" not in seen

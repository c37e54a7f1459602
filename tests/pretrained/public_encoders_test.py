"""Public encoders: features equal those of torchvision, timm, transformers and open_clip.

The reference features are those of tiny networks with weights that NumPy draws here again. See
golden/README.md and benchmarks/public_encoders.py.
"""

import json
import logging
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except
from safetensors.numpy import save_file
from weights_cases import draw_arrays, refused

import jaxssl
from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.pretrained import architecture, folders, names, parameter_names, timm_format
from jaxssl.pretrained.export import export
from jaxssl.pretrained.load import load_pretrained

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "encoders.npz")
CASES = json.loads(str(GOLDEN["cases"]))
# These ResNets have their usual widths, because timm has no narrow ones.
# Cases of `make test`: each library, and each kind of network.
KEPT = {"timm_siglip", "timm_dinov3", "timm_resnet18d", "timm_deit_distilled", "timm_convnextv2"}
KEPT |= {"torchvision_vit", "transformers_mae", "transformers_dinov2_smaller", "openai_clip"}
KEPT |= {"transformers_resnet", "open_clip_resnet50", "torchvision_convnext"}
VIT = "timm_dinov2"


def write_folder(folder, case, shards=1, **files):
    """Write the weights of a reference case as transformers does, with JSON files beside them."""
    folder.mkdir(exist_ok=True)
    arrays = sorted(draw_arrays(CASES[case]["shapes"]).items())
    if shards == 1:
        save_file(dict(arrays), folder / "model.safetensors")
    else:
        index = {}
        for i in range(shards):
            name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            save_file(dict(arrays[i::shards]), folder / name)
            index |= {key: name for key, _ in arrays[i::shards]}
        files["model.safetensors.index"] = {"weight_map": index}
    for name, content in {**CASES[case]["files"], **files}.items():
        (folder / f"{name.removesuffix('.json')}.json").write_text(json.dumps(content))
    return folder


def assert_features_equal(path, case):
    apply, variables, _ = jaxssl.load_encoder(path, **CASES[case]["options"])
    size, expected = CASES[case]["size"], GOLDEN[f"{case}/features"]
    x = np.random.default_rng(1).standard_normal((2, 3, size, size), np.float32)
    actual = jax.jit(apply)(variables, x.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", long_except(KEPT, CASES))
def test_features_of_public_architectures_match_those_of_their_libraries(case, tmp_path):
    assert_features_equal(write_folder(tmp_path / "x", case), case)


@pytest.mark.parametrize(
    ("case", "mean", "crop", "interpolation"),
    [
        ("transformers_dinov2", 0.485, 0.875, "bicubic"),
        ("transformers_dinov2_registers_swiglu_smaller", 0.485, 0.875, "bicubic"),
        ("transformers_vit", 0.5, 0.0, "bilinear"),
        ("transformers_clip", 0.48145466, 1.0, "bicubic"),
        ("transformers_siglip", 0.5, 0.0, "bicubic"),
    ],
)
def test_file_without_json_files_has_the_image_settings_of_its_project(
    case, mean, crop, interpolation, tmp_path, caplog
):
    path = tmp_path / "x.safetensors"
    save_file(draw_arrays(CASES[case]["shapes"]), path)
    inputs = load_pretrained(path, num_heads=2).inputs
    assert (inputs.mean[0], inputs.crop, inputs.interpolation) == (mean, crop, interpolation)
    assert f"crop {crop:g}, {interpolation}, mean {mean:g}" in caplog.text


def test_sharded_folder_is_read_and_a_missing_shard_is_named(tmp_path):
    folder = write_folder(tmp_path / "vit-1-of-3.v2", VIT, shards=3)
    assert_features_equal(folder, VIT)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="'model-00002-of-00003.safetensors', .* is missing"):
        jaxssl.load_encoder(folder)
    for files, message in (
        ({"a": "../secret.safetensors"}, "outside the folder"),
        ({}, "index.json must have a weight_map"),
        (["model.safetensors"], "index.json must have a weight_map"),
    ):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        with pytest.raises(UserError, match=message):
            jaxssl.load_encoder(folder)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the Hugging Face Hub with the repository "owner/vit"."""
    folder = write_folder(tmp_path / "hub", VIT, shards=2)
    (folder / "pytorch_model.bin").write_bytes(b"")

    def check(name, revision, known=(None, "v1")):
        if name != "owner/vit" or revision not in known:
            logging.getLogger("huggingface_hub.utils").warning("retrying")
            raise ConnectionError("no\nroute to the hub")

    def list_repo_files(name, revision):
        check(name, revision, (None, "v1", "half"))
        return [path.name for path in folder.iterdir()]

    def snapshot_download(name, revision, allow_patterns=(), local_files_only=False):
        if local_files_only and revision in ("cached", "half"):
            return str(folder)
        check(name, revision)
        for path in folder.iterdir():
            if not any(path.match(pattern) for pattern in allow_patterns):
                path.unlink()
        return str(folder)

    fake = SimpleNamespace(list_repo_files=list_repo_files, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return folder


@pytest.mark.parametrize("revision", ["", "@v1"])
def test_hub_download_leaves_out_files_that_are_not_needed(hub, revision):
    assert_features_equal(f"hf://owner/vit{revision}", VIT)
    assert not (hub / "pytorch_model.bin").exists()


def test_repository_in_the_cache_is_used_without_a_network(hub):
    assert_features_equal("hf://owner/vit@cached", VIT)
    with refused("cannot be downloaded"):  # Files may be missing after a failed download.
        jaxssl.load_encoder("hf://owner/vit@half")


def test_export_of_a_hub_repository_is_written_to_the_current_folder(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, card = export("hf://owner/vit", ["safetensors"])
    folder = tmp_path / "export"
    assert (path, card) == (folder / "owner-vit.safetensors", folder / "README.md")


def test_hugging_face_hub_errors_are_one_line(hub, monkeypatch, caplog):
    for path, message in (
        ("hf://owner/other", r"hf://owner/other cannot be downloaded \(ConnectionError: no route"),
        ("hf://vit", "hf://vit must be hf://OWNER/NAME"),
        (Path("hf://vit"), "hf://vit must be hf://OWNER/NAME"),  # the path has one slash
    ):
        with refused(message):
            jaxssl.load_encoder(path)
    assert not caplog.records
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install 'jaxssl\\[hub\\]'"):
        jaxssl.load_encoder("hf://owner/vit")


MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
PROCESSOR = {"image_mean": MEAN, "image_std": STD, "resample": 3}


TIMM = {"mean": MEAN, "std": STD, "interpolation": "bilinear", "crop_pct": 0.9}
VIT_CONFIG = {"architecture": "vit", "pretrained_cfg": {**TIMM, "input_size": [3, 24, 24]}}
CLIP = {"preprocess_cfg": {"mean": MEAN, "std": STD, "resize_mode": "squash"}}
CLIP |= {"model_cfg": {"vision_cfg": {"image_size": 24}}}


def processor(**settings):
    return {"preprocessor_config": PROCESSOR | settings}


def test_siglip_can_be_loaded_without_its_attention_pooling(tmp_path):
    folder = write_folder(tmp_path / "x", "transformers_siglip")
    pretrained = load_pretrained(folder, pool="mean", **CASES["transformers_siglip"]["options"])
    assert pretrained.encoder.net.pool == "mean"
    assert "pool" not in pretrained.variables["net"]["params"]


@pytest.mark.parametrize(
    ("files", "crop", "interpolation"),
    [
        (processor(size={"height": 24, "width": 24}), 0.0, "bicubic"),
        (processor(size=32, crop_size=24, do_center_crop=1), 0.75, "bicubic"),
        (processor(size={"shortest_edge": 24}, crop_pct=0.875, resample=2), 0.875, "bilinear"),
        ({"config": VIT_CONFIG}, 0.9, "bilinear"),
        ({"open_clip_config": CLIP}, 0.0, "bicubic"),
    ],
)
def test_preprocessing_settings_in_a_folder_of_weights_are_used(
    files, crop, interpolation, tmp_path
):
    folder = write_folder(tmp_path / "x", VIT, **files)
    wanted = Inputs(24, 3, tuple(MEAN), tuple(STD), crop, interpolation)
    for path in (folder, folder / "model.safetensors"):
        assert jaxssl.pretrained.load.load_pretrained(path).inputs == wanted


def test_config_of_a_weights_folder_sets_what_parameter_names_do_not_tell(tmp_path):
    config = {"num_attention_heads": 4, "layer_norm_eps": 1e-3, "hidden_act": "quick_gelu"}
    folder = write_folder(tmp_path / "x", VIT, config=config)
    net = jaxssl.pretrained.load.load_pretrained(folder).encoder.net
    assert (net.num_heads, net.epsilon, net.activation) == (4, 1e-3, "quick_gelu")
    config["num_hidden_layers"] = 3  # The config asks for more blocks than the file has.
    with pytest.raises(UserError, match="missing: 'blocks.2"):
        jaxssl.load_encoder(write_folder(tmp_path / "x", VIT, config=config))
    config = {"hidden_act": "silu"}
    with pytest.raises(UserError, match="net.activation must be one of .*, got 'silu'"):
        jaxssl.load_encoder(write_folder(tmp_path / "x", VIT, config=config))


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("layers.0.blocks.0.attn.relative_position_bias_table", "Swin or BEiT"),
        ("conv_stem.weight", "EfficientNet"),
        ("blocks.0.attn.proj_l.weight", "CaiT"),
        ("features.denseblock1.denselayer1.norm1.weight", "DenseNet"),
        ("text_model.embeddings.token_embedding.weight", "a text network"),
        ("bert.embeddings.word_embeddings.weight", "a text network"),
    ],
)
def test_error_names_unsupported_public_networks(name, network, tmp_path):
    save_file({name: np.ones((2, 2), np.float32)}, tmp_path / "x.safetensors")
    with refused(f"looks like {network}.*; supported: ResNet, ViT"):
        jaxssl.load_encoder(tmp_path / "x.safetensors")


LAYER = "encoder.layers.encoder_layer"


@pytest.mark.parametrize(
    ("project", "theirs", "common"),
    [
        ("torchvision's ViT", f"{LAYER}_1.mlp.linear_2.bias", "blocks.1.mlp.fc2.bias"),
        ("timm's ViT", "storage_tokens", "reg_token"),
        ("timm's ViT", "blocks.1.11.attn.qkv.bias_mask", "blocks.11.attn.qkv.bias_mask"),
        ("timm's ViT", "blocks.3.mlp.w3.weight", "blocks.3.mlp.fc2.weight"),
        ("timm's ViT", "blocks.3.mlp.w12.weight", "blocks.3.mlp.fc1.weight"),
        ("timm's ViT", "blocks.3.mlp.w2.bias", "blocks.3.mlp.up.bias"),
        ("the authors' ConvNeXt", "downsample_layers.0.1.bias", "stem.1.bias"),
        ("the authors' ConvNeXt", "downsample_layers.2.1.bias", "stages.2.downsample.1.bias"),
        ("the authors' ConvNeXt", "stages.2.7.pwconv2.bias", "stages.2.blocks.7.mlp.fc2.bias"),
        ("the authors' ConvNeXt", "stages.2.7.gamma", "stages.2.blocks.7.gamma"),
    ],
)
def test_parameter_names_of_other_projects_are_mapped_to_those_of_timm(project, theirs, common):
    assert names.translate(names.DIALECTS[project].network, theirs) == common


def test_attention_biases_masked_in_dinov3_checkpoints_become_zero():
    bias, mask = np.arange(6.0), np.array([1.0, 1, 0, 0, 1, 1])
    stored = {"a.attn.qkv.bias": bias, "a.attn.qkv.bias_mask": mask}
    arrays = names.combine({k: names.Stored(x.shape, lambda x=x: x) for k, x in stored.items()})
    np.testing.assert_array_equal(arrays["a.attn.qkv.bias"].load(), bias * mask)
    assert list(arrays) == ["a.attn.qkv.bias"]


def test_damaged_config_json_of_a_weights_folder_raises_a_one_line_error(tmp_path):
    folder = write_folder(tmp_path / "x", VIT)
    for content, message in (
        ("{", "config.json is no JSON file"),
        ("[]", "config.json must hold a JSON object, got list"),
        ('{"vision_config": 3}', "vision_config must be a JSON object, got 3"),
        ('{"pretrained_cfg": [1]}', r"pretrained_cfg must be a JSON object, got \[1\]"),
        (
            '{"input_size": [3, 8, 16]}',
            r"\[channels, height, width\] of a square, got \[3, 8, 16\]",
        ),
        ('{"input_size": null}', "must be .* of a square, got None"),
        ('{"rope_theta": 7}', "rope_theta must be 100, got 7"),
        ('{"downsample_in_bottleneck": true}', "downsample_in_bottleneck must be false, got True"),
    ):
        (folder / "config.json").write_text(content)
        with refused(f"{folder}.*{message}"):
            jaxssl.load_encoder(folder)
    (folder / "config.json").write_text('{"model_args": null, "pretrained_cfg": null}')
    assert folders.read_settings(folder) == folders.EncoderSettings({}, {})
    assert not folders.is_weights_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architecture": "vit_so400m_patch16_siglip_384"}, {"activation": "gelu_tanh"}),
        ({"architecture": "vit_base_patch16_siglip_224"}, {}),
        ({"architecture": "vit_base_patch16_clip_quickgelu_224"}, {"activation": "quick_gelu"}),
        (
            {"model_args": {"num_heads": 12, "act_layer": "quick_gelu"}},
            {"num_heads": 12, "activation": "quick_gelu"},
        ),
        ({"model_args": {"global_pool": "avg"}}, {"pool": "mean"}),
        ({"model_args": {"global_pool": ""}, "global_pool": "avg"}, {}),
        ({"hidden_act": "gelu_new"}, {"activation": "gelu_tanh"}),
        ({"model_type": "vit", "layer_norm_eps": 1e-12}, {"epsilon": 1e-12}),
        ({"model_type": "convnextv2", "layer_norm_eps": 1e-12}, {}),
    ],
)
def test_config_json_sets_heads_pooling_activation_and_epsilon(config, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert folders.read_settings(tmp_path).net == expected
    legacy = {"mean": [0.5] * 3, "std": [0.25] * 3, "crop_pct": 0.9, **config}
    (tmp_path / "config.json").write_text(json.dumps(legacy))
    assert folders.read_settings(tmp_path).inputs["crop"] == 0.9


def test_open_clip_config_with_the_width_of_a_head_sets_the_number_of_heads(tmp_path):
    model = {"vision_cfg": {"width": 1792, "head_width": 112}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    assert folders.read_settings(tmp_path).net == {"num_heads": 16}


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({"size": 256, "resample": None}, {"size": 256, "crop": 0.0}),
        (
            {"size": 256, "do_center_crop": True, "crop_size": {"shortest_edge": 224}},
            {"size": 224, "crop": 0.875},
        ),
        ({"size": 0}, "size must be a positive number, got 0"),
        ({"size": 8, "rescale_factor": 0.00392156862745098}, {"size": 8, "crop": 0.0}),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor must be 1 / 255, got 0.0078"),
        ({"do_rescale": False}, "rescale_factor must be 1 / 255, got 1.0"),
        ({"resample": [2]}, r"resample must be 2 \(bilinear\) or 3 \(bicubic\), got \[2\]"),
    ],
)
def test_image_processor_of_transformers_sets_size_and_crop(processor, expected, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            folders.read_settings(tmp_path)
    else:
        assert folders.read_settings(tmp_path).inputs == expected


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_224", "resnetaa50d", "vit_pe_core_base"])
def test_networks_of_timm_that_the_arrays_do_not_tell_apart_are_refused(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name}))
    with pytest.raises(ValueError, match=f"^timm's {name} is not supported, because of"):
        folders.read_settings(tmp_path)


@pytest.mark.parametrize(
    ("widths", "prefix", "epsilon", "mean"),
    [
        ((96, 192, 384, 768), "", 1e-6, 0.485),
        ((96, 192, 384, 768), "visual.trunk.", 1e-6, 0.48145466),
        ((384, 768, 1536, 3072), "visual.trunk.", 1e-5, 0.48145466),
    ],
)
def test_convnext_of_open_clip_gets_its_epsilon_and_clips_inputs(widths, prefix, epsilon, mean):
    def zeros(*shape):
        return names.Stored(shape, lambda: np.zeros(shape))

    arrays = {"stem.0.weight": zeros(widths[0], 3, 4, 4)}
    for stage, width in enumerate(widths):
        for name in ("conv_dw", "norm"):
            arrays[f"stages.{stage}.blocks.0.{name}.weight"] = zeros(width)
    found = architecture.find_encoder({prefix + name: array for name, array in arrays.items()})
    config, inputs = architecture.infer(found, {}, {})
    net = parameter_names.make_net(config)
    assert (net.widths, net.epsilon, inputs.mean[0]) == (widths, epsilon, mean)
    epsilons = set()

    def note(call, args, kwargs, context):
        epsilons.add(getattr(context.module, "epsilon", epsilon))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        image = jnp.zeros((1, 32, 32, 3))
        jax.eval_shape(partial(net.init, train=False), jax.random.key(0), image)
    assert epsilons == {epsilon}
    assert timm_format.timm_model(net, 32)[1]["norm_eps"] == epsilon


def test_setting_of_another_type_is_an_error_that_names_the_fault():
    with pytest.raises(ValueError, match=r"not take the settings \['dim'\]: '<' not supported"):
        parameter_names.make_net({"name": "vit", "dim": "a"})

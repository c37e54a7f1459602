"""Weights files: features equal PyTorch's, encoders are found in checkpoints, errors are one line.

The reference numbers are those of torchvision and timm on weights that NumPy draws here again;
golden/README.md says how. The `.pth` files there are PyTorch's.
"""

import json
import logging
import struct
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import numpy as jnp
from marks import long_except
from ml_collections import ConfigDict
from safetensors.numpy import save
from weights_cases import GOLDEN, NETS, draw_weights, refused

import jaxssl
from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.models import convnet, convnext, resnet, vit
from jaxssl.pretrained import (
    architecture,
    input_settings,
    load,
    names,
    parameter_names,
    position_tables,
    weights,
)
from jaxssl.pretrained.encoder import make_apply
from jaxssl.pretrained.start import start


def features(backbone, size):
    """Features of the two images of the reference numbers."""
    x = np.random.default_rng(1).standard_normal((2, 3, size, size), np.float32)
    return jax.jit(make_apply(backbone))(backbone.variables["net"], x.transpose(0, 2, 3, 1))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("case", long_except(("resnet18_cifar", "vit_small"), NETS))
def test_features_of_loaded_weights_equal_torchvision_and_timm(case, file):
    size = int(GOLDEN[f"{case}/size"])
    extra = {"classifier.weight": np.ones((2, 2))} if case == "resnet18_solo" else {}
    prefix = "backbone." if case == "resnet18_solo" else ""
    path = file({**{prefix + k: v for k, v in draw_weights(case, size).items()}, **extra})
    backbone = weights.load(path, layers=NETS[case].get("layers"))
    assert backbone.metadata["net"] == NETS[case]
    assert_close(features(backbone, size), GOLDEN[f"{case}/features"])


def test_option_that_the_network_of_a_file_lacks_is_refused(file):
    path = file(draw_weights("resnet18_solo", int(GOLDEN["resnet18_solo/size"])))
    backbone = weights.load(path)
    exported = file(
        weights.public_arrays(backbone), "e.safetensors", "", {"jaxssl": weights.header(backbone)}
    )
    for one in (path, exported):
        with refused(r"holds a resnet\w*, which has no num_heads; leave it out"):
            weights.load(one, num_heads=2)


def test_pytorch_checkpoint_is_read_without_pytorch(checkpoint, caplog):
    with caplog.at_level(logging.INFO, "jaxssl"):
        backbone = weights.load(checkpoint, num_heads=2)
    assert_close(features(backbone, 4), GOLDEN["file/features"])
    expected = draw_weights("tiny", 4)["blocks.0.mlp.fc2.weight"].T  # stored as bfloat16
    kernel = backbone.variables["net"]["params"]["Block_0"]["mlp_out"]["kernel"]
    np.testing.assert_allclose(kernel, expected, rtol=2**-8)
    assert {leaf.dtype for leaf in jax.tree.leaves(backbone.variables)} == {np.dtype(np.float32)}
    line, _ = caplog.messages
    assert "at 'teacher.module.backbone.'" in line and "ignored: " in line and "head" in line


def test_every_parameter_array_of_a_network_has_one_public_name():
    for module in (
        convnet.net(widths=(4, 6), strides=(1, 2)),
        resnet.ResNet((2, 1), bottleneck=False, stem="imagenet", width=4),
        resnet.ResNet((1, 2), bottleneck=True, stem="cifar_wide", width=4),
        vit.net(dim=8, layers=2, num_heads=2, patch_size=4),
        vit.net(dim=8, layers=1, num_heads=2, patch_size=4, positions="learned"),
        vit.net(dim=8, layers=1, num_heads=2, patch_size=4, positions="rotary", registers=2),
        vit.net(
            **dict(dim=8, layers=1, num_heads=2, patch_size=4, class_token=False, pre_norm=True),
            **dict(pool="attention", layer_scale=True, activation="swiglu", projection=3),
        ),
        convnext.net(depths=(1, 2), widths=(4, 6)),
        resnet.ResNet((1, 2), True, "deep", width=4, groups=2, pooled_shortcut=True),
    ):
        image = jnp.zeros((1, 8, 8, 3))
        tree = jax.eval_shape(partial(module.init, train=False), jax.random.key(0), image)
        leaves = [tuple(k.key for k in path) for path, _ in jax.tree.leaves_with_path(dict(tree))]
        table = parameter_names.entries(module, tree)
        assert sorted(entry.path for entry in table) == sorted(leaves)
        assert len({entry.name for entry in table}) == len(table)


class Shape(NamedTuple):
    shape: tuple[int, ...] = (1,)


def nested(*keys, value=None):
    for key in reversed(keys):
        value = {key: {"layer1.0.conv1.weight": Shape()} if value is None else value}
    return value


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"layer1.0.conv1.weight": Shape(), "fc.weight": Shape()}, ""),
        (nested("state_dict"), "state_dict."),
        (nested("model"), "model."),
        (nested("model_state"), "model_state."),
        ({**nested("student"), **nested("teacher", "module.backbone")}, "teacher.module.backbone."),
        (nested("student", "module.backbone"), "student.module.backbone."),
        (
            nested("state_dict", "module.momentum_encoder")
            | {"arch": "r", "state_dict": {"module.base_encoder.layer1.0.conv1.weight": Shape()}},
            "state_dict.module.base_encoder.",
        ),
        (
            {"state_dict": {f"module.encoder_{x}.layer1.0.conv1.weight": Shape() for x in "kq"}},
            "state_dict.module.encoder_q.",
        ),
        (
            {f"{x}.layer1.0.conv1.weight": Shape() for x in ("momentum_backbone", "backbone")},
            "backbone.",
        ),
        ({**nested("ema_model"), **nested("model")}, "model."),
        ({**nested("key_encoder"), **nested("query_encoder")}, "query_encoder."),
        (nested("net"), "net."),
        ({"teacher": {"backbone.patch_embed.proj.weight": Shape()}}, "teacher.backbone."),
    ],
)
def test_encoder_is_located_under_the_prefixes_of_public_checkpoints(tree, place):
    encoder = architecture.find_encoder(architecture.flatten(tree, lambda x: x))
    assert encoder.prefix == place
    assert len(encoder.arrays) == 1


def described(arrays, place="", others=(), **options):
    project = "timm's ViT" if "pos_embed" in arrays else "torchvision's ResNet"
    stored = {k: names.Stored(x.shape, lambda x=x: x) for k, x in arrays.items()}
    encoder = architecture.EncoderArrays(stored, place, list(others), names.DIALECTS[project])
    return architecture.infer(encoder, options, {})


def small_vit(dim, grid=2, zero=0.0, learned=False):
    positions = np.concatenate([np.full((1, dim), zero), vit.sine_positions(grid, grid, dim)])[None]
    arrays = {"patch_embed.proj.weight": np.zeros((dim, 3, 16, 16), np.float32)}
    arrays |= {"cls_token": np.zeros((1, 1, dim)), "blocks.0.norm1.bias": np.zeros(dim)}
    return arrays | {"pos_embed": positions + 0.01 * learned}


def test_fallback_settings_apply_only_where_the_arrays_do_not_tell():
    stored = {k: names.Stored(x.shape, lambda x=x: x) for k, x in small_vit(192).items()}
    encoder = architecture.EncoderArrays(stored, "", [], names.DIALECTS["timm's ViT"])
    net, _ = architecture.infer(encoder, {}, {"layers": 6, "num_heads": 2, "depth": 50})
    assert net["layers"] == 1 and net["num_heads"] == 2 and "depth" not in net


@pytest.mark.parametrize(
    ("dim", "rotary", "heads"), [(1280, True, 20), (4096, True, 32), (1536, False, 16)]
)
def test_dinov3_and_siglips_giant_have_their_own_numbers_of_heads(dim, rotary, heads):
    arrays = small_vit(dim, learned=True)
    if rotary:
        arrays["reg_token"] = np.zeros((1, 4, dim))
        del arrays["pos_embed"]
    else:
        arrays["pos_embed"] = arrays["pos_embed"][:, 1:]
        del arrays["cls_token"]
    stored = {k: names.Stored(x.shape, lambda x=x: x) for k, x in arrays.items()}
    encoder = architecture.EncoderArrays(stored, "", [], names.DIALECTS["timm's ViT"])
    assert architecture.infer(encoder, {"layers": 1}, {})[0]["num_heads"] == heads
    if rotary:
        del stored["reg_token"]
        with pytest.raises(ValueError, match="a ViT without pos_embed and reg_token"):
            architecture.infer(encoder, {"layers": 1}, {})


@pytest.mark.parametrize(
    ("dim", "place", "learned", "heads"),
    [
        (192, "", True, 3),
        (384, "teacher.backbone.", True, 6),
        (768, "", True, 12),
        (1280, "", True, 16),
        (384, "state_dict.module.base_encoder.", True, 6),
        (384, "backbone.", False, 12),
        (768, "module.base_encoder.", False, 12),
    ],
)
def test_heads_and_resizing_of_a_vit_are_inferred_from_weights(dim, place, learned, heads):
    """MoCo-v3's code resizes bilinearly, and its small ViT has 12 heads."""
    net, inputs = described(small_vit(dim, learned=learned), place, layers=1)
    assert net["num_heads"] == heads
    assert net["positions"] == ("learned" if learned else "fixed")
    assert described(small_vit(dim), place, num_heads=2, layers=1)[0]["num_heads"] == 2
    imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 0.875
    assert inputs == Inputs(32, 3, *imagenet, "bicubic" if learned else "bilinear")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_fixed_positions_are_recognised_in_half_precision(dtype):
    stored = {name: array.astype(dtype) for name, array in small_vit(384, grid=14).items()}
    assert described(stored, layers=1)[0]["positions"] == "fixed"
    learned = small_vit(384, grid=14, learned=True)
    stored = {name: array.astype(dtype) for name, array in learned.items()}
    assert described(stored, layers=1)[0]["positions"] == "learned"


def test_torchvision_positions_are_resized_from_corner_to_corner():
    """torch.nn.functional.interpolate, bicubic, with align_corners=True."""
    matrix = position_tables._resampling(5, 3, antialias=False, offset=None)
    between = [0.5, 0.59375, -0.09375]
    expected = [[1, 0, 0], between, [0, 1, 0], between[::-1], [0, 0, 1]]
    np.testing.assert_array_equal(matrix, expected)


def test_positions_of_mae_with_its_decoder_are_resized_without_smoothing():
    net, of_timm = vit.net(dim=8, layers=1, num_heads=2, patch_size=4), names.DIALECTS["timm's ViT"]
    for others, rule in (
        ([], "timm"),
        (["mask_token"], "dino"),
        (["mask_token", "decoder_embed.weight"], "torch"),
    ):
        encoder = architecture.EncoderArrays({}, "", others, of_timm)
        assert position_tables._rule(encoder, net) == rule


def test_vit_positions_are_fixed_only_if_the_class_token_position_is_zero():
    assert described(small_vit(64, zero=5e-5))[0]["positions"] == "fixed"
    assert described(small_vit(64, zero=2e-4))[0]["positions"] == "learned"


def test_resnet_with_a_3x3_stem_gets_cifar_inputs_and_the_padding_of_solo_learn():
    arrays = {f"layer{s}.{i}.conv1.weight": Shape() for s in (1, 2, 3, 4) for i in (0, 1)}
    small = arrays | {"conv1.weight": Shape((64, 3, 3, 3))}
    net, inputs = described(small)
    assert net["stem"] == "cifar"
    assert inputs == Inputs(32, 3, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert described(small, stem="cifar_wide")[0]["stem"] == "cifar_wide"
    solo = described(small, "state_dict.backbone.", ["state_dict.classifier.weight"])
    assert solo[0]["stem"] == "cifar_wide"
    net, inputs = described(arrays | {"conv1.weight": Shape((64, 1, 7, 7))})
    assert net["stem"] == "imagenet"
    assert inputs == Inputs(224, 1, (0.449,), (0.226,), 0.875)


def test_incomplete_checkpoint_is_not_read_as_a_smaller_network(file):
    arrays = draw_weights("vit_tiny", 224)
    gap = {name.replace("blocks.2.", "blocks.7."): array for name, array in arrays.items()}
    with pytest.raises(UserError, match="missing: 'blocks.2.*unknown: 'blocks.7."):
        weights.load(file(gap), layers=3)
    with pytest.raises(UserError, match="is part 1 of 3 of a checkpoint; give the folder"):
        weights.load(file(arrays, "model-00001-of-00003.safetensors"))
    weights.load(file(arrays, "model-00001-of-00001.safetensors"), layers=3)


def test_error_lists_missing_unknown_and_misshapen_arrays(file):
    arrays = dict(draw_weights("resnet", 8))
    moved = arrays.pop("layer2.1.bn2.running_var")
    wrong = arrays | {"layer2.1.bn3.running_var": moved, "layer4.0.conv1.weight": moved}
    for name in ("a", "b", "c", "d"):
        wrong[f"layer1.0.{name}"] = moved
    with pytest.raises(UserError) as error:
        weights.load(file(wrong, prefix="module.encoder_q."))
    message = str(error.value)
    assert "1 missing: 'layer2.1.bn2.running_var'" in message
    assert "5 unknown: 'layer1.0.a', 'layer1.0.b', 'layer1.0.c' and 2 more" in message
    assert "'layer4.0.conv1.weight [8], expected [32, 16, 3, 3]'" in message
    assert "\n" not in message


def exported_file(file, change):
    """A file of `jaxssl export` with a changed header."""
    backbone = weights.load(file(draw_weights("resnet", 8), "theirs.safetensors"))
    header = change(json.loads(weights.header(backbone)))
    text = header if isinstance(header, str) else json.dumps(header)
    return file(weights.public_arrays(backbone), metadata={"jaxssl": text})


@pytest.mark.parametrize(
    "change",
    [
        lambda header: "no json",
        lambda header: "[]",
        lambda header: header | {"version": 99},
        lambda header: header | {"net": {"name": "resnet", "depth": 19}},
        lambda header: header | {"net": {"name": "resnet", "deep": 18}},
        lambda header: header | {"net": {"name": "vit", "layers": 10**9}},
        lambda header: header | {"net": {"name": "other"}},
        lambda header: header | {"net": 3},
        lambda header: header | {"precision": "float8"},
        lambda header: header | {"inputs": header["inputs"] | {"size": 10**9}},
        lambda header: header | {"inputs": header["inputs"] | {"mean": [0.0, 1.0]}},
        lambda header: header | {"inputs": header["inputs"] | {"std": [0.5, 0.5, 0.0]}},
        lambda header: header | {"inputs": {"size": "x"}},
    ],
)
def test_invalid_header_of_an_exported_file_raises_a_one_line_error(change, file):
    with refused(r"x\.safetensors"):
        weights.load(exported_file(file, change))


def test_header_without_a_rule_for_positions_means_that_of_timm_and_others_must_be_known(file):
    arrays = draw_weights("tiny", 8)
    path = file(arrays, "theirs.safetensors", "teacher.backbone.")
    header = json.loads(weights.header(weights.load(path, num_heads=2)))
    assert header["positions"] == "dino"
    read = {}
    for rule in ("timm", None, "din", ["timm"]):
        text = json.dumps({**header, "positions": rule})
        path = file(arrays, metadata={"jaxssl": text})
        if rule in ("din", ["timm"]):
            with refused(
                "positions in the header must be one of timm, torch, dino, torchvision, got"
            ):
                weights.load(path, size=4)
        else:
            read[rule] = weights.load(path, size=4).variables
    jax.tree.map(np.testing.assert_array_equal, read["timm"], read[None])


def resnet_with(**changes):
    """A small ResNet with other arrays. A change of None drops all arrays of that beginning."""
    arrays = dict(draw_weights("resnet", 8))
    for name, value in changes.items():
        arrays = {key: array for key, array in arrays.items() if not key.startswith(name)}
        arrays |= {} if value is None else {name: value}
    return arrays


def filled(value, *shape):
    return np.full(shape, value, np.float32)


LARGE = {"conv1.weight": {"dtype": "F32", "shape": [2**29, 2**29], "data_offsets": [0, 2**60]}}
LARGE = json.dumps(LARGE).encode()
LARGE = struct.pack("<Q", len(LARGE)) + LARGE + bytes(64)
NOT_FINITE = r"x.safetensors: params/BatchNorm_0/scale has values that are not finite"
REFUSED = {
    "a classifier": (lambda: {"fc.weight": filled(1, 2, 3)}, r"got fc.weight \[2, 3\]"),
    "a text tower": (lambda: {"token_embedding.weight": filled(1, 9, 8)}, "like a text network"),
    "no file of weights": (lambda: b"my weights", "no weights file"),
    "nothing": (lambda: b"", "is empty"),
    "lfs": (lambda: b"version https://git-lfs.github.com/spec/v1", "fetch the file: git lfs pull"),
    "a header of 2^60 bytes": (lambda: struct.pack("<Q", 2**60) + b"{}", "damaged, cut off"),
    "an array of 2^60 bytes": (lambda: LARGE, "damaged, cut off"),
    "an end that is cut off": (lambda: save(resnet_with())[:-4], "damaged, cut off"),
    "no first block": (lambda: resnet_with(**{"layer1.0.conv1": None}), r"got bn1.bias \[4\]"),
    "no third stage": (
        lambda: resnet_with(layer3=None),
        r"a ResNet must be one of 18, 26, 34, 50, 101, 152, got \[2, 2, 2\] basic",
    ),
    "a quarter of a ViT": (
        lambda: draw_weights("vit_tiny", 224),
        "3 blocks, but a ViT of width 192 usually has 12",
    ),
    "transposed convolutions": (
        lambda: {k: v.T if v.ndim == 4 else v for k, v in resnet_with().items()},
        r"conv1.weight has shape \[3, 3, 3, 4\]; expected \[out, 1 or 3, side, side\]",
    ),
    "5 x 5 kernels": (
        lambda: resnet_with(**{"conv1.weight": filled(0, 4, 3, 5, 5)}),
        "conv1.weight must be 3 x 3 or 7 x 7, got 5 x 5",
    ),
    "float8": (
        lambda: resnet_with(**{"bn1.weight": np.ones(4, ml_dtypes.float8_e4m3fn)}),
        "x.safetensors cannot be read: the array bn1.weight .* got F8_E4M3; convert it to bf",
    ),
    "NaN": (lambda: resnet_with(**{"bn1.weight": filled(np.nan, 4)}), NOT_FINITE),
    "float64 above float32": (lambda: resnet_with(**{"bn1.weight": np.full(4, 1e300)}), NOT_FINITE),
    "a negative variance": (
        lambda: resnet_with(**{"bn1.running_var": filled(-1, 4)}),
        "batch_stats/BatchNorm_0/var has a negative variance",
    ),
    "heads of any number": (
        lambda: draw_weights("tiny", 4),
        "num_heads cannot be inferred for a ViT of width 8",
    ),
    "no grid of positions": (
        lambda: draw_weights("tiny", 4) | {"pos_embed": filled(0, 1, 3, 8)},
        r"pos_embed has shape \[1, 3, 8\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_incomplete_and_hostile_weights_are_refused_in_one_line(case, file):
    make, message = REFUSED[case]
    path, untouched = file(make(), "x.safetensors"), cast(Any, (None,) * 3)
    config = ConfigDict({"init": str(path), "net": {}})
    for read in (lambda: jaxssl.load_encoder(path), lambda: start(config, *untouched)):
        with refused(message):
            read()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pth", "No such file"),
        ("x.json", "a weights file must end with one of .safetensors"),
        ("folder", "holds no checkpoint"),
        ("folder.pth", "holds no checkpoint"),
    ],
)
def test_path_without_weights_is_refused_in_one_line(name, message, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    for folder in ("folder", "folder.pth"):
        (tmp_path / folder).mkdir()
    with refused(message):
        jaxssl.load_encoder(tmp_path / name)


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16])
def test_weights_of_any_float_dtype_become_float32(dtype, file):
    arrays = {name: array.astype(dtype) for name, array in resnet_with().items()}
    expected = {name: array.astype(np.float32) for name, array in arrays.items()}
    ours = weights.public_arrays(weights.load(file(arrays)))
    assert {array.dtype for array in ours.values()} == {np.dtype(np.float32)}
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_load_encoder_arguments_override_the_inferred_preprocessing(file):
    path = file(draw_weights("resnet", 8))
    with refused("'crops' is no option of a weights file; did you mean 'crop'"):
        weights.load(path, crops=0.9)
    for std in ((0.5, 0.25, 1), np.array([0.5, 0.25, 1]), jnp.array([0.5, 0.25, 1])):
        inputs = weights.load(path, mean=0.5, std=std, crop=0.9, size=48).inputs
        assert inputs == Inputs(48, 3, (0.5,), (0.5, 0.25, 1.0), 0.9)
    inputs = weights.load(path, std=[0.5], interpolation="bicubic").inputs
    assert inputs == Inputs(32, 3, architecture.CIFAR["mean"], (0.5,), None, "bicubic")
    ours = exported_file(file, lambda header: header)
    _, _, preprocess = jaxssl.load_encoder(ours, mean=0.0, std=1.0, size=8)
    x = preprocess(jnp.full((1, 8, 8, 3), 51, jnp.uint8))
    np.testing.assert_allclose(x, np.full((1, 8, 8, 3), 0.2), rtol=1e-6)


def test_settings_out_of_range_or_of_another_type_are_rejected(file):
    path, numbers = file(draw_weights("resnet", 8)), "must be a number or 3 in"
    wrong = {
        "mean": [numbers, 127.5, (0.5, 0.5), "0.5", float("nan"), ()],
        "std": [numbers, 0, -0.5, [0.5, 0.5, 0.0]],
        "crop": ["must be a number in", 90, (0.9, 0.9), True],
        "interpolation": ["must be one of bilinear, bicubic", "nearest", ["bicubic"]],
        "size": ["must be an int from 1 to 32768", 0, 32769, 32.0, True],
        "num_heads": ["must be a whole number", 6.0, "6", True],
        "layers": ["must be a whole number", 12.0, [12]],
    }
    for name, (message, *values) in wrong.items():
        for value in values:
            # The message is one line.
            with pytest.raises(UserError, match=rf"^{name} {message}.*\Z"):
                weights.load(path, **{name: value})


@pytest.mark.parametrize("net", [
    convnext.net(depths=(1, 1000), widths=(4, 8)),
    vit.net(dim=8, layers=1001, num_heads=2),
    convnet.net(widths=(4,) * 1001, strides=(1,) * 1001),
])  # fmt: skip
def test_network_with_more_layers_than_the_limit_is_refused(net):
    with pytest.raises(ValueError, match="the network must have at most 1000 layers, got 1001"):
        input_settings.check_limits(net, 32)


def test_vit_image_size_must_fit_positions_and_patches(file):
    path = file(draw_weights("tiny", 4))
    assert weights.load(path, num_heads=2, size=4, crop=0).inputs.size == 4
    assert weights.load(path, num_heads=2, size=8).inputs.size == 8
    with pytest.raises(UserError, match="a multiple of the network's patches of 2 pixels, got 7"):
        weights.load(path, num_heads=2, size=7)
    net, inputs = described(small_vit(8), num_heads=2)
    assert input_settings.override(inputs, parameter_names.make_net(net), size=48).size == 48
    with pytest.raises(UserError, match="a multiple of the network's patches of 16 pixels, got 40"):
        input_settings.override(inputs, parameter_names.make_net(net), size=40)


def test_commands_take_the_settings_that_a_weights_file_does_not_hold(file, run_command, tmp_path):
    path, pictures = file(draw_weights("tiny", 8)), tmp_path / "pictures.npy"
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    np.save(pictures, images)
    options = ("--config.net.num_heads=2", "--config.inputs.mean=0.1", "--config.inputs.crop=0")
    out = tmp_path / "out.npy"
    assert run_command("embed", path, pictures, "--out", out, *options)[0] == 0
    encoder = load.load_pretrained(path, num_heads=2, mean=0.1, crop=0)
    np.testing.assert_array_equal(np.load(out), jaxssl.embed(encoder, images))
    exported = ("export", path, "--to", "safetensors", "--out", tmp_path / "exported", *options)
    assert run_command(*exported)[0] == 0
    (again,) = (tmp_path / "exported").glob("*.safetensors")
    assert load.load_pretrained(again).inputs == encoder.inputs
    page = tmp_path / "page.html"
    assert run_command("neighbours", path, pictures, "--out", page, *options)[0] == 0

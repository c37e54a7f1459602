"""Exported files give the features of the run in JAX and PyTorch; the model card describes them."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import numpy as np
import pytest
import safetensors
import weights_cases
from jax import export as programs
from marks import long_except
from safetensors.numpy import save_file
from weights_cases import refused

import jaxssl
from jaxssl.augment.views import Inputs
from jaxssl.errors import UserError
from jaxssl.models import encoder, resnet, vit
from jaxssl.pretrained import load, model_card, timm_format, weights
from jaxssl.pretrained.encoder import make_encode
from jaxssl.pretrained.export import FORMATS, export
from jaxssl.training import config
from jaxssl.training.config.method import make_networks
from jaxssl.training.workdir import checkpoint

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "configs" / "digits.py"
SIZE = 8
SMALL = {"augment.size": str(SIZE), "head.proj_hidden_dim": "4", "head.proj_output_dim": "4"}
VIT = {"name": "vit", "dim": "8", "layers": "2", "num_heads": "2", "patch_size": "4"}
NETS = {
    "convnet": {"name": "convnet", "widths": "(4, 8)", "strides": "(2, 2)"},
    "resnet": {"name": "resnet", "depth": "18", "stem": "cifar"},
    "vit": {**VIT, "pool": "mean"},
    "vit_learned": {**VIT, "positions": "learned", "frozen_patches": "False"},
}
ROW = {"protocol": "knn", "metric": "knn_top1", "value": 71.25, "std": None, "unit": "%"}
ROW |= {"details": {"preset": "moco_v3"}, "features": "pretrained", "layer": "backbone"}
ROW |= {"checkpoint": "last", "dataset": "digits", "bank": "train", "split": "test", "seed": 3}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 1), np.uint8)


def drawn(rng, leaf):
    """Draw a leaf; vectors are positive, as variances must be."""
    x = rng.standard_normal(leaf.shape, np.float32)
    if x.ndim == 1:
        return 0.5 + np.abs(x)
    return x * np.float32((2 / np.prod(leaf.shape[:-1])) ** 0.5)


def make_run(workdir, name):
    """Write a run with checkpoints of steps 5 and 9."""
    net = {f"net.{key}": value for key, value in NETS[name].items()}
    settings = config.load(DIGITS, list({**SMALL, **net}.items()))
    networks = make_networks(settings)
    images = jax.ShapeDtypeStruct((2, 2, SIZE, SIZE, 1), np.float32)
    shapes = jax.eval_shape(lambda x: encoder.init(networks, jax.random.key(0), [x])[:2], images)
    saved = checkpoint.Manager(workdir)
    for step, knn in ((5, 90.0), (9, 80.0)):
        draw = partial(drawn, np.random.default_rng(step))
        params, stats = jax.tree.map(draw, shapes)
        state = {"params": params, "carried": {"batch_stats": stats}}
        saved.save(step, state, {"num_examples": 9}, settings.to_dict(), knn)
    saved.close()
    (workdir / "config.json").write_text(json.dumps(settings.to_dict()))
    row = ROW | {"source": workdir.name}
    rows = [row | {"step": step, "value": value} for step, value in ((5, 11.5), (9, 71.25))]
    (workdir / "results.json").write_text(json.dumps({"results": rows}))
    return workdir


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function from a network's name to the workdir of its run."""
    workdirs = {}

    def run(name):
        if name not in workdirs:
            workdirs[name] = make_run(tmp_path_factory.mktemp("runs") / name, name)
        return workdirs[name]

    return run


def images_to_features(path, step=None):
    apply, variables, preprocess = jaxssl.load_encoder(path, step)
    return np.asarray(jax.jit(lambda v, x: apply(v, preprocess(x)))(variables, IMAGES))


# hub_test.py also exports and loads public encoders of all kinds.
@pytest.mark.parametrize("name", ["convnet", "vit"])
def test_exported_file_loads_as_the_encoder_of_the_run(name, runs, tmp_path):
    path, card = export(runs(name), ["safetensors"], out=tmp_path / "new" / "out")
    assert (path.name, card.name) == (f"{name}-9.safetensors", "README.md")
    path = path.rename(tmp_path / path.name)
    ours, theirs = load.load_pretrained(runs(name)), load.load_pretrained(path)
    same = jax.tree.map(np.array_equal, ours.variables["net"], theirs.variables["net"])
    assert jax.tree.all(same) and theirs.encoder.net == ours.encoder.net
    assert theirs.inputs == ours.inputs
    assert {"step": 9, "checkpoint": "file", "source": path.name}.items() <= theirs.metadata.items()
    assert theirs.metadata["loss"] == ours.metadata["loss"]


def test_flipped_bit_in_an_exported_file_is_detected(runs, tmp_path):
    path, _ = export(runs("vit_learned"), ["safetensors"], out=tmp_path)
    whole = path.read_bytes()
    for place in (len(whole) - 4, whole.index(b"0.5") + 2):  # bytes of an array and of the header
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UserError, match="the parameters do not match the digest"):
            weights.load(path)


def test_digest_of_an_exported_file_is_checked_before_positions_are_interpolated(runs, tmp_path):
    path, _ = export(runs("vit_learned"), ["safetensors"], out=tmp_path)
    assert weights.load(path, size=2 * SIZE).inputs.size == 2 * SIZE


def test_export_does_not_replace_files_of_its_source(runs, tmp_path):
    run = runs("vit_learned")
    with refused("would be written into the source .*; choose another --out"):
        export(run, ["safetensors"], out=run)
    path, _ = export(run, ["safetensors"], out=tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with refused("safetensors would be written into the source"):
        export(path, ["safetensors"], out=tmp_path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_export_does_not_replace_files_of_other_projects(runs, tmp_path):
    (tmp_path / "README.md").write_text("my project")
    with refused("README.md is not a model card of jaxssl; choose another --out"):
        export(runs("vit_learned"), ["safetensors"], out=tmp_path)
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "config.json").write_text("{}")
    with refused("config.json would be replaced, and no model card.*choose another --out"):
        export(runs("vit_learned"), ["timm"], out=tmp_path / "timm")
    assert [path.name for path in (tmp_path / "timm").iterdir()] == ["config.json"]
    with refused("is the workdir of a run; choose another --out"):
        export(runs("vit_learned"), ["safetensors"], out=runs("convnet"))
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "timm"}


@pytest.mark.parametrize("distilled", long_except([True], [False, True]))
@pytest.mark.parametrize("registers", long_except([2], [0, 2]))
def test_encoder_prepared_for_timm_has_the_same_features(distilled, registers):
    """In timm, class and distillation tokens beside registers have no positions."""
    net = vit.net(dim=8, layers=1, num_heads=2, patch_size=4, positions="learned",
                  distilled=distilled, registers=registers, frozen_patches=False)  # fmt: skip
    images = np.random.default_rng(1).normal(size=(2, SIZE, SIZE, 3)).astype(np.float32)
    shapes = jax.eval_shape(partial(net.init, train=False), jax.random.key(0), images)
    variables = jax.tree.map(partial(drawn, np.random.default_rng(0)), shapes)
    ours = SimpleNamespace(encoder=SimpleNamespace(net=net), variables={"net": variables})
    ours._replace = lambda **changes: SimpleNamespace(**{**vars(ours), **changes})
    theirs = timm_format.prepare(ours).variables["net"]
    if registers:
        assert not np.any(theirs["params"]["positions"][: net.num_class_tokens])
    expected, actual = (net.apply(x, images, train=False) for x in (variables, theirs))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"pool": "attention"}, "net.pool='attention'"),
        ({"pool": "attention", "class_token": False, "activation": "swiglu"}, "net.pool"),
        ({"pool": "mean", "distilled": True}, "net.distilled=True"),
        ({"distilled": True, "registers": 1}, "net.distilled=True"),
    ],
)
def test_vit_that_timm_computes_in_another_way_is_refused(settings, reason):
    net = vit.net(dim=8, layers=1, num_heads=2, patch_size=4, positions="learned", epsilon=1e-6,
                  frozen_patches=False, **settings)  # fmt: skip
    with pytest.raises(ValueError, match=reason):
        timm_format.timm_model(net, SIZE)


def test_hidden_width_of_a_vit_survives_the_rounding_of_timm():
    for dim, mlp_dim in ((28, 61), (44, 15), (52, 63), (60, 123), (64, 256)):
        net = vit.net(dim=dim, layers=1, num_heads=2, patch_size=4, mlp_dim=mlp_dim, epsilon=1e-6)
        _, arguments = timm_format.timm_model(net, SIZE)
        assert int(dim * arguments["mlp_ratio"]) == mlp_dim


def test_exporting_an_exported_file_gives_equal_arrays(runs, tmp_path):
    path, _ = export(runs("vit_learned"), ["safetensors"], out=tmp_path)
    again, _ = export(path, ["safetensors"])
    assert again.parent == tmp_path / "export"
    same = (weights.public_arrays(load.load_pretrained(p)) for p in (path, again))
    jax.tree.map(np.testing.assert_array_equal, *same)


def test_model_card_does_not_list_the_weights_of_another_checkpoint(runs, tmp_path):
    for name in ("model.safetensors", "vit_learned-8.safetensors", "vit_learned-9.stablehlo"):
        (tmp_path / name).touch()
    path, card = export(runs("vit_learned"), ["safetensors"], out=tmp_path)
    assert path.name == "vit_learned-9.safetensors"
    text = card.read_text()
    assert "vit_learned-9.stablehlo" in text and path.name in text
    assert "model.safetensors" not in text and "vit_learned-8" not in text


def test_export_beside_the_weights_of_another_checkpoint_for_timm_is_refused(runs, tmp_path):
    run = runs("vit")
    export(run, ["timm"], step=5, out=tmp_path)
    before = (tmp_path / "README.md").read_text()
    with pytest.raises(UserError, match="model.safetensors has other weights.*add --to timm"):
        export(run, ["safetensors"], step=9, out=tmp_path)
    assert (tmp_path / "README.md").read_text() == before
    export(run, ["safetensors"], step=5, out=tmp_path)
    export(run, ["timm", "safetensors"], step=9, out=tmp_path)


@pytest.mark.parametrize("name", ["convnet", "vit"])
def test_exported_stablehlo_program_maps_raw_images_to_the_same_features(name, runs, tmp_path):
    path, _ = export(runs(name), ["stablehlo"], out=tmp_path)
    program = programs.deserialize(path.read_bytes())
    assert program.platforms == ("cpu", "cuda", "tpu")
    expected = images_to_features(runs(name))
    features = program.call(IMAGES)
    np.testing.assert_allclose(features, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(program.call(IMAGES[:1]), features[:1], rtol=1e-4, atol=1e-6)


def test_exported_program_does_not_crop_images_of_the_size_of_the_network(file):
    path = file(weights_cases.draw_weights("tiny", 8), "tiny.safetensors")
    encoder = load.load_pretrained(path, num_heads=2)
    assert encoder.inputs.crop == 0.875
    (program,) = FORMATS["stablehlo"](encoder, "", "x").values()
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    encode = jax.jit(make_encode(encoder, encoder.inputs._replace(crop=0.0)))
    expected = np.asarray(encode({"net": encoder.variables["net"]}, images))
    actual = programs.deserialize(bytearray(program)).call(images)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_model_card_has_the_settings_and_results_of_its_checkpoint(runs):
    workdir = runs("convnet")
    export(workdir, ["stablehlo"])
    *_, card = export(workdir, ["safetensors"])
    assert card == workdir / "export" / "README.md"
    card_text = card.read_text()
    for text in (
        "An image encoder trained by contrastive self-supervision with jaxssl",
        "| network | convnet (strides=[2, 2], widths=[4, 8]) |",
        f"| parameters | {9 * 4 + 9 * 4 * 8 + 2 * (4 + 8)} |",
        "| features of an image | 8 |",
        "| checkpoint | last |",
        "| step | 9 |",
        "| loss | auc_cl",
        "| data set | digits, split train |",
        "| seed | 0 |",
        f"| size | {SIZE} x {SIZE} pixels |",
        "| channels | 1, grey |",
        "| mean | 0.5 |",
        "bilinear",
        "| knn_top1 (%) | 71.25 | knn:moco_v3 | digits | train | test | pretrained, backbone |",
        "### convnet-9.safetensors",
        "### convnet-9.stablehlo",
    ):
        assert text in card_text, text
    assert "11.50" not in card_text
    best = export(workdir, ["safetensors"], step="best")[-1].read_text()
    assert "| 11.50 |" in best and "| checkpoint | best |" in best and "-5.safetensors" in best
    assert not list(workdir.rglob("*.partial"))


def test_model_card_table_has_every_result_in_the_right_cell(runs, tmp_path):
    pretrained = load.load_pretrained(runs("convnet"))
    inputs = pretrained.inputs._replace(mean=(0.25,), std=(0.75,))
    row = ROW | {"bank": "train[:5%]", "std": 1.5, "step": 9}
    card_text = model_card.render(pretrained._replace(inputs=inputs), 8, [], [row])
    cells = [c.strip() for c in re.search(r"\| knn_top1.*", card_text)[0].split("|")[1:-1]]
    assert cells == [
        *("knn_top1 (%)", "71.25 ± 1.50", "knn:moco_v3", "digits", "train[:5%]", "test"),
        *("pretrained, backbone", "last", "9", "3"),
    ]
    assert "| mean | 0.25 |" in card_text and "| standard deviation | 0.75 |" in card_text
    # Results of other steps and of the baselines are left out.
    results = [ROW | {"step": 9}, ROW | {"step": 5, "value": 5.5}]
    results += [ROW | {"step": 9, "features": "untrained", "value": 6.5}]
    workdir = tmp_path / "run"
    shutil.copytree(runs("convnet"), workdir)
    (workdir / "results.json").write_text(json.dumps({"results": results}))
    *_, card = export(workdir, ["safetensors"])
    assert re.findall(r"\| knn_top1 \(%\) \| (.*?) \|", card.read_text()) == ["71.25"]


@pytest.mark.parametrize(
    ("entry", "value", "expected"),
    [
        ("net", {"strides": [2, 1]}, (2, 1)),
        ("inputs", {"mean": [0.25]}, (0.25,)),
        ("precision", "bf16", "bf16"),
    ],
)
def test_changed_header_of_an_exported_file_is_detected(runs, tmp_path, entry, value, expected):
    path, _ = export(runs("convnet"), ["safetensors"], out=tmp_path)
    with safetensors.safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}
        header = json.loads(file.metadata()[weights.HEADER])
    header[entry] = {**header[entry], **value} if isinstance(value, dict) else value
    save_file(arrays, path, {weights.HEADER: json.dumps(header)})
    with pytest.raises(UserError, match="the parameters do not match"):
        weights.load(path)
    net = load.load_pretrained(runs("convnet")).variables["net"]
    header["digest"] = weights._digest(header, net)
    save_file(arrays, path, {weights.HEADER: json.dumps(header)})
    loaded = weights.load(path)  # With the right digest, the file loads.
    actual = loaded.encoder.net.strides, loaded.inputs.mean, loaded.encoder.precision
    assert expected in actual


def python_blocks(card):
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def test_jax_example_of_the_model_card_runs(runs, monkeypatch):
    workdir = runs("convnet")
    *_, card = export(workdir, ["safetensors", "stablehlo"])
    monkeypatch.chdir(card.parent)
    used = [block for block in python_blocks(card.read_text()) if "torch" not in block]
    expected = images_to_features(workdir)
    assert len(used) == 2
    for block in used:
        names = {"images": IMAGES}
        exec(block, names)
        np.testing.assert_allclose(names["features"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETS)
def test_pytorch_example_of_the_model_card_runs(name, runs, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if name != "convnet":
        pytest.importorskip("timm")
    files = export(runs(name), ["safetensors", "torch"], out=tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = [b for b in python_blocks(files[-1].read_text()) if "torch" in b]
    assert len(blocks) == 2
    _, _, preprocess = jaxssl.load_encoder(runs(name))
    x = torch.tensor(np.asarray(preprocess(IMAGES)).transpose(0, 3, 1, 2))
    expected = images_to_features(runs(name))
    for block in blocks:
        names = {}
        exec(block, names)
        with torch.no_grad():
            features = names["model"](x).numpy()
        np.testing.assert_allclose(features, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    ours, theirs = (load.load_pretrained(path).variables for path in files[:2])
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))


@pytest.mark.parametrize(
    ("crop", "rule"),
    [
        (None, "the whole image to 64 x 64"),
        (0.0, "the whole image to 64 x 64"),
        (0.875, "the central square of 0.875 of the short side, to 64 x 64"),
        (1.0, "the central square of 1 of the short side, to 64 x 64"),
    ],
)
def test_model_card_states_whether_images_are_centre_cropped(crop, rule, runs):
    pretrained = load.load_pretrained(runs("convnet"))._replace(inputs=Inputs(64, 3, crop=crop))
    assert f"| resized | {rule} |" in model_card.render(pretrained, 8, [], [])


@pytest.mark.parametrize(("stem", "padding"), [("cifar", 1), ("cifar_wide", 2)])
def test_pytorch_example_of_the_model_card_has_the_stem_padding(stem, padding, runs):
    pretrained = load.load_pretrained(runs("convnet"))
    encoder = pretrained.encoder._replace(net=resnet.net(depth=18, stem=stem))
    pretrained = pretrained._replace(encoder=encoder, inputs=Inputs(32, 1))
    card = model_card.render(pretrained, 8, ["x.pth"], [])
    assert '    "resnet18", num_classes=0, in_chans=1,\n' in card
    assert f"Conv2d(1, 64, 3, padding={padding}, bias=False)" in card


def test_untrained_network_of_an_exported_file_depends_on_the_seed(runs, tmp_path):
    path, _ = export(runs("convnet"), ["safetensors"], out=tmp_path)
    untrained = load.load_pretrained(path).untrained
    one, again, other = (untrained(seed)["net"]["params"] for seed in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, again))
    assert not jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_export_to_torch_without_pytorch_explains_how_to_install_it(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"needs PyTorch: pip install 'jaxssl\[torch\]'"):
        export(runs("convnet"), ["torch"], out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_weights_above_the_limit_of_stablehlo_are_refused(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxssl.pretrained.export.MAX_PROGRAM", 100)
    with refused("stablehlo holds at most 2 GiB of weights; choose --to safetensors"):
        export(runs("convnet"), ["stablehlo"], out=tmp_path)


class Counting(nn.Module):
    """A user's network that asks for the number of images in a way that no symbol allows."""

    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(4)(x.reshape(len(x), -1))


def test_network_with_len_of_its_images_is_exported_in_the_other_formats(
    runs, tmp_path, monkeypatch
):
    pretrained = load.load_pretrained(runs("convnet"))
    params = {"Dense_0": {"kernel": np.ones((SIZE**2, 4), np.float32), "bias": np.ones(4)}}
    pretrained = pretrained._replace(
        encoder=pretrained.encoder._replace(net=Counting()),
        variables={"net": {"params": params, "batch_stats": {}}},
        metadata=pretrained.metadata | {"net": {"name": "notes.py:Counting"}},
    )
    monkeypatch.setattr("jaxssl.pretrained.export.load_pretrained", lambda *_, **__: pretrained)
    message = r"x\.shape\[0\] in place of len\(x\); change the network or leave stablehlo out"
    with refused(message):
        export(runs("convnet"), ["stablehlo"], out=tmp_path)
    assert not list(tmp_path.iterdir())
    with refused(rf"{message}.*the other formats were written to {tmp_path}"):
        export(runs("convnet"), ["stablehlo", "safetensors"], out=tmp_path, push="hf://a/b")
    assert {path.name for path in tmp_path.iterdir()} == {"convnet-9.safetensors", "README.md"}


def test_invalid_export_arguments_raise_a_one_line_error(runs, tmp_path):
    run = runs("convnet")
    (tmp_path / "file").touch()
    (tmp_path / "text.pth").write_text("my weights")
    for path, formats, options, message in (
        (run, [], {}, "name a format: --to safetensors|torch|stablehlo"),
        (run, ["safetensor"], {}, "'safetensor' is unknown; did you mean 'safetensors'"),
        (run, ["safetensors"], {"step": 7}, r"no checkpoint of step 7, only of \[5, 9\]"),
        (run, ["safetensors"], {"step": "5"}, "step must be a number, last or best, got '5'"),
        (run, ["safetensors"], {"step": 5.0}, "step must be a number, last or best, got 5.0"),
        (tmp_path / "none", ["safetensors"], {}, "holds no checkpoint"),
        (tmp_path / "text.pth", ["safetensors"], {}, "not a file of torch.save"),
        (tmp_path / "text.pth", ["safetensors"], {"step": 3}, "which has no checkpoints"),
        (run, ["safetensors"], {"out": tmp_path / "file" / "x"}, "cannot write .*; fix this"),
        (run, ["safetensors"], {"out": Path("/proc/none")}, "cannot write .*; fix this"),
    ):
        with refused(message):
            export(path, formats, **options)


def test_linked_weights_file_is_exported_under_the_name_of_the_link(runs, tmp_path):
    path, _ = export(runs("vit_learned"), ["safetensors"], out=tmp_path / "cache")
    link = tmp_path / "encoder.safetensors"
    link.symlink_to(path.rename(path.with_name("0a1b2c")))  # as in the cache of Hugging Face
    exported, _ = export(link, ["safetensors"])
    assert exported == tmp_path / "export" / "encoder.safetensors"


def command(*arguments):
    line = [sys.executable, "-m", "jaxssl", "export", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.long
def test_export_command_accepts_the_folder_before_or_after_flags(runs, tmp_path):
    done = command("--to=safetensors", "--step", "best", "--out", tmp_path, runs("convnet"))
    assert done.returncode == 0, done.stderr
    files = [tmp_path / name for name in ("convnet-5.safetensors", "README.md")]
    assert done.stdout.split() == list(map(str, files)) and all(p.exists() for p in files)
    done = command(runs("convnet"), "--to", "onnx")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "error: --to 'onnx' is unknown" in done.stderr

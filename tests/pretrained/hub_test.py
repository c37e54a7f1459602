"""Exported folders load in timm and transformers, and are uploaded with the model card."""

import json
import sys
import types
from functools import partial
from importlib import util
from pathlib import Path

import jax
import numpy as np
import pytest
import weights_cases
from marks import long_except
from public_encoders_test import CASES as ENCODERS
from public_encoders_test import KEPT, write_folder

from jaxssl.errors import UserError
from jaxssl.pretrained import export as export_lib
from jaxssl.pretrained import load, timm_format
from jaxssl.pretrained.encoder import weights_digest

# Encoders that timm cannot hold, with the setting that the error names.
REFUSED = {
    "transformers_vit": "epsilon",
    "transformers_mae": "epsilon",
    "transformers_deit": "epsilon",
    "transformers_clip": "projection",
    "openai_clip": "projection",
    "open_clip": "projection",
    "open_clip_resnet50": "ClipResNet",
    "transformers_resnet": "width",
}


@pytest.fixture
def exported_to(tmp_path, monkeypatch):
    """Return a function that exports an encoder, by default a public one: it and the files."""

    def make(case, formats, source=None, settings=None, **options):
        source = source or write_folder(tmp_path / case, case)
        encoder = load.load_pretrained(source, **settings or ENCODERS[case]["options"])
        monkeypatch.setattr(export_lib, "load_pretrained", lambda *_, **__: encoder)
        return encoder, export_lib.export(source, formats, out=tmp_path / "out", **options)

    return make


@pytest.fixture
def exported(file, exported_to):
    """Return a function that exports a tiny ViT: the encoder and the files."""
    path = file(weights_cases.draw_weights("tiny", 8), "tiny.safetensors")
    return partial(exported_to, "tiny", ["timm"], path, {"num_heads": 2})


def test_timm_export_writes_a_config_json_for_network_and_preprocessing(exported):
    encoder, (weights, config, card) = exported()
    assert (weights.name, config.name) == ("model.safetensors", "config.json")
    described = json.loads(config.read_text())
    assert described["num_features"] == 8 and described["num_classes"] == 0
    expected = {"in_chans": 3, "embed_dim": 8, "depth": 1, "num_heads": 2, "img_size": 8}
    assert expected.items() <= described["model_args"].items()
    images = described["pretrained_cfg"]
    assert images["input_size"] == [3, 8, 8] and images["mean"] == list(encoder.inputs.mean)
    assert images["crop_pct"] == 0.875 and images["crop_mode"] == "center"
    assert card.read_text().startswith("---\nlibrary_name: timm\n")
    # Nothing tells that weights of somebody else were trained without labels.
    assert "An image encoder exported with jaxssl," in card.read_text()
    again = load.load_pretrained(weights)
    assert again.inputs == encoder.inputs and again.encoder.net == encoder.encoder.net


@pytest.mark.parametrize("case", long_except(KEPT, ENCODERS))
def test_public_encoder_exported_for_timm_is_read_back_unchanged(case, exported_to, tmp_path):
    if case in REFUSED:
        with pytest.raises(UserError, match=f"timm has no .*{REFUSED[case]}.* --to safetensors"):
            exported_to(case, ["timm"])
        assert not (tmp_path / "out").exists()
    encoder, files = exported_to(case, ["safetensors" if case in REFUSED else "timm"])
    again, expected = load.load_pretrained(files[0]), timm_format.prepare(encoder)
    assert again.inputs == encoder.inputs and again.encoder.net == encoder.encoder.net
    both = (x.variables["net"] for x in (again, expected))
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "rule"),
    [
        ("timm_vit", "timm"),
        ("timm_dinov2_registers_swiglu", "timm"),
        ("open_clip", "timm"),
        ("transformers_clip", "torch"),
        ("torchvision_vit", "torchvision"),
        ("dinov2_larger", "dino"),
    ],
)
def test_exported_encoder_of_another_size_has_the_positions_of_its_project(
    case, rule, exported_to, tmp_path
):
    encoder, (path, _) = exported_to(case, ["safetensors"], settings={"size": 16})
    assert encoder.metadata["positions"] == rule
    for size in (8, 24):
        sources = (tmp_path / case, path)
        theirs, ours = (load.load_pretrained(x, size=size).variables for x in sources)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_second_resizing_of_positions_is_warned_of(exported_to, caplog):
    encoder, (path, _) = exported_to("timm_vit", ["safetensors"], settings={"size": 24})
    assert encoder.metadata["resized_from"] == 16
    assert load.load_pretrained(path).metadata["resized_from"] == 16
    assert "resized from" not in caplog.text
    assert load.load_pretrained(path, size=32).metadata["resized_from"] == 16
    assert caplog.text.count("resized from images of 16 pixels before") == 1
    assert "load the original weights with size=32" in caplog.text


def test_added_zeros_for_tokens_without_positions_are_no_resizing(exported_to, caplog):
    encoder, (path, _) = exported_to("timm_dinov2_registers_swiglu", ["safetensors"])
    assert encoder.metadata["resized_from"] is None
    assert load.load_pretrained(path).metadata["resized_from"] is None
    assert "resized from" not in caplog.text


@pytest.mark.long
@pytest.mark.skipif(
    not all(map(util.find_spec, ("torch", "timm", "transformers"))),
    reason="needs torch, timm and transformers",
)
@pytest.mark.parametrize("case", [case for case in ENCODERS if case not in REFUSED])
def test_timm_and_transformers_load_the_exported_folder_with_equal_features(case, exported_to):
    import timm
    import torch
    import transformers

    encoder, (weights, config, _) = exported_to(case, ["timm"])
    size, described = encoder.inputs.size, json.loads(config.read_text())
    x = np.random.default_rng(0).standard_normal((2, size, size, 3), np.float32)
    expected = load.make_apply(encoder)(encoder.variables["net"], x)
    name, arguments = described["architecture"], {**described["model_args"], "num_classes": 0}
    models = (
        timm.create_model(f"local-dir:{weights.parent}", pretrained=True),
        timm.create_model(name, checkpoint_path=str(weights), **arguments),
        transformers.AutoModel.from_pretrained(weights.parent),
    )
    for model in models:
        with torch.no_grad():
            y = model.eval()(torch.tensor(x.transpose(0, 3, 1, 2)))
        y = getattr(y, "pooler_output", y).numpy().reshape(2, -1)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


class FakeHub(types.ModuleType):
    """A hub in memory, with the two functions that an upload calls."""

    def __init__(self, fault=None):
        super().__init__("huggingface_hub")
        self.fault, self.files = fault, {}

    def create_repo(self, repository, *, exist_ok):
        if self.fault:
            raise ConnectionError(self.fault)
        assert exist_ok
        return f"https://hub/{repository}"

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        assert commit_message
        for name in allow_patterns:
            self.files[f"{repo_id}/{name}"] = (folder_path / name).read_bytes()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("me/tiny", "me-tiny"),
        ("me/tiny@v1", "me-tiny@v1"),
        ("me/tiny@refs/pr/1", "me-tiny@refs-pr-1"),
    ],
)
def test_results_folder_is_named_after_owner_repository_and_revision(address, name):
    assert load.results_folder(f"hf://{address}") == Path(f"{name}.eval")


def test_weights_of_the_hub_are_named_after_the_repository_and_not_after_the_commit(tmp_path):
    folder = tmp_path / "models--owner--my--vit" / "snapshots" / "0123abcd"
    folder.parent.mkdir(parents=True)
    write_folder(folder, "transformers_vit")
    assert load.load_pretrained(folder).metadata["source"] == "owner/my--vit"


def test_results_of_weights_are_stored_beside_them_with_the_whole_name_of_a_folder(
    tmp_path, monkeypatch
):
    for name in ("vit.v1", "vit.v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    (tmp_path / "run.v1").mkdir()
    (tmp_path / "vit.v1.pth").touch()
    cases = {"vit.v1": "vit.v1.eval", "vit.v2": "vit.v2.eval", "vit.v1.pth": "vit.v1.eval"}
    for name, expected in (cases | {"run.v1": "run.v1", "none.pth": "none.eval"}).items():
        assert load.results_folder(tmp_path / name) == tmp_path / expected
    (tmp_path / "vit.v2" / "below").mkdir()
    for folder, path in (("vit.v2", "."), ("vit.v2/below", "..")):
        monkeypatch.chdir(tmp_path / folder)
        assert load.results_folder(path) == tmp_path / "vit.v2.eval"


def test_export_reads_the_results_and_keeps_the_whole_name_of_a_folder(tmp_path):
    source = write_folder(tmp_path / "vit.v1", "transformers_vit")
    row = {"protocol": "knn", "metric": "knn_top1", "value": 71.25, "std": None, "unit": "%"}
    row |= {"details": {}, "features": "pretrained", "layer": "backbone", "step": None, "seed": 3}
    row |= {"checkpoint": "file", "dataset": "digits", "bank": "train", "split": "test"}
    row |= {"source": "vit.v1", "weights": weights_digest(load.load_pretrained(source))}
    (tmp_path / "vit.v1.eval").mkdir()
    # The folder also has results of the file vit.v1.pth, or of earlier weights of this name.
    other = row | {"weights": "another digest", "value": 99.5}
    (tmp_path / "vit.v1.eval" / "results.json").write_text(json.dumps({"results": [row, other]}))
    weights, card = export_lib.export(source, ["safetensors"])
    assert weights == tmp_path / "export" / "vit.v1.safetensors"
    assert "71.25" in card.read_text() and "99.5" not in card.read_text()


def test_push_to_the_hub_uploads_exactly_the_exported_files(exported, tmp_path, monkeypatch):
    hub = FakeHub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "private.txt").write_text("not exported")
    _, files = exported(push="hf://me/tiny")
    assert hub.files == {f"me/tiny/{path.name}": path.read_bytes() for path in files}


GONE = FakeHub("the hub is\n gone")


@pytest.mark.parametrize(
    ("target", "hub", "message"),
    [
        ("me/tiny", FakeHub(), "--push must be hf://owner/name, got 'me/tiny'"),
        ("hf://tiny", FakeHub(), "--push must be hf://owner/name"),
        ("hf://me/tiny", GONE, "--push hf://me/tiny: the hub is gone; the files are in"),
        ("hf://me/tiny", None, "--push needs huggingface_hub: pip install"),
    ],
)
def test_failed_upload_is_reported_in_one_line(exported, monkeypatch, target, hub, message):
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with weights_cases.refused(message):
        exported(push=target)

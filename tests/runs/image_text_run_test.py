"""Runs on captioned images: train, stop, resume, and evaluate with and without captions."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from data_cases import data_config
from file_cases import refused
from tiny import DIGITS, short
from workdir_cases import assert_resumes, trained

import jaxssl
from jaxssl.data import source
from jaxssl.evaluation import pretrain, run
from jaxssl.pretrained import load
from jaxssl.report import results
from jaxssl.training import config
from jaxssl.training.output import metrics_writer
from jaxssl.training.workdir import checkpoint

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("tokenizer")]

CAPTIONED = DIGITS.parent / "image_text" / "digit_captions.py"
STEPS, SAVED = 6, 3
SETTINGS = short(STEPS, log_every="2")
SETTINGS |= {"data.train_split": "train[:160]", "data.test_split": "test[:60]"}
SETTINGS |= {"data.context": "12", "text.context": "12"}
SETTINGS |= {"text.dim": "8", "text.layers": "1", "text.num_heads": "2"}
SETTINGS |= {"checkpoint.every": str(SAVED / (160 // 16)), "eval.every": "100"}
SETTINGS |= {"eval.protocols": "('captions', 'zeroshot:digits')"}
RECALLS = {f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
ZEROSHOT = {"zeroshot_top1", "zeroshot_top5"}


@pytest.fixture(scope="module")
def settings(data_dir):
    """The config of a tiny run on the digits with captions."""
    return config.load(CAPTIONED, [*SETTINGS.items(), ("data.dir", str(data_dir))])


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory) -> Path:
    """The workdir of an uninterrupted run."""
    return trained(tmp_path_factory, "captioned", settings)


def figures(rows):
    return {(row["metric"], row["features"]): row["value"] for row in rows}


def test_image_text_run_reports_retrieval_and_zero_shot(whole):
    rows = results.read_results(whole)
    for protocol, metrics in (("captions", RECALLS), ("zeroshot", ZEROSHOT)):
        own = [row for row in rows if row["protocol"] == protocol]
        assert {row["features"] for row in own} == {"untrained", "pretrained"}
        for kind in ("untrained", "pretrained"):
            actual = {row["metric"]: row["value"] for row in own if row["features"] == kind}
            assert set(actual) == metrics and all(0 <= x <= 100 for x in actual.values())
    presets = {row["details"]["preset"] for row in rows if row["protocol"] != "online"}
    assert presets == {"default", "digits"}
    steps = {(row["step"], row["features"]) for row in rows}
    assert steps == {(0, "untrained"), (STEPS, "pretrained")}
    page = re.sub("<[^>]*>", "", (whole / "report.html").read_text())
    assert all(metric in page for metric in RECALLS | ZEROSHOT)
    rows = metrics_writer.read_metrics(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == [2, 3, 4, 6]
    assert all(np.isfinite(row["loss"]) and "logit_scale" in row for row in rows)


def test_image_and_text_towers_are_both_trained(whole):
    actual = load.load_pretrained(whole)
    untrained = actual.untrained(0)
    params = [
        [tower[name]["params"] for tower in (v, v["text"]) for name in ("net", "projector")]
        for v in (untrained, actual.variables)
    ]
    assert jax.tree.structure(params[0]) == jax.tree.structure(params[1])
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), *params)
    assert all(jax.tree.leaves(moved)), moved
    before, other = (v["text"]["net"]["params"] for v in (untrained, actual.untrained(1)))
    assert not np.array_equal(other["embedding"], before["embedding"])


@pytest.mark.long
def test_interrupted_run_resumes_bit_for_bit(settings, whole, tmp_path, monkeypatch):
    later = pretrain.EVALUATION._replace(finish=lambda *_: None)
    monkeypatch.setattr(pretrain, "EVALUATION", later)
    assert_resumes(settings, whole, tmp_path, at=4, steps=STEPS)


@pytest.fixture(scope="module")
def plain(data_dir):
    """The same images without captions."""
    return data_config(dir=str(data_dir), train_split="train[:160]", test_split="test[:60]")


def test_images_without_captions_get_only_zero_shot_results(whole, plain, tmp_path):
    rows = run.evaluate(whole, ["zeroshot:digits"], data=plain, out=tmp_path)
    expected = figures(row for row in results.read_results(whole) if row["protocol"] == "zeroshot")
    assert figures(rows) == expected and len(expected) == 4
    assert {row["dataset"] for row in rows} == {"digits"}
    with refused("protocol 'captions': image-text retrieval needs images with captions"):
        run.evaluate(whole, ["captions"], data=plain, out=tmp_path)


def test_image_protocols_evaluate_the_image_network_of_an_image_text_run(whole, plain, tmp_path):
    """Protocols that make views of images do not need captions."""
    kinds = ["pretrained"]
    rows = run.evaluate(whole, ["knn", "diagnostics"], kinds=kinds, out=tmp_path)
    assert {row["protocol"] for row in rows} == {"knn", "diagnostics"}
    assert all(np.isfinite(row["value"]) for row in rows)
    on_plain = run.evaluate(whole, ["knn", "diagnostics"], kinds=kinds, data=plain, out=tmp_path)
    assert [row["value"] for row in on_plain] == [row["value"] for row in rows]


def test_image_backbone_is_loaded_with_load_encoder(whole, plain):
    apply, variables, preprocess = jaxssl.load_encoder(whole)
    assert set(variables) == {"params", "batch_stats"}
    images = source.load(plain, "test[:5]").images(8)
    actual = apply(variables, preprocess(images))
    assert actual.shape == (5, 8) and np.isfinite(actual).all()
    state = checkpoint.restore_arrays(whole).state
    jax.tree.map(np.testing.assert_array_equal, variables["params"], state["params"]["net"])


TOO_LONG = "texts must have at most text.context=12 tokens, got 13"
NO_CAPTIONS = "augment.name needs captions, but the images of 'digits' have none"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("data.context", "13", TOO_LONG), ("data.name", "digits", NO_CAPTIONS)],
)
def test_missing_or_long_captions_are_refused_at_once(settings, tmp_path, key, value, message):
    changed = {**SETTINGS, key: value, "data.dir": settings.data.dir}
    with refused(message):
        pretrain.train(config.load(CAPTIONED, list(changed.items())), tmp_path / "run")
    assert not (tmp_path / "run").exists()

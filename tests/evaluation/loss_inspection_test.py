"""What gallery.npz says of a run: nearest classes, hardest negatives, MMCL's support vectors."""

import json
from functools import partial

import numpy as np
import pytest
from ml_collections import ConfigDict
from tiny import DIGITS, short
from workdir_cases import trained

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.evaluation import gallery, loss_inspection
from jaxssl.evaluation.features import extract
from jaxssl.pretrained.encoder import make_encode
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report import run_report
from jaxssl.report.results import read_results
from jaxssl.training import config

GAMMA = {"schedule": "steps", "values": {"0": 0.1, "3": 0.5, "6": 0.9}}
LOSS = {"loss.name": "mmcl", "loss.gamma": str(GAMMA), "loss.C": "0.5"}
SETTINGS = short(4, **LOSS, **{"eval.protocols": "('knn:uniform',)"})


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """The workdir of a tiny run of MMCL, and its gallery."""
    settings = config.load(DIGITS, [*SETTINGS.items(), ("data.dir", str(data_dir))])
    with pytest.MonkeyPatch.context() as patch:
        # Replaces t-SNE, which is slow.
        patch.setattr(gallery, "_map", lambda features, seed: features[:, :2])
        workdir = trained(tmp_path_factory, "mmcl", settings)
    with np.load(workdir / "gallery.npz") as file:
        return workdir, dict(file)


@pytest.fixture(scope="module")
def embed(run):
    """The run's projector on uint8 images."""
    result, mesh = load_pretrained(run[0]), distributed.make_mesh()
    variables = distributed.replicate(result.variables, mesh)
    apply = make_encode(result, result.inputs, "projector")
    return partial(extract, apply=apply, variables=variables, mesh=mesh)


def of_loops(train, train_labels, test, test_labels):
    """Class, class of the nearest by cosine, how many."""
    counts = {}
    bank = [(x / np.linalg.norm(x), c) for x, c in zip(train, train_labels, strict=True) if c >= 0]
    for x, own in zip(test, test_labels, strict=True):
        if own >= 0:
            _, nearest = max((float(x @ u), -i) for i, (u, _) in enumerate(bank))
            pair = int(own), int(bank[-nearest][1])
            counts[pair] = counts.get(pair, 0) + 1
    return [[*pair, count] for pair, count in sorted(counts.items())]


def test_nearest_neighbour_classes_match_a_loop():
    rng = np.random.default_rng(0)
    train, test = (rng.normal(size=(n, 6)).astype(np.float32) for n in (40, 50))
    labels, test_labels = rng.integers(-1, 5, 40), rng.integers(-1, 4, 50)
    result = gallery.nearest_classes(train, labels, test, test_labels)
    np.testing.assert_array_equal(result, of_loops(train, labels, test, test_labels))
    assert result.dtype == np.int32 and result[:, 2].sum() == (test_labels >= 0).sum()


def test_nearest_neighbour_classes_are_empty_without_labels():
    x, none, some = np.ones((3, 2), np.float32), np.full(3, -1), np.arange(3)
    assert gallery.nearest_classes(x, none, x, some).shape == (0, 3)
    assert gallery.nearest_classes(x, some, x, none).shape == (0, 3)


def test_nearest_neighbour_classes_use_a_sample_of_many_test_images(monkeypatch):
    monkeypatch.setattr(gallery, "MATCHED", 4)
    x, labels = np.eye(9, dtype=np.float32), np.arange(9)
    result = gallery.nearest_classes(x, labels, x, labels, seed=1)
    assert result[:, 2].tolist() == [1] * 4 and (result[:, 0] == result[:, 1]).all()


@pytest.mark.long
def test_nearest_neighbour_classes_agree_with_the_k_nn_accuracy_of_the_run(run):
    workdir, arrays = run
    rows = json.loads((workdir / "results.json").read_text())["results"]
    by = {(row["protocol"], row["features"], row["metric"]): row["value"] for row in rows}
    top1 = by["knn", "pretrained", "knn_top1"]
    result = arrays["nearest_classes"]
    assert result[:, 2].sum() == 500
    assert 100 * result[result[:, 0] == result[:, 1], 2].sum() / 500 == pytest.approx(top1)


@pytest.mark.long
def test_stored_cosines_and_labels_of_hardest_negatives_match_their_images(run, embed, data_dir):
    _, arrays = run
    images = arrays["block"]
    z = embed(images).astype(np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    query, place = arrays["hard_query"], arrays["hard_place"]
    assert place.shape == (loss_inspection.QUERIES, loss_inspection.HARDEST)
    assert arrays["block_size"] == loss_inspection.SIZE
    assert len(images) == len(arrays["block_label"]) == len(np.unique(images, axis=0))
    cosines = np.einsum("qd,qkd->qk", z[query], z[place])
    np.testing.assert_allclose(arrays["hard_similarity"], cosines, atol=1e-5)
    assert (np.diff(arrays["hard_similarity"]) <= 0).all() and not (place == query[:, None]).any()
    assert len(np.unique(arrays["block_label"][query])) == loss_inspection.QUERIES
    train = source.load(config.load(DIGITS, [("data.dir", str(data_dir))]).data, "train")
    known = {x.tobytes(): y for x, y in zip(train.images(8), train.labels, strict=True)}
    assert [known[image.tobytes()] for image in images] == arrays["block_label"].tolist()


def test_shown_support_vectors_are_ordered_by_weight(run, embed):
    _, arrays = run
    place, alpha, bound = arrays["svm_place"], arrays["svm_alpha"], float(arrays["svm_C"])
    # C and gamma have the values of their schedules at step 4.
    assert bound == 0.5 and "gamma 0.5," in str(arrays["svm_settings"])
    np.testing.assert_array_equal(place < 0, np.isnan(alpha))
    first, second, _ = loss_inspection.SHOWN
    at_bound, support, zero = np.split(alpha, [first, first + second], axis=1)
    known = ~np.isnan(support)
    assert (at_bound[~np.isnan(at_bound)] == bound).all() and (zero[~np.isnan(zero)] == 0).all()
    assert ((0 < support[known]) & (support[known] < bound)).all()
    assert (np.diff(support)[known[:, 1:]] <= 0).all()
    share, at_bound, same, same_bound, same_all = arrays["svm_share"]
    assert 0 < at_bound < share < 1 and 0.05 < same_all < 0.15
    assert 0 < same < 1 and 0 < same_bound < 1


def test_report_shows_hardest_negatives_and_support_vectors_of_the_inspected_batch(run):
    workdir, _ = run
    html = run_report.write_report(workdir).read_text(encoding="utf-8")
    for shown in ("Confusion of nearest neighbours", "Hardest negatives", "α = C", "gamma 0.5"):
        assert shown in html


def test_learned_loss_parameters_are_read_from_the_training_log(run, tmp_path):
    workdir, _ = run
    rows = [{"step": step, "gamma": step / 10} for step in (2, 4, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ConfigDict(load_pretrained(workdir).metadata["config"])
    settings.loss = ConfigDict({**settings.loss.to_dict(), "gamma": 0.3, "learn": ["gamma"]})
    assert loss_inspection.mmcl_settings(tmp_path, settings, 1297, 4)["gamma"] == 0.4
    assert loss_inspection.mmcl_settings(tmp_path, settings, 1297, 1)["gamma"] == 0.3


def test_gallery_file_of_an_earlier_version_counts_as_missing(run, tmp_path):
    workdir, arrays = run
    [content] = {row["content"] for row in read_results(workdir)}
    assert gallery.read_origin(workdir) == (4, content)
    arrays = {k: v for k, v in arrays.items() if k != "content"}
    earlier = {k: v for k, v in arrays.items() if not k.startswith(("block", "hard", "svm"))}
    np.savez(tmp_path / "gallery.npz", **earlier)
    assert gallery.read_origin(tmp_path) is None
    html = run_report.write_report(tmp_path).read_text(encoding="utf-8")
    assert "made by an earlier version" in html and "Nearest neighbours" in html

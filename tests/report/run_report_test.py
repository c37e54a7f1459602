"""The report: one page that needs nothing else and shows what was recorded."""

import json
import re

import numpy as np
import pytest
from page_cases import page
from workdir_cases import gallery_of, write

from jaxssl.errors import UserError
from jaxssl.report import run_report

CONFIG = {
    "seed": 3, "batch_size": 64, "epochs": 5, "data": {"name": "<script>alert(1)</script>"},
    "loss": {"name": "auc_cl"}, "net": {"name": "convnet"}, "method": {"name": "siamese"},
}  # fmt: skip
RESULTS = [
    {"protocol": "fewshot", "metric": "fewshot_1shot_top1", "value": value, "std": std,
     "features": features, "dataset": "digits", "split": "test", "step": step, "seed": 3,
     "details": {"preset": "default", "shots": 1}}
    for features, value, std, step in (
        ("raw", 64.25, 5.5, None), ("untrained", 56.5, 4.125, 0), ("pretrained", 81.75, 3.0, 100))
]  # fmt: skip


@pytest.fixture
def workdir(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    rows = [
        {"step": i, "loss": 1 / i, "feature_std": None if i == 2 else 0.9, "images_per_second": 9.0}
        for i in (1, 2, 3)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "results.json").write_text(json.dumps({"results": RESULTS}))
    images = rng.integers(0, 256, (2, 3, 8, 8, 1), np.uint8)
    np.savez(
        tmp_path / "gallery.npz",
        pairs=images, pairs_original=images[:, 0], query=images[:, 0], neighbour=images,
        query_label=np.array([0, 1]), neighbour_label=np.array([[0, 1, 0], [1, 1, -1]]),
        map=rng.normal(size=(6, 2)), map_label=np.array([0, 1, 0, 1, 0, 1]),
        class_names=np.array(["$", "one"]),
    )  # fmt: skip
    return tmp_path


def test_the_page_is_self_contained_and_shows_every_figure(workdir):
    path = run_report.write_report(workdir)
    found = page(path)
    assert found.sources and all(s.startswith("data:image/png;base64,") for s in found.sources)
    assert all(found.alts)
    text = " ".join(found.text)
    for shown in ("64.25 ± 5.50", "56.50 ± 4.12", "81.75 ± 3.00", "+25.25", "seed 3", "shots 1"):
        assert shown in text, shown
    assert not list(workdir.glob("*.partial"))


def test_what_users_named_is_escaped(workdir):
    html = run_report.write_report(workdir).read_text(encoding="utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize("missing", ["gallery.npz", "metrics.jsonl", "results.json"])
def test_what_is_missing_is_left_out(workdir, missing):
    (workdir / missing).unlink()
    text = " ".join(page(run_report.write_report(workdir)).text)
    assert ("No evaluation was recorded" in text) == (missing == "results.json")


def test_figures_of_several_data_sets_stand_in_tables_of_their_own(workdir):
    other = [{**row, "dataset": "moons", "bank": "train[:5%]"} for row in RESULTS]
    table = {"preset": "default", "shots": 1, "confusion": [[1] * 20] * 20, "by_severity": {"1": 2}}
    last = {**RESULTS[2], "metric": "second", "details": table, "unit": "grey levels"}
    rows = [*RESULTS, *other, last]
    (workdir / "results.json").write_text(json.dumps({"results": rows}))
    html = run_report.write_report(workdir).read_text(encoding="utf-8")
    assert html.count("moons, fitted on train[:5%], tested on test") == 1
    assert html.count('<table class="results">') == 2
    # Settings are said once for the metrics that share them; tables are left out.
    assert html.count("preset default, shots 1") == 2
    assert "second (grey levels)" in html
    assert "confusion 1" not in html and "confusion [" not in html and "severity" not in html


def test_every_checkpoint_stands_beside_the_baselines(workdir):
    later = {**RESULTS[2], "step": 200, "value": 90.5}
    (workdir / "results.json").write_text(json.dumps({"results": [*RESULTS, later]}))
    text = " ".join(page(run_report.write_report(workdir)).text)
    assert text.count("64.25 ± 5.50") == 2 and "81.75" in text and "90.50" in text
    assert "checkpoint of step 200" in text


def test_a_result_that_is_not_finite_is_called_so(workdir):
    rows = [{**RESULTS[2], "value": float("nan")}]
    (workdir / "results.json").write_text(json.dumps({"results": rows}))
    assert "not finite" in " ".join(page(run_report.write_report(workdir)).text)


@pytest.fixture
def whole(tmp_path):
    """A workdir with all that a report shows."""
    return write(tmp_path / "run", gallery=gallery_of(10))


def test_confusion_is_a_matrix_of_percentages(whole):
    html = run_report.write_report(whole).read_text(encoding="utf-8")
    page(whole / "report.html")
    (table,) = re.findall(r'<table class="confusion">(.*?)</table>', html, re.DOTALL)
    rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in table.split("<tr>")[1:]]
    names = [f"class {i}" for i in range(10)]
    assert rows[0] == ["class", *names] and [row[0] for row in rows[1:]] == names
    for i, (_, *cells) in enumerate(rows[1:]):
        texts = [re.sub("<.*?>", "", cell) for cell in cells]
        right, wrong = i + 7, 1 + i % 3
        expected = ["·"] * 10
        expected[i] = f"{100 * right / (right + wrong):.0f}"
        expected[(i + 1) % 10] = f"{100 * wrong / (right + wrong):.0f}"
        assert texts == expected
    total = sum(i + 7 + 1 + i % 3 for i in range(10))
    assert f"Of {total} test images 115 ({11500 / total:.1f} %)" in " ".join(html.split())


def test_of_many_classes_the_most_confused_pairs_are_listed(tmp_path):
    html = run_report.write_report(write(tmp_path / "run", gallery=gallery_of(30))).read_text(
        encoding="utf-8"
    )
    assert '<table class="confusion">' not in html
    (table,) = re.findall(
        r'aria-label="table of most frequent confusions.*?</table>', html, re.DOTALL
    )
    rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in table.split("<tr>")[2:]]
    assert len(rows) == 20
    assert rows[0] == ["class 2", "class 3", "25.0 %", "3 of 12"]
    shares = [float(row[2].split()[0]) for row in rows]
    assert shares == sorted(shares, reverse=True)


def test_negatives_of_the_anchors_class_are_marked_by_more_than_colour(whole):
    found = page(run_report.write_report(whole))
    text = " ".join(" ".join(found.text).split())
    assert "62.5 % of the 3 hardest are of the image's own class, and 12.5 % of all neg" in text
    assert "negative 1 of anchor 1, 0.75, = class 0" in found.alts
    assert "negative 2 of anchor 1, 0.50, class 2" in found.alts
    for words in (
        "37.5 % of the negatives are support vectors. 25.0 % have α = C = 0.5",
        "they are 50.0 % of the support vectors, 75.0 % of those with α = C, and 12.5 % of all",
        "C 0.5, gamma 0.5, kernel rbf",
    ):
        assert words in text, words
    assert "negative of anchor 1, α = C, class 1" in found.alts
    assert "negative of anchor 1, α 0.25, class 2" in found.alts
    assert "negative of anchor 2, α 0, class 8" in found.alts


@pytest.mark.parametrize("alpha", [0.4, 0.0])
def test_weights_below_the_bound_are_no_suspects(tmp_path, alpha):
    arrays = gallery_of(4)
    arrays["svm_alpha"] = np.minimum(arrays["svm_alpha"], alpha)
    arrays["svm_share"] = np.array([0.1, 0.0, np.nan, np.nan, np.nan])
    text = " ".join(page(run_report.write_report(write(tmp_path / "run", gallery=arrays))).text)
    assert "None has α = C = 0.5" in text and "of the support vectors" not in text


def test_sets_without_labels_have_no_confusion(tmp_path):
    arrays = gallery_of(4)
    for name in ("block_label", "query_label", "neighbour_label", "map_label"):
        arrays[name] = np.full_like(arrays[name], -1)
    del arrays["nearest_classes"]
    arrays |= {"hard_share": np.full(2, np.nan), "class_names": np.array([], "<U1")}
    arrays["svm_share"] = np.array([0.5, 0.25, np.nan, np.nan, np.nan])
    found = page(run_report.write_report(write(tmp_path / "run", gallery=arrays)))
    text = " ".join(found.text)
    assert "Confusion" not in text and "The images have no labels" in text
    assert "negative 1 of anchor 1, 0.75" in found.alts and "✗" not in text


def test_a_gallery_of_an_earlier_version_is_shown_and_said_to_be_one(workdir):
    text = " ".join(page(run_report.write_report(workdir)).text)
    assert "made by an earlier version" in text and "Hardest negatives" not in text


@pytest.mark.parametrize("name", ["block", "hard_place", "svm_alpha", "nearest_classes"])
def test_damaged_arrays_are_named(tmp_path, name):
    arrays = gallery_of(4)
    arrays[name] = np.array(["x"])
    with pytest.raises(UserError, match="gallery.npz is damaged"):
        run_report.write_report(write(tmp_path / "run", gallery=arrays))


def test_every_image_and_table_has_a_name(whole):
    run_report.write_report(whole)
    html = (whole / "report.html").read_text(encoding="utf-8")
    assert all(page(whole / "report.html").alts)
    regions = re.findall(r'<div class="scroll".*?>', html)
    assert len(regions) == html.count("<table") == 6
    assert all('tabindex="0"' in region and 'role="region"' in region for region in regions)

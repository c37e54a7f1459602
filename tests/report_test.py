"""The report: one page that needs nothing else and shows what was recorded."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from jaxssl import report

VOID = {"meta", "img", "br", "link", "input", "hr"}
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


class Balanced(HTMLParser):
    """Checks that every tag is closed in order, and keeps what a reader sees."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.sources, self.alts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.sources += [values[k] for k in ("src", "href") if k in values]
        if tag == "img":
            self.alts.append(values.get("alt"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(path):
    parser = Balanced()
    parser.feed(path.read_text(encoding="utf-8"))
    assert parser.open == []
    return parser


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
    path = report.write(workdir)
    found = page(path)
    assert found.sources and all(s.startswith("data:image/png;base64,") for s in found.sources)
    assert all(found.alts)
    text = " ".join(found.text)
    for shown in ("64.25 ± 5.50", "56.50 ± 4.12", "81.75 ± 3.00", "+25.25", "seed 3", "shots 1"):
        assert shown in text, shown
    assert not list(workdir.glob("*.partial"))


def test_what_users_named_is_escaped(workdir):
    html = report.write(workdir).read_text(encoding="utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize("missing", ["gallery.npz", "metrics.jsonl", "results.json"])
def test_what_is_missing_is_left_out(workdir, missing):
    (workdir / missing).unlink()
    text = " ".join(page(report.write(workdir)).text)
    assert ("No evaluation was recorded" in text) == (missing == "results.json")


def test_figures_of_several_data_sets_stand_in_tables_of_their_own(workdir):
    other = [{**row, "dataset": "moons", "bank": "train[:5%]"} for row in RESULTS]
    table = {"preset": "default", "shots": 1, "confusion": [[1] * 20] * 20, "by_severity": {"1": 2}}
    last = {**RESULTS[2], "metric": "second", "details": table, "unit": "grey levels"}
    rows = [*RESULTS, *other, last]
    (workdir / "results.json").write_text(json.dumps({"results": rows}))
    html = report.write(workdir).read_text(encoding="utf-8")
    assert html.count("moons, fitted on train[:5%], tested on test") == 1
    assert html.count('<table class="results">') == 2
    # Settings are said once for the metrics that share them; tables are left out.
    assert html.count("preset default, shots 1") == 2
    assert "second (grey levels)" in html and "confusion" not in html and "severity" not in html


def test_every_checkpoint_stands_beside_the_baselines(workdir):
    later = {**RESULTS[2], "step": 200, "value": 90.5}
    (workdir / "results.json").write_text(json.dumps({"results": [*RESULTS, later]}))
    text = " ".join(page(report.write(workdir)).text)
    assert text.count("64.25 ± 5.50") == 2 and "81.75" in text and "90.50" in text
    assert "checkpoint of step 200" in text


def test_a_result_that_is_not_finite_is_called_so(workdir):
    rows = [{**RESULTS[2], "value": float("nan")}]
    (workdir / "results.json").write_text(json.dumps({"results": rows}))
    assert "not finite" in " ".join(page(report.write(workdir)).text)

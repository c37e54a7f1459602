"""The report of a run: a self-contained page that shows all results, curves and images."""

import json
import re
from typing import Any

import numpy as np
import pytest
from page_cases import cells_of, page, pictures, tables
from workdir_cases import CONFIG as COMPLETE
from workdir_cases import METRICS, ROW, changed, gallery_of, write

from jaxssl.errors import UserError
from jaxssl.report import curves, gallery, images, run_report
from jaxssl.training import collapse

pytestmark = pytest.mark.fast

CONFIG = {
    "seed": 3, "batch_size": 64, "epochs": 5, "data": {"name": "<script>alert(1)</script>"},
    "loss": {"name": "auc_cl"}, "net": {"name": "convnet"}, "method": {"name": "siamese"},
}  # fmt: skip
RESULTS: list[Any] = [
    {"protocol": "fewshot", "metric": "fewshot_1shot_top1", "value": value, "std": std,
     "features": features, "dataset": "digits", "split": "test", "step": step, "seed": 3,
     "details": {"preset": "default", "shots": 1}}
    for features, value, std, step in (
        ("raw", 64.25, 5.5, None), ("untrained", 56.5, 4.125, 0), ("pretrained", 81.75, 3.0, 100))
]  # fmt: skip


@pytest.fixture
def workdir(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"step": i, "loss": 1 / i, "feature_std": None if i == 2 else 0.9, "images_per_second": 9.0}
        for i in (1, 2, 3)
    ]
    images = rng.integers(0, 256, (2, 3, 8, 8, 1), np.uint8)
    arrays = dict(
        pairs=images, pairs_original=images[:, 0], query=images[:, 0], neighbour=images,
        query_label=np.array([0, 1]), neighbour_label=np.array([[0, 1, 0], [1, 1, -1]]),
        map=rng.normal(size=(6, 2)), map_label=np.array([0, 1, 0, 1, 0, 1]),
        class_names=np.array(["$", "one"]),
    )  # fmt: skip
    return write(tmp_path, CONFIG, RESULTS, rows, gallery=arrays)


def test_report_page_is_self_contained_and_shows_every_result(workdir):
    path = run_report.write_report(workdir)
    parsed = page(path)  # well-formed, although the config contains HTML
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in path.read_text(encoding="utf-8")
    outside = [s for s in parsed.sources if not s.startswith(("data:image/", "#"))]
    assert outside == [] and parsed.alts and all(parsed.alts)
    html = path.read_text(encoding="utf-8")
    assert [s[1:] for s in parsed.sources if s[0] == "#" and f'id="{s[1:]}"' not in html] == []
    text = " ".join(parsed.text)
    for value in ("64.25 ± 5.50", "56.50 ± 4.12", "81.75 ± 3.00", "+25.25", "seed 3", "shots 1"):
        assert value in text, value
    assert not list(workdir.glob("*.partial"))


def text_of(workdir):
    """Write the report of a workdir, and return its text."""
    return " ".join(" ".join(page(run_report.write_report(workdir)).text).split())


def html_of(workdir):
    """Write the report of a workdir, and return its HTML."""
    return run_report.write_report(workdir).read_text(encoding="utf-8")


HEAD = ["metric", "raw", "untrained", "pretrained", "difference to untrained"]
CELLS = ["fewshot_1shot_top1", "64.25 ± 5.50", "56.50 ± 4.12", "81.75 ± 3.00", "+25.25"]


def results_of(workdir, rows):
    """Write a report of these results; return the cells of its tables."""
    (workdir / "results.json").write_text(json.dumps({"results": rows}))
    return tables(run_report.write_report(workdir), "results")


def test_every_result_is_in_the_cell_of_its_metric_and_features(workdir):
    half = [{**row, "metric": "second", "value": row["value"] / 2, "std": None} for row in RESULTS]
    rows = [*RESULTS[::-1], *half, {**RESULTS[2], "metric": "third"}]
    others = ["second", "32.12", "28.25", "40.88", "+12.62"], ["third", *"––", CELLS[3], "–"]
    assert results_of(workdir, rows) == [[HEAD, CELLS, *others]]


@pytest.mark.parametrize(
    "field", ["source", "dataset", "data", "bank", "split", "seed", "layer", "step"]
)
def test_report_has_separate_tables_for_results_that_cannot_be_compared(workdir, field):
    value = 200 if field == "step" else 7 if field == "seed" else "other"
    rows = [{**row, field: value, "value": row["value"] + 10} for row in RESULTS]
    if field == "step":  # Baselines have no step and are shown with both checkpoints.
        rows = rows[2:]
    first, second = results_of(workdir, [*RESULTS, *rows])
    assert first == [HEAD, CELLS]
    before = 56.5 if field == "step" else 66.5
    assert second[1][2:] == [f"{before:.2f} ± 4.12", "91.75 ± 3.00", f"{91.75 - before:+.2f}"]


def test_tables_of_several_checkpoints_are_in_the_order_of_their_steps(workdir):
    rows = [{**RESULTS[2], "step": step, "value": step / 10} for step in (50, 100, 1000)]
    tables = results_of(workdir, [*RESULTS[:2], *rows])
    assert [table[1][3] for table in tables] == ["5.00 ± 3.00", "10.00 ± 3.00", "100.00 ± 3.00"]


def test_raw_pixel_results_are_shown_beside_backbone_but_not_projector_results(workdir):
    layers = "pixels", "backbone", "backbone"
    rows = [{**row, "layer": layer} for row, layer in zip(RESULTS, layers, strict=True)]
    projector = [{**row, "layer": "projector"} for row in RESULTS[1:]]
    gain = [*CELLS[:1], "–", *CELLS[2:]]
    assert results_of(workdir, [*rows, *projector]) == [[HEAD, CELLS], [HEAD, gain]]


def test_baseline_results_without_a_pretrained_result_are_left_out(workdir):
    assert results_of(workdir, [*RESULTS, {**RESULTS[0], "metric": "other"}]) == [[HEAD, CELLS]]
    assert results_of(workdir, RESULTS[:2])[0][1] == [*CELLS[:3], "–", "–"]
    assert results_of(workdir, [{**RESULTS[2], "value": np.nan}])[0][1][3] == "not finite"


def test_protocol_settings_are_shown_per_column_where_they_differ(workdir):
    def details(row, C):
        return {**row, "details": {"preset": "fast", "max_iter": 500, "C": C}}

    rows = [details(row, C) for row, C in zip(RESULTS, (0.1, 1.0, 10.0), strict=True)]
    same = [details({**row, "metric": "second"}, 0.1) for row in RESULTS]
    repeated = [{**row, "metric": "third"} for row in same]
    results_of(workdir, [*rows, *same, *repeated])
    html = (workdir / "report.html").read_text("utf-8")
    notes = re.findall("<p><small>(.*?)</small></p>", html)
    assert notes == [
        "fewshot_<wbr>1shot_<wbr>top1: max_<wbr>iter 500, C 0.1 / 1 / 10",
        "second, third: max_<wbr>iter 500, C 0.1",
    ]
    assert "<h3>fewshot:fast <small>linear classifier on a few labels of each class" in html


@pytest.mark.parametrize(("steps", "length"), [(0, "5 epochs"), (70, "70 steps")])
def test_title_and_facts_of_the_report_describe_the_run(tmp_path, steps, length):
    metrics = [{**row, "images_per_second": 10.0**i} for i, row in enumerate(METRICS, 1)]
    rows = [changed(ROW, step=step, loss="mmcl (C=7)") for step in (50, 100, 80)]
    write(tmp_path, changed(COMPLETE, seed=3, total_steps=steps), rows, metrics)
    text = text_of(tmp_path)
    assert "digits: mmcl (C=7) with convnet" in text
    for fact in (f"length {length}", "evaluated checkpoint step 100", "seed 3", "batch size 64"):
        assert fact in text, fact
    assert "method siamese" in text and "speed 100 examples/s" in text


def test_wall_time_stands_below_the_summary(workdir):
    assert "wall time 584 s: evaluation 85.6 %, steps 10.3 %" in text_of(workdir)


def test_summary_compares_pretrained_accuracy_with_raw_and_untrained_baselines(workdir):
    other = [{**row, "protocol": "knn", "metric": "knn_top1", "std": None} for row in RESULTS]
    later = {**other[2], "step": 200, "value": 120.0}  # Above 100 %, the bar fills its track.
    grey = [{**row, "protocol": "linear", "unit": "grey levels"} for row in RESULTS]
    rows: list[Any] = [*RESULTS, *other, later, *grey]
    names = "raw", "untrained", "pretrained"
    knn = zip(names, ("64.25", "56.50", "120.00"), (64.25, 56.5, 100.0), strict=True)
    few = zip(names, CELLS[1:4], (64.25, 56.5, 81.75), strict=True)
    assert [(figure.name, figure.bars) for figure in run_report._key_figures(rows)] == [
        ("knn_top1 (knn:default)", list(knn)),
        ("fewshot_1shot_top1 (fewshot:default)", list(few)),
    ]
    results_of(workdir, rows)
    html = (workdir / "report.html").read_text("utf-8")
    assert '<i style="width: 64.2%"></i>' in html and '<i style="width: 100.0%"></i>' in html


def test_summary_leaves_out_baselines_of_another_layer():
    rows = [{**row, "layer": "backbone"} for row in RESULTS if row["features"] != "pretrained"]
    [figure] = run_report._key_figures([*rows, {**RESULTS[2], "layer": "projector"}])
    assert [kind for kind, *_ in figure.bars] == ["pretrained"]


@pytest.mark.parametrize("change", [{"layer": "projector"}, {"step": 1}])
def test_summary_shows_the_backbone_of_the_last_checkpoint_whatever_was_evaluated_last(change):
    rows = [{**row, "layer": "backbone"} for row in RESULTS]
    later = {**RESULTS[2], "layer": "backbone", "value": 1.0, **change}
    assert run_report._key_figures([*rows, later]) == run_report._key_figures(rows)


@pytest.mark.parametrize(
    ("spread", "text"),
    [
        ([0.9, 0.1], "collapse: standard deviation of the embeddings 0.10 of at most 1"),
        ([0.1, 0.9], "no collapse: standard deviation of the embeddings 0.90 of at most 1"),
        ([0.1, 0.9, None], "the embeddings of the last logged step are not finite"),
        ([], ""),
    ],
)
def test_summary_says_whether_the_embeddings_have_collapsed(spread, text):
    assert run_report.COLLAPSED_STD == collapse.COLLAPSED_STD
    metrics: list[Any] = [{"step": i, "feature_std": value} for i, value in enumerate(spread)]
    assert run_report._collapse(metrics, RESULTS) == text
    told: Any = {**RESULTS[2], "details": {"verdict": "dimensional collapse"}}
    earlier: Any = {**told, "step": 1, "details": {"verdict": "no collapse"}}
    projector: Any = {**earlier, "layer": "projector", "step": told["step"]}
    rows = [*RESULTS, told, earlier, projector]
    assert run_report._collapse(metrics, rows) == "dimensional collapse"


def test_confusion_section_names_the_worst_classes_and_shows_the_most_confused_pair():
    counts = [(0, 0, 9), (0, 1, 1), (1, 1, 5), (1, 2, 5), (2, 2, 4)]
    arrays = {**gallery_of(3), "nearest_classes": np.array(counts, np.int32)}
    arrays["query_label"] = np.resize([1, 2], len(arrays["query_label"]))
    section: Any = gallery._confusion(arrays)
    assert section["worst"] == [("class 1", 0.5), ("class 0", 0.9)]
    assert [cell.note for cell in section["pair"]] == ["class 1", "class 2"]
    assert [cell.image.alt[-7:] for cell in section["pair"]] == ["class 1", "class 2"]


@pytest.mark.parametrize("missing", ["gallery.npz", "metrics.jsonl", "results.json"])
def test_report_omits_sections_of_missing_files(workdir, missing):
    (workdir / missing).unlink()
    text = text_of(workdir)
    assert ("No evaluation was recorded" in text) == (missing == "results.json")


def test_report_has_a_results_table_for_each_data_set(workdir):
    other = [{**row, "dataset": "moons", "bank": "train[:5%]"} for row in RESULTS]
    table = {"preset": "default", "shots": 1, "confusion": [[1] * 20] * 20, "by_severity": {"1": 2}}
    last = {**RESULTS[2], "metric": "second", "details": table, "unit": "grey levels"}
    assert len(results_of(workdir, [*RESULTS, *other, last])) == 2
    html = (workdir / "report.html").read_text("utf-8")
    assert html.count("moons, fitted on train[:5%], tested on test") == 1
    # Settings that metrics share are shown once; dicts and long lists in details are left out.
    assert html.count("<p><small>shots 1</small></p>") == 2
    assert "second (grey levels)" in html
    assert "confusion 1" not in html and "confusion [" not in html and "severity" not in html


@pytest.fixture
def whole(tmp_path):
    """A workdir with all sections of a report."""
    return write(tmp_path / "run", gallery=gallery_of(10))


def test_report_shows_confusion_of_few_classes_as_a_matrix_of_percentages(whole):
    html = html_of(whole)
    page(whole / "report.html")
    [rows] = tables(whole / "report.html", "confusion")
    names = [f"class {i}" for i in range(10)]
    assert rows[0] == ["class", *names] and [row[0] for row in rows[1:]] == names
    for i, (_, *cells) in enumerate(rows[1:]):
        right, wrong = i + 7, 1 + i % 3
        expected = ["·"] * 10
        expected[i] = f"{100 * right / (right + wrong):.0f}"
        expected[(i + 1) % 10] = f"{100 * wrong / (right + wrong):.0f}"
        assert cells == expected
    total = sum(i + 7 + 1 + i % 3 for i in range(10))
    assert f"Of {total} test images, 115 ({11500 / total:.1f} %)" in " ".join(html.split())


@pytest.mark.parametrize(
    ("sizes", "text"), [({1: 4, 3: 4}, "4"), ({1: 4, 3: 9}, "4 to 9"), ({0: 9, 3: 2}, "2 to 9")]
)
def test_confusion_section_states_test_images_per_class(sizes, text):
    counts = np.array([(label, label, number) for label, number in sizes.items()], np.int32)
    names = np.array([f"class {i}" for i in range(5)])
    section = gallery._confusion({"class_names": names, "nearest_classes": counts})
    assert (section["class_size"], section["num_classes"]) == (text, 2)


def test_report_lists_the_most_confused_pairs_of_many_classes(tmp_path):
    html = html_of(write(tmp_path / "run", gallery=gallery_of(30)))
    assert '<table class="confusion">' not in html
    (table,) = re.findall(
        r'aria-label="table of most frequent confusions.*?</table>', html, re.DOTALL
    )
    rows = [cells_of(row) for row in table.split("<tr>")[2:]]
    assert len(rows) == 20
    assert rows[0] == ["class 2", "class 3", "25.0 %", "3 of 12"]
    shares = [float(row[2].split()[0]) for row in rows]
    assert shares == sorted(shares, reverse=True)


def test_report_marks_negatives_of_the_class_of_the_anchor(whole):
    text = text_of(whole)
    assert "62.5 % of the 3 hardest negatives are of the anchor's class, and 12.5 %" in text
    for words in (
        "37.5 % of the negatives are support vectors. 25.0 % have α = C = 0.5",
        "the anchor's class: 50.0 % of the support vectors, 75.0 % of the negatives with α = C",
        "C 0.5, gamma 0.5, kernel rbf",
    ):
        assert words in text, words


def test_alt_text_of_every_picture_names_the_shown_image(tmp_path):
    arrays, rng = gallery_of(10), np.random.default_rng(1)
    for name in ("pairs", "pairs_original", "query", "neighbour", "block"):
        shape = (*arrays[name].shape[:-3], 10, 6, 3)  # No other pictures are 10 x 6.
        arrays[name] = rng.integers(0, 256, shape, np.uint8)
    html = html_of(write(tmp_path / "run", gallery=arrays))
    shown = [(alt, pixels) for alt, pixels in pictures(html) if pixels.shape == (10, 6, 3)]
    names, expected = [str(name) for name in arrays["class_names"]], []
    for n, views in enumerate(arrays["pairs"], 1):
        expected += [(f"image {n}, original", arrays["pairs_original"][n - 1])]
        expected += [(f"image {n}, view {v}", view) for v, view in enumerate(views, 1)]
    for q, label in enumerate(arrays["query_label"]):
        expected += [(f"test image {q + 1}, {names[label]}", arrays["query"][q])]
        for k, other in enumerate(arrays["neighbour_label"][q]):
            name = f"{'' if other == label else '✗ '}{names[other]}"
            alt = f"neighbour {k + 1} of test image {q + 1}, {name}"
            expected += [(alt, arrays["neighbour"][q, k])]

    def of_block(alt, place, anchor=None):
        same = anchor is not None and arrays["block_label"][anchor] == arrays["block_label"][place]
        name = names[arrays["block_label"][place]]
        return f"{alt}, {'= ' if same else ''}{name}", arrays["block"][place]

    for q, anchor in enumerate(arrays["hard_query"]):
        expected += [of_block(f"anchor {q + 1}", anchor)]
        for k, place in enumerate(arrays["hard_place"][q]):
            alt = f"negative {k + 1} of anchor {q + 1}, {arrays['hard_similarity'][q, k]:.2f}"
            expected += [of_block(alt, place, anchor)]
    for q, anchor in enumerate(arrays["svm_query"]):
        expected += [of_block(f"anchor {q + 1}", anchor)]
        for k, column in enumerate(np.flatnonzero((arrays["svm_place"] >= 0).any(axis=0))):
            place, alpha = (arrays[name][q, column] for name in ("svm_place", "svm_alpha"))
            text = "α = C" if alpha == arrays["svm_C"] else f"α {alpha:.2g}"
            if place >= 0:
                alt = f"negative {k + 1} of anchor {q + 1}, {text}"
                expected += [of_block(alt, place, anchor)]
    assert [alt for alt, _ in shown] == [alt for alt, _ in expected]
    for (alt, pixels), (_, original) in zip(shown, expected, strict=True):
        np.testing.assert_array_equal(pixels, original, err_msg=alt)


def test_thumbnail_averages_blocks_of_pixels(monkeypatch):
    rows, columns = np.mgrid[:131, :260]
    large = (rows + columns // 3)[..., None].astype(np.uint8)  # smooth, because JPEG is not exact
    [(_, pixels)] = pictures(f'<img alt="x" src="{images.thumbnail(large, "x").src}"')
    block = lambda i, j: large[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]  # noqa: E731
    expected = [[block(i, j).mean() for j in range(130)] for i in range(65)]
    np.testing.assert_allclose(pixels[:, :, 1], np.floor(expected), atol=3)
    stack = np.stack([large, 255 - large])
    np.testing.assert_array_equal(images.shrink(stack)[0], np.floor(expected)[..., None])
    np.testing.assert_array_equal(images.shrink(stack[:, :60]), stack[:, :60])


@pytest.fixture
def figures(monkeypatch):
    """Return the list of figures that are drawn."""
    drawn = []

    def figure_png(figure, **options):
        drawn.append(figure)
        return images.figure_png(figure, **options)

    for module in (curves, gallery):
        monkeypatch.setattr(module, "figure_png", figure_png)
    return drawn


def test_training_curves_show_each_metric_by_step(figures):
    rows = [{**row, "alignment": row["loss"] / 3, "uniformity": -row["loss"]} for row in METRICS]
    rows[1]["effective_rank"] = None
    made = curves.run_curves(rows)
    lines = {line.get_label(): line.get_xydata() for f in figures for line in f.axes[0].lines}
    assert all(figure.axes[0].get_xlim()[0] == 0 for figure in figures)
    assert {"loss", "feature std", "effective rank", "knn top1", "alignment"} <= set(lines)
    for name, points in lines.items():
        values = [np.nan if (v := row[name.replace(" ", "_")]) is None else v for row in rows]
        np.testing.assert_allclose(points, np.stack([[20, 40, 60], values], 1), err_msg=name)
    [alt] = [image.alt for image in made if "loss" in image.alt.split()]
    assert alt.endswith(": loss from 1 to 0.3333")


def test_second_line_of_a_training_curve_is_dashed_and_has_its_own_number_of_gaps(figures):
    rows = [{"step": i, "negative_similarity": None if i else 0.5} for i in range(3)]
    [image] = curves.run_curves(rows)
    [line] = figures[0].axes[0].lines
    assert (line.get_label(), line.get_linestyle()) == ("negative similarity", "--")
    assert "2 of 3 values of negative similarity are not finite" in image.caption


def test_finite_values_between_gaps_of_a_curve_are_visible_and_named(figures):
    rows = [{"step": i, "loss": 1 / i if i % 2 == 0 else None} for i in range(1, 82)]
    [image] = curves.run_curves(rows)
    assert figures[0].axes[0].lines[0].get_marker() == "."
    assert image.alt.endswith("loss from 0.5 to 0.0125")


def test_legend_of_the_scatter_plot_lies_inside_the_figure(figures):
    arrays = gallery_of(4)
    for names in (["airplane", "ship", "truck", "automobile"], ["permanent crop " * 9] * 4):
        gallery.gallery_sections({**arrays, "class_names": np.array(names)}, {})
        legend, width = figures[-1].legends[0].get_window_extent(), figures[-1].bbox.width
        assert legend.x0 >= 0 and legend.x1 <= width and legend.y0 >= 0, names


def test_scatter_plot_shows_the_embeddings_of_each_class_and_its_name_at_their_median(figures):
    arrays = gallery_of(4)
    # The first 7 points of the plot are unlabelled.
    arrays["map_label"] = np.where(np.arange(60) < 7, -1, arrays["map_label"])
    image: Any = gallery.gallery_sections(arrays, {})["map"]
    assert image.alt == "map of 60 test examples of 4 classes"
    [axes] = figures[0].axes
    for cloud, label in zip(axes.collections, (-1, 0, 1, 2, 3), strict=True):
        points = arrays["map"][arrays["map_label"] == label]
        assert cloud.get_label() == (f"class {label}" if label >= 0 else "unlabelled")
        np.testing.assert_allclose(cloud.get_offsets(), points)
    for text, label in zip(axes.texts, range(4), strict=True):
        points = arrays["map"][arrays["map_label"] == label]
        assert text.get_text() == f"class {label}"
        np.testing.assert_allclose(text.get_position(), np.median(points, axis=0))


def test_report_on_a_gallery_of_an_earlier_version_has_a_note(workdir):
    path = workdir / "my run"
    path.symlink_to(workdir)
    text = text_of(path)
    assert f"jaxssl eval --workdir '{path}'" in text
    assert "loss auc_ cl network convnet" in text  # The results do not record the loss.
    assert "(1 of the 5 labelled neighbours shown)" in text
    assert "made by an earlier version" in text and "Hardest negatives" not in text


@pytest.mark.parametrize("alpha", [0.4, 0.0])
def test_report_suspects_no_false_negatives_below_the_similarity_bound(tmp_path, alpha):
    arrays = gallery_of(4)
    arrays["svm_alpha"] = np.minimum(arrays["svm_alpha"], alpha)
    arrays["svm_share"] = np.array([0.1, 0.0, np.nan, np.nan, np.nan])
    text = text_of(write(tmp_path / "run", gallery=arrays))
    assert "No negative has α = C = 0.5" in text and "of the support vectors" not in text


def test_report_of_an_unlabelled_set_has_no_confusion_section(tmp_path):
    arrays = gallery_of(4)
    for name in ("block_label", "query_label", "neighbour_label", "map_label"):
        arrays[name] = np.full_like(arrays[name], -1)
    del arrays["nearest_classes"]
    arrays |= {"hard_share": np.full(2, np.nan), "class_names": np.array([], "<U1")}
    arrays["svm_share"] = np.array([0.5, 0.25, np.nan, np.nan, np.nan])
    parsed = page(run_report.write_report(write(tmp_path / "run", gallery=arrays)))
    text = " ".join(parsed.text)
    assert "Confusion" not in text and "The images have no labels" in text
    assert "negative 1 of anchor 1, 0.75" in parsed.alts and "✗" not in text
    assert "map of 60 test examples without labels" in parsed.alts


@pytest.mark.parametrize("name", ["block", "hard_place", "svm_alpha", "nearest_classes"])
def test_report_error_names_a_damaged_gallery_file(tmp_path, name):
    arrays = gallery_of(4)
    arrays[name] = np.array(["x"])
    with pytest.raises(UserError, match="gallery.npz is damaged"):
        run_report.write_report(write(tmp_path / "run", gallery=arrays))


def test_report_images_and_tables_have_names_for_screen_readers(whole):
    html = html_of(whole)
    assert all(page(whole / "report.html").alts)
    regions = re.findall(r'<div class="scroll".*?>', html)
    assert len(regions) == html.count("<table") == 6
    assert all('tabindex="0"' in region and 'role="region"' in region for region in regions)

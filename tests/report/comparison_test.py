"""The page that compares runs, and the command `jaxssl report`."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
from fuzz_cases import changed as changes
from fuzz_cases import fuzzed, outcome, texts
from hypothesis import given
from hypothesis import strategies as st
from marks import long_except
from page_cases import page, tables
from workdir_cases import CONFIG, METRICS, ROW, TIMES, changed, write

from jaxssl.errors import UserError
from jaxssl.report import curves, images
from jaxssl.report.comparison import _run_table, write_comparison, write_page
from jaxssl.report.runs import group_by_seed, read_runs

OTHER = changed(CONFIG, loss={"name": "auc_cl", "b": 0.5})
OF_OTHER = changed(ROW, loss="auc_cl", value=95.0)


def visible_text(path: Path) -> str:
    """Return the text of a page, after checking that the page is well-formed."""
    parser = page(path)
    assert all(parser.alts)
    assert all(source.startswith(("data:", "#")) for source in parser.sources)
    return " ".join(" ".join(parser.text).split())


@pytest.fixture
def two(tmp_path):
    """Return two workdirs with different losses, and a path for their comparison."""
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", OTHER, [OF_OTHER])
    return a, b, tmp_path / "out.html"


def test_comparison_shows_two_runs_side_by_side(two):
    *workdirs, out = two
    text = visible_text(write_comparison(workdirs, out))
    runs, figures = tables(out, "results")
    assert runs[1] == [*"a digits convnet siamese 64 5 0 100 1,000".split(), "1 min 6 s"]
    assert figures == [["metric", "a", "b"], ["knn_top1", "90.00", "95.00 ★"]]
    (differences,) = tables(out, "config differences")
    assert differences == [
        ["key", "a", "b"],
        ["loss.b", "–", "0.5"],
        ["loss.gamma", "0.5", "–"],
        ["loss.name", "mmcl", "auc_cl"],
    ]
    assert "mmcl (gamma=0.5)" in text and "online" not in text
    assert out.read_text("utf-8").count("<img") == 3  # plots of k-NN, feature std and rank
    assert "curves of effective rank by epoch: a from 9 to 9; b" in out.read_text("utf-8")


def test_runs_that_differ_only_in_the_seed_share_a_column(tmp_path):
    values, names = (90.0, 92.0, 97.0), ("s0", "s1", "s2")
    workdirs = [write(tmp_path / "other", OTHER, [OF_OTHER])]
    for seed, (name, value) in enumerate(zip(names, values, strict=True)):
        config = changed(CONFIG, seed=seed, data__dir=name)
        rows = [changed(ROW, seed=seed, value=value, std=9.0)]
        workdirs.insert(seed, write(tmp_path / name, config, rows))
    text = visible_text(write_comparison(workdirs, tmp_path / "out.html"))
    _, figures = tables(tmp_path / "out.html", "results")
    assert figures[0] == ["metric", "s0, s1, s2", "other"]
    assert figures[1] == ["knn_top1", f"93.00 ± {stdev(values):.2f}", "95.00 ★"]
    assert "s0, s1, s2 (3 seeds)" in text
    (differences,) = tables(tmp_path / "out.html", "config differences")
    assert differences[-1] == ["seed", "0, 1, 2", "0"]


def test_comparison_shows_the_number_of_seeds_if_some_lack_a_result(tmp_path):
    linear = changed(ROW, protocol="linear", metric="linear_top1", std=1.5)
    a = write(tmp_path / "a", rows=[ROW, linear])
    b = write(tmp_path / "b", changed(CONFIG, seed=1), [changed(ROW, seed=1)])
    write_comparison([a, b], tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text("utf-8")
    assert "90.00 ± 0.00<small>2 seeds</small>" in html
    assert "90.00 ± 1.50<small>1 of 2 seeds</small>" in html
    c = write(tmp_path / "c", OTHER, [changed(linear, loss="mmcl", value=80.0)])
    write_comparison([a, b, c], tmp_path / "out.html")
    assert "90.00 ± 1.50<small>1 of 2 seeds</small>" in (tmp_path / "out.html").read_text("utf-8")


def test_comparison_shows_settings_in_full_precision(tmp_path):
    gammas = "0.12345678", "0.12345679"
    paths = [write(tmp_path / x, changed(CONFIG, loss__gamma=float(x))) for x in gammas]
    write_comparison(paths, tmp_path / "out.html")
    (differences,) = tables(tmp_path / "out.html", "config differences")
    assert differences[1] == ["loss.gamma", *gammas]


@pytest.mark.parametrize(
    ("config", "row"),
    [
        ({}, {}),  # equal seeds are not averaged in one column
        ({"seed": 1}, {"seed": 1, "step": 80}),
        ({"seed": 1, "epochs": 6}, {"seed": 1}),
    ],
)
def test_runs_that_differ_in_more_than_the_seed_have_separate_columns(tmp_path, config, row):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", changed(CONFIG, **config), [changed(ROW, **row)])
    write_comparison([a, b], tmp_path / "out.html")
    assert tables(tmp_path / "out.html", "results")[1][0] == ["metric", "a", "b"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"dataset": "moons"}, "data set (digits / moons)"),
        ({"split": "test[:50%]"}, "tested on (test / test[:50%])"),
        ({"bank": "train[:5%]"}, "fitted on (train / train[:5%])"),
        ({"layer": "projector"}, "features (backbone / projector)"),
        ({"content": "5e11f9"}, "data content (3b9ac1 / 5e11f9)"),
    ],
)
def test_comparison_has_separate_tables_for_results_on_different_data(two, other, why):
    a, b, out = two
    write(b, OTHER, [changed(OF_OTHER, **other)])
    text = visible_text(write_comparison([a, b], out))
    _, *figures = tables(out, "results")
    assert [table[0] for table in figures] == [["metric", "a"], ["metric", "b"]]
    assert "There are 2 tables. Results of different tables cannot be compared" in text
    assert why in text and "★ and bold" in text and "95.00 ★" not in text
    assert text.count("there is nothing to compare") == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [{"details": {"preset": "uniform"}}, {"protocol": "linear", "metric": "linear_top1"}],
            [["90.00", "–"], ["–", "95.00"], ["–", "95.00"]],
        ),
        ([{"unit": "nats"}], [["90.00", "–"], ["–", "95.00"]]),
        ([{"value": 90.001}], [["90.00", "90.00"]]),  # equal when rounded: none is marked as best
    ],
)
def test_comparison_has_a_row_for_each_protocol_preset_and_unit(two, rows, expected):
    a, b, out = two
    write(b, OTHER, [changed(OF_OTHER, **row) for row in rows])
    write_comparison([a, b], out)
    _, figures = tables(out, "results")
    assert [row[1:] for row in figures[1:]] == expected
    assert figures[-1][0] == ("knn_top1 (nats)" if "unit" in rows[0] else figures[-1][0])


def test_curves_show_each_seed_by_epoch_in_the_style_of_its_column(tmp_path, monkeypatch):
    figures = []
    draw = lambda figure: figures.append(figure) or images.figure_png(figure)  # noqa: E731
    monkeypatch.setattr(curves, "figure_png", draw)
    paths = []
    for i, config in enumerate((CONFIG, changed(CONFIG, seed=1), OTHER)):
        metrics = [{**row, "knn_top1": row["knn_top1"] + i} for row in METRICS]
        paths.append(write(tmp_path / str(i), config, [changed(ROW, seed=i % 2)], metrics))
    groups = group_by_seed(read_runs(paths))
    made = curves.comparison_curves(groups)
    [knn] = [f for f, image in zip(figures, made, strict=True) if "k-NN" in image.alt]
    for i, line in enumerate(knn.axes[0].lines):
        epochs, values = [1, 2, 3], [81 + i, 82 + i, 83 + i]
        np.testing.assert_array_equal(line.get_xydata(), np.stack([epochs, values], axis=1))
    styles = [(line.get_color(), line.get_linestyle()) for line in knn.axes[0].lines]
    assert styles[0] == styles[1] != styles[2]
    assert [text.get_text() for text in knn.legends[0].get_texts()] == ["0, 1", "2"]
    assert made[0].alt.endswith(": 0 from 81 to 83; 1 from 82 to 84; 2 from 83 to 85")


def test_curves_of_a_comparison_have_at_most_ten_markers(tmp_path, monkeypatch):
    figures = []
    draw = lambda figure: figures.append(figure) or images.figure_png(figure)  # noqa: E731
    monkeypatch.setattr(curves, "figure_png", draw)
    metrics = [{"step": i, "epoch": float(i), "knn_top1": 50.0} for i in range(19)]
    curves.comparison_curves(group_by_seed(read_runs([write(tmp_path / "a", metrics=metrics)])))
    [line] = figures[0].axes[0].lines
    assert len(range(0, 19, line.get_markevery())) == 10


def test_legend_names_differ_if_runs_differ_only_in_the_middle_of_their_names(tmp_path):
    ends = "loss.name=info_nce,loss.temperature=", ",optim.lr=0.001,schedule.warmup_epochs=3"
    names = [f"{ends[0]}{value}{ends[1]}" for value in (0.1, 0.2)]
    paths = [write(tmp_path / name, changed(CONFIG, loss__gamma=i)) for i, name in enumerate(names)]
    labels = curves._legend_labels(group_by_seed(read_runs(paths)))
    assert [label.replace("\n", "") for label in labels] == names
    assert max(len(line) for label in labels for line in label.splitlines()) <= 40


LOWER_IS_BETTER = "corruption_drop", "dead_dimensions", "most_confused_pair"


@pytest.mark.parametrize("metric", ["knn_top1", *LOWER_IS_BETTER, "rankme"])
def test_comparison_marks_the_best_result_by_metric_direction(two, metric):
    a, b, out = two
    unit = "" if metric == "rankme" else "%"
    write(a, CONFIG, [changed(ROW, metric=metric, unit=unit)])
    write(b, OTHER, [changed(OF_OTHER, metric=metric, unit=unit)])
    write_comparison([a, b], out)
    _, figures = tables(out, "results")
    marked = [name for name, cell in zip(*figures, strict=True) if "★" in cell]
    assert marked == {"rankme": [], "knn_top1": ["b"]}.get(metric, ["a"])


def test_comparison_shows_the_latest_checkpoint_and_counts_the_others(two):
    a, b, out = two
    rows = [
        changed(ROW, step=50, value=99.0),
        changed(ROW, features="raw", step=None, value=98.0),
        changed(ROW, features="untrained", step=0, value=98.5),
        changed(ROW, seed=7, value=97.0),
        ROW,
    ]
    write(a, CONFIG, rows)
    text = visible_text(write_comparison([a, b], out))
    assert tables(out, "results")[1][1] == ["knn_top1", "90.00", "95.00 ★"]
    assert "Left out are 2 results of other checkpoints" in text


def test_runs_without_results_are_compared_by_their_configs(two):
    a, b, out = two
    for path in (a, b):
        for name in ("results.json", "metrics.jsonl", "goodput.json"):
            (path / name).unlink()
    text = visible_text(write_comparison([a, b], out))
    assert "None of these runs was evaluated" in text and "No training curve" in text
    assert tables(out, "results")[0][1][6:] == ["0", "–", "–", "–"]


def test_run_without_results_has_the_loss_name_of_an_evaluated_run_with_equal_settings(two):
    a, b, out = two
    for config, title in ((CONFIG, "2 runs: mmcl (gamma=0.5)"), (OTHER, None)):
        write(b, config, rows=[])
        text = visible_text(write_comparison([b, a], out))
        assert (title or "2 runs: auc_cl, mmcl (gamma=0.5)") + " Runs" in text


def test_comparison_caption_names_runs_without_a_curve_and_different_settings(two):
    a, b, out = two
    write(b, OTHER, metrics=[{**row, "knn_top1": None} for row in METRICS])
    assert "higher is better. Not recorded: b." in visible_text(write_comparison([a, b], out))
    write(b, changed(OTHER, eval__knn="instdisc", data__train_split="train[:9]"))
    words = "Runs cannot be compared where these settings differ: eval.knn, data.train_split."
    assert words in visible_text(write_comparison([a, b], out))


def test_runs_with_one_bank_are_compared_although_they_trained_on_different_splits(two):
    a, b, out = two
    write(a, changed(CONFIG, data__bank_split="train[:9]"))
    write(b, changed(OTHER, data__bank_split="train[:9]", data__train_split="train[:50%]"))
    assert "Runs cannot be compared" not in visible_text(write_comparison([a, b], out))


def without_content(row, **changes):
    """A row of a version that did not record a digest of the data."""
    return changed({key: value for key, value in row.items() if key != "content"}, **changes)


@pytest.mark.parametrize(
    "name",
    long_except(
        ("folder", "/x/pets.py:load"),
        ("folder", "python", "video", "tu", "tar_shards", "/x/pets.py:load"),
    ),
)
@pytest.mark.parametrize("key", ["path", "test_fraction", "split_seed"])
def test_results_without_a_digest_of_the_data_are_compared_by_the_settings(two, name, key):
    a, b, out = two
    shown = {name: name for name in ("python", "tar_shards")} | {"/x/pets.py:load": "pets.py:load"}
    old = without_content(OF_OTHER, dataset=shown.get(name, "set"))
    for workdir, value in ((a, "one/set"), (b, "two/set")):
        config = changed(OTHER, data__name=name, data__path="x/set")
        write(workdir, changed(config, **{f"data__{key}": value}), [old])
    text = visible_text(write_comparison([a, b], out))
    assert len(tables(out, "results")) == 3 and f"data.{key} (one/set / two/set)" in text


def test_results_without_a_digest_are_compared_by_the_path_of_the_class_list(two):
    a, b, out = two
    for workdir, path in ((a, "x/low.txt"), (b, "y/low.txt")):
        old = without_content(OF_OTHER, dataset="digits (low.txt)")
        write(workdir, changed(OTHER, data__classes=path), [old])
    text = visible_text(write_comparison([a, b], out))
    assert len(tables(out, "results")) == 3 and "data.classes (x/low.txt / y/low.txt)" in text


@pytest.mark.parametrize("form", [dict, without_content])
def test_run_of_a_version_without_a_data_setting_shares_the_table_of_later_runs(two, form):
    a, b, out = two
    old = {key: value for key, value in CONFIG["data"].items() if key != "classes"}
    write(a, changed(CONFIG, data=old), [form(ROW)])
    write(b, OTHER, [form(OF_OTHER)])
    text = visible_text(write_comparison([a, b], out))
    _, figures = tables(out, "results")
    assert figures[0] == ["metric", "a", "b"] and "data.classes None" not in text
    assert "Runs cannot be compared" not in text


@pytest.mark.parametrize("form", [dict, without_content])
def test_run_transferred_to_the_data_of_another_shares_its_table(two, form):
    a, b, out = two
    for workdir, name, row in ((a, "digits", ROW), (b, "moons", OF_OTHER)):
        write(workdir, changed(OTHER, data__name=name), [form(row)])
    write_comparison([a, b], out)
    assert [table[0] for table in tables(out, "results")[1:]] == [["metric", "a", "b"]]


def test_comparison_shows_results_on_the_own_data_of_the_latest_step(two):
    a, *_ = two
    online = changed(ROW, protocol="online", metric="last", data="own", value=50.0, step=90)
    own = changed(ROW, data="own", value=70.0)
    other = changed(own, data="x", content="5e11f9", value=90.0)
    rows = [online, changed(online, value=60.0, step=100), other, own]
    write(a, CONFIG, rows)
    [run] = read_runs([a])
    assert {row["value"] for row in run.rows} == {60.0, 70.0}
    # Online metrics of a later checkpoint, whose evaluation was stopped, hide no other results.
    write(a, CONFIG, [online, changed(online, value=60.0, step=200), own])
    [run] = read_runs([a])
    assert run.step == 100 and {row["value"] for row in run.rows} == {60.0, 70.0}


@pytest.mark.parametrize(
    ("steps", "shown"), [(7500.0, "2 h 5 min"), (float("nan"), "–"), (None, "–"), ("x", "–")]
)
def test_comparison_shows_training_hours_or_a_dash_if_they_are_unknown(two, steps, shown):
    """The time counts neither evaluation nor the set-up and restarts of a resumed run."""
    a, b, out = two
    write(a, times=TIMES | {"steps": steps})
    write_comparison([a, b], out)
    assert [row[-1] for row in tables(out, "results")[0]] == ["time", shown, "1 min 6 s"]


def test_runs_with_equal_folder_names_are_shown_by_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x" / "run")
    write(tmp_path / "y" / "run", OTHER, [OF_OTHER])
    write_comparison([Path("x/run"), Path("y/run")], Path("out.html"))
    assert tables(Path("out.html"), "results")[1][0] == ["metric", "x/run", "y/run"]


# ---- The table that describes the compared runs.


def described(workdir):
    """Return the row of the table of runs by its headings."""
    table = _run_table(read_runs([workdir]))
    return dict(zip(table.head, table.rows[0], strict=True))


@pytest.mark.fast
def test_table_of_runs_compares_results_of_every_layer_data_set_and_preset(tmp_path):
    changes = ({"layer": "projector"}, {"dataset": "moons"}, {"bank": "train[:5%]"})
    changes += ({"split": "all"}, {"protocol": "linear"}, {"metric": "other"})
    changes += ({"details": {"preset": "uniform"}},)
    rows = [ROW, *(changed(ROW, **change) for change in changes)]
    [run] = read_runs([write(tmp_path, rows=[*rows, changed(ROW, seed=7)])])
    assert (run.rows, run.left_out) == (rows, 1)
    # A row that is added later replaces an equal one, such as one of a renamed folder.
    newest = changed(ROW, source="renamed", value=1.5)
    [run] = read_runs([write(tmp_path, rows=[*rows, newest])])
    assert run.rows[0] == newest


@pytest.mark.fast
def test_speed_in_the_comparison_is_the_median_over_logged_steps(tmp_path):
    # A run is slow in its first steps, and a step without a speed is left out.
    speeds = 10.0, 2000.0, None, 30.0
    write(tmp_path, metrics=[{**METRICS[0], "images_per_second": speed} for speed in speeds])
    assert described(tmp_path)["examples/s"] == "30"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("changes", "length"),
    [({}, "5"), ({"epochs": 2.5}, "2.5"), ({"total_steps": 70}, "70 steps")],
)
def test_run_length_is_in_steps_if_total_steps_replaces_the_epochs(tmp_path, changes, length):
    write(tmp_path, changed(CONFIG, **changes))
    assert described(tmp_path)["epochs"] == length


@pytest.mark.fast
@pytest.mark.parametrize(
    ("changes", "metrics", "step"),
    [
        ({}, METRICS, "100"),
        ({"epochs": 7.5}, METRICS, "100 of 150"),
        ({"total_steps": 200}, METRICS, "100 of 200"),
        ({"epochs": "x"}, METRICS, "100"),
        ({"epochs": 7.5}, [], "100"),
    ],
)
def test_step_of_an_unfinished_run_is_shown_with_the_length_of_training(
    tmp_path, changes, metrics, step
):
    write(tmp_path, changed(CONFIG, **changes), metrics=metrics)
    assert described(tmp_path)["step"] == step


# ---- The command `jaxssl report`.


def test_report_command_reports_one_run_and_compares_several(two, monkeypatch, run_command):
    a, b, out = two
    assert write_page([a], out) == out and not (a / "report.html").exists()
    monkeypatch.chdir(a.parent)
    for names, message, loss in (
        (["a"], "report: a/report.html\n", "mmcl"),
        (["a", "b"], "comparison: compare.html\n", "auc_cl"),
    ):
        assert run_command("report", *names)[:2] == (0, message)
        assert loss in visible_text(Path(message.split()[1]))
    files = {"config.json", "metrics.jsonl", "results.json", "train.log", "goodput.json"}
    assert {path.name for path in b.iterdir()} == files


def test_pages_are_written_without_importing_jax(two):
    code = f"""import sys; from pathlib import Path; from jaxssl.report.comparison import write_page
a, b, out = map(Path, {list(map(str, two))})
write_page([a], out), write_page([a, b], out)
print("jax" in sys.modules)"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


@pytest.mark.parametrize(
    ("names", "out", "message"),
    [
        ("", None, "name one run or more: jaxssl report DIR"),
        ("a nowhere", None, "nowhere is not a folder; pass the workdirs of runs"),
        ("a .", None, r"\. holds no run \(no config.json\)"),
        (".", None, r"\. holds no run \(no config.json\)"),
        ("a b a/../a", None, "a/../a and a are the same folder"),
        ("a a", None, "a and a are the same folder; name each run once"),
        ("a b", "x.png", "--out must end in .html, got x.png"),
        ("a b", "none/x.html", "cannot write none/x.html: No such file or directory"),
        ("a", "none/x.html", "cannot write none/x.html: No such file or directory"),
        ("a b", "dir.html", "cannot write dir.html: Is a directory"),
    ],
)
def test_report_command_rejects_wrong_arguments(two, monkeypatch, names, out, message):
    monkeypatch.chdir(two[0].parent)
    Path("dir.html").mkdir()
    with pytest.raises(UserError, match=message):
        write_page([Path(name) for name in names.split()], out and Path(out))
    assert not Path("compare.html").exists()


@pytest.mark.parametrize("name", ["config.json", "results.json", "metrics.jsonl"])
def test_comparison_of_a_damaged_run_names_the_file_and_writes_no_page(two, name):
    a, b, out = two
    broken = {"metrics.jsonl": '{"step": 3, "loss": "x"}\n'}
    (b / name).write_text(broken.get(name, "[1,"))
    with pytest.raises(UserError, match=f"{b / name} is damaged"):
        write_comparison([a, b], out)
    assert not out.exists()


@pytest.mark.long
@fuzzed(150)
@given(
    config=texts(CONFIG),
    rows=texts({"results": [ROW, changed(ROW, seed=1)]}),
    lines=changes(METRICS),
    times=texts({"seconds": TIMES, "time": 1.0, "ended": True}),
    which=st.sampled_from(("config.json", "results.json", "metrics.jsonl", "goodput.json")),
)
def test_fuzzed_workdirs_give_a_page_or_a_one_line_error(below, config, rows, lines, times, which):
    a, b = write(below / "a"), write(below / "b", OTHER, [OF_OTHER])
    metrics = "".join(json.dumps(row) + "\n" for row in lines).encode()
    bad = {"config.json": config, "results.json": rows, "goodput.json": times}
    (b / which).write_bytes({**bad, "metrics.jsonl": metrics}[which])
    outcome(f"comparison: {which}", lambda: write_comparison([a, b], below / "out.html"), below)

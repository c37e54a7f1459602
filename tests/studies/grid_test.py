"""Grids of runs: training, resuming, and sharing of runs between studies."""

import copy
import functools
import importlib
import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from file_cases import refused
from jax import numpy as jnp
from ml_collections import ConfigDict
from tiny import short

from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain
from jaxssl.losses.auc_cl import PRESETS
from jaxssl.studies import documents, grid, run_results
from jaxssl.studies.cells import cell_config, portable_config, run_name
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.run_results import RunResult, describe_each_run, last_values, metric_curve
from jaxssl.studies.study import Setting

CONFIG = "studies:tiny"
SMALL = short(3, log_every="1")
CELLS = {"nt_xent": {}, "auc_cl": {"loss.name": "auc_cl"}}


@pytest.fixture(scope="module")
def setting(tmp_path_factory, data_dir):
    overrides = (*SMALL.items(), ("data.dir", str(data_dir)))
    return Setting("tiny", CONFIG, "", 1, tmp_path_factory.mktemp("grid"), overrides)


@pytest.fixture(scope="module")
def results(setting):
    return grid.run_grid(setting, CELLS)


@pytest.mark.long
def test_every_cell_of_a_study_grid_is_trained_and_evaluated(setting, results):
    assert list(results) == list(CELLS)
    for [result] in results.values():
        assert result.seed == 0 and set(result.metrics) == {grid.KNN, grid.LINEAR}
        assert all(10 < value <= 100 for value in result.metrics.values())
        assert result.history[-1]["step"] == 3
        assert not (result.workdir / "report.html").exists()
    assert grid.describe_runs(results) == "digits (train), 3 steps, 1 seed"


def made_up_grid():
    """Return the results of two arms at three x, which all differ."""

    def run(value, seed):
        metrics = {grid.KNN: value + seed, grid.LINEAR: 60 + value - seed}
        history = [{"epoch": e, "loss": 100 * seed + e} for e in (1.0, 2.0)]
        return RunResult(seed, Path("nowhere"), metrics, history, 60.0)

    return {
        (arm, x): [run(10 * i + j, seed) for seed in range(3)]
        for i, arm in enumerate("ab")
        for j, x in enumerate((16, 64, 256))
    }


BASE = {"raw": {grid.KNN: 1.0, grid.LINEAR: 2.0}, "untrained": {grid.KNN: 3.0, grid.LINEAR: 4.0}}


@pytest.mark.parametrize("metric", [grid.KNN, grid.LINEAR])
def test_accuracy_table_of_a_grid_has_every_value_in_the_right_cell(metric):
    results = made_up_grid()
    del results["b", 64]
    table = grid.accuracy_table(results, "B", metric, BASE)
    assert tuple(table.heading) == ("", "B 16", "B 64", "B 256")
    first = 1 if metric == grid.KNN else 59
    assert [list(row) for row in table.rows] == [
        ["a", *(f"{first + j:.2f} ± 1.00" for j in range(3))],
        ["b", f"{first + 10:.2f} ± 1.00", "–", f"{first + 12:.2f} ± 1.00"],
        ["raw, no training", *[f"{BASE['raw'][metric]:.2f}"] * 3],
        ["untrained, no training", *[f"{BASE['untrained'][metric]:.2f}"] * 3],
    ]
    assert table.title == grid.METRIC_NAMES[metric]


def test_accuracy_plot_shows_mean_and_deviation_of_every_compared_method():
    picture = grid.accuracy_picture(made_up_grid(), "B", grid.KNN, BASE)
    axes: Any = picture.figure.axes[0]
    for i, (line, _, (bars,)) in enumerate(axes.containers):
        means = 10 * i + 1 + np.arange(3)
        np.testing.assert_allclose(line.get_xydata(), np.stack([[16, 64, 256], means], 1))
        ends = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(ends, np.stack([means - 1, means + 1], 1))
    assert [container.get_label() for container in axes.containers] == ["a", "b"]
    levels = {text.get_text(): text.xy[1] for text in axes.texts}
    assert levels == {"raw": 1.0, "untrained": 3.0}


def test_grid_results_are_grouped_by_cell_metric_and_seed():
    results = made_up_grid()
    pairs = grid.pair_values(results, grid.above("b", "a", (64,), grid.LINEAR, "B={}"))
    assert pairs == {"B=64": ([71, 70, 69], [61, 60, 59])}
    expected = {grid.KNN: [2, 3, 4], grid.LINEAR: [62, 61, 60]}
    assert grid.metrics_by_cell(results)["a", 256] == expected
    epochs, losses = metric_curve(results["a", 16], "loss")
    assert (epochs, losses) == ([1.0, 2.0], [[1, 101, 201], [2, 102, 202]])
    assert last_values(results["a", 16], "loss") == [2, 102, 202]
    assert np.isnan(last_values(results["a", 16], "unknown")).all()
    # One of three runs was interrupted, which adds a row, and another one diverged.
    first, second, third = results["a", 16]
    more = first._replace(history=[{"epoch": 0.1, "loss": 9}, *first.history])
    assert metric_curve([more, second, third], "loss") == (epochs, losses)
    _, of_lost = metric_curve([more, second, third._replace(history=third.history[:1])], "loss")
    assert of_lost[0] == [1, 101, 201] and of_lost[1][:2] == [2, 102] and math.isnan(of_lost[1][2])
    long = first._replace(history=[{"epoch": i, "loss": 0} for i in range(40)])
    assert metric_curve([long], "loss", points=20)[0] == list(range(0, 40, 2))


def test_rerunning_a_finished_grid_trains_nothing(setting, results, monkeypatch):
    monkeypatch.setattr(pretrain, "train", None)
    assert grid.run_grid(setting, CELLS) == results


def test_stopped_study_grid_says_how_to_resume(setting, results, monkeypatch, capsys):
    monkeypatch.setattr(pretrain, "train", Mock(side_effect=SystemExit(130)))
    with pytest.raises(SystemExit):
        grid.run_grid(setting, {**CELLS, "new": {"loss.temperature": 0.3}})
    assert "run the same command to resume" in capsys.readouterr().err


def test_grid_baselines_are_raw_pixels_and_an_untrained_network(setting, results):
    [result] = results["nt_xent"]
    base = grid.baselines(result)
    assert set(base) == {"raw", "untrained"}
    assert base == grid.baselines(result)
    assert base["raw"][grid.KNN] == pytest.approx(89.8, abs=0.5)  # README.md states 89.80
    assert base["untrained"] != base["raw"] != result.metrics != base["untrained"]


@pytest.mark.long
def test_grid_trained_on_another_machine_has_baselines(setting, results, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing was trained here"))
    result = grid.run_grid(setting, CELLS)["auc_cl"][0]
    assert set(grid.baselines(result)) == {"raw", "untrained"}


def test_diverged_run_of_a_grid_has_nan_metrics(setting, monkeypatch):
    def fail(config, workdir):
        workdir.mkdir(parents=True)
        (workdir / "fault.json").write_text("{}")
        raise UserError("not finite")

    monkeypatch.setattr(pretrain, "train", fail)
    [result] = grid.run_grid(setting, {"x": {"loss.temperature": 0.7}})["x"]
    assert all(value != value for value in result.metrics.values())


def test_fault_json_of_an_earlier_command_does_not_count_as_divergence(setting, monkeypatch):
    monkeypatch.setattr(pretrain, "train", Mock(side_effect=UserError("locked")))
    cell = {"x": {"loss.temperature": 0.8}}
    fault = setting.out / "runs" / run_name(setting, {**cell["x"], "seed": 0}) / "fault.json"
    fault.parent.mkdir(parents=True)
    fault.write_text("{}")
    with pytest.raises(UserError, match="locked"):
        grid.run_grid(setting, cell)


def test_finished_run_on_other_data_is_not_taken_into_a_grid(setting, results, monkeypatch):
    monkeypatch.setattr(run_results, "fingerprint", lambda source: "other data")
    with pytest.raises(UserError, match="take another --out: .* was trained with other data than"):
        grid.run_grid(setting, CELLS)


def test_finished_run_evaluated_on_other_data_is_not_taken_into_a_grid(
    setting, results, monkeypatch
):
    assert all(run.content for [run] in results.values())
    monkeypatch.setattr(run_results.rows, "content", lambda splits: "other data")
    with pytest.raises(UserError, match="take another --out: .* was evaluated with other data"):
        grid.run_grid(setting, CELLS)


def test_impossible_batch_size_is_refused_before_any_training(setting, monkeypatch):
    monkeypatch.setattr(pretrain, "train", None)
    cells = {"small": {"loss.temperature": 0.6}, "few": {"data.train_split": "train[:1%]"}}
    with pytest.raises(UserError, match="batch_size must be between 1 and the 13 training"):
        grid.run_grid(setting, cells)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"loss.temperature": 0.9}, "is a run of another config .*take another --out"),
        ({"log_every": 2}, "--config.log_every is set by the study itself"),
        ({"loss.temperature": -1.0}, "temperature"),
    ],
)
def test_grid_cell_that_cannot_be_trained_raises_an_error(setting, results, cell, message):
    folder = setting.out / "runs" / run_name(setting, {"seed": 0, "loss.temperature": 0.9})
    if not folder.exists():
        folder.symlink_to(results["nt_xent"][0].workdir)
    with pytest.raises(UserError, match=message):
        grid.run_grid(setting, {"x": cell})


@pytest.mark.long
def test_grid_reports_support_vectors_of_an_mmcl_run(setting, results):
    module = importlib.import_module("jaxssl.studies.support_vectors")
    findings = module.run(setting)
    [first, second] = findings.tables[0].rows
    assert first[0] == "C = 100 (the run's)" and second[0] == "C = 1"
    assert findings.data["at_run_C"]["at_bound"] == [0.0]
    assert 0 < findings.data["binding"]["support"][0] <= 1
    assert findings.data["at_run_C"]["same_class_all"][0] == pytest.approx(0.1, abs=0.02)
    assert set(findings.verdicts) <= set(module.CLAIMS)
    other = setting._replace(workdir=results["nt_xent"][0].workdir)
    with pytest.raises(UserError, match="must be a run with mmcl, got .* with nt_xent"):
        module.run(other)


def test_support_vectors_of_diverged_runs_are_refused(setting, monkeypatch):
    module = importlib.import_module("jaxssl.studies.support_vectors")
    diverged = Mock(is_finite=False)
    monkeypatch.setattr(grid, "run_grid", lambda *_: {"mmcl": [diverged]})
    with refused("every run with mmcl has diverged"):
        module.run(setting)


@pytest.mark.parametrize(("examples", "views"), [("image", 1), ("image_text", 1), ("video", 2)])
def test_support_vectors_of_a_run_without_two_views_of_images_are_refused(
    examples, views, setting, monkeypatch
):
    module = importlib.import_module("jaxssl.studies.support_vectors")
    config = ConfigDict({"loss": {"name": "mmcl"}, "views": views})
    monkeypatch.setattr(module, "read_config", lambda workdir: config)
    monkeypatch.setattr(
        module, "load_pretrained", lambda workdir: Mock(**{"inputs.kind": examples})
    )
    with refused("--workdir must be a run with two views of images, got mine"):
        module.run(setting._replace(workdir=Path("mine")))


@pytest.mark.parametrize("damaged", ["{", "[]", '{"figures": {}}'])
def test_damaged_results_of_a_grid_run_raise_an_error(damaged, setting, results):
    [result] = results["auc_cl"]
    path = result.workdir / grid.RESULT_FILE
    text = path.read_text()
    try:
        path.write_text(damaged)
        with pytest.raises(UserError, match="cell.json is damaged"):
            grid.run_grid(setting, CELLS)
    finally:
        path.write_text(text)
    assert set(json.loads(text)["figures"]) == {grid.KNN, grid.LINEAR}


def test_grid_below_a_file_raises_an_error(setting, tmp_path):
    (tmp_path / "runs").write_text("")
    with refused("cannot write", "Not a directory"):
        grid.run_grid(setting._replace(out=tmp_path), CELLS)


@pytest.mark.long
def test_gradient_bias_embeds_two_views_of_the_images_of_a_run(results, monkeypatch):
    module = importlib.import_module("jaxssl.studies.gradient_bias")
    [result] = results["nt_xent"]
    monkeypatch.setattr(module, "IMAGES", 4)
    point = module._encoder(result.workdir / "checkpoints" / "..")
    assert f" parameters of {result.workdir.name}, two views of 4 images" in point.description
    z = np.asarray(point.embed(point.params, jnp.arange(3)))
    assert z.shape == (2, 3, 6) and point.num_examples == 4
    assert np.isfinite(z).all() and (z[0] != z[1]).any()


def test_studies_reuse_runs_with_the_same_config(setting):
    plain = Setting("tiny", CONFIG, "", 1, Path("out"))
    auc_cl = METHODS["auc_cl"]

    def name(**changes):
        return run_name(plain, {**auc_cl, "seed": 0, **changes})

    assert name() == name(batch_size=64) == name(**{"loss.alpha": PRESETS["recommended"]["alpha"]})
    assert name() == "loss.name=auc_cl,loss.preset=recommended,seed=0"
    other = plain._replace(overrides=(("epochs", "7"),))
    assert run_name(other, {"seed": 0}) == "epochs=7,seed=0"
    different = {name(seed=1), name(batch_size=16), name(**{"loss.alpha": 0.1}), name()}
    assert len(different) == 4
    long = name(**{"data.train_split": "train[:80%]", "net.widths": (16, 32, 64)})
    assert len(long) < 140 and "/" not in long and "%" not in long


def test_runs_of_an_incomplete_grid_are_reported_without_training(setting, results, monkeypatch):
    monkeypatch.setattr(pretrain, "train", None)
    cells = {**CELLS, "dcl": {"loss.name": "dcl"}}
    part = grid.run_grid(setting._replace(finished=True), cells)
    assert [len(runs) for runs in part.values()] == [1, 1, 0]
    assert grid.describe_runs(part) == "digits (train), 3 steps, 1 seed, 1 of 3 runs missing"
    with pytest.raises(UserError, match="no run of this grid"):
        grid.run_grid(setting._replace(finished=True), {"dcl": cells["dcl"]})


def test_grid_runs_are_paired_by_seed_without_unfinished_runs():
    results = made_up_grid()
    del results["a", 64][1]
    results["b", 256] = []
    comparison = grid.above("b", "a", (16, 64, 256), grid.KNN, "B={}")
    pairs = grid.pair_values(results, comparison)
    assert pairs == {"B=16": ([10, 11, 12], [0, 1, 2]), "B=64": ([11, 13], [1, 3])}


@pytest.fixture(scope="module")
def document(setting, results):
    """Return the document of the grid's study, as JSON."""
    by_arm = {(arm, 8): runs for arm, runs in results.items()}
    findings = grid.grid_findings(by_arm, "x", [grid.KNN], {}, {})
    page = documents.write_study("x", "X", setting, {}, findings, {"command": "jaxssl study x"})
    return json.loads(page.with_suffix(".json").read_text())


EARLIER_CELLS = {(arm, 8): cell for arm, cell in CELLS.items()}


@pytest.fixture
def continue_grid(setting, document, tmp_path, monkeypatch):
    """Return a function that goes on from a document in an empty folder, and names new runs."""
    trained = []

    def run_cell(setting, values, protocols, digests):
        trained.append(values)
        return RunResult(values["seed"], tmp_path, {grid.KNN: 1.0}, [], 1.0), True

    def go_on(document=document, cells=EARLIER_CELLS, **changes):
        path = tmp_path / "earlier.json"
        path.write_text(json.dumps(document))
        changes = {"earlier": path, "out": tmp_path / "new", **changes}
        return grid.run_grid(setting._replace(**changes), cells), trained

    monkeypatch.setattr(grid, "run_cell", run_cell)
    return go_on


def test_finished_runs_of_an_earlier_document_are_not_repeated(results, document, continue_grid):
    again, trained = continue_grid()
    assert not trained
    for arm, [result] in results.items():
        [other] = again[arm, 8]
        gone = {"workdir": None, "history": [], "baselines": None}
        assert other._replace(**gone) == result._replace(**gone)
        evaluated = [row for row in result.history if grid.KNN in row]
        assert evaluated
        assert other.history == [
            {key: row[key] for key in ("epoch", grid.KNN)} for row in evaluated
        ]
        assert result.fingerprint and other.baselines == document["data"]["baselines"]
        assert grid.baselines(other) == document["data"]["baselines"]
    assert grid.describe_runs(again) == grid.describe_runs(results)
    written = documents.to_json(describe_each_run(again))
    assert written == {key: document["data"][key] for key in ("config", "runs")}


def test_only_cells_and_seeds_missing_from_an_earlier_document_are_trained(continue_grid):
    dcl = {"loss.name": "dcl"}
    results, trained = continue_grid(cells={**EARLIER_CELLS, ("dcl", 8): dcl}, seeds=2)
    missing = [{"seed": 1}, {**CELLS["auc_cl"], "seed": 1}, {**dcl, "seed": 0}, {**dcl, "seed": 1}]
    assert trained == missing
    assert [[run.seed for run in runs] for runs in results.values()] == [[0, 1]] * 3
    trained.clear()
    results, _ = continue_grid(seeds=2, finished=True)
    assert not trained and [len(runs) for runs in results.values()] == [1, 1]


def test_new_runs_beside_runs_of_other_commits_are_preceded_by_a_warning(
    document, continue_grid, caplog
):
    document = copy.deepcopy(document)
    document["data"]["runs"][0]["commit"] = "0a1b2c3d"
    continue_grid(document)
    assert "0a1b2c3d" not in caplog.text
    continue_grid(document, seeds=2)
    assert "only if views and training have not changed" in caplog.text
    assert "0a1b2c3d" in caplog.text


OF_ALPHA = ("data", "runs", 1, "config", "loss.alpha")


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("scale",), "small", "the scale of its runs is 'small', not 'tiny'"),
        (("data", "config", "epochs"), 7, "nt_xent, 8, seed 0 has another config (epochs: 7 "),
        (OF_ALPHA, 0.25, "auc_cl, 8, seed 0 has another config (loss.alpha: 0.25 -> 0.5)"),
        (("data", "runs", 1, "fingerprint"), "0123456789ab", "now (fingerprint 0123456789ab -> "),
        (("data", "runs", 0, "seconds"), None, "; name an intact document with --earlier"),
        (("data", "runs"), None, "does not list its runs"),
        (("data", "runs", 0, "cell"), [["nt_xent"], 8], "; name an intact document with --earlier"),
        (("data",), None, "; name an intact document with --earlier"),
    ],
)
def test_error_about_an_earlier_document_names_the_differing_cell(
    keys, value, message, document, continue_grid
):
    changed = json.loads(json.dumps(document))
    *path, last = keys
    part = functools.reduce(lambda part, key: part[key], path, changed)
    part[last] = value
    if value is None:
        del part[last]
    with refused(message, "earlier.json"):
        continue_grid(changed)


def test_error_about_an_earlier_document_says_that_it_does_not_exist(setting, tmp_path):
    missing = setting._replace(earlier=tmp_path / "none.json")
    with pytest.raises(UserError, match="none.json does not exist; name the JSON document of a"):
        grid.run_grid(missing, CELLS)


def test_run_that_diverged_earlier_is_reported_and_not_trained(document, continue_grid, capsys):
    diverged = json.loads(json.dumps(document))
    diverged["data"]["runs"][1]["metrics"] = {grid.KNN: None, grid.LINEAR: None}
    results, trained = continue_grid(diverged)
    assert not trained
    assert "auc_cl, 8, seed 0 ended with NaN before, and is not trained" in capsys.readouterr().out
    assert grid.describe_runs(results).endswith(", NaN in auc_cl, 8, seed 0")


def test_study_document_has_no_absolute_paths(setting, document):
    assert str(setting.out) not in json.dumps(document)
    assert document["data"]["config"]["data.dir"] == Path(dict(setting.overrides)["data.dir"]).name
    overrides = (*setting.overrides, ("data.name", "folder"), ("data.path", "some/where/x.tar.xz"))
    moved = cell_config(setting._replace(overrides=overrides), {})
    portable: Any = portable_config(moved)
    assert portable["data"]["path"] == "x.tar.xz"

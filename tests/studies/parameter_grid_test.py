"""`jaxssl train --grid` trains all combinations, resumes, and prints a table."""

import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny import flags, short

from jaxssl.data import source
from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain
from jaxssl.evaluation.protocols import knn
from jaxssl.report.markdown import narrow_table
from jaxssl.report.results import read_results
from jaxssl.studies import grid as grid_runs
from jaxssl.studies import parameter_grid
from jaxssl.studies.grid import KNN, LINEAR
from jaxssl.studies.run_results import RunResult
from jaxssl.training import config, nonfinite

SMALL = short(3)


@pytest.mark.fast
def test_grid_values_are_split_at_commas_outside_of_brackets_and_quotes():
    texts = ["net.widths=(8, 16),[4,8]", "config.loss.name=nt_xent, dcl", "a='x,y',\"z\""]
    assert parameter_grid.parse(texts) == {
        "net.widths": ["(8, 16)", "[4,8]"],
        "loss.name": ["nt_xent", "dcl"],
        "a": ["'x,y'", '"z"'],
    }
    schedule = "optim.weight_decay={'schedule': 'cosine', 'start': 0, 'end': 1},0.1"
    assert len(parameter_grid.parse([schedule])["optim.weight_decay"]) == 2


@pytest.mark.fast
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["seed"], "--grid expects KEY=A,B,C, such as optim.lr=0.001,0.01, got 'seed'"),
        (["seed=1,,2"], "has an empty or a repeated value; list each once"),
        (["seed=1,1"], "has an empty or a repeated value"),
        (["seed=1", "seed=2"], "has the key 'seed' twice; list all values once: seed=A,B"),
    ],
)
def test_malformed_parameter_grids_are_refused(texts, message):
    with pytest.raises(UserError, match=message):
        parameter_grid.parse(texts)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss.nam=a,b", "config key 'loss.nam' is unknown; did you mean 'loss.name'"),
        ("optim.lr=0.1,x", "config key 'optim.lr' expects float, got 'x'"),
        ("data.workers=1,2", "'data.workers' does not change the training; take another key"),
        ("batch_size=8,16", "--grid and --config both set 'batch_size'; leave one of them out"),
        ("loss=a,b", "config key 'loss' is a group; set loss.name, or another of its keys: a, "),
        ("data.path=a,b", "the runs of a grid cannot differ in 'data.path'"),
        ("workers=0,1", "'data.workers' does not change the training"),
        ("widths=(4,),(8,)", "--grid and --config both set 'net.widths'"),
        ("eval.knn=instdisc,typo", "eval.knn='typo' is unknown"),
        ("init=missing", "missing"),
        ("optim.lr=0.1,0.10", "optim.lr=0.1 and optim.lr=0.10 are the same run; list equal values"),
        ("accumulate_steps=1,4", "accumulate_steps=4 must divide the 2 images"),
        ("data.train_split=train[:50],train[:10]", "between 1 and the 10 training examples"),
        ("data.name=digits,nonsense", "data.name='nonsense' is no data set"),
        ("data.normalise=auto,wrong", "data.normalise='wrong' is unknown"),
        ("augment.crop_scale=(0.2,1.0),(1.0,0.2)", "scale"),
    ],
)
def test_invalid_keys_and_values_are_refused_before_any_training(data_dir, tmp_path, text, message):
    folder = tmp_path / "grid"
    overrides = [*SMALL.items(), ("data.dir", str(data_dir))]
    with pytest.raises(UserError, match=message):
        parameter_grid.train("digits", parameter_grid.parse([text]), folder, overrides, "command")
    assert not folder.exists()


@pytest.mark.fast
def test_each_data_set_of_a_grid_is_opened_once(data_dir, tmp_path, monkeypatch):
    opened, load_splits = [], source.load_splits

    def count(settings, examples):
        opened.append(settings.train_split)
        return load_splits(settings, examples)

    monkeypatch.setattr(parameter_grid.source, "load_splits", count)
    grid = parameter_grid.parse(["seed=0,1", "data.train_split=train[:50],train[:40]"])
    overrides = [*SMALL.items(), ("data.dir", str(data_dir))]
    monkeypatch.setattr(parameter_grid, "run_cell", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        parameter_grid.train("digits", grid, tmp_path / "grid", overrides, "command")
    assert opened == ["train[:50]", "train[:40]"]


@pytest.mark.fast
def test_too_many_combinations_are_refused_before_any_is_made(tmp_path):
    grid = {key: [str(i) for i in range(400)] for key in ("seed", "epochs", "views", "batch_size")}
    with pytest.raises(UserError, match="25,600,000,000 combinations, more than --max_runs=1000;"):
        parameter_grid.train("digits", grid, tmp_path, (), "command")
    with pytest.raises(UserError, match="400 combinations, more than --max_runs=399"):
        parameter_grid.train("digits", {"seed": grid["seed"]}, tmp_path, (), "command", 399)


@pytest.mark.fast
def test_unknown_protocols_are_refused_before_any_training(data_dir, tmp_path):
    overrides = [*SMALL.items(), ("data.dir", str(data_dir)), ("eval.protocols", "knn,nonsense")]
    with pytest.raises(UserError, match="protocol 'nonsense' is unknown"):
        parameter_grid.train("digits", {"seed": ["1"]}, tmp_path / "grid", overrides, "command")
    assert not (tmp_path / "grid").exists()


@pytest.mark.long
def test_parameter_grid_trains_all_combinations_once_and_writes_the_table(
    data_dir, tmp_path, monkeypatch, run_command
):
    monkeypatch.setattr("sys.argv", ["jaxssl"])
    settings = flags({**SMALL, "data.dir": str(data_dir)})
    settings += ["--workdir", str(tmp_path / "grid")]

    def train(values: str, *further: str) -> str:
        grid = "--grid=seed=0x1", f"--grid=optim.lr={values}"
        status, output, _ = run_command("train", *grid, *settings, *further)
        assert not status
        return output

    trained, make = [], pretrain.train

    def count(settings, workdir, *arguments):
        trained.append((settings.seed, settings.optim.lr))
        make(settings, workdir, *arguments)

    monkeypatch.setattr(grid_runs.pretrain, "train", count)
    output = train("0.1,0.2")
    assert trained == [(1, 0.1), (1, 0.2)]
    assert "[2/2] seed=0x1 optim.lr=0.2: knn_top1" in output
    table = (tmp_path / "grid" / "grid.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| 0.")]
    assert [row.split(" | ")[0] for row in rows] == ["| 0.1", "| 0.2"]
    assert "--config.data.test_split=train[90%:]" in table.replace("\n", " ")
    assert "<h2>Claims</h2>" not in (tmp_path / "grid" / "grid.html").read_text()
    assert "finished before" in train("0.1,0.2") and len(trained) == 2
    train("0.2,0.3")
    assert trained[2:] == [(1, 0.3)]
    # Protocols that a later command names are measured on the finished runs.
    train("0.2,0.3", "--config.eval.protocols=retrieval,knn:instdisc,knn")
    assert len(trained) == 3
    table = (tmp_path / "grid" / "grid.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert lines[0][-3:] == ["retrieval_r1", "knn_top1 (instdisc)", "k-NN top-1"]
    folders = (tmp_path / "grid" / "runs").iterdir()
    [folder] = [one for one in folders if config.read_config(one).optim.lr == 0.3]
    rows = read_results(folder)
    measured = {(r["metric"], r["details"]["preset"]): f"{r['value']:.2f}" for r in rows}
    expected = [("retrieval_r1", "default"), ("knn_top1", "instdisc"), ("knn_top1", knn.DEFAULT)]
    assert lines[-1][-3:] == [measured[key] for key in expected]


def test_figures_of_a_run_are_measured_again_if_the_test_examples_have_changed(
    tmp_path, monkeypatch
):
    values, asked = iter([66.0, 3.0]), []

    def evaluate(workdir, protocols, *, data, **_):
        asked.append((protocols, data))
        details = {"preset": "instdisc"}
        return [
            {"protocol": "knn", "metric": KNN, "value": next(values), "details": details},
        ]

    monkeypatch.setattr(parameter_grid.run, "evaluate", evaluate)
    knn_only = ["knn:instdisc"]
    before = parameter_grid._Run({}, 0, knn_only, {"path": "a"}, "before")
    after = before._replace(data={"path": "b"}, content="after")
    measured = [parameter_grid._evaluate(tmp_path, one, True) for one in (before, after, before)]
    assert [list(each.values()) for each in measured] == [[66.0], [3.0], [66.0]]
    assert asked == [(knn_only, {"path": "a"}), (knn_only, {"path": "b"})]


def test_figures_of_a_run_are_measured_again_if_the_file_of_a_protocol_has_changed(
    tmp_path, monkeypatch
):
    file, values = tmp_path / "mine.py", iter([1.0, 2.0])
    text, source = f"{file}:mine", "def mine(context, *, seed):\n    return []\n"

    def evaluate(workdir, protocols, **_):
        row = {"protocol": "mine.py:mine", "metric": "mine", "value": next(values), "details": {}}
        return [row]

    monkeypatch.setattr(parameter_grid.run, "evaluate", evaluate)
    planned, measured = parameter_grid._Run({}, 0, [text], {}, "same"), []
    for content in (source, source, source + "# edited\n"):
        file.write_text(content)
        measured.append(list(parameter_grid._evaluate(tmp_path, planned, True).values()))
    assert measured == [[1.0], [1.0], [2.0]]


def test_recorded_command_of_a_parameter_grid_has_all_of_its_arguments(
    tmp_path, monkeypatch, run_command
):
    calls = []
    monkeypatch.setattr(parameter_grid, "train", lambda *given: calls.append(given))
    arguments = ["--grid=seed=0,1", "--grid=optim.lr=0.1,0.2", "--max_runs=2000"]
    arguments += ["--config=decl:stl10", "--config.epochs=3", "--workdir", str(tmp_path)]
    run_command("train", *arguments)
    [(*_, command, limit)] = calls
    assert shlex.split(command)[:2] == ["jaxssl", "train"] and limit == 2000
    assert sorted(shlex.split(command)[2:]) == sorted(arguments)


@pytest.mark.fast
def test_lists_below_a_wide_table_name_all_settings_of_a_row():
    heading = ["optim.lr", "loss.temperature", *("x" * 40 for _ in range(2)), "k-NN top-1"]
    rows = [["0.1", "0.5", "a", "b", "60.0"], ["0.1", "0.2", "a", "b", "66.0"]]
    text = narrow_table(heading, rows, names=2)
    assert text.endswith("k-NN top-1:\n\n- 0.1, 0.5: 60.0\n- 0.1, 0.2: 66.0\n")


@pytest.mark.fast
def test_parameter_grid_table_averages_seeds_and_keeps_the_order_of_combinations():
    base = config.load("digits")
    grid = {"seed": ["0", "1"], "loss.name": ["b", "a"]}
    values = {("0", "b"): 1.0, ("0", "a"): 3.0, ("1", "b"): 2.0, ("1", "a"): 5.0}
    cells = [dict(zip(grid, cell, strict=True)) for cell in values]
    results = [
        RunResult(0, Path("run"), {KNN: x, LINEAR: 10 * x}, [{"loss": 0.5}, {"loss": x / 2}], 1.0)
        for x in values.values()
    ]
    table = parameter_grid.make_table("digits", grid, cells, results, base)
    assert table.heading == ("loss.name", "training loss", "k-NN top-1", "linear top-1")
    assert table.rows == [
        ("b", "0.7500 ± 0.3536", "1.50 ± 0.71", "15.00 ± 7.07"),
        ("a", "2.0000 ± 0.7071", "4.00 ± 1.41", "40.00 ± 14.14"),
    ]
    assert "mean ± standard deviation over 2 seeds" in table.note


@pytest.mark.fast
def test_diverged_run_of_a_parameter_grid_has_no_figures(tmp_path, monkeypatch, capsys):
    """The last row of its metrics is of an earlier step."""
    (tmp_path / nonfinite.FILE_NAME).write_text("{}")
    result = RunResult(0, tmp_path, {}, [{"loss": 0.5}], 1.0)
    monkeypatch.setattr(parameter_grid, "run_cell", lambda *_, **__: (result, False))
    runs = [parameter_grid._Run({"optim.lr": "9"}, 0, ["knn"], {}, "content")]
    results = parameter_grid._train_runs(None, runs, strict=False)
    assert "optim.lr=9: stopped: not finite (finished before)" in capsys.readouterr().out
    grid = {"optim.lr": ["9"]}
    base = config.load("digits")
    table = parameter_grid.make_table("digits", grid, [runs[0].values], results, base)
    assert table.rows == [("9",)]

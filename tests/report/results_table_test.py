"""Rows of results.json: which of them replace earlier ones, and the table that is printed."""

import pytest
from tables import printed
from workdir_cases import ROW, changed

from jaxssl.errors import UserError
from jaxssl.report import results
from jaxssl.training.output import console

pytestmark = pytest.mark.fast

VALUES = {"raw": 64.25, "untrained": 56.5, "pretrained": 81.75}


def of_kinds(**changes):
    """Return a result of each kind of features, in another order than that of the columns."""
    return [
        {**ROW, "features": kind, "value": VALUES[kind], **changes}
        for kind in ("untrained", "pretrained", "raw")
    ]


@pytest.fixture
def shown(monkeypatch, capsys):
    """Return a function that prints rows, and returns the cells of the table and the text."""
    monkeypatch.setattr(console.screen, "_width", 250)

    def show(rows):
        results.print_results(rows)
        text = capsys.readouterr().out
        return printed(text), text

    return show


def test_every_result_is_printed_in_the_cell_of_its_metric_and_features(shown):
    uniform = {"preset": "uniform"}
    rows = [
        *of_kinds(std=1.5),
        *of_kinds(details=uniform),
        changed(ROW, features="untrained", metric="rankme", unit="nats", value=3.0),
        changed(ROW, metric="rankme", unit="nats", value=7.125),
    ]
    table, _ = shown(rows)
    assert table == [
        ["metric", "protocol", "raw", "untrained", "pretrained"],
        ["knn_top1", "knn:cifar_simclr", "64.25 ± 1.50", "56.50 ± 1.50", "81.75 ± 1.50"],
        ["knn_top1", "knn:uniform", "64.25", "56.50", "81.75"],
        ["rankme (nats)", "knn:cifar_simclr", "", "3.00", "7.12"],
    ]


def test_printed_table_has_a_column_for_each_kind_of_features_with_results(shown):
    table, _ = shown(of_kinds()[:2])
    assert [row[2:] for row in table] == [["untrained", "pretrained"], ["56.50", "81.75"]]


def test_description_of_encoder_and_data_set_is_printed_above_the_table(shown):
    _, text = shown([changed(ROW, bank="train[:5%]", split="test[:9%]")])
    encoder, data = text.splitlines()[:2]
    assert encoder == "a, mmcl (gamma=0.5), last checkpoint (step 100)"
    data_set = "digits, fitted on train[:5%], tested on test[:9%]; backbone features; seed 0"
    assert data == data_set
    _, text = shown([changed(ROW, bank_size=48, split_size=12)])
    assert "digits, fitted on train (48 examples), tested on test (12 examples); " in text
    source = results.describe_source(changed(ROW, checkpoint="file", step=7, dataset="python"))
    assert source["encoder"] == "a, mmcl (gamma=0.5), weights file of step 7"
    assert source["data"].startswith("python (data content 3b9ac1), fitted on train")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "90.00"),
        ({"std": 1.25}, "90.00 ± 1.25"),
        ({"std": 1.25, "details": {"ci95": 0.5}}, "90.00 ± 0.50 (95 %)"),
        ({"value": float("nan")}, "not finite"),
    ],
)
def test_printed_value_has_its_standard_deviation(changes, text):
    assert results.format_value(changed(ROW, **changes)) == text


@pytest.mark.parametrize(("unit", "name"), [("%", "m"), ("", "m"), ("nats", "m (nats)")])
def test_printed_metric_name_has_its_unit(unit, name):
    assert results.metric_name("m", unit) == name


@pytest.mark.parametrize(
    "changes",
    [
        *({name: "other"} for name in ("source", "layer", "dataset", "data", "bank")),
        *({name: "other"} for name in ("split", "protocol", "metric")),
        *({"seed": 1}, {"step": 200}, {"features": "raw"}, {"details": {"preset": "uniform"}}),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_new_result_replaces_only_the_earlier_result_with_equal_settings(tmp_path, changes):
    other = changed(ROW, value=1.0, **changes)
    results.add_results(tmp_path, [changed(ROW)])
    results.add_results(tmp_path, [other])
    assert results.read_results(tmp_path) == [ROW, other]
    results.add_results(tmp_path, [changed(ROW, value=2.0, std=3.0, loss="mmcl")])
    again = {row["value"]: row for row in results.read_results(tmp_path)}
    assert set(again) == {1.0, 2.0} and again[1.0] == other


def test_results_of_unknown_features_are_refused_in_one_line(tmp_path):
    results.add_results(tmp_path, [ROW, changed(ROW, features="ema")])
    with pytest.raises(UserError, match=r"results.json is damaged \(row 1 .* not a valid result"):
        results.read_results(tmp_path)

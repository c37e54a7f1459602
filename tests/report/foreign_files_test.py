"""Files of a workdir that somebody else has written: links to devices, pipes, and long files."""

import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
from file_cases import refused
from workdir_cases import METRICS, write

from jaxssl.errors import UserError
from jaxssl.evaluation.rows import online_rows
from jaxssl.pretrained.export import export
from jaxssl.report import workdir as reading
from jaxssl.report.comparison import write_page
from jaxssl.report.runs import read_runs
from jaxssl.training.output import file_io, metrics_writer
from jaxssl.training.workdir.opening import check_links

FILES = ("config.json", "metrics.jsonl", "results.json", "gallery.npz")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["device", "pipe", "large"])
def test_report_refuses_devices_pipes_and_huge_files_in_a_run(name, kind, tmp_path, monkeypatch):
    run = write(tmp_path / "run")
    path = run / name
    path.unlink(missing_ok=True)
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**40)  # a sparse file, which takes no disk space
    with refused(name):
        write_page([run])


@pytest.mark.parametrize("row", [{"step": 10**400}, {"step": 1, "loss": -(10**400)}])
def test_metrics_that_no_float_can_hold_are_refused(row, tmp_path):
    run = write(tmp_path / "run", metrics=[row])
    with refused("metrics.jsonl is damaged (int too large to convert to float); move it away"):
        write_page([run])


def test_times_of_a_run_are_read_from_a_regular_file_only(tmp_path):
    run = write(tmp_path / "run")
    (run / "goodput.json").unlink()
    os.mkfifo(run / "goodput.json")
    assert read_runs([run])[0].seconds is None


def test_gallery_that_expands_to_many_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_GALLERY", 10**4)
    path = tmp_path / "gallery.npz"
    np.savez_compressed(path, step=np.zeros(10**4))
    assert zipfile.is_zipfile(path) and path.stat().st_size < 10**4
    with refused("the arrays have 80128 bytes, more than the limit of 10000"):
        reading.read_gallery(path)


def test_report_of_long_runs_reads_evenly_spaced_metrics_and_all_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FEWEST_ROWS", 10)
    rows = [{"step": s, "loss": 1 / s} for s in range(1, 1001)]
    for row in rows[99::100]:
        row["knn_top1"] = row["step"] / 10
    rows[500]["loss"] = None
    run = write(tmp_path / "run", metrics=rows)
    path = run / "metrics.jsonl"
    read = reading.read_metrics(path)
    assert [row["step"] for row in read if "knn_top1" in row] == [*range(100, 1001, 100)]
    assert rows[500] in read and read[0] == rows[0] and read[-1] == rows[-1]
    plain = [row["step"] for row in read if "knn_top1" not in row and row["loss"] is not None]
    assert 10 <= len(plain) <= 21 and max(np.diff(plain)) <= 66
    assert list(reading.iterate_metrics(path)) == rows
    monkeypatch.undo()
    assert reading.read_metrics(path) == rows  # a short file is read whole


@pytest.mark.long
def test_resuming_and_evaluating_do_not_hold_all_metrics_rows_in_memory(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0, "epoch": 0.5, "learning_rate": 0.125}\n' * 20_000)
    tracemalloc.start()
    metrics_writer.MetricsWriter(tmp_path, 1, names=()).close()
    assert online_rows(reading.iterate_metrics(path), {}, "uniform") == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 2


def test_long_lines_of_untrusted_files_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(file_io, "MOST_LINE", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * 1000 + "\n" + json.dumps({"step": 1}) + "\n")
    assert max(map(len, file_io.read_lines(path))) == 100
    assert reading.read_metrics(path) == [{"step": 1}]


def test_folder_among_the_parts_of_a_metrics_file_is_refused(tmp_path):
    parts = tmp_path / "metrics.jsonl"
    parts.mkdir()
    (parts / "00000000.jsonl").write_text('{"step": 1}\n')
    assert reading.read_metrics(parts) == [{"step": 1}]
    (parts / "loop").symlink_to(".")
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged \(.*Is a directory.*loop"):
        reading.read_metrics(parts)


def test_symbolic_links_out_of_the_workdir_are_refused_before_writing(tmp_path):
    run = write(tmp_path / "run", metrics=METRICS)
    (run / "inside").symlink_to("config.json")
    check_links(run)
    (run / "export").symlink_to(tmp_path)
    with pytest.raises(UserError, match="export is a symbolic link out of the workdir"):
        check_links(run)
    (run / "export").unlink()
    (run / "train.log").unlink()
    (run / "train.log").symlink_to(tmp_path / "notes")
    with pytest.raises(UserError, match="train.log is a symbolic link out of the workdir"):
        check_links(run)


def test_export_does_not_follow_a_symbolic_link(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "export").symlink_to(tmp_path)
    monkeypatch.setattr("jaxssl.pretrained.export.load_pretrained", _Image)
    with pytest.raises(UserError, match="export is a symbolic link to another folder; see --out"):
        export(run, ["safetensors"])


class _Image:
    """An encoder of images."""

    def __init__(self, *args, **kwargs):
        self.inputs = type("Inputs", (), {"kind": "image"})
        self.metadata = {"step": 1}

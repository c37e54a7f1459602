"""The benchmark record: plan, estimates and time limit; a stub does the work."""

import hashlib
import json
import math
import time
import zipfile
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import record as book
import record_checks
import record_pieces
import record_plan
from record_cases import DEVICE, a_record, figure
from record_plan import Estimates, Piece, make_plan
from shared import NETWORKS
from tiny import TINY

from jaxssl.errors import UserError

each_scale = pytest.mark.parametrize("scale", record_plan.SCALES)


# ---- The plan of measurements


@each_scale
def test_benchmark_plan_lists_every_piece_once_by_importance(scale):
    plan = make_plan(scale)
    names = [piece.name for piece in plan]
    assert len(set(names)) == len(names)
    kinds = list(dict.fromkeys(piece.kind for piece in plan))
    assert kinds == ["check", "speed", "trace", "attention", "run"]
    size = record_plan.SCALES[scale].batch
    runs = [name for name in names if name.startswith("run/")]
    methods = [f"run/{arm}-b{size}-s0" for arm in record_plan.METHOD_NAMES]
    assert runs[: len(methods)] == methods
    seeds = [int(name[-1]) for name in runs]
    assert seeds == sorted(seeds, key=bool)  # all runs of seed 0 come first
    assert seeds.count(0) == seeds.count(1) == seeds.count(2)


@each_scale
def test_every_piece_of_the_benchmark_plan_has_valid_settings(scale):
    record_pieces._train_step(None)  # adds the network "tiny", which some pieces measure
    for piece in make_plan(scale, [("data.name", "digits")]):
        json.dumps(piece.settings, allow_nan=False)
        assert callable(getattr(record_pieces, piece.kind))
        if piece.kind == "run":
            values, data = piece.settings["values"], piece.settings["data"]
            config = record_checks.load_config(piece.settings["config"], values, data)
            assert config.batch_size == values["batch_size"] and config.data.name == "digits"
        if piece.kind in ("speed", "trace"):
            assert piece.settings["network"] in NETWORKS
        if piece.kind == "check":
            check = piece.name.partition("/")[2].partition("-")[0]
            assert callable(getattr(record_checks, f"check_{check}"))


# ---- Estimated times of measurements


SETTINGS = {"config": "tiny", "data": []}


def runs_of(*names, minutes=4.0):
    return [Piece(f"run/{name}", SETTINGS, minutes, 2, 8.0) for name in names]


def test_measured_piece_times_replace_planned_times():
    plan = runs_of("a-b1-s0", "a-b1-s1", "b-b1-s0")
    done = {"run/a-b1-s0": figure(minutes=6.0)}
    estimates = Estimates(plan, a_record(done), DEVICE.name)
    assert estimates.minutes(plan[1]) == 6.0  # same run with another seed
    assert estimates.minutes(plan[2]) == 4.0 * 6 / 4  # planned 4.0, scaled by 6 / 4
    assert Estimates(plan, a_record(done), "another GPU").minutes(plan[1]) == 4.0


def test_total_time_of_a_stopped_run_is_estimated_from_its_last_checkpoint():
    plan = runs_of("a-b1-s0", "b-b1-s0")
    stopped = {"run/a-b1-s0": {**figure(minutes=3.0), "share": 0.25}}
    estimates = Estimates(plan, a_record(unfinished=stopped), DEVICE.name)
    assert estimates.minutes(plan[0]) == 12.0
    for minutes, expected in ((3.0, 6.0), (1.0, 4.0)):  # 1 % of a run is too little to extrapolate
        stopped = {"run/a-b1-s0": {**figure(minutes=minutes), "share": 0.01}}
        estimates = Estimates(plan, a_record(unfinished=stopped), DEVICE.name)
        assert [estimates.minutes(piece) for piece in plan] == [expected, 4.0]


# ---- Pieces that may run at the same time


class Running:
    def __init__(self, piece):
        self.piece = piece


def test_concurrent_benchmark_pieces_fit_into_memory_and_cores():
    check = Piece("check/x", {}, 1.0, 4, 8.0)
    alone = Piece("speed/x", {}, 1.0, 4, 0.0, alone=True)
    [run] = runs_of("a-b1-s0")
    large = run._replace(memory=90.0)

    def fits(piece, *others, device=DEVICE):
        return book.fits(piece, [Running(other) for other in others], device)

    assert fits(alone) and fits(large) and fits(check, check, check)
    assert not fits(check, check, check, check, check)  # five checks need 20 cores
    assert not fits(alone, check) and not fits(run, alone)
    assert not fits(check, large)
    assert fits(run, check) and not fits(run, run) and not fits(run, check, run)
    assert fits(check, run._replace(cores=1), device=DEVICE._replace(memory=0.0))


# ---- A whole call of record.py

WORKER = """
import json, pathlib, sys, time
piece = json.loads(pathlib.Path(sys.argv[1]).read_text())
settings, folder = piece["settings"], pathlib.Path(piece["workdir"])
print("at work on", piece["name"])
if "waits" in settings:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    while not (folder.parent / settings["waits"] / "config.json").exists():
        time.sleep(0.01)
if settings.get("fails"):
    sys.exit("error: no such thing")
if "sleeps" in settings:  # a run with a checkpoint of half its epochs
    (folder / "checkpoints" / "10").mkdir(parents=True)
    (folder / "config.json").write_text('{"epochs": 4}')
    (folder / "metrics.jsonl").write_text('{"step": 10, "epoch": 2.0}\\n{"step": 12, "epoch": 2.4}')
    print("ready", flush=True)
    time.sleep(settings["sleeps"])
else:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text('{"step": 10, "epoch": 4.0}')
result = {"versions": {"jax": "1.2"}, "values": {"data": "digits"}}
pathlib.Path(sys.argv[2]).write_text(json.dumps(result))
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call `do_pieces` with a stub and return the record that it wrote to OUT."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(book, "WORKER", worker)
    monkeypatch.setattr(book, "find_device", lambda work: DEVICE)
    monkeypatch.setattr(book, "code_commit", lambda: "abc")

    def do(plan, minutes=math.inf, known=(), only=("*",)):
        monkeypatch.setattr(book, "STARTED", book.time.monotonic())
        out = tmp_path / "out"
        book.do_pieces(plan, a_record(known), out, tmp_path / "work", minutes, only)
        assert len(list(out.iterdir())) <= 8
        assert all(path.stat().st_size < 16 * 2**20 for path in out.iterdir())
        return book.read_record(out / "figures.json", "tiny")

    return do


def test_second_call_of_the_benchmark_continues_the_plan(call, tmp_path, capsys):
    plan = [*runs_of("a-b1-s0", "b-b1-s0", minutes=1.0), *runs_of("long-b1-s0", minutes=100.0)]
    result = call(plan, minutes=30, known={"run/b-b1-s0": figure({"data": "digits"})})
    assert list(result["figures"]) == ["run/a-b1-s0"]  # b is measured already, long takes too long
    assert "1 need a longer call, run/long-b1-s0" in capsys.readouterr().out
    [done] = result["figures"].values()
    assert (
        done["values"] == {"data": "digits"}
        and done["commit"] == "abc"
        and done["device"] == DEVICE.name
    )
    assert done["versions"] == {"jax": "1.2"} and done["minutes"] < 1
    result = call(plan)
    assert list(result["figures"]) == ["run/a-b1-s0", "run/b-b1-s0", "run/long-b1-s0"]
    assert result["figures"]["run/a-b1-s0"] == done
    with zipfile.ZipFile(tmp_path / "out" / "runs.zip") as archive:
        assert "a-b1-s0/metrics.jsonl" in archive.namelist()
    assert "3 pieces are in" in capsys.readouterr().out


def test_benchmark_trains_beside_a_check(call):
    check = Piece("check/a", {"waits": "../run/b-b1-s0"}, 1.0, 2, 8.0)
    [run] = runs_of("b-b1-s0")
    # Each waits until the other has begun.
    result = call([check, run._replace(settings={"waits": "../check/a"})])
    assert set(result["figures"]) == {check.name, run.name}


def test_benchmark_runs_only_the_pieces_that_are_named(call, capsys):
    plan = [*runs_of("a-b1-s0", "a-b1-s1", minutes=1.0), Piece("check/a", {}, 1.0, 2, 8.0)]
    known = {"run/a-b1-s0": figure({"data": "digits"}, minutes=50.0)}
    assert list(call(plan, known=known, only=["check/*"])["figures"]) == ["check/a"]
    # The other seed, which is not named, says how long the run takes.
    result = call(plan, minutes=30, known=known, only=["run/a-b1-s1"])
    assert "run/a-b1-s1" not in result["figures"]
    assert "1 need a longer call, run/a-b1-s1 55.0 minutes" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"--only runs/\*: no piece has this name"):
        call(plan, only=["run/*", "runs/*"])


def test_pieces_of_another_device_and_runs_on_other_data_are_measured_anew(call):
    check, [run] = Piece("check/a", {}, 1.0, 2, 8.0), runs_of("a-b1-s0")
    known = {check.name: figure(), run.name: figure({"data": "digits"}, device="another GPU")}
    assert not call([check, run], known=known)["figures"]
    known[check.name] = figure(device="another GPU")
    assert list(call([check, run], known=known)["figures"]) == [check.name]
    other = run._replace(settings={**SETTINGS, "data": [["data.path", "some/pictures.zip"]]})
    assert list(call([other], known=known)["figures"]) == [check.name, run.name]


def test_commit_of_a_record_is_the_last_one_that_changed_the_code(monkeypatch):
    monkeypatch.delenv("JAXSSL_COMMIT", raising=False)
    said = {"log": b"abc\n", "diff": b""}
    monkeypatch.setattr(book.git, "current_commit", lambda: "def-dirty")
    runs = lambda command, **_: SimpleNamespace(stdout=said[command[3]])  # noqa: E731
    monkeypatch.setattr(book.subprocess, "run", runs)
    book.code_commit.cache_clear()
    assert book.code_commit() == "abc"
    said["diff"] = b"a change"
    book.code_commit.cache_clear()
    assert book.code_commit() == f"abc-dirty-{hashlib.sha256(b'a change').hexdigest()[:6]}"
    book.code_commit.cache_clear()


def test_failed_benchmark_piece_is_reported_and_repeated(call, capsys):
    [piece] = runs_of("a-b1-s0")
    result = call([piece._replace(settings={"fails": True}), *runs_of("b-b1-s0")])
    assert list(result["figures"]) == ["run/b-b1-s0"]
    assert result["failed"]["run/a-b1-s0"]["reason"] == "error: no such thing"
    assert "failed run/a-b1-s0: error: no such thing" in capsys.readouterr().out
    result = call([piece, *runs_of("c-b1-s0")])
    # A piece that failed is measured again after the new ones.
    assert list(result["figures"]) == [f"run/{name}-b1-s0" for name in "bca"]
    assert not result["failed"]


class Clock:
    """A clock that advances by an hour as soon as a condition holds."""

    def __init__(self, happened):
        self.happened, self.ahead = happened, 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead

    def sleep(self, seconds):
        time.sleep(seconds)
        self.ahead = self.ahead or 3600.0 * self.happened()


def test_benchmark_run_beyond_the_time_limit_is_stopped(call, monkeypatch, tmp_path, capsys):
    [piece] = runs_of("a-b1-s0", minutes=0.001)
    piece = piece._replace(settings={"sleeps": 600})
    log = tmp_path / "work" / "run-a-b1-s0.log"
    clock = Clock(lambda: log.exists() and "ready" in log.read_text())
    monkeypatch.setattr(book, "time", clock)
    result = call([piece], minutes=60)
    assert not result["figures"] and result["unfinished"][piece.name]["share"] == 0.5
    assert "stopped run/a-b1-s0 at 50 %" in capsys.readouterr().out
    # The other half of the run would take another hour, so it is not started with half an hour.
    assert not call([piece], minutes=30)["figures"]
    assert "1 need a longer call" in capsys.readouterr().out


# ---- The measurements themselves


def test_benchmark_check_lists_cases_that_deviate_by_more_than_the_bound():
    result = record_checks.summary({"a": 1e-4, "b": 2e-3, "c": math.nan}, 1e-3)
    assert result["beyond"] == ["b", "c"] and result["largest"] is None
    assert record_checks.summary({"a": 1e-4, "b": 2e-3}, 1e-3)["largest"] == 2e-3
    assert record_checks.relative(np.ones(3), np.array([1.0, 1.0, 4.0])) == 0.75
    far = record_checks.distance(np.array([3.0, 4.0]), np.array([3.0, 0.0]))
    assert far == pytest.approx(4 / 3)


@pytest.mark.long
def test_benchmark_check_compares_training_steps_of_two_devices(monkeypatch):
    monkeypatch.setattr(record_checks, "BATCH", 4)
    monkeypatch.setattr(record_checks, "cpu", lambda: jax.devices()[1])
    with jax.numpy_dtype_promotion("standard"):
        result = record_checks.check_steps(precision="bf16", steps=[["simclr", "convnet"]])
    [updates] = result.values()
    assert updates["cases"] == 1 and updates["beyond"] == []
    assert updates["repeated"] == 1
    # Both devices are CPUs and err equally in bfloat16; twice the CPU's error is allowed.
    assert updates["largest"] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.long
def test_training_piece_of_the_benchmark_returns_its_curve_and_results(data_dir, tmp_path):
    values = {**TINY, "epochs": 2, "loss.name": "nt_xent", "seed": 0, "eval.every": 1.0}
    del values["eval.protocols"]
    settings = {"config": "tiny", "values": values, "data": [["data.dir", str(data_dir)]]}
    with jax.numpy_dtype_promotion("standard"):
        result = record_pieces.run("x", settings, tmp_path / "run")
    assert [epoch for epoch, *_ in result["curve"]] == [1.0, 2.0]
    best = max(knn for *_, knn in result["curve"])
    assert result["best"]["knn 0.1"] == pytest.approx(best, abs=1e-4)
    assert result["last"]["knn 0.1"] == pytest.approx(result["curve"][-1][2], abs=1e-4)
    assert result["last"]["epoch"] == 2.0 and 10 < result["last"]["linear"] <= 100
    json.dumps(result, allow_nan=False)
    assert book.progress(tmp_path / "run") == 1.0


# ---- The command line of record.py


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one of --out OUT and --merge OUT"),
        (["--out", "a", "--merge", "b"], "exactly one of --out OUT and --merge OUT"),
        (["--merge", "nowhere"], "nowhere holds no figures.json"),
        (["--out", "a", "--minutes", "0.1"], "--minutes must be > 0.25, got 0.1"),
        (["--out", "a", "--config.epochs=1"], "--config.epochs: the plan sets it"),
    ],
)
def test_record_command_rejects_wrong_arguments(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        book.main(arguments)
    monkeypatch.setattr(book, "code_commit", lambda: "")
    with pytest.raises(UserError, match="the commit is unknown here; pass it: JAXSSL_COMMIT="):
        book.main(["--out", "a"])
    assert not list(tmp_path.iterdir())


def test_benchmark_at_scale_paper_needs_an_accelerator(call, monkeypatch, tmp_path):
    monkeypatch.setattr(book, "find_device", lambda work: DEVICE._replace(is_cpu=True))
    with pytest.raises(UserError, match="no accelerator was found"):
        book.do_pieces([], a_record(scale="paper"), tmp_path / "out", tmp_path / "work", math.inf)

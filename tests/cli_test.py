"""`train.py` and `eval.py` as a user calls them, in subprocesses."""

import errno
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from tiny import flags, short
from xla_flags import QUICK_FLAGS

import jaxssl
from jaxssl import buckets, cli, components
from jaxssl.cli import eval as eval_command
from jaxssl.errors import UserError
from jaxssl.training import config, processes, retry
from jaxssl.training.config.help import component_settings

ROOT = Path(__file__).parents[1]
SMALL = flags(short(6))


def start(*command: str, cwd: Path | None = None, **options: Any) -> subprocess.Popen:
    # Command processes have one device, as on a laptop; other tests have eight.
    env = {**os.environ, "XLA_FLAGS": QUICK_FLAGS, "PYTHONPATH": str(ROOT)}
    env |= options.pop("env", {})
    script, *arguments = command
    call = [sys.executable, str(ROOT / script), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(call, text=True, env=env, cwd=cwd or ROOT, **pipes)


def run(*command: str, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess:
    process = start(*command, cwd=cwd, **options)
    out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, without_notes(err))


def without_notes(stderr: str) -> str:
    """Drop XLA's lines about processor features, which JAX 0.10.0 prints for cached programs."""
    return "".join(line for line in stderr.splitlines(True) if "cpu_aot_loader.cc" not in line)


@pytest.fixture(scope="module")
def trained(data_dir, tmp_path_factory):
    """Return a folder with a run of `train.py` in its default workdir, and the finished process."""
    folder = tmp_path_factory.mktemp("user")
    done = run("train.py", *SMALL, f"--config.data.dir={data_dir}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.mark.long
def test_train_prints_a_table_and_writes_results_and_report(trained):
    folder, done = trained
    workdir = folder / "runs" / "digits"
    for text in ("fewshot_1shot_top1", "linear_top1", "knn_top1", "pretrained", "report.html"):
        assert text in done.stdout
    results = json.loads((workdir / "results.json").read_text())["results"]
    kinds = {(row["metric"], row["features"]): row for row in results}
    for metric in ("knn_top1", "linear_top1", "fewshot_1shot_top1", "fewshot_5shot_top1"):
        for features in ("raw", "untrained", "pretrained"):
            row = kinds[metric, features]
            assert 0 <= row["value"] <= 100
            assert (row["dataset"], row["split"], row["seed"]) == ("digits", "test", 0)
    assert kinds["knn_top1", "pretrained"]["step"] == 6
    assert kinds["knn_top1", "untrained"]["step"] == 0
    assert kinds["fewshot_1shot_top1", "raw"]["std"] > 0
    report = (workdir / "report.html").read_text()
    values = [kinds["knn_top1", key]["value"] for key in ("raw", "untrained", "pretrained")]
    cells = "".join(f"<td>{value:.2f}</td>" for value in values)
    assert f"knn_<wbr>top1</th>{cells}" in report and report.rstrip().endswith("</html>")


@pytest.mark.long
def test_train_continues_after_its_terminal_is_closed(data_dir, tmp_path):
    workdir = tmp_path / "m[/x]"
    flags = ("--config.eval.protocols=()", f"--config.data.dir={data_dir}", f"--workdir={workdir}")
    process = start("train.py", *SMALL, *flags, env={"PYTHONIOENCODING": "ascii"})
    assert process.stdout.readline().strip() == f"begins: {workdir}"
    process.stdout.close()  # `| head -1` closes the pipe like this.
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate()
    assert (process.returncode, without_notes(errors)) == (0, "")
    log = (workdir / "train.log").read_text()
    assert "cannot be shown any more (Broken pipe)" in log and "finished 6 steps" in log
    assert (workdir / "checkpoints" / "6").is_dir()


def test_compile_cache_also_stores_programs_that_compile_quickly(tmp_path):
    code = """
from jaxssl.training.output import compile_cache
compile_cache.enable()
import jax
print(jax.jit(lambda x: x + 1)(1))
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    env |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert list(tmp_path.glob("jaxssl/jax-*/jit_*-cache"))


def test_error_names_a_jax_platform_that_has_no_devices(tmp_path):
    done = run("train.py", "--workdir=x", cwd=tmp_path, env={"JAX_PLATFORMS": "cuda"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "JAX_PLATFORMS='cuda' in the environment: JAX finds no such device" in done.stderr
    assert "unset it, or choose from cpu" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_port_of_the_coordinator_is_checked_before_jax_uses_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(UserError, match="cannot listen on the port .Address already in use"):
            processes.initialize(taken, 1, 0)
    for address in ("host", "host:", ":80", "host:0", "host:65536", "host:x"):
        with pytest.raises(UserError, match="expected HOST:PORT with a port from 1 to 65535"):
            processes.initialize(address, 2, 1)
    with pytest.raises(UserError, match="host..example is not a host name .*label empty"):
        processes.initialize("host..example:80", 2, 1)


@pytest.mark.long
def test_train_does_nothing_for_a_finished_run(trained, data_dir):
    folder, done = trained
    again = run("train.py", *SMALL, f"--config.data.dir={data_dir}", cwd=folder)
    assert again.returncode == 0
    assert "is finished (6 steps)" in again.stdout
    before, after = ([x for x in d.stdout.splitlines() if x[:1] == "│"] for d in (done, again))
    assert after == before and len(after) > 5


@pytest.mark.long
def test_eval_runs_the_requested_protocols_on_the_requested_step(trained):
    folder, _ = trained
    arguments = ("--workdir=runs/digits", "--protocols=knn:uniform", "--step=6")
    done = run("eval.py", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "runs/digits/results.json").read_text())["results"]
    nearest = [row for row in results if row["details"]["preset"] == "uniform"]
    assert {(row["protocol"], row["details"]["k"]) for row in nearest} == {("knn", 1)}
    # Earlier results are kept, and a result that is computed again is replaced.
    online = [row for row in results if row["protocol"] == "online"]
    assert len(results) - len(online) == 18 + len(nearest) == 18 + 6
    assert {row["checkpoint"] for row in online} == {"last", "best"}
    with open("/dev/full", "w") as full:
        done = run("eval.py", *arguments, cwd=folder, stdout=full)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads((folder / "runs/digits/results.json").read_text())["results"]) == 26


def test_retried_command_has_the_flag_that_ends_retries_before_a_double_dash(
    monkeypatch, run_command
):
    calls = []
    monkeypatch.setattr(retry, "run", lambda command, retries: calls.append(command))
    monkeypatch.setattr(sys, "orig_argv", ["jaxssl", "train", "--retry=1", "--"])
    run_command("train", "--retry=1", "--")
    assert calls == [["jaxssl", "train", "--retry=1", "--retry=0"]]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_lists_all_flags_and_a_valid_example(command, run_command, monkeypatch):
    module, calls = cli.load(command), []
    main = module.main
    status, text, _ = run_command(command, "--help")
    assert status == 0 and f"usage: jaxssl {command}" in text
    for flag in module.FLAGS:
        assert re.search(rf"--(\[no\])?{flag}:", text)
    monkeypatch.setattr(module, "main", lambda *given: calls.append(given))
    assert run_command(command, *cli.COMMANDS[command].example.split())[0] == 0
    assert len(calls) == 1
    assert len(inspect.signature(main).parameters) == len(calls[0])


@pytest.mark.parametrize("command", [(), ("train",)])
def test_printing_help_to_a_full_disk_is_no_error(command):
    with open("/dev/full", "w") as full:
        done = run("jaxssl/__main__.py", *command, "--help", stdout=full)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--version"], 0, f"jaxssl {jaxssl.__version__}"),
        ([], 2, "usage: jaxssl COMMAND"),
        (["--help"], 0, "usage: jaxssl COMMAND"),
        (["help", "train"], 0, "Pretrain an encoder."),
        (["data"], 0, "usage: jaxssl data COMMAND [arguments]\n\nData\n  data show"),
        (["trian"], 2, "error: command 'trian' is unknown; did you mean 'train'?"),
        (["data", "shw"], 2, "error: command 'data shw' is unknown; did you mean 'data show'?"),
        (["--seed=1", "train"], 2, "error: the command comes first: jaxssl COMMAND --seed=1\n"),
    ],
)
def test_command_line_without_a_valid_command_prints_help_version_or_an_error(
    arguments, status, message, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["jaxssl", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == status
    assert "".join(capsys.readouterr()).startswith(message)


def test_command_exits_after_an_error_even_if_a_thread_is_still_running():
    code = (
        "import threading, time; from jaxssl import cli; "
        "threading.Thread(target=time.sleep, args=(300,)).start(); cli.main('train')"
    )
    command = [sys.executable, "-c", code, "--worker=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2 and done.stderr.startswith("error: flag --worker is unknown")


SCALES = "<tiny|small|medium|paper|paper_simclr>"
NEIGHBOURS = ("neighbours", "run", "x")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("train", "--workdr=3"), "flag --workdr is unknown; did you mean '--workdir'?"),
        (("train", "--config.batchsize=3"), "'batchsize' is unknown; did you mean 'batch_size'"),
        (("report", "runs/a", "--config.seed=1"), "takes no config keys; omit --config.seed"),
        (("list", "los"), "topic 'los' is unknown; did you mean 'losses'?"),
        (("train", "--batch_size=3"), "is unknown; did you mean '--config.batch_size'?"),
        (("list", "losses", "nt_xen"), "'nt_xen' is unknown; did you mean 'nt_xent'?"),
        (("train", "digits"), "argument 'digits'; flags begin with --, such as '--config digits'"),
        (("train", "--resume="), "--resume is empty; give it a value, or leave it out"),
        (("train", "--workdir="), "--workdir is empty; give it a value, or leave it out"),
        (("train", "--dry_run", "--topology="), "--topology is empty; give it a value, or leave"),
        (("train", "--config="), "--config is empty; give it a value, or leave it out"),
        (
            ("eval", "--workdir=x", "--protocols="),
            "--protocols is empty; give it a value, or leave",
        ),
        (("eval", "--workdir=x", "--kinds="), "--kinds is empty; give it a value, or leave it out"),
        (("eval", "--workdir=x", "--suite="), "--suite is empty; give it a value, or leave it out"),
        (("eval", "--workdir=x", "--dataset="), "--dataset is empty; give it a value, or leave it"),
        (("eval", "--workdir=x", "--out="), "--out is empty; give it a value, or leave it out"),
        (("eval", ""), "--workdir is empty; give it a value, or leave it out"),
        (("embed", "a", ""), "--paths is empty; give it a value, or leave it out"),
        (("train", "--max_runs=5"), "--max_runs limits the runs of a grid: --grid KEY=A,B,C"),
        (("train", "--keys", "--dry_run", "--topology=v5e-8"), "--keys only prints the config;"),
        (("train", "--profile=9:3"), "--profile must be FIRST:END with FIRST < END"),
        (("train", "--dry_run", "--profile=0:1"), "--dry_run takes no steps to trace"),
        (("train", "--retry=2", "--profile=0:1"), "--retry would trace steps that are done; leave"),
        (("train", "--grid=seed=1", "--dry_run"), "--dry_run is for one run; leave it or --grid"),
        (("train", "--grid=seed=1", "--keys"), "--keys is for one run; leave it or --grid out"),
        (("train", "--grid=seed=1", "--topology=cpu:8"), "--topology is for one run; leave it or"),
        (("train", "--dry_run", "--config.init=nowhere"), "nowhere holds no checkpoint"),
        (("train", "--dry_run", "--config.log=wand"), "unknown logger 'wand'; did you mean"),
        (("train", "--dry_run", "--config.data.cache=disk"), "data.cache='disk' is unknown"),
        (("train", "--dry_run", "--config.eval.knn=near"), "eval.knn='near' is unknown"),
        (
            (
                *("train", "--dry_run", "--config.method.name=momentum"),
                "--config.method.momentum={'schedule': 'linear', 'start': 0.9, 'end': 1.5}",
            ),
            "momentum must be in [0, 1], got 1.5",
        ),
        (("train", "--grid=seed=1", "--workdir=gs://b/x"), "--workdir=gs://b/x must be a local"),
        (("study", "claims", "--out=gs://b/x"), "--out=gs://b/x must be a local path; only runs"),
        (("study", "gradient_bias", "--out=s3://b/x"), "--out=s3://b/x must be a local path"),
        (("study", "alpa"), "study 'alpa' is unknown; did you mean 'alpha'"),
        (("study", "alpha", "--scale=huge"), f"flag --scale=huge: value should be one of {SCALES}"),
        (("study", "alpha", "--batch_sizes=8,x"), "--batch_sizes expects numbers > 0, got 8,x"),
        (("study", "alpha", "--seeds=0"), "flag --seeds=0"),
        (("study", "alpha", "--methods=simclr"), "--methods is not used by the study 'alpha'"),
        (("study", "alpha", "--equal_steps"), "--equal_steps is not used by the study 'alpha'"),
        (("study", "alpha", "--finished"), "--finished is not used by the study 'alpha'"),
        (("study", "toy_noise", "--seeds=3"), "--seeds is not used by the study 'toy_noise' here"),
        (
            ("study", "toy_noise", "--scale=small"),
            "--scale is not used by the study 'toy_noise' here",
        ),
        (("study", "toy_noise", "--config.epochs=3"), "--config.epochs is not used by the study"),
        (("study", "support_vectors", "--workdir=x", "--dataset=y"), "--dataset is not used by"),
        (
            ("study", "support_vectors", "--workdir=x", "--config.epochs=3"),
            "--config.epochs is not",
        ),
        (("export", "--workdir=x", "y"), "unexpected argument 'y'; flags begin with --"),
        (("study", "alpha", "--earlier=x.json"), "--earlier is not used by the study 'alpha'"),
        (NEIGHBOURS[:2], "name the encoder and the images: jaxssl neighbours ENCODER IMAGES"),
        ((*NEIGHBOURS, "--threshold=2"), "flag --threshold=2"),
        ((*NEIGHBOURS, "--k=0"), "flag --k=0"),
        ((*NEIGHBOURS, "--step=first"), "--step must be a number, last or best, got 'first'"),
        ((*NEIGHBOURS, "--config.seed=1"), "neighbours has no --config.seed: a run has its own"),
        (("export", "x", "--to=timm", "--config.data.dir=y"), "export has no --config.data.dir"),
        (("neighbours", "nowhere", "x"), "nowhere holds no checkpoint"),
        (
            ("data show", "--config=pictures", "--config.data.path=."),
            "--out views_pictures.png lies among the data; name a file outside",
        ),
        (("eval",), "eval needs a run or a weights file: --workdir DIR or --weights FILE"),
        (("eval", "--workdir=nowhere"), "nowhere holds no run"),
    ],
)
def test_user_errors_print_one_line_and_exit_with_status_2(
    command, message, tmp_path, monkeypatch, run_command
):
    monkeypatch.chdir(tmp_path)
    status, _, error = run_command(*command)
    assert status == 2 and error.startswith("error: ") and message in error
    assert error.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "environment", "does_nothing"),
    [
        (["--process_id=1", "--num_processes=2", "--coordinator=host0:1"], {}, True),
        (["--process_id=0", "--num_processes=2", "--coordinator=host0:1"], {}, False),
        (["--process_id=0"], {"JAX_PROCESS_ID": "1"}, False),
        ([], {"JAX_PROCESS_ID": "1"}, True),
        ([], {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, True),
        ([], {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, False),
        ([], {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ([], {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "1"}, True),
        ([], {"OMPI_COMM_WORLD_RANK": "1"}, True),
        ([], {"TPU_WORKER_ID": "1"}, True),
        ([], {"JOB_COMPLETION_INDEX": "1"}, True),
    ],
)
@pytest.mark.parametrize("command", ["export", "report"])
def test_only_process_0_of_several_processes_exports_and_reports(
    command, flags, environment, does_nothing, tmp_path, monkeypatch, run_command
):
    monkeypatch.chdir(tmp_path)
    for name in (*cli.INDICES, "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    formats = ["--to=safetensors"] if command == "export" else []
    status, out, err = run_command(command, "nowhere", *formats, *flags)
    if does_nothing:
        line = "process 1 has nothing to do: process 0 writes the files\n"
        assert (status, out, err) == (0, line, "")
    else:
        assert status == 2 and "error: " in err and "nowhere" in err


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EACCES, "Permission denied"), (errno.ENAMETOOLONG, "File name too long")],
)
def test_path_that_the_system_refuses_is_reported_in_one_line(
    monkeypatch, run_command, code, reason
):
    def refuse(*args, **kwargs):
        raise OSError(code, reason, "theirs/run")

    monkeypatch.setattr(config, "load", refuse)
    expected = 2, "", f"error: theirs/run: {reason}; choose another path\n"
    assert run_command("train") == expected


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room\n"),
        jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating 9 bytes."),
    ],
)
def test_exhausted_memory_is_reported_in_one_line(monkeypatch, run_command, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(config, "load", fail)
    status, _, error = run_command("train")
    assert status == 2 and error.count("\n") == 1
    assert error.startswith("error: out of memory; reduce batch_size")


def test_list_and_help_show_each_setting_with_type_value_and_description(run_command):
    listed, keys = (
        {line.split()[0]: line for line in run_command(*command)[1].splitlines()}
        for command in (("list", "losses", "nt_xent"), ("train", "--keys"))
    )
    ring = listed["loss.ring"]
    assert ring.split()[1:3] == ["bool", "False"] and "devices" in ring
    assert {"optim.lr", "loss.alpha", "net.widths", "schedule.name"} <= keys.keys()
    assert "base learning rate" in keys["optim.lr"] and "small crops" in keys["crops.number"]


@pytest.mark.parametrize("group", config.GROUPS)
def test_every_setting_of_a_component_has_a_description(group):
    for name in components.names(group):
        assert all(one.line for one in component_settings(group, name)), name


@pytest.mark.fast
def test_paths_of_commands_may_have_commas_and_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lr=0.1,seed=0").mkdir()
    parts = [f"{tmp_path}/lr=0.1", "seed=0"]
    assert eval_command._join_path_with_commas(parts) == [f"{tmp_path}/lr=0.1,seed=0"]
    assert eval_command._join_path_with_commas(["~/lr=0.1", "seed=0"]) == ["~/lr=0.1,seed=0"]
    assert eval_command._join_path_with_commas(["a", "b"]) == ["a", "b"]
    assert buckets.as_path("~/x") == buckets.local_path("out", "~/x") == tmp_path / "x"

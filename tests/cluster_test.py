"""The files of `examples/cluster`, and how a process finds the launcher that has started it."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster
from process_cases import free_port
from tiny import short
from xla_flags import QUICK_FLAGS

from jaxssl import components
from jaxssl.cli import train
from jaxssl.training import processes

CLUSTER = Path(__file__).parents[1] / "examples" / "cluster"
SCRIPTS = sorted(CLUSTER.glob("*.sh"))
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
SLURM |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.fast
@pytest.mark.parametrize(
    ("environment", "is_cluster"),
    [
        ({}, False),
        (SLURM, True),
        ({**SLURM, "SLURM_NTASKS": "1"}, False),  # one task, for which JAX would use only one GPU
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, False),  # an interactive step of a larger job
        # Inside of sbatch, but not started by srun.
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "2"}, False),
        ({"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:3", "OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:3", "OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),  # set by Google Kubernetes Engine
        ({"TPU_NAME": "pod"}, True),  # a TPU VM: JAX asks Google's metadata server
        # Any container in Kubernetes, such as a notebook.
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
    ],
)
def test_launcher_of_several_processes_is_detected(monkeypatch, environment, is_cluster):
    for name in os.environ:
        if name.startswith(("SLURM", "OMPI", "TPU", "KUBERNETES", "JOB_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tpu = any(name.startswith("TPU") for name in environment)
    metadata = "0", 200 if "TPU_NAME" in environment else 404
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", tpu)
    monkeypatch.setattr(cloud_tpu_cluster, "get_metadata", lambda key: metadata)
    assert processes._is_cluster() == is_cluster


@pytest.mark.fast
def test_jobset_sets_the_number_of_processes_and_the_coordinator_consistently():
    jobset = yaml.safe_load((CLUSTER / "jobset.yaml").read_text())
    (job,) = jobset["spec"]["replicatedJobs"]
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert job["template"]["spec"]["parallelism"] == int(variables["JAX_NUM_PROCESSES"])
    assert job["template"]["spec"]["completions"] == int(variables["JAX_NUM_PROCESSES"])
    name, port = jobset["metadata"]["name"], container["ports"][0]["containerPort"]
    assert variables["JAX_COORDINATOR_ADDRESS"] == f"{name}-{job['name']}-0-0.{name}:{port}"


def commands() -> list[list[str]]:
    """Return the words after "jaxssl train" of every file."""
    jobset = yaml.safe_load((CLUSTER / "jobset.yaml").read_text())
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    texts = [path.read_text().replace("\\\n", " ") for path in SCRIPTS]
    lines = [line for text in texts for line in text.splitlines() if "jaxssl train --" in line]
    parts = [line.partition("jaxssl train ")[2].rstrip(")") for line in lines]
    return [pod["containers"][0]["command"][2:], *map(shlex.split, parts)]


@pytest.mark.fast
@pytest.mark.parametrize("words", commands(), ids=range(len(commands())))
def test_cluster_examples_use_existing_configs_and_flags(words):
    words = [word for word in words if not word.startswith(("$", "--config."))]
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert flags <= {f"--{name}" for name in train.FLAGS}
    place = next(i for i, word in enumerate(words) if word.startswith("--config"))
    assert (words[place].partition("=")[2] or words[place + 1]) in components.configs()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_cluster_scripts_have_no_shell_syntax_errors(script):
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


def slurm(tmp_path: Path, srun: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run slurm.sh with a script in place of srun, and an scontrol that prints its arguments."""
    for name, text in (("srun", srun), ("scontrol", 'echo scontrol "$@"')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, **SLURM, "WORKDIR": str(tmp_path / "run")}
    environment["XLA_FLAGS"] = QUICK_FLAGS  # one device for each process
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    command = ["bash", str(CLUSTER / "slurm.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("status", [0, 1, 143])
def test_slurm_requeues_a_run_that_was_stopped_by_sigterm(tmp_path, status):
    done = slurm(tmp_path, f"exit {status}")
    assert done.returncode == status
    assert done.stdout == ("scontrol requeue 77\n" if status == 143 else "")


@pytest.mark.long
def test_two_slurm_tasks_train_one_run_together(tmp_path, data_dir):
    tasks = f"""
shift; [ "$1" = jaxssl ] && shift
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i {shlex.quote(sys.executable)} -m jaxssl "$@" &
  tasks+=($!)
done
for task in "${{tasks[@]}}"; do wait "$task" || exit; done"""
    tiny = short(2, **{"batch_size": "16", "data.dir": str(data_dir), "eval.protocols": "()"})
    changes = [f"--config.{key}={value}" for key, value in tiny.items()]
    done = slurm(tmp_path, tasks, "--config=digits", *changes)
    assert done.returncode == 0, done.stderr
    assert "on each of 2 devices" in done.stdout + done.stderr


LOST = (
    "error: process 0 of this run has ended, or cannot be reached; start all processes again, and "
    "they resume at the last checkpoint"
)
WATCHED = """
import os, pathlib, signal, sys, time
from jaxssl.training import processes
process, abort, watching = int(sys.argv[2]), sys.argv[3] == "abort", pathlib.Path(sys.argv[4])
processes.start(f"127.0.0.1:{sys.argv[1]}", 2, process)
if process == 1:
    watching.touch()
while not watching.exists():
    time.sleep(0.1)
if process == abort:
    os.abort() if abort else os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60 if abort else 20)
"""


@pytest.mark.parametrize(
    ("action", "status"),
    # Process 0 is killed, or process 1 aborts itself.
    [("kill", 1), pytest.param("abort", -signal.SIGABRT, marks=pytest.mark.long)],
)
def test_process_1_ends_with_a_message_only_if_process_0_was_killed(action, status, tmp_path):
    port = free_port()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    options = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", WATCHED, str(port)]
    watching = str(tmp_path / "watching")
    hosts = [subprocess.Popen([*command, str(i), action, watching], **options) for i in range(2)]
    errors = hosts[1].communicate(timeout=120)[1]
    hosts[0].kill()
    hosts[0].communicate()
    messages = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert (hosts[1].returncode, messages) == (status, [LOST] * (status == 1))

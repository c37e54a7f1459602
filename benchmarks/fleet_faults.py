"""Measure how the processes of a run end when one of them fails, and what a second start loses.

    python benchmarks/fleet_faults.py [--faults step,stop] [--processes 4] [--workdir DIR]

Every fault is injected into one process of a tiny run of several processes on this machine, with a
device each, which `jax.distributed` connects over the loopback device. Then the same command is
started again without the fault. The table shows the last lines of the others and their exit
statuses, the seconds from the fault until the last of them ended, and the steps that were done but
not in the checkpoint from which the second start resumed. A row takes about a minute, and the first
one six, because processes wait five minutes for one that does not join.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
STEPS, SAVED = 60, 20  # numbers of steps: in the run, between two checkpoints
SETTINGS = (
    "batch_size=16 net.widths=(4,8) net.strides=(2,2) augment.size=8 head.proj_hidden_dim=8 "
    f"head.proj_output_dim=6 data.cache=none log_every=4 total_steps={STEPS} "
    f"schedule.warmup_epochs=0 checkpoint.every={SAVED / 81} eval.every=100"
)
# Number of training steps that are done when a fault occurs in each phase of the run. Checkpoints
# are written in the background.
DONE = {"join": 0, "setup": 0, "step": 30, "checkpoint": 2 * SAVED, "evaluation": STEPS}
SIGNALS = dict(kill=signal.SIGKILL, ahead=signal.SIGKILL, stop=signal.SIGSTOP, term=signal.SIGTERM)
LATEST = 900.0  # seconds after a fault until the processes that have not ended are killed


class Fault(NamedTuple):
    """A fault of one process: what happens to it, when, and how the run starts again."""

    text: str
    place: str = "step"
    action: str = "kill"
    process: int = 1
    again: int = 1  # number of processes in the start after the fault
    flags: tuple[str, ...] = ()


FAULTS = {
    "join": Fault("killed before it joins", "join"),
    "setup": Fault("killed in the set-up", "setup"),
    "step": Fault("killed in a step"),
    "checkpoint": Fault("killed while a checkpoint is written", "checkpoint"),
    "evaluation": Fault("killed in the evaluation", "evaluation"),
    "first": Fault("process 0: killed in a step", process=0),
    "error": Fault("its disk does not answer", action="error"),
    "stop": Fault("stopped (SIGSTOP) in a step", action="stop"),
    "slow": Fault("half a second late with each batch", action="slow"),
    "clock": Fault("an hour ahead, then killed in a step", action="ahead"),
    "clock_first": Fault("process 0: an hour ahead, then killed", action="ahead", process=0),
    "term": Fault("SIGTERM in a step", action="term"),
    "fewer": Fault("killed in a step, 2 processes come back", again=2),
    "more": Fault("killed in a step, 8 processes come back", again=8),
    "retry": Fault("killed in a step, all have --retry=1", flags=("--retry=1",)),
}


def inject(place: str, action: str, marker: Path) -> None:
    """Run a command of jaxssl and inject the fault in its process, but only at the first start."""

    def act() -> None:
        if action == "slow":
            time.sleep(0.5)
        if action == "nothing" or marker.exists():
            return
        marker.touch()
        if action in SIGNALS:
            os.kill(os.getpid(), SIGNALS[action])
        elif action == "error":
            raise OSError("the disk does not answer")

    if action == "ahead":
        clock = time.time
        time.time = lambda: clock() + 3600
    if place == "join":
        act()
    from jaxssl import cli
    from jaxssl.data.batches import Batches
    from jaxssl.evaluation import run
    from jaxssl.training.workdir import opening

    owner, name = {"setup": (opening, "check_shared"), "evaluation": (run, "_run_protocol")}.get(
        place, (Batches, "next")
    )
    function, calls = getattr(owner, name), 0
    at = DONE[place] if owner is Batches else 0

    def wrapped(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls > at:
            act()
        return function(*arguments, **options)

    setattr(owner, name, wrapped)
    cli.main()


def start(folder: Path, number: int, fault: Fault) -> list[subprocess.Popen]:
    """Start the processes of a run. Process N writes its output to N.log in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["train", "--config=digits", f"--workdir={folder}/run", *fault.flags]
    protocols = "knn" if fault.place == "evaluation" else "()"
    words += [f"--config.{x}" for x in f"{SETTINGS} eval.protocols={protocols}".split()]
    words += [f"--coordinator=127.0.0.1:{port}", f"--num_processes={number}"]
    hosts = []
    for i in range(number):
        faulty = i == fault.process
        at = (fault.place, fault.action) if faulty else ("step", "nothing")
        command = [sys.executable, __file__, *at, f"{folder}/fault", *words, f"--process_id={i}"]
        environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"} | os.environ
        environment |= {"JAX_PLATFORMS": "cpu"}
        with (folder / f"{i}.log").open("a") as log:
            options = {"stdout": log, "stderr": log, "env": environment}
            hosts.append(subprocess.Popen(command, **options))
    return hosts


def wait(hosts: list[subprocess.Popen], marker: Path) -> float:
    """Return the time when all processes have ended. Kill them `LATEST` seconds after a fault."""
    while any(host.poll() is None for host in hosts):
        time.sleep(0.05)
        if marker.exists() and time.time() - marker.stat().st_mtime > LATEST:
            for host in hosts:
                host.kill()
    return time.time()


def last_line(path: Path) -> str:
    """Return the error in the log of a process, or else the line with which its run ended."""
    text = path.read_text()
    endings = ("error: .*", "stopped at .*", "wall time .*", "Terminating process .* fatal errors")
    found = (re.search(ending, text) for ending in endings)
    return next((match[0] for match in found if match), "")


def measure(fault: Fault, number: int, folder: Path) -> list[str]:
    """Run several processes with a fault, start them again, and return a row of the table."""
    folder.mkdir(parents=True)
    logs = [folder / f"{i}.log" for i in range(number)]
    hosts = start(folder, number, fault)
    others = [host for host in hosts if host is not hosts[fault.process]]
    seconds = wait(others, folder / "fault") - (folder / "fault").stat().st_mtime
    hosts[fault.process].send_signal(signal.SIGCONT)
    wait(hosts, folder / "fault")
    lines = {last_line(log) for i, log in enumerate(logs) if i != fault.process} - {""}
    status = ", ".join(str(code) for code in sorted({host.returncode for host in others}))
    if any(host.returncode for host in hosts):
        for log in logs:
            log.rename(log.with_suffix(".fault"))
        hosts = start(folder, fault.again, Fault("", fault.place, "nothing"))
        wait(hosts, folder / "fault")
    resumed = re.findall(r"(?:resumes at step |finished \()(\d+)", logs[0].read_text())
    done = 0 if fault.action == "slow" else DONE[fault.place]
    lost = str(max(0, done - int(resumed[-1] if resumed else 0)))
    if any(host.returncode for host in hosts):
        lost = f"no second start: {last_line(logs[0])}"
    return [fault.text, str(number), "; ".join(sorted(lines)), status, f"{seconds:.0f}", lost]


def main() -> None:
    """Measure the faults, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", default=",".join(FAULTS), help="names with commas between")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--workdir", type=Path, help="of the runs; default: a temporary folder")
    options = parser.parse_args()
    if unknown := set(options.faults.split(",")) - set(FAULTS):
        parser.error(f"unknown faults {', '.join(sorted(unknown))}; take of {', '.join(FAULTS)}")
    print("| process 1 | processes | the others say | status | seconds | steps lost |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.workdir or Path(temporary)
        for name in options.faults.split(","):
            row = measure(FAULTS[name], options.processes, folder / f"{name}{options.processes}")
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in DONE:
        place, action, file = sys.argv[1:4]
        del sys.argv[1:4]
        inject(place, action, Path(file))
    main()

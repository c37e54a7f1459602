"""Measure correctness, speed and accuracy on an accelerator, in many short jobs.

    python benchmarks/record.py --minutes 9 --out OUT                   # run the next pieces
    python benchmarks/record.py --merge OUT                             # add to docs/record.json
    python benchmarks/record.py --scale tiny --minutes 2 --out OUT      # try it on a CPU
    python benchmarks/record.py --out OUT --config.data.name=folder --config.data.path=pictures.zip
    python benchmarks/record.py --out OUT --only "speed/resnet18*" "run/*-s0"

`record_plan.py` has the plan. A call runs the next pieces that have no result in docs/record.json
or in OUT. It skips pieces that would not finish in time, and stops when the time is over. OUT gets
at most eight files of less than 16 MiB. Without --minutes, the whole plan is run. See
docs/record.md.
"""

import time

STARTED = time.monotonic()  # The clock starts before the other imports, which take time too.

import argparse
import fnmatch
import functools
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import record_tables
from record_plan import MARGIN, SCALES, Estimates, Piece, make_plan

from jaxssl import cli
from jaxssl.errors import UserError, explain_write_errors, one_line
from jaxssl.training import config
from jaxssl.training.output import file_io, git, metrics_writer

WORKER = ROOT / "benchmarks" / "record_pieces.py"
RESERVE = 15.0  # seconds reserved at the end to stop jobs and to write the folder OUT
GRACE = 8.0  # seconds that a stopped job has to write its checkpoint
LARGEST = 15 * 2**20  # largest size of a file in the folder OUT, in bytes
HELD = 0.85  # share of the device's memory that concurrent jobs may use together
PARTS = ("figures", "unfinished", "failed")  # sections of a benchmark record
LOG = 20_000  # number of characters kept from the end of a job's log
# files of a training run that are copied into OUT
KEPT = ("config.json", "metrics.jsonl", "results.json", "train.log")
# folders and files that a measurement depends on
CODE = ("jaxssl", "configs", "benchmarks", "tests", "pyproject.toml")
# fields of a measurement in the record
FIELDS = {"settings", "commit", "device", "versions", "minutes", "values"}


class Device(NamedTuple):
    """The accelerator that runs the measurements, with memory and versions.

    Attributes:
        name: name of the device and number of CPU cores.
        memory: device memory in GiB, 0 on a CPU.
        cores: number of CPU cores.
        is_cpu: True if the device is not an accelerator.
    """

    name: str
    memory: float
    cores: int
    is_cpu: bool = False


class Job:
    """A measurement that is running in a subprocess."""

    def __init__(self, piece: Piece, work: Path, device: Device) -> None:
        self.piece, self.start = piece, time.monotonic()
        self.workdir = folder_of(work, piece.name)
        self.stopped = False
        self.resumed = progress(self.workdir) > 0
        label = piece.name.replace("/", "-")
        self.log, self.result = work / f"{label}.log", work / f"{label}.result.json"
        source = work / f"{label}.piece.json"
        task = {"name": piece.name, "settings": piece.settings, "workdir": str(self.workdir)}
        file_io.write_json(source, task)
        self.result.unlink(missing_ok=True)
        environment = {**os.environ, "JAXSSL_COMMIT": code_commit(), "PYTHONUNBUFFERED": "1"}
        if piece.alone:  # This measurement also runs PyTorch, which needs part of the memory.
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        elif device.memory:
            share = min(HELD, piece.memory / device.memory)
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.3f}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), str(source), str(self.result)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C reaches this process only, which then stops the subprocesses.
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        """Return the seconds since the start of the job."""
        return time.monotonic() - self.start


@functools.cache
def code_commit() -> str:
    """Return the last commit that changed the code, or "" outside of a checkout.

    A merge changes the documentation only. It neither starts runs anew nor marks later results.
    Changes of the code without a commit add "-dirty" and a digest of them.
    """
    if os.environ.get("JAXSSL_COMMIT") or not git.current_commit():
        return git.current_commit()
    commit, changes = (
        subprocess.run(["git", "-C", str(ROOT), *words, "--", *CODE], capture_output=True).stdout
        for words in (("log", "-1", "--format=%h"), ("diff", "HEAD"))
    )
    digest = f"-dirty-{hashlib.sha256(changes).hexdigest()[:6]}" if changes else ""
    return commit.decode().strip() + digest


def is_measured(piece: Piece, figure: Mapping[str, Any] | None, device: Device) -> bool:
    """Return True if a figure is that of a piece, on this data or on this device."""
    if figure is None:
        return False
    if piece.kind == "run":  # Accuracies do not depend on the device.
        overrides = list(map(tuple, piece.settings["data"]))
        data = config.load(f"studies:{piece.settings['config']}", overrides).data
        return figure["values"]["data"] == (Path(data.path).name or data.name)
    return figure["device"] == device.name


def folder_of(work: Path, name: str, commit: str | None = None) -> Path:
    """Return the folder of a training run. Only the commit that started a run resumes it."""
    return work / (commit or code_commit()) / name


def stop(jobs: list[Job]) -> None:
    """Ask all running jobs for a checkpoint, wait for it briefly, and end them."""
    for job in jobs:
        job.stopped = True
        # Signal each job only once: a second signal would end a run without a checkpoint.
        job.process.terminate()
    last = time.monotonic() + GRACE
    for job in jobs:
        try:
            job.process.wait(max(0.1, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(job.process.pid, signal.SIGKILL)  # ends the child processes too
            job.process.wait()


def do_pieces(
    plan: list[Piece],
    record: Mapping[str, Any],
    out: Path,
    work: Path,
    minutes: float,
    only: Sequence[str] = ("*",),
) -> None:
    """Run the next measurements of the plan, and write OUT after each of them.

    ``only`` has patterns of the names of the pieces to run.

    Raises:
        UserError: if no piece has a name of ``only``, or for other arguments that do not fit.
    """
    for pattern in only:
        if plan and not fnmatch.filter([piece.name for piece in plan], pattern):
            raise UserError(
                f"--only {pattern}: no piece has this name; names look like {plan[0].name} and "
                f"{plan[-1].name}"
            )
    end = STARTED + 60 * minutes - (0 if math.isinf(minutes) else RESERVE)
    for folder in (out, work):
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    fresh = read_record(out / "figures.json", record["scale"])
    # Measurements in OUT are done, and their times improve the estimates.
    known = {part: {**record[part], **fresh[part]} for part in PARTS}
    device = find_device(work)
    if device.is_cpu and record["scale"] == "paper":
        raise UserError("no accelerator was found, and a CPU would take weeks; try --scale tiny")
    estimates = Estimates(plan, known, device.name)
    chosen = [p for p in plan if any(fnmatch.fnmatchcase(p.name, pattern) for pattern in only)]
    figures = known["figures"]
    pending = [piece for piece in chosen if not is_measured(piece, figures.get(piece.name), device)]
    # Measurements that failed with this commit come last.
    failed = {name for name, x in known["failed"].items() if x["commit"] == code_commit()}
    pending.sort(key=lambda piece: piece.name in failed)
    print(f"{device.name}: {len(pending)} of {len(chosen)} pieces are left", flush=True)
    # Besides its remaining steps, a resumed run needs time for its evaluation.
    rest = {piece.name: max(0.2, 1 - progress(folder_of(work, piece.name))) for piece in pending}
    running: list[Job] = []
    try:
        while True:
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                finish(job, fresh, known, device)
                write_record(out / "figures.json", fresh)
                estimates = Estimates(plan, known, device.name)
            left = (end - time.monotonic()) / 60
            for piece in list(pending):
                needed = MARGIN * rest[piece.name] * estimates.minutes(piece)
                if needed > left:
                    continue  # The measurement takes longer than the time that is left.
                if not fits(piece, running, device):
                    break  # The next measurement of the plan waits for its turn.
                print(f"starts {piece.name}, about {needed:.1f} minutes", flush=True)
                pending.remove(piece)
                running.append(Job(piece, work, device))
            if not running:
                break
            if time.monotonic() >= end:
                print("the time is over", flush=True)
                break
            time.sleep(0.2)
    finally:
        stop(running)
        for job in running:
            finish(job, fresh, known, device)
        write_record(out / "figures.json", fresh)
        write_logs(out / "log.txt", work)
        write_runs(out / "runs.zip", work, fresh)
    needed = {piece.name: MARGIN * estimates.minutes(piece) for piece in pending}
    too_long = [name for name in needed if needed[name] > minutes - RESERVE / 60]
    if too_long:
        least = min(too_long, key=lambda name: needed[name])
        print(f"{len(too_long)} need a longer call, {least} {needed[least]:.1f} minutes")
    print(f"{len(fresh['figures'])} pieces are in {out}; {len(pending)} were not begun")


def find_device(work: Path) -> Device:
    """Find the accelerator in a subprocess, so that its memory is released.

    Raises:
        UserError: if JAX does not start.
    """
    source, target = work / "device.piece.json", work / "device.result.json"
    file_io.write_json(source, {"name": ""})
    command = [sys.executable, str(WORKER), str(source), str(target)]
    whole = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    whole["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "1.0"  # reports the whole memory of the device
    done = subprocess.run(command, capture_output=True, text=True, env=whole)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise UserError(f"JAX finds no device: {reason}; see python -c 'import jax; jax.devices()'")
    answer = json.loads(target.read_text())
    memory = (answer["memory"] or 0) / 2**30
    return Device(answer["device"], memory, os.cpu_count() or 1, answer["is_cpu"])


def fits(piece: Piece, running: list[Job], device: Device) -> bool:
    """Return True if a measurement can start while the others run.

    Two training runs at a time are slower than one after the other.
    """
    pieces = [job.piece for job in running]
    if not pieces:
        return True
    if piece.alone or any(other.alone for other in pieces):
        return False
    together = [*pieces, piece]
    memory = sum(other.memory for other in together) if device.memory else 0.0
    if sum(other.cores for other in together) > device.cores or memory > HELD * device.memory:
        return False
    return sum(other.kind == "run" for other in together) <= 1


def finish(job: Job, fresh: dict[str, Any], known: dict[str, Any], device: Device) -> None:
    """Record the figure of a measurement that has ended, or the progress of an unfinished run."""
    name, minutes = job.piece.name, job.seconds / 60
    before = known["unfinished"].get(name)
    if before and job.resumed:
        minutes += before["minutes"]
    entry = {
        # The setting "data" is not recorded, because it is a local path.
        "settings": {k: v for k, v in job.piece.settings.items() if k != "data"},
        "commit": code_commit(),
        "device": device.name,
        "minutes": max(0.01, round(minutes, 2)),
    }
    if job.process.returncode == 0 and job.result.exists():
        result = json.loads(job.result.read_text())
        entry |= {"versions": result["versions"], "values": result["values"]}
        for document in (fresh, known):
            document["figures"][name] = entry
            document["unfinished"].pop(name, None)
            document["failed"].pop(name, None)
        print(f"done   {name}: {minutes:.1f} minutes", flush=True)
    elif job.stopped:
        share = progress(job.workdir)
        fresh["unfinished"][name] = known["unfinished"][name] = {**entry, "share": share}
        print(f"stopped {name} at {100 * share:.0f} %", flush=True)
    else:
        lines = job.log.read_text(errors="replace").strip().splitlines()
        reason = lines[-1][:300] if lines else "no output"  # log.txt has the whole output.
        fresh["failed"][name] = {"commit": code_commit(), "reason": reason}
        print(f"failed {name}: {reason}", flush=True)


def progress(workdir: Path) -> float:
    """Return the share of a training run that its last checkpoint has reached."""
    try:
        settings = json.loads((workdir / "config.json").read_text())
        names = [path.name for path in (workdir / "checkpoints").iterdir()]
        last = max(int(name) for name in names if name.isdecimal())
        lines = metrics_writer.read_metrics(workdir / "metrics.jsonl")
        epochs = [line["epoch"] for line in lines if line["step"] <= last]
        return round(min(1.0, epochs[-1] / settings["epochs"]), 3)
    except (OSError, ValueError, LookupError):
        return 0.0  # The run does not exist yet.


def write_logs(path: Path, work: Path) -> None:
    """Write the ends of all logs to one file."""
    logs = sorted(work.glob("*.log"), key=lambda log: log.stat().st_mtime)
    text = "".join(f"==== {log.stem}\n{log.read_text(errors='replace')[-LOG:]}\n" for log in logs)
    file_io.write_bytes(path, text.encode()[-LARGEST:])


def write_runs(path: Path, work: Path, fresh: Mapping[str, Any]) -> None:
    """Write configs, metrics, results and logs of the finished runs to a zip, latest first."""
    names = [name for name in reversed(fresh["figures"]) if name.startswith("run/")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            folder = folder_of(work, name, fresh["figures"][name]["commit"])
            kept = [folder / file for file in KEPT if (folder / file).exists()]
            # Assume that text files compress to half their size.
            size = sum(file.stat().st_size for file in kept) / 2
            if archive.fp.tell() + size > LARGEST:
                print(f"runs.zip is full: {name} stays in {folder}")
                continue
            for file in kept:
                archive.write(file, f"{name.partition('/')[2]}/{file.name}")


def merge(source: Path, pages: Path, scale: str) -> None:
    """Add the results of OUT to docs/record.json, and write its tables into the pages of docs/.

    Results that are already there are kept.

    Raises:
        UserError: if OUT holds no figures of this scale, or a file cannot be read or written.
    """
    if not (source / "figures.json").exists():
        raise UserError(f"{source} holds no figures.json; measure first with --out {source}")
    fresh = read_record(source / "figures.json", scale)
    record = read_record(pages / "record.json", scale)
    plan = make_plan(scale)
    added = 0
    for name, figure in fresh["figures"].items():
        before = record["figures"].setdefault(name, figure)
        added += before is figure
        if before != figure:
            print(
                f"{name}: record.json keeps the result of commit {before['commit']}, not that of "
                f"{figure['commit']}; delete its line in {pages / 'record.json'} to replace it"
            )
    for part in ("unfinished", "failed"):
        both = {**record[part], **fresh[part]}
        record[part] = {name: x for name, x in both.items() if name not in record["figures"]}
    for name, failure in record["failed"].items():
        print(f"failed {name}: {failure['reason']}")
    order = {piece.name: place for place, piece in enumerate(plan)}
    ranked = sorted(record["figures"], key=lambda name: order.get(name, len(order)))
    record["figures"] = {name: record["figures"][name] for name in ranked}
    about = {
        (figure["values"]["data"], figure["values"]["epochs"])
        for name, figure in record["figures"].items()
        if name.startswith("run/")
    }
    if len(about) > 1:
        texts = sorted(f"{data}, {epochs:g} epochs" for data, epochs in about)
        raise UserError(
            f"the runs of a record must be of one data set and length, got {'; '.join(texts)}; "
            f"delete the others in {source / 'figures.json'} or in {pages / 'record.json'}"
        )
    with explain_write_errors(pages):
        pages.mkdir(parents=True, exist_ok=True)
        write_record(pages / "record.json", record)
        for page, text in record_tables.pages(record).items():
            record_tables.insert(pages / page, text)
    missing = sum(piece.name not in record["figures"] for piece in plan)
    print(f"{added} new results in {pages / 'record.json'}; {missing} pieces are left")


def read_record(path: Path, scale: str) -> dict[str, Any]:
    """Read figures, unfinished runs and failures by name. A missing file is an empty record.

    Raises:
        UserError: if the file is damaged or of another scale.
    """
    empty = {"scale": scale, "figures": {}, "unfinished": {}, "failed": {}}
    if not path.exists():
        return empty
    try:
        record = {**empty, **json.loads(path.read_text(encoding="utf-8"))}
        for name, figure in record["figures"].items():
            for field in sorted(FIELDS - set(figure)):
                raise ValueError(f"the result {name} of record.json lacks the field {field!r}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}); move it away") from error
    if record["scale"] != scale:
        raise UserError(
            f"{path} must be a record of scale {scale!r}, got {record['scale']!r}; give --scale or "
            "another folder"
        )
    return record


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with one line per figure, which keeps diffs readable."""
    parts = [f'"scale": {json.dumps(record["scale"])}']
    for part in PARTS:
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record[part].items()]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    file_io.write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def main(argv: list[str]) -> None:
    """Parse the arguments and call `do_pieces` or `merge`."""
    argv, overrides = cli.split_overrides(argv)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="do pieces; folder for what comes back")
    parser.add_argument("--merge", type=Path, metavar="OUT", help="put results into record.json")
    parser.add_argument("--minutes", type=float, default=math.inf, help="limit; default none")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="NAME", help="names of pieces; * is any text"
    )
    parser.add_argument("--scale", choices=SCALES, default="paper", help="tiny: on digits")
    parser.add_argument("--pages", type=Path, help="folder of record.json and the pages")
    parser.add_argument("--work", type=Path, help="folder of the runs; default runs/record/SCALE")
    args = parser.parse_args(argv)
    work = args.work or Path("runs") / "record" / args.scale
    pages = args.pages or (ROOT / "docs" if args.scale == "paper" else work / "pages")
    if (args.out is None) == (args.merge is None):
        raise UserError("exactly one of --out OUT and --merge OUT must be passed")
    if args.merge:
        return merge(args.merge, pages, args.scale)
    if not args.minutes > RESERVE / 60:
        raise UserError(f"--minutes must be > {RESERVE / 60:g}, got {args.minutes:g}")
    for key, _ in overrides:
        if not key.startswith("data."):
            raise UserError(f"--config.{key}: the plan sets it; only data.KEY may be given")
    if not code_commit():
        raise UserError(
            "the commit is unknown here; pass it: JAXSSL_COMMIT=$(git describe --always --dirty)"
        )
    record = read_record(pages / "record.json", args.scale)
    plan = make_plan(args.scale, overrides)
    do_pieces(plan, record, args.out, work, args.minutes, args.only)


if __name__ == "__main__":
    # Write the available figures when this process is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)

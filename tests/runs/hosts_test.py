"""Two processes with two devices each give the same results as one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from graph_cases import random_graphs
from jax.sharding import PartitionSpec as P
from process_cases import free_port
from tiny import DIGITS, SAVED, SETTINGS
from workdir_cases import acting, metric_lines
from xla_flags import DEVICES, QUICK_FLAGS

import jaxssl
from jaxssl import collectives, distributed
from jaxssl.data.batches import make_batches
from jaxssl.data.decoders.decoding import Crop, Crops
from jaxssl.data.splits import PreparedSplit, Source
from jaxssl.errors import UserError
from jaxssl.evaluation import embedding, pretrain
from jaxssl.evaluation.run import evaluate
from jaxssl.pretrained.load import load_pretrained
from jaxssl.report import results
from jaxssl.training import config, loop, processes
from jaxssl.training.workdir import checkpoint, digests, run_record

ROOT = Path(__file__).parents[2]
WAYS = ("device", "none", "graphs")
STEPS = 3
LATE = 33  # seconds, above the 30 in which Gloo must connect the devices of all processes
IMAGES = np.random.default_rng(2).integers(0, 256, (21, 16, 16, 1), np.uint8)
# A protocol that encodes further images, one that trains on all devices, one that fits on those of
# a process, and one with features alone.
PROTOCOLS = ("corruptions", "finetune", "linear", "knn")
ROWS = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)


def batches(way: str, devices: int):
    mesh = distributed.make_mesh(jax.devices()[:devices])
    if way == "graphs":
        records = [{"graph": graph, "label": i % 3} for i, graph in enumerate(random_graphs(50))]
        part = PreparedSplit(records, decode=lambda record: record["graph"])
        source = Source("made", "train", ((part, np.arange(50)),), tuple("abc"), (3,), kind="graph")
        return make_batches(source, 8, seed=0, crops=Crops((), (), 0), mesh=mesh)
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), np.uint8)
    part = PreparedSplit([{"image": image, "label": i % 3} for i, image in enumerate(images)])
    source = Source("made", "train", ((part, np.arange(50)),), tuple("abc"), (8, 8, 3))
    crops = Crops((Crop(4, (0.2, 1.0), (1.0, 1.0)),) * 2, (), 4)
    return make_batches(source, 8, seed=0, crops=crops, mesh=mesh, cache=way)


def last(way: str, devices: int = 4) -> dict[str, dict[str, list]]:
    """Return the rows of batch `STEPS` on each device of this process."""
    stream = batches(way, devices)
    for _ in range(STEPS):
        batch = stream.next()
    stream.close()
    inputs = dict(enumerate(jax.tree.leaves(batch.pop("input"))))
    actual = {}
    for name, values in {**batch, **inputs}.items():
        for shard in values.addressable_shards:
            part = actual.setdefault(str(shard.device.id), {})
            part[str(name)] = np.asarray(shard.data).tolist()
    return actual


def start(*arguments: str, number: int = 2) -> list[subprocess.Popen]:
    """Start processes of `main`, with four devices in all."""
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    environment["XLA_FLAGS"] = f"{DEVICES}={4 // number} {QUICK_FLAGS}"
    command = [sys.executable, __file__, address, str(number)]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return [
        subprocess.Popen([*command, str(i), *arguments], **options, text=True)
        for i in range(number)
    ]


def finish(hosts: list[subprocess.Popen], status: int = 0) -> list[str]:
    """Wait for the processes, which must end with this status; return their output."""
    outputs = [host.communicate(timeout=240)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [status] * len(hosts), outputs
    return outputs


@pytest.fixture(scope="module")
def printed(data_dir, tmp_path_factory):
    """What each of two hosts prints of the batches, and of runs in which they differ."""
    workdir = tmp_path_factory.mktemp("hosts") / "run"
    outputs = finish(start("print", str(data_dir), str(workdir)))
    assert not workdir.exists()
    return [json.loads(output.splitlines()[-1]) for output in outputs]  # Gloo prints lines before.


@pytest.mark.long
def test_two_hosts_together_read_the_batch_that_one_host_reads(printed):
    # The digest of an array that is split over the hosts is the digest of the whole array.
    assert [output["digests"] for output in printed] == [digests.compute([ROWS, ROWS])] * 2
    for way in WAYS:
        parts = [list(output[way].values()) for output in printed]
        assert [len(part) for part in parts] == [2, 2]
        assert parts[0] + parts[1] == list(last(way).values())


@pytest.mark.long
def test_host_waits_for_another_that_compiles_longer():
    outputs = finish(start("late"))
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == [[4.0], [4.0]]


DIFFERENCES = {"seed": "(config.seed: 0 -> 1)", "data": "-> 'other data')", "version": "-> '9.9')"}


@pytest.mark.long
@pytest.mark.parametrize(("what", "difference"), DIFFERENCES.items())
def test_processes_with_different_seed_data_or_version_stop_with_the_difference(
    printed, what, difference
):
    for output in printed:
        assert "process 1 differs from process 0 (" in output[what]
        assert f"{difference}; start all" in output[what]


def settings(data_dir: str, **changes: str):
    protocols = {"eval.protocols": "('knn', 'linear')", "eval.every": str(10 / 81)}
    values = {**SETTINGS, **protocols, "data.dir": data_dir, "optim.name": "sgd"}
    return config.load(DIGITS, list({**values, "optim.lr": "1e-4", **changes}.items()))


def test_listing_checkpoints_does_not_wait_for_other_processes(tmp_path, monkeypatch):
    assert checkpoint.steps(tmp_path) == []
    for name in ("12", "7", "9.orbax-checkpoint-tmp-0", "damaged"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    # The constructor of Orbax' CheckpointManager waits for all processes, so it must not be called.
    monkeypatch.setattr(checkpoint.ocp, "CheckpointManager", None)
    assert checkpoint.steps(tmp_path) == [7, 12]


@pytest.mark.long
def test_two_processes_killed_and_resumed_equal_one_process(data_dir, tmp_path):
    """They store parameters and optimiser in parts."""
    one, two = tmp_path / "one", tmp_path / "two"
    hosts = start("train", str(data_dir), str(two), "10")
    hosts[1].wait(timeout=240)
    assert hosts[1].returncode == -signal.SIGKILL, hosts[1].communicate()[0]
    assert hosts[0].poll() is None, hosts[0].communicate()[0]
    hosts[0].kill()  # Launchers kill the others too; otherwise process 0 would end a while later.
    for host in hosts:
        host.communicate()
    assert checkpoint.steps(two) == [SAVED]
    outputs = finish(start("train", str(data_dir), str(two), "0"))
    assert f"resumes at step {SAVED}" in outputs[0] and "linear_top1" in outputs[0]
    assert "step" not in outputs[1] and "results" not in outputs[1]  # Gloo prints lines too

    pretrain.train(settings(str(data_dir)), one)
    actual, expected = (checkpoint.restore_arrays(path).state for path in (two, one))

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max(initial=1))

    jax.tree.map(close, actual, expected)
    for mine, other in zip(*map(metric_lines, (two, one)), strict=True):
        assert mine["step"] == other["step"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
    rows = [results.read_results(path) for path in (two, one)]
    actual, expected = (
        {(r["metric"], r["features"]): r["value"] for r in part if r["protocol"] != "online"}
        for part in rows
    )
    assert len(actual) == 12 and actual == pytest.approx(expected, abs=1)
    assert all(actual[key] == expected[key] for key in actual if key[1] == "raw")


@pytest.mark.long
def test_protocol_results_and_embeddings_of_several_processes_equal_one_process(data_dir, tmp_path):
    run = tmp_path / "run"
    sizes = {"data.train_split": "train[:240]", "data.test_split": "test[:230]"}
    changes = {**sizes, "total_steps": "4", "eval.protocols": "()"}
    pretrain.train(settings(str(data_dir), **changes), run)
    rows, pages = [], []
    for number in (1, 2):
        out = tmp_path / str(number)
        finish(start("eval", str(run), str(out), number=number))
        rows.append(results.read_results(out))
        with np.load(run / "gallery.npz") as file:
            pages.append(dict(file))
        (run / "gallery.npz").unlink()
    assert {row["protocol"] for row in rows[0]} == {*PROTOCOLS}
    for one, other in zip(*rows, strict=True):
        # Each process fits the linear probe on its own two devices, with sums in another order.
        for row in (one, other):
            row["details"].pop("gradient_norm", None)
        assert one == other
    jax.tree.map(np.testing.assert_array_equal, *pages)
    one, two = (np.load(tmp_path / str(number) / "embeddings.npy") for number in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.long
def test_signal_or_unreadable_checkpoint_in_one_of_two_processes_stops_both(data_dir, tmp_path):
    hosts = start("train", str(data_dir), str(tmp_path), "5", str(int(signal.SIGTERM)))
    outputs = finish(hosts, 128 + signal.SIGTERM)
    assert "stopped at step 7 of 12" in outputs[0]  # the next step at which both compare signals
    assert checkpoint.steps(tmp_path) == [7]
    before = sorted(tmp_path.rglob("*"))
    outputs = finish(start("train", str(data_dir), str(tmp_path), "0", "0", "blind"), 1)
    assert "another process of this run has stopped; see its message; no other" in outputs[0]
    assert "checkpoint 7 cannot be seen here; no other is left" in outputs[1]
    assert sorted(tmp_path.rglob("*")) == before


def cannot_read(workdir: Path, step: int) -> None:
    raise UserError(f"checkpoint {step} cannot be seen here")


def train(data_dir: str, workdir: str, at: int, number: int, eyes: str) -> None:
    """Train. The second process gets a signal at a batch, or cannot read."""
    saved = Path(workdir) / "checkpoints" / str(SAVED)

    def act() -> None:
        if jax.process_index() == 1:
            while number == signal.SIGKILL and not saved.exists():
                time.sleep(0.1)  # checkpoints are written in the background
            os.kill(os.getpid(), number)

    loop.make_batches = acting(loop.make_batches, at, act)
    if eyes == "blind" and jax.process_index() == 1:
        checkpoint._check = cannot_read
    pretrain.train(settings(data_dir, **{"optim.sharding": "all"}), Path(workdir))


def errors(data_dir: str, workdir: str) -> dict[str, str]:
    """Return the errors of runs in which the second process has another seed, data or version."""
    equal, other, messages = run_record.fingerprint, {"test": "other data"}, {}
    for what in DIFFERENCES:
        own = what if jax.process_index() == 1 else ""
        with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as caught:
            if own == "data":
                patch.setattr(run_record, "fingerprint", lambda s: other.get(s.split) or equal(s))
            if own == "version":
                patch.setattr(jaxssl, "__version__", "9.9")
            pretrain.train(settings(data_dir, seed=str(int(own == "seed"))), Path(workdir))
        messages[what] = str(caught.value)
    return messages


def main() -> None:
    """Run one of the two hosts."""
    address, number, process, what, *arguments = sys.argv[1:]
    if what == "late":
        peers = processes.start(address, int(number), int(process))
        time.sleep(LATE * jax.process_index())
        mesh = distributed.make_mesh()
        rows = distributed.shard_rows(np.ones(2, np.float32), mesh)
        add = distributed.spmd(lambda x: collectives.sum(x, "data"), mesh, P("data"), P("data"))
        print(json.dumps(jax.jit(add)(rows).addressable_data(0).tolist()))
        assert peers
        peers.close()  # as the commands do, because Python may abort while its threads are in JAX
        return
    processes.initialize(address, int(number), int(process))
    if what == "print":
        mesh = distributed.make_mesh()
        split = distributed.shard_rows(ROWS[distributed.local_rows(len(ROWS), mesh)], mesh)
        arrays = [split, distributed.replicate(ROWS, mesh)]
        values = {"digests": digests.compute(arrays), **errors(*arguments)}
        print(json.dumps({way: last(way) for way in WAYS} | values))
    elif what == "eval":
        run_, out = map(Path, arguments)
        evaluate(run_, PROTOCOLS, out=out, kinds=["pretrained"])
        evaluate(run_, ["knn"], kinds=["pretrained"])  # writes results and report to the workdir
        embedding.embed(load_pretrained(run_), IMAGES, out=out / "embeddings.npy")
    else:
        data_dir, workdir, at, number, eyes = (*arguments, str(int(signal.SIGKILL)), "open")[:5]
        train(data_dir, workdir, int(at), int(number), eyes)


if __name__ == "__main__":
    main()

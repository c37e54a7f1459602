"""Checkpoints of small states: which are kept, which is best, damage, and digests of arrays."""

import errno
import hashlib
import json
import os

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax import numpy as jnp
from jax.errors import JaxRuntimeError

from jaxssl import distributed
from jaxssl.errors import TransientError, UserError
from jaxssl.training.workdir import checkpoint, digests

STATE = {"params": {"w": jnp.arange(6.0).reshape(2, 3)}, "step": jnp.int32(7)}


def save(workdir, scores, state=STATE):
    """Save a checkpoint for each step, with its k-NN accuracy."""
    manager = checkpoint.Manager(workdir)
    for step, score in scores.items():
        manager.save(step, state, {"next_index": 10 * step}, {"seed": step}, score)
    manager.close()


def metadata(workdir, step):
    return workdir / "checkpoints" / str(step) / "facts" / "metadata"


def edit(workdir, step, *, sign, **changes):
    """Change facts of a checkpoint; ``sign`` them with the digest of the new text."""
    path = metadata(workdir, step)
    document = json.loads(path.read_text())
    facts = json.loads(document["facts"]) | changes
    document["facts"] = json.dumps(facts)
    if sign:
        document["digest"] = hashlib.sha256(document["facts"].encode()).hexdigest()
    path.write_text(json.dumps(document))


def test_checkpoint_restores_training_state_data_position_and_config(tmp_path):
    save(tmp_path, {3: 50.0, 5: None})
    restored = checkpoint.restore_arrays(tmp_path)
    assert (restored.step, restored.facts.data) == (5, {"next_index": 50})
    assert restored.facts.config == {"seed": 5}
    np.testing.assert_array_equal(restored.state["params"]["w"], STATE["params"]["w"])
    assert restored.state["step"] == 7 and restored.damaged == ()
    assert checkpoint.restore_arrays(tmp_path, 3).facts.config == {"seed": 3}


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        PermissionError(errno.EACCES, "Permission denied"),
        ValueError("DATA_LOSS: [os_error_code='5']"),  # EIO, from TensorStore
        MemoryError(),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_checkpoint_that_the_disk_does_not_give_now_does_not_count_as_damaged(
    tmp_path, monkeypatch, fault
):
    save(tmp_path, {3: 50.0, 5: None})
    read = checkpoint._read_facts

    def fail(workdir, step):
        if step == 5:
            raise fault
        return read(workdir, step)

    monkeypatch.setattr(checkpoint, "_read_facts", fail)
    for action in (checkpoint.restore_arrays, checkpoint.Manager):
        with pytest.raises(TransientError, match="checkpoints/5 cannot be read: "):
            action(tmp_path)
    assert checkpoint.steps(tmp_path) == [3, 5]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"config": {"seed": 6}}, marks=pytest.mark.long),
        {"data": {"next_index": 51}},
        pytest.param({"score": 99.0}, marks=pytest.mark.long),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_changed_metadata_of_a_checkpoint_is_detected(tmp_path, changes):
    save(tmp_path, {3: 40.0, 5: 50.0})
    edit(tmp_path, 5, sign=False, **changes)
    with pytest.raises(UserError, match="5 is damaged or incomplete: .*metadata.*digest"):
        checkpoint.restore_arrays(tmp_path, 5)
    restored = checkpoint.restore_arrays(tmp_path)
    assert (restored.step, restored.damaged) == (3, (5,))
    assert checkpoint.best_step(tmp_path) == 3
    edit(tmp_path, 5, sign=True, **changes)  # With a matching digest, the metadata is accepted.
    assert checkpoint.restore_arrays(tmp_path).step == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sums: {"step": sums["step"]}, "missing or unexpected"),
        (lambda sums: {**sums, "extra": sums["step"]}, "missing or unexpected"),
        (lambda sums: dict(zip(sums, reversed(sums.values()), strict=True)), "does not match"),
    ],
    ids=["missing", "additional", "exchanged"],
)
def test_checksums_that_do_not_match_the_checkpoint_arrays_are_detected(tmp_path, change, message):
    save(tmp_path, {3: None})
    sums = json.loads(json.loads(metadata(tmp_path, 3).read_text())["facts"])["checksums"]
    edit(tmp_path, 3, sign=True, checksums=change(sums))
    with pytest.raises(UserError, match=f"3 is damaged or incomplete: .*{message}"):
        checkpoint.restore_arrays(tmp_path)


def test_exhausted_memory_of_a_device_is_not_called_a_damaged_checkpoint(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    save(tmp_path, {3: 40.0})
    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", fail)
    with pytest.raises(JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        checkpoint.restore_arrays(tmp_path)


def test_best_checkpoint_is_the_latest_of_those_with_equal_accuracy(tmp_path):
    save(tmp_path, {1: 90.0, 2: 90.0, 3: None, 4: 80.0})
    assert checkpoint.best_step(tmp_path) == 2
    assert checkpoint.steps(tmp_path) == [2, 3, 4]
    save(tmp_path / "none", {1: None})
    with pytest.raises(UserError, match="holds no checkpoint with a k-NN accuracy"):
        checkpoint.best_step(tmp_path / "none")


def test_best_checkpoint_is_kept_when_a_run_is_resumed(tmp_path):
    save(tmp_path, {1: 50.0, 2: 90.0, 3: 60.0})
    save(tmp_path, {4: 70.0, 5: 80.0, 6: None})
    assert checkpoint.steps(tmp_path) == [2, 5, 6] and checkpoint.best_step(tmp_path) == 2
    save(tmp_path, {7: 95.0, 8: 20.0, 9: 30.0})
    assert checkpoint.steps(tmp_path) == [7, 8, 9]


def test_damaged_checkpoints_of_equal_step_are_kept_under_different_names(tmp_path):
    for seed in range(3):
        save(tmp_path, {4: None}, {"w": jnp.full(2, seed)})
        checkpoint.set_aside(tmp_path, [4])
    folder = tmp_path / checkpoint.DAMAGED
    assert sorted(os.listdir(folder)) == ["4", "4+", "4++"]
    assert checkpoint.steps(tmp_path) == []


# Digests of arrays

RNG = np.random.default_rng(0)
ARRAYS = {
    "float": RNG.normal(size=(8, 3)).astype(np.float32),
    "bfloat": np.asarray(jnp.asarray(RNG.normal(size=(8,)), jnp.bfloat16)),
    "int": RNG.integers(-128, 128, (8, 2), np.int8),
    "bool": np.array([True, False] * 4),
    "fortran": np.asfortranarray(RNG.integers(0, 2**32, (8, 4), np.uint32)),
    "scalar": np.array(-0.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}


def test_array_digest_is_the_sha256_of_the_bytes_without_trailing_zeros():
    sha256 = lambda x: hashlib.sha256(x.tobytes().rstrip(b"\0")).hexdigest()  # noqa: E731
    assert digests.compute(ARRAYS) == {name: sha256(x) for name, x in ARRAYS.items()}


@pytest.mark.parametrize("size", [0, 1, digests.BLOCK - 1, digests.BLOCK, 3 * digests.BLOCK + 5])
def test_trailing_zeros_do_not_change_an_array_digest(size):
    x = np.arange(1, 200, dtype=np.uint8)
    padded = np.pad(x, (0, size))
    assert digests.compute([padded]) == digests.compute([x])
    assert digests.compute([np.pad(x, (size, 0))]) != digests.compute([x]) or not size
    assert digests.compute([np.zeros(size, np.uint8)]) == digests.compute([x[:0]])


@pytest.mark.parametrize("split", [False, True])
def test_arrays_on_devices_have_the_digests_of_host_arrays(split):
    mesh = distributed.make_mesh()
    place = distributed.shard if split else distributed.replicate
    rows = {name: x for name, x in ARRAYS.items() if x.ndim and len(x)} if split else ARRAYS
    key = jax.random.key(3)
    expected = digests.compute({**rows, "key": np.asarray(jax.random.key_data(key))})
    assert digests.compute({**place(rows, mesh), "key": key}) == expected
    digests.verify({**place(rows, mesh), "key": key}, expected)


@pytest.mark.parametrize("count", [1, 2, 4, 24])
def test_sign_flips_change_the_array_digest(count):
    expected = digests.compute(ARRAYS)
    flipped = ARRAYS["float"].copy()
    flipped.reshape(-1)[RNG.permutation(flipped.size)[:count]] *= -1
    with pytest.raises(ValueError, match="'float' does not match its checksum"):
        digests.verify({**ARRAYS, "float": flipped}, expected)


def test_checksums_in_checkpoints_of_version_0_1_are_verified():
    sums = {}
    for name, x in ARRAYS.items():
        bits = [int.from_bytes(one.tobytes(), "little") for one in x.reshape(-1)]
        sums[name] = sum((2 * i + 1) * value for i, value in enumerate(bits)) % 2**32
    digests.verify(ARRAYS, sums)
    with pytest.raises(ValueError, match="'scalar' does not match its checksum"):
        digests.verify({**ARRAYS, "scalar": np.array(0.5, np.float32)}, sums)

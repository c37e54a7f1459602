"""The identity of a run, which every checkpoint records: an id, the data, and the environment.

A run resumes from its own checkpoints only, and all of its processes must agree.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

import jaxssl
from jaxssl import distributed
from jaxssl.components import Settings
from jaxssl.data.fingerprint import fingerprint
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError, explain_damage
from jaxssl.training.config import conflicts, differences, join_differences
from jaxssl.training.output import file_io
from jaxssl.training.output.logs import log
from jaxssl.training.workdir import checkpoint

NAME = "run.json"
INIT = "init.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
# Settings of JAX that change the numbers of a run.
OPTIONS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl")
OPTIONS += ("jax_threefry_partitionable",)
# Keys of a config that the processes of a run may set differently. The examples are compared.
LOCAL_KEYS = ("data.dir", "data.path", "data.labels", "data.classes", "data.workers")


class RunRecord(NamedTuple):
    """The identity of a run: id, training data, environment and initial weights.

    Attributes:
        run: random id, drawn when the run starts. None before that.
        fingerprint: fingerprint of the training split.
        environment: everything besides the config and the data that changes numbers.
        init: report of the weights that the run started from, see `jaxssl.pretrained.start`. None
            for a run that started from random weights.
    """

    run: str | None
    fingerprint: str
    environment: dict[str, object]
    init: Settings | None = None


def environment(config: ConfigDict) -> dict[str, object]:
    """Return package versions, JAX settings and devices, on which a run's numbers depend.

    The number of devices is included only if the statistics of BatchNorm depend on it.
    """
    by_device = config.batch_norm_group or config.accumulate_steps > 1
    return {
        "jaxssl": jaxssl.__version__,
        **{name: version(name) for name in PACKAGES},
        **{name: getattr(jax.config, name) for name in OPTIONS},
        "device": jax.devices()[0].device_kind,
        **({"devices": jax.device_count()} if by_device else {}),
    }


def read(workdir: Path) -> str | None:
    """Return the id of the run in a workdir, or None if no id has been written yet.

    Raises:
        UserError: if the file is damaged.
    """
    document = _read(workdir / NAME, "run")
    return document["run"] if document else None


def read_init(workdir: Path) -> Settings | None:
    """Return the report of the weights that a run started from, or None for random weights.

    Raises:
        UserError: if the file is damaged.
    """
    return _read(workdir / INIT, "sha256")


def _read(path: Path, key: str) -> Settings | None:
    """Return the JSON object of a file, or None without a file.

    Raises:
        UserError: if the file is damaged, or its object has no text under ``key``.
    """
    if not path.exists():
        return None
    with explain_damage(path, "delete it"):
        document = file_io.read_json(path)
        if not isinstance(document[key], str):
            raise TypeError(f"the entry {key!r} must be a text")
        return document


def check_checkpoints(config: ConfigDict, workdir: Path, record: RunRecord) -> str | None:
    """Check that all checkpoints of a workdir belong to this run.

    Checkpoints of version 0.1 lack the identity. Only their config is compared.

    Args:
        config: the config of this command.
        workdir: the workdir.
        record: the identity that this command has computed.

    Returns:
        The id of the run in the workdir, or None if neither the workdir nor a checkpoint has one.

    Raises:
        UserError: if a checkpoint was written by another run, under another config, at another step
            or with other training data. Nothing has been changed.
    """
    run = read(workdir)
    for step, facts in checkpoint.read_all_facts(workdir).items():
        path = workdir / "checkpoints" / str(step)
        advice = "move it away, or choose another --workdir"
        if facts.step not in (None, step):
            raise UserError(f"checkpoint {path} was written at step {facts.step}; {advice}")
        if changed := conflicts(config, facts.config):
            raise UserError(
                f"checkpoint {path} was written under another config "
                f"({join_differences(changed)}); {advice}"
            )
        run = run or facts.run
        if facts.run not in (None, run):
            raise UserError(f"checkpoint {path} was written by another run; {advice}")
        if facts.fingerprint not in (None, record.fingerprint):
            was, now = facts.config.get("data", {}).get("path"), config.data.path
            place = f" (data.path: {was!r} -> {now!r})" if was != now else ""
            raise UserError(
                f"checkpoint {path} was written with other training data than "
                f"{config.data.name!r} has now{place}; restore the data, or choose another "
                "--workdir"
            )
    return run


def write(config: ConfigDict, workdir: Path, record: RunRecord) -> None:
    """Write the report on a run's initial weights and, if missing, the run's id to the workdir.

    A workdir without an id takes the one of its checkpoints. The caller holds the lock.

    Raises:
        UserError: as `check_checkpoints`, or if the run has started from other weights before.
        WriteError: if the file cannot be written.
    """
    run = check_checkpoints(config, workdir, record) or uuid.uuid4().hex
    if read(workdir) is None:
        file_io.write_json(workdir / NAME, {"run": run})
    if record.init is not None:
        if (before := read_init(workdir)) and before["sha256"] != record.init["sha256"]:
            raise UserError(
                f"{workdir} was started from other weights than {config.init!r} has now; restore "
                "them, or choose another --workdir"
            )
        file_io.write_json(workdir / INIT, record.init)


def warn_of_changes(
    step: int, before: Mapping[str, object] | None, now: Mapping[str, object]
) -> None:
    """Warn of changes since a checkpoint was written that may change the numbers of a run.

    Args:
        step: step of the checkpoint.
        before: its `environment`. None for checkpoints of version 0.1.
        now: the environment of this process.
    """
    if before and (changed := differences(now, before)):
        log.warning(
            f"since checkpoint {step} was written, these have changed: {'; '.join(changed)}; the "
            "results may differ from the results of an uninterrupted run"
        )


def require_equal(values: Mapping[str, object]) -> None:
    """Check that all processes of a run have the same values. All processes must call this.

    Args:
        values: serialisable as JSON.

    Raises:
        UserError: in all processes, if one differs from the first.
    """
    if distributed.process_count() == 1:
        return
    texts = distributed.gather_process_texts(json.dumps(values, sort_keys=True))
    first = json.loads(texts[0])
    for process, other in enumerate(texts):
        if changed := differences(json.loads(other), first):
            raise UserError(
                f"process {process} differs from process 0 ({join_differences(changed)}); start "
                "all processes with the same command, data and packages"
            )


def digest(value: object) -> str:
    """Return a short digest of a long value that is serialisable as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def require_equal_data(splits: Splits, of_train: str = "") -> None:
    """Check that all processes of a run have the same examples. All processes must call this.

    Args:
        splits: the data.
        of_train: fingerprint of the training split, if it has been computed.

    Raises:
        UserError: in all processes, if one differs from the first, or cannot read an example.
    """

    def fingerprints() -> dict[str, str]:
        train = of_train or fingerprint(splits.train)
        bank = train if splits.bank is splits.train else fingerprint(splits.bank)
        return {"train": train, "bank": bank, "test": fingerprint(splits.test)}

    if distributed.process_count() > 1:
        require_equal(distributed.raise_together(fingerprints))


def process_values(config: ConfigDict, workdir: Path) -> dict[str, object]:
    """Return the values that all processes of a run must have, apart from the data, for JSON."""
    values: dict[str, Any] = {"config": json.loads(json.dumps(config.to_dict()))}
    for key in LOCAL_KEYS:
        group, leaf = key.split(".")
        values["config"][group].pop(leaf, None)
    versions = environment(config)
    del versions["device"]
    return {**values, **versions, "checkpoints": checkpoint.steps(workdir)}

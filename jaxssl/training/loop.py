"""A pretraining run, from top to bottom."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict
from rich import progress

from jaxssl import distributed
from jaxssl.data import source
from jaxssl.data.batches import POSITION, Batches
from jaxssl.errors import UserError
from jaxssl.training import (
    atomic_files,
    checkpoint,
    collapse,
    compile_cache,
    logs,
    metrics_writer,
    modality,
    nonfinite,
    summary,
)
from jaxssl.training.build import Setup, build, check_labels, make_batches
from jaxssl.training.config import conflicts, read_config
from jaxssl.training.logs import log
from jaxssl.training.nonfinite import LossMonitor
from jaxssl.training.programs import make_programs
from jaxssl.training.run_lock import lock
from jaxssl.training.state import TrainState, make_diagnosis

# Steps that are handed to the device in one call: a stop request waits for the end of the call.
CALL_SECONDS = 0.5

# What else than a full disk keeps a run from writing.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


Probe = Callable[[TrainState], dict[str, float]]


class Evaluation(NamedTuple):
    """The functions of evaluation that a run calls; `jaxssl.evaluation.pretrain` has them.

    Attributes:
        check: ``(config) -> None`` raises UserError for settings that evaluation refuses.
        online: ``(config, splits, encode) -> (description, probe)``. The probe gives the figures of
            a state, and is None if the data set has no labels. ``encode`` is `Programs.encode`.
        finish: ``(workdir) -> None`` evaluates a run that has ended.
        show: ``(config, workdir, step) -> bool`` shows the results of a run that ended earlier, and
            returns whether it has all of them.
    """

    check: Callable[[ConfigDict], None]
    online: Callable[[ConfigDict, source.Splits, Any], tuple[str, Probe | None]]
    finish: Callable[[Path], Any]
    show: Callable[[ConfigDict, Path, int], bool]


def train(config: ConfigDict, workdir: Path, evaluation: Evaluation | None = None) -> None:
    """Pretrain, then evaluate; resume from the workdir's last checkpoint if there is one.

    Of several processes, all call this; the first one writes.

    Args:
        config: complete and locked, from `jaxssl.training.config.load`.
        workdir: takes everything that the run writes.
        evaluation: evaluates the encoder during and after the run; None leaves evaluation out.

    Raises:
        UserError: on bad input; nothing has been overwritten then. Also if the disk is full, or
            too many steps in a row are not finite.
        SystemExit: 130 or 143 when interrupted, after a checkpoint.
    """
    # ---- Data and parts. Bad input is refused here, before anything is written.
    logs.log_to_screen(distributed.process_index())
    _refuse_other_config(config, workdir)
    if evaluation:
        evaluation.check(config)
    mesh = distributed.make_mesh()
    splits = source.load_splits(config.data, modality.dataset_kind(config))
    train_set = splits.train
    check_labels(config, train_set.num_classes, train_set.labelled)
    batches = make_batches(config, train_set, mesh)
    parts = build(config, len(train_set), mesh.size, crops=batches.crops)
    programs = make_programs(config, batches, train_set.shape, mesh)
    state = programs.init(config.seed)
    total = parts.total_steps
    if total in checkpoint.steps(workdir) and (
        checkpoint.restore(workdir, state).step == total  # and is not damaged
    ):
        _already_finished(config, workdir, total, evaluation)
        return
    described, probe = "none", None
    if evaluation:
        described, probe = evaluation.online(config, splits, programs.encode)
    eval_every = max(1, round(config.eval.every * parts.steps_per_epoch))
    save_every = max(1, round(config.checkpoint.every * parts.steps_per_epoch))

    # ---- The workdir, which is this run's alone from here on, and its last checkpoint.
    with closing(batches), _workdir(config, workdir), ExitStack() as stack:
        first = 0
        if checkpoint.steps(workdir):
            restored = checkpoint.restore(workdir, state)
            distributed.on_first_process(lambda: checkpoint.set_aside(workdir, restored.damaged))
            first, state = restored.step, restored.state
            batches.set_state(restored.data)
        recorder = stack.enter_context(_recorder(workdir, first))
        checkpoints = stack.enter_context(closing(checkpoint.Manager(workdir)))
        stop = stack.enter_context(_stop_requests())
        watch = LossMonitor(int(state.skipped[0]))
        step, clock = first, (first, time.perf_counter())  # speed is counted from this step, time
        late = None  # a step's metrics and the losses since the last line, still on the device
        losses: list[Any] = []  # of each call: an array, of which the first n are losses

        def fetch(
            step: int, metrics: Mapping[str, Any], losses: list[tuple[Any, int]]
        ) -> dict[str, float]:
            """The metrics as numbers; waits for their step. Speed is that since the last line."""
            nonlocal clock
            metrics, losses = jax.device_get((metrics, losses))
            values = {name: float(value) for name, value in metrics.items()}
            before, clock = clock, (step, time.perf_counter())
            speed = (step - before[0]) / (clock[1] - before[1])
            skipped, in_a_row = int(values["skipped_steps"]), int(values.pop("skipped_in_a_row"))
            watch.look(step, [float(x) for values, n in losses for x in values[:n]], skipped)
            if in_a_row >= config.max_skipped:
                raise _not_finite(workdir, parts, state, batches, mesh)
            return values | {
                "images_per_second": config.batch_size * speed,
                # A step that is left out does not move the schedule either.
                "learning_rate": float(parts.learning_rate(step - 1 - skipped + (in_a_row > 0))),
                "epoch": step / parts.steps_per_epoch,
            }

        # ---- Steps.
        log.info("%s: %s", f"resumes at step {first}" if first else "begins", workdir)
        log.info("data       %s", train_set.describe())
        log.info("input      %s", batches.plan.why)
        log.info("compiled   programs are %s", compile_cache.describe())
        log.info("evaluation %s", described)
        for line in summary.lines(config, parts, state, batches.shapes, mesh.size):
            log.info(line)
        many = source.KINDS[train_set.kind]
        periods = config.log_every, eval_every, save_every
        longest, calls = 1, 0  # steps in a call, until the speed is known; calls so far
        with _progress_bar(first, total, many) as show:
            while step < total:
                begun = time.perf_counter()
                n = min([period - step % period for period in periods] + [total - step, longest])
                state, metrics, embeddings, found = programs.advance(state, n)
                step, calls = step + n, calls + 1
                losses.append((found, n))
                if late is not None:  # fetched while the device is at work on these steps
                    _put(recorder, show, late[0], fetch(*late))
                    late = None
                stopping = bool(stop)  # read once: a signal may come at any moment
                evaluating = step % eval_every == 0 or step == total
                pausing = evaluating or step % save_every == 0
                if distributed.process_count() > 1:  # they agree at every line of metrics
                    asking = pausing or step % config.log_every == 0
                    stopping = asking and distributed.any_process(stopping)
                pausing = pausing or stopping
                if pausing or step % config.log_every == 0:
                    late = step, {**metrics, **collapse.embedding_metrics(embeddings)}, losses
                    losses = []
                elif calls == 1:
                    jax.block_until_ready(metrics)
                    clock = step, time.perf_counter()  # compiling is not counted as slowness
                if calls <= 2:
                    longest = _longest_call(metrics, n, begun, programs.most_steps)
                if pausing:
                    values, late = fetch(*late), None
                    if evaluating and probe:
                        values |= probe(state)
                    _put(recorder, show, step, values)
                    if recorder:
                        recorder.sync()
                    position, score = batches.get_state(), values.get("knn_top1")
                    checkpoints.save(step, state, position, config.to_dict(), score)
                    clock = step, time.perf_counter()
                if stopping:
                    break
        checkpoints.wait_until_finished()
        if step == total:
            log.info("finished %d steps", total)
        if step < total or distributed.any_process(bool(stop)):
            what = "resumes there" if step < total else "evaluates"
            log.info("stopped at step %d of %d; the same command %s", step, total, what)
            sys.exit(128 + (stop or [signal.SIGTERM])[0])  # another process' signal, if not ours
        stack.close()

        # ---- What it learned.
        if evaluation and config.eval.protocols:
            evaluation.finish(workdir)


def _longest_call(metrics: Any, n: int, begun: float, most: int) -> int:
    """How many steps the next calls may take.

    Several processes have to agree on it. They read stop requests only at lines of metrics.
    """
    if distributed.process_count() > 1:
        return most
    jax.block_until_ready(metrics)
    return max(1, min(most, int(n * CALL_SECONDS / (time.perf_counter() - begun))))


def _refuse_other_config(config: ConfigDict, workdir: Path) -> None:
    """A workdir belongs to one config, but for `jaxssl.training.config.CHANGEABLE_KEYS`."""
    if not (workdir / "config.json").exists():
        return
    changed = conflicts(config, read_config(workdir).to_dict())
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"{workdir} holds a run of another config ({'; '.join(changed[:3])}{more}); "
            "take another --workdir, or the same config to resume"
        )


@contextmanager
def _workdir(config: ConfigDict, workdir: Path) -> Iterator[None]:
    """The workdir, locked, with the run's config and log."""
    try:
        with ExitStack() as stack:

            def enter() -> None:
                workdir.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock(workdir))
                _refuse_other_config(config, workdir)  # once more: nobody else writes now
                atomic_files.write_json(workdir / "config.json", config.to_dict())
                stack.enter_context(logs.log_to_file(workdir / "train.log"))

            distributed.on_first_process(enter)
            yield
    except Exception as error:  # Orbax has kinds of its own for a full disk
        if not _is_about(workdir, error):
            raise
        texts = [text for text in map(os.strerror, UNWRITABLE) if text in str(error)]
        what = getattr(error, "strerror", None) or texts[0]
        raise UserError(
            f"cannot write to the workdir {workdir}: {what}; mend it and the same command resumes "
            "at the last checkpoint, or name another with --workdir"
        ) from error


def _is_about(workdir: Path, error: Exception) -> bool:
    """Whether something could not be written there, and not, say, an image be read."""
    if not isinstance(error, OSError):
        return any(os.strerror(number) in str(error) for number in UNWRITABLE)
    path = Path(error.filename or workdir)
    return path == workdir or workdir in path.parents or path in workdir.parents


@contextmanager
def _recorder(workdir: Path, first: int) -> Iterator[metrics_writer.MetricsWriter | None]:
    """The first process' recorder."""
    if not distributed.is_first_process():
        yield None
        return
    with closing(metrics_writer.MetricsWriter(workdir, first)) as recorder:
        yield recorder


def _not_finite(
    workdir: Path, parts: Setup, state: TrainState, batches: Batches, mesh: Mesh
) -> UserError:
    """Why too many steps were left out: the first of them is taken again, for its measures."""
    in_a_row = int(state.skipped[1])
    first = int(state.step) - in_a_row
    batches.set_state({**batches.get_state(), POSITION: first})
    state = state.replace(step=state.step - state.skipped[1])
    measures = jax.device_get(
        make_diagnosis(parts.method, parts.augment, mesh)(state, batches.next())
    )
    found = nonfinite.describe(first + 1, in_a_row, batches.indices, measures)
    path = workdir / nonfinite.FILE_NAME
    distributed.on_first_process(lambda: atomic_files.write_json(path, found.document))
    return UserError(found.message.format(path=path))


def _already_finished(
    config: ConfigDict, workdir: Path, step: int, evaluation: Evaluation | None
) -> None:
    if distributed.is_first_process():
        print(f"{workdir} is finished ({step} steps).")
    if evaluation and not evaluation.show(config, workdir, step):
        with _workdir(config, workdir):
            evaluation.finish(workdir)


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that is filled by the first SIGINT or SIGTERM; the second one acts at once."""
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        del frame
        if received:
            os._exit(128 + number)
        received.append(number)
        log.info("%s: stopping after the steps under way", signal.Signals(number).name)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not Python's


@contextmanager
def _progress_bar(
    first: int, total: int, many: str
) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Shows steps, time left and the latest figures; without a terminal, nothing."""
    columns = (
        progress.TextColumn("step {task.completed}/{task.total}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[figures]}"),
        progress.TimeRemainingColumn(),
    )
    latest: dict[str, float] = {}
    with progress.Progress(*columns, console=logs.console) as bar:
        task = bar.add_task("", total=total, completed=first, figures="compiling")

        def show(step: int, values: Mapping[str, float]) -> None:
            latest.update(values)
            figures = f"loss {latest['loss']:.4g}  {latest['images_per_second']:.0f} {many}/s"
            if "knn_top1" in latest:
                figures += f"  k-NN {latest['knn_top1']:.2f} %"
            bar.update(task, completed=step, figures=figures)

        yield show


def _put(
    recorder: metrics_writer.MetricsWriter | None,
    show: Callable[[int, Mapping[str, float]], None],
    step: int,
    values: Mapping[str, float],
) -> None:
    """Put a step's figures on record and on the screen, where there is a recorder."""
    if recorder is None:
        return
    recorder.write(step, values)
    show(step, values)
    if "knn_top1" in values:
        log.info(
            "step %d (epoch %.1f): loss %.4g, k-NN %.2f %%, feature std %.3f, effective rank %.1f",
            *(step, values["epoch"], values["loss"], values["knn_top1"]),
            *(values["feature_std"], values["effective_rank"]),
        )
    if values["feature_std"] < collapse.COLLAPSED_STD:
        log.warning(
            "step %d: collapsed: the embeddings are nearly equal (feature_std %.4f < %.1f)",
            *(step, values["feature_std"], collapse.COLLAPSED_STD),
        )

"""A pretraining run from the first check to the last checkpoint."""

import builtins
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
from flax.typing import Collection
from jax import Array
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.buckets import is_bucket
from jaxssl.components import Settings
from jaxssl.data import kind, source
from jaxssl.data.batches import POSITION, Batches
from jaxssl.data.fingerprint import fingerprint
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError
from jaxssl.methods.base import Carried
from jaxssl.training import collapse, memory, nonfinite, profiling, summary
from jaxssl.training.build import Setup, add_statistics, build, make_batches
from jaxssl.training.config import custom, trust
from jaxssl.training.config.method import check_labels
from jaxssl.training.metrics_reporter import MetricsReporter
from jaxssl.training.online_metrics import has_online_probe, without_probe
from jaxssl.training.output import compile_cache, console, file_io, logs
from jaxssl.training.output.logs import log
from jaxssl.training.output.metrics_writer import MetricsWriter
from jaxssl.training.programs import make_programs
from jaxssl.training.state import TrainState, make_diagnosis
from jaxssl.training.workdir import checkpoint, opening, run_record
from jaxssl.training.workdir.goodput import Goodput

# Ignore a repeated signal within this many seconds: a launcher may signal both this process and its
# parent, which forwards it.
REPEATED_SECONDS = 2.0
# One call of the training program takes about this many seconds. A stop request waits for the end
# of a call.
CALL_SECONDS = 0.5

Values = dict[str, float]  # metrics of a step by name
Probe = Callable[[TrainState], Values]


class Evaluation(NamedTuple):
    """The evaluation functions that a pretraining run calls, such as the k-NN probe.

    Attributes:
        check: ``(config) -> None`` raises UserError for settings that evaluation or loggers reject.
        online: ``(config, splits, setup, inputs, encode) -> (description, probe)``. The probe
            returns the metrics of a state, and is None without metrics. ``inputs`` prepares the
            images of `Programs.encode`.
        finish: ``(workdir, splits, step, before_report) -> None`` evaluates a run that has ended at
            a step. It calls ``before_report``, unless that is None, before it writes the report.
        show: ``(workdir, step, protocols) -> bool`` shows the results of a run that ended earlier,
            and returns whether it has all of them.
        start: ``(config, params, carried, inputs) -> (params, carried, report)`` replaces untrained
            weights by weights from `config.init`, see `jaxssl.pretrained.start`.
    """

    check: Callable[[ConfigDict], None]
    online: Callable[[ConfigDict, Splits, Setup, Any, Any], tuple[str, Probe | None]]
    finish: Callable[[Path, Splits, int, Callable[[], None] | None], object]
    show: Callable[[Path, int, Sequence[str]], bool]
    start: Callable[..., tuple[Collection, Carried, Settings]]


def train(
    config: ConfigDict,
    workdir: Path,
    evaluation: Evaluation,
    splits: Splits | None = None,
    profile: range | None = None,
) -> None:
    """Pretrain, then evaluate. A workdir with checkpoints resumes from the last one.

    All processes of a run call this. The first one writes.

    Args:
        config: complete and locked, from `jaxssl.training.config.load`.
        workdir: folder for everything that the run writes.
        evaluation: evaluates the encoder during and after the run.
        splits: the data. Default: as `config.data` says.
        profile: steps that JAX's profiler traces, or None.

    Raises:
        UserError: on bad input, in which case nothing has been overwritten. Also if the disk is
            full, or if too many steps in a row are not finite.
        SystemExit: 130 or 143 when interrupted, after a checkpoint.
    """
    # A relative path or a link would lead elsewhere if the program changed it during the run.
    workdir = workdir if is_bucket(workdir) else Path(os.path.realpath(workdir))
    began = time.perf_counter()
    # ---- Set-up: data, networks, programs. Bad input is rejected before anything is written.
    logs.log_to_screen(distributed.process_index())
    opening.check_name(workdir)
    evaluation.check(config)
    opening.check_shared(workdir)
    config = opening.take_lengths(config, workdir)
    run_record.require_equal(run_record.process_values(config, workdir))
    opening.check_same_config(config, workdir)
    example_kind = kind.of(config)
    example_kind.check()  # before preparing the data, which could take hours
    mesh = distributed.make_mesh()
    splits = distributed.raise_together(
        lambda: splits or source.load_splits(config.data, example_kind.data)
    )
    train_set = splits.train
    kind.require(train_set.name, train_set.kind, example_kind.data)
    labelled = not config.method.get("labels") or distributed.raise_together(
        lambda: train_set.all_labelled
    )
    check_labels(config, train_set.num_classes, labelled)
    data_digest = distributed.raise_together(lambda: fingerprint(train_set))
    record = run_record.RunRecord(None, data_digest, run_record.environment(config))
    run_record.require_equal_data(splits, data_digest)
    distributed.on_first_process(lambda: run_record.check_checkpoints(config, workdir, record))
    config = add_statistics(config, train_set)
    batches = make_batches(config, train_set, mesh)
    # Each process has decided by the memory of its devices.
    run_record.require_equal({"data.cache": "device" if batches.plan.cached else "none"})
    setup = build(config, len(train_set), mesh.size, crops=batches.plan.crops)
    probed = train_set.num_classes if has_online_probe(config.eval, splits) else 0
    inputs = example_kind.inputs(config, train_set.shape)
    programs = make_programs(config, setup, batches, inputs, mesh, probed_classes=probed)
    state, total = programs.init(config.seed), setup.total_steps
    # A profile splits calls of several steps, so all processes need the same --profile.
    run_record.require_equal({"--profile": str(profile)})
    if profile:
        profiling.check(profile, workdir, total)
    # The last checkpoint may be damaged, and its steps are then repeated.
    if total in checkpoint.steps(workdir) and checkpoint.restore(workdir, state).step == total:
        if distributed.is_first_process():
            console.show(f"{workdir} is finished ({total} steps).")
        if not evaluation.show(workdir, total, config.eval.protocols):
            with opening.open_workdir(config, workdir):
                evaluation.finish(workdir, splits, total, None)
        return
    memory.keep_freed()  # Memory that was needed only to read the data is returned before.
    description, probe = evaluation.online(config, splits, setup, inputs, programs.encode)

    # A resumed run does not need the weights that it started from.
    if config.init and not checkpoint.steps(workdir):
        params, carried, init = evaluation.start(config, state.params, state.carried, inputs)
        state = state.replace(params=params, carried=carried)
        run_record.require_equal({"init": init["sha256"]})
        record = record._replace(init=init)

    # ---- Workdir: only this run writes to it from here on. Resume from its last checkpoint.
    distributed.on_first_process(lambda: opening.check_unfinished(workdir))
    with opening.open_workdir(config, workdir) as check_lock, ExitStack() as stack:
        stack.callback(batches.close)
        distributed.on_first_process(lambda: run_record.write(config, workdir, record))
        components = custom.names(config.to_dict()).values()
        trust.remember([*components, *config.eval.protocols, *config.log], config.data)
        record = record._replace(run=run_record.read(workdir), init=run_record.read_init(workdir))
        step, damaged = 0, ()
        if checkpoint.steps(workdir):
            step, state, facts, damaged = checkpoint.restore(workdir, state)
            batches.set_state(facts.data)
            run_record.warn_of_changes(step, facts.environment, record.environment)
        distributed.on_first_process(lambda: checkpoint.set_aside(workdir, damaged))
        writer = None
        if distributed.is_first_process():
            writer = MetricsWriter(workdir, step, config.log, config.to_dict())
            stack.callback(writer.close)
        reporter = MetricsReporter(setup, writer, step, skipped=int(state.skipped[0]))
        stack.enter_context(checkpoint.ignore_late_orbax_errors())
        checkpoints = stack.enter_context(closing(checkpoint.Manager(workdir, record._asdict())))
        stop = stack.enter_context(_stop_requests())
        profiler = stack.enter_context(closing(profiling.Profiler(profile, workdir)))
        log.info("%s: %s", f"resumes at step {step}" if step else "begins", workdir)
        tested = splits.test.split, len(splits.test), example_kind.units
        log.info("data       %s; %s: %d %s", train_set.describe(), *tested)
        log.info("input      %s", batches.plan.why)
        log.info("compiled   programs are %s", compile_cache.describe())
        log.info("evaluation %s", description)
        if record.init and not step:
            log.info("init       %s", summary.describe_init(record.init))
        for line in summary.lines(config, setup, state, batches.shapes, mesh):
            log.info(line)
        times = Goodput(workdir, began, resumes=step > 0)
        if step:
            times.write()  # The run counts as interrupted if it dies before the next checkpoint.

        # ---- Steps. Metrics are fetched while the device computes the steps of the next call.
        stop_if_not_finite = partial(_stop_if_not_finite, setup, batches, mesh, workdir)
        periods = config.log_every, setup.eval_every, setup.save_every
        call_steps, calls = 1, 0
        losses: list[tuple[Array, int]] = []  # for each call since the last logged step
        report: Callable[..., Values] | None = None  # for a logged step that is not yet reported
        with reporter.progress_bar(step, total, example_kind.units):
            while step < total:
                profiler.begin(step, state)
                start = time.perf_counter()
                n = min(*(period - step % period for period in periods), total - step, call_steps)
                n = min(n, profiler.steps_until_border(step))
                times.lap("steps")
                data = programs.next_batches(n)
                # While the device computes, waiting for the input costs nothing.
                last: Any = state.step
                times.lap("input wait" if last.is_ready() else "steps")
                state, metrics, embeddings, call_losses = programs.steps(state, *data, n)
                step, calls = step + n, calls + 1
                losses.append((call_losses, n))
                if report:
                    check_lock()
                    stop_if_not_finite(report(), state)
                    report = None
                evaluating = step % setup.eval_every == 0 or step == total
                saving = evaluating or step % setup.save_every == 0
                logging = saving or step % config.log_every == 0
                stopping = bool(stop)  # read only once, because a signal may arrive at any moment
                if distributed.process_count() > 1:  # They agree on stopping when they log.
                    stopping = logging and distributed.any_process(stopping)
                if calls <= 2:  # before the metrics of the embeddings are compiled
                    call_steps = _steps_per_call(metrics, n, start, programs.most_steps)
                if calls == 1:
                    jax.block_until_ready((metrics, collapse.embedding_metrics(embeddings)))
                    times.lap("compilation")
                    reporter.restart_clock(step)  # Compilation does not count for the speed.
                if logging or stopping:
                    metrics = {**metrics, **collapse.embedding_metrics(embeddings)}
                    report, losses = partial(reporter.report, step, metrics, losses), []
                profiler.end(step, state)
                if report and (saving or stopping):
                    check_lock()
                    evaluate = partial(times.call, "evaluation", probe, state) if probe else None
                    values = report(evaluate if evaluating else None)
                    report = None
                    stop_if_not_finite(values, state)
                    if writer:
                        writer.sync()
                    check_lock()
                    facts = batches.get_state(), config.to_dict(), values.get("knn_top1")
                    times.call("checkpoints", checkpoints.save, step, state, *facts)
                    times.write()
                    reporter.restart_clock(step)
                if stopping:
                    break
        times.call("checkpoints", checkpoints.wait_until_finished)
        check_lock()
        spent = times.write(ended=True)
        stopped = step < total or distributed.any_process(bool(stop))
        is_last = stopped or not config.eval.protocols
        log.info("%s  %s", "wall time" if is_last else "training ", spent)
        if step == total:
            log.info("finished %d steps", total)
        if stopped:
            then = "resume" if step < total else "evaluate"
            log.info("stopped at step %d of %d; run the same command to %s", step, total, then)
            # If this process has no signal, another process of the run has received one.
            sys.exit(128 + (stop[0] if stop else signal.SIGTERM))
        stack.close()
        if distributed.any_process(bool(stop)):  # A signal came after the last look at `stop`.
            log.info("stopped before the evaluation; run the same command to evaluate")
            sys.exit(128 + (stop[0] if stop else signal.SIGTERM))

        # ---- Evaluation of the trained encoder.
        if config.eval.protocols:
            check_lock()
            times.lap("checkpoints")

            def before_report() -> None:
                times.lap("evaluation")
                log.info("wall time  %s", times.write(ended=True))

            evaluation.finish(workdir, splits, step, before_report)


def _steps_per_call(metrics: object, n: int, start: float, most: int) -> int:
    """Choose how many steps the next calls take, from the time of a call of n steps.

    Several processes must choose the same number, so it does not depend on their clocks. They read
    stop requests only when they log.

    Args:
        metrics: result of the call, which has ended when they are available.
        n: number of steps of the call.
        start: value of `time.perf_counter` before the call.
        most: the largest number of steps in one call.
    """
    if distributed.process_count() > 1:
        return most
    jax.block_until_ready(metrics)
    return max(1, min(most, int(n * CALL_SECONDS / (time.perf_counter() - start))))


def _stop_if_not_finite(
    setup: Setup, batches: Batches, mesh: Mesh, workdir: Path, values: Values, state: TrainState
) -> None:
    """Write a diagnosis and raise UserError after too many skipped steps in a row.

    The first skipped step is repeated to measure its parameters, embeddings and gradient.

    Args:
        setup: built from the config.
        batches: batches of the training set.
        mesh: the devices.
        workdir: workdir of the run.
        values: metrics of the last reported step.
        state: state after that step, or after later steps, which change nothing any more.

    Raises:
        UserError: after `Setup.max_skipped` skipped steps in a row.
    """
    if values["skipped_in_a_row"] < setup.max_skipped:
        return
    in_a_row = int(state.skipped[1])
    first = int(state.step) - in_a_row
    batches.set_state({**batches.get_state(), POSITION: first})
    state = state.replace(step=state.step - state.skipped[1])
    diagnose = make_diagnosis(setup.method, setup.augment, mesh)
    measures = jax.device_get(diagnose(without_probe(state), batches.next()))
    path = workdir / nonfinite.FILE_NAME
    document, message = nonfinite.describe(first + 1, in_a_row, batches.indices, measures, path)
    distributed.on_first_process(lambda: file_io.write_json(path, document))
    raise UserError(message)


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Yield a list to which the first SIGINT or SIGTERM is added. A later one exits at once.

    In an interactive session, as a notebook, a later SIGINT raises KeyboardInterrupt instead, so
    that the session continues.
    """
    is_interactive = hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1")
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # Only the main thread may handle signals, so none is added.
        return

    since = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if not received:
            since = time.monotonic()
            received.append(number)
            # The stop is not logged if the signal has interrupted this thread in writing a line.
            with suppress(RuntimeError):
                log.info("%s: stopping after the current steps", signal.Signals(number).name)
        elif time.monotonic() - since > REPEATED_SECONDS:
            if is_interactive and number == signal.SIGINT:
                raise KeyboardInterrupt
            os._exit(128 + number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            # A previous handler of None was not installed from Python, so the default replaces it.
            signal.signal(number, handler or signal.SIG_DFL)

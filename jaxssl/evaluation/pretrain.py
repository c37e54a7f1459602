"""Pretrain an encoder, and then evaluate the encoder with the protocols of the config."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.data import kind
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError, suggest
from jaxssl.evaluation import run, selection
from jaxssl.evaluation.context import extract_features, load_arrays
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.protocols import knn
from jaxssl.evaluation.selection import select_protocols
from jaxssl.pretrained.start import start
from jaxssl.report import results
from jaxssl.training import loop, online_metrics
from jaxssl.training.build import Setup
from jaxssl.training.config import custom
from jaxssl.training.output import console, loggers, logs
from jaxssl.training.state import TrainState


def train(
    config: ConfigDict,
    workdir: Path,
    splits: Splits | None = None,
    profile: range | None = None,
    *,
    trust: bool = False,
) -> None:
    """Pretrain, evaluate and write the report, starting from the last checkpoint if one exists.

    Args:
        config: complete and locked, from `jaxssl.training.config.load`.
        workdir: folder for everything that the run writes.
        splits: the data. Default: as `config.data` says.
        profile: steps that JAX's profiler traces, or None.
        trust: as for `jaxssl.load_encoder`, for the run that `config.init` names.

    Raises:
        UserError: if the input is invalid, in which case nothing has been overwritten, if the disk
            is full, or if too many consecutive steps are not finite.
        SystemExit: 130 or 143 when interrupted, after a checkpoint.
    """
    with custom.unchanged(config.to_dict()):
        evaluation = EVALUATION._replace(start=partial(start, trust=trust))
        loop.train(config, workdir, evaluation, splits, profile)


def check(config: ConfigDict) -> None:
    """Raise UserError for an unknown logger, protocol or k-NN preset."""
    loggers.check(config.log)
    select_protocols(config.eval.protocols)
    name = config.eval.knn
    if name not in knn.PRESETS:
        raise UserError(f"eval.knn={name!r} is unknown{suggest(name, knn.PRESETS)}")


def _finish(
    workdir: Path, splits: Splits, step: int, before_report: Callable[[], None] | None
) -> None:
    """Evaluate a trained run with the config's protocols, and write results and online metrics."""
    # By training with the config, the user has permitted the files that it names.
    run.evaluate(workdir, splits=splits, online=True, trust=True, before_report=before_report)
    distributed.on_first_process(lambda: results.add_results(workdir, [], evaluated_step=step))


def _online(
    config: ConfigDict, splits: Splits, setup: Setup, inputs: Any, encode: Callable[..., Array]
) -> tuple[str, loop.Probe | None]:
    """Return a description and a function that measures metrics during training (or None).

    Args:
        config: config of the run.
        splits: the data.
        setup: networks and training scheme of the run.
        inputs: prepares the images.
        encode: as `Programs.encode`.
    """
    description, accuracy = _accuracy(config.eval, splits, inputs, encode)
    held_out_loss = None
    if config.eval.held_out_loss:
        line, held_out_loss = online_metrics.make_held_out_loss(
            config, setup.method, splits.test, distributed.make_mesh()
        )
        description += f"; {line}"

    def probe(state: TrainState) -> dict[str, float]:
        values = {"held_out_loss": held_out_loss(state)} if held_out_loss else {}
        return {**values, **(accuracy(state) if accuracy else {})}

    return description, probe if accuracy or held_out_loss else None


def _accuracy(
    settings: ConfigDict, splits: Splits, inputs: Any, encode: Callable[..., Array]
) -> tuple[str, loop.Probe | None]:
    """Return a description and a function that measures online accuracies (or None).

    Args:
        settings: the group `eval` of the config.
        splits: the data.
        inputs: prepares the images.
        encode: as `Programs.encode`.
    """
    if not splits.labelled:
        without = "k-NN, online linear probe" if settings.online_linear else "k-NN"
        return f"no {without}: {splits.test.name} has no labels", None
    splits = splits.labelled_part()
    if novel := selection.describe_novel_classes(splits):
        protocols = select_protocols(settings.protocols, inputs.kind)
        unfit = ", ".join(one.text for one in selection.of_known_classes(protocols))
        later = f"; protocols left out after training: {unfit}" if unfit else ""
        logs.log.warning("evaluation %s; k-NN counts them as errors%s", novel, later)
    preset = knn.PRESETS[settings.knn]
    values = ", ".join(f"{name} {value}" for name, value in preset.items())
    description = (
        f"k-NN {settings.knn} ({values}) of backbone features, bank {splits.bank.split}, "
        f"tested on {splits.test.split}, every {settings.every:g} epochs"
    )
    probed = online_metrics.has_online_probe(settings, splits)
    if probed:
        description += "; online linear probe"
    elif settings.online_linear:
        description += f"; no online linear probe: not all of {splits.train.split} has labels"
    for split in (splits.bank, splits.test):
        kind.get(inputs.kind).fit_inputs(inputs, split)  # raises an error if they do not fit
    data = load_arrays(splits, inputs)

    def probe(state: TrainState) -> dict[str, float]:
        """Compute the k-NN accuracy on the test split, with the training split as the bank."""
        variables = (state.params, state.carried._replace(memory=()))
        mesh = distributed.make_mesh()
        read = partial(extract, apply=encode, variables=variables, mesh=mesh)
        features = extract_features(read, data)
        if not features.is_finite:
            logs.log.warning("no k-NN: the features are not finite")
            return {}
        accuracies = knn.accuracy(features, **preset)
        if probed and isinstance(state, online_metrics.ProbedState):
            hit = online_metrics.predict(state.probe, features.test) == features.test_labels
            accuracies["online_linear_top1"] = 100.0 * float(np.mean(hit))
        return accuracies

    return description, probe


def _show(workdir: Path, step: int, protocols: Sequence[str]) -> bool:
    """Print the results of a finished run. Return False if the run has not been evaluated yet.

    Args:
        workdir: workdir of the run.
        step: last step of the run.
        protocols: the protocols of its config.
    """
    rows = results.read_results(workdir)
    # A run that was extended after its evaluation has been evaluated at an earlier step.
    if protocols and results.read_evaluated_step(workdir) != step:
        logs.log.info("results.json does not say that all protocols were run; they are run now")
        return False
    if rows:
        shown = [row for row in rows if row["step"] in (None, 0, step)]
        online = [row for row in shown if row["protocol"] == "online"]
        # `jaxssl eval` may have added results on other data, with other seeds or of the projector.
        own_layers = {one.name: one.protocol.layer for one in select_protocols(protocols)}
        evaluated = [
            row
            for row in results.own_rows(shown)
            if row["protocol"] != "online"
            and row.get("layer") in (own_layers.get(row["protocol"]) or "backbone", "pixels", None)
        ]
        results.print_results(evaluated or online or shown)
        command = shlex.join(["jaxssl", "eval", "--workdir", str(workdir)])
        console.show(f"evaluate it again with: {command}")
    return True


EVALUATION = loop.Evaluation(check, _online, _finish, _show, start)

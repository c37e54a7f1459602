"""Evaluate an encoder with protocols, and write results.json and the report."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jax.errors import JaxRuntimeError
from ml_collections import ConfigDict

from jaxssl import distributed
from jaxssl.components import Settings
from jaxssl.data import kind as kind_of_examples
from jaxssl.data import source
from jaxssl.data.splits import Splits
from jaxssl.errors import LONGEST, UserError, one_line, suggest
from jaxssl.evaluation import gallery
from jaxssl.evaluation import rows as rows_of
from jaxssl.evaluation.context import load_arrays, make_contexts
from jaxssl.evaluation.protocol import EvalContext, Result, check_seed
from jaxssl.evaluation.selection import Selected, drop_unlabelled, select_protocols
from jaxssl.pretrained import hub
from jaxssl.pretrained.encoder import PretrainedEncoder, weights_digest
from jaxssl.pretrained.load import is_run, load_pretrained, results_folder
from jaxssl.report import results, run_report
from jaxssl.report.workdir import iterate_metrics
from jaxssl.training import memory
from jaxssl.training.config import read_config
from jaxssl.training.config import trust as trusted
from jaxssl.training.output import console, file_io, logs
from jaxssl.training.workdir import run_record


def evaluate(
    encoder_or_path: Path | PretrainedEncoder,
    protocols: Sequence[str] | None = None,
    *,
    step: int | str | None = None,
    data: Settings | None = None,
    kinds: Sequence[str] | None = None,
    layer: str = "backbone",
    seed: int | None = None,
    out: Path | None = None,
    weights_options: Settings | None = None,
    page: bool = True,
    before_report: Callable[[], None] | None = None,
    splits: Splits | None = None,
    online: bool = False,
    strict: bool | None = None,
    trust: bool = False,
    dry_run: bool = False,
) -> list[results.Row]:
    """Evaluate a trained encoder with protocols, and write results.json and report.html.

    Args:
        encoder_or_path: workdir of a run, a weights file, or an encoder.
        protocols: each "NAME" or "NAME:PRESET", where NAME is a file of `protocols`, or "all" for
            every protocol that fits the kind of examples. Default: the protocols in the run's
            config.
        step: step of the run's checkpoint, "last" (the default) or "best".
        data: the config group `data` of the data set. Default: the run's.
        kinds: kinds of features to evaluate (`results.KINDS`). The untrained network and raw pixels
            are baselines. Default: every kind that a protocol supports.
        layer: "backbone" or "projector".
        seed: seed of the protocols' random draws. Default: the run's seed, or 0.
        out: folder of results.json. Default: the workdir, or next to the weights file. Results of
            an encoder are not written without it.
        weights_options: details that a weights file does not record, see
            `jaxssl.pretrained.weights.load`.
        page: whether to write the report of a run.
        before_report: called by all processes before the report is written.
        splits: the data set, which ``data`` describes. Default: opened as ``data`` says.
        online: whether to write rows of the metrics that the run measured during training, before
            the rows that are returned. See `rows.online_rows`.
        strict: whether a protocol that does not fit raises an error, rather than being left out.
            Default: whether ``protocols`` is given. Protocols selected by "all" are left out.
        trust: whether to execute the Python files and to use the data that the config of a run
            names, even if this user has not trained with them.
        dry_run: whether to only check the input: encoder, protocols and data set are opened, but
            nothing is evaluated or written, and no rows are returned.

    Returns:
        The new rows of results.json. Other rows in the file are kept.

    Raises:
        UserError: if the run, checkpoint or file does not exist, the folder of the results is
            read-only, a protocol is unknown, or a protocol does not fit the data set.
    """
    logs.log_to_screen(distributed.process_index())
    kinds = _check_kinds(kinds)
    # ---- The encoder, the folder of its results, the protocols and the data set.
    target = _resolve(encoder_or_path, step, out, trust, weights_options or {})
    encoder, name, config, out, workdir, identity = target
    names, settings = _defaults_of_run(name, config, protocols, data, trust)
    selected = select_protocols(names, encoder.inputs.kind)
    if out is not None:
        # These raise an error before any work is done.
        results.read_results(out)
        distributed.on_first_process(partial(file_io.require_writable, out))
    examples = kind_of_examples.get(encoder.inputs.kind).data
    splits = splits or source.load_splits(settings, examples)
    kind_of_examples.require(splits.test.name, splits.test.kind, examples)
    if any(one.protocol.needs_labels for one in selected):
        splits = distributed.raise_together(splits.labelled_part)
    run_seed: int = config.seed if config else 0
    try:
        seed = run_seed if seed is None else check_seed(seed)
    except ValueError as error:
        raise UserError(str(error)) from error
    content = distributed.raise_together(lambda: rows_of.content(splits))
    memory.keep_freed()  # Memory that was needed only to read the data is returned before.
    weights = weights_digest(encoder) if identity or distributed.process_count() > 1 else ""
    if distributed.process_count() > 1:
        asked = {"protocols": [one.text for one in selected], "kinds": kinds, "layer": layer}
        measured = {"step": encoder.metadata["step"], "weights": weights, "seed": seed}
        run_record.require_equal({**asked, **measured, "bank and test examples": content})
    strict = protocols is not None if strict is None else strict
    selected = drop_unlabelled(selected, splits, strict=strict)
    # Features that no protocol takes are not extracted. Without protocols, the gallery needs some.
    taken = {kind for one in selected for kind in one.protocol.kinds or results.KINDS}
    used = [kind for kind in kinds if kind in taken] if selected else ["pretrained"]
    unfit = [x for x in selected if not {*kinds} & {*(x.protocol.kinds or results.KINDS)}]
    _require_results(unfit if strict else (), kinds)
    has_report = page and config is not None and data is None and workdir is not None
    # A gallery alone is not worth reading a whole stream.
    is_streamed = splits.bank.streamed or splits.test.streamed
    use_features = any(one.protocol.needs_features for one in selected) or (
        has_report and layer == "backbone" and not selected and not is_streamed
    )
    mesh = distributed.make_mesh()
    contexts = make_contexts(
        encoder, config, splits, used, mesh, layer=layer, features=use_features, seed=run_seed
    )
    if dry_run:
        return []

    # ---- Every protocol on every kind of features.
    data_fields = {
        **rows_of.data_fields(splits, settings, encoder, identity, seed),
        "content": content,
    }
    if identity:  # Another encoder may replace a weights file of this name.
        data_fields["weights"] = weights
    if online and config and workdir:
        fields = {**rows_of.feature_fields(encoder, "pretrained", "backbone"), **data_fields}
        since = _last_step_on_other_data(out, content)
        lines = iterate_metrics(workdir / "metrics.jsonl")
        metrics = (line for line in lines if line["step"] > since)
        _write(out, rows_of.online_rows(metrics, fields, config.eval.knn))
    rows, features = [], None
    with_results: set[str] = set()  # texts of the protocols
    for kind, context in contexts:
        context = context._replace(data=settings)
        if kind == "pretrained" and use_features:
            features = context.features
        for one in selected:
            if kind not in (one.protocol.kinds or results.KINDS):
                continue
            fields = rows_of.feature_fields(encoder, kind, one.protocol.layer or layer)
            fields = {**fields, **data_fields}
            try:
                outcome = _run_protocol(one, context, kind, seed, strict=strict and one.named)
                new = [_make_row(one, result, fields) for result in outcome]
                rows += new
                _write(out, new)  # at once, because a later protocol may fail or be stopped
            except UserError:
                if rows:  # Without a folder, or if it cannot be written, they would be lost.
                    results.print_results(rows)
                raise
            if new:
                with_results.add(one.text)
        del context  # The features of the next kind may need the memory.

    # ---- The results table, the gallery and the report. Only the first process prints and writes.
    if rows:
        results.print_results(rows)
    if rows and out is not None:
        console.show(f"results: {out / 'results.json'}")
    if has_report and config and workdir:
        if layer == "backbone" and features is not None:
            stale = gallery.read_origin(workdir) != (encoder.metadata["step"], content)
            if distributed.any_process(stale):
                examples = load_arrays(splits, encoder.inputs)
                gallery.write(workdir, config, splits, features, examples, encoder, content)
        if before_report:
            before_report()
        if distributed.is_first_process():
            console.show(f"report:  {run_report.write_report(workdir)}")
    _require_results([one for one in selected if strict and one.text not in with_results], kinds)
    return rows


class _Target(NamedTuple):
    """An encoder, and what depends on whether it is a run, a weights file or an object.

    Attributes:
        encoder: the encoder.
        name: its path or "the encoder", for messages.
        config: the config of the run that trained it, if the encoder has one.
        out: folder of results.json. None does not write results.
        workdir: the run, if its results are written to its own folder.
        identity: what tells encoders of the same name apart in results.json. "" for ``workdir``.
    """

    encoder: PretrainedEncoder
    name: str
    config: ConfigDict | None
    out: Path | None
    workdir: Path | None
    identity: str


def _resolve(
    encoder_or_path: Path | PretrainedEncoder,
    step: int | str | None,
    out: Path | None,
    trust: bool,
    weights_options: Settings,
) -> _Target:
    """Load the encoder, if it is not given, and find the folder of its results."""
    workdir, identity = None, ""
    if isinstance(encoder_or_path, PretrainedEncoder):
        if weights_options:
            raise UserError("weights_options needs a weights file; pass them to load_encoder")
        encoder, name = encoder_or_path, "the encoder"
        if out is not None or distributed.process_count() > 1:
            identity = weights_digest(encoder)
    else:
        path = hub.local(encoder_or_path)
        out = out or results_folder(encoder_or_path)
        if is_run(path):
            read_config(path)  # raises an error if the config is missing or damaged
            workdir = path if path.resolve() == out.resolve() else None
        encoder = load_pretrained(path, step, trust=trust, **weights_options)
        name, identity = str(path), "" if workdir else str(path.resolve())
    config = ConfigDict(encoder.metadata["config"]) if encoder.metadata.get("config") else None
    return _Target(encoder, name, config, out, workdir, identity)


def _defaults_of_run(
    name: str,
    config: ConfigDict | None,
    protocols: Sequence[str] | None,
    data: Settings | None,
    trust: bool,
) -> tuple[Sequence[str], ConfigDict]:
    """Return protocols and data set, by default those of the run, which the user must trust."""
    names, settings = protocols, None if data is None else ConfigDict(data)
    if names is None:
        if config is None:
            raise UserError(f"name the protocols to run on {name}, such as knn,linear")
        names = config.eval.protocols
        trusted.require(names, f"the config of {name}", trust)
    if settings is None:
        if config is None:
            raise UserError(f"name the data set to evaluate {name} on, such as cifar10")
        settings = config.data
        trusted.require_data(settings, f"the config of {name}", trust)
    return names, settings


def _require_results(lacking: Iterable[Selected], kinds: Sequence[str]) -> None:
    """Raise UserError for the first protocol requested by name that has no results."""
    for one in lacking:
        if one.named:
            raise UserError(
                f"protocol {one.text!r} has no results for {','.join(kinds)} features; it may need "
                "pretrained or untrained features in --kinds, and --layer backbone if it trains "
                "the network"
            )


def _check_kinds(names: str | Sequence[str] | None) -> list[str]:
    """Return the requested kinds of features, by default all, in the order of `results.KINDS`."""
    names = [names] if isinstance(names, str) else names or results.KINDS
    if unknown := sorted(set(names) - set(results.KINDS)):
        raise UserError(f"{unknown[0]!r} in kinds is unknown{suggest(unknown[0], results.KINDS)}")
    return [kind for kind in results.KINDS if kind in names]


def _run_protocol(
    one: Selected, context: EvalContext, kind: str, seed: int, *, strict: bool
) -> list[Result]:
    """Run one protocol. If data or encoder do not fit, warn, or raise UserError if ``strict``."""
    start = time.perf_counter()
    preset = {"preset": one.preset} if one.preset else {}
    try:
        new = one.protocol.run(context, seed=seed, **preset)
    except (ValueError, MemoryError, JaxRuntimeError) as error:
        # Raw pixels of a large set may not fit where the features of the network do.
        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        # Memory may be used up in one process only, and the others would wait for it.
        if not isinstance(error, ValueError) and distributed.process_count() > 1:
            raise
        if strict:
            raise UserError(f"protocol {one.text!r}: {one_line(error, LONGEST)}") from error
        logs.log.warning("protocol %r is left out: %s", one.text, one_line(error, LONGEST))
        return []
    expected = f"protocol {one.text!r} must return a list of Result"
    if not isinstance(new, list):
        raise UserError(f"{expected}, got {type(new).__name__}")
    for result in new:
        if not isinstance(result, Result):
            raise UserError(f"{expected}, got a list with {type(result).__name__}")
    logs.log.info("%s of %s features: %.1f s", one.text, kind, time.perf_counter() - start)
    return new


def _make_row(one: Selected, result: Result, fields: Settings) -> results.Row:
    """Return the row of a result. Raise UserError if results.json cannot hold it."""
    row = results.Row(protocol=one.name, **result._asdict(), **fields)
    try:
        json.dumps(row)
        is_valid = results.is_result(row)
    except (TypeError, ValueError):  # JSON has no arrays, and no containers that hold themselves.
        is_valid = False
    if not is_valid:
        raise UserError(
            f"protocol {one.text!r} must return texts as metric and unit, a number as value, a "
            "number or None as std, and a dict of numbers and texts as details, got "
            f"{one_line(ValueError(result))}; convert arrays with float() or tolist()"
        )
    return row


def _last_step_on_other_data(out: Path | None, content: str) -> int:
    """Return the last step whose online metrics are of other bank or test examples, or -1."""
    rows = results.read_results(out) if out else []
    others = [x for x in rows if x["protocol"] == "online" and x.get("content", content) != content]
    step = max((row["step"] or 0 for row in others), default=-1)
    if others:
        logs.log.warning(
            "evaluation the bank or the test examples have changed after step %d: online metrics "
            "until then are no results on the present ones",
            step,
        )
    return step


def _write(out: Path | None, rows: Sequence[results.Row]) -> None:
    if out is not None and distributed.is_first_process():
        results.add_results(out, rows)

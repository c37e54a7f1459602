"""Evaluate an encoder: its features, every protocol on them, results.json and the report."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxssl import components, distributed
from jaxssl.data import source
from jaxssl.errors import UserError, suggest
from jaxssl.evaluation import gallery
from jaxssl.evaluation.context import arrays, make_contexts
from jaxssl.evaluation.protocol import EvalContext, Protocol, Result
from jaxssl.pretrained.load import is_run, load_pretrained
from jaxssl.report import results, run_report
from jaxssl.report.results import KINDS
from jaxssl.training import logs
from jaxssl.training.config import apply_overrides, read_config
from jaxssl.training.modality import MODALITIES


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.strip("()").split(",") if number.strip())


# What a weights file does not say, on the command line.
ASSUMED = {
    "net.num_heads": int,
    "net.stem": str,
    "inputs.mean": _numbers,
    "inputs.std": _numbers,
    "inputs.crop": float,
    "inputs.size": int,
}


class Run(NamedTuple):
    """A protocol that was asked for.

    Attributes:
        text: "NAME" or "NAME:PRESET", as it was asked for.
        name: of the protocol.
        protocol: the protocol.
        options: of its `run`.
    """

    text: str
    name: str
    protocol: Protocol
    options: dict[str, str]


def evaluate(
    path: Path,
    protocols: Sequence[str] | None = None,
    *,
    step: int | str | None = None,
    data: Mapping[str, Any] | None = None,
    kinds: Sequence[str] | None = None,
    layer: str = "backbone",
    seed: int | None = None,
    out: Path | None = None,
    assumed: Mapping[str, Any] | None = None,
    page: bool = True,
) -> list[dict[str, Any]]:
    """Evaluate an encoder without training it; write results.json, of a run also report.html.

    Args:
        path: workdir of a run, or a weights file.
        protocols: "NAME" or "NAME:PRESET", NAME a file of `protocols`, or "all", those that
            fit the kind of examples; by default those of the run's config.
        step: of a run's checkpoint, "last" (the default) or "best".
        data: the group `config.data`; by default the run's.
        kinds: of features, some of `KINDS`; pretraining is compared with the others. By default
            all, or those that a protocol is meant for.
        layer: "backbone" or "projector".
        seed: of the protocols' draws; by default the run's, or 0.
        out: folder of results.json; by default the workdir, or beside the weights file.
        assumed: what a weights file does not say, as for `jaxssl.pretrained.weights.load`.
        page: whether the report of a run is written.

    Returns:
        The new rows of results.json; other rows are kept there.

    Raises:
        UserError: if there is no such run, checkpoint or file, a protocol is unknown, or it does
            not fit the data set.
    """
    logs.log_to_screen(distributed.process_index())
    if is_run(path):
        read_config(path)
    asked, found = protocols, load_pretrained(path, step, **(assumed or {}))
    config = ConfigDict(found.metadata["config"]) if "config" in found.metadata else None
    if asked is None and config is None:
        raise UserError(f"name the protocols to run on {path}: --protocols knn,linear")
    if data is None and config is None:
        raise UserError(f"name the data set to evaluate {path} on: --dataset NAME")
    examples = "image_text" if "text" in found.variables else found.inputs.kind
    runs = check_protocols(config.eval.protocols if asked is None else asked, examples)
    out = out or (path if path.is_dir() else path.with_suffix(".eval"))
    seed = seed if seed is not None else config.seed if config else 0

    results.read_results(out)  # damaged ones are refused before the work is done
    settings = config.data if data is None else data
    classes = Path(settings["classes"])
    splits = source.load_splits(settings, found.inputs.kind)
    explicit = asked is not None and "all" not in asked
    runs = _shared(_fitting(runs, splits, explicit), path, explicit)
    mesh = distributed.local_mesh()
    kinds = _kinds(kinds) if runs else KINDS[-1:]
    rows, features = [], None
    options = {
        "layer": layer,
        "features": any(run.protocol.needs_features for run in runs),
        "seed": config.seed if config else 0,  # of the untrained network
    }
    for kind, context in make_contexts(found, config, splits, kinds, mesh, **options):
        if kind == "pretrained" and options["features"]:
            features = context.features
        labels = {
            **{name: found.metadata.get(name) for name in ("source", "loss", "checkpoint")},
            "step": {"raw": None, "untrained": 0}.get(kind, found.metadata.get("step")),
            "features": kind,
            "layer": layer if kind != "raw" else "pixels",
            "dataset": splits.test.name + (f" ({classes.name})" if classes.name else ""),
            "data": _digest(settings, found.metadata["net"], None if out == path else path),
            "bank": splits.bank.split,
            "split": splits.test.split,
            "seed": seed,
        }
        for run in runs:
            if run.protocol.kinds is None or kind in run.protocol.kinds:
                figures = _figures(run, context, kind, seed, explicit=explicit)
                own = {**labels, "layer": run.protocol.layer or labels["layer"]}
                new = [{"protocol": run.name, **row._asdict(), **own} for row in figures]
                _keep(out, new)  # at once: what comes later may fail, or be stopped
                rows += new

    for run in runs if explicit else ():
        if run.name not in {row["protocol"] for row in rows}:
            raise UserError(
                f"protocol {run.text!r} trains a network: it needs --layer backbone, and a kind of "
                f"features besides raw (got {','.join(kinds)})"
            )
    if not distributed.is_first_process():
        return rows
    if rows:
        results.print_results(rows)
    logs.console.print(f"results: {out / 'results.json'}", soft_wrap=True)
    if page and config and data is None and out == path:
        step = found.metadata["step"]
        # Its pictures are of the backbone's features.
        whole = features is not None and layer == "backbone" and distributed.process_count() == 1
        if gallery.step_of(path) != step and whole:
            inputs = arrays(splits, found.inputs)
            gallery.write(path, config, splits, features, inputs, found)
        logs.console.print(f"report:  {run_report.write_report(path)}", soft_wrap=True)
    return rows


def _keep(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if not distributed.is_first_process():
        return
    try:
        results.add_results(out, rows)
    except OSError as error:
        raise UserError(f"cannot write results to {out}: {error.strerror}; see --out") from error


def data_of(
    path: Path,
    defaults: ConfigDict,
    dataset: str | None,
    overrides: Sequence[tuple[str, str]] = (),
) -> ConfigDict | None:
    """The group `config.data` to evaluate on; None is that of the run as it was.

    Args:
        path: of the run, or of a weights file.
        defaults: of the group, for another set than the run's.
        dataset: its name; None is the run's.
        overrides: ("data.KEY", text) from the command line.

    Raises:
        UserError: on keys that are not of data, or a run that is none.
    """
    if dataset is None and not overrides:
        return None
    data = defaults.copy_and_resolve_references()
    if path.is_dir():
        run = read_config(path).data
        data = run if dataset is None else data
        data.dir = run.dir
        data.context = run.get("context", data.context)  # what its network of captions reads
    if dataset is not None:
        data.name = dataset
    config = ConfigDict({"data": data})
    apply_overrides(config, overrides)
    return config.data


def split_overrides(
    overrides: Sequence[tuple[str, str]],
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """What the command line says of the data, and what of the network of a weights file.

    Raises:
        UserError: on other keys.
    """
    assumed = {}
    for key, text in overrides:
        if key in ASSUMED:
            try:
                assumed[key.partition(".")[2]] = ASSUMED[key](text)
            except ValueError as error:
                raise UserError(f"--config.{key} expects a number, got {text!r}") from error
        elif not key.startswith("data."):
            raise UserError(
                f"--config.{key}: eval.py takes the config from the run; only --config.data.KEY, "
                f"to evaluate on other images, and for a weights file {', '.join(ASSUMED)}, may be "
                "given"
            )
    return [item for item in overrides if item[0] not in ASSUMED], assumed


def _digest(data: Mapping[str, Any], net: Mapping[str, Any], path: Path | None) -> str:
    """Tells figures apart whose labels are the same: of classes, folders or files of one name."""
    free = ("dir", "cache", "workers")
    told = {key: value for key, value in data.items() if key not in free}
    text = json.dumps([told, dict(net), path and str(path.resolve())], default=str, sort_keys=True)
    return hashlib.sha1(text.encode()).hexdigest()[:10]


def _kinds(names: Sequence[str] | None) -> list[str]:
    unknown = sorted(set(names or ()) - set(KINDS))
    if unknown:
        raise UserError(f"--kinds: {unknown[0]!r} is unknown{suggest(unknown[0], KINDS)}")
    return [kind for kind in KINDS if kind in (names or KINDS)]


def _figures(
    run: Run, context: EvalContext, kind: str, seed: int, *, explicit: bool
) -> list[Result]:
    """A protocol's figures; none if it does not fit and was not asked for by name."""
    start = time.perf_counter()
    try:
        found = run.protocol.run(context, seed=seed, **run.options)
    except ValueError as error:
        if explicit:
            raise UserError(f"protocol {run.text!r}: {error}") from error
        # The others still count.
        logs.log.warning("protocol %r is left out: %s", run.text, error)
        return []
    logs.log.info("%s of %s features: %.1f s", run.text, kind, time.perf_counter() - start)
    return found


def _shared(runs: list[Run], path: Path, explicit: bool) -> list[Run]:
    """Of several processes: those protocols that they can share."""
    if distributed.process_count() == 1:
        return runs

    def is_shared(run: Run) -> bool:
        shared = run.protocol.shared_presets
        return bool(shared) and run.options.get("preset", shared[0]) in shared

    alone = [run for run in runs if not is_shared(run)]
    if alone:
        names = ",".join(run.text for run in alone)
        command = f"python eval.py --workdir {path} --protocols {names}"
        if explicit:
            raise UserError(f"several processes cannot share {names}; start one: {command}")
        logs.log.info("left out, for one process: %s", command)
    return [run for run in runs if run not in alone]


def _fitting(runs: list[Run], splits: source.Splits, explicit: bool) -> list[Run]:
    """The protocols that the labels allow.

    Raises:
        UserError: if one that was asked for needs labels that there are not.
    """
    if splits.labelled:
        unseen = np.setdiff1d(splits.test.labels, splits.bank.labels)
        if len(unseen) and not all(run.protocol.novel_classes for run in runs):
            names = [splits.test.class_names[label] for label in unseen[:3]]
            raise UserError(
                f"{splits.test.split!r} of {splits.test.name!r} has images of classes of which "
                f"{splits.bank.split!r} has none ({len(unseen)}: {', '.join(names)})"
            )
        return runs
    need = [run.text for run in runs if run.protocol.needs_labels]
    if need and explicit:
        raise UserError(
            f"protocols {','.join(need)} need labels, and {splits.test.name!r} has none in "
            "data.bank_split (or train_split) or data.test_split"
        )
    return [run for run in runs if run.text not in need]


def check_protocols(protocols: Sequence[str], kind: str = "image") -> list[Run]:
    """Find each protocol by its "NAME" or "NAME:PRESET".

    Args:
        protocols: what was asked for; "all" is every protocol that fits the kind of examples.
        kind: of the examples, a key of `jaxssl.training.modality.MODALITIES`.

    Raises:
        UserError: on an unknown name or preset.
    """
    runs = [_protocol(text) for text in protocols if text != "all"]
    if "all" not in protocols:
        return runs
    others = [_protocol(name) for name in components.names("protocol") if name not in protocols]
    return [run for run in others if kind in (run.protocol.examples or MODALITIES)] + runs


def _protocol(text: str) -> Run:
    name, _, preset = text.partition(":")
    names = components.names("protocol")
    if name not in names:
        raise UserError(f"protocol {name!r} is unknown{suggest(name, [*names, 'all'])}")
    protocol = components.module("protocol", name).protocol
    if preset and preset not in protocol.presets:
        raise UserError(
            f"preset {preset!r} of protocol {name!r} is unknown{suggest(preset, protocol.presets)}"
        )
    return Run(text, name, protocol, {"preset": preset} if preset else {})

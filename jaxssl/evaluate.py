"""Evaluate a checkpoint: its features, every protocol on them, results.json and the report."""

import importlib
import json
import math
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from ml_collections import ConfigDict
from rich.table import Table

import jaxssl.evals
from jaxssl import checkpoint, gallery, parallel, record, report
from jaxssl.augment.views import preprocess
from jaxssl.build import Parts, build
from jaxssl.config import label
from jaxssl.data import source
from jaxssl.errors import UserError, nearest
from jaxssl.evals import Features
from jaxssl.features import extract
from jaxssl.state import TrainState, init_state

KINDS = ("raw", "untrained", "pretrained")
RAW_SIZE = 32  # pixels a side that raw pixels are compared at, if the images are larger


def evaluate(
    workdir: Path, protocols: Sequence[str] | None = None, step: int | None = None
) -> list[dict[str, Any]]:
    """Evaluate a run's checkpoint without training; write results.json and report.html.

    Every protocol is run on raw pixels and on the untrained encoder too.

    Args:
        workdir: of the run.
        protocols: "NAME" or "NAME:PRESET", NAME a file of `jaxssl/evals/`; by default the config's.
        step: of the checkpoint; by default the latest.

    Returns:
        The new rows of results.json; those of other protocols and steps are kept there.

    Raises:
        UserError: if the workdir holds no run or no such checkpoint, or a protocol is unknown.
    """
    record.show_log()
    config = read_config(workdir)
    asked = protocols
    runs = check_protocols(config.eval.protocols if asked is None else asked)

    splits = source.load_splits(config.data)
    if not splits.labelled:
        if asked:
            raise UserError(
                f"protocols {','.join(asked)} need labels, and {config.data.name!r} has none in "
                "data.bank_split (or train_split) or data.test_split"
            )
        runs = []
    data = arrays(splits, config.augment.size)
    parts = build(config, len(splits.train))
    mesh = parallel.make_mesh()
    example = {"image": data["train"]["image"][:2], "index": np.arange(2, dtype=np.int32)}
    fresh = initial_state(config, parts, example, len(splits.train), mesh)
    restored = checkpoint.restore(workdir, fresh, mesh, step)
    encode = make_encoder(parts, config.augment.size)

    def features(kind: str, images: np.ndarray) -> np.ndarray:
        if kind == "raw":
            return raw_pixels(images, mesh)
        state = fresh if kind == "untrained" else restored.state
        return extract(images, encode, (state.params, state.carried), mesh)

    steps = {"raw": None, "untrained": 0, "pretrained": restored.step}
    test = splits.test
    where = {"dataset": test.name, "split": test.split, "seed": config.seed}
    where["loss"] = label("loss", config.loss)
    results = []
    for kind in KINDS if runs else KINDS[-1:]:
        x = [features(kind, data[split]["image"]) for split in ("train", "test")]
        found = Features(x[0], data["train"]["label"], x[1], data["test"]["label"])
        for text, protocol, options in runs:
            try:
                rows = protocol.run(found, seed=config.seed, **options)
            except ValueError as error:
                if asked is not None:
                    raise UserError(f"protocol {text!r}: {error}") from error
                # At the end of a run the others still count.
                record.log.warning("protocol %r is left out: %s", text, error)
                continue
            name = {"protocol": text.partition(":")[0], "features": kind, "step": steps[kind]}
            results += [{**name, **row._asdict(), **where} for row in rows]

    kept = [row for row in read_results(workdir) if _key(row) not in set(map(_key, results))]
    record.write_json(workdir / "results.json", {"results": kept + results})
    gallery.write(workdir, config, splits, found, data)
    page = report.write(workdir)
    if results:
        record.console.print(table(results, config, restored.step))
    record.console.print(f"results: {workdir / 'results.json'}\nreport:  {page}", soft_wrap=True)
    return results


def arrays(splits: source.Splits, size: int) -> dict[str, dict[str, Any]]:
    """Images and labels of the "train" part, which evaluation learns from, and of the "test" part.

    Images of many sizes are cut to ``size``; those of too large a split are decoded when used.
    """
    parts = {"train": splits.bank, "test": splits.test}
    return {name: {"image": s.images(size), "label": s.labels} for name, s in parts.items()}


def raw_pixels(images: np.ndarray, mesh: jax.sharding.Mesh) -> np.ndarray:
    """[n, f] pixels in [0, 1], of images larger than `RAW_SIZE` resized to it."""
    if max(images.shape[1:3]) <= RAW_SIZE:
        return np.reshape(images[:], (len(images), -1)) / np.float32(255)

    def shrink(_: None, block: Array) -> Array:
        return (preprocess(block, RAW_SIZE).reshape(len(block), -1) + 1) / 2

    return extract(images, jax.jit(shrink), None, mesh)


def initial_state(
    config: ConfigDict,
    parts: Parts,
    example: dict[str, Any],
    num_examples: int,
    mesh: jax.sharding.Mesh,
) -> TrainState:
    """The untrained state of a run on ``num_examples`` images that are like those of ``example``.

    Raises:
        UserError: if networks or views refuse the images; the message is theirs.
    """
    try:
        return init_state(
            parts.method, parts.optimiser, parts.augment, example, num_examples, config.seed, mesh
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def make_encoder(parts: Parts, size: int) -> Any:
    """The jitted `(variables, uint8 images) -> backbone features`."""

    def encode(variables: tuple[Any, Any], images: Array) -> Array:
        return parts.method.features(*variables, preprocess(images, size))

    return jax.jit(encode)


def read_config(workdir: Path) -> ConfigDict:
    """The effective config of a run.

    Raises:
        UserError: if the workdir holds none.
    """
    path = workdir / "config.json"
    try:
        return ConfigDict(json.loads(path.read_text()))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(
            f"{workdir} holds no run (cannot read {path}); train first: "
            f"python train.py --workdir {workdir}"
        ) from error


def read_results(workdir: Path) -> list[dict[str, Any]]:
    """The rows of results.json; [] if there is none."""
    path = workdir / "results.json"
    return json.loads(path.read_text())["results"] if path.exists() else []


def table(results: Sequence[dict[str, Any]], config: ConfigDict, step: int) -> Table:
    """What pretraining added: a row a metric, a column for each kind of features."""
    run = f"{label('loss', config.loss)}, step {step}, seed {config.seed}"
    title = f"{results[0]['dataset']} {config.data.test_split}, {run}"
    out = Table(title=title, caption="percent; ± over the draws of the labelled examples")
    for heading in ("metric", "preset"):
        out.add_column(heading)
    for kind in KINDS:
        out.add_column(kind, justify="right")
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in results:
        if row["step"] in (None, 0, step):
            line = lines.setdefault((row["metric"], row["details"]["preset"]), {})
            line[row["features"]] = _cell(row)
    for heading, cells in lines.items():
        out.add_row(*heading, *(cells.get(kind, "") for kind in KINDS))
    return out


def _key(row: dict[str, Any]) -> tuple:
    """What a figure is of: a later one of the same takes its place."""
    return (*(row[k] for k in ("metric", "features", "step")), row["details"]["preset"])


def _cell(row: dict[str, Any]) -> str:
    if not math.isfinite(row["value"]):
        return "not finite"
    return f"{row['value']:.2f}" + (f" ± {row['std']:.2f}" if row["std"] is not None else "")


def check_protocols(protocols: Sequence[str]) -> list[tuple[str, Any, dict[str, str]]]:
    """For each "NAME" or "NAME:PRESET" its text, module and options.

    Raises:
        UserError: on an unknown name or preset.
    """
    return [(text, *_protocol(text)) for text in protocols]


def _protocol(text: str) -> tuple[Any, dict[str, str]]:
    name, _, preset = text.partition(":")
    names = [m.name for m in pkgutil.iter_modules(jaxssl.evals.__path__) if m.name != "collapse"]
    if name not in names:
        raise UserError(f"protocol {name!r} is unknown{nearest(name, names)}")
    module = importlib.import_module(f"jaxssl.evals.{name}")
    if preset and preset not in module.PRESETS:
        raise UserError(
            f"preset {preset!r} of protocol {name!r} is unknown{nearest(preset, module.PRESETS)}"
        )
    return module, {"preset": preset} if preset else {}

"""Run one measurement of the plan, as a subprocess of `record.py`.

    python benchmarks/record_pieces.py PIECE.json RESULT.json

PIECE.json has the piece's name, its settings and the folder of its run. The figures, the device and
the versions are written to RESULT.json.
"""

import json
import logging
import os
import platform
import statistics
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import shared
from jax import numpy as jnp

from jaxssl import distributed
from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain
from jaxssl.training.output import compile_cache, file_io, logs, metrics_writer

PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch")
TRACED = 20  # number of training steps in the profiler trace
# Maps the temperature to the k-NN preset with k = 200.
KNN = {"0.1": "knn:instdisc", "0.5": "knn:cifar_simclr"}


def check(name: str, settings: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Check losses, solvers or training steps against the CPU."""
    import record_checks as checks

    which = name.partition("-")[0]
    return getattr(checks, f"check_{which}")(**settings)


def speed(name: str, settings: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Measure a row of `train_step.py`: images a second, parts of a step, and PyTorch."""
    train_step = _train_step(settings["network"])
    return train_step.measure(**settings)


def trace(name: str, settings: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Measure with the profiler where the time of a step goes."""
    import record_trace

    _train_step(settings["network"])
    training = _begin(**settings)
    lowered = training.program.lower(training.state, training.batches.next())
    training.program = lowered.compile()
    shared.timed(training.step, 3)
    seconds, _ = shared.timed(training.step, TRACED)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # A Python trace would slow the host and cause gaps.
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            shared.timed(training.step, TRACED)
        events = record_trace.read_events(Path(folder))
    return record_trace.summarise(events, training.program.as_text(), TRACED, 1000 * seconds)


def attention(name: str, settings: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Time `jaxssl.models._layers.attend` against `jax.nn.dot_product_attention`.

    Times are seconds per round of the forward and backward pass of one layer and, if a row is
    named, of a training step with it. Implementations that the device refuses are listed with the
    reason.
    """
    from jaxssl.models import vit
    from jaxssl.models._layers import attend

    train_step = _train_step(None)
    forms = {"ours": attend, "jax.nn, xla": _jax_attention("xla")}
    if jax.default_backend() == "gpu":
        forms["jax.nn, cudnn"] = _jax_attention("cudnn")
    shape = [settings[key] for key in ("images", "tokens", "heads", "size")]
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, g = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys)
    out: dict[str, Any] = {"layer": {}, "step": {}, "refused": {}}

    def refuse(form: str, error: Exception) -> None:
        """Record that an attention kernel does not accept these shapes."""
        out["refused"][form] = " ".join(str(error).split())[:200]

    layers = {}
    for form, function in forms.items():
        try:
            layers[form] = train_step.Timed(_layer(function, q, k, v, g))
        except Exception as error:
            refuse(form, error)
    for _ in range(5):
        for timed in layers.values():
            timed.turn(0.2)
    out["layer"] = {form: timed.rounds for form, timed in layers.items()}
    for form in layers if settings["row"] else ():
        vit.attend = forms[form]
        try:
            timed = train_step.Timed(_begin(*settings["row"]).step)
            for _ in range(3):
                timed.turn(0.5)
            out["step"][form] = timed.rounds
        except Exception as error:
            refuse(form, error)
        jax.clear_caches()
    return out


def run(name: str, settings: dict[str, Any], workdir: Path) -> dict[str, Any]:
    """Train a run and return k-NN and linear accuracy of the last and the best epoch.

    The best epoch has the best online k-NN (k = 200, T = 0.1) on the test images.
    """
    import record_checks as checks

    from jaxssl.evaluation import run as evaluate
    from jaxssl.training import nonfinite
    from jaxssl.training.workdir import checkpoint

    # Evaluation follows below, without a report for each run.
    values = {**settings["values"], "eval.knn": "instdisc", "eval.protocols": "()"}
    config = checks.load_config(settings["config"], values, settings["data"])
    about = {"data": Path(config.data.path).name or config.data.name, "epochs": config.epochs}
    # Presets may change later, so all loss settings are recorded.
    about["loss"] = config.loss.to_dict()
    logs.log_to_screen()
    try:
        pretrain.train(config, workdir)
    except UserError:
        if not (workdir / nonfinite.FILE_NAME).exists():
            raise
        return {**about, "last": None, "best": None}  # A run that diverged is a result too.
    lines = metrics_writer.read_metrics(workdir / "metrics.jsonl")
    curve = [[x["epoch"], x["loss"], x["knn_top1"]] for x in lines if "knn_top1" in x]
    # A line that is written right after a start has no speed.
    speeds = [x["images_per_second"] for x in lines[1:] if "images_per_second" in x]
    speed = statistics.median(speeds) if speeds else None
    out = {**about, "curve": curve, "images_per_second": speed}
    last, best = checkpoint.steps(workdir)[-1], checkpoint.best_step(workdir)
    for which, step in (("last", last), ("best", best)):
        if which == "best" and step == last:
            out[which] = out["last"]
            break
        protocols = (*KNN.values(), "linear")
        rows = evaluate.evaluate(workdir, protocols, step=step, kinds=("pretrained",), page=False)
        accuracies = {(row["metric"], row["details"]["preset"]): row["value"] for row in rows}
        epoch = next(line["epoch"] for line in lines if line["step"] == step)
        out[which] = {"epoch": epoch, "linear": accuracies["linear_top1", "fast"]}
        for temperature, protocol in KNN.items():
            out[which][f"knn {temperature}"] = accuracies["knn_top1", protocol.partition(":")[2]]
    return out


def about() -> dict[str, Any]:
    """Return the device and the versions of the measurement."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    number = jax.device_count()
    kind = device.device_kind if number == 1 else f"{number} x {device.device_kind}"
    name = f"{kind}, {os.cpu_count()} cores"
    is_cpu = device.platform == "cpu"
    return {"device": name, "memory": memory, "is_cpu": is_cpu, "versions": versions}


def _train_step(network: str | None) -> Any:
    """Import the module `train_step` and add the network "tiny", which is not timed in PyTorch."""
    import train_step

    small = "net.name=convnet augment.size=16 head.proj_hidden_dim=64"
    shared.NETWORKS.setdefault("tiny", (small, (16,)))
    if network == "tiny":
        train_step.torch_step = None
    return train_step


def _begin(network: str, batch: int, precision: str) -> shared.Training:
    """Set up the training step of a row of `train_step.py` on one device."""
    return shared.begin(network, batch, precision, distributed.make_mesh(jax.devices()[:1]))


def _jax_attention(implementation: str) -> Any:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = False) -> jax.Array:
        options = {"is_causal": causal, "implementation": implementation}
        return jax.nn.dot_product_attention(q, k, v, **options)

    return attend


def _layer(function: Any, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array) -> Any:
    """Return a function that runs the forward and backward pass of an attention layer."""

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, pull = jax.vjp(function, q, k, v)
        return out, pull(g)

    return lambda: both(q, k, v)


def main(source: Path, target: Path) -> None:
    """Run one measurement, or without a name only write the device."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    compile_cache.enable()
    piece = json.loads(source.read_text())
    result: dict[str, Any] = about()
    if piece["name"]:
        kind, _, rest = piece["name"].partition("/")
        result["values"] = globals()[kind](rest, piece["settings"], Path(piece["workdir"]))
    file_io.write_json(target, result)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")

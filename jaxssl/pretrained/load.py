"""Load the encoder of a run's checkpoint or of a weights file."""

import functools
import operator
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any, SupportsIndex

import jax
from flax.typing import Collection, VariableDict
from jax import Array, core
from jax import numpy as jnp
from jax.typing import ArrayLike
from ml_collections import ConfigDict

from jaxssl.buckets import as_path
from jaxssl.data import kind
from jaxssl.errors import UserError, one_line
from jaxssl.methods.base import init_variables
from jaxssl.models.transfer import merge_adapters
from jaxssl.pretrained import folders, hub, input_settings, weights
from jaxssl.pretrained.encoder import PretrainedEncoder, Variables, make_apply, require_valid
from jaxssl.training import config as configs
from jaxssl.training.config import custom
from jaxssl.training.config.method import make_method, make_networks, run_length
from jaxssl.training.config.trust import require as require_trust
from jaxssl.training.config.values import require as require_type
from jaxssl.training.output import compile_cache
from jaxssl.training.workdir import checkpoint
from jaxssl.training.workdir.digests import by_name

Apply = Callable[[VariableDict, Array], Array]


def load_encoder(
    path: str | PathLike[str],
    step: int | str | None = None,
    *,
    trust: bool = False,
    **overrides: Any,
) -> tuple[Apply, VariableDict, Callable[[Array], Array]]:
    """Load a pretrained backbone as a pure function, for use in any JAX project.

        apply, variables, preprocess = jaxssl.load_encoder("runs/digits")
        features = apply(variables, preprocess(images))

    Args:
        path: a run, its workdir, a file or folder that `jaxssl.pretrained.weights` reads, or
            ``hf://owner/name`` for a repository of the Hugging Face Hub.
        step: step of a run's checkpoint, "last" (the default) or "best" (by online k-NN).
        trust: whether to execute the Python files that the config of a run names, even if this user
            has not trained with them, see docs/weights.md.
        **overrides: settings that a weights file does not hold, see
            `jaxssl.pretrained.weights.load`, such as ``num_heads`` and ``size``.

    Returns:
        ``apply(variables, x) -> [n, f]``, pure and in evaluation mode, the variables as NumPy
        arrays, and ``preprocess``, which maps images to x, see `make_preprocess`.

    Raises:
        UserError: if the checkpoint or file does not exist or cannot be read.
    """
    pretrained = load_pretrained(path, step, trust=trust, **overrides)
    return make_apply(pretrained), pretrained.variables["net"], make_preprocess(pretrained)


def make_preprocess(pretrained: PretrainedEncoder) -> Callable[[ArrayLike], Array]:
    """Return the function that maps images to the inputs of a pretrained backbone.

    Images are uint8 in [0, 255] or floats in [0, 1], as a batch [n, h, w, c] or one image
    [h, w, c], which becomes a batch of one. The function resizes and standardises them. The range
    of floats is not checked under `jax.jit`. Clips have an axis t before h. Packed graphs are dicts
    of arrays.
    """
    inputs = pretrained.inputs
    axes = inputs.axes
    if not axes:
        return inputs.prepare
    rank = len(axes.split(", "))

    def preprocess(images: object) -> Array:
        images = jnp.asarray(images)
        if images.ndim not in (rank, rank + 1):
            raise ValueError(
                f"preprocess takes {kind.units(inputs.kind)} [n, {axes}] or one [{axes}], got the "
                f"shape {list(images.shape)}"
            )
        if images.dtype != jnp.uint8:
            if not jnp.issubdtype(images.dtype, jnp.floating):
                raise ValueError(
                    f"preprocess takes uint8 in [0, 255] or floats in [0, 1], got {images.dtype}"
                )
            if not isinstance(images, core.Tracer) and images.size:
                low, high = float(images.min()), float(images.max())
                if not (low >= 0 and high <= 1):
                    raise ValueError(
                        f"preprocess takes floats in [0, 1], got values in [{low:.8g}, "
                        f"{high:.8g}]; pass uint8, or divide by 255"
                    )
            images = images.astype(jnp.float32) * 255
        return inputs.prepare(images if images.ndim > rank else images[None])

    return preprocess


def load_pretrained(
    path: str | PathLike[str],
    step: int | str | None = None,
    *,
    trust: bool = False,
    **overrides: Any,
) -> PretrainedEncoder:
    """Load a pretrained encoder with projector, input settings and metadata.

    The arguments and errors are as in `load_encoder`.
    """
    path = hub.local(path)
    if is_run(path):
        if overrides:
            raise UserError(
                f"{path} is a run, whose config defines the network; remove {', '.join(overrides)}"
            )
        return _load_run(path, step, trust)
    if step is not None:
        raise UserError(f"{path} is a weights file, which has no checkpoints; remove step {step!r}")
    return weights.load(path, **overrides)


def is_run(path: Path) -> bool:
    """Return True if a path names the workdir of a run, which need not exist.

    False for a weights file, a folder of weights, and a repository of the Hugging Face Hub.
    """
    if hub.is_hub(path) or folders.is_weights_folder(path):
        return False
    is_weights = path.is_file() or path.suffix.lower() in weights.SUFFIXES
    return path.is_dir() or not is_weights


def results_folder(path: str | PathLike[str]) -> Path:
    """Return the folder of results.json: the workdir of a run, or NAME.eval next to weights.

    Results of a repository of the Hugging Face Hub are stored in the current folder.
    """
    if hub.is_hub(path):
        repository = fspath(path).removeprefix("hf:").lstrip("/")
        return Path(f"{repository.replace('/', '-')}.eval")
    path = as_path(path)
    if is_run(path):
        return path
    if path.name in ("", ".."):
        path = path.resolve()
    # The part of a folder's name after a dot is no suffix, as in vit.v1.
    return path.with_name(f"{path.name if path.is_dir() else path.stem}.eval")


def _load_run(workdir: Path, step: int | str | None, trust: bool) -> PretrainedEncoder:
    number = None
    if step == "best":
        number = checkpoint.best_step(workdir)
    elif isinstance(step, SupportsIndex):
        number = operator.index(step)
    elif step not in (None, "last"):
        raise UserError(f"step must be a number, last or best, got {step!r}")
    restored = checkpoint.restore_arrays(workdir, number)
    config = _read_config(workdir, restored, trust)
    custom.warn_of_changes(config.to_dict(), workdir)
    num_examples = restored.facts.data.get("num_examples")
    try:
        require_type("num_examples", num_examples, int)
        encoder = make_networks(config)
        input_settings.check_limits(encoder.net, config.augment.get("size", 0))
        variables = _variables(config, restored.state["params"], restored.state["carried"])
        run_kind = kind.of(config)
        inputs = run_kind.infer_inputs(config, encoder.net, variables["net"])
        if run_kind.pictures:
            # 0.0 if the images had one size. Checkpoints of version 0.1 do not name the crop.
            crop = restored.facts.data.get("centre", 0.0)
            require_type("centre", crop, float)
            inputs = inputs._replace(crop=crop or None)
            input_settings.validate(inputs._asdict())
        length = run_length(config, max(num_examples, config.batch_size))
        method = make_method(config, length, trained=False)
        views = run_kind.view_shapes(config, inputs)

        def init(key: Array) -> Variables:
            params, carried = init_variables(method, views, 1, key)
            return _variables(config, params, carried._asdict())

        _require_shapes(variables, jax.eval_shape(init, jax.random.key(0)))
    except Exception as error:  # Networks raise many exception types for wrong arrays.
        path = workdir / "checkpoints" / str(restored.step)
        raise UserError(f"checkpoint {path} does not fit its config: {one_line(error)}") from error
    require_valid(variables["net"], workdir)
    selected_by = "best" if step == "best" else "by step"
    if step != "best" and restored.step == checkpoint.steps(workdir)[-1]:
        selected_by = "last"
    metadata = {
        "source": workdir.resolve().name,
        "step": restored.step,
        "checkpoint": selected_by,
        "loss": configs.label("loss", config.loss),
        "net": config.net.to_dict(),
        "config": config.to_dict(),
    }

    @functools.cache
    def untrained(seed: int) -> Variables:
        # Without config.init, a run of the same seed starts from the same bits.
        options = compile_cache.fast_compile_options()
        return jax.jit(init, compiler_options=options)(jax.random.key(seed))

    return PretrainedEncoder(encoder, variables, inputs, untrained, metadata)


def _read_config(workdir: Path, restored: checkpoint.Restored, trust: bool) -> ConfigDict:
    """Return the config of a run, on which config.json and the checkpoint must agree.

    Files of components are imported only if they are trusted.
    """
    path = workdir / "checkpoints" / str(restored.step)
    config = configs.read_config(workdir)
    if changed := configs.conflicts(config, restored.facts.config):
        raise UserError(
            f"{path} was written under another config than {workdir / 'config.json'} "
            f"({configs.join_differences(changed)}); move the checkpoint away"
        )
    require_trust(custom.names(config.to_dict()).values(), workdir, trust)
    try:
        return configs.complete_stored(config)
    except UserError as error:
        raise UserError(f"{workdir / 'config.json'} is not valid: {error}") from error


def _require_shapes(variables: Variables, expected: Variables) -> None:
    """Raise ValueError unless arrays have the names and shapes that the config leads to."""
    stored = {name: array.shape for name, array in by_name(variables).items()}
    made = {name: array.shape for name, array in by_name(expected).items()}
    for name in sorted({*stored, *made}):
        if stored.get(name) != made.get(name):
            raise ValueError(
                f"the array {name} has the shape {stored.get(name)}, but the config makes "
                f"{made.get(name)}"
            )


def _variables(config: ConfigDict, params: Collection, carried: Collection) -> Variables:
    """Return the variables to evaluate: the momentum network's if the config says so."""
    stats = carried["batch_stats"]
    towers = {}
    if "text" in params:
        towers["text"] = _by_network(params["text"], stats.get("text", {}))
    if config.method.get("evaluate") == "target":
        params, stats = carried["target"]["params"], carried["target"]["batch_stats"]
    if config.optim.get("lora", 0):
        params = {**params, "net": merge_adapters(params["net"])}
    return _by_network(params, stats) | towers


def _by_network(params: Collection, stats: Collection) -> dict[str, VariableDict]:
    # A checkpoint does not store empty trees, so they are added here.
    return {
        name: {"params": params.get(name, {}), "batch_stats": stats.get(name, {})}
        for name in ("net", "projector")
    }

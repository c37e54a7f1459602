"""Load the backbone of a checkpoint or of a weights file."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax import Array
from ml_collections import ConfigDict

from jaxssl.errors import UserError
from jaxssl.models.encoder import Variables
from jaxssl.pretrained import encoder, weights
from jaxssl.pretrained.encoder import Backbone, require_finite
from jaxssl.training import checkpoint, compile_cache, modality
from jaxssl.training.build import build, make_networks
from jaxssl.training.config import label
from jaxssl.training.state import init_variables

Apply = Callable[[Any, Array], Array]


def load_encoder(
    path: str | Path, step: int | str | None = None, **assumed: Any
) -> tuple[Apply, Any, Callable[[Array], Array]]:
    """The backbone of a checkpoint or of a weights file, for use in any JAX project.

        apply, variables, preprocess = jaxssl.load_encoder("runs/digits")
        features = apply(variables, preprocess(images))

    Args:
        path: workdir of a run, or a file that `jaxssl.pretrained.weights` reads.
        step: of a run's checkpoint, or "last" (the default) or "best" (by online k-NN).
        **assumed: what a weights file does not say, see `jaxssl.pretrained.weights.load`:
            ``num_heads``, ``stem``, ``mean``, ``std``, ``crop``, ``size``.

    Returns:
        ``apply(variables, x) -> [n, f]``, pure and in evaluation mode; its variables, as NumPy
        arrays; and ``preprocess``, from uint8 images [n, h, w, c] to x.

    Raises:
        UserError: if there is no such checkpoint or file, or it cannot be read.
    """
    found = load_pretrained(path, step, **assumed)
    variables = {"params": found.net.params, "batch_stats": found.net.batch_stats}
    return encoder.make_apply(found), variables, found.inputs.prepare


def load_pretrained(path: str | Path, step: int | str | None = None, **assumed: Any) -> Backbone:
    """What `load_encoder` reads, whole: the projector and what is known of it too."""
    path = Path(path)
    if is_run(path):
        if assumed:
            raise UserError(f"{path} is a run, which knows its network; leave {list(assumed)} out")
        return _of_run(path, step)
    if step is not None:
        raise UserError(f"{path} is a weights file, which has no steps; leave step {step!r} out")
    return weights.load(path, **assumed)


def is_run(path: Path) -> bool:
    """Whether a path is meant to be a run's workdir, and no weights file."""
    return path.is_dir() or path.suffix.lower() not in weights.SUFFIXES


def _of_run(workdir: Path, step: int | str | None) -> Backbone:
    best = step == "best"
    which = checkpoint.best_step(workdir) if best else None if step == "last" else step
    found = checkpoint.restore_arrays(workdir, which)
    config = ConfigDict(found.config)
    encoder = make_networks(config)
    net, projector = _variables(config, found.state["params"], found.state["carried"])
    require_finite({"params": net.params, "batch_stats": net.batch_stats}, workdir)
    kind = modality.get(config)
    inputs = kind.infer_inputs(config, encoder.net, net)
    known = checkpoint.steps(workdir)
    facts = {
        "source": workdir.resolve().name,
        "step": found.step,
        "checkpoint": "best" if best else "last" if found.step == known[-1] else "by step",
        "loss": label("loss", config.loss),
        "net": config.net.to_dict(),
        "config": config.to_dict(),
    }

    @functools.cache  # asked for by each tower
    def start(seed: int) -> Any:
        # What a run of this seed starts from, to the bit.
        method = build(config, max(found.data["num_examples"], config.batch_size)).method
        views = kind.view_shapes(config, inputs)

        @functools.partial(jax.jit, compiler_options=compile_cache.fast_compile_options())
        def init(key: Array) -> Any:
            params, carried = init_variables(method, views, 1, key)
            carried = carried._asdict()
            return _variables(config, params, carried), _of_text(params, carried)

        return init(jax.random.key(seed))

    def untrained(seed: int) -> tuple[Variables, Variables | None]:
        return start(seed)[0]

    text = _of_text(found.state["params"], found.state["carried"])
    of_text = (lambda seed: start(seed)[1]) if text else None
    return Backbone(encoder, net, projector, inputs, untrained, facts, text, of_text)


def _of_text(params: Any, carried: Any) -> tuple[Variables, Variables] | None:
    """Those of the captions' network and its projector."""
    if "text" not in params:
        return None
    stats = carried["batch_stats"].get("text", {})
    return tuple(
        Variables(params["text"].get(n, {}), stats.get(n, {})) for n in ("net", "projector")
    )


def _variables(config: ConfigDict, params: Any, carried: Any) -> tuple[Variables, Variables]:
    """Those of backbone and projector of the network that the method has evaluated."""
    stats = carried["batch_stats"]
    if config.method.get("evaluate") == "target":
        params, stats = (carried["target"][name] for name in ("params", "batch_stats"))
    # An empty tree is not in a checkpoint.
    return tuple(Variables(params.get(n, {}), stats.get(n, {})) for n in ("net", "projector"))

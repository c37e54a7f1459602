"""The effective settings of a run, line by line."""

from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxssl.data import source
from jaxssl.training import modality
from jaxssl.training.build import Setup
from jaxssl.training.compatibility import has_text
from jaxssl.training.config import arguments
from jaxssl.training.state import TrainState


def lines(
    config: ConfigDict,
    parts: Setup,
    state: TrainState,
    shapes: Mapping[str, Any],
    num_devices: int,
) -> list[str]:
    """What a run is about to do, as text.

    Args:
        config: complete.
        parts: built from it.
        state: initialised; its shapes are enough.
        shapes: of a batch, or one.
        num_devices: that share a batch.
    """
    batch = config.batch_size
    key = jax.eval_shape(lambda: jax.random.key(0))
    views = jax.eval_shape(parts.augment, key, shapes["input"], shapes["index"])
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), views["views"])
    features = jax.eval_shape(parts.method.features, state.params, state.carried, first)
    counts = {name: _count(tree) for name, tree in state.params.items()}
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    sizes = ", ".join(f"{name} {_shapes(x)}" for name, x in views.items())
    device = jax.devices()[0].device_kind
    chunks, many = config.accumulate_steps, source.KINDS[modality.dataset_kind(config)]
    text = config.text if has_text(config) else None
    accumulated = f", encoded in {chunks} parts" if chunks > 1 else ""
    return [
        f"views      {_settings(config.augment)}; {sizes}",
        f"network    {_settings(config.net)}; features {features.shape[1]}, {config.precision}",
        *([f"captions   {_settings(text)}; {config.data.context} tokens"] if text else ()),
        f"heads      {_settings(config.head)}; predictor {_settings(config.predictor)}",
        f"parameters {sum(counts.values()):,} ({listed})",
        f"method     {_settings(config.method)}",
        f"loss       {_settings(config.loss)}",
        f"batch      {batch} {many}, {config.views} views each{accumulated}; "
        f"{batch // num_devices} {many} on each of {num_devices} devices ({device})",
        f"optimiser  {config.optim.name}, peak learning rate {parts.peak_rate:g} "
        f"(base {config.optim.lr:g}, scaling {config.optim.lr_scaling}), {config.schedule.name}, "
        f"weight decay {_value(config.optim.weight_decay)}",
        f"steps      {parts.total_steps}, {parts.steps_per_epoch} an epoch, "
        f"{parts.warmup_steps} of warm-up",
    ]


def _settings(group: Mapping[str, Any]) -> str:
    """`name (preset): key=value, ...`."""
    preset = f" ({group['preset']})" if "preset" in group else ""
    values = ", ".join(f"{key}={_value(value)}" for key, value in arguments(group).items())
    return f"{group['name']}{preset}" + (f": {values}" if values else "")


def _value(value: Any) -> str:
    return str(value.to_dict() if isinstance(value, ConfigDict) else value)


def _shapes(group: Any) -> str:
    if not isinstance(group, Mapping):
        return str(list(group.shape))
    return ", ".join(f"{name} {list(x.shape)}" for name, x in group.items())


def _count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))

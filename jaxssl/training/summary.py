"""Summarise the effective settings of a run, one line for each topic."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.components import Settings
from jaxssl.data import kind
from jaxssl.training.build import Setup
from jaxssl.training.config.groups import arguments
from jaxssl.training.config.method import recipe_arguments
from jaxssl.training.state import TrainState


def lines(
    config: ConfigDict, setup: Setup, state: TrainState, batch: Mapping[str, object], mesh: Mesh
) -> list[str]:
    """Return the lines about settings, networks and devices that a run logs at the start.

    Args:
        config: complete.
        setup: built from the config.
        state: untrained state.
        batch: a batch with "input" and "index", or its shapes.
        mesh: the devices that share a batch.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    views = jax.eval_shape(setup.augment, key, batch["input"], batch["index"])
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), views["views"])
    features = jax.eval_shape(setup.method.features, state.params, state.carried, first)
    counts = {k: sum(x.size for x in jax.tree.leaves(tree)) for k, tree in state.params.items()}
    by_network = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    device, size = mesh.devices.flat[0].device_kind, config.batch_size
    chunks, unit = config.accumulate_steps, kind.of(config).units
    accumulated = f", encoded in {chunks} parts" if chunks > 1 else ""
    net = f"{_settings(config.net)}; features {features.shape[1]}, {config.precision}"
    peak = setup.learning_rate(setup.warmup_steps)
    networks = [f"network    {net}"]
    if config.text.name != "none":
        networks.append(f"captions   {_settings(config.text)}; {config.data.context} tokens")
    return [
        *_view_lines(config, views),
        *networks,
        f"heads      {_settings(config.head)}; predictor {_settings(config.predictor)}",
        f"parameters {sum(counts.values()):,} ({by_network})",
        f"method     {_settings(config.method)}",
        f"loss       {_settings(config.loss)}",
        f"batch      {size} {unit}, {config.views} views each{accumulated}; "
        f"{size // mesh.size} {unit} on each of {mesh.size} devices ({device})",
        f"optimiser  {config.optim.name}, peak learning rate {peak:g} "
        f"(base {config.optim.lr:g}, scaling {config.optim.lr_scaling}), {config.schedule.name}, "
        f"weight decay {_value(config.optim.weight_decay)}",
        f"steps      {setup.total_steps}, {setup.steps_per_epoch} an epoch, "
        f"{setup.warmup_steps} of warm-up"
        + "".join(f"; extended, {length}" for length in config.get("extended", ())),
        f"protocols  after training: {', '.join(config.eval.protocols) or 'none'}",
    ]


def _view_lines(config: ConfigDict, views: Mapping[str, Any]) -> list[str]:
    """Return the lines about the views, for the shapes that the augmentation returns."""
    shapes = ", ".join(f"{name} {_shapes(x)}" for name, x in views.items())
    lines = [f"views      {_settings(config.augment)}; {shapes}"]
    # Augmentations of colour are left out if the images do not have RGB channels.
    channels, examples = jax.tree.leaves(views["views"])[0].shape[-1], kind.of(config)
    left_out = [x for view in recipe_arguments(config) for x in examples.left_out(view, channels)]
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        lines.append(f"left out   {names} of the views: the {examples.units} are not RGB")
    if "mean" in config.data:
        lines.append(f"scale      mean {config.data.mean}, std {config.data.std} by channel")
    if config.second_view:
        lines.append(f"second view {_values(config.second_view)}")
    if config.crops.number:
        lines.append(f"small crops {_values(config.crops)}")
    return lines


def describe_init(report: Settings) -> str:
    """Return the report of the weights that a run starts from as one line."""
    lists = [
        f"{name}: {', '.join(report[name]) or 'nothing'}"
        for name in ("missing", "extra", "reshaped")
    ]
    digest = f"SHA-256 {report['sha256'][:12]}"
    return f"{report['from']} ({digest}), {report['loaded']} arrays; {'; '.join(lists)}"


def _settings(group: ConfigDict) -> str:
    """Format a config group as "name (preset): key=value, ..."."""
    preset = f" ({group['preset']})" if "preset" in group else ""
    values = _values(arguments(group))
    return f"{components.short_name(group['name'])}{preset}" + (f": {values}" if values else "")


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: object) -> str:
    return str(value.to_dict() if isinstance(value, ConfigDict) else value)


def _shapes(views: Any) -> str:
    if not isinstance(views, Mapping):
        return str(list(views.shape))
    return ", ".join(f"{name} {list(x.shape)}" for name, x in views.items())

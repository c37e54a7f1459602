"""Build the components of a run: training scheme, optimiser, augmentation, batches."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import optax
from jax import numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl.components import Settings
from jaxssl.data import batches, kind
from jaxssl.data.batches import Batches
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.splits import Source
from jaxssl.errors import UserError, one_line
from jaxssl.losses.objective import Number
from jaxssl.methods.base import Batch, Method
from jaxssl.models.transfer import Transfer
from jaxssl.training import optim, state
from jaxssl.training.config import schedules
from jaxssl.training.config.groups import arguments, factory
from jaxssl.training.config.method import (
    Augment,
    make_augment,
    make_crops,
    make_method,
    make_transfer,
    run_length,
    scheduled_arguments,
)
from jaxssl.training.config.values import is_schedule
from jaxssl.training.state import TrainState

# Keys of the group `optim` that are not arguments of `optim.optimiser`.
OTHER_KEYS = {"lr", "lr_scaling", "sharding", *Transfer._fields}


class Setup(NamedTuple):
    """Training scheme, optimiser, augmentation and schedules that a config describes.

    Attributes:
        method: networks and objective as pure functions.
        optimiser: updates the parameters.
        learning_rate: learning rate as a function of the step.
        warmup_steps: length of the warm-up.
        augment: ``(key, images, index) -> views``.
        steps_per_epoch: number of batches in an epoch.
        total_steps: length of the run.
        batch_size: number of examples of a step.
        sharding: which arrays the devices store in parts, see `jaxssl.training.state.shardings`.
        max_skipped: number of skipped steps in a row that ends the run.
        eval_every: steps between two evaluations.
        save_every: steps between two checkpoints.
    """

    method: Method
    optimiser: optax.GradientTransformation
    learning_rate: schedules.Schedule
    warmup_steps: int
    augment: Augment
    steps_per_epoch: int
    total_steps: int
    batch_size: int
    sharding: str
    max_skipped: int
    eval_every: int
    save_every: int


def build(
    config: ConfigDict,
    num_examples: int,
    num_devices: int = 1,
    *,
    crops: Crops | None = None,
    numbers: Settings | None = None,
) -> Setup:
    """Build training scheme, optimiser, augmentation and schedules from a config.

    Args:
        config: complete.
        num_examples: size of the training set.
        num_devices: number of devices that share a batch.
        crops: crops that the host has cut already, from `make_crops`.
        numbers: replace values of the config, by dotted key (`shared_numbers`). They may be traced,
            and are not checked.

    Raises:
        UserError: on a value that a component rejects, with the message of the component, or that
            does not fit the number of devices.
    """
    _check_devices(config, num_devices)
    length = run_length(config, num_examples)
    steps_per_epoch, total_steps = length
    numbers = dict(numbers or {})
    lr = numbers.pop("optim.lr", config.optim.lr)
    loss_numbers = {k.removeprefix("loss."): _constant(v) for k, v in numbers.items()}
    try:
        peak = optim.effective_lr(lr, config.optim.lr_scaling, config.batch_size)
        warmup = round(config.schedule.warmup_epochs * steps_per_epoch)
        rate = schedules.learning_rate(
            config.schedule.name,
            peak,
            warmup_steps=warmup,
            total_steps=total_steps,
            warmup_start=config.schedule.warmup_start,
            end_factor=config.schedule.end_factor,
            milestones=tuple(round(e * steps_per_epoch) for e in config.schedule.milestones),
            gamma=config.schedule.gamma,
        )
        values = scheduled_arguments(config.optim, length)
        values = {key: value for key, value in values.items() if key not in OTHER_KEYS}
        transfer = make_transfer(config.optim)
        optimiser = optim.optimiser(config.optim.name, rate, **values, transfer=transfer)
        method = make_method(config, length, loss_numbers)
        augment = make_augment(config, crops)
    except (ValueError, OverflowError) as error:
        raise UserError(one_line(error, 1000)) from error
    return Setup(
        method=method,
        optimiser=optimiser,
        learning_rate=rate,
        warmup_steps=warmup,
        augment=augment,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        batch_size=config.batch_size,
        sharding=config.optim.sharding,
        max_skipped=min(config.max_skipped, total_steps),  # A run must not skip all its steps.
        eval_every=max(1, round(config.eval.every * steps_per_epoch)),
        save_every=max(1, round(config.checkpoint.every * steps_per_epoch)),
    )


def _check_devices(config: ConfigDict, num_devices: int) -> None:
    """Raise UserError unless the devices can share a batch and the groups of BatchNorm evenly."""
    per_device = config.batch_size // num_devices
    if per_device % config.accumulate_steps:
        raise UserError(
            f"accumulate_steps={config.accumulate_steps} must divide the {per_device} "
            f"{kind.of(config).units} of a batch on each of {num_devices} devices"
        )
    if config.batch_norm_group and num_devices % min(config.batch_norm_group, num_devices):
        raise UserError(
            f"batch_norm_group={config.batch_norm_group} must divide the {num_devices} devices"
        )


def shared_numbers(loss: ConfigDict, lr: float) -> dict[str, float]:
    """Return the numbers that the compiled step takes as arguments, by dotted key.

    They are the learning rate, and each number of the loss that may be a schedule. Zeros are left
    out, because a loss skips a term with weight 0.

    Args:
        loss: the group `loss` of the config.
        lr: the base learning rate.
    """
    make_objective = factory("loss", loss.name)
    hyper = arguments(loss.to_dict())
    for name, value in hyper.items():
        if is_schedule(value):  # The losses take a schedule as a function of the step.
            hyper[name] = _constant(1.0)
    numbers = {"optim.lr": lr}
    for name, parameter in inspect.signature(make_objective).parameters.items():
        value = hyper.get(name)
        if parameter.annotation == Number and isinstance(value, float) and value != 0:
            with suppress(ValueError):  # A trained hyper-parameter takes no schedule.
                make_objective(**hyper | {name: _constant(value)})
                numbers[f"loss.{name}"] = value
    return numbers


def _constant(value: object) -> schedules.Schedule:
    """Return the schedule that has ``value`` at every step."""
    return lambda step: jnp.asarray(value, jnp.float32)


def make_init(
    setup: Setup, example: Batch, num_examples: int, mesh: Mesh
) -> Callable[[int], TrainState]:
    """Return the compiled function ``seed -> untrained training state``.

    Args:
        setup: built from the config.
        example: a batch of two or more examples.
        num_examples: size of the training set.
        mesh: the devices.

    Raises:
        UserError: if the networks or the views reject the images, with their message.
    """
    components = setup.method, setup.optimiser, setup.augment
    try:
        return state.make_init(*components, example, num_examples, mesh, sharding=setup.sharding)
    except (ValueError, OverflowError) as error:
        raise UserError(one_line(error, 1000)) from error


def add_statistics(config: ConfigDict, train: Source) -> ConfigDict:
    """Return the config with the channel means and stds of the training split, if views use them.

    Raises:
        UserError: if ``config.data.normalise`` is "measured" for examples without such statistics.
    """
    config = ConfigDict(config.to_dict())
    normalise = config.data.normalise
    measure = kind.of(config).statistics
    if measure is not None:
        config.data.update(measure(normalise, train, config.augment.get("size", 0)))
    elif normalise == "measured":
        raise UserError("data.normalise='measured' is only for images; leave it at 'auto'")
    return config.lock()


def make_batches(config: ConfigDict, train: Source, mesh: Mesh) -> Batches:
    """Build the stream of training batches of a run.

    Raises:
        UserError: as `jaxssl.data.batches.make_batches`.
    """
    return batches.make_batches(
        train,
        config.batch_size,
        seed=config.seed,
        crops=make_crops(config),
        mesh=mesh,
        cache=config.data.cache,
        workers=config.data.workers,
        parts=config.accumulate_steps,
        examples=kind.name_of(config),
    )

"""Build the components of a run from its config: method, optimiser, augmentation, batches."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl.augment.views import measured_scale
from jaxssl.data import batches, kind, statistics
from jaxssl.data.batches import Batches
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.splits import Source
from jaxssl.errors import UserError, one_line, suggest
from jaxssl.losses.objective import Number
from jaxssl.methods.base import Method
from jaxssl.models.encoder import PRECISIONS, Encoder
from jaxssl.training import optim, state
from jaxssl.training.compatibility import check_compatibility, has_text
from jaxssl.training.config import arguments, factory, schedules
from jaxssl.training.config.types import LARGEST
from jaxssl.training.state import Augment, TrainState
from jaxssl.training.transfer import Transfer


class Setup(NamedTuple):
    """Method, optimiser, augmentation and schedules that a config describes.

    Attributes:
        method: networks and objective as pure functions.
        optimiser: updates the parameters.
        learning_rate: learning rate as a function of the step.
        peak_rate: learning rate after the warm-up.
        warmup_steps: length of the warm-up.
        augment: ``(key, images, index) -> views``.
        steps_per_epoch: number of batches in an epoch.
        total_steps: length of the run.
        batch_size: number of examples of a step.
        max_skipped: number of skipped steps in a row that ends the run.
        log_every: steps between two lines of metrics.
        eval_every: steps between two evaluations.
        save_every: steps between two checkpoints.
        units: the examples in words.
    """

    method: Method
    optimiser: optax.GradientTransformation
    learning_rate: schedules.Schedule
    peak_rate: float
    warmup_steps: int
    augment: Augment
    steps_per_epoch: int
    total_steps: int
    batch_size: int
    max_skipped: int
    log_every: int
    eval_every: int
    save_every: int
    units: str


def build(
    config: ConfigDict,
    num_examples: int,
    num_devices: int = 1,
    *,
    crops: Crops | None = None,
    numbers: Mapping[str, Any] | None = None,
) -> Setup:
    """Build method, optimiser, augmentation and schedules from a config.

    Args:
        config: complete.
        num_examples: size of the training set.
        num_devices: number of devices that share a batch.
        crops: crops that the host has cut already, from `make_crops`.
        numbers: values, possibly traced, that replace values of the config, by dotted key; see
            `shared_numbers`. They are not checked.

    Raises:
        UserError: on a value that a component rejects, with the message of the component.
    """
    per_device = config.batch_size // num_devices
    if per_device % config.accumulate_steps:
        raise UserError(
            f"accumulate_steps={config.accumulate_steps} must divide the {per_device} images of a "
            f"batch on each of {num_devices} devices"
        )
    steps_per_epoch = num_examples // config.batch_size
    total_steps = config.total_steps or round(config.epochs * steps_per_epoch)
    if total_steps >= LARGEST:
        raise UserError(
            f"epochs={config.epochs} are {total_steps} steps, but a run has fewer than {LARGEST}; "
            "lower epochs"
        )
    length = {"steps_per_epoch": steps_per_epoch, "total_steps": total_steps}

    def make_scheduled(group: str, skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the arguments of a config group, with schedules as functions of the step."""
        values = arguments(config[group].to_dict())
        return {k: schedules.from_spec(v, **length) for k, v in values.items() if k not in skip}

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
        skip = ("lr", "lr_scaling", "sharded", *Transfer._fields)
        optim_values = make_scheduled("optim", skip=skip)
        transfer = Transfer(**{k: config.optim[k] for k in Transfer._fields if k in config.optim})
        optimiser = optim.optimiser(config.optim.name, rate, **optim_values, transfer=transfer)
        make_objective = factory("loss", config.loss.name)
        objective = make_objective(**make_scheduled("loss") | loss_numbers)
        check_compatibility(config, objective)
        make_method = factory("method", config.method.name)
        encoder = transfer.wrap(make_networks(config))
        method = make_method(encoder, objective, **make_scheduled("method"))
        method.check_views(config.views, config.crops.number)
        method = transfer.without_gradient(method)
        augment = make_augment(config, crops)
    except (ValueError, OverflowError) as error:
        raise UserError(one_line(error, 1000)) from error
    return Setup(
        method=method,
        optimiser=optimiser,
        learning_rate=rate,
        peak_rate=peak,
        warmup_steps=warmup,
        augment=augment,
        **length,
        batch_size=config.batch_size,
        max_skipped=config.max_skipped,
        log_every=config.log_every,
        eval_every=max(1, round(config.eval.every * steps_per_epoch)),
        save_every=max(1, round(config.checkpoint.every * steps_per_epoch)),
        units=kind.of(config).units,
    )


def shared_numbers(config: ConfigDict) -> dict[str, float]:
    """Return the config's numbers that a compiled program takes as arguments, by dotted key.

    They are the learning rate, and every number of the loss for which the loss accepts a schedule.
    A number that is 0 is not among them, because a loss leaves out the operations of a term with
    weight 0.
    """
    make_objective = factory("loss", config.loss.name)
    values = {
        # The config has a schedule here.
        name: _constant(1.0) if isinstance(value, Mapping) else value
        for name, value in arguments(config.loss.to_dict()).items()
    }
    numbers = {"optim.lr": config.optim.lr}
    for name, parameter in inspect.signature(make_objective).parameters.items():
        value = values.get(name)
        if parameter.annotation == Number and isinstance(value, float) and value != 0:
            try:
                make_objective(**{**values, name: _constant(value)})
            except ValueError:  # A learned hyper-parameter's value initialises a parameter.
                continue
            numbers[f"loss.{name}"] = value
    return numbers


def _constant(value: Any) -> schedules.Schedule:
    """Return the schedule that has ``value`` at every step."""

    def constant(step: Any) -> Array:
        del step
        return jnp.asarray(value, jnp.float32)

    return constant


def initial_state(
    config: ConfigDict, setup: Setup, example: dict[str, Any], num_examples: int, mesh: Mesh
) -> TrainState:
    """Return the untrained training state of a run.

    Args:
        config: complete.
        setup: built from the config.
        example: a batch of two or more examples.
        num_examples: size of the training set.
        mesh: the devices.

    Raises:
        UserError: if the networks or the views reject the images, with their message.
    """
    return make_init(config, setup, example, num_examples, mesh)(config.seed)


def make_init(
    config: ConfigDict, setup: Setup, example: dict[str, Any], num_examples: int, mesh: Mesh
) -> Callable[[int], TrainState]:
    """Return the function ``seed -> untrained training state``, which is compiled once."""
    sharded, components = config.optim.sharded, (setup.method, setup.optimiser, setup.augment)
    try:
        return state.make_init(*components, example, num_examples, mesh, sharded=sharded)
    except (ValueError, OverflowError) as error:
        raise UserError(one_line(error, 1000)) from error


def make_networks(config: ConfigDict) -> Encoder:
    """Build backbone, projector, predictor and text network of a config."""
    if config.precision not in PRECISIONS:
        raise UserError(
            f"precision={config.precision!r} is unknown{suggest(config.precision, PRECISIONS)}"
        )
    settings = {"precision": config.precision, "num_chunks": config.accumulate_steps}
    text = None
    if has_text(config):
        text = Encoder(_make("text", config.text), _make("head", config.head), **settings)
    net, head = _make("net", config.net), _make("head", config.head)
    return Encoder(net, head, _make("predictor", config.predictor), **settings, text=text)


def _make(group: str, config: ConfigDict) -> Any:
    return factory(group, config.name)(**arguments(config))


def make_augment(config: ConfigDict, crops: Crops | None = None) -> Augment:
    """Build the function that draws the views and small crops of a batch.

    Args:
        config: complete. The second of its views may have other settings.
        crops: crops that the host has cut already, and that are not cropped again.
    """
    make_recipe = factory("augment", config.augment.name)
    whole = {"crop_scale": (1.0, 1.0)} if crops and crops.views else {}
    first, second, small = (make_recipe(**v | whole) for v in _recipe_arguments(config))
    if not config.second_view:
        second = first  # the same object, so that it is compiled once
    views = [second if view == 1 else first for view in range(config.views)]
    scale = measured_scale(config.data)
    options = {"scale": scale} if scale else {}
    return kind.of(config).views(views, [small] * config.crops.number, **options)


def make_crops(config: ConfigDict) -> Crops:
    """Return the crops of the views that the host can cut.

    Raises:
        UserError: on an invalid range of areas or aspect ratios.
    """
    first, second, small = _recipe_arguments(config)
    by_view = [second if view == 1 else first for view in range(config.views)]
    size, small_crops = config.augment.get("size", 0), [small] * config.crops.number
    return kind.of(config).find_crops(size, by_view, small_crops)


def add_statistics(config: ConfigDict, train: Source) -> ConfigDict:
    """Return a config with the statistics that its views are scaled by, see `statistics`."""
    config, size = ConfigDict(config.to_dict()), config.augment.get("size", 0)
    config.data.update(statistics.channel_statistics(config.data, train, size))
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


def _recipe_arguments(config: ConfigDict) -> list[dict[str, Any]]:
    """Return the augmentation arguments of the first view, the second view and small crops."""
    base = arguments(config.augment.to_dict())
    small = config.crops.to_dict()
    small.pop("number")
    return [base, {**base, **config.second_view.to_dict()}, {**base, **small}]

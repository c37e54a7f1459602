"""From a config to the parts of a run: network, objective, method, optimiser, augmentation."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import optax
from jax import Array
from jax import numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxssl.augment.image import random_crop_box
from jaxssl.augment.video import span
from jaxssl.data import batches
from jaxssl.data.batches import Batches
from jaxssl.data.decoding import Crop, Crops
from jaxssl.data.source import KINDS, Source
from jaxssl.errors import UserError, one_line, suggest
from jaxssl.losses.objective import Number
from jaxssl.methods.base import Method
from jaxssl.models.encoder import PRECISIONS, Encoder
from jaxssl.training import modality, optim, schedules, state
from jaxssl.training._config_types import LARGEST
from jaxssl.training.config import arguments, factory
from jaxssl.training.state import Augment, TrainState

# Losses that a method cannot train, and why.
NEED_OTHER_KEYS = ("auc_dino", "byol", "dino", "ressl", "simsiam")
NO_NEGATIVES = ("barlow_twins", "byol", "dino", "simsiam", "swav", "vicreg", "w_mse")
IGNORE_LABELS = (*NO_NEGATIVES, "ressl")
NEEDS_TWO_TOWERS = "it needs keys of another network or a predictor; set method.name=momentum"
ONE_TOWER = "its classifier sees one tower; set method.name=siamese"
NEEDS_PREDICTOR = "constant embeddings are its minimum without one; set predictor.name=mlp"
NO_LABELS = "it does not look at labels; set method.labels=False"
UNFIT = {
    "siamese": dict.fromkeys(NEED_OTHER_KEYS, NEEDS_TWO_TOWERS),
    "momentum": {"cross_entropy": ONE_TOWER},
    "two_tower": {"cross_entropy": ONE_TOWER, **dict.fromkeys(NEED_OTHER_KEYS, NEEDS_TWO_TOWERS)},
}


class Setup(NamedTuple):
    """What a config describes.

    Attributes:
        method: networks and objective put together.
        optimiser: moves the parameters.
        learning_rate: its rate as a function of the step.
        peak_rate: its rate after the warm-up.
        warmup_steps: the length of the warm-up.
        augment: `(key, images, index) -> views`.
        steps_per_epoch: batches in an epoch.
        total_steps: the length of the run.
    """

    method: Method
    optimiser: optax.GradientTransformation
    learning_rate: schedules.Schedule
    peak_rate: float
    warmup_steps: int
    augment: Augment
    steps_per_epoch: int
    total_steps: int


def build(
    config: ConfigDict,
    num_examples: int,
    num_devices: int = 1,
    *,
    crops: Crops | None = None,
    numbers: Mapping[str, Any] | None = None,
) -> Setup:
    """The parts of a run.

    Args:
        config: complete.
        num_examples: training images.
        num_devices: that share a batch.
        crops: what the host has cut already, from `make_crops`.
        numbers: values that take the place of the config's, by dotted key: some of
            `shared_numbers`, possibly traced. They are not checked.

    Raises:
        UserError: on a value that a part refuses; the message is the part's.
    """
    on_each = config.batch_size // num_devices
    if on_each % config.accumulate_steps:
        raise UserError(
            f"accumulate_steps={config.accumulate_steps} must divide the {on_each} images of a "
            f"batch on each of {num_devices} devices"
        )
    steps_per_epoch = num_examples // config.batch_size
    total_steps = config.total_steps or round(config.epochs * steps_per_epoch)
    if total_steps >= LARGEST:
        raise UserError(f"epochs={config.epochs} are {total_steps} steps, too many to count")

    def scheduled(group: ConfigDict) -> dict[str, Any]:
        """A group's arguments, with its schedules as functions of the step."""
        length = {"steps_per_epoch": steps_per_epoch, "total_steps": total_steps}
        values = arguments(group.to_dict())
        return {k: schedules.from_spec(v, **length) for k, v in values.items()}

    given = dict(numbers or {})
    try:
        lr = given.pop("optim.lr", config.optim.lr)
        peak = optim.effective_lr(lr, config.optim.lr_scaling, config.batch_size)
        warmup = round(config.schedule.warmup_epochs * steps_per_epoch)
        milestones = config.schedule.milestones
        rate = schedules.learning_rate(
            config.schedule.name,
            peak,
            warmup_steps=warmup,
            total_steps=total_steps,
            warmup_start=config.schedule.warmup_start,
            end_factor=config.schedule.end_factor,
            milestones=tuple(round(epoch * steps_per_epoch) for epoch in milestones),
            gamma=config.schedule.gamma,
        )
        values = scheduled(config.optim)
        for taken in ("lr", "lr_scaling", "sharded"):
            values.pop(taken)
        optimiser = optim.optimiser(config.optim.name, rate, **values)
        check_compatibility(config)
        of_loss = {key.removeprefix("loss."): _constant(value) for key, value in given.items()}
        objective = factory("loss", config.loss.name)(**(scheduled(config.loss) | of_loss))
        make_method = factory("method", config.method.name)
        method_values = scheduled(config.method)
        if numbers is None:
            _try(config, lambda encoder: make_method(encoder, objective, **method_values))
        method = make_method(make_networks(config), objective, **method_values)
        augment = make_augment(config, crops)
    except (ValueError, OverflowError) as error:
        raise UserError(one_line(error, 1000)) from error
    return Setup(method, optimiser, rate, peak, warmup, augment, steps_per_epoch, total_steps)


def shared_numbers(config: ConfigDict) -> dict[str, float]:
    """Numbers that a compiled program can take as arguments, by dotted key.

    They are the learning rate, and each number of the loss for which the loss accepts a schedule.
    A number that is 0 is not among them, because a loss leaves out the operations of a term with
    weight 0.
    """
    make, values = factory("loss", config.loss.name), arguments(config.loss.to_dict())
    found = {"optim.lr": config.optim.lr}
    for name, parameter in inspect.signature(make).parameters.items():
        value = values.get(name)
        if parameter.annotation == Number and isinstance(value, float) and value != 0:
            try:
                make(**{**values, name: _constant(value)})
            except ValueError:  # the number is learned: it is where the parameter begins
                continue
            found[f"loss.{name}"] = value
    return found


def _constant(value: Any) -> schedules.Schedule:
    """The schedule that has ``value`` at every step."""

    def constant(step: Array) -> Array:
        del step
        return jnp.asarray(value, jnp.float32)

    return constant


def initial_state(
    config: ConfigDict,
    parts: Setup,
    example: dict[str, Any],
    num_examples: int,
    mesh: Mesh,
) -> TrainState:
    """The untrained state of a run on ``num_examples`` images that are like those of ``example``.

    Raises:
        UserError: if networks or views refuse the images; the message is theirs.
    """
    return make_init(config, parts, example, num_examples, mesh)(config.seed)


def make_init(
    config: ConfigDict, parts: Setup, example: dict[str, Any], num_examples: int, mesh: Mesh
) -> Callable[[int], TrainState]:
    """`seed -> state`, compiled once; see `initial_state`."""
    try:
        return state.make_init(
            *(parts.method, parts.optimiser, parts.augment, example, num_examples, mesh),
            sharded=config.optim.sharded,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def make_networks(config: ConfigDict) -> Encoder:
    """The networks of a config."""
    if config.precision not in PRECISIONS:
        raise UserError(
            f"precision={config.precision!r} is unknown{suggest(config.precision, PRECISIONS)}"
        )
    how = {"precision": config.precision, "num_chunks": config.accumulate_steps}
    text = None
    if has_text(config):
        text = Encoder(make("text", config.text), make("head", config.head), **how)
    net, head = make("net", config.net), make("head", config.head)
    return Encoder(net, head, make("predictor", config.predictor), **how, text=text)


def make_augment(config: ConfigDict, crops: Crops | None = None) -> Augment:
    """The views of a config: `views` of them, of which the second may differ, and small crops."""
    recipe = factory("augment", config.augment.name)
    cut = {"crop_scale": (1.0, 1.0)} if crops and crops.views else {}
    views, small = _arguments(config)
    made = [recipe(**{**values, **cut}) for values in (views[0], views[-1], small)]
    if not config.second_view:
        made[1] = made[0]  # the same object: compiled once
    recipes = [made[view == 1] for view in range(config.views)]
    return modality.get(config).make_views(recipes, [made[2]] * config.crops.number)


def make_crops(config: ConfigDict) -> Crops:
    """The part of the views that the host can make of a picture: their random resized crops.

    Recipes that crop in another way get the middle of the picture.

    Raises:
        UserError: on a range of areas or ratios that is none.
    """
    views, small = _arguments(config)
    if modality.example_kind(config) == "video":
        spans = [span(values["frames"], values["stride"]) for values in views]
        frames = tuple(spans[view == 1] for view in range(config.views))
        return Crops((), (), config.augment.size, frames)
    of_views = tuple(_crop(views[view == 1]) for view in range(config.views))
    of_crops = (_crop(small),) * config.crops.number
    if None in of_views + of_crops:
        of_views, of_crops = (), ()
    return Crops(of_views, of_crops, config.augment.get("size", 0))


def make_batches(config: ConfigDict, train: Source, mesh: Mesh) -> Batches:
    """The batches of a run.

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
        captions=modality.example_kind(config) == "image_text",
    )


def _arguments(config: ConfigDict) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the recipe is called with for the views, first and second, and for the small crops."""
    base = arguments(config.augment.to_dict())
    small = config.crops.to_dict()
    small.pop("number")
    return [base, {**base, **config.second_view.to_dict()}], {**base, **small}


def _crop(values: Mapping[str, Any]) -> Crop | None:
    if "crop_scale" not in values or values.get("crop") == "pad":
        return None
    scale, ratio = tuple(values["crop_scale"]), tuple(values.get("crop_ratio", (3 / 4, 4 / 3)))
    try:
        u = jax.ShapeDtypeStruct((4,), jnp.float32)
        jax.eval_shape(lambda u: random_crop_box(u, (1, 1), scale, ratio), u)  # checks both
    except ValueError as error:
        raise UserError(str(error)) from error
    return Crop(values["size"], scale, ratio)


def check_compatibility(config: ConfigDict) -> None:
    """Raise UserError where the method cannot train the loss; the message says why."""
    loss, method = config.loss.name, config.method
    why = UNFIT.get(method.name, {}).get(loss)
    text, kind = has_text(config), modality.example_kind(config)
    if text != (kind == "image_text") or (text and method.name != "two_tower"):
        raise UserError(
            "captions take method.name=two_tower, text.name=text and augment.name=clip together; "
            f"got {method.name}, {config.text.name} and {config.augment.name}"
        )
    if method.get("labels") and loss in IGNORE_LABELS:
        why = NO_LABELS
    net, makes = config.net.name, modality.dataset_kind(config)
    if modality.network_kind(net) != makes:
        raise UserError(
            f"net.name={net!r} takes {KINDS.get(modality.network_kind(net), 'captions')}, but "
            f"augment.name={config.augment.name!r} makes {KINDS[makes]}; name another of the two"
        )
    if config.views == 1 and not method.get("labels") and not text:
        why = "a single view without labels has no positives; set views=2 or method.labels=True"
    if method.name == "momentum" and config.predictor.name == "none":
        if loss in ("byol", "simsiam") or (loss in NEED_OTHER_KEYS and method.momentum == 0):
            why = NEEDS_PREDICTOR
    if method.get("queue_size") and loss in NO_NEGATIVES:
        why = "it takes no negatives from a queue; set method.queue_size=0"
    if why:
        raise UserError(f"method {method.name!r} cannot train loss {loss!r}: {why}")


def has_text(config: ConfigDict) -> bool:
    """Whether there is a network for captions; runs of earlier versions have no such key."""
    return "text" in config and config.text.name != "none"


def check_labels(config: ConfigDict, num_classes: int, labelled: bool = True) -> None:
    """Raise UserError if the method needs labels that there are not."""
    if config.method.get("labels") and not labelled:
        raise UserError(
            f"method.labels=True, but the split {config.data.train_split!r} of "
            f"{config.data.name!r} has images without a label; set data.train_split, or "
            "method.labels=False"
        )
    asked = config.loss.get("num_classes", num_classes)
    if asked != num_classes:
        raise UserError(
            f"loss.num_classes={asked}, but {config.data.name!r} has {num_classes} classes; "
            f"set --config.loss.num_classes={num_classes}"
        )


class _Constant(nn.Module):
    """A network that maps everything to zeros [n, dim]."""

    dim: int

    def __call__(self, x: Array, *, train: bool, axis_name: Any = None, keys: Any = None) -> Array:
        return jnp.zeros((x.shape[0], self.dim))


def _try(config: ConfigDict, make_method: Any) -> None:
    """Trace method and loss on stand-ins: they refuse bad settings only when they are called."""
    predictor = _Constant(config.head.proj_output_dim) if config.predictor.name != "none" else None
    encoder = Encoder(_Constant(1), _Constant(config.head.proj_output_dim or 1), predictor)
    if has_text(config):
        encoder = encoder._replace(text=encoder)

    def loss(key: Array) -> Array:
        method = make_method(encoder)
        sizes = {"views": config.views, "crops": config.crops.number}
        batch = {name: jnp.zeros((v, 2, 1, 1, 1)) for name, v in sizes.items() if v}
        batch["texts"] = jnp.zeros((1, 2, 1), jnp.int32)
        batch |= {"index": jnp.arange(2, dtype=jnp.int32), "label": jnp.zeros(2, jnp.int32)}
        params, carried = method.init(key, batch, 2)
        return method.loss(params, carried, batch, step=jnp.int32(0), key=key, axis_name=None)[0]

    jax.eval_shape(loss, jax.random.key(0))


def make(group: str, config: Mapping[str, Any]) -> Any:
    """The component that a group of the config describes."""
    return factory(group, config["name"])(**arguments(config))

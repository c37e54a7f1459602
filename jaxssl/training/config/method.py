"""Build a config's training scheme, networks and loss, and check that they fit the views."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.augment.views import Augment, measured_scale
from jaxssl.data import kind
from jaxssl.data.decoders.decoding import Crops
from jaxssl.errors import UserError
from jaxssl.losses.objective import Objective
from jaxssl.methods.base import Method
from jaxssl.models.adapters import NnxNetwork
from jaxssl.models.encoder import Encoder
from jaxssl.models.transfer import Transfer
from jaxssl.training.config.groups import arguments, factory
from jaxssl.training.config.schedules import from_spec
from jaxssl.training.config.values import LARGEST, schedule_numbers

NEEDS_MOMENTUM = "it needs keys of another network or a predictor; set method.name=momentum"


class Length(NamedTuple):
    """Length of a run in steps and epochs.

    Attributes:
        steps_per_epoch: number of batches in an epoch.
        total_steps: number of steps of the run.
    """

    steps_per_epoch: int
    total_steps: int


def run_length(config: ConfigDict, num_examples: int) -> Length:
    """Return the length of a run that trains on ``num_examples`` examples.

    Raises:
        UserError: if the run has no step or too many.
    """
    steps_per_epoch = num_examples // config.batch_size
    total_steps = config.total_steps or round(config.epochs * steps_per_epoch)
    if steps_per_epoch and not total_steps:
        raise UserError(
            f"epochs={config.epochs} of {steps_per_epoch} steps are less than a step; raise epochs"
        )
    if total_steps >= LARGEST:
        raise UserError(
            f"epochs={config.epochs} are {total_steps:g} steps, but a run has fewer than "
            f"{LARGEST}; lower epochs"
        )
    return Length(steps_per_epoch, total_steps)


def scheduled_arguments(group: ConfigDict, length: Length) -> dict[str, Any]:
    """Return the arguments of a config group, with schedules as functions of the step."""
    values = arguments(group.to_dict())
    return {name: from_spec(value, **length._asdict()) for name, value in values.items()}


def make_method(
    config: ConfigDict,
    length: Length,
    loss_numbers: Mapping[str, object] | None = None,
    *,
    trained: bool = True,
) -> Method:
    """Build the training scheme of a config, with networks and loss.

    Args:
        config: complete.
        length: of the run, for its schedules.
        loss_numbers: arguments of the loss that replace the config's.
        trained: False for an encoder that is only read, whose loss this version may not train.

    Raises:
        UserError: if the components do not fit each other.
        ValueError: on a value that a component rejects.
    """
    values = scheduled_arguments(config.loss, length) | dict(loss_numbers or {})
    make_objective = factory("loss", config.loss.name)
    for name, spec in config.loss.items():
        for number in schedule_numbers(spec):
            make_objective(**{**values, name: number})  # raises an error if it is out of range
    objective = make_objective(**values)
    check_compatibility(config, objective if trained else None)
    make, transfer = factory("method", config.method.name), make_transfer(config.optim)
    encoder = transfer.wrap(make_networks(config))
    values = scheduled_arguments(config.method, length)
    for name, spec in config.method.items():
        for number in schedule_numbers(spec):
            make(encoder, objective, **{name: number})
    method = make(encoder, objective, **values)
    method.check_views(config.views, config.crops.number)
    return method._replace(loss=transfer.without_gradient(method.loss))


def make_transfer(settings: ConfigDict) -> Transfer:
    """Return which modules are trained, and at which learning rates, as the group `optim` says."""
    return Transfer(**{key: settings[key] for key in Transfer._fields})


def make_networks(config: ConfigDict) -> Encoder:
    """Build backbone, projector, predictor and text network of a config.

    Raises:
        UserError: if a network of NNX has to average BatchNorm over groups of devices.
    """

    def make(group: str) -> Any:
        return factory(group, config[group].name)(**arguments(config[group]))

    precision, chunks, group = config.precision, config.accumulate_steps, config.batch_norm_group
    settings = {"precision": precision, "num_chunks": chunks, "norm_group": group}
    text = None
    if config.text.name != "none":
        text = Encoder(make("text"), make("head"), **settings)
    encoder = Encoder(make("net"), make("head"), make("predictor"), **settings, text=text)
    if group and any(isinstance(module, NnxNetwork) for module in encoder.modules().values()):
        raise UserError("batch_norm_group: networks of NNX average over all devices; leave it at 0")
    return encoder


def make_augment(config: ConfigDict, crops: Crops | None = None) -> Augment:
    """Build the function that draws the views and small crops of a batch.

    Args:
        config: complete. The second of its views may have other settings.
        crops: crops that the host has cut already, and that are not cropped again.
    """
    make_recipe = factory("augment", config.augment.name)
    whole = {"crop_scale": (1.0, 1.0)} if crops and crops.views else {}
    first, second, small = (make_recipe(**v | whole) for v in recipe_arguments(config))
    if not config.second_view:
        second = first  # the same object, so that it is compiled once
    views = [second if view == 1 else first for view in range(config.views)]
    examples, options = kind.of(config), {}
    if scale := measured_scale(config.data):
        options["scale"] = scale
    if config.crops.number:
        if not examples.small_crops:
            raise UserError(f"{examples.units} have no small crops; set crops.number=0")
        options["crops"] = [small] * config.crops.number
    return examples.views(views, **options)


def make_crops(config: ConfigDict) -> Crops:
    """Return the crops of the views that the host can cut.

    Raises:
        UserError: on an invalid range of areas or aspect ratios.
    """
    first, second, small = recipe_arguments(config)
    by_view = [second if view == 1 else first for view in range(config.views)]
    size, small_crops = config.augment.get("size", 0), [small] * config.crops.number
    return kind.of(config).find_crops(size, by_view, small_crops)


def recipe_arguments(config: ConfigDict) -> list[dict[str, object]]:
    """Return the augmentation arguments of the first view, the second view and small crops."""
    base = arguments(config.augment.to_dict())
    small = config.crops.to_dict()
    small.pop("number")
    return [base, {**base, **config.second_view.to_dict()}, {**base, **small}]


def check_compatibility(config: ConfigDict, objective: Objective | None) -> None:
    """Check that the training scheme can train the loss, if given, and the network takes the views.

    Raises:
        UserError: if not. The message says what to change.
    """
    method, net, text = config.method.name, config.net.name, config.text.name != "none"
    if text != kind.of(config).captions or (text and method != "two_tower"):
        raise UserError(
            "captions take method.name=two_tower, text.name=text and augment.name=clip together; "
            f"got {method}, {config.text.name} and {config.augment.name}"
        )
    views_kind, net_kind = kind.of(config).data, kind.of_network(net)
    if net_kind != views_kind:
        raise UserError(
            f"net.name={net!r} takes {kind.units(net_kind)}, but "
            f"augment.name={config.augment.name!r} makes {kind.units(views_kind)}; choose another "
            "network or augmentation"
        )
    if objective and (reason := _find_misfit(config, objective)):
        raise UserError(
            f"method.name={method!r} cannot train loss.name={config.loss.name!r}: {reason}"
        )


def _find_misfit(config: ConfigDict, objective: Objective) -> str | None:
    """Return why the training scheme cannot train the loss, or None if it can."""
    method, labels = config.method.name, config.method.get("labels", False)
    if components.is_custom(method):
        return None  # The pairs of a user's training scheme are unknown here.
    if method != "momentum" and objective.needs_other_keys:
        return NEEDS_MOMENTUM
    if method == "siamese" and objective.needs_two_towers:
        return NEEDS_MOMENTUM
    if method != "siamese" and objective.one_tower_only:
        return "its classifier sees one tower; set method.name=siamese"
    if method == "two_tower" and objective.both_directions and config.method.symmetric:
        return "it has both directions itself; set method.symmetric=False"
    if labels and not objective.takes_labels:
        return "it does not use labels; set method.labels=False"
    if not labels and objective.needs_labels:
        return "it needs labels; set method.labels=True"
    is_single = config.views == 1 and not kind.of(config).captions
    if is_single and not labels:
        return "a single view without labels has no positives; set views=2 or method.labels=True"
    if is_single and objective.needs_two_views:
        return "it needs a second view of every example; set views=2"
    if method == "momentum" and config.predictor.name == "none":
        # With a momentum of 0, the target network equals the trained one.
        has_equal_networks = objective.needs_other_keys and config.method.momentum == 0
        if objective.needs_predictor or has_equal_networks:
            return "without a predictor it collapses to constant embeddings; set predictor.name=mlp"
    if config.method.get("queue_size", 0):
        if not objective.takes_queue:
            return "it does not use a queue; set method.queue_size=0"
        if method == "momentum" and not objective.takes_queue_alone:
            return "it needs the negatives of the batch; set method.queue_size=0"
    return None


def check_labels(config: ConfigDict, num_classes: int, labelled: bool = True) -> None:
    """Check that the data set has the class labels that the training scheme and the loss need.

    Args:
        config: complete.
        num_classes: number of classes of the data set.
        labelled: False if some examples of the training split have no label.

    Raises:
        UserError: if labels are missing, or if ``loss.num_classes`` differs.
    """
    if config.method.get("labels") and not labelled:
        raise UserError(
            f"method.labels=True, but the split {config.data.train_split!r} of "
            f"{config.data.name!r} has {kind.of(config).units} without a label; set "
            "data.train_split, or method.labels=False"
        )
    expected = config.loss.get("num_classes", num_classes)
    if expected != num_classes:
        raise UserError(
            f"loss.num_classes={expected}, but {config.data.name!r} has {num_classes} classes; "
            f"set --config.loss.num_classes={num_classes}"
        )

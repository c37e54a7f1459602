"""Check that the components of a config fit each other and the data set."""

from ml_collections import ConfigDict

from jaxssl import components
from jaxssl.data import kind
from jaxssl.data.splits import Splits
from jaxssl.errors import UserError
from jaxssl.losses.objective import Objective

OTHER_KEYS = "it needs keys of another network or a predictor; set method.name=momentum"


def check_compatibility(config: ConfigDict, objective: Objective) -> None:
    """Check that the method can train the loss, and that the network takes the views.

    Raises:
        UserError: if not; the message says what to change.
    """
    method, net, text = config.method.name, config.net.name, has_text(config)
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
    if reason := _find_misfit(config, objective):
        raise UserError(f"method {method!r} cannot train loss {config.loss.name!r}: {reason}")


def _find_misfit(config: ConfigDict, objective: Objective) -> str | None:
    """Return why the method cannot train the loss, or None if it can."""
    method, labels = config.method.name, config.method.get("labels", False)
    if components.is_custom(method):
        return None  # Only its author knows which pairs it makes.
    if method != "momentum" and objective.needs_other_keys:
        return OTHER_KEYS
    if method == "siamese" and objective.needs_two_towers:
        return OTHER_KEYS
    if method != "siamese" and objective.one_tower_only:
        return "its classifier sees one tower; set method.name=siamese"
    if labels and not objective.takes_labels:
        return "it does not use labels; set method.labels=False"
    if not labels and objective.needs_labels:
        return "it needs labels; set method.labels=True"
    if config.views == 1 and not labels and not kind.of(config).captions:
        return "a single view without labels has no positives; set views=2 or method.labels=True"
    if config.views == 1 and objective.needs_two_views:
        return "it needs a second view of every example; set views=2"
    if method == "momentum" and config.predictor.name == "none":
        is_own_target = objective.needs_other_keys and config.method.momentum == 0
        if objective.needs_predictor or is_own_target:
            return "without a predictor it collapses to constant embeddings; set predictor.name=mlp"
    if config.method.get("queue_size", 0) and not objective.takes_queue:
        return "it does not use a queue; set method.queue_size=0"
    return None


def check_labels(config: ConfigDict, num_classes: int, labelled: bool = True) -> None:
    """Check that the data set has the class labels that the method and the loss need.

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
            f"{config.data.name!r} has images without a label; set data.train_split, or "
            "method.labels=False"
        )
    expected = config.loss.get("num_classes", num_classes)
    if expected != num_classes:
        raise UserError(
            f"loss.num_classes={expected}, but {config.data.name!r} has {num_classes} classes; "
            f"set --config.loss.num_classes={num_classes}"
        )


def has_online_probe(config: ConfigDict, splits: Splits) -> bool:
    """Return True if a run trains an online linear probe, which needs labels in all its splits."""
    return config.eval.get("online_linear", False) and splits.train.labelled and splits.labelled


def has_text(config: ConfigDict) -> bool:
    """Return True if a config has a network for captions. Old configs lack the key "text"."""
    return "text" in config and config.text.name != "none"

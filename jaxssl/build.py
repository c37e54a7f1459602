"""From a config to the parts of a run: network, objective, method, optimiser, augmentation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import Array
from jax import numpy as jnp
from ml_collections import ConfigDict

from jaxssl import optim, schedules
from jaxssl.augment.views import make_views
from jaxssl.config import component, hyper
from jaxssl.errors import UserError
from jaxssl.method import Method
from jaxssl.nets.heads import Projector
from jaxssl.objective import Objective
from jaxssl.pairs import pair_views
from jaxssl.state import Augment


class Parts(NamedTuple):
    """What a config describes.

    Attributes:
        method: network, projector and objective put together.
        optimiser: moves the parameters.
        learning_rate: its rate as a function of the step.
        augment: `(key, images, index) -> views`.
        steps_per_epoch: batches in an epoch.
        total_steps: the length of the run.
    """

    method: Method
    optimiser: optax.GradientTransformation
    learning_rate: schedules.Schedule
    augment: Augment
    steps_per_epoch: int
    total_steps: int


def build(config: ConfigDict, num_examples: int) -> Parts:
    """The parts of a run on ``num_examples`` training images.

    Raises:
        UserError: on a value that a part refuses; the message is the part's.
    """
    steps_per_epoch = num_examples // config.batch_size
    total_steps = config.total_steps or round(config.epochs * steps_per_epoch)
    try:
        peak = optim.effective_lr(config.optim.lr, config.optim.lr_scaling, config.batch_size)
        rate = schedules.learning_rate(
            config.schedule.name,
            peak,
            warmup_steps=round(config.schedule.warmup_epochs * steps_per_epoch),
            total_steps=total_steps,
            end_factor=config.schedule.end_factor,
        )
        optimiser = optim.optimiser(
            config.optim.name,
            rate,
            weight_decay=config.optim.weight_decay,
            momentum=config.optim.momentum,
            clip_norm=config.optim.clip_norm,
        )
        values = {
            name: schedules.from_spec(
                value, steps_per_epoch=steps_per_epoch, total_steps=total_steps
            )
            for name, value in hyper(config.loss).items()
        }
        net = make("net", config.net)
        projector = Projector(
            config.head.proj_hidden_dim, config.head.proj_output_dim, config.head.proj_layers
        )
        objective = component("loss", config.loss.name)(**values)
        _try(objective, config.views, config.head.proj_output_dim)
        method = component("method", config.method.name)(
            net, projector, objective, **hyper(config.method)
        )
        augment = make_views(make("augment", config.augment), config.views)
    except ValueError as error:
        raise UserError(str(error)) from error
    return Parts(method, optimiser, rate, augment, steps_per_epoch, total_steps)


def _try(objective: Objective, num_views: int, dim: int) -> None:
    """Trace the loss on zeros: it refuses bad hyper-parameters only when it is called."""

    def loss(key: Array) -> Array:
        params, memory = objective.init(key, 2, dim)
        pairs = pair_views(jnp.zeros((num_views, 2, dim)))
        return objective.loss(pairs, params, memory, step=jnp.int32(0), key=key)[0]

    jax.eval_shape(loss, jax.random.key(0))


def make(group: str, config: Mapping[str, Any]) -> Any:
    """The component that a group of the config describes."""
    return component(group, config["name"])(**hyper(config))

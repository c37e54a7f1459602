"""SimCLR's pipeline: one network sees all views, all of them meet in one loss."""

from typing import Any

import flax.linen as nn
import jax
from jax import Array

from jaxssl.method import Batch, Carried, Method
from jaxssl.objective import Objective
from jaxssl.pairs import pair_views


def method(net: nn.Module, projector: nn.Module, objective: Objective) -> Method:
    """The siamese method for V >= 1 views.

    All views go through the network together, so BatchNorm sees the statistics of all views of
    the global batch.

    Args:
        net: the backbone, ``(images, *, train, axis_name) -> [n, f]``.
        projector: ``(features, *, train, axis_name) -> [n, d]``.
        objective: the loss and what it learns.
    """

    def init(key: Array, batch: Batch, num_examples: int) -> tuple[Any, Carried]:
        net_key, projector_key, objective_key = jax.random.split(key, 3)
        images = batch["views"][0]
        net_vars = dict(net.init(net_key, images, train=False))
        features = net.apply(net_vars, images, train=False)
        projector_vars = dict(projector.init(projector_key, features, train=False))
        dim = projector.apply(projector_vars, features, train=False).shape[1]
        learned, memory = objective.init(objective_key, num_examples, dim)
        params = {
            "net": net_vars["params"],
            "projector": projector_vars["params"],
            "objective": learned,
        }
        stats = {
            "net": net_vars.get("batch_stats", {}),
            "projector": projector_vars.get("batch_stats", {}),
        }
        return params, Carried(stats, (), memory)

    def loss(params, carried, batch, *, step, key, axis_name):
        views = batch["views"]
        num_views, b = views.shape[:2]
        h = views.reshape(-1, *views.shape[2:])
        stats = {}
        for name, module in (("net", net), ("projector", projector)):
            h, updated = module.apply(
                {"params": params[name], "batch_stats": carried.batch_stats[name]},
                h,
                train=True,
                axis_name=axis_name,
                mutable=["batch_stats"],
            )
            stats[name] = updated.get("batch_stats", {})
        z = h.reshape(num_views, b, -1)
        pairs = pair_views(z, batch["index"], axis_name=axis_name)
        value, memory, metrics = objective.loss(
            pairs, params["objective"], carried.memory, step=step, key=key
        )
        return value, (Carried(stats, (), memory), metrics, z)

    def after(params: Any, carried: Carried, step: Array) -> Carried:
        del params, step
        return carried

    def features(params: Any, batch_stats: Any, images: Array) -> Array:
        variables = {"params": params["net"], "batch_stats": batch_stats["net"]}
        return net.apply(variables, images, train=False)

    return Method(init, loss, after, features)

"""SimCLR's pipeline: one network sees all views, all of them meet in one loss."""

from typing import Any

import jax
from jax import Array

from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, pair_views
from jaxssl.methods.base import Batch, Carried, Method, count_views, image_groups, weighted_loss
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder


def method(encoder: Encoder, objective: Objective, *, labels: bool = False) -> Method:
    """The siamese method for V >= 1 views.

    With multi-crop every small crop is a query to each of the views, which are the only keys; the
    loss is the mean over all pairs of query and key view, as in SwAV.

    Args:
        encoder: backbone and projector.
        objective: the loss and what it learns.
        labels: whether all views of a class are positives (SupCon, TCL, cross-entropy).

    Raises:
        ValueError: if there is a predictor, for which there is no use here.
    """
    if encoder.predictor is not None:
        raise ValueError('method "siamese" has no use for a predictor; set predictor.name=none')

    def init(key: Array, batch: Batch, num_examples: int) -> tuple[Any, Carried]:
        net_key, objective_key = jax.random.split(key)
        params, stats, dim = networks.init(encoder, net_key, image_groups(batch))
        params["objective"], memory = objective.init(objective_key, num_examples, dim)
        return params, Carried(stats, (), memory)

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        groups, index = image_groups(batch), batch["index"]
        z, _, stats = networks.embed(
            encoder, params, carried.batch_stats, groups, index, key=net_key, axis_name=axis_name
        )
        ids = index, batch["label"] if labels else None
        num_views = count_views(groups[0])
        views, crops = z[:num_views], z[num_views:]
        of_views = max(num_views * (num_views - 1), 1)  # pairs; those of a labelled view count one
        total = of_views + num_views * len(crops)
        pairs = pair_views(views, *ids, axis_name=axis_name)
        # Gathered once for all crops, so that their gradient is sent once too.
        everyone = pairs.candidate.reshape(num_views, -1, z.shape[2])
        terms = [(of_views / total, pairs)]
        terms += [
            (1 / total, pair_towers(crop, view, *ids, gathered=keys, axis_name=axis_name))
            for crop in crops
            for view, keys in zip(views, everyone, strict=True)
        ]
        value, memory, metrics = weighted_loss(
            objective, terms, params["objective"], carried.memory, step=step, key=objective_key
        )
        return value, (Carried(stats, (), memory), metrics, views)

    def after(params: Any, carried: Carried, step: Array) -> Carried:
        del params, step
        return carried

    def features(params: Any, carried: Carried, images: Any) -> Array:
        return networks.features(encoder, params["net"], carried.batch_stats["net"], images)

    split = Carried(False, False, objective.per_example)
    return Method(init, loss, after, features, split)

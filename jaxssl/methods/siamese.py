"""The siamese method of SimCLR: one network embeds all views and one loss contrasts them."""

from functools import partial

import jax

from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, pair_views
from jaxssl.methods import base
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder


def method(encoder: Encoder, objective: Objective, *, labels: bool = False) -> base.Method:
    """Build the siamese method (SimCLR, SupCon, Barlow Twins) for one or more views.

    With multi-crop every small crop is a query to each of the V views, which are the only keys.
    The loss is the mean over all pairs of a query view and a key view, as in SwAV.

    Args:
        encoder: backbone and projector.
        objective: the loss and its trained parameters.
        labels: True makes all views of a class positives (SupCon, TCL, cross-entropy).

    Raises:
        ValueError: if the encoder has a predictor, which this method does not use.
    """
    if encoder.predictor is not None:
        raise ValueError('method "siamese" does not use a predictor; set predictor.name=none')

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        groups, index = base.image_groups(batch), batch["index"]
        label = batch["label"] if labels else None
        z, _, stats = networks.embed(
            encoder, params, carried.batch_stats, groups, index, key=net_key, axis_name=axis_name
        )
        num_views = base.count_views(groups[0])
        views, crops = z[:num_views], z[num_views:]
        pairs = pair_views(views, index, label, axis_name=axis_name)
        # A single view has no pair of views. With class labels it counts as one pair.
        view_pairs = max(num_views * (num_views - 1), 1)
        total = view_pairs + num_views * len(crops)
        terms = [(view_pairs / total, pairs)]
        # All multi-crop terms reuse the gathered views, so that their gradient is sent only once.
        gathered = pairs.candidate.reshape(num_views, -1, z.shape[2])
        for crop in crops:
            for view, keys in zip(views, gathered, strict=True):
                crop_pairs = pair_towers(
                    crop, view, index, label, gathered=keys, axis_name=axis_name
                )
                terms.append((1 / total, crop_pairs))
        value, memory, metrics = base.weighted_loss(
            objective, terms, params["objective"], carried.memory, step=step, key=objective_key
        )
        return value, (base.Carried(stats, (), memory), metrics, views)

    per_example = base.Carried(False, False, objective.per_example)
    init = partial(base.init_siamese, encoder, objective)
    return base.Method(encoder, init, loss, per_example=per_example)

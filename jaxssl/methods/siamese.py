"""The siamese training scheme of SimCLR: one network embeds all views and one loss contrasts them.

With a queue of past embeddings as further negatives it is cross-batch memory (XBM).
"""

from functools import partial

import jax

from jaxssl.losses.memory import enqueue
from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, pair_views
from jaxssl.methods import base
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder


def method(
    encoder: Encoder, objective: Objective, *, queue_size: int = 0, labels: bool = False
) -> base.Method:
    """Build the siamese scheme (SimCLR, SupCon, Barlow Twins) for one or more views.

    With multi-crop every small crop is a query to each of the V views, which are the only keys.
    The loss is the mean over all ordered pairs of two views, and of a crop and a view, as in SwAV.

    Args:
        encoder: backbone and projector.
        objective: the loss and its trained parameters.
        queue_size: number of past embeddings that are further negatives (XBM). They start as random
            unit vectors and have no gradient. A network that trains from scratch fails with those
            of many steps.
        labels: True makes all views of a class positives (SupCon, TCL, cross-entropy).

    Raises:
        ValueError: if the encoder has a predictor, which this scheme does not use, or if a queue is
            used with labels, because its embeddings have none.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020;
        Wang et al., Cross-Batch Memory for Embedding Learning, 2020, algorithm 1.
    """
    base.check_queue(queue_size, labels)
    if encoder.predictor is not None:
        raise ValueError('method.name="siamese" does not use a predictor; set predictor.name=none')

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        groups, index = base.image_groups(batch), batch["index"]
        label = batch["label"] if labels else None
        z, _, stats = networks.embed(
            encoder, params, carried.batch_stats, groups, index, key=net_key, axis_name=axis_name
        )
        num_views = base.count_views(groups[0])
        views, crops = z[:num_views], z[num_views:]
        queue = carried.memory["queue"] if queue_size else None
        past = queue["rows"] if queue else None
        pairs = pair_views(views, index, label, queue=past, axis_name=axis_name)
        # A single view has no pair of views. With class labels it counts as one pair, because its
        # positives are other images of the class.
        view_pairs = max(num_views * (num_views - 1), 1)
        num_pairs = view_pairs + num_views * len(crops)
        terms = [(view_pairs / num_pairs, pairs)]
        # All multi-crop terms reuse the gathered views, so that their gradient is sent only once.
        in_batch = len(pairs.candidate) - queue_size
        gathered = pairs.candidate[:in_batch].reshape(num_views, -1, z.shape[2])
        pair = partial(pair_towers, index=index, labels=label, queue=past, axis_name=axis_name)
        for crop in crops:
            for view, keys in zip(views, gathered, strict=True):
                terms.append((1 / num_pairs, pair(crop, view, gathered=keys)))
        memory = carried.memory["objective"] if queue else carried.memory
        value, memory, metrics = base.weighted_loss(
            objective, terms, params["objective"], memory, step=step, key=objective_key
        )
        if queue:
            memory = {"objective": memory, "queue": enqueue(queue, views, axis_name)}
        return value, (base.Carried(stats, (), memory), metrics, views)

    sharded = objective.per_example
    memory = {"objective": sharded, "queue": False} if queue_size else sharded
    per_example = base.Carried(False, False, memory)
    init = partial(base.init_trained, encoder, objective, queue_size=queue_size)
    constrain = partial(base.constrain_objective, objective)
    return base.Method(encoder, init, loss, constrain, per_example=per_example)

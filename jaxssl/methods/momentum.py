"""The momentum scheme of MoCo and BYOL: queries contrast with keys that have no gradient.

MoCo, BYOL, SimSiam, DINO, NNCLR and ReSSL are this scheme with different settings and losses.
"""

from functools import partial

import jax
from flax.typing import Collection
from jax import lax
from jax import numpy as jnp

from jaxssl.losses.memory import enqueue
from jaxssl.losses.objective import Number, Objective, at_step, check
from jaxssl.losses.pairs import pair_towers
from jaxssl.methods import base
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder

# A value with the key "schedule" is a schedule, see `jaxssl.training.config.schedules`.
BYOL_MOMENTUM = {"schedule": "cosine", "start": 0.996, "end": 1.0}
PRESETS = {
    "moco_v3": {"momentum": {"schedule": "cosine", "start": 0.99, "end": 1.0}},
    "moco_v2": {"momentum": 0.999, "symmetric": False, "queue_size": 65536},
    "byol": {"momentum": BYOL_MOMENTUM},
    "simsiam": {"momentum": 0.0, "average": True},
    "nnclr": {"momentum": 0.0, "average": True},
    "ressl": {"momentum": 0.999, "symmetric": False, "queue_size": 16384},
    "dino": {"momentum": BYOL_MOMENTUM, "average": True, "evaluate": "target"},
}


def method(
    encoder: Encoder,
    objective: Objective,
    *,
    momentum: Number = 0.99,
    symmetric: bool = True,
    average: bool = False,
    queue_size: int = 0,
    evaluate: str = "online",
    labels: bool = False,
) -> base.Method:
    """Build the momentum scheme (MoCo, BYOL, DINO) for two or more views.

    Queries are predictions of the trained network, or its embeddings if it has no predictor. Keys
    are embeddings of the momentum (EMA) network, theta_k = m theta_k + (1 - m) theta. Every query
    is compared with the keys of all other views. With multi-crop the small crops are queries only.

    Args:
        encoder: backbone, projector and optionally a predictor. The momentum network has no
            predictor.
        objective: the loss and its trained parameters.
        momentum: m, in [0, 1]. With 0 there is no momentum network: keys are embeddings of the
            trained network without gradient, as in SimSiam and NNCLR.
        symmetric: True uses every view as query and as key. False needs two views, the first as
            query and the second as key (MoCo-v2, ReSSL).
        average: True averages over all pairs of query and key view (SimSiam, DINO). False averages
            over the queries of a key view and sums over key views (MoCo-v3, BYOL).
        queue_size: number of earlier keys that are the negatives; 0 uses the keys of the batch.
        evaluate: the backbone that is evaluated, "online" (trained) or "target" (momentum).
        labels: True makes all keys of a class positives.

    Raises:
        ValueError: for a value out of its range, for "target" with a momentum of 0, or for a queue
            with labels, because its keys have none.

    References:
        He et al., Momentum Contrast for Unsupervised Visual Representation Learning, 2020,
        algorithm 1; Chen et al., An Empirical Study of Training Self-Supervised Vision
        Transformers, 2021, algorithm 1; Grill et al., Bootstrap Your Own Latent, 2020, eq. 1-2.
    """
    check({"momentum": "in [0, 1]"}, momentum=momentum)
    base.check_queue(queue_size, labels)
    has_target = callable(momentum) or bool(momentum > 0)
    if evaluate not in ("online", "target") or (evaluate == "target" and not has_target):
        raise ValueError(
            'method.evaluate must be "online", or "target" with momentum > 0, '
            f"got {evaluate!r} with momentum={momentum}"
        )

    def init(key, batch, num_examples):
        params, carried = base.init_trained(
            encoder, objective, key, batch, num_examples, queue_size
        )
        if not queue_size:
            carried = carried._replace(memory={"objective": carried.memory, "queue": ()})
        if not has_target:
            return params, carried
        variables = {"params": _select(params), "batch_stats": _select(carried.batch_stats)}
        # Copies are needed because the training step donates the buffers of params.
        return params, carried._replace(target=jax.tree.map(jnp.copy, variables))

    def check_views(num_views, num_crops):
        if num_views < 2 or (num_views > 2 and not symmetric):
            raise ValueError(
                'method.name="momentum" needs views=2, or more with symmetric=True, '
                f"got views={num_views}"
            )

    def embed(params, carried, batch, key, axis_name):
        """Embed the views with the trained network (queries) and the momentum network (keys).

        Returns:
            Embeddings of the trained network [V, b, d], crops after views; its predictions (the
            queries) of the same shape; keys [K, b, d]; and the carried state with new BatchNorm
            statistics of both networks.
        """
        views, *crops = base.image_groups(batch)
        num_views = base.count_views(views)
        check_views(num_views, len(crops))
        query_views = key_views = views
        if not symmetric:
            key_views = jax.tree.map(lambda x: x[1:], views)
            if has_target:
                query_views = jax.tree.map(lambda x: x[:1], views)
        apply = partial(networks.embed, encoder, index=batch["index"], axis_name=axis_name)
        z, queries, stats = apply(params, carried.batch_stats, [query_views, *crops], key=key)
        carried = carried._replace(batch_stats=stats)
        if has_target:
            target = carried.target
            # The momentum network gets no random key, which switches its stochastic depth off.
            keys, _, stats = apply(target["params"], target["batch_stats"], [key_views], key=None)
            carried = carried._replace(target={**target, "batch_stats": stats})
        else:
            keys = z[:num_views] if symmetric else z[1:2]
        return z, queries, lax.stop_gradient(keys), carried

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        z, queries, keys, carried = embed(params, carried, batch, net_key, axis_name)
        queue = carried.memory["queue"]
        pair = partial(
            pair_towers,
            index=batch["index"],
            labels=batch["label"] if labels else None,
            queue=queue["rows"] if queue_size else None,
            batch_negatives=not queue_size,
            axis_name=axis_name,
        )
        if symmetric:
            pairings = [(q, k) for k in range(len(keys)) for q in range(len(queries)) if q != k]
        else:  # Without a momentum network, view 1 gives the key, so its query has no pair.
            pairings = [(q, 0) for q in range(len(queries)) if has_target or q != 1]
        weight = (1 if average else len(keys)) / len(pairings)
        terms = [(weight, pair(queries[q], keys[k])) for q, k in pairings]
        memory = carried.memory["objective"]
        value, memory, metrics = base.weighted_loss(
            objective, terms, params["objective"], memory, step=step, key=objective_key
        )
        queue = enqueue(queue, keys, axis_name) if queue_size else ()
        carried = carried._replace(memory={"objective": memory, "queue": queue})
        if has_target and not symmetric:  # The trained network embeds the first view only.
            view_embeddings = jnp.concatenate([z[:1], keys])
        else:
            view_embeddings = z[: base.count_views(batch["views"])]
        return value, (carried, metrics, view_embeddings)

    def update_target(params, carried, step):
        m, target = at_step({"momentum": momentum}, step)["momentum"], carried.target

        def ema(k, q):  # in the dtype of k, also if a schedule returns float64
            return jnp.asarray(m * k + (1 - m) * q, k.dtype)

        means = jax.tree.map(ema, target["params"], _select(params))
        return carried._replace(target={**target, "params": means})

    def target_backbone(params, carried):
        return carried.target["params"]["net"], carried.target["batch_stats"]["net"]

    per_example = base.Carried(False, False, {"objective": objective.per_example, "queue": False})
    constrain = partial(base.constrain_objective, objective)
    scheme = base.Method(
        encoder, init, loss, constrain, check_views=check_views, per_example=per_example
    )
    if has_target:
        scheme = scheme._replace(after=update_target)
    return scheme._replace(backbone=target_backbone) if evaluate == "target" else scheme


def _select(tree: Collection) -> Collection:
    """Select the entries of the sub-networks that the momentum network also has."""
    return {name: tree[name] for name in ("net", "projector")}

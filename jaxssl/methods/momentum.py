"""Two towers: queries of the trained network against keys without gradient.

MoCo, BYOL, SimSiam, DINO, NNCLR and ReSSL are this method with other settings and losses.
"""

from typing import Any

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.memory import empty_queue, enqueue
from jaxssl.losses.objective import Number, Objective, at_step, require_not_negative, require_share
from jaxssl.losses.pairs import Pairs, pair_towers
from jaxssl.methods.base import Batch, Carried, Method, count_views, image_groups, weighted_loss
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder

# "schedule": see jaxssl.training.schedules.
PRESETS = {
    "moco_v3": {"momentum": {"schedule": "cosine", "start": 0.99, "end": 1.0}},
    "moco_v2": {"momentum": 0.999, "symmetric": False, "queue_size": 65536},
    "byol": {"momentum": {"schedule": "cosine", "start": 0.996, "end": 1.0}},
    "simsiam": {"momentum": 0.0, "average": True},
    "nnclr": {"momentum": 0.0, "average": True},
    "ressl": {"momentum": 0.999, "symmetric": False, "queue_size": 16384},
    "dino": {
        "momentum": {"schedule": "cosine", "start": 0.996, "end": 1.0},
        "average": True,
        "evaluate": "target",
    },
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
) -> Method:
    """The momentum method for two or more views.

    Queries are the predictions (or, without a predictor, the embeddings) of the trained network;
    keys are the embeddings of its momentum copy, theta_k = m theta_k + (1 - m) theta. Every query
    meets the keys of each view that is not its own. With multi-crop small crops are queries only.

    Args:
        encoder: backbone, projector and perhaps a predictor, which the momentum copy lacks.
        objective: the loss and what it learns.
        momentum: m, in [0, 1]. 0 spares the copy: keys are the trained network's own embeddings,
            without gradient, as in SimSiam and NNCLR.
        symmetric: every view is query and key; False, for two views: the first is the query, the
            second the key (MoCo-v2, ReSSL).
        average: take the mean over all pairs of query and key view (SimSiam, DINO), not the sum
            over key views of the mean over their queries (MoCo-v3, BYOL).
        queue_size: how many earlier keys are the negatives; 0 takes those of the batch.
        evaluate: which backbone is evaluated, "online" (the trained one) or "target" (the copy).
        labels: whether all keys of a class are positives.

    Raises:
        ValueError: on an unknown ``evaluate``, or views that do not fit.
    """
    require_share(momentum=0.0 if callable(momentum) else momentum)
    require_not_negative(queue_size=queue_size)
    copies = callable(momentum) or momentum > 0
    if evaluate not in ("online", "target") or (evaluate == "target" and not copies):
        raise ValueError(
            'method.evaluate must be "online", or "target" if there is a momentum network, '
            f"got {evaluate!r} with momentum={momentum}"
        )
    target_names = ("net", "projector")

    def init(key: Array, batch: Batch, num_examples: int) -> tuple[Any, Carried]:
        net_key, objective_key, queue_key = jax.random.split(key, 3)
        params, stats, dim = networks.init(encoder, net_key, image_groups(batch))
        target = ()
        if copies:  # copies, not the same arrays: the step donates its buffers
            own = {name: params[name] for name in target_names}
            own_stats = {name: stats[name] for name in target_names}
            target = jax.tree.map(jnp.copy, {"params": own, "batch_stats": own_stats})
        params["objective"], memory = objective.init(objective_key, num_examples, dim)
        queue = empty_queue(queue_key, queue_size, dim) if queue_size else ()
        return params, Carried(stats, target, {"objective": memory, "queue": queue})

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        groups, index = image_groups(batch), batch["index"]
        num_views = count_views(groups[0])
        if num_views < 2 or (num_views > 2 and not symmetric):
            raise ValueError(
                f'method "momentum" takes two views, or more if symmetric; got {num_views}'
            )
        queries = groups
        if copies and not symmetric:
            queries = [jax.tree.map(lambda x: x[:1], groups[0]), *groups[1:]]
        trained = {name: value for name, value in params.items() if name != "objective"}
        z, predictions, stats = networks.embed(
            encoder, trained, carried.batch_stats, queries, index, key=net_key, axis_name=axis_name
        )
        target = carried.target
        if copies:
            seen = groups[0] if symmetric else jax.tree.map(lambda x: x[1:], groups[0])
            keys, _, target_stats = networks.embed(
                encoder,
                target["params"],
                target["batch_stats"],
                [seen],
                index,
                key=None,  # stochastic depth is the trained network's
                axis_name=axis_name,
            )
            target = {**target, "batch_stats": target_stats}
        else:
            keys = z[:num_views] if symmetric else z[1:2]
        keys = lax.stop_gradient(keys)

        memory = carried.memory
        rows = memory["queue"]["rows"] if queue_size else None

        def pair(query: Array, key: Array) -> Pairs:
            label = batch["label"] if labels else None
            return pair_towers(
                query,
                key,
                index,
                label,
                queue=rows,
                batch_negatives=not queue_size,
                axis_name=axis_name,
            )

        found = _pairings(len(keys), predictions.shape[0], symmetric, copies)
        weight = 1 / len(found) if average else len(keys) / len(found)
        terms = [(weight, pair(predictions[q], keys[k])) for q, k in found]
        value, remembered, metrics = weighted_loss(
            objective,
            terms,
            params["objective"],
            memory["objective"],
            step=step,
            key=objective_key,
        )
        queue = enqueue(memory["queue"], keys, axis_name) if queue_size else ()
        carried = Carried(stats, target, {"objective": remembered, "queue": queue})
        shown = z[:num_views] if symmetric or not copies else jnp.concatenate([z[:1], keys])
        return value, (carried, metrics, shown)

    def after(params: Any, carried: Carried, step: Array) -> Carried:
        if not copies:
            return carried
        m = at_step({"m": momentum}, step)["m"]
        own = {name: params[name] for name in target_names}
        mixed = jax.tree.map(lambda k, q: m * k + (1 - m) * q, carried.target["params"], own)
        return carried._replace(target={**carried.target, "params": mixed})

    def features(params: Any, carried: Carried, images: Any) -> Array:
        stats = carried.batch_stats
        if evaluate == "target":
            params, stats = carried.target["params"], carried.target["batch_stats"]
        return networks.features(encoder, params["net"], stats["net"], images)

    split = Carried(False, False, {"objective": objective.per_example, "queue": False})
    return Method(init, loss, after, features, split)


def _pairings(num_keys: int, num_queries: int, symmetric: bool, copies: bool) -> list:
    """(query, key) numbers: every query with each key of another view."""
    if symmetric:
        return [(q, k) for k in range(num_keys) for q in range(num_queries) if q != k]
    own = () if copies else (1,)  # the key's own view, encoded along
    return [(q, 0) for q in range(num_queries) if q not in own]

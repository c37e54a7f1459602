"""Two towers, both trained: images and their captions (CLIP), graphs and their views (GraphCL)."""

from typing import Any

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, swap
from jaxssl.methods.base import Batch, Carried, Method, count_views, image_groups, weighted_loss
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder


def method(
    encoder: Encoder, objective: Objective, *, symmetric: bool = False, labels: bool = False
) -> Method:
    """The two-tower method.

    Rows of the first tower are the anchors and those of the second one their keys; both get
    gradient. With a network for captions (``encoder.text``) the towers are images and captions,
    else the two views of one network.

    Args:
        encoder: backbone and projector, perhaps those of the captions.
        objective: the loss and what it learns.
        symmetric: the mean over both directions, anchors and keys changing places; for a loss that
            has one direction, such as `decl`. `clip` has both, and `siglip` is the same in either.
        labels: whether all keys of a class are positives.

    Raises:
        ValueError: if there is a predictor, for which there is no use here, or another number of
            views than two, one with captions.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        figure 3; You et al., Graph Contrastive Learning with Augmentations, 2020, figure 1.
    """
    if encoder.predictor is not None:
        raise ValueError('method "two_tower" has no use for a predictor; set predictor.name=none')
    text = encoder.text

    def init(key: Array, batch: Batch, num_examples: int) -> tuple[Any, Carried]:
        net_key, objective_key = jax.random.split(key)
        params, stats, dim = networks.init(encoder, net_key, image_groups(batch))
        if text is not None:
            text_key = jax.random.fold_in(net_key, 1)
            params["text"], stats["text"], _ = networks.init(text, text_key, [batch["texts"]])
        params["objective"], memory = objective.init(objective_key, num_examples, dim)
        return params, Carried(stats, (), memory)

    def towers(params, stats, batch, key, axis_name) -> tuple[Array, dict]:
        """[2, b, d] and the new statistics."""
        groups, index = image_groups(batch), batch["index"]
        expected = 1 if text is not None else 2
        if len(groups) > 1 or count_views(groups[0]) != expected:
            raise ValueError(
                f'method "two_tower" takes {expected} view{"s" * (expected > 1)} here; set '
                f"views={expected} and crops.number=0"
            )
        own = {name: params[name] for name in ("net", "projector")}
        z, _, new = networks.embed(encoder, own, stats, groups, index, key=key, axis_name=axis_name)
        if text is None:
            return z, new
        key = jax.random.fold_in(key, 1)
        of_text, _, new_text = networks.embed(
            text, params["text"], stats["text"], [batch["texts"]], index, key=key,
            axis_name=axis_name,
        )  # fmt: skip
        return jnp.concatenate([z, of_text]), {**new, "text": new_text}

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        z, stats = towers(params, carried.batch_stats, batch, net_key, axis_name)
        label = batch["label"] if labels else None
        pairs = pair_towers(z[0], z[1], batch["index"], label, axis_name=axis_name)
        terms = [(0.5, pairs), (0.5, swap(pairs))] if symmetric else [(1.0, pairs)]
        value, memory, metrics = weighted_loss(
            objective, terms, params["objective"], carried.memory, step=step, key=objective_key
        )
        return value, (Carried(stats, (), memory), metrics, z)

    def after(params: Any, carried: Carried, step: Array) -> Carried:
        del params, step
        return carried

    def features(params: Any, carried: Carried, images: Any) -> Array:
        return networks.features(encoder, params["net"], carried.batch_stats["net"], images)

    split = Carried(False, False, objective.per_example)
    return Method(init, loss, after, features, split)

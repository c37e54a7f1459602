"""The two-tower scheme: image and text networks (CLIP), or two views of a graph (GraphCL)."""

from functools import partial

import jax
from jax import numpy as jnp

from jaxssl.losses.objective import Objective
from jaxssl.losses.pairs import pair_towers, swap
from jaxssl.methods import base
from jaxssl.models import encoder as networks
from jaxssl.models.encoder import Encoder


def method(
    encoder: Encoder, objective: Objective, *, symmetric: bool = False, labels: bool = False
) -> base.Method:
    """Build the two-tower scheme: CLIP for images with captions, GraphCL for graphs.

    Embeddings of the first tower are the anchors, embeddings of the second tower are their keys,
    and gradients flow into both. With a network for captions (``encoder.text``) the towers embed
    images and captions. Without one, a single network embeds two views.

    Args:
        encoder: backbone and projector, and optionally the encoder of captions.
        objective: the loss and its trained parameters.
        symmetric: True averages over both directions, with anchors and keys exchanged; for a loss
            with one direction, such as `decl`. `clip` has both directions, and `siglip` has the
            same value in either.
        labels: True makes all keys of a class positives.

    Raises:
        ValueError: if the encoder has a predictor, or if the number of views is not two (one with
            captions).

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        figure 3; You et al., Graph Contrastive Learning with Augmentations, 2020, figure 1.
    """
    if encoder.predictor is not None:
        raise ValueError(
            'method.name="two_tower" does not use a predictor; set predictor.name=none'
        )
    text = encoder.text
    expected = 1 if text is not None else 2

    def check_views(num_views, num_crops):
        if num_crops or num_views != expected:
            raise ValueError(
                f'method.name="two_tower" needs views={expected} and crops.number=0, '
                f"got views={num_views} and crops.number={num_crops}"
            )

    def init(key, batch, num_examples):
        if text is None:
            return base.init_trained(encoder, objective, key, batch, num_examples)
        siamese_key, text_key = jax.random.split(key)
        params, carried = base.init_trained(encoder, objective, siamese_key, batch, num_examples)
        params["text"], stats, _ = networks.init(text, text_key, [batch["texts"]])
        carried.batch_stats["text"] = stats
        return params, carried

    def embed_towers(params, stats, batch, key, axis_name):
        """Embed both towers' inputs to [2, b, d], and return the new BatchNorm statistics."""
        groups = base.image_groups(batch)
        check_views(base.count_views(batch["views"]), len(groups) - 1)
        embed = partial(networks.embed, index=batch["index"], axis_name=axis_name)
        image_key, text_key = (key, None) if text is None else jax.random.split(key)
        z, _, new = embed(encoder, params, stats, groups, key=image_key)
        if text is None:
            return z, new
        texts = [batch["texts"]]
        text_z, _, new_text = embed(text, params["text"], stats["text"], texts, key=text_key)
        return jnp.concatenate([z, text_z]), {**new, "text": new_text}

    def loss(params, carried, batch, *, step, key, axis_name):
        net_key, objective_key = jax.random.split(key)
        z, stats = embed_towers(params, carried.batch_stats, batch, net_key, axis_name)
        label = batch["label"] if labels else None
        pairs = pair_towers(z[0], z[1], batch["index"], label, axis_name=axis_name)
        terms = [(0.5, pairs), (0.5, swap(pairs))] if symmetric else [(1.0, pairs)]
        value, memory, metrics = base.weighted_loss(
            objective, terms, params["objective"], carried.memory, step=step, key=objective_key
        )
        return value, (base.Carried(stats, (), memory), metrics, z)

    per_example = base.Carried(False, False, objective.per_example)
    constrain = partial(base.constrain_objective, objective)
    return base.Method(
        encoder, init, loss, constrain, check_views=check_views, per_example=per_example
    )

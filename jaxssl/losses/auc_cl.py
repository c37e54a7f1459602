"""AUC-CL: contrastive learning by maximising the area under the ROC curve."""

from jax import Array
from jax import numpy as jnp

from jaxssl.objective import Number, stateless
from jaxssl.pairs import Pairs, cosine, negatives, not_self, positives

# "paper" is eq. 8 with the best alpha of its Table 11; "released_cifar" is the authors' CIFAR code.
PRESETS = {
    "paper": {"a": 1.0, "alpha": 0.5},
    "released_cifar": {
        "a": 10.0,
        "alpha": 1.0,
        "similarity": "unit",
        "positive_margin": 0.5,
        "clip_positive": True,
        "count_positive_as_negative": True,
    },
}


def auc_cl_loss(
    pairs: Pairs,
    b: Number = 0.0,
    *,
    a: Number = 1.0,
    alpha: Number = 0.5,
    similarity: str = "cosine",
    positive_margin: float = 0.0,
    clip_positive: bool = False,
    count_positive_as_negative: bool = False,
    negative_weight: Number = 1.0,
) -> Array:
    r"""Squared surrogate of the AUC: positives score a, negatives b, and the gap alpha is wanted.

    .. math:: L_i = (p_i - a)^2 + w \sum_j (n_{ij} - b)^2
              + 2 \alpha (1 - p_i + w \sum_j n_{ij}) - \alpha^2

    where p is the positives' similarity (their terms are averaged if there are several) and n the
    negatives'. The sum over negatives is a sum, so the loss grows with the batch. With alpha = 0
    constant embeddings are a minimum: the encoder collapses.

    Args:
        pairs: n anchors, m candidates. `pair_views` gives the paper's 2(B-1) negatives,
            `pair_towers` its B x B matrix with B-1 (Algorithm 1).
        b: the negatives' target; trained beside the network, from 0.
        a: the positives' target; fixed, unless the objective's ``learn`` names it.
        alpha: weight of the margin term, >= 0.
        similarity: "cosine" in [-1, 1], or "unit", (1 + cosine) / 2 in [0, 1].
        positive_margin: taken off the positives' similarity.
        clip_positive: clip the positives' similarity to [0, 1], after the margin.
        count_positive_as_negative: let the positives stand among the negatives too, there
            without margin and clip.
        negative_weight: w, >= 0. The released ImageNet code uses 32 / B.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    Raises:
        ValueError: on an unknown ``similarity``.

    References:
        Sharma et al., AUC-CL, ICLR 2024, eq. 8.

    Differs from the released code: its CIFAR loss has the constant -2B in place of
    2 alpha - alpha^2, which shifts the value (preset "released_cifar") and no gradient.
    """
    s = cosine(pairs)
    if similarity == "unit":
        s = (1 + s) / 2
    elif similarity != "cosine":
        raise ValueError(f'similarity must be "cosine" or "unit", got {similarity!r}')
    pos, neg = positives(pairs), negatives(pairs)
    p = s - positive_margin
    if clip_positive:
        p = jnp.clip(p, 0, 1)
    if count_positive_as_negative:
        neg = not_self(pairs)
    count = jnp.sum(pos, axis=1, dtype=s.dtype)
    pos_term = jnp.sum(jnp.where(pos, (p - a) ** 2 - 2 * alpha * p, 0), axis=1)
    neg_term = jnp.sum(jnp.where(neg, (s - b) ** 2 + 2 * alpha * s, 0), axis=1)
    loss = pos_term / jnp.maximum(count, 1) + negative_weight * neg_term + 2 * alpha - alpha**2
    return jnp.where(count > 0, loss, 0)


objective = stateless(auc_cl_loss, learn=("b",))

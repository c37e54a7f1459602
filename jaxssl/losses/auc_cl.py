"""AUC-CL: contrastive learning by maximising the area under the ROC curve."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import (
    Pairs,
    cosine,
    count_positives,
    dot,
    mean_where,
    negatives,
    not_self,
    partners,
    positives,
    unit,
)

PRESETS = {
    # The defaults, chosen by accuracy on held-out training images (docs/measurements.md), as the
    # paper gives neither a nor a weight of the negatives. Both released codes have a = 10.
    # The ImageNet code sums B - 1 negatives with weight 32 / B, which is 32 times their mean. Two
    # views have twice as many negatives, hence 64. alpha = 0.5 is the best of Table 11.
    "recommended": {
        "a": 10.0,
        "alpha": 0.5,
        "negative_weight": 64.0,
        "negative_reduction": "mean",
    },
    # The paper's setting: eq. 8's sum over the negatives, and the best alpha of its Table 11. The
    # paper does not state a. We chose a = 1, the largest possible cosine.
    "paper": {"a": 1.0, "alpha": 0.5, "negative_weight": 1.0, "negative_reduction": "sum"},
    # The constants of the authors' CIFAR code. The loss of their ImageNet code is `auc_dino`.
    "released_cifar": {
        "a": 10.0,
        "alpha": 1.0,
        "negative_weight": 1.0,
        "negative_reduction": "sum",
        "similarity": "unit",
        "positive_margin": 0.5,
        "clip_positive": True,
        "count_positive_as_negative": True,
    },
}
RANGES = {
    "similarity": ("cosine", "unit"),
    "negative_reduction": ("mean", "sum"),
    "form": ("auto", "moments", "matrix"),
    "a": "finite",
    "b": "finite",
    "positive_margin": "finite",
    "alpha": ">= 0",
    "negative_weight": ">= 0",
}
MOST_MOMENTS = 1024  # largest dimension at which moments cost little even for few candidates


class Moments(NamedTuple):
    """Number, sum and sum of squares of cosines [n, ...] or of unit vectors [k, d].

    Attributes:
        number: [n], or [] where it is the same for all.
        total: sum, [n] or [d].
        square: sum of the squares, [n], or of the matrices x x^T over the vectors x, [d, d].
    """

    number: Array
    total: Array
    square: Array


def auc_cl_loss(
    pairs: Pairs,
    b: Scalar = 0.0,
    *,
    a: Scalar = 10.0,
    alpha: Scalar = 0.5,
    negative_weight: Scalar = 64.0,
    negative_reduction: str = "mean",
    similarity: str = "cosine",
    positive_margin: Scalar = 0.0,
    clip_positive: bool = False,
    count_positive_as_negative: bool = False,
    form: str = "auto",
) -> Array:
    r"""Compute the squared surrogate of the AUC with targets a for positives, b for negatives.

    .. math:: L_i = (p_i - a)^2 + c_i \sum_{j \in N_i} (n_{ij} - b)^2
              + 2 \alpha \Big(1 - p_i + c_i \sum_{j \in N_i} n_{ij}\Big) - \alpha^2

    where p is the similarity of the positives (the terms of several are averaged) and n the
    similarity of the negatives. The factor c is w / |N_i| if negatives are averaged, which we
    recommend, and w if they are summed, as in eq. 8 with w = 1.

    With the average, the loss does not depend on the number of negatives, so it is comparable
    between batch sizes, and the gradient of a minibatch is an unbiased estimate of the gradient on
    the whole data set. Theorem 3.3 states this for the sum, but with the sum the pull on the
    positives does not depend on the batch, while the push on the negatives grows with it.

    With alpha = 0, constant embeddings minimise the loss (b becomes 1), and the encoder collapses.

    The loss is quadratic in the cosines. The moments :math:`\sum_j v_j` and
    :math:`\sum_j v_j v_j^T` of the candidates v therefore replace the [n, m] matrix: O(n d^2) time
    and O(d^2) memory, and devices exchange moments in place of embeddings.

    Args:
        pairs: n anchors, m candidates. `pair_views` gives the paper's 2(B-1) negatives,
            `pair_towers` its B x B matrix with B-1 (Algorithm 1).
        b: target of the negatives, trained together with the network from 0.
        a: target of the positives. It is fixed unless the objective's ``learn`` names it.
        alpha: weight of the margin term, >= 0.
        negative_weight: w, >= 0: weight of the mean over negatives, or of each negative in the sum.
        negative_reduction: "mean" or "sum" over an anchor's negatives on all devices.
        similarity: "cosine" in [-1, 1], or "unit", (1 + cosine) / 2 in [0, 1].
        positive_margin: number subtracted from the similarity of the positives.
        clip_positive: clip the similarity of the positives to [0, 1], after the margin.
        count_positive_as_negative: also add each positive to the negatives, by its cosine before
            margin and clip.
        form: "moments", "matrix", or "auto", which uses the matrix for labels, for a single view,
            and if d exceeds both m and `MOST_MOMENTS`. Moments take the other views of an anchor,
            or its key, as its only positives, so no example may appear twice in the batch.

    Returns:
        [n] float32, 0 for an anchor without a positive. Without negatives their terms are 0.

    Raises:
        ValueError: if moments are requested for labelled pairs. The functions of `jaxssl.losses`
            also check that hyper-parameters are in `RANGES`.

    References:
        Sharma et al., AUC-CL, ICLR 2024, eq. 8 and Theorem 3.3.

    Differs from the paper: the defaults average over the negatives. Preset "paper" has eq. 8's sum.

    Differs from the released code: its CIFAR loss has the constant -2B in place of
    2 alpha - alpha^2, which changes the value (preset "released_cifar") but no gradient.

    Checked against: the CIFAR code of AUC-CL (rohan1561/AUC-CL), with the gradient to b.
    """
    if form == "moments" and pairs.labelled:
        raise ValueError('form="moments" cannot be used with labels; set form="matrix" or "auto"')
    partners_only = not pairs.labelled and pairs.num_views != 1
    m, d = pairs.candidate.shape
    # Moments take O(n d^2) time, the matrix O(n m d). A symbolic m is not compared.
    is_cheap = not isinstance(m, int) or d <= max(m, MOST_MOMENTS)
    by_moments = partners_only and is_cheap if form == "auto" else form == "moments"

    def positive_term(s: Array) -> Array:
        p = ((1 + s) / 2 if similarity == "unit" else s) - positive_margin
        p = jnp.clip(p, 0, 1) if clip_positive else p
        return (p - a) ** 2 - 2 * alpha * p

    compute = _by_moments if by_moments else _by_matrix
    positive, (number, total, square) = compute(pairs, positive_term, count_positive_as_negative)
    if similarity == "unit":  # moments of s become moments of (1 + s) / 2
        total, square = (number + total) / 2, (number + 2 * total + square) / 4
    negative = square - 2 * b * total + number * b**2 + 2 * alpha * total
    if negative_reduction == "mean":
        negative = negative / jnp.maximum(number, 1)
    loss = positive + negative_weight * negative + 2 * alpha - alpha**2
    return jnp.where(count_positives(pairs) > 0, loss, 0)


def _by_matrix(
    pairs: Pairs, positive_term: Callable[[Array], Array], count_positive: bool
) -> tuple[Array, Moments]:
    """Compute the positive term [n] and the moments of the negatives' cosines from all [n, m]."""
    s = cosine(pairs)
    neg = not_self(pairs) if count_positive else negatives(pairs)
    number = jnp.sum(neg, axis=1, dtype=s.dtype)
    total = jnp.sum(jnp.where(neg, s, 0), axis=1)
    square = jnp.sum(jnp.where(neg, s**2, 0), axis=1)
    return mean_where(positive_term(s), positives(pairs)), Moments(number, total, square)


def _by_moments(
    pairs: Pairs, positive_term: Callable[[Array], Array], count_positive: bool
) -> tuple[Array, Moments]:
    """Compute the positive term [n] and the moments of the negatives' cosines without an [n, m].

    Sums over all candidates, or over the queue alone, follow from their moments. Then the anchor
    and its positives are subtracted, or positives are added.
    """
    u = unit(pairs.anchor)
    to_partners = jnp.sum(u[None] * unit(partners(pairs, "auc_cl")), axis=2)
    has_views = pairs.num_views > 0  # The anchors are candidates too, unlike in two towers.
    in_batch = u.shape[0] * collectives.device_count(pairs.axis_name)
    queue = _moments(unit(pairs.candidate[in_batch:]))
    if pairs.queue_only:  # The queue has no positives. They are added if they count as negatives.
        candidates = queue
        sign, corrections = 1, to_partners if count_positive else to_partners[:0]
    else:  # The anchor is subtracted, and so are positives unless they count as negatives.
        batch = _moments(u if has_views else unit(pairs.partner))
        batch = collectives.sum(batch, pairs.axis_name)
        candidates = jax.tree.map(jnp.add, batch, queue)
        sign, corrections = -1, to_partners[:0] if count_positive else to_partners
        if has_views:
            corrections = jnp.concatenate([jnp.sum(u * u, axis=1)[None], corrections])
    number = candidates.number + sign * len(corrections)
    total = jnp.sum(u * candidates.total[None, :], axis=1) + sign * jnp.sum(corrections, axis=0)
    square = jnp.sum(dot(u, candidates.square) * u, axis=1) + sign * jnp.sum(corrections**2, axis=0)
    return jnp.mean(positive_term(to_partners), axis=0), Moments(number, total, square)


def _moments(vectors: Array) -> Moments:
    """Return the moments of unit vectors [k, d]."""
    square = jnp.matmul(vectors.T, vectors, precision=lax.Precision.HIGHEST)
    number = jnp.array(vectors.shape[0], vectors.dtype)
    return Moments(number, jnp.sum(vectors, axis=0), square)


objective = stateless(
    auc_cl_loss, learn=("b",), ranges=RANGES, takes_labels=lambda hyper: hyper["form"] != "moments"
)

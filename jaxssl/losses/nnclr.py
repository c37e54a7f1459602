"""NNCLR: each key's nearest neighbour among past keys is the positive, instead of the key."""

from dataclasses import replace
from operator import itemgetter

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.memory import empty_queue, enqueue
from jaxssl.losses.nt_xent import nt_xent_loss
from jaxssl.losses.objective import Hyper, Objective, Scalar, Terms, factory, make_objective
from jaxssl.losses.pairs import Pairs, by_view, dot, require_width, swap, unit

RANGES = {"temperature": "> 0", "support_size": "> 0"}


def nnclr_loss(pairs: Pairs, support: Array | None = None, *, temperature: Scalar = 0.1) -> Array:
    r"""Compute InfoNCE with each anchor replaced by its nearest neighbour among past keys.

    .. math:: L_i = -\log \frac{e^{NN(z_i) \cdot p_i / \tau}}{\sum_j e^{NN(z_i) \cdot p_j / \tau}}

    Only the candidates p receive a gradient. The objective takes the pairs the other way round, as
    training schemes give them: predictions are its anchors, and keys its candidates.

    Args:
        pairs: n embeddings z of one view and m predictions p of the other, from `pair_towers`.
        support: [k, d] earlier embeddings, compared by cosine. None leaves the anchors unchanged,
            because they may be neighbours already.
        temperature: softmax temperature tau, > 0.

    Objective:
        support_size: number of recent keys in the support set, > 0.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Dwibedi et al., With a Little Help from My Friends, 2021, eq. 3 and 4.

    Checked against: solo-learn, with given neighbours.
    """
    neighbour = lax.stop_gradient(unit(pairs.anchor))
    if support is not None:
        require_width(support, neighbour.shape[1], "support")
        support = lax.stop_gradient(unit(support))
        nearest = support[jnp.argmax(dot(neighbour, support), axis=1)]
        # The neighbour of an embedding that is NaN is NaN.
        neighbour = jnp.where(jnp.isnan(neighbour), neighbour, nearest)
    return nt_xent_loss(replace(pairs, anchor=neighbour), temperature=temperature)


def _build(hyper: Hyper) -> Objective:
    """Return an objective with a queue of the last ``support_size`` keys, the support set.

    The pairs of a training scheme are predictions and keys. They are swapped for `nnclr_loss`,
    because the keys are replaced by their neighbours. All pairings of a step search the keys of
    earlier steps, and the keys of the last view are stored.
    """
    size = hyper.pop("support_size")

    def init(key, num_examples, dim):
        return {}, empty_queue(key, size, dim)

    def compute(pairs, params, memory, hyper, key):
        pairs = swap(pairs)
        per_anchor = nnclr_loss(pairs, memory["rows"], **hyper)
        return Terms(per_anchor, enqueue(memory, by_view(pairs, pairs.anchor), pairs.axis_name))

    return make_objective(compute, hyper, init, merge=itemgetter(-1), takes_queue=False)


objective = factory(nnclr_loss, RANGES, _build, support_size=16384)

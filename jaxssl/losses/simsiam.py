"""SimSiam: predict the embedding of the other view, without a momentum network."""

from jax import Array

from jaxssl.losses.byol import negative_cosine
from jaxssl.losses.objective import stateless
from jaxssl.losses.pairs import Pairs


def simsiam_loss(pairs: Pairs) -> Array:
    r"""Compute the negative cosine of a predicted embedding and its target, which has no gradient.

    .. math:: L_i = -\cos\big(p_i, \mathrm{stop}(z_i)\big)

    Args:
        pairs: n predictions and their targets, from `pair_towers`. With V views, the targets are
            the V - 1 others.

    Returns:
        [n] float32, in [-1, 1].

    Raises:
        ValueError: if there is only one view.

    References:
        Chen and He, Exploring Simple Siamese Representation Learning, 2021, eq. 1 to 3. The paper
        averages both directions.

    Checked against: solo-learn.
    """
    return negative_cosine(pairs, "simsiam")


objective = stateless(
    simsiam_loss, needs_other_keys=True, needs_predictor=True, takes_labels=False, takes_queue=False
)

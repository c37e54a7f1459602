"""SupCon: NT-Xent with all views of a class as positives."""

from jax import Array

from jaxssl.losses.nt_xent import nt_xent_loss
from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs


def sup_con_loss(
    pairs: Pairs,
    *,
    temperature: Number = 0.1,
    base_temperature: Number | None = None,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""SupCon's L_out: each positive's own log softmax, averaged over the positives.

    .. math:: L_i = -\frac{\tau}{\tau_0} \frac{1}{|P_i|} \sum_{p \in P_i}
              \log \frac{e^{s_{ip}/\tau}}{\sum_{j \ne i} e^{s_{ij}/\tau}}

    Args:
        pairs: n anchors, m candidates; made with ``labels``. Without, it is NT-Xent.
        temperature: tau, > 0.
        base_temperature: tau_0, > 0, which scales the loss; None is tau_0 = tau.
        block_size: rows of the [n, m] matrix that are held at a time; None holds all of them.
        ring: never gather the candidates, let them travel around the devices.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    References:
        Khosla et al., Supervised Contrastive Learning, 2020, eq. 2.

    Differs from the released code: an anchor without a positive is left out of the mean; there it
    stays in the denominator. Its base temperature is 0.07 by default.
    """
    loss = nt_xent_loss(pairs, temperature=temperature, block_size=block_size, ring=ring)
    if base_temperature is None:
        return loss
    require_positive(base_temperature=base_temperature)
    return loss * (temperature / base_temperature)


objective = stateless(sup_con_loss, takes_queue=lambda hyper: not hyper["ring"])

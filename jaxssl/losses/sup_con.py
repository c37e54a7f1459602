"""SupCon (supervised contrastive loss): NT-Xent with all views of a class as positives."""

from jax import Array

from jaxssl.losses.nt_xent import nt_xent_loss
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs

RANGES = {"temperature": "> 0", "base_temperature": "> 0", "block_size": "> 0"}


def sup_con_loss(
    pairs: Pairs,
    *,
    temperature: Scalar = 0.1,
    base_temperature: Scalar | None = None,
    block_size: int | None = None,
    ring: bool = False,
) -> Array:
    r"""Compute SupCon's L_out: -log softmax of each positive, averaged over an anchor's positives.

    .. math:: L_i = -\frac{\tau}{\tau_0} \frac{1}{|P_i|} \sum_{p \in P_i}
              \log \frac{e^{s_{ip}/\tau}}{\sum_{j \ne i} e^{s_{ij}/\tau}}

    Args:
        pairs: n anchors, m candidates, made with ``labels``. Without labels L_out is NT-Xent's.
            Training with this loss needs labels, and has no queue.
        temperature: softmax temperature tau, > 0.
        base_temperature: tau_0, > 0, which scales the loss. None sets tau_0 = tau.
        block_size: rows of the [n, m] matrix held at a time, >= 1; None holds all of them.
        ring: pass the candidates around the devices instead of gathering them.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    References:
        Khosla et al., Supervised Contrastive Learning, 2020, eq. 2, which has no tau_0. The factor
        tau / tau_0 is the released code's, where tau_0 is 0.07 by default.

    Differs from the released code, which counts anchors without a positive in the mean, as 0.

    Checked against: SupContrast (``SupConLoss``) and the SupCon of TCL's repository.
    """
    loss = nt_xent_loss(pairs, temperature=temperature, block_size=block_size, ring=ring)
    return loss if base_temperature is None else loss * (temperature / base_temperature)


objective = stateless(sup_con_loss, ranges=RANGES, takes_queue=False, needs_labels=True)

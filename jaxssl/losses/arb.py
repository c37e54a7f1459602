"""ARB: align the features of each view with the decorrelated features of the other view."""

from functools import partial

from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, centre, promote, stack_views

RANGES = {"groups": "> 0", "epsilon": "> 0"}


def arb_loss(pairs: Pairs, *, groups: int = 1, epsilon: Scalar = 1e-5) -> Array:
    r"""Compute how far each feature's correlation with the other view's basis is from 1.

    .. math:: L = \sum_d \Big(1 - \frac1B \sum_i \hat z^1_{id} b^2_{id}\Big)^2
              + \Big(1 - \frac1B \sum_i \hat z^2_{id} b^1_{id}\Big)^2, \quad
              b^v = \hat z^v (C_v + \epsilon I)^{-1/2}

    where every feature of a view is standardised over the global batch, C is the covariance of the
    standardised features (B - 1 in the denominator), and the basis b, the nearest features
    without correlations, is a constant in the gradient.
    With V > 2 views, the loss is the mean over their pairs.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        groups: number of groups of consecutive features, >= 1, each with a basis of its own.
        epsilon: added to the eigenvalues of C and to the standard deviations, > 0.

    Returns:
        [n] float32: the loss of the batch, repeated for every anchor.

    Raises:
        ValueError: if there is only one view, or the features do not divide into ``groups``.

    References:
        Zhang et al., Align Representations with Base: A New Approach to Self-Supervised Learning,
        2022, eq. 5 to 8.

    Differs from the released code: features are not shuffled before they are grouped. The code for
    CIFAR divides by the number of features instead of B.

    Checked against: Sherrylone/Align_Representation_with_Base.
    """
    z = promote(stack_views(pairs, "arb"))
    num_views, b, dim = z.shape
    if dim % groups:
        raise ValueError(f"groups must divide the {dim} features of the embeddings, got {groups}")
    z = _standardise(z, epsilon, pairs.axis_name)
    basis = _nearest_basis(lax.stop_gradient(z), groups, epsilon, pairs.axis_name)
    correlation = jnp.einsum("vbd,wbd->vwd", z, basis, precision=lax.Precision.HIGHEST) / b
    squares = jnp.sum((1 - collectives.mean(correlation, pairs.axis_name)) ** 2, axis=2)
    number = num_views * (num_views - 1) / 2
    value = jnp.sum(squares * (1 - jnp.eye(num_views, dtype=z.dtype))) / number
    return jnp.broadcast_to(value, pairs.index.shape)


def _standardise(z: Array, epsilon: Scalar, axis_name: str | None) -> Array:
    """Divide centred features [V, b, d] by their standard deviations over the global batch."""
    batch = z.shape[1] * collectives.device_count(axis_name)
    centred, scale = centre(z, axis_name)
    variance = collectives.sum(jnp.sum(centred**2, axis=1, keepdims=True), axis_name)
    variance = variance / max(batch - 1, 1)
    constant = variance <= 0
    deviation = jnp.where(constant, 0, jnp.sqrt(jnp.where(constant, 1, variance)))
    divisor = deviation + epsilon / scale  # 0 for a constant feature if epsilon / scale underflows
    return jnp.where(divisor == 0, 0, centred / jnp.where(divisor == 0, 1, divisor))


def _nearest_basis(z: Array, groups: int, epsilon: Scalar, axis_name: str | None) -> Array:
    """Multiply features [V, b, d] by the inverse square root of each feature group's covariance."""
    batch = z.shape[1] * collectives.device_count(axis_name)
    x = z.reshape(*z.shape[:2], groups, z.shape[2] // groups)
    product = partial(jnp.einsum, precision=lax.Precision.HIGHEST)
    covariance = collectives.sum(product("vbgi,vbgj->vgij", x, x), axis_name) / max(batch - 1, 1)
    values, vectors = jnp.linalg.eigh(covariance)
    scaled = vectors * lax.rsqrt(jnp.maximum(values, 0) + epsilon)[:, :, None, :]
    return product("vbgi,vgik,vgjk->vbgj", x, scaled, vectors).reshape(z.shape)


objective = stateless(arb_loss, ranges=RANGES, takes_labels=False, takes_queue=False)

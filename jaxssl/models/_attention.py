"""Scaled dot-product attention, used by all transformers and by CLIP's ResNets."""

import flax.linen as nn
import jax
from jax import Array, lax
from jax import numpy as jnp


def attend(q: Array, k: Array, v: Array, *, causal: bool = False) -> Array:
    """Compute scaled dot-product attention, softmax(q k^T / sqrt(d)) v.

    Args:
        q: queries [n, t, h, d] of h heads.
        k: keys [n, s, h, d].
        v: values [n, s, h, d].
        causal: whether query i attends to keys 0 ... i only. Requires s = t.

    Returns:
        Array [n, t, h, d] in the dtype of ``v``. The softmax is computed in float32.

    References:
        Vaswani et al., Attention Is All You Need, 2017, eq. 1.
    """
    logits = jnp.einsum("nqhd,nkhd->nhqk", q * q.shape[-1] ** -0.5, k)
    if causal:
        visible = jnp.tri(q.shape[1], dtype=bool)[None, None]
        logits = jnp.where(visible, logits, -jnp.inf)
    return jnp.einsum("nhqk,nkhd->nqhd", _softmax(logits), v)


@jax.custom_vjp
def _softmax(logits: Array) -> Array:
    """Compute a float32 softmax that keeps only its rounded weights for the backward pass."""
    weights = nn.softmax(logits.astype(jnp.float32)).astype(logits.dtype)
    # Without this barrier XLA stores the float32 exponentials for the backward pass. A ViT's
    # training step would then need a fifth more memory.
    return lax.optimization_barrier(weights)


def _forward(logits: Array) -> tuple[Array, Array]:
    weights = _softmax(logits)
    return weights, weights


def _backward(weights: Array, g: Array) -> tuple[Array]:
    weights32, g = weights.astype(jnp.float32), g.astype(jnp.float32)
    inner = jnp.sum(weights32 * g, axis=-1, keepdims=True)
    return ((weights32 * (g - inner)).astype(weights.dtype),)


_softmax.defvjp(_forward, _backward)

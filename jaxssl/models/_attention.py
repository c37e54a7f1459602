"""Attention as all nets use it."""

import flax.linen as nn
import jax
from jax import Array, lax
from jax import numpy as jnp


def attend(q: Array, k: Array, v: Array, *, causal: bool = False) -> Array:
    """Scaled dot-product attention, softmax(q k^T / sqrt(d)) v (Vaswani et al., 2017, Eq. 1).

    Args:
        q: queries [n, t, h, d] of h heads.
        k: keys [n, s, h, d].
        v: values [n, s, h, d].
        causal: whether a query sees the keys up to its own place alone; then s is t.

    Returns:
        Array [n, t, h, d] like ``v``; the softmax is float32 inside.
    """
    logits = jnp.einsum("nqhd,nkhd->nhqk", q * q.shape[-1] ** -0.5, k)
    if causal:
        seen = jnp.tri(q.shape[1], dtype=bool)[None, None]
        logits = jnp.where(seen, logits, -jnp.inf)
    return jnp.einsum("nhqk,nkhd->nqhd", _softmax(logits), v)


@jax.custom_vjp
def _softmax(logits: Array) -> Array:
    """Over the last axis, float32 inside; the backward pass has the weights as the values have."""
    weights = nn.softmax(logits.astype(jnp.float32)).astype(logits.dtype)
    # Without it XLA keeps float32 exponentials for the backward pass: a fifth more memory in all.
    return lax.optimization_barrier(weights)


def _forward(logits: Array) -> tuple[Array, Array]:
    weights = _softmax(logits)
    return weights, weights


def _backward(weights: Array, g: Array) -> tuple[Array]:
    wide, g = weights.astype(jnp.float32), g.astype(jnp.float32)
    inner = jnp.sum(wide * g, axis=-1, keepdims=True)
    return ((wide * (g - inner)).astype(weights.dtype),)


_softmax.defvjp(_forward, _backward)

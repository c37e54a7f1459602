"""DeCL: a decomposable contrastive loss, by Gamma variables and stochastic EM."""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses import memory as examples
from jaxssl.losses._row_sums import log_sum, or_zero
from jaxssl.losses.objective import (
    Metrics,
    Number,
    Objective,
    at_step,
    mean_over_anchors,
    require_not_negative,
    require_one_of,
    require_positive,
    require_share,
)
from jaxssl.losses.pairs import Pairs, by_view, cosine, distance, negatives, positives

PRESETS = {
    "simclr": {"temperature": 0.5, "rate": "buffer", "weight": "alternate"},
    "moco_v3": {"temperature": 0.2, "rate": "momentum", "weight": 1.0},
    "clip": {"rate": "buffer", "weight": "alternate", "temperature": 0.07, "learn_scale": True},
}
SIMILARITIES = ("cosine", "neg_euclidean")
NOISE = 2**31 - 1  # no example's place: tells the noise from the draws of u
LARGEST_SCALE = math.log(100.0)  # CLIP's bound
SMALLEST_SCORE = 1e-3  # of a score under noise
LARGEST_LOG = 80.0  # of u times a mean similarity: what float32 holds, with room for the gradient


class _Noise(NamedTuple):
    """Values [n, m] that are added to the scores, or to the similarities."""

    values: Array
    on_score: bool


def decl_loss(
    pairs: Pairs,
    rate: Array | None = None,
    *,
    weight: Number = 1.0,
    temperature: Number = 0.5,
    similarity: str = "cosine",
    include_positive: bool = False,
) -> Array:
    r"""The log of a sum over negatives made a sum, by a constant u for every anchor.

    .. math:: L_i &= \lambda L^1_i + (1 - \lambda) L^2_i \\
              L^1_i &= u_i \frac{1}{|N_i|} \sum_n s_{in} - \log s_{i+}, \quad u_i = 1 / r_i \\
              L^2_i &= \log \sum_n s_{in} - \log s_{i+}

    with s = exp(cosine / tau) or exp(-distance / tau); several positives' log s are averaged.

    Args:
        pairs: n anchors, m candidates.
        rate: r, [n], > 0: an estimate of an anchor's mean similarity to negatives. u is Gamma
            distributed with shape 1 and this rate: pass r for its mean, r / Exponential(1) for a
            draw. None takes r from this batch; the gradient of L^1 then equals DCL's.
        weight: lambda, in [0, 1].
        temperature: tau, > 0.
        similarity: "cosine", or "neg_euclidean" of embeddings as they are, not normalised.
        include_positive: whether L^2 has the positive in its sum, as InfoNCE.

    Returns:
        [n] float32; 0 for an anchor without a positive. u times the mean similarity is cut at
        e^80.

    References:
        Chen et al., Why do We Need Large Batchsizes in Contrastive Learning? A Gradient-Bias
        Perspective, 2022, algorithm 1. No code was released.
    """
    log_rate = None if rate is None else jnp.log(rate)
    return _loss(pairs, log_rate, weight, temperature, similarity, include_positive)


def log_mean_negative(pairs: Pairs, *, temperature: Number, similarity: str) -> Array:
    """[n] log of an anchor's mean similarity to its negatives: what the rate estimates."""
    return _log_mean(pairs, None, temperature=temperature, similarity=similarity)


def _log_mean(pairs: Pairs, noise: _Noise | None, *, temperature: Number, similarity: str) -> Array:
    neg = negatives(pairs)
    count = jnp.sum(neg, axis=1, dtype=jnp.int32)
    mean = log_sum(_log_similarity(pairs, temperature, similarity, noise), neg)
    return mean - jnp.log(jnp.maximum(count, 1).astype(mean.dtype))


def _loss(pairs, log_rate, weight, temperature, similarity, include_positive, noise=None) -> Array:
    require_positive(temperature=temperature)
    require_share(weight=weight)
    log_s = _log_similarity(pairs, temperature, similarity, noise)
    pos, neg = positives(pairs), negatives(pairs)
    num_pos, num_neg = (jnp.sum(mask, axis=1, dtype=log_s.dtype) for mask in (pos, neg))
    log_positive = jnp.sum(jnp.where(pos, log_s, 0), axis=1) / jnp.maximum(num_pos, 1)
    log_negative = log_sum(log_s, neg)
    log_mean = log_negative - jnp.log(jnp.maximum(num_neg, 1))
    log_rate = lax.stop_gradient(log_mean) if log_rate is None else lax.stop_gradient(log_rate)
    some = num_neg > 0
    decomposed = jnp.exp(jnp.minimum(jnp.where(some, log_mean - log_rate, 0), LARGEST_LOG))
    decomposed = jnp.where(some, decomposed, 0)
    everyone = jnp.logaddexp(log_negative, log_sum(log_s, pos))
    smooth = everyone if include_positive else or_zero(log_negative)
    loss = weight * decomposed + (1 - weight) * smooth - log_positive
    return jnp.where(num_pos > 0, loss, 0)


def _log_similarity(
    pairs: Pairs, temperature: Number, similarity: str, noise: _Noise | None
) -> Array:
    """[n, m] similarities over the temperature, with their noise."""
    require_one_of(SIMILARITIES, similarity=similarity)
    s = cosine(pairs) if similarity == "cosine" else -distance(pairs)
    if noise is None:
        return s / temperature
    if not noise.on_score:
        return (s + noise.values) / temperature
    return jnp.log(jnp.maximum(jnp.exp(s / temperature) + noise.values, SMALLEST_SCORE))


def objective(
    *,
    rate: str = "buffer",
    u: str = "sample",
    momentum: Number = 0.9,
    weight: Number | str = 1.0,
    temperature: Number = 0.5,
    similarity: str = "cosine",
    include_positive: bool = False,
    noise: Number = 0.0,
    noise_on: str = "similarity",
    learn_scale: bool = False,
) -> Objective:
    """DeCL with its rates.

    Args:
        rate: where an anchor's rate comes from. "buffer": a moving average for every example;
            "momentum": its key's mean similarity to other keys, for `pair_towers`; "batch": this
            batch.
        u: "sample" draws from the Gamma distribution, "mean" takes its mean 1 / rate.
        momentum: weight of the past in the moving average, in [0, 1].
        weight: lambda; or "alternate": 1 and 0 by turns, or "inverse": 1 / step.
        temperature: tau, > 0.
        similarity: "cosine" or "neg_euclidean".
        include_positive: whether L^2 has the positive in its sum.
        noise: standard deviation of the Gaussian noise of the paper's Figure 2, >= 0. With weight
            0 and ``include_positive`` the loss is NT-Xent under the same noise.
        noise_on: where the noise is added, which the paper leaves open. "similarity": to every
            cosine, or distance. "score": to every exp(similarity / tau), as in the paper's Figure
            1; a score that becomes smaller than 1e-3 is set to 1e-3.
        learn_scale: whether log(1 / tau) is trained beside the network, as in CLIP, from the value
            given, a number; 1 / tau stays below 100.

    Raises:
        ValueError: on a value that is none of these.
    """
    require_one_of(("buffer", "momentum", "batch"), rate=rate)
    require_one_of(("sample", "mean"), u=u)
    require_one_of(("similarity", "score"), noise_on=noise_on)
    if isinstance(weight, str):
        require_one_of(WEIGHTS, weight=weight)
        weight = WEIGHTS[weight]
    require_not_negative(noise=0.0 if callable(noise) else noise)
    if learn_scale:
        if callable(temperature):
            raise ValueError(
                "temperature is learned, so its value must be a number, got a schedule"
            )
        require_positive(temperature=temperature)
    fixed = {"momentum": momentum, "weight": weight, "temperature": temperature, "noise": noise}

    def init(key: Array, num_examples: int, dim: int) -> tuple[dict, Array | tuple]:
        del key, dim
        learned = {"logit_scale": -jnp.log(jnp.float32(temperature))} if learn_scale else {}
        return learned, jnp.full(num_examples, -math.inf) if rate == "buffer" else ()

    def loss(pairs, params, memory, *, step, key) -> tuple[Array, Array | tuple, Metrics]:
        now = at_step(fixed, step)
        if learn_scale:
            now["temperature"] = jnp.exp(-jnp.minimum(params["logit_scale"], LARGEST_SCALE))
        how = {"temperature": now["temperature"], "similarity": similarity}
        # What never happens is not compiled.
        noisy = callable(noise) or noise > 0
        added = None
        if noisy:
            added = _Noise(now["noise"] * gaussian(key, pairs), noise_on == "score")
        log_rate = _log_mean(_as_keys(pairs) if rate == "momentum" else pairs, added, **how)
        if rate == "buffer":
            old = examples.read(memory, pairs)
            log_rate = examples.log_average(old, log_rate, 1 - now["momentum"])
            memory = examples.write(memory, pairs, log_rate, logs=True)
        log_rate = lax.stop_gradient(log_rate)
        if u == "sample":
            log_rate = log_rate - jnp.log(exponential(key, pairs))
        per_anchor = _loss(
            pairs, log_rate, now["weight"], now["temperature"], similarity, include_positive, added
        )
        value, alone = mean_over_anchors(per_anchor, pairs)
        weight = jnp.asarray(now["weight"], jnp.float32)
        return value, memory, {"anchors_without_positive": alone, "weight": weight, **params}

    return Objective(init, loss, per_example=rate == "buffer", needs_two_towers=rate == "momentum")


WEIGHTS = {
    "alternate": lambda step: 1 - jnp.asarray(step % 2, jnp.float32),
    "inverse": lambda step: 1 / (1 + jnp.asarray(step, jnp.float32)),
}


def _as_keys(pairs: Pairs) -> Pairs:
    if pairs.num_views:
        raise ValueError('rate="momentum" needs keys of a momentum network, as two towers have')
    return replace(pairs, anchor=lax.stop_gradient(pairs.partner))


def exponential(key: Array, pairs: Pairs) -> Array:
    """[n] draws from Exponential(1), keyed by example and view: equal on any number of devices."""
    # A draw of 0 would make the rate infinite.
    return jnp.maximum(jax.vmap(jax.random.exponential)(_anchor_keys(key, pairs)), 1e-30)


def gaussian(key: Array, pairs: Pairs) -> Array:
    """[n, m] draws from Normal(0, 1), likewise."""
    keys = _anchor_keys(jax.random.fold_in(key, NOISE), pairs)
    return jax.vmap(lambda own: jax.random.normal(own, (pairs.candidate.shape[0],)))(keys)


def _anchor_keys(key: Array, pairs: Pairs) -> Array:
    """[n] keys, one for each example and view."""

    def fold(index: Array, view: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, index), view)

    index = by_view(pairs, pairs.index)
    view = jnp.broadcast_to(jnp.arange(index.shape[0], dtype=jnp.int32)[:, None], index.shape)
    return jax.vmap(jax.vmap(fold))(index, view).reshape(-1)

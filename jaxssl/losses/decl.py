"""DeCL: a contrastive loss as a plain sum over negatives, by Gamma variables and stochastic EM."""

import math
from dataclasses import replace
from functools import partial

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.memory import (
    log_average,
    mean_log,
    read_examples,
    require_per_anchor,
    write_examples,
)
from jaxssl.losses.objective import (
    Number,
    Objective,
    Scalar,
    Terms,
    check,
    clip_scale,
    constrain_scale,
    make_objective,
    require_constant,
)
from jaxssl.losses.pairs import (
    ZERO,
    Pairs,
    anchor_keys,
    cosine,
    dot,
    log_sum_exp,
    mean_where,
    negatives,
    positives,
    promote,
    zero_if_empty,
)

# No code was released. The paper builds on SimCLR, MoCo-v3 and CLIP, and gives no temperature (the
# presets have theirs). It recommends lambda proportional to 1 / t, without a factor (2.2.3).
PRESETS = {
    "simclr": {"temperature": 0.5, "rate": "buffer", "weight": "alternate"},
    "moco_v3": {"temperature": 0.2, "rate": "momentum", "weight": 1.0},
    "clip": {"rate": "buffer", "weight": "alternate", "temperature": 0.07, "learn_scale": True},
}
WEIGHTS = {
    "alternate": lambda step: 1 - jnp.asarray(step % 2, jnp.float32),
    "inverse": lambda step: 1 / (1 + jnp.asarray(step, jnp.float32)),
}
# This number is folded into the random keys of the noise. It exceeds every example index.
NOISE_KEY = 2**31 - 1
MAX_SCALE = 100.0  # CLIP bounds its learned logit scale by 100 too.
MIN_SCORE = 1e-3  # Scores with noise are clipped below at this value, so that their logs exist.
MAX_LOG = 80.0  # bound on the log of u times the mean similarity, so that gradients fit float32

RANGES = {
    "rate": ("buffer", "momentum", "batch"),
    "u": ("sample", "mean"),
    "momentum": "in [0, 1]",
    "weight": ("in [0, 1]", *WEIGHTS),
    "temperature": "> 0",
    "similarity": ("cosine", "neg_euclidean"),
    "noise": ">= 0",
    "noise_on": ("similarity", "score"),
}


def decl_loss(
    pairs: Pairs,
    rate: Array | None = None,
    *,
    weight: Scalar = 1.0,
    temperature: Scalar = 0.5,
    similarity: str = "cosine",
    include_positive: bool = False,
) -> Array:
    r"""Compute DeCL, in which a weighted sum over negatives replaces the log of a sum.

    .. math:: L_i &= \lambda L^1_i + (1 - \lambda) L^2_i \\
              L^1_i &= u_i \frac{1}{|N_i|} \sum_n s_{in} - \log s_{i+}, \quad u_i = 1 / r_i \\
              L^2_i &= \log \sum_n s_{in} - \log s_{i+}

    with s = exp(cosine / tau) or exp(-distance / tau). The log s of several positives are averaged.
    u is a constant in the gradient.

    Args:
        pairs: n anchors, m candidates.
        rate: r, [n], > 0, an estimate of each anchor's mean similarity to its negatives. u is Gamma
            distributed with shape 1 and this rate. Pass r for the mean of u, r / Exponential(1) for
            a sample. None computes r from this batch. The gradient of L^1 then equals DCL's.
        weight: lambda, in [0, 1].
        temperature: softmax temperature tau, > 0.
        similarity: "cosine", or "neg_euclidean" for embeddings that are not normalised.
        include_positive: add the positive to the sum in L^2, as in InfoNCE.

    Returns:
        [n] float32, 0 for an anchor without a positive. u times the mean similarity is clipped at
        e^80.

    Raises:
        ValueError: if the rates have another shape, or ``rate`` or ``weight`` is a word.

    References:
        Chen et al., Why do We Need Large Batchsizes in Contrastive Learning? A Gradient-Bias
        Perspective, 2022, algorithm 1. No code was released.
    """
    if isinstance(rate, str) or isinstance(weight, str):
        raise ValueError(
            "rate must be an array [n] and weight a number in [0, 1], got a word; words such as "
            '"buffer" are settings of losses.objective("decl")'
        )
    if rate is not None:
        require_per_anchor(rate, pairs, "rate")
    log_s = _log_similarity(pairs, temperature, similarity)
    return _loss(pairs, log_s, None if rate is None else jnp.log(rate), weight, include_positive)


def _log_mean(log_s: Array, neg: Array) -> Array:
    """Compute the log of each anchor's mean similarity to its negatives, [n]."""
    count = jnp.maximum(jnp.sum(neg, axis=1, dtype=jnp.int32), 1)
    return log_sum_exp(log_s, neg) - jnp.log(count.astype(log_s.dtype))


def _loss(
    pairs: Pairs, log_s: Array, log_rate: Array | None, weight: Scalar, include_positive: bool
) -> Array:
    """Compute `decl_loss` from the logs of the similarities [n, m] and of the rates [n].

    Without rates, they are the mean similarities.
    """
    pos, neg = positives(pairs), negatives(pairs)
    log_positive, log_negative = mean_where(log_s, pos), log_sum_exp(log_s, neg)
    log_mean = _log_mean(log_s, neg)
    log_rate = lax.stop_gradient(log_mean if log_rate is None else log_rate)
    has_negative = jnp.any(neg, axis=1)
    log_ratio = jnp.where(has_negative, log_mean - log_rate, 0)
    decomposed = jnp.where(has_negative, jnp.exp(jnp.minimum(log_ratio, MAX_LOG)), 0)
    if include_positive:
        log_total = jnp.logaddexp(log_negative, log_sum_exp(log_s, pos))
    else:
        log_total = zero_if_empty(log_negative)
    loss = weight * decomposed + (1 - weight) * log_total - log_positive
    return jnp.where(jnp.any(pos, axis=1), loss, 0)


def _log_similarity(
    pairs: Pairs,
    temperature: Scalar,
    similarity: str,
    noise: Array | None = None,
    noise_on: str = "similarity",
) -> Array:
    """Compute similarity / temperature of each anchor and candidate [n, m], with optional noise."""
    s = cosine(pairs) if similarity == "cosine" else -distance(pairs)
    if noise is None:
        return s / temperature
    if noise_on == "similarity":
        return (s + noise) / temperature
    logits = s / temperature  # Above the bound, the noise is below the rounding of float32.
    noisy = jnp.exp(jnp.minimum(logits, MAX_LOG)) + noise
    return jnp.where(logits > MAX_LOG, logits, jnp.log(jnp.maximum(noisy, MIN_SCORE)))


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
    """Return the objective of DeCL, with a trained scale and a memory if the settings ask for them.

    The rates of the Gamma variables come from a buffer with a row per example, from momentum
    keys, or from the batch.

    Args:
        rate: source of the rates. "buffer": a moving average for every example; "momentum": the
            mean similarity of the anchor's key to the other keys, for `pair_towers` with keys of a
            momentum network; "batch": the current batch.
        u: "sample" samples from the Gamma distribution, "mean" uses its mean 1 / rate.
        momentum: weight of the past in the moving average, in [0, 1].
        weight: lambda, in [0, 1]; "alternate", which alternates 1 and 0; or "inverse",
            1 / (step + 1).
        temperature: softmax temperature tau, > 0.
        similarity: "cosine" or "neg_euclidean".
        include_positive: add the positive to the sum in L^2.
        noise: standard deviation of the Gaussian noise of the paper's Figure 2, >= 0. With weight 0
            and ``include_positive`` the loss is NT-Xent under the same noise.
        noise_on: the paper does not say where the noise is added. "similarity": to every cosine or
            distance. "score": to every exp(similarity / tau), as in the paper's Figure 1. Scores
            below 1e-3 are then set to 1e-3.
        learn_scale: train log(1 / tau) together with the network, as in CLIP. It starts from
            ``temperature``, which must be a number. 1 / tau is at most 100, and the objective
            lowers it to this bound after each update.

    Raises:
        ValueError: if a value is out of range or unknown.
    """
    words = {"rate": rate, "u": u, "similarity": similarity, "noise_on": noise_on}
    scheduled = {"momentum": momentum, "weight": weight, "temperature": temperature, "noise": noise}
    require_constant(**words, include_positive=include_positive, learn_scale=learn_scale)
    check(RANGES, **words, **scheduled)
    if learn_scale and callable(temperature):
        raise ValueError(
            "temperature must be a number if learn_scale=True, got a schedule; "
            "set a number or learn_scale=False"
        )
    if isinstance(weight, str):
        scheduled["weight"] = WEIGHTS[weight]
    has_noise = callable(noise) or noise > 0

    def init(key, num_examples, dim):
        params = {}
        if learn_scale:  # A scale above the bound would have no gradient.
            scale = -jnp.log(jnp.float32(temperature))
            params = {"logit_scale": clip_scale(scale, MAX_SCALE)}
        unset = jnp.full(num_examples, -math.inf, jnp.float32) if rate == "buffer" else ()
        return params, unset

    def compute(pairs, params, memory, hyper, key):
        tau = hyper["temperature"]
        if learn_scale:
            tau = jnp.exp(-clip_scale(params["logit_scale"], MAX_SCALE))
        added = hyper["noise"] * gaussian(key, pairs) if has_noise else None
        log_s = log_s_of_rate = _log_similarity(pairs, tau, similarity, added, noise_on)
        if rate == "momentum":
            if pairs.num_views:
                raise ValueError(
                    'rate="momentum" needs keys of a momentum network, got views of one network; '
                    'use pair_towers or set rate="buffer"'
                )
            keys = replace(pairs, anchor=lax.stop_gradient(pairs.partner))
            log_s_of_rate = _log_similarity(keys, tau, similarity, added, noise_on)
        log_rate = _log_mean(log_s_of_rate, negatives(pairs))
        if rate == "buffer":
            past = read_examples(memory, pairs)
            log_rate = log_average(past, log_rate, 1 - hyper["momentum"])
            has_negative = jnp.any(negatives(pairs), axis=1)  # An anchor without one has no rate.
            stored = jnp.where(has_negative, log_rate, past)
            memory = write_examples(memory, pairs, stored, logs=True)
        if u == "sample":
            log_rate = log_rate - jnp.log(exponential(key, pairs))
        per_anchor = _loss(pairs, log_s, log_rate, hyper["weight"], include_positive)
        return Terms(per_anchor, memory, {"weight": jnp.float32(hyper["weight"]), **params})

    return make_objective(
        compute,
        scheduled,
        init,
        merge=lambda memories: mean_log(*memories) if rate == "buffer" else (),
        constrain=constrain_scale(MAX_SCALE),
        per_example=rate == "buffer",
        needs_two_towers=rate == "momentum",
        takes_queue=similarity == "cosine",  # The rows of a queue are normalised.
    )


def exponential(key: Array, pairs: Pairs) -> Array:
    """Draw Exponential(1) samples [n] that do not depend on the number of devices."""
    draw = partial(jax.random.exponential, dtype=jnp.float32)
    # The log of a sample of exactly 0 would be infinite.
    return jnp.maximum(jax.vmap(draw)(anchor_keys(key, pairs)), 1e-30)


def gaussian(key: Array, pairs: Pairs) -> Array:
    """Draw Normal(0, 1) samples [n, m] that do not depend on the number of devices."""
    keys = anchor_keys(jax.random.fold_in(key, NOISE_KEY), pairs)
    draw = partial(jax.random.normal, shape=(pairs.candidate.shape[0],), dtype=jnp.float32)
    return jax.vmap(draw)(keys)


def distance(pairs: Pairs) -> Array:
    """Compute Euclidean distances [n, m] of unnormalised rows.

    Rows closer than 0.3 % of their distance from the median count as equal, and have no gradient.
    """
    x, y = promote(pairs.anchor), promote(pairs.candidate)
    largest = jnp.maximum(*(collectives.max(jnp.abs(z), None) for z in (x, y)))
    scale = jnp.where(largest < ZERO, 1, largest)
    x, y = x / scale, y / scale
    # A common offset changes no distance, but the rounding of large squares would hide small ones.
    # Unlike a mean, the median does not follow a few large rows.
    offset = lax.stop_gradient(jnp.median(y, axis=0, keepdims=True)) if len(y) else 0
    x, y = x - offset, y - offset
    size = jnp.sum(x * x, axis=1)[:, None] + jnp.sum(y * y, axis=1)[None, :]
    square = size - 2 * dot(x, y)
    equal = square <= 32 * jnp.finfo(x.dtype).eps * size
    return jnp.where(equal, 0, jnp.sqrt(jnp.where(equal, 1, square))) * scale

"""SogCLR: the global contrastive loss, with a moving average for every example."""

import math
from typing import NamedTuple

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses import memory as examples
from jaxssl.losses._row_sums import log_sum
from jaxssl.losses.objective import (
    Metrics,
    Number,
    Objective,
    at_step,
    mean_over_anchors,
    require_positive,
    require_share,
)
from jaxssl.losses.pairs import Pairs, cosine, negatives, positives

PRESETS = {"sogclr": {}, "isogclr": {"individual_temperature": True}}


def sogclr_loss(
    pairs: Pairs,
    log_u: Array | None = None,
    *,
    temperature: Number = 0.1,
    gamma: Number = 0.9,
) -> Array:
    r"""Negatives weighted by an estimate of the whole data set's denominator.

    .. math:: L_i &= 2 \Big(-\frac{1}{|P_i|} \sum_p s_{ip}
              + \frac{1}{|N_i|} \sum_n \frac{e^{s_{in}/\tau}}{u_i} s_{in}\Big) \\
              u_i &\leftarrow (1 - \gamma) u_i
              + \gamma \frac{1}{|N_i|} \sum_n e^{s_{in}/\tau}

    The weights are constants. The factor 2 makes the mean over anchors the authors' mean over
    examples of both views' sum: with gamma = 1 its gradient is 2 tau times DCL's.

    Args:
        pairs: n anchors, m candidates; s is their cosine similarity.
        log_u: [n] log of u before this batch; -inf, or None, where it is the first.
        temperature: tau, > 0; one number, or [n].
        gamma: weight of this batch in u, in [0, 1].

    Returns:
        [n] float32; 0 for an anchor without a positive. The value is no measure of progress, its
        gradient is.

    References:
        Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, 2022,
        eq. 3 and algorithm 1. Qiu et al., Not All Semantics are Created Equal, 2023.

    Differs from the released code: an example seen for the first time starts its average, also
    beside others; there all of a batch start or none.
    """
    return _terms(pairs, log_u, temperature, gamma).loss


class _Terms(NamedTuple):
    loss: Array
    log_u: Array
    temperature_gradient: Array  # without rho


def _terms(pairs: Pairs, log_u: Array | None, temperature: Number, gamma: Number) -> _Terms:
    require_positive(temperature=temperature)
    require_share(gamma=gamma)
    s, neg, pos = cosine(pairs), negatives(pairs), positives(pairs)
    tau = jnp.broadcast_to(jnp.asarray(temperature, s.dtype), s.shape[:1])[:, None]
    num_pos, num_neg = (jnp.sum(mask, axis=1, dtype=s.dtype) for mask in (pos, neg))
    some_neg = jnp.maximum(num_neg, 1)
    logits = lax.stop_gradient(s) / tau
    new = log_sum(logits, neg) - jnp.log(some_neg)
    log_u = new if log_u is None else examples.log_average(log_u, new, gamma)
    # At most 1 / gamma times the number of negatives, whatever the temperature.
    weight = jnp.where(neg, jnp.exp(jnp.where(neg, logits - log_u[:, None], 0)), 0)
    weight = weight / some_neg[:, None]
    pull = jnp.sum(jnp.where(pos, s, 0), axis=1) / jnp.maximum(num_pos, 1)
    loss = 2 * (jnp.sum(weight * s, axis=1) - pull)
    gradient = log_u - jnp.sum(weight * logits, axis=1)
    return _Terms(jnp.where(num_pos > 0, loss, 0), log_u, gradient)


def objective(
    *,
    temperature: Number = 0.1,
    gamma: Number = 0.9,
    individual_temperature: bool = False,
    rho: Number = 0.3,
    temperature_lr: Number = 0.01,
    temperature_momentum: Number = 0.9,
    temperature_min: float = 0.05,
    temperature_max: float = 0.7,
) -> Objective:
    """SogCLR with its moving averages; or iSogCLR, where every example has its own temperature.

    Args:
        temperature: tau; with individual temperatures their start, then a number.
        gamma: weight of a batch in the moving average, in [0, 1].
        individual_temperature: train a temperature for every example.
        rho: how strongly temperatures are held down.
        temperature_lr: step size of the temperatures.
        temperature_momentum: weight of a batch in the temperatures' gradient, in [0, 1].
        temperature_min: least temperature, > 0.
        temperature_max: largest temperature.
    """
    require_positive(temperature_min=temperature_min)
    if individual_temperature and callable(temperature):
        raise ValueError("temperature is individual, so its start must be a number, no schedule")
    fixed = {
        "temperature": temperature,
        "gamma": gamma,
        "rho": rho,
        "lr": temperature_lr,
        "momentum": temperature_momentum,
    }

    def init(key: Array, num_examples: int, dim: int) -> tuple[dict, dict[str, Array]]:
        del key, dim
        memory = {"log_u": jnp.full(num_examples, -math.inf)}
        if individual_temperature:
            memory["temperature"] = jnp.full(num_examples, temperature)
            memory["gradient"] = jnp.zeros(num_examples)
        return {}, memory

    def loss(pairs, params, memory, *, step, key) -> tuple[Array, dict[str, Array], Metrics]:
        del params, key
        now = at_step(fixed, step)
        tau = now["temperature"]
        if individual_temperature:
            tau = examples.read(memory["temperature"], pairs)
        terms = _terms(pairs, examples.read(memory["log_u"], pairs), tau, now["gamma"])
        new = dict(memory)
        new["log_u"] = examples.write(memory["log_u"], pairs, terms.log_u, logs=True)
        value, alone = mean_over_anchors(terms.loss, pairs)
        metrics = {"anchors_without_positive": alone}
        if individual_temperature:
            gradient = now["rho"] + terms.temperature_gradient
            old = examples.read(memory["gradient"], pairs)
            mixed = (1 - now["momentum"]) * old + now["momentum"] * gradient
            new["gradient"] = examples.write(memory["gradient"], pairs, mixed)
            moved = tau - now["lr"] * examples.read(new["gradient"], pairs)
            moved = jnp.clip(moved, temperature_min, temperature_max)
            new["temperature"] = examples.write(memory["temperature"], pairs, moved)
            metrics["temperature"] = jnp.mean(moved)
        return value, new, metrics

    return Objective(init, loss, per_example=True)

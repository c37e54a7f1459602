"""FastCLIP with individual temperatures: SogCLR's averages and temperatures for two towers."""

import math

from jax import Array
from jax import numpy as jnp

from jaxssl.losses.memory import read_examples, write_examples
from jaxssl.losses.objective import (
    Number,
    Objective,
    Scalar,
    Terms,
    check,
    make_objective,
    require_constant,
)
from jaxssl.losses.pairs import Pairs, cosine, mean_where, negatives, positives, swap
from jaxssl.losses.sogclr import Average, check_bounds, column, merge_averages, update_average

RANGES = {"temperature": "> 0", "temperature_min": "> 0", "temperature_lr": ">= 0"}
RANGES |= {"gamma": "in [0, 1]", "beta1": "in [0, 1)", "beta2": "in [0, 1)"}
RANGES |= {"rho": ">= 0", "temperature_max": "> 0 or inf"}
PER_ANCHOR = ("temperature",)  # hyper-parameters that may be arrays [n]
MAX_GRADIENT = 5.0  # Larger gradients of a temperature are clipped to this one.
EPSILON = 1e-8  # epsilon of Adam


def fastclip_loss(
    pairs: Pairs,
    log_u: Array | None = None,
    log_v: Array | None = None,
    *,
    temperature: Scalar = 0.03,
    gamma: Scalar = 0.2,
) -> Array:
    r"""Compute the global contrastive loss of two towers, with moving averages for every example.

    .. math:: L_i &= \frac{g_i}{u_i} + \frac{h_i}{v_i} \\
              g_i &= \frac{1}{|N_i|} \sum_n e^{(s_{in} - s_{ii}) / \tau}, \quad
              h_i = \frac{1}{|N_i|} \sum_n e^{(s_{ni} - s_{ii}) / \tau} \\
              u_i &\leftarrow (1 - \gamma) u_i + \gamma g_i, \quad
              v_i \leftarrow (1 - \gamma) v_i + \gamma h_i

    g compares image i with the other captions, and h caption i with the other images. The averages
    u and v are constants in the gradient. With gamma = 1 it is the gradient of log g + log h.

    Args:
        pairs: n images, m captions, from `pair_towers` without a queue.
        log_u: [n] log of u before this batch, -inf for an example's first batch. None is -inf.
        log_v: the same of v.
        temperature: tau, > 0, a number or [n].
        gamma: weight of this batch in u and v, in [0, 1].

    Returns:
        [n] float32, 0 for an anchor without a positive or a negative. Only the gradient is
        meaningful; the value does not measure progress.

    Raises:
        ValueError: if the pairs have a queue.

    References:
        Wei et al., FastCLIP: A Suite of Optimization Techniques to Accelerate CLIP Training with
        Limited Resources, 2024, algorithm 1 and FastCLIP-v2.
    """
    of_images, _ = _one_direction(pairs, log_u, temperature, gamma)
    of_captions, _ = _one_direction(swap(pairs), log_v, temperature, gamma)
    return of_images + of_captions


def _one_direction(
    pairs: Pairs, log_u: Array | None, temperature: Scalar, gamma: Scalar
) -> tuple[Array, Average]:
    """Return g / u of each anchor, [n], and the moving averages after this batch."""
    s, pos = cosine(pairs), positives(pairs)
    logits = (s - mean_where(s, pos)[:, None]) / column(temperature, pairs)
    average = update_average(logits, pairs, log_u, gamma)
    loss = jnp.exp(average.log_mean - average.log_u)
    has_both = jnp.any(pos, axis=1) & jnp.any(negatives(pairs), axis=1)
    return jnp.where(has_both, loss, 0), average


def objective(
    *,
    temperature: float = 0.03,
    gamma: Number = 0.2,
    rho: Number = 7.0,
    temperature_lr: Number = 0.0133,
    beta1: float = 0.9,
    beta2: float = 0.999,
    temperature_min: float = 0.01,
    temperature_max: float = 1.0,
) -> Objective:
    """Return FastCLIP-v2, which trains two temperatures for every example with Adam.

    The paper lowers gamma from 1 to 0.2 by a cosine over the first half of the epochs, which a
    schedule gives. The defaults are the released values for CC3M.

    Args:
        temperature: initial temperature, > 0.
        gamma: weight of a batch in the moving averages, in [0, 1].
        rho: constant added to the gradient of a temperature, >= 0; larger ones lower temperatures.
        temperature_lr: learning rate of the temperatures, >= 0.
        beta1: decay of Adam's mean of a temperature's gradient, in [0, 1).
        beta2: decay of Adam's mean of its square, in [0, 1).
        temperature_min: lower bound of the temperatures, > 0.
        temperature_max: upper bound of the temperatures, > 0, or inf.

    Raises:
        ValueError: if a value is out of range.

    Differs from the released code: Adam corrects its bias by the number of times that an example
    was seen. The released code sets both decays to 0 in the first epoch, and counts epochs.
    """
    hyper = {"gamma": gamma, "rho": rho, "temperature_lr": temperature_lr}
    bounds = {"temperature_min": temperature_min, "temperature_max": temperature_max}
    constants = {"temperature": temperature, "beta1": beta1, "beta2": beta2, **bounds}
    check(RANGES, **constants, **hyper)
    check_bounds(temperature_min, temperature_max)
    require_constant(**constants)

    def init(key, num_examples, dim):
        start = {"log_u": -math.inf, "temperature": temperature, "mean": 0, "square": 0, "count": 0}

        def buffers():
            return {name: jnp.full(num_examples, x, jnp.float32) for name, x in start.items()}

        return {}, {"query": buffers(), "key": buffers()}

    def take_adam_step(past, slope, hyper):
        """Return the temperatures and Adam's averages after a step, all but log u of ``past``."""
        gradient = jnp.clip(hyper["rho"] + slope, -MAX_GRADIENT, MAX_GRADIENT)
        count = past["count"] + 1
        mean = beta1 * past["mean"] + (1 - beta1) * gradient
        square = beta2 * past["square"] + (1 - beta2) * gradient**2
        size = jnp.sqrt(square / (1 - beta2**count)) + EPSILON
        tau = past["temperature"] - hyper["temperature_lr"] * mean / (1 - beta1**count) / size
        tau = jnp.clip(tau, temperature_min, temperature_max)
        return {"temperature": tau, "mean": mean, "square": square, "count": count}

    def update(buffers, pairs, hyper):
        """Return one direction's loss [n], its new buffers and the mean temperature."""
        past = {name: read_examples(buffer, pairs) for name, buffer in buffers.items()}
        loss, average = _one_direction(pairs, past["log_u"], past["temperature"], hyper["gamma"])
        values = {"log_u": average.log_u, **take_adam_step(past, average.slope, hyper)}
        # Anchors without negatives do not update the average or the temperature.
        has_negative = jnp.any(negatives(pairs), axis=1)
        values = {name: jnp.where(has_negative, x, past[name]) for name, x in values.items()}
        new = {
            name: write_examples(buffers[name], pairs, x, logs=name == "log_u")
            for name, x in values.items()
        }
        return loss, new, jnp.mean(values["temperature"])

    def compute(pairs, params, memory, hyper, key):
        query_loss, query, query_tau = update(memory["query"], pairs, hyper)
        key_loss, keys, key_tau = update(memory["key"], swap(pairs), hyper)
        metrics = {"temperature": jnp.add(query_tau, key_tau) / 2}
        return Terms(query_loss + key_loss, {"query": query, "key": keys}, metrics)

    def merge(memories):
        return {name: merge_averages([m[name] for m in memories]) for name in memories[0]}

    flags = {"per_example": True, "takes_queue": False, "both_directions": True}
    return make_objective(compute, hyper, init, merge=merge, **flags)

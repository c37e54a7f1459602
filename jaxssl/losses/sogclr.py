"""SogCLR: global contrastive loss with a moving average of the denominator for every example."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.memory import (
    log_average,
    mean_log,
    read_examples,
    require_per_anchor,
    write_examples,
)
from jaxssl.losses.objective import (
    Hyper,
    Objective,
    Scalar,
    Terms,
    factory,
    make_objective,
    mean_memory,
)
from jaxssl.losses.pairs import (
    Pairs,
    cosine,
    log_sum_exp,
    mean_where,
    negatives,
    positives,
    promote,
)

# LibAUC's settings of SogCLR and iSogCLR.
PRESETS = {"sogclr": {}, "isogclr": {"individual_temperature": True}}
RANGES = {"temperature": "> 0", "temperature_min": "> 0", "temperature_lr": ">= 0"}
RANGES |= {"gamma": "in [0, 1]", "temperature_momentum": "in [0, 1]"}
RANGES |= {"rho": ">= 0", "temperature_max": "> 0 or inf"}
PER_ANCHOR = ("temperature",)  # hyper-parameters that may be arrays [n]


def sogclr_loss(
    pairs: Pairs, log_u: Array | None = None, *, temperature: Scalar = 0.1, gamma: Scalar = 0.9
) -> Array:
    r"""Compute the contrastive loss with moving averages that estimate the data set's denominator.

    .. math:: L_i &= 2 \Big(-\frac{1}{|P_i|} \sum_p s_{ip}
              + \frac{1}{|N_i|} \sum_n \frac{e^{s_{in}/\tau}}{u_i} s_{in}\Big) \\
              u_i &\leftarrow (1 - \gamma) u_i
              + \gamma \frac{1}{|N_i|} \sum_n e^{s_{in}/\tau}

    The weights are constants. The authors sum over both views and average over examples; the
    factor 2 gives the same from a mean over anchors. With gamma = 1 the gradient is 2 tau times
    DCL's.

    Args:
        pairs: n anchors, m candidates, with cosine similarities s.
        log_u: [n] log of u before this batch, -inf for an example's first batch. None is -inf.
        temperature: tau, > 0, a number or [n].
        gamma: weight of this batch in u, in [0, 1].

    Objective:
        individual_temperature: train a temperature for every example (iSogCLR). They start at
            ``temperature``, which must be a number.
        rho: constant added to the gradient of a temperature, >= 0; larger ones lower temperatures.
        temperature_lr: learning rate of the temperatures, >= 0.
        temperature_momentum: weight of a batch in the temperatures' gradient, in [0, 1].
        temperature_min: lower bound of the temperatures, > 0.
        temperature_max: upper bound of the temperatures, > 0, or inf.

    Returns:
        [n] float32, 0 for an anchor without a positive. Only the gradient is meaningful; the value
        does not measure progress.

    Raises:
        ValueError: if ``log_u`` or an array of temperatures has another shape.

    References:
        Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, 2022,
        eq. 3 and algorithm 1. Qiu et al., Not All Semantics are Created Equal, 2023.

    Differs from the released code: the average of an example starts when it is first seen. In the
    released code either all examples of a batch start or none.

    Checked against: LibAUC (``GCLoss``), three steps of SogCLR and iSogCLR.
    """
    return _loss_and_average(pairs, log_u, temperature, gamma)[0]


def _loss_and_average(
    pairs: Pairs, log_u: Array | None, temperature: Scalar, gamma: Scalar
) -> tuple[Array, "Average"]:
    """Return the loss [n] and the moving averages after this batch."""
    s, pos = cosine(pairs), positives(pairs)
    average = update_average(s / column(temperature, pairs), pairs, log_u, gamma)
    loss = 2 * (jnp.sum(average.weight * s, axis=1) - mean_where(s, pos))
    return jnp.where(jnp.any(pos, axis=1), loss, 0), average


class Average(NamedTuple):
    """The moving average u of each anchor's mean of e^logits over its negatives N.

    Attributes:
        log_mean: [n] log of the batch's mean, with gradient. The other numbers are constants.
        log_u: [n] log of u after this batch.
        weight: [n, m], e^logits / (u |N|) of the negatives, at most 1 / gamma for gamma > 0.
        slope: [n] estimate of the gradient of tau log u by the temperature tau that divides the
            logits. As in LibAUC, the gradient of u is taken from this batch's mean.
    """

    log_mean: Array
    log_u: Array
    weight: Array
    slope: Array


def column(temperature: Scalar, pairs: Pairs) -> Array:
    """Return temperatures [n] as [n, 1], and one temperature as [1, 1]."""
    if jnp.ndim(temperature):
        require_per_anchor(temperature, pairs, "temperature")
    return jnp.reshape(jnp.asarray(temperature, promote(pairs.anchor).dtype), (-1, 1))


def update_average(logits: Array, pairs: Pairs, log_u: Array | None, gamma: Scalar) -> Average:
    """Update the moving averages of the examples in this batch.

    Args:
        logits: [n, m].
        pairs: the pairs of the logits.
        log_u: [n] log of u before this batch, -inf for an example's first batch. None is -inf.
        gamma: weight of this batch in u, in [0, 1].
    """
    if log_u is not None:
        require_per_anchor(log_u, pairs, "log_u")
    neg = negatives(pairs)
    num_neg = jnp.maximum(jnp.sum(neg, axis=1, dtype=logits.dtype), 1)
    log_mean = log_sum_exp(logits, neg) - jnp.log(num_neg)
    logits, now = lax.stop_gradient((logits, log_mean))
    log_u = now if log_u is None else log_average(log_u, now, gamma)
    weight = jnp.where(neg, jnp.exp(jnp.where(neg, logits - log_u[:, None], 0)), 0)
    weight = weight / num_neg[:, None]
    return Average(log_mean, log_u, weight, log_u - jnp.sum(weight * logits, axis=1))


def merge_averages(memories: Sequence[dict[str, Array]]) -> dict[str, object]:
    """Average the memories of several pairings. "log_u" holds logs of the averaged values."""
    buffers = {name: [memory[name] for memory in memories] for name in memories[0]}
    return {
        name: mean_log(*values) if name == "log_u" else mean_memory(values)
        for name, values in buffers.items()
    }


def check_bounds(temperature_min: object, temperature_max: object) -> None:
    """Raise ValueError if the lower bound of the temperatures exceeds the upper one."""
    bounds = temperature_min, temperature_max
    numbers = [bound for bound in bounds if isinstance(bound, int | float)]
    if numbers != sorted(numbers):
        raise ValueError(
            f"temperature_min must be at most temperature_max, got {numbers[0]} and {numbers[1]}"
        )


def _build(hyper: Hyper) -> Objective:
    """Return an objective with a moving average (iSogCLR: and a temperature) for every example."""
    temperature, individual = hyper["temperature"], hyper.pop("individual_temperature")
    if individual and callable(temperature):
        raise ValueError(
            "temperature must be a number if individual_temperature=True, got a schedule; "
            "set a number or individual_temperature=False"
        )
    check_bounds(hyper["temperature_min"], hyper["temperature_max"])

    def init(key, num_examples, dim):
        memory = {"log_u": jnp.full(num_examples, -math.inf, jnp.float32)}
        if individual:
            memory["temperature"] = jnp.full(num_examples, temperature, jnp.float32)
            memory["gradient"] = jnp.zeros(num_examples, jnp.float32)
        return {}, memory

    def compute(pairs, params, memory, hyper, key):
        past = {name: read_examples(buffer, pairs) for name, buffer in memory.items()}
        tau = past["temperature"] if individual else hyper["temperature"]
        loss, average = _loss_and_average(pairs, past["log_u"], tau, hyper["gamma"])
        # Anchors without negatives do not update the average or the temperature.
        has_negative = jnp.any(negatives(pairs), axis=1)
        log_u = jnp.where(has_negative, average.log_u, past["log_u"])
        new = {"log_u": write_examples(memory["log_u"], pairs, log_u, logs=True)}
        if not individual:
            return Terms(loss, new)
        # iSogCLR trains the temperature of each example by gradient descent with momentum.
        momentum = hyper["temperature_momentum"]
        gradient = (1 - momentum) * past["gradient"] + momentum * (hyper["rho"] + average.slope)
        gradient = jnp.where(has_negative, gradient, past["gradient"])
        new["gradient"] = write_examples(memory["gradient"], pairs, gradient)
        # Reading the gradient again averages it over the views of an example.
        tau = tau - hyper["temperature_lr"] * read_examples(new["gradient"], pairs)
        tau = jnp.clip(tau, hyper["temperature_min"], hyper["temperature_max"])
        tau = jnp.where(has_negative, tau, past["temperature"])
        new["temperature"] = write_examples(memory["temperature"], pairs, tau)
        return Terms(loss, new, {"temperature": jnp.mean(tau)})

    return make_objective(compute, hyper, init, merge=merge_averages, per_example=True)


objective = factory(
    sogclr_loss,
    RANGES,
    _build,
    individual_temperature=False,
    rho=0.3,
    temperature_lr=0.01,
    temperature_momentum=0.9,
    temperature_min=0.05,
    temperature_max=0.7,
)

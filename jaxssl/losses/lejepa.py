"""LeJEPA: views close to their mean, and embeddings that are normally distributed (SIGReg)."""

from functools import partial

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Scalar, Terms, factory, make_objective
from jaxssl.losses.pairs import Pairs, dot, promote, stack_views

RANGES = {"weight": "in [0, 1]", "num_slices": "> 0", "num_knots": "> 1", "t_max": "> 0"}


def lejepa_loss(
    pairs: Pairs,
    directions: Array | None = None,
    *,
    weight: Scalar = 0.02,
    num_slices: int = 256,
    num_knots: int = 17,
    t_max: float = 3.0,
) -> Array:
    r"""Compute LeJEPA: the views' distance to their mean, and a test of normality along directions.

    .. math:: L = \frac{1 - \lambda}{V B d} \sum_{v,i} |z^v_i - \bar z_i|^2
              + \frac{\lambda}{V K} \sum_{v,k} T(Z^v a_k), \quad
              T(x) = B \int_{-t_m}^{t_m} \Big| \frac1B \sum_i e^{\mathrm{i} t x_i} - e^{-t^2/2}
              \Big|^2 e^{-t^2/2} dt

    T is Epps and Pulley's statistic, by the trapezoidal rule on [0, t_m], doubled. Embeddings are
    not normalised.

    Args:
        pairs: from `pair_views` of V >= 2 views, or `pair_towers`.
        directions: [d, K] unit columns a_k, equal on all devices. None takes ``num_slices``
            directions from a fixed key. The objective draws new ones in every step.
        weight: lambda, in [0, 1].
        num_slices: K, > 0, if there are no ``directions``.
        num_knots: points of the trapezoidal rule on [0, t_m], at least 2.
        t_max: t_m, > 0.

    Returns:
        [n] float32: the loss of the batch, repeated for every anchor.

    Raises:
        ValueError: if there is only one view, or the directions do not have the embeddings' size.

    References:
        Balestriero and LeCun, LeJEPA, 2025, eq. 6, eq. 7 and algorithm 1.

    Differs from the paper: t_m is 3, as in the authors' code. In the paper it is 5.

    Checked against: rbalestr-lab/lejepa.
    """
    z = promote(stack_views(pairs, "lejepa"))
    _, b, d = z.shape
    if directions is None:
        directions = draw_directions(jax.random.key(0), d, num_slices)
    if directions.ndim != 2 or directions.shape[0] != d:
        raise ValueError(
            f"directions must have shape [{d}, K] like the embeddings, got {directions.shape}"
        )
    centred = z - jnp.mean(z, axis=0, keepdims=True)
    invariance = collectives.mean(jnp.mean(centred**2), pairs.axis_name)
    projected = dot(z, directions.astype(z.dtype).T)  # [V, b, K]
    knots = jnp.linspace(0, t_max, num_knots, dtype=z.dtype)
    normal = jnp.exp(-(knots**2) / 2)
    # The characteristic function of each view along each direction at each knot, [T, V, K].
    angles = knots[:, None, None, None] * projected[None]
    cosine = collectives.mean(jnp.mean(jnp.cos(angles), axis=2), pairs.axis_name)
    sine = collectives.mean(jnp.mean(jnp.sin(angles), axis=2), pairs.axis_name)
    squares = (cosine - normal[:, None, None]) ** 2 + sine**2
    batch = b * collectives.device_count(pairs.axis_name)
    integral = 2 * jnp.trapezoid(jnp.mean(squares, axis=(1, 2)) * normal, knots)
    value = (1 - weight) * invariance + weight * batch * integral
    return jnp.broadcast_to(value, pairs.index.shape)


def draw_directions(key: Array, dim: int, number: int) -> Array:
    """Draw unit vectors, uniform on the sphere, as the columns of an array [dim, number]."""
    columns = jax.random.normal(key, (dim, number), jnp.float32)
    return columns / jnp.linalg.norm(columns, axis=0, keepdims=True)


def _draw_and_compute(pairs, params, memory, hyper, key):
    """Compute LeJEPA with new directions in every step, equal on all devices."""
    directions = draw_directions(key, pairs.anchor.shape[1], hyper["num_slices"])
    return Terms(lejepa_loss(pairs, directions, **hyper), memory)


_build = partial(make_objective, _draw_and_compute, takes_labels=False, takes_queue=False)
objective = factory(lejepa_loss, RANGES, _build)

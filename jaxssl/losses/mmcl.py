"""MMCL: max-margin contrastive learning, an SVM for every anchor."""

from functools import wraps
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Metrics, Number, require_one_of, require_positive, stateless
from jaxssl.losses.pairs import Pairs, by_view, dot, negatives, unit, views_of
from jaxssl.solvers import DualSolution, svm_dual_admm, svm_dual_inv, svm_dual_pgd

# The codes write exp(-|u - v|^2 / s): gamma = 1 / s. On CIFAR gamma is multiplied by 10 at epochs
# 75 and 125. The released runs have `pair_towers(z2, z1)`.
PRESETS = {
    "paper_pgd": {"gamma": 0.1, "C": 100.0, "num_steps": 1000, "accelerated": False},
    "paper_inv": {"gamma": 0.1, "C": 100.0, "solver": "inv"},
    "released_cifar": {"gamma": 0.02, "C": 100.0, "num_steps": 1000, "step": 1e-3},
    "released_imagenet": {"gamma": 0.1, "C": float("inf"), "num_steps": 1000, "step": "frobenius"},
    "stl10": {"gamma": 0.5, "C": 100.0},
}
KERNELS = ("rbf", "linear", "tanh", "poly", "min")
SOLVERS = ("pgd", "admm", "inv")


class MMCLInfo(NamedTuple):
    """What the SVMs found, one number for each anchor but for alpha.

    Attributes:
        alpha: [n, m], >= 0, the weights of the candidates; 0 for those that are no negatives.
        support: [n], share of the negatives that are support vectors, alpha > 0, in [0, 1].
        at_bound: [n], share of the negatives with alpha = C, in [0, 1]: likely false negatives.
        kkt_residual: [n], largest step a projected gradient step of length 1 would still take.
        suboptimality: [n], bound on (objective - optimum) / |objective| where the kernel is
            positive semi-definite with K(x, x) <= 1, as rbf and linear are; see `DualSolution`.
        num_steps: [n] int32, solver steps.
    """

    alpha: Array
    support: Array
    at_bound: Array
    kkt_residual: Array
    suboptimality: Array
    num_steps: Array


def mmcl_loss(
    pairs: Pairs,
    *,
    kernel: str = "rbf",
    gamma: Number = 0.1,
    eta: Number = 0.0,
    C: Number = 100.0,
    solver: str = "pgd",
    regularization: Number = 0.1,
    num_steps: int = 200,
    tol: float | None = None,
    step: Number | str | None = None,
    accelerated: bool = True,
    alpha_init: Array | str | None = None,
) -> Array:
    r"""The negatives' kernels weighed by an SVM that separates the positive from them.

    .. math:: L_i &= \sum_j \alpha_{ij} (K(y_j, z_i) - K(x_i, z_i)) \\
              \alpha_i &= \arg\min_{0 \le a \le C} \frac{1}{2} a^\top \Delta_i a - 2 \cdot 1^\top a
              \\
              \Delta_i[j, l] &= K(y_j, y_l) - K(x_i, y_j) - K(x_i, y_l) + 1 + \beta [j = l]

    The anchor z is a view of an image, x its other view, and y are the anchor's negatives. alpha
    is a constant in the gradient. The scale of the loss is that of the sum of alpha, so use it with
    Adam or LARS.

    Args:
        pairs: n anchors, m candidates; x is ``pairs.partner``. `pair_towers(z2, z1)` has the
            released code's B - 1 negatives in the first view, `pair_views([z1, z2])` the 2(B - 1)
            of Algorithm 1. Labels take an anchor's class out of its negatives.
        kernel: of u, v at length 1: "rbf", exp(-gamma |u - v|^2); "linear", u.v; "tanh",
            tanh(gamma u.v + eta); "poly", (u.v + 0.5)^3; or "min", the sum of
            min(relu(u), relu(v)).
        gamma: > 0; for rbf 1 / (2 sigma^2).
        eta: offset of tanh.
        C: > 0, inf for none. With beta = 0.1 and rbf no alpha exceeds about 20.
        solver: "pgd", projected gradient; "admm", the same optimum in fewer and dearer steps;
            "inv", the unconstrained solution clipped, which is not the optimum. The last two do not
            take labels.
        regularization: beta, > 0.
        num_steps: of pgd or admm, > 0; their limit if ``tol`` is given.
        tol: each anchor stops once its ``suboptimality`` is at most this, or None.
        step: of pgd, > 0; None takes 1 / (a bound on the largest eigenvalue), "frobenius" the
            released 1 / |Delta|_F.
        accelerated: Nesterov's momentum with restarts, for pgd.
        alpha_init: [n, m], where pgd starts; None is 0; "inv" the solution of that solver, which
            saves steps and takes no labels. The released code draws relu(normal).

    Returns:
        [n] float32, below 0 when the SVMs separate; 0 for an anchor without negatives.

    Raises:
        ValueError: on a single view, an unknown name, or labels with "admm" or "inv".

    References:
        Shah et al., Max-Margin Contrastive Learning, AAAI 2022, proposition 1 and algorithm 1;
        Table 6 has rbf, linear and tanh; the released code poly and min too.

    Differs from the released code: alpha starts at 0 and converges; there it starts at random and
    stops early, some 3 % off. The constant 1 of Delta is kept for every kernel, as there.
    """
    info = mmcl_info(
        pairs,
        kernel=kernel,
        gamma=gamma,
        eta=eta,
        C=C,
        solver=solver,
        regularization=regularization,
        num_steps=num_steps,
        tol=tol,
        step=step,
        accelerated=accelerated,
        alpha_init=alpha_init,
    )
    return _loss(pairs, info.alpha, kernel, gamma, eta)


def mmcl_info(
    pairs: Pairs,
    *,
    kernel: str = "rbf",
    gamma: Number = 0.1,
    eta: Number = 0.0,
    C: Number = 100.0,
    solver: str = "pgd",
    regularization: Number = 0.1,
    num_steps: int = 200,
    tol: float | None = None,
    step: Number | str | None = None,
    accelerated: bool = True,
    alpha_init: Array | str | None = None,
) -> MMCLInfo:
    """The SVMs behind `mmcl_loss`, whose arguments these are; no gradient flows."""
    require_one_of(KERNELS, kernel=kernel)
    require_one_of(SOLVERS, solver=solver)
    require_positive(gamma=gamma, C=C, regularization=regularization)
    if tol is not None:
        require_positive(tol=tol)
    pairs, gamma, eta = lax.stop_gradient((pairs, gamma, eta))
    away = negatives(pairs)
    # On every device anew: to gather the rows would send m^2 numbers, and the solver's every step
    # costs more than to compute them.
    candidate = unit(pairs.candidate)
    matrix = _kernel(kernel, candidate, candidate, gamma, eta)
    own = _own(pairs)
    box = {"C": C, "regularization": regularization}
    masked = pairs.labelled or pairs.queue_only
    if masked and (solver != "pgd" or isinstance(alpha_init, str)):
        raise ValueError(
            f'solver="{solver}" with alpha_init={alpha_init!r} takes neither labels nor '
            'batch_negatives=False; use solver="pgd" and alpha_init=None'
        )
    if solver == "pgd":
        limits = {"num_steps": num_steps, "tol": tol, "step": step, "init": alpha_init}
        excluded = ~away if masked else own
        solution = svm_dual_pgd(
            matrix, own[:, 0], excluded, **box, **limits, accelerated=accelerated
        )
    elif solver == "admm":
        solution = svm_dual_admm(matrix, own[:, 0], own, **box, num_steps=num_steps, tol=tol)
    else:
        solution = svm_dual_inv(matrix, own[:, 0], own, **box)
    return _info(solution, away, C)


def _info(solution: DualSolution, away: Array, C: Number) -> MMCLInfo:
    alpha = solution.alpha
    count = jnp.maximum(jnp.sum(away, axis=1, dtype=alpha.dtype), 1)
    share = lambda mask: jnp.sum(mask & away, axis=1, dtype=alpha.dtype) / count  # noqa: E731
    return MMCLInfo(
        alpha=alpha,
        support=share(alpha > 0),
        at_bound=share(alpha >= C),
        kkt_residual=solution.kkt_residual,
        suboptimality=solution.suboptimality,
        num_steps=solution.num_steps,
    )


def _loss(pairs: Pairs, alpha: Array, kernel: str, gamma: Number, eta: Number) -> Array:
    z, partner = unit(pairs.anchor), unit(pairs.partner)
    to_candidates = _kernel(kernel, z, unit(pairs.candidate), gamma, eta)
    itself = jax.vmap(lambda u, v: _kernel(kernel, u[None], v[None], gamma, eta)[0, 0])
    return jnp.sum(alpha * (to_candidates - itself(z, partner)[:, None]), axis=1)


def _kernel(kernel: str, u: Array, v: Array, gamma: Number, eta: Number) -> Array:
    """[n, m] kernel of rows at length 1 or 0, [n, d] and [m, d]."""
    if kernel == "min":
        return _smaller(jax.nn.relu(u), jax.nn.relu(v))
    s = dot(u, v)
    if kernel == "rbf":
        square = jnp.sum(u * u, axis=1)[:, None] + jnp.sum(v * v, axis=1)[None, :] - 2 * s
        return jnp.exp(-gamma * square)
    if kernel == "tanh":
        return jnp.tanh(gamma * s + eta)
    return (s + 0.5) ** 3 if kernel == "poly" else s


def _smaller(u: Array, v: Array) -> Array:
    """[n, m] sum over features of the smaller of two, without an [n, m, d] array."""

    @jax.checkpoint
    def add(total: Array, feature: tuple[Array, Array]) -> tuple[Array, None]:
        mine, theirs = feature
        return total + jnp.minimum(mine[:, None], theirs[None, :]), None

    return lax.scan(add, jnp.zeros((u.shape[0], v.shape[0]), u.dtype), (u.T, v.T))[0]


def _own(pairs: Pairs) -> Array:
    """[n, V] int32: where the candidates of an anchor's example stand, its partner first."""
    if pairs.num_views == 0:
        b = pairs.anchor.shape[0]
        first = collectives.device_index(pairs.axis_name) * b
        return (first + jnp.arange(b, dtype=jnp.int32))[:, None]
    views_of(pairs, "mmcl")
    places = by_view(pairs, pairs.self_index)
    shifted = [jnp.roll(places, -k, axis=0) for k in range(1, pairs.num_views + 1)]
    return jnp.stack([place.reshape(-1) for place in shifted], axis=1)


@wraps(mmcl_loss)
def _with_metrics(pairs: Pairs, **hyper) -> tuple[Array, Metrics]:
    info = mmcl_info(pairs, **hyper)
    loss = _loss(pairs, info.alpha, hyper["kernel"], hyper["gamma"], hyper["eta"])
    shown = ("support", "at_bound", "kkt_residual", "suboptimality")
    return loss, {name: jnp.mean(getattr(info, name)) for name in shown}


def _takes_labels(hyper: dict[str, Any]) -> bool:
    return hyper["solver"] == "pgd" and not isinstance(hyper["alpha_init"], str)


objective = stateless(_with_metrics, has_aux=True, needs_two_views=True, takes_labels=_takes_labels)

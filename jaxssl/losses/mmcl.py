"""MMCL (max-margin contrastive learning): solve an SVM for every anchor against its negatives."""

from collections.abc import Mapping
from functools import wraps
from typing import Any, NamedTuple

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl import collectives
from jaxssl.losses.objective import Hyper, Metrics, Scalar, check, stateless
from jaxssl.losses.pairs import Pairs, by_view, dot, negatives, stack_views, unit
from jaxssl.solvers import svm_dual_admm, svm_dual_inv, svm_dual_pgd

# The released code writes the RBF kernel as exp(-|u - v|^2 / s), so gamma = 1 / s. Its CIFAR runs
# multiply gamma by 10 at epochs 75 and 125, and pair the views as `pair_towers(z2, z1)`. The paper
# gives sigma^2: 5 on ImageNet, 1 on STL-10, which we read as gamma = 1 / (2 sigma^2), and 0.02 on
# CIFAR-100, which is gamma in the code.
PRESETS = {
    "paper_pgd": {"gamma": 0.1, "C": 100.0, "num_steps": 1000, "accelerated": False},
    "paper_inv": {"gamma": 0.1, "C": 100.0, "solver": "inv"},
    "released_cifar": {"gamma": 0.02, "C": 100.0, "num_steps": 1000, "step": 1e-3},
    "released_imagenet": {"gamma": 0.1, "C": float("inf"), "num_steps": 1000, "step": "frobenius"},
    "stl10": {"gamma": 0.5, "C": 100.0},
}

RANGES = {
    "kernel": ("rbf", "linear", "tanh", "poly", "min"),
    "gamma": "> 0",
    "eta": "finite",
    "C": "> 0 or inf",
    "solver": ("pgd", "admm", "inv"),
    "regularization": "> 0",
    "num_steps": "> 0",
    "tol": "> 0",
    "step": ("> 0", "frobenius"),
    "alpha_init": ("inv",),
}


class MMCLInfo(NamedTuple):
    """Solutions of the per-anchor SVMs of MMCL, with optimality certificates.

    Attributes:
        alpha: [n, m] weights of the candidates, >= 0. They are 0 for candidates that are not
            negatives of the anchor.
        support: [n] fraction of the negatives that are support vectors (alpha > 0), in [0, 1].
        at_bound: [n] fraction of the negatives with alpha = C, in [0, 1]: likely false negatives.
        kkt_residual: [n] largest change of alpha in a projected gradient step of length 1.
        suboptimality: [n] bound on (objective - optimum) / |objective|, valid for positive
            semi-definite kernels with K(x, x) <= 1, such as rbf and linear (see `DualSolution`).
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
    gamma: Scalar = 0.1,
    eta: Scalar = 0.0,
    C: Scalar = 100.0,
    solver: str = "pgd",
    regularization: Scalar = 0.1,
    num_steps: int = 200,
    tol: float | None = None,
    step: Scalar | str | None = None,
    accelerated: bool = True,
    alpha_init: Array | str | None = None,
) -> Array:
    r"""Compute kernel values of positive and negatives, weighted by an SVM that separates them.

    .. math:: L_i &= \sum_j \alpha_{ij} (K(y_j, z_i) - K(x_i, z_i)) \\
              \alpha_i &= \arg\min_{0 \le a \le C} \frac{1}{2} a^\top \Delta_i a - 2 \cdot 1^\top a
              \\
              \Delta_i[j, l] &= K(y_j, y_l) - K(x_i, y_j) - K(x_i, y_l) + 1 + \beta [j = l]

    The anchor z is a view of an image, x its other view, and y are the anchor's negatives. alpha is
    a constant in the gradient. The loss scales with the sum of alpha, so use Adam or LARS.

    Args:
        pairs: n anchors, m candidates. x is ``pairs.partner``. `pair_towers(z2, z1)` gives the
            released code's B - 1 negatives in the first view, `pair_views([z1, z2])` the 2(B - 1)
            of Algorithm 1. Labels remove the anchor's class from its negatives.
        kernel: of normalised u, v: "rbf", exp(-gamma |u - v|^2); "linear", u.v; "tanh",
            tanh(gamma u.v + eta); "poly", (u.v + 0.5)^3; or "min", the sum of
            min(relu(u), relu(v)).
        gamma: kernel parameter, > 0. For rbf it is 1 / (2 sigma^2).
        eta: offset of tanh.
        C: upper bound of alpha, > 0, or inf. With beta = 0.1 and rbf no alpha exceeds about 20.
        solver: "pgd", projected gradient; "admm", the same optimum in fewer but slower steps;
            "inv", the clipped unconstrained solution, which is not the optimum. "admm" and "inv"
            do not support labels.
        regularization: beta, > 0. In float32, "inv" needs about 0.01 or more: with 0.001 and 128
            examples its alpha is wrong by half, where that of "admm" stays accurate.
        num_steps: number of steps of pgd or admm, > 0, or their limit if ``tol`` is given.
        tol: an anchor stops once its ``suboptimality`` is at most this, > 0. None takes all steps.
        step: step size of pgd, > 0. None is 1 / (a bound on the largest eigenvalue), "frobenius"
            the released 1 / |Delta|_F.
        accelerated: use Nesterov's momentum with restarts in pgd.
        alpha_init: [n, m] start of pgd. None is 0. "inv" is the solution of that solver, which
            saves steps but does not support labels. The released code draws relu(normal).

    Returns:
        [n] float32, below 0 if the SVMs separate. It is 0 for an anchor without negatives.

    Without labels, only the views of an anchor are left out of its negatives, so no example may
    appear twice in the batch.

    Raises:
        ValueError: if there is only one view, a name is unknown, or labels or a queue without
            batch negatives are combined with "admm" or "inv".

    References:
        Shah et al., Max-Margin Contrastive Learning, AAAI 2022, proposition 1 and algorithm 1.
        Table 6 has rbf, linear and tanh. The released code also has poly and min.

    Differs from the released code: alpha starts at 0 and converges. The released code starts at
    random and stops early, about 3 % from the optimum. As there, the constant 1 of Delta is used
    for every kernel.

    Checked against: anshulbshah/MMCL (INV with five kernels, PGD step by step without restarts);
    the exact optimum by SciPy's ``lsq_linear``.
    """
    svm: Hyper = {"C": C, "regularization": regularization, "solver": solver}
    svm |= {"num_steps": num_steps, "tol": tol, "step": step, "accelerated": accelerated}
    svm |= {"kernel": kernel, "gamma": gamma, "eta": eta, "alpha_init": alpha_init}
    return _loss(pairs, mmcl_info(pairs, **svm).alpha, kernel, gamma, eta)


def mmcl_info(
    pairs: Pairs,
    *,
    kernel: str = "rbf",
    gamma: Scalar = 0.1,
    eta: Scalar = 0.0,
    C: Scalar = 100.0,
    solver: str = "pgd",
    regularization: Scalar = 0.1,
    num_steps: int = 200,
    tol: float | None = None,
    step: Scalar | str | None = None,
    accelerated: bool = True,
    alpha_init: Array | str | None = None,
) -> MMCLInfo:
    """Solve the per-anchor SVMs of `mmcl_loss`, from the same arguments, without gradient."""
    check(RANGES, kernel=kernel, solver=solver, gamma=gamma, C=C, regularization=regularization)
    check(RANGES, eta=eta, num_steps=num_steps, tol=tol, step=step, alpha_init=alpha_init)
    pairs, gamma, eta = lax.stop_gradient((pairs, gamma, eta))
    neg = negatives(pairs)
    # Every device computes the whole kernel matrix. To gather its rows would send m^2 numbers, and
    # to compute them costs less than one step of the solver.
    candidate = unit(pairs.candidate)
    matrix = _kernel(kernel, candidate, candidate, gamma, eta)
    # The problem of an anchor excludes the views of its example. Labels and batch_negatives=False
    # exclude further candidates, which only a mask can express.
    same_example = _same_example(pairs)
    positive = same_example[:, 0]
    needs_mask = pairs.labelled or pairs.queue_only
    if needs_mask and (solver != "pgd" or isinstance(alpha_init, str)):
        raise ValueError(
            f'solver="{solver}" with alpha_init={alpha_init!r} takes neither labels nor '
            'batch_negatives=False; set solver="pgd" and alpha_init=None'
        )
    excluded = ~neg if needs_mask else same_example
    settings: Hyper = {"C": C, "regularization": regularization}
    if solver != "inv":
        settings |= {"num_steps": num_steps, "tol": tol}
    if solver == "pgd":
        settings |= {"step": step, "accelerated": accelerated, "init": alpha_init}
    solve = {"pgd": svm_dual_pgd, "admm": svm_dual_admm, "inv": svm_dual_inv}[solver]
    solution = solve(matrix, positive, excluded, **settings)
    alpha = solution.alpha
    count = jnp.maximum(jnp.sum(neg, axis=1, dtype=alpha.dtype), 1)

    def fraction_of_negatives(mask: Array) -> Array:
        fraction = jnp.sum(mask & neg, axis=1, dtype=alpha.dtype) / count
        return jnp.where(jnp.isnan(solution.objective), jnp.nan, fraction)

    return MMCLInfo(
        alpha=alpha,
        support=fraction_of_negatives(alpha > 0),
        at_bound=fraction_of_negatives(alpha >= C),
        kkt_residual=solution.kkt_residual,
        suboptimality=solution.suboptimality,
        num_steps=solution.num_steps,
    )


def _loss(pairs: Pairs, alpha: Array, kernel: str, gamma: Scalar, eta: Scalar) -> Array:
    """Compute `mmcl_loss` for given weights ``alpha`` [n, m] of the candidates."""
    z, partner = unit(pairs.anchor), unit(pairs.partner)
    to_candidates = _kernel(kernel, z, unit(pairs.candidate), gamma, eta)
    of_one_pair = jax.vmap(lambda u, v: _kernel(kernel, u[None], v[None], gamma, eta)[0, 0])
    to_partner = of_one_pair(z, partner)[:, None]
    return jnp.sum(alpha * (to_candidates - to_partner), axis=1)


def _kernel(kernel: str, u: Array, v: Array, gamma: Scalar, eta: Scalar) -> Array:
    """Compute the kernel [n, m] of normalised (or zero) rows [n, d] and [m, d]."""
    if kernel == "min":
        return _sum_of_minima(jax.nn.relu(u), jax.nn.relu(v))
    s = dot(u, v)
    if kernel == "rbf":
        square = jnp.sum(u * u, axis=1)[:, None] + jnp.sum(v * v, axis=1)[None, :] - 2 * s
        return jnp.exp(-gamma * square)
    if kernel == "tanh":
        return jnp.tanh(gamma * s + eta)
    if kernel == "poly":
        return (s + 0.5) ** 3
    return s  # linear


@jax.jit  # Without it, a call outside `jax.jit` would compile the scan again.
def _sum_of_minima(u: Array, v: Array) -> Array:
    """Compute the histogram intersection kernel [n, m]: the sum over features of min(u, v)."""

    @jax.checkpoint
    def add(total: Array, feature: tuple[Array, Array]) -> tuple[Array, None]:
        x, y = feature
        return total + jnp.minimum(x[:, None], y[None, :]), None

    zeros = jnp.zeros((u.shape[0], v.shape[0]), u.dtype)
    zeros, u, v = collectives.align((zeros, u, v))
    return lax.scan(add, zeros, (u.T, v.T))[0]


def _same_example(pairs: Pairs) -> Array:
    """Return the candidate indices [n, V] of all views of the anchors' examples, partner first."""
    if pairs.num_views == 0:
        b = pairs.anchor.shape[0]
        first = collectives.device_index(pairs.axis_name) * b
        return (first + jnp.arange(b, dtype=jnp.int32))[:, None]
    stack_views(pairs, "mmcl")  # raises an error for a single view
    views = by_view(pairs, pairs.self_index)
    shifted = [jnp.roll(views, -k, axis=0) for k in range(1, pairs.num_views + 1)]
    return jnp.stack([view.reshape(-1) for view in shifted], axis=1)


@wraps(mmcl_loss)
def _with_metrics(pairs: Pairs, **hyper: Any) -> tuple[Array, Metrics]:
    """Return `mmcl_loss` and, as metrics, means of `MMCLInfo` over the anchors."""
    info = mmcl_info(pairs, **hyper)
    loss = _loss(pairs, info.alpha, hyper["kernel"], hyper["gamma"], hyper["eta"])
    names = ("support", "at_bound", "kkt_residual", "suboptimality")
    return loss, {name: jnp.mean(getattr(info, name)) for name in names}


def _takes_masks(hyper: Mapping[str, object]) -> bool:
    """Return True if the solver accepts a different number of negatives for each anchor."""
    return hyper["solver"] == "pgd" and not isinstance(hyper["alpha_init"], str)


objective = stateless(
    _with_metrics,
    ranges=RANGES,
    has_aux=True,
    needs_two_views=True,
    takes_labels=_takes_masks,
    takes_queue_alone=_takes_masks,
)

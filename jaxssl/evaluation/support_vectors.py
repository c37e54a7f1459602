"""Support vectors of MMCL: the negatives that the SVMs of a batch select, and their classes."""

import inspect
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp

from jaxssl.losses.mmcl import RANGES, mmcl_info, mmcl_loss
from jaxssl.losses.objective import check
from jaxssl.losses.pairs import pair_towers

# These are traced arguments of the compiled program, so that other values do not recompile it.
NUMBERS = ("gamma", "eta", "C", "regularization")
DEFAULTS = {name: inspect.signature(mmcl_loss).parameters[name].default for name in NUMBERS}


class SupportVectors(NamedTuple):
    """Statistics of MMCL's SVMs of n anchors, each against the n - 1 other images.

    Attributes:
        alpha: [n, n] float32 in [0, C], the weight of image j in the SVM of anchor i, and 0 for
            j = i. Each image is one candidate, its first view.
        support: share of support vectors (alpha > 0) among the negatives of all anchors; 0 without
            negatives.
        at_bound: share with alpha = C, which MMCL treats as false negatives.
        same_class_support: share of the support vectors that have the class of their anchor; None
            without labels.
        same_class_bound: the same share among the negatives with alpha = C; None if there are none.
        same_class_all: the same share among all negatives.
    """

    alpha: np.ndarray
    support: float
    at_bound: float
    same_class_support: float | None
    same_class_bound: float | None
    same_class_all: float | None


def support_vectors(
    z1: np.ndarray, z2: np.ndarray, labels: np.ndarray | None, **mmcl_settings: Any
) -> SupportVectors:
    """Solve MMCL's SVMs of a batch as the released code does, second views against first views.

    The pairs are ``pair_towers(z2, z1)``: the anchor is a second view, its positive is the first
    view of the same image, and its negatives are the first views of the n - 1 other images. The SVM
    separates the positive from the negatives, so alpha depends on ``z1`` only. Swap the views to
    solve the SVMs of the first views.

    Args:
        z1: [n, d] embeddings of the first views.
        z2: [n, d] embeddings of the second views; pass ``z1`` again if there is only one view.
        labels: [n] int, -1 for unlabelled images; None without labels. They are used for the
            shares only, not by the SVMs.
        **mmcl_settings: arguments of `jaxssl.losses.mmcl_loss`, without schedules or arrays.

    Raises:
        ValueError: as `mmcl_loss`.
    """
    numbers = {k: float(mmcl_settings.pop(k, default)) for k, default in DEFAULTS.items()}
    check(RANGES, **numbers)
    options = tuple(sorted(mmcl_settings.items()))
    alpha = np.asarray(_alpha(jnp.asarray(z1), jnp.asarray(z2), numbers, options))
    is_support, is_bound = alpha > 0, alpha >= np.float32(numbers["C"])
    pairs = max(len(alpha) * (len(alpha) - 1), 1)
    return SupportVectors(
        alpha=alpha,
        support=float(is_support.sum() / pairs),
        at_bound=float(is_bound.sum() / pairs),
        same_class_support=same_class_share(labels, is_support),
        same_class_bound=same_class_share(labels, is_bound),
        same_class_all=same_class_share(labels, np.ones_like(is_support)),
    )


def same_class_share(labels: np.ndarray | None, mask: np.ndarray) -> float | None:
    """Return the share of pairs with equal labels among the labelled pairs of a mask.

    Args:
        labels: [n] int, -1 for unlabelled images; None without labels.
        mask: [n, n] bool, the pairs to count. The diagonal is ignored.

    Returns:
        Share in [0, 1]; None if no pair is labelled.
    """
    if labels is None:
        return None
    labels = np.asarray(labels)
    counted = mask & (labels[:, None] >= 0) & (labels[None, :] >= 0)
    counted &= ~np.eye(len(labels), dtype=bool)
    same = counted & (labels[:, None] == labels[None, :])
    return float(same.sum() / counted.sum()) if counted.any() else None


@partial(jax.jit, static_argnames="options")
def _alpha(z1: Array, z2: Array, numbers: dict[str, float], options: tuple) -> Array:
    return mmcl_info(pair_towers(z2, z1), **numbers, **dict(options)).alpha

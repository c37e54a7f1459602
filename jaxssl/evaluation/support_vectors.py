"""MMCL's support vectors: which negatives the SVMs of a batch rest on, and of which class."""

import inspect
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jaxssl.evaluation.hard_negatives import same_class_share
from jaxssl.losses.mmcl import mmcl_info, mmcl_loss
from jaxssl.losses.objective import require_positive
from jaxssl.losses.pairs import pair_towers

# Arguments of the compiled program, so that other values of them do not compile it again.
NUMBERS = ("gamma", "eta", "C", "regularization")
DEFAULTS = {name: inspect.signature(mmcl_loss).parameters[name].default for name in NUMBERS}


class SupportVectors(NamedTuple):
    """The SVMs of n anchors, each against the n - 1 other images.

    Attributes:
        alpha: [n, n] float32, in [0, C]: the weight of image j in the SVM of anchor i. An image
            has one candidate, its first view, so nothing is summed over views; 0 for j = i.
        support: share of the negatives of all anchors that are support vectors, alpha > 0; 0 if
            there are no negatives.
        at_bound: share with alpha = C, those that MMCL takes for false negatives.
        same_class_support: share of the support vectors that are of their anchor's class; None
            where labels are not known.
        same_class_bound: the same share among those with alpha = C; None if there are none.
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
    """Solve MMCL's SVMs of a batch as the released code does: second views against first views.

    That is ``pair_towers(z2, z1)``: the anchor is a second view, its positive the first view of the
    same image, its negatives the first views of the n - 1 others. The SVM separates the positive
    from the negatives, so alpha depends on ``z1`` alone; for the SVMs of the first views call it
    with the views swapped.

    Args:
        z1: [n, d] embeddings of the first views.
        z2: [n, d] embeddings of the second views; ``z1`` once more if there is one view.
        labels: [n] int, -1 is unlabelled; None if there are none. They are only compared: the SVMs
            do not see them.
        **mmcl_settings: of `jaxssl.losses.mmcl_loss`, numbers and words, no schedules or arrays;
            the others have its defaults.

    Raises:
        ValueError: as `mmcl_loss`.
    """
    numbers = {k: float(mmcl_settings.pop(k, default)) for k, default in DEFAULTS.items()}
    require_positive(**{k: value for k, value in numbers.items() if k != "eta"})
    alpha = np.asarray(_alpha(z1, z2, numbers, options=tuple(sorted(mmcl_settings.items()))))
    chosen, bound = alpha > 0, alpha >= np.float32(numbers["C"])
    pairs = max(len(alpha) * (len(alpha) - 1), 1)
    return SupportVectors(
        alpha=alpha,
        support=float(chosen.sum() / pairs),
        at_bound=float(bound.sum() / pairs),
        same_class_support=same_class_share(labels, chosen),
        same_class_bound=same_class_share(labels, bound),
        same_class_all=same_class_share(labels, np.ones_like(chosen)),
    )


@partial(jax.jit, static_argnames="options")
def _alpha(z1: Array, z2: Array, numbers: dict[str, Array], options: tuple) -> Array:
    return mmcl_info(pair_towers(z2, z1), **numbers, **dict(options)).alpha

"""Cases of the contract tests: every loss with its settings, pairs and inputs."""

import importlib
import inspect
import itertools
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import jaxprs_in_params

from jaxssl import components, losses
from jaxssl.losses.pairs import Pairs, pair_towers, pair_views

# Cross-entropy compares anchors with classes and is tested in cross_entropy_test.
NAMES = [name for name in components.names("loss") if name != "cross_entropy"]
# Losses that `jaxssl.losses` exports. A loss that only configs name needs no entry in the docs.
EXPORTED = [name for name in NAMES if hasattr(losses, f"{name}_loss")]
LABELS = np.array([0, 1, 0, 2, 1, 0, 3, 1])  # Classes 2 and 3 have one example.
# Losses that compare an anchor only with the other views of its example, or with its key.
BY_PARTNER = {"arb", "barlow_twins", "byol", "dino", "lejepa", "ressl", "simsiam", "swav"}
BY_PARTNER |= {"vicreg", "w_mse"}
# Losses that are defined for two towers.
TOWERS = {"auc_dino", "clip", "dino", "fastclip", "info_nce", "mochi", "nnclr", "ressl", "siglip"}
# Losses whose two-array form has the rows of both arrays as anchors.
VIEWS_ON_ARRAYS = {"auc_cl", "dcl", "dclw", "debiased", "decl", "hcl", "mmcl", "nt_xent"}
VIEWS_ON_ARRAYS |= {"sogclr", "sup_con", "swav", "tcl"}
# Settings that are tested in addition to the defaults. Together they have another value than the
# default for every number of a loss.
HYPER: dict[str, list[dict[str, Any]]] = {
    "arb": [{"groups": 2, "epsilon": 0.1}],
    "auc_cl": [
        {"form": "matrix"},
        {"b": 0.3, "a": 0.8, "negative_weight": 0.5, "count_positive_as_negative": True},
        {"b": 0.3, "a": 1.0, "negative_weight": 0.5, "negative_reduction": "sum"},
        {"b": 0.1, "a": 10.0, "alpha": 1.0, "negative_weight": 1.0, "negative_reduction": "sum"}
        | {"similarity": "unit", "positive_margin": 0.5, "clip_positive": True}
        | {"count_positive_as_negative": True},
    ],
    "auc_dino": [
        {"extra": ("center",)},
        {"a": 2.0, "b": 0.3, "alpha": 0.5, "negative_weight": 1.0, "teacher_temperature": 0.2},
        {"student_temperature": 0.3},
    ],
    "barlow_twins": [{"off_diagonal_weight": 0.2, "scale": 2.0, "epsilon": 0.3}],
    "clip": [{"logit_scale": 10.0, "max_scale": 5.0}, {"block_size": 3}],
    "dcl": [{"block_size": 3}, {"temperature": 0.4}],
    "dclw": [{"stop_weight_gradient": False}, {"temperature": 0.3, "sigma": 0.2}],
    # At this temperature the sum over negatives of some anchors is at its lower bound.
    "debiased": [{"temperature": 0.2, "positive_prior": 0.5}],
    "decl": [
        {"weight": 0.3, "include_positive": True, "temperature": 0.2},
        {"weight": 0.0},
        {"similarity": "neg_euclidean"},
    ],
    "dino": [{"extra": ("center",)}, {"student_temperature": 0.5, "teacher_temperature": 0.3}],
    "graphcl": [{"temperature": 0.5}],
    "fastclip": [{"extra": ("log_u", "log_v")}, {"temperature": 0.4, "gamma": 0.3}],
    "hcl": [{"beta": 0.0}, {"beta": 2.0, "temperature": 0.3, "positive_prior": 0.3}],
    "info_nce": [{"scale_by_temperature": False, "block_size": 3}, {"temperature": 0.5}],
    "lejepa": [{"extra": ("directions",)}, {"weight": 0.5, "num_knots": 5, "t_max": 5.0}],
    "mmcl": [
        {"C": 0.8, "solver": "admm", "kernel": "linear"},
        {"solver": "inv", "kernel": "poly", "regularization": 150.0},
        {"kernel": "min", "regularization": 30.0},
        {"kernel": "tanh", "gamma": 0.5, "eta": 0.1, "tol": 1e-9, "regularization": 9.0},
    ],
    "mochi": [
        {"extra": ("draws",), "hardest": 4, "mixed": 3, "mixed_with_anchor": 2},
        {"weight": 0.3, "temperature": 0.4, "mixed": 5, "mixed_with_anchor": 0},
    ],
    "nnclr": [{"extra": ("support",)}, {"temperature": 0.4}],
    "nt_xent": [{"temperature": 0.1}, {"block_size": 3}],
    "ressl": [{"student_temperature": 0.5, "teacher_temperature": 0.3}],
    "siglip": [{"logit_scale": 1.0, "bias": -1.0}],
    "sogclr": [{"extra": ("log_u",)}, {"extra": ("log_u",), "temperature": 0.4, "gamma": 0.3}],
    "spectral": [{"mu": 3.0}],
    "sup_con": [{"temperature": 0.2, "base_temperature": 0.07, "block_size": 3}],
    "swav": [{"temperature": 0.3, "epsilon": 0.2, "num_iters": 5}],
    "tcl": [{"temperature": 0.1, "k1": 50.0, "k2": 1.0}, {"block_size": 3}],
    "vicreg": [
        {"variance_weight": 50.0},
        {"invariance_weight": 3.0, "covariance_weight": 4.0, "epsilon": 0.2},
    ],
    "w_mse": [{"epsilon": 0.1}],
}
NEEDS = {"swav": ("prototypes",)}


class Case(NamedTuple):
    """A loss with settings. It is hashable, so that it can be a static argument."""

    name: str
    hyper: tuple[tuple[str, Any], ...]
    extra: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.hyper), *self.extra])

    def loss(self, pairs: Pairs) -> jax.Array:
        """[n] loss with the extra inputs of the case."""
        return loss_of(self.name)(pairs, **inputs(pairs, self.extra), **dict(self.hyper))

    def parameters(self) -> list[str]:
        return list(inspect.signature(loss_of(self.name)).parameters)

    def with_(self, **hyper: Any) -> "Case":
        return self._replace(hyper=tuple(sorted({**dict(self.hyper), **hyper}.items())))


def case(name: str, **hyper: Any) -> Case:
    extra = hyper.pop("extra", ()) + NEEDS.get(name, ())
    return Case(name, tuple(sorted(hyper.items())), extra)


CASES = [case(name, **hyper) for name in NAMES for hyper in [{}, *HYPER.get(name, [])]]
DEFAULTS = [case(name) for name in NAMES]
# Cases that differ only in numbers or in MMCL's kernel are left out: most programs are alike.
PROGRAMS = [
    c
    for c in CASES
    if not c.hyper
    or (c.extra and "temperature" not in dict(c.hyper))
    or {"solver", "block_size", "form", "similarity"} & {k for k, _ in c.hyper}
    or ("kernel", "min") in c.hyper  # computed in a loop over the features
]


def loss_of(name: str):
    return getattr(importlib.import_module(f"jaxssl.losses.{name}"), f"{name}_loss")


def inputs(pairs: Pairs, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """Create extra inputs. Per-anchor inputs depend only on the index of the example."""
    d, dtype = pairs.anchor.shape[1], pairs.anchor.dtype
    if dtype == jnp.bfloat16:
        dtype = jnp.float32
    wave = lambda n: jnp.sin(jnp.arange(n * d, dtype=jnp.float32) ** 2).reshape(n, d).astype(dtype)  # noqa: E731
    index = pairs.index.astype(dtype)
    makers = {
        "prototypes": lambda: wave(6),
        "support": lambda: wave(9),
        "draws": lambda: (1 + jnp.sin(index[:, None] + jnp.arange(13, dtype=dtype)[None])) / 2.01,
        "directions": lambda: wave(5).T,
        "center": lambda: wave(1)[0],
        "rate": lambda: 2 + jnp.sin(index),
        # Every third example has no entry in the memory yet.
        "log_u": lambda: jnp.where(pairs.index % 3 == 0, -jnp.inf, jnp.cos(index)),
        "log_v": lambda: jnp.where(pairs.index % 3 == 1, -jnp.inf, jnp.sin(index)),
    }
    return {name: makers[name]() for name in names}


def kinds(case: Case) -> list[str]:
    """Kinds of pairs that a loss takes, the usual one first."""
    usual = ["towers", "views"] if case.name in TOWERS else ["views", "towers"]
    if case.name in BY_PARTNER:
        return [
            *usual,
            "three views",
            *(["queue only", "tower labels"] if case.name == "ressl" else []),
        ]
    if case.name in ("clip", "fastclip"):
        return [*usual, "tower labels"]
    if case.name == "mmcl":
        with_mask = [] if "solver" in dict(case.hyper) else ["labels", "tower labels", "queue only"]
        return [*usual, "three views", "queue", *with_mask]
    more = ["labels", "three views", "one view", "tower labels", "queue", "views, queue"]
    return [*usual, *more, "queue only"]


def labelled(case: Case) -> list[str]:
    """Kinds of labelled pairs that a loss takes."""
    return [kind for kind in kinds(case) if "labels" in kind]


def pairs_of(kind: str, z, index=None, axis_name: str | None = None) -> Pairs:
    """Create pairs of views z [2, b, d] of 8 examples, or of this device's share of them."""
    labels = jnp.asarray(LABELS, jnp.int32)
    if index is not None:
        labels = labels[index]
    options = {"index": index, "axis_name": axis_name}
    views, towers = partial(pair_views, **options), partial(pair_towers, z[0], z[1], **options)
    queue = jnp.cos(jnp.arange(3 * z.shape[2], dtype=jnp.float32) ** 2).reshape(3, -1)
    queue = queue.astype(z.dtype)
    return {
        "views": lambda: views(z),
        "labels": lambda: views(z, labels=labels),
        "views, queue": lambda: views(z, queue=queue),
        "three views": lambda: views(jnp.concatenate([z, z[:1] + 1])),
        "one view": lambda: views(z[:1], labels=labels),
        "towers": towers,
        "tower labels": lambda: towers(labels=labels),
        "queue": lambda: towers(queue=queue),
        "queue only": lambda: towers(queue=queue, batch_negatives=False),
    }[kind]()


def with_rows(pairs: Pairs, z: np.ndarray) -> Pairs:
    """Replace the embeddings of "views" or "towers" by float64 arrays [2, b, d], for an oracle."""
    if pairs.num_views:
        rows = z.reshape(-1, z.shape[-1])
        return replace(pairs, anchor=rows, candidate=rows, partner=z[::-1].reshape(rows.shape))
    return replace(pairs, anchor=z[0], candidate=z[1], partner=z[1])


def embeddings(num_views: int = 2, b: int = 8, d: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_views, b, d)).astype(np.float32)


def equations(jaxpr):
    """Yield the operations of a traced function, without the calls that contain others."""
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        yield from itertools.chain(*map(equations, inner)) if inner else [equation]

"""Contrastive and non-contrastive losses, one per file.

Every loss except cross_entropy, which takes only `Pairs`, has two forms.
`foo(z1, z2, *, ..., labels=None, axis_name=None)` takes two [b, d] arrays and returns a scalar.
`foo_loss(pairs, *, ...)` takes `Pairs` and returns one loss per anchor, [n].
Extra inputs, such as `rate` in decl, follow the arrays or the pairs, by position or by name. Losses
without negatives, such as `byol`, take no labels.

    from jaxssl import losses

    loss = losses.nt_xent(z1, z2, temperature=0.5)
    loss = losses.tcl(z1, z2, labels=y, temperature=0.1, k1=4000.0, k2=1.0)

    loss = losses.nt_xent_loss(losses.pair_views([z1, z2, z3]), temperature=0.5).mean()

`objective("foo", **hyper)` returns an `Objective` for a trainer. PRESETS holds the settings of
papers and released code: `from jaxssl.losses.tcl import PRESETS`.

Type checkers and editors read the signatures from `__init__.pyi`, which
`python tests/losses/stub.py` writes.
"""

import inspect
from importlib import import_module

from jaxssl.errors import suggest
from jaxssl.losses._forms import bind, on_arrays, on_pairs
from jaxssl.losses.accumulate import accumulate as accumulate
from jaxssl.losses.gradients import global_value_and_grad as global_value_and_grad
from jaxssl.losses.mmcl import MMCLInfo as MMCLInfo
from jaxssl.losses.mmcl import mmcl_info as mmcl_info
from jaxssl.losses.objective import Objective as Objective
from jaxssl.losses.objective import mean_over_anchors as mean_over_anchors
from jaxssl.losses.pairs import Pairs as Pairs
from jaxssl.losses.pairs import pair_towers as pair_towers
from jaxssl.losses.pairs import pair_views as pair_views
from jaxssl.losses.swav import sinkhorn as sinkhorn
from jaxssl.losses.tcl import tcl_gradients as tcl_gradients

# In the two-array forms of these losses, the rows of both arrays are anchors.
VIEWS = (
    *("auc_cl", "mmcl", "decl", "tcl"),  # made for small batches
    *("nt_xent", "sup_con"),
    *("dcl", "dclw", "debiased", "hcl", "sogclr"),
    "swav",
)
# Losses of two arrays: the rows of the first are anchors, the rows of the second their keys.
TOWERS = (
    *("info_nce", "mochi", "clip", "fastclip", "nnclr", "ressl"),
    "graphcl",
    *("siglip", "spectral"),
    *("byol", "simsiam", "barlow_twins", "vicreg", "w_mse", "arb", "lejepa"),  # without negatives
    *("dino", "auc_dino"),
)

# Importing the file of a loss sets the module as an attribute of this package. The two-array form
# of the loss replaces it.
for _name in (*VIEWS, *TOWERS, "cross_entropy"):
    _module = import_module(f"jaxssl.losses.{_name}")
    _loss, _ranges = getattr(_module, f"{_name}_loss"), getattr(_module, "RANGES", {})
    _per_anchor = getattr(_module, "PER_ANCHOR", ())
    globals()[f"{_name}_loss"] = on_pairs(_loss, _ranges, _per_anchor)
    if _name in (*VIEWS, *TOWERS):
        _pair = pair_views if _name in VIEWS else pair_towers
        _labels = _module.objective().takes_labels
        globals()[_name] = on_arrays(_loss, _ranges, _per_anchor, _pair, _labels)
del globals()["cross_entropy"]  # the file of the loss, which has no two-array form


def __getattr__(name: str) -> object:
    """Raise AttributeError with the closest names, also for losses of other libraries."""
    public = [x for x in globals() if not x.startswith("_")]
    hint = "" if name.startswith("_") else suggest(name, public)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def objective(name: str, /, **hyper: object) -> Objective:
    """Return the objective of a loss: functions for a trainer, with trained parameters and memory.

    Args:
        name: name of the loss, such as "sogclr".
        **hyper: arguments of the ``objective`` of the loss's file. A number may be a schedule, a
            function of the step.

    Raises:
        ValueError: if there is no such loss, or a value is out of range.
        TypeError: if an argument is misspelt.
    """
    names = (*VIEWS, *TOWERS, "cross_entropy")
    if name not in names:
        raise ValueError(f"there is no loss {name!r}{suggest(name, names)}")
    factory = import_module(f"jaxssl.losses.{name}").objective
    bind(f'objective("{name}")', inspect.signature(factory), (), hyper)
    return factory(**hyper)

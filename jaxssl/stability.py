"""TCL against SupCon with labels, along one axis of settings: what three studies share."""

from collections.abc import Mapping
from typing import Any

from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    accuracy_picture,
    accuracy_table,
    numbers,
    run_grid,
    values,
    where,
)
from jaxssl.study import Claim, Findings, Setting, Table, all_of, larger

ARMS = {"sup_con": METHODS["sup_con"], "tcl": METHODS["tcl_labels"]}


def claim(axis: str, source: str) -> dict[str, Claim]:
    """TCL is above SupCon on every value of an axis."""
    return {"tcl_above": Claim(f"TCL is above SupCon for every {axis} (linear)", source)}


def compare(
    setting: Setting, axis: str, cells: Mapping[str, Mapping[str, Any]], *tables: Table
) -> Findings:
    """Train both losses on every value of ``axis``, by name what differs in the config."""
    found = run_grid(
        setting,
        {(arm, x): {**own, **cell} for arm, own in ARMS.items() for x, cell in cells.items()},
    )
    parts = {}
    for name in cells:
        pair = (values(found[arm, name], LINEAR) for arm in ("tcl", "sup_con"))
        parts[name] = larger(*pair)
    axes = tuple(ARMS), tuple(cells), axis
    own = [accuracy_table(found, *axes, metric, {}) for metric in (LINEAR, KNN)]
    picture = accuracy_picture(found, *axes, LINEAR, {})
    data = {"results": numbers(found)}
    return Findings([*own, *tables], [picture], {"tcl_above": all_of(parts)}, data, where(found))

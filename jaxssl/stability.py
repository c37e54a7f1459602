"""TCL against SupCon with labels, along one axis of settings: what three studies share."""

from collections.abc import Mapping
from typing import Any

from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    accuracy_table,
    baselines,
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
    setting: Setting, axis: str, cells: Mapping[Any, Mapping[str, Any]], *tables: Table
) -> Findings:
    """Train both losses on every value of ``axis``, by name what differs in the config."""
    grid = {
        (arm, name): {**own, **cell} for arm, own in ARMS.items() for name, cell in cells.items()
    }
    found = run_grid(setting, grid)
    base = baselines(setting, next(iter(found.values()))[0])
    parts = {
        f"{name}": larger(
            values(found["tcl", name], LINEAR), values(found["sup_con", name], LINEAR)
        )
        for name in cells
    }
    own = [
        accuracy_table(found, tuple(ARMS), tuple(cells), axis, metric, base)
        for metric in (LINEAR, KNN)
    ]
    data = {"results": numbers(found), "baselines": base}
    return Findings([*own, *tables], [], {"tcl_above": all_of(parts)}, data, where(found))

"""TCL against SupCon with labels, along one axis of settings: what four studies share."""

from collections.abc import Mapping
from typing import Any

from jaxssl.studies.grid import (
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
from jaxssl.studies.study import Claim, Findings, Setting, Table, judge_all

PAPER = "tcl"
ARMS = {"sup_con": METHODS["sup_con"], "tcl": METHODS["tcl_labels"]}
Cells = Mapping[str, Mapping[str, Any]]


def compare_losses(
    setting: Setting,
    claim: Claim,
    axis: str,
    cells: Cells,
    *tables: Table,
    tcl: Cells | None = None,
) -> Findings:
    """Train both losses on every value of an axis.

    Args:
        setting: scale, data set, seeds and folder.
        claim: that TCL is above SupCon on every value.
        axis: what varies.
        cells: by the name of a value what differs in the config.
        *tables: that follow.
        tcl: likewise, what differs for TCL alone.
    """
    own = {"tcl": tcl or {}}
    grid = {
        (arm, x): {**ARMS[arm], **cell, **own.get(arm, {}).get(x, {})}
        for arm in ARMS
        for x, cell in cells.items()
    }
    found = run_grid(setting, grid)
    pairs = {
        x: (values(found["tcl", x], LINEAR), values(found["sup_con", x], LINEAR)) for x in cells
    }
    axes = tuple(ARMS), tuple(cells), axis
    both = [accuracy_table(found, *axes, metric, {}) for metric in (LINEAR, KNN)]
    picture = accuracy_picture(found, *axes, LINEAR, {})
    verdicts = {"tcl_above": judge_all(claim, pairs, top=100.0)}
    return Findings(
        [*both, *tables], [picture], verdicts, {"results": numbers(found)}, where(found)
    )

"""Compare TCL with SupCon, with labels, along one axis of settings."""

from collections.abc import Mapping

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, Cell
from jaxssl.studies.study import Claim, Findings, Setting, Table
from jaxssl.studies.verdicts import judge_all

ARMS = {"sup_con": METHODS["sup_con"], "tcl": METHODS["tcl_labels"]}


def compare_losses(
    setting: Setting,
    claim: Claim,
    axis: str,
    cells: Mapping[str, Cell],
    *tables: Table,
    tcl: Mapping[str, Cell] | None = None,
) -> Findings:
    """Train TCL and SupCon on every value of an axis and judge the claim.

    Args:
        setting: scale, data set, seeds and folder.
        claim: that TCL is above SupCon on every value.
        axis: name of the axis.
        cells: by the name of a value, the config values that differ.
        *tables: further tables of the findings.
        tcl: likewise, the config values that differ for TCL alone.
    """
    all_cells = grid.cross(ARMS, cells)
    for x, cell in (tcl or {}).items():
        if x in cells:
            all_cells["tcl", x] = {**all_cells["tcl", x], **cell}
    results = grid.run_grid(setting, all_cells)
    pairs = grid.pair_values(results, "tcl", "sup_con", tuple(cells), LINEAR)
    verdicts = {"tcl_above": judge_all(claim, pairs, top=100.0)}
    shape = tuple(ARMS), tuple(cells), axis
    return grid.grid_findings(results, shape, [LINEAR, KNN], verdicts, *tables, pictured=[LINEAR])

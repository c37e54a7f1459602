"""Compare TCL with SupCon, with labels, along one axis of settings."""

from collections.abc import Mapping

from jaxssl.studies import grid
from jaxssl.studies.compared_methods import METHODS
from jaxssl.studies.grid import KNN, LINEAR, Cell
from jaxssl.studies.study import Claim, Findings, Setting


def compare_losses(
    setting: Setting,
    claims: Mapping[str, Claim],
    axis: str,
    cells: Mapping[str, Cell],
    tcl: Mapping[str, Cell] | None = None,
) -> Findings:
    """Train TCL and SupCon on every value of an axis and judge the claim "tcl_above".

    Args:
        setting: scale, data set, seeds and folder.
        claims: of the study.
        axis: name of the axis.
        cells: by the name of a value, the config values that differ.
        tcl: likewise, the config values that differ for TCL alone.
    """
    tcl_cells = {x: {**cell, **(tcl or {}).get(x, {})} for x, cell in cells.items()}
    all_cells = grid.cross({"sup_con": METHODS["sup_con"]}, cells)
    all_cells |= grid.cross({"tcl": METHODS["tcl_labels"]}, tcl_cells)
    results = grid.run_grid(setting, all_cells)
    verdicts = {"tcl_above": grid.above("tcl", "sup_con", cells, LINEAR)}
    return grid.grid_findings(
        results, axis, [LINEAR, KNN], claims, verdicts, has_baselines=False, pictured=[LINEAR]
    )

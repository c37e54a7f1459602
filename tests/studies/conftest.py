"""Fixtures of the studies' tests."""

import pytest
from study_cases import made_up, with_accuracy

from jaxssl.studies import grid
from jaxssl.studies.cells import cell_config
from jaxssl.studies.grid import KNN, LINEAR, SVM


@pytest.fixture
def diverged():
    """Seeds whose runs are not finite; a test may add some."""
    return []


@pytest.fixture
def accuracies():
    """Accuracies by a part of a cell's name, if a test adds some; else they are random."""
    return {}


@pytest.fixture
def trained_cells(monkeypatch, diverged, accuracies):
    """Replace training by made-up results; return the cells that were trained."""
    trained = []

    def result(name, cell, seed):
        if accuracies:
            parts = name if isinstance(name, tuple) else (name,)
            [accuracy] = [accuracies[part] for part in parts if part in accuracies]
            return with_accuracy(accuracy, seed)
        return made_up(cell, seed, diverged)

    def run_grid(setting, cells, protocols=None):
        for cell in cells.values():
            cell_config(setting, cell)  # raises for invalid values, as a run does
        trained.extend(cells.values())
        seeds = range(setting.seeds)
        return {name: [result(name, cell, s) for s in seeds] for name, cell in cells.items()}

    base = {
        "raw": {KNN: 50.0, LINEAR: 60.0, SVM: 80.0},
        "untrained": dict.fromkeys((KNN, LINEAR, SVM), 40.0),
    }
    monkeypatch.setattr(grid, "run_grid", run_grid)
    monkeypatch.setattr(grid, "baselines", lambda *_: base)
    monkeypatch.setattr(grid, "describe_runs", lambda results: "made up")
    return trained

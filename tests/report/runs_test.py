"""The runs of a comparison: the results that are read, and the table that describes each run."""

import pytest
from workdir_cases import CONFIG, METRICS, ROW, changed, write

from jaxssl.report import comparison, runs

pytestmark = pytest.mark.fast


def described(workdir):
    """Return the row of the table of runs by its headings."""
    table = comparison._run_table(runs.read_runs([workdir]))
    return dict(zip(table.head, table.rows[0], strict=True))


def test_results_of_every_kind_are_compared(tmp_path):
    changes = ({"layer": "projector"}, {"dataset": "moons"}, {"bank": "train[:5%]"})
    changes += ({"split": "all"}, {"protocol": "linear"}, {"metric": "other"})
    changes += ({"details": {"preset": "uniform"}},)
    rows = [ROW, *(changed(ROW, **change) for change in changes)]
    [run] = runs.read_runs([write(tmp_path, rows=[*rows, changed(ROW, seed=7)])])
    assert (run.rows, run.left_out) == (rows, 1)


def test_speed_is_the_median_of_the_steps(tmp_path):
    # A run is slow in its first steps, and a step without a speed is left out.
    speeds = 10.0, 2000.0, None, 30.0
    write(tmp_path, metrics=[{**METRICS[0], "images_per_second": speed} for speed in speeds])
    assert described(tmp_path)["examples/s"] == "30"


@pytest.mark.parametrize(
    ("changes", "length"),
    [({}, "5"), ({"epochs": 2.5}, "2.5"), ({"total_steps": 70}, "70 steps")],
)
def test_length_is_in_steps_where_they_replace_the_epochs(tmp_path, changes, length):
    write(tmp_path, changed(CONFIG, **changes))
    assert described(tmp_path)["epochs"] == length

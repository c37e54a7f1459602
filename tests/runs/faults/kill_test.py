"""A few of the kills of kill.py; loop_test.py kills a run while it writes a checkpoint."""

import kill
import pytest


@pytest.mark.long
def test_repeatedly_killed_run_ends_with_the_same_bits_as_an_uninterrupted_run(tmp_path):
    said = []
    assert kill.survive(tmp_path, kills=5, seed=1, say=said.append) == 5
    assert {line.split()[1] for line in said} >= {"preparation:", "step:", "checkpoint:"}

"""A few of the kills of kill.py."""

import kill
import pytest


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.long)])
def test_repeatedly_killed_run_ends_with_the_same_bits_as_an_uninterrupted_run(tmp_path, kills):
    said = []
    assert kill.survive(tmp_path, kills=kills, seed=1, say=said.append) == kills
    phases = ["preparation:", "step:", "checkpoint:"][:kills]
    assert {line.split()[1] for line in said} >= set(phases)

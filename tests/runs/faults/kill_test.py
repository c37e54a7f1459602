"""A few of the kills of kill.py."""

import kill
import pytest


def test_a_run_that_is_killed_while_it_writes_a_checkpoint_ends_as_if_nothing_had_happened(
    tmp_path,
):
    assert kill.survive(tmp_path, kills=1, seed=1, say=[].append, phases=("checkpoint",)) == 1


@pytest.mark.long
def test_repeatedly_killed_run_ends_with_the_same_bits_as_an_uninterrupted_run(tmp_path):
    said = []
    assert kill.survive(tmp_path, kills=5, seed=1, say=said.append) == 5
    assert {line.split()[1] for line in said} >= {"preparation:", "step:", "checkpoint:"}

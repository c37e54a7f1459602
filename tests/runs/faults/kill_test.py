"""A few of the kills of kill.py."""

import kill


def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path):
    said = []
    assert kill.survive(tmp_path, kills=5, seed=1, say=said.append) == 5
    assert {line.split()[1] for line in said} >= {"preparation:", "step:", "checkpoint:"}

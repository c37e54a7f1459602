"""Freed memory of a process that trains on the CPU is used again without page faults."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from jaxssl.training import memory

memory.share_arena()
memory.keep_freed()
faults = []
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(2**24, 1.0, np.float32)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
@pytest.mark.parametrize(("tunables", "is_kept"), [({}, True), ({"GLIBC_TUNABLES": ""}, False)])
def test_freed_memory_is_used_again_unless_the_environment_sets_the_allocator(tunables, is_kept):
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"} | tunables
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.check_output(command, env=environment, text=True)
    first, again = map(int, output.split())
    assert (again < first / 10) == is_kept

"""Memory that is freed in a restore goes back to the system, and in steps it does not."""

from __future__ import annotations

import os
import subprocess
import sys

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.base_env import base_env
from podrun.launcher.pod.slices import parse_slice

PROGRAM = """
import numpy as np
from podrun.runtime.worker.memory import large_blocks_returned

def resident():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) >> 10

def left():
    before = resident()
    block = np.ones(64 << 17)
    assert resident() - before > 60
    del block
    return resident() - before

with large_blocks_returned():
    print(left())
print(left())
"""


def test_memory_is_kept_but_in_a_restore() -> None:
    env = {**os.environ, **base_env(simulated_pod(parse_slice("cpu-1x1")), (0,))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True, check=True)
    restoring, training = map(int, done.stdout.split())  # MB that stay, of 64
    assert restoring < 5 and training > 60

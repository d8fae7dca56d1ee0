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
from podrun.runtime.worker.memory import freed_memory_returned

def resident():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) >> 10

def left(count, each):
    before = resident()
    blocks = [np.ones(each << 17) for _ in range(count)]
    assert resident() - before > count * each * 0.9
    del blocks
    return resident() - before

before = resident()
with freed_memory_returned():
    print(left(1, 80))
    print(left(5, 16))
print(resident() - before)
print(left(5, 16))
"""


def test_memory_is_kept_but_in_a_restore() -> None:
    env = {**os.environ, **base_env(simulated_pod(parse_slice("cpu-1x1")), (0,))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True, check=True)
    large, others, restored, training = map(int, done.stdout.split())  # MB that stay, of 80
    assert large < 5 and restored < 5
    assert others > 60 and training > 60

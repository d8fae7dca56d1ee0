"""Start, run and end `true` on simulated pods of many hosts.

    python benchmarks/scale.py [--hosts 64 256 1024] [--rounds 1]

Measures wall time of the whole command; CPU time of the launcher alone, and of all else (per host: a relay, an agent, the
first process of its PID namespace, the worker); the launcher's largest resident memory. All hosts are processes of this
machine, so their share, which is nearly all of it, is done by the same cores. The last lines say how the figures grow
from one size to the next, divided by how the number of hosts grows: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setting import print_setting

LAUNCHER = """
import atexit, json, os, resource, sys

def tell():
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = [usage.ru_utime + usage.ru_stime for usage in (own, others)]
    with open(os.environ["SCALE_FIGURES"], "w") as file:
        json.dump([*cpu, own.ru_maxrss / 1024], file)

atexit.register(tell)
from podrun.launcher.cli.root import main
main()
"""
COLUMNS = ("wall, s", "launcher CPU, s", "hosts' CPU, s", "launcher, MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    print_setting()
    print(f"{'hosts':>6}" + "".join(f"{name:>18}" for name in COLUMNS))
    figures = {}
    for hosts in args.hosts:
        rows = [measure(hosts) for _ in range(args.rounds)]
        figures[hosts] = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{hosts:>6}" + "".join(f"{figure:>18.2f}" for figure in figures[hosts]), flush=True)
    print()
    for few, many in zip(args.hosts, args.hosts[1:], strict=False):
        growth = [b / a / (many / few) for a, b in zip(figures[few][:3], figures[many][:3], strict=True)]
        print(f"{few} -> {many}: " + ", ".join(f"{n} {g:.2f}" for n, g in zip(COLUMNS, growth, strict=False)))


def measure(hosts: int) -> list[float]:
    """Return wall seconds, CPU seconds of the launcher and of all it started, and the launcher's megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        env = {**os.environ, "PODRUN_HOME": f"{folder}/home", "SCALE_FIGURES": str(figures)}
        command = [sys.executable, "-c", LAUNCHER, "--slice", f"cpu-{hosts}x1", "--simulate", "--", "true"]
        start = time.perf_counter()
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wall = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"podrun failed:\n{done.stdout[-2000:]}")
        return [wall, *json.loads(figures.read_text())]


if __name__ == "__main__":
    main()

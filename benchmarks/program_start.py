"""Start of a JAX program under podrun against the same program by hand.

    python benchmarks/program_start.py [--rounds 12] [--slice 1x2]

Both run the same Python with the same variables, but for those that podrun adds, and take turns. A program imports JAX, joins
with a bare `jax.distributed.initialize()`, counts all devices and adds a number over them. "program" is the slowest process's
time from its exec to that sum, which its own clock tells; "command" is the wall time of all. CPU time is user and system.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from setting import print_setting

INSTRUMENT = Path(__file__).parents[1] / "launcher" / "instrument"
PROGRAM = """\
import jax
jax.distributed.initialize()
import jax.numpy as jnp
devices = jax.device_count()
total = jax.pmap(lambda x: jax.lax.psum(x, "d"), "d")(jnp.ones(jax.local_device_count()))
assert float(total[0]) == devices
import json, os, resource, time
with open("/proc/self/stat") as file:
    began = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
used = resource.getrusage(resource.RUSAGE_SELF)
row = {"wall": time.clock_gettime(time.CLOCK_BOOTTIME) - began, "CPU": used.ru_utime + used.ru_stime}
with open(os.environ["BENCH_OUT"] + "/" + str(jax.process_index()), "w") as file:
    json.dump(row, file)
"""
Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--slice", default="1x2")
    options = parser.parse_args()
    print_setting()
    hosts, devices = (int(number) for number in options.slice.split("x"))
    rows: list[tuple[Row, Row]] = []
    for number in range(options.rounds):
        pair: dict[bool, Row] = {}
        for under_podrun in (True, False) if number % 2 else (False, True):
            pair[under_podrun] = start(hosts, devices, under_podrun)
        rows.append((pair[True], pair[False]))
    print(f"cpu-{options.slice}, medians of {options.rounds} rounds, seconds; ratio round by round")
    print(f"{'':<14}{'podrun':>8}{'by hand':>9}{'ratio':>7}")
    for name in ("program wall", "program CPU", "command wall", "command CPU"):
        ours, bare = ([pair[i][name] for pair in rows] for i in range(2))
        ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
        print(f"{name:<14}{statistics.median(ours):>8.2f}{statistics.median(bare):>9.2f}{ratio:>7.2f}")
    light(options.rounds)


def start(hosts: int, devices: int, under_podrun: bool) -> Row:
    """Run the program once, and return its times and those of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(PROGRAM)
        Path(folder, "out").mkdir()
        env = {**os.environ, "PODRUN_HOME": folder, "BENCH_OUT": f"{folder}/out", "JAX_ENABLE_COMPILATION_CACHE": "0"}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        if under_podrun:
            where = ["--slice", f"cpu-{hosts}x{devices}", "--simulate"]
            run([[sys.executable, "-m", "podrun", *where, "--", "python", str(script)]], [env])
        else:
            run([[sys.executable, str(script)]] * hosts, by_hand(hosts, devices, env))
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        processes = [json.loads(path.read_text()) for path in Path(folder, "out").iterdir()]
        assert len(processes) == hosts
        slowest = {f"program {key}": max(row[key] for row in processes) for key in ("wall", "CPU")}
        return {**slowest, "command wall": wall, "command CPU": cpu}


def by_hand(hosts: int, devices: int, env: dict[str, str]) -> list[dict[str, str]]:
    """Return the environments with which JAX joins as many processes, in the manner of a cluster that it knows."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": str(max(devices, os.cpu_count() or 1)),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
        "OMPI_MCA_orte_hnp_uri": f"{port}.0;tcp://127.0.0.1:1",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "OMPI_COMM_WORLD_SIZE": str(hosts),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }
    return [{**env, **common, "OMPI_COMM_WORLD_RANK": str(number)} for number in range(hosts)]


def run(commands: list[list[str]], envs: list[dict[str, str]]) -> None:
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(c, env=env, **quiet) for c, env in zip(commands, envs, strict=True)]
    codes = [process.wait(120) for process in processes]
    if any(codes):
        raise SystemExit(f"{commands[0]} failed")


def light(rounds: int) -> None:
    """Print what should cost next to nothing."""
    commands = {"python -c pass": ["-c", "pass"], "import podrun": ["-c", "import podrun"]}
    commands["podrun --help"] = ["-m", "podrun", "--help"]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(3 * rounds):
        for name, words in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run([[sys.executable, *words]], [dict(os.environ)])
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for name, seconds in times.items():
        print(f"{name:<36}{1000 * statistics.median(seconds):>7.1f} ms CPU")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(INSTRUMENT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        walls = [instrument(folder) for _ in range(1 + 3 * rounds)]
    print(f"{'the instrument, without JAX':<36}{statistics.median(walls[1:]):>7.2f} ms")
    print(f"{'the same, the first in its folder':<36}{walls[0]:>7.2f} ms")


def instrument(folder: str) -> float:
    """Return the milliseconds that a Python spends on the instrument, in which it looks for the user's own as well."""
    env = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-X", "importtime", "-c", "pass"]
    text = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    line = next(line for line in text.splitlines() if line.split()[-1] == "sitecustomize")
    return int(line.split("|")[1]) / 1000


if __name__ == "__main__":
    main()

"""Time to the first step on a held pod, against a cold and a warm start; and what many runs leave behind.

    python benchmarks/hold.py [--rounds 3] [--slice 2x2] [--ssh] [--runs 0]

In each round: *cold*, no program was compiled before; *warm*, the same once more; *held*, once more on a pod that `podrun
hold` holds, after a line of a module of the job was changed. Seconds from the command to the end of the first step, and
ratios of held to cold and to warm within the round; medians. `--runs N` makes N further runs of one step on one held pod,
and prints memory, processes and open files of the hold before and after. `--ssh` (as root): four hosts in network namespaces
with a home of their own each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from setting import print_setting

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.hosts import Hosts, why_not  # noqa: E402

JOB = """\
steps: 1000000
batch_size: 32
model: {layers: 2, heads: 2, width: 64, context: 64}
schedule: {name: "mine:flat"}
log: {every: 1, tensorboard: false}
checkpoint: {every: 0}
"""
MODULE = "VERSION = %d\n\n\ndef flat(options, peak, steps):\n    return lambda step: peak\n"


class Bench:
    """A job, and podrun with a home of its own."""

    def __init__(self, folder: Path, slice: str, hosts: Hosts | None) -> None:
        self.folder = folder
        self.hosts = hosts
        self.count = 0
        for name in ("home", "job"):
            (folder / name).mkdir()
        (folder / "job" / "train.yaml").write_text(JOB)
        self.env = {**os.environ, "HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": ""}
        self.command = [sys.executable, "-m", "podrun.launcher.cli"]
        self.where = ["--simulate", "--slice", f"cpu-{slice}"]
        if hosts is not None:
            self.command = [*hosts.prefix, *self.command]
            self.env = {**hosts.env, "PYTHONDONTWRITEBYTECODE": ""}
            self.where = [f"--pod={self.write_pod(hosts)}"]
        self.env["PODRUN_HOME"] = str(folder / "state")

    def write_pod(self, hosts: Hosts) -> Path:
        for name in hosts.names:
            shutil.rmtree(hosts.home_of(name, "root") / ".cache", ignore_errors=True)
        ssh = {"user": "root", "key": str(hosts.key), "known_hosts": str(hosts.known_hosts)}
        path = self.folder / "pod.yaml"
        settings = {"slice": "cpu-4x1", "hosts": list(hosts.names), "ssh": ssh, "python": sys.executable}
        path.write_text(yaml.safe_dump(settings))
        return path

    def podrun(self, *args: str) -> str:
        """Run a command of podrun on the pod, and return its output. Raises SystemExit if it fails."""
        done = subprocess.run(
            [*self.command, *args], env=self.env, capture_output=True, text=True, cwd=self.folder / "job"
        )
        if done.returncode:
            raise SystemExit(f"hold.py: podrun {args[0]} failed: {done.stderr}")
        return done.stdout

    def first_step(self) -> float:
        """Change the job's module, and return the seconds from the command to the first step of a new run."""
        self.count += 1
        (self.folder / "job" / "mine.py").write_text(MODULE % self.count)
        command = [
            *self.command,
            "--json",
            *self.where,
            "--workdir",
            str(self.folder / f"work-{self.count}"),
            "train.yaml",
        ]
        start = time.perf_counter()
        run = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True, cwd=self.folder / "job")
        assert run.stdout is not None
        line = next((line for line in run.stdout if '"event": "step"' in line), None)
        seconds = time.perf_counter() - start
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=300)
        if line is None:
            raise SystemExit("hold.py: podrun ended before its first step")
        return seconds

    def await_ready(self) -> None:
        """Wait until all interpreters of the hold have imported."""
        end = time.monotonic() + 300
        while "all hosts are ready" not in (state := self.podrun("hold", "--list")):
            if time.monotonic() > end:
                raise SystemExit(f"hold.py: {state}")
            time.sleep(0.2)

    def left(self) -> tuple[int, float, int]:
        """Return the number of the hold's processes, their memory in MB (shared pages divided), and their open files."""
        processes, kilobytes, files = 0, 0, 0
        hosts = self.hosts
        pids = {process.pid for name in hosts.names for process in hosts.processes(name)} if hosts else set()
        mark = f"PODRUN_HOME={self.folder / 'state'}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, StopIteration):
                if int(path.name) in pids or mark in (path / "environ").read_bytes():
                    rows = (path / "smaps_rollup").read_text().splitlines()
                    kilobytes += int(next(row for row in rows if row.startswith("Pss:")).split()[1])
                    files += len(os.listdir(path / "fd"))
                    processes += 1
        return processes, kilobytes / 1024, files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slice", default="2x2")
    parser.add_argument("--ssh", action="store_true")
    parser.add_argument("--runs", type=int, default=0)
    options = parser.parse_args()
    print_setting()
    if options.ssh and (reason := why_not()):
        raise SystemExit(f"hold.py: {reason}")
    rows = []
    print(f"{'':8}{'cold, s':>9}{'warm, s':>9}{'held, s':>9}{'held/cold':>11}{'held/warm':>11}")
    for number in range(options.rounds):
        hosts = Hosts(4) if options.ssh else None
        try:
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(Path(folder), options.slice, hosts)
                cold, warm = bench.first_step(), bench.first_step()
                bench.podrun("hold", *bench.where)
                try:
                    held = bench.first_step()
                    rows.append((cold, warm, held, held / cold, held / warm))
                    print_row(f"round {number + 1}", rows[-1])
                    if options.runs and number == options.rounds - 1:
                        print_leaks(bench, options.runs)
                finally:
                    bench.podrun("release", *bench.where)
        finally:
            if hosts is not None:
                hosts.close()
    if len(rows) > 1:
        print_row("median", [statistics.median(column) for column in zip(*rows, strict=True)])


def print_row(name: str, row: object) -> None:
    cold, warm, held, to_cold, to_warm = row  # type: ignore[misc]
    print(f"{name:8}{cold:9.2f}{warm:9.2f}{held:9.2f}{to_cold:11.2f}{to_warm:11.2f}", flush=True)


def print_leaks(bench: Bench, runs: int) -> None:
    """Make many runs on the held pod, and print what the hold takes before and after them."""
    bench.await_ready()
    before = bench.left()
    for _ in range(runs):
        bench.first_step()
        bench.await_ready()
    after = bench.left()
    for when, (processes, memory, files) in (("before", before), (f"after {runs} runs", after)):
        print(f"{when}: {processes} processes, {memory:.0f} MB, {files} open files", flush=True)


if __name__ == "__main__":
    main()

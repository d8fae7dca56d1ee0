"""Break runs of podrun at random, and judge what it does: a table of faults and outcomes.

    python benchmarks/chaos.py [--runs 200] [--seed 1] [--faults NAME ...] [--parallel 1] [--transport ssh]

A run is one fault in one phase of a job on a simulated pod of two hosts: kills, signals, exceptions, lost links, full
disks, damaged checkpoints. It is right if exit code and first cause are, no process is left, no line of a log and no
complete checkpoint is lost, and the losses are those of an undisturbed run, bit for bit: by podrun's own restarts, or when
the same command is given again. `--seed N --runs 1` repeats one; the exit code is 1 if any was wrong. With `--transport
ssh` the hosts are network namespaces with an sshd each, which needs root, and one run is made at a time; with `--own-disks`
they share no workdir.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from setting import print_setting

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conftest import make_sandbox
from tests.hosts import Hosts
from tests.pod.chaos import Chaos, Result, job_of, undisturbed
from tests.pod.chaos_faults import BOTH, FAULTS, HOSTS, LOCAL, Fault
from tests.ssh.chaos import SshChaos

CATEGORIES = ("code", "cause", "loss", "processes", "checkpoint", "lines", "stuck")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others count on from it")
    parser.add_argument("--faults", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--parallel", type=int, default=1, help="runs at the same time")
    parser.add_argument("--transport", choices=BOTH, default=LOCAL)
    parser.add_argument(
        "--own-disks", action="store_true", help="with ssh: no shared workdir, but the first host's disk"
    )
    options = parser.parse_args()
    table = [fault for fault in FAULTS if options.transport in fault.pods]
    faults = [
        f
        for f in table
        if f.name in (options.faults or f.name) and (os.geteuid() == 0 or not (f.mounts or f.small_home))
    ]
    if not faults:
        parser.error(f"--faults: none of {', '.join(fault.name for fault in table)}")
    print_setting()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        hosts = stack.enter_context(closing(Hosts(HOSTS + 1))) if options.transport == "ssh" else None
        lab = Lab(Path(folder), faults, hosts, options.own_disks)
        seeds = range(options.seed, options.seed + options.runs)
        lab.measure(seeds)
        with ThreadPoolExecutor(options.parallel if hosts is None else 1) as pool:
            results = list(pool.map(lab.run, seeds))
    print_table(faults, results)
    sys.exit(any(result.wrong for _, result in results))


class Lab:
    """Runs cases that follow from their seeds."""

    def __init__(self, folder: Path, faults: list[Fault], hosts: Hosts | None, own_disks: bool) -> None:
        self._folder = folder
        self._faults = faults
        self._hosts = hosts
        self._own_disks = own_disks
        self._expected: dict[tuple[str, ...], dict[int, float]] = {}

    def case(self, seed: int) -> tuple[Fault, str, bool]:
        """Return fault, phase and whether podrun restarts by itself. Every fault comes in turn."""
        fault = self._faults[seed % len(self._faults)]
        chance = random.Random(f"case {seed}")
        return fault, chance.choice(fault.phases), chance.random() < 0.5

    def measure(self, seeds: range) -> None:
        """Run each job that is needed without a fault."""
        for fault, phase, _ in map(self.case, seeds):
            job = job_of(fault, phase)
            if job not in self._expected:
                self._expected[job] = undisturbed(
                    make_sandbox(self._new(f"undisturbed-{len(self._expected)}")), phase, fault
                )
                print(f"undisturbed: {' '.join(job)}: loss {list(self._expected[job].values())[-1]!r}", flush=True)

    def run(self, seed: int) -> tuple[Fault, Result]:
        fault, phase, restarts = self.case(seed)
        path = self._new(str(seed))
        if self._hosts is None:
            chaos = Chaos(make_sandbox(path), fault, phase, seed, restarts)
        else:
            chaos = SshChaos(self._hosts, path, fault, phase, seed, restarts, self._own_disks)
        result = chaos.execute(self._expected[job_of(fault, phase)])
        wrong = "".join(f"\n    {category}: {what}" for category, what in result.wrong)
        print(
            f"{result.case}: {'WRONG' if wrong else 'right'} in {result.seconds:.0f} s; {result.last_line}{wrong}",
            flush=True,
        )
        return fault, result

    def _new(self, name: str) -> Path:
        path = self._folder / name
        path.mkdir()
        return path


def print_table(faults: list[Fault], results: list[tuple[Fault, Result]]) -> None:
    """Print a row for each fault: how many runs, how many right, and what was wrong."""
    print(f"\n{'fault':28}{'runs':>6}{'right':>7}" + "".join(f"{name:>11}" for name in CATEGORIES))
    for fault in [*faults, None]:
        chosen = [result for of, result in results if fault in (of, None)]
        if not chosen:
            continue
        wrong = Counter(category for result in chosen for category in {category for category, _ in result.wrong})
        row = "".join(f"{wrong[name] or '':>11}" for name in CATEGORIES)
        right = sum(not result.wrong for result in chosen)
        print(f"{fault.name if fault else 'all':28}{len(chosen):>6}{right:>7}{row}")


if __name__ == "__main__":
    main()

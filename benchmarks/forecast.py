"""Compare the forecast of goodput with simulated runs, in which podrun's own restart policy decides, or with real ones.

    python benchmarks/forecast.py [--runs 10000] [--failures 20] [--draws 50000]
    python benchmarks/forecast.py --real 20 [--between SECONDS] [--seed 1]

Each run has a virtual clock, random failures, and steps for about `--failures` of them. For each set of times it prints the
goodput that was forecast and the mean of the runs, with its standard error; and the steps between two saves that were
proposed, beside the best of a grid in which each point sees the same `--draws` failures.

With `--real N` a run trains a tiny model on a simulated pod of two hosts, and its workers are killed a few times. From its
record the goodput is forecast of N more such runs, whose workers are killed at random moments, on average after six times
the time of a restart. It is compared with their actual goodput: the share of the time in training whose steps were kept,
from the first step to the last. On a busy machine a restart takes longer at one time than at another, so
there is a forecast from each run's own times as well. By chance some runs also fail more often than others. So each is
compared with a simulated run, too, that has its times and fails when it failed: what is left is the model's error.
A Ctrl-C ends it with the runs that are done.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from child import ended, lines_of
from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from podrun.launcher.commands.forecast import Forecast, forecast_of
from podrun.launcher.report.goodput_model import Times, best_steps, goodput
from podrun.launcher.report.measured_times import measure
from podrun.launcher.report.records import read_records
from podrun.launcher.report.timeline import lanes_of, shares_of
from podrun.launcher.rundir.runs import RunDirectory, find_run
from tests.launcher.report.simulated_runs import CASES, at_random, evenly, simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="of all sets of times together")
    parser.add_argument("--failures", type=int, default=20)
    parser.add_argument("--draws", type=int, default=50_000)
    parser.add_argument("--real", type=int, metavar="N", help="number of real runs, in place of simulated ones")
    parser.add_argument("--between", type=float, help="mean seconds between two failures of a real pod")
    parser.add_argument("--seed", type=int, default=1, help="of the first real run")
    args = parser.parse_args()
    print_setting()
    if args.real:
        compare_real_runs(args.real, args.between, args.seed)
        return
    columns = ("forecast, %", "simulated, %", "error", "steps proposed", "best of grid", "lost, points")
    print(f"{'times':<12}" + "".join(f"{name:>16}" for name in columns))
    for name, (times, rate) in CASES.items():
        every = best_steps(times, rate)
        steps = args.failures / rate / times.step
        runs = [
            simulate(times, every, at_random(rate, seed), steps) for seed in range(math.ceil(args.runs / len(CASES)))
        ]
        mean = sum(run.kept for run in runs) / sum(run.seconds for run in runs)
        error = statistics.pstdev([run.goodput for run in runs]) / math.sqrt(len(runs))
        grid = sorted({max(1, round(every * factor / 100)) for factor in range(68, 140, 4)})
        goodputs = {number: simulate(times, number, evenly(rate, args.draws, seed=1)).goodput for number in grid}
        best = max(goodputs, key=goodputs.__getitem__)
        figures = [
            f"{100 * goodput(times, rate, every * times.step):.2f}",
            f"{100 * mean:.2f}",
            f"{100 * error:.2f}",
            str(every),
            str(best),
            f"{100 * (goodputs[best] - goodputs[every]):.3f}",
        ]
        print(f"{name:<12}" + "".join(f"{figure:>16}" for figure in figures), flush=True)


# --- real runs ---

HOSTS = 2
EVERY = 200  # steps between two checkpoints
JOB = """\
task: regression
batch_size: 8
model: {layers: 1, width: 16}
data: {samples: 400}
log: {every: 20, tensorboard: false}
eval: {every: 0, batches: 1}
launch: {max_restarts: 10000}
"""
FAILURES, SAVES = 4, 3  # of the run from which is forecast: each worker is killed after so many saves
STARTS = 6.0  # times from a failure until training goes on, between two failures
LENGTH = 3.0  # times between two failures, without the first start
LONGEST = 600.0  # seconds without a line
_NEVER = 1e12  # seconds until the next failure


def compare_real_runs(count: int, between: float | None, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # HOME is where executables are kept: only the first start of all compiles
        os.environ.update(HOME=folder, PODRUN_HOME=f"{folder}/home")
        first = real_run(folder, "measured", None)
        times, _ = measure(read_records(first)).times()
        between = between or STARTS * (times.detect + times.until_training)
        made = forecast_of(first, mtbf=HOSTS * between)
        assert made.goodput_now is not None
        steps = EVERY * max(2, round(LENGTH * between * made.goodput_now / times.step / EVERY))
        print(
            f"a run with {FAILURES} failures: {', '.join(f'{name} {value:.3g} s' for name, value in vars(times).items())}"
        )
        print(f"runs of {steps} steps, saved every {EVERY}; a worker is killed every {between:.1f} s on average\n")
        columns = (
            *("failures", "seconds", "forecast, %", "with its times, %", "and its failures, %", "actual, %", "points"),
            *("with its times", "and its failures"),
        )
        print(f"{'run':>4}" + "".join(f"{name:>{len(name) + 2}}" for name in columns), flush=True)
        differences: list[tuple[float, float, float]] = []
        kept = lasted = 0.0
        with suppress(KeyboardInterrupt):
            for number in range(seed, seed + count):
                killer = Killer(number, between)
                directory = real_run(folder, f"{number}", killer, steps)
                failures, seconds, actual = goodput_of(directory)
                its = forecast_of(directory, mtbf=HOSTS * between)
                forecasts = (made.goodput_now, its.goodput_now or 0.0, with_failures(its.times, killer.after, steps))
                differences.append(tuple(100 * (actual - one) for one in forecasts))
                kept, lasted = kept + actual * seconds, lasted + seconds
                cells = [str(number), str(failures), f"{seconds:.1f}", *(f"{100 * one:.1f}" for one in forecasts)]
                cells += [f"{100 * actual:.1f}", *(f"{one:+.1f}" for one in differences[-1])]
                widths = [4, *(len(name) + 2 for name in columns)]
                print("".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
    if differences:
        print(
            f"\nall runs together: {100 * kept / lasted:.1f} %, {100 * (kept / lasted - made.goodput_now):+.1f} points"
        )
        print_differences(made, differences, between, steps)


def with_failures(times: Times, failures: Sequence[float], steps: int) -> float:
    """Return the goodput of a simulated run from its first step on.

    `failures`: seconds until each failure, from the first step and then from each decision to start again.
    """
    until = [*failures, _NEVER]
    until[0] += times.until_training
    run = simulate(times, EVERY, iter(until), steps)
    return run.kept / (run.seconds - times.until_training)


def print_differences(
    made: Forecast, differences: Sequence[tuple[float, float, float]], between: float, steps: int
) -> None:
    simulated = [simulate(made.times, EVERY, at_random(1 / between, seed), steps).goodput for seed in range(2000)]
    noise, count = 100 * statistics.pstdev(simulated), len(differences)
    print()
    for whose, points in zip(
        ("of the run before them", "of each run itself", "and failures of each run itself"),
        zip(*differences, strict=True),
        strict=True,
    ):
        print(
            f"with the times {whose}: mean difference of {count} runs {statistics.fmean(points):+.1f} points, the largest "
            f"{max(points, key=abs):+.1f}"
        )
    print(
        f"in simulated runs of this length, in which all times stay the same, one differs by {noise:.1f} points (standard "
        f"deviation) by chance, and the mean of {count} by {noise / math.sqrt(count):.1f}"
    )


class Killer:
    """Random moments, from the first step on, at which workers of a run are killed.

    While nobody has noticed a failure, none follows. A failure before a worker has started strikes it when it starts.
    """

    def __init__(self, seed: int, between: float) -> None:
        self._chance = random.Random(f"real {seed}")
        self._between = between
        self._since = 0.0
        self._due = math.inf
        self.after: list[float] = []
        """Seconds until each failure, from the first step and then from each restart."""
        self._pids: dict[int, int] = {}
        self._trains = False

    def hear(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "host" and event["phase"] == "started":
            self._pids[event["process"]] = event["pid"]
        elif kind == "restart" or (kind == "step" and not self._trains):
            self._trains = True
            self._since = time.monotonic()
            self._due = self._since + self._chance.expovariate(1 / self._between)

    def seconds(self) -> float:
        """Return the seconds until the next failure; infinity if there is no worker that could fail."""
        return max(0.0, self._due - time.monotonic()) if self._pids else math.inf

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # the run has just ended
            os.kill(self._chance.choice(sorted(self._pids.values())), signal.SIGKILL)
        self.after.append(time.monotonic() - self._since)
        self._due = math.inf
        self._pids.clear()


class AfterSaves(Killer):
    """Kills a worker whenever an attempt has saved a number of times, so that few failures show all times."""

    def __init__(self) -> None:
        super().__init__(0, LONGEST)
        self._saves = self.failures = 0

    def hear(self, event: dict[str, Any]) -> None:
        super().hear(event)
        self._saves = 0 if event["event"] == "start" else self._saves + (event["event"] == "checkpoint")
        self._due = 0.0 if self._saves >= SAVES else math.inf

    @property
    def is_done(self) -> bool:
        return self.failures == FAILURES and self._saves >= SAVES

    def kill(self) -> None:
        super().kill()
        self.failures, self._saves = self.failures + 1, 0


def real_run(folder: str, name: str, killer: Killer | None, steps: int | None = None) -> RunDirectory:
    """Run the job of that many steps, or measure the times of its parts."""
    job = Path(folder, "train.yaml")
    job.write_text(f"{JOB}steps: {steps or 1_000_000}\ncheckpoint: {{every: {EVERY}}}\n")
    command = [sys.executable, "-m", "podrun.launcher.cli", "--json", "--simulate", f"--slice=cpu-{HOSTS}x1"]
    command += [f"--workdir={folder}/work-{name}", str(job)]
    with Path(folder, "stderr").open("w") as stderr:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True)
    killer = killer or AfterSaves()
    with ended(process):
        lines = lines_of(process)
        while not (isinstance(killer, AfterSaves) and killer.is_done):
            seconds = killer.seconds()
            try:
                line = lines.get(timeout=min(LONGEST, seconds))
            except queue.Empty:
                if seconds >= LONGEST:
                    raise SystemExit(f"nothing has happened for {LONGEST:g} s") from None
                killer.kill()
                continue
            if line is None:
                break
            killer.hear(json.loads(line))
    if steps is not None and process.wait():
        raise SystemExit(f"the run failed:\n{Path(folder, 'stderr').read_text()}")
    return find_run(None)


def goodput_of(directory: RunDirectory) -> tuple[int, float, float]:
    """Return the failures of a run, its seconds without the first start and the end, and its goodput in them.

    All are those of process 0, which saves: the others wait for it in their next step, which looks like training.
    """
    records = read_records(directory)
    measured = measure(records)
    lanes = lanes_of(records.events, records.by_process, records.events[-1]["time"])
    seconds = {share.kind: HOSTS * share.seconds for share in shares_of(lanes[:1])}  # each process counts 1 / HOSTS
    lasted = sum(seconds.values()) - measured.first_start - seconds.get("other", 0.0)
    return measured.failures, lasted, (seconds["train"] + seconds.get("data", 0.0)) / lasted


if __name__ == "__main__":
    main()

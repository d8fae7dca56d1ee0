"""Compare the forecast of goodput with simulated runs, in which podrun's own restart policy decides.

    python benchmarks/forecast.py [--runs 10000] [--failures 20] [--draws 50000]

Each run has a virtual clock, random failures, and steps for about `--failures` of them. For each set of times it prints the
goodput that was forecast and the mean of the runs, with its standard error; and the steps between two saves that were
proposed, beside the best of a grid in which each point sees the same `--draws` failures.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path

from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from podrun.launcher.report.goodput_model import best_steps, goodput
from tests.launcher.report.simulated_runs import CASES, at_random, evenly, simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="of all sets of times together")
    parser.add_argument("--failures", type=int, default=20)
    parser.add_argument("--draws", type=int, default=50_000)
    args = parser.parse_args()
    print_setting()
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


if __name__ == "__main__":
    main()

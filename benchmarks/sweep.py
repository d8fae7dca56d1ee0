"""Measure what `podrun sweep` adds to each trial, compared with Optuna's own loop in one process.

    python benchmarks/sweep.py --trials 20

The trials are the same program, which computes a number and ends. Optuna's loop calls it as a subprocess. A single run of
the program by podrun is measured as well: it is what the start of a run takes. Optuna is needed (the extra `optuna`).

    python benchmarks/sweep.py --trials 40 --kills 3

runs a grid of trials, of which every tenth fails, on 4 parts of a simulated pod of 4 hosts. It runs it undisturbed, and again
with so many SIGKILLs of the command at random moments, and compares the trials and their results.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setting import print_setting

_TRIAL = """
import json, os, sys
x = float(sys.argv[1])
folder = os.environ["PODRUN_WORKDIR"]
with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
    print(json.dumps({"kind": "eval", "step": 1, "score": 1 - (x - 0.3) ** 2}), file=file)
"""
_FAILING = """
import json, os, sys, time
number, folder = int(sys.argv[1]), os.environ["PODRUN_WORKDIR"]
time.sleep(1)
if number % 10 == 7:
    sys.exit(3)
with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
    print(json.dumps({"kind": "eval", "step": 1, "score": 1 - (number / 40 - 0.3) ** 2}), file=file)
"""
_PODRUN = [sys.executable, "-m", "podrun.launcher.cli"]
_POD = ["--slice", "cpu-1x1", "--simulate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--search", default="optuna", help="search of the sweep; random has no yardstick")
    parser.add_argument("--kills", type=int, default=0, help="compare a killed sweep with an undisturbed one instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    options = parser.parse_args()
    print_setting()
    if options.kills:
        with tempfile.TemporaryDirectory() as name:
            _compare_killed(Path(name), options.trials, options.kills, random.Random(options.seed))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trial.py").write_text(_TRIAL)
        run = statistics.median(_run(folder, number) for number in range(3))
        print(f"a run of podrun, from the command to its end: {run:.2f} s (median of 3)", flush=True)
        sweep = _sweep(folder, options.trials, options.search)
        print(f"a trial of podrun sweep:                      {sweep:.2f} s (mean of {options.trials})", flush=True)
        if options.search == "optuna":
            loop = _loop(folder, options.trials)
            print(f"a trial of Optuna's own loop:                 {loop:.2f} s (mean of {options.trials})")
            print(f"podrun adds {sweep - loop:.2f} s to each trial, {sweep - loop - run:+.2f} s beyond a run of podrun")


def _compare_killed(folder: Path, trials: int, kills: int, chance: random.Random) -> None:
    """Print how a sweep that is killed differs from one that is not, and fail if it does."""
    (folder / "trial.py").write_text(_FAILING)
    sweep = {
        "program": [sys.executable, "trial.py", "{number}"],
        "space": {"number": {"values": [*range(trials)]}},
        "search": "grid",
        "metric": "max score",
        "side_by_side": 4,
    }
    for name in ("undisturbed", "killed"):
        (folder / f"{name}.yaml").write_text(json.dumps(sweep))
    command = [*_PODRUN, "sweep", "--slice", "cpu-4x1", "--simulate"]
    undisturbed = _timed([*command, "undisturbed.yaml"], folder)
    began = time.monotonic()
    for number in sorted(chance.sample(range(trials), kills)):
        _kill_at([*command, "killed.yaml", "--json"], folder, number, chance.random())
    _timed([*command, "killed.yaml"], folder)
    killed = time.monotonic() - began
    rows = [_results(folder / "runs" / name) for name in ("undisturbed", "killed")]
    journal = (folder / "runs" / "killed" / "sweep.jsonl").read_text()
    done = [event["trial"] for event in map(json.loads, journal.splitlines()) if event["event"] == "done"]
    states = [row[1] for row in rows[1]]
    print(f"undisturbed: {undisturbed:.0f} s; killed {kills} times: {killed:.0f} s")
    print(f"trials: {len(rows[1])}, {states.count('done')} done, {states.count('failed')} failed")
    print(
        f"trials or results that differ from the undisturbed sweep: {sum(a != b for a, b in zip(*rows, strict=True))}"
    )
    print(f"trials that were done twice: {len(done) - len({*done})}")
    assert rows[0] == rows[1] and len(done) == len({*done})


def _kill_at(command: list[str], folder: Path, number: int, after: float) -> None:
    """Start the sweep, and kill it some seconds after trial `number` has started, or when an earlier call has started it."""
    environment = {**os.environ, "PODRUN_HOME": str(folder / "home")}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for event in map(json.loads, process.stdout):
        if event["event"] == "start" and event["trial"] >= number:
            break
    time.sleep(after)
    process.kill()
    process.wait()


def _results(folder: Path) -> list[list[str]]:
    """Return the rows of the table of trials, without their runs and the reasons, which name a host."""
    with (folder / "trials.csv").open(newline="") as file:
        return [row[:-2] for row in csv.reader(file)][1:]


def _run(folder: Path, number: int) -> float:
    """Return the seconds of a run of the program by itself."""
    program = ["--", sys.executable, "trial.py", "0.5"]
    return _timed([*_PODRUN, *_POD, "-w", f"alone-{number}", *program], folder)


def _sweep(folder: Path, trials: int, search: str) -> float:
    """Return the seconds of a sweep for each of its trials, one after another."""
    sweep = {
        "program": [sys.executable, "trial.py", "{x}"],
        "space": {"x": {"min": 0, "max": 1}},
        "search": search,
        "metric": "max score",
        "budget": {"trials": trials},
    }
    (folder / "sweep.yaml").write_text(json.dumps(sweep))
    return _timed([*_PODRUN, "sweep", *_POD, "sweep.yaml"], folder) / trials


def _timed(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    environment = {**os.environ, "PODRUN_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began


def _loop(folder: Path, trials: int) -> float:
    """Return the seconds of a trial in Optuna's loop, which runs the program as a subprocess and reads its result."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        workdir = folder / f"loop-{trial.number}"
        workdir.mkdir()
        x = trial.suggest_float("x", 0, 1)
        environment = {**os.environ, "PODRUN_WORKDIR": str(workdir)}
        subprocess.run([sys.executable, "trial.py", str(x)], cwd=folder, env=environment, check=True)
        return float(json.loads((workdir / "metrics.jsonl").read_text())["score"])

    began = time.monotonic()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), direction="maximize")
    study.optimize(objective, n_trials=trials)
    return (time.monotonic() - began) / trials


if __name__ == "__main__":
    main()

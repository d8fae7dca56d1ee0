"""Measure what `podrun watch` costs a run, and how long a step takes to the page.

    python benchmarks/watch.py [--rounds 8] [--seconds 8] [--listeners 1 20]

A run on a pod simulated on this machine trains all the time. Windows take turns: nobody watches; so many listeners hold the
page's news open. All of it shares the cores of the machine: the run, the server and those who listen.

Printed, for each number of listeners: the median over rounds of the ratio of steps/s with them to that without them, with the
quartiles, and the time from a step's event, which the worker stamps, to the last listener; of a real browser (one round, if
playwright and Chromium are there) to the curve on the page.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setting import print_setting

from podrun.launcher.rundir.runs import RunDirectory, all_runs

SLICE = "cpu-1x2"
JOB: dict[str, Any] = {
    "task": "language_model",
    "model": {"name": "gpt2", "layers": 2, "heads": 2, "width": 64, "context": 64},
    "data": {"name": "python_source", "tokenizer": "byte"},
    "steps": 1_000_000,
    "batch_size": 16,
    "log": {"every": 10},
    "eval": {"every": 0},
    "checkpoint": {"every": 0},
}
PODRUN = [sys.executable, "-m", "podrun.launcher.cli"]
LIMIT = 120.0  # seconds until a run trains


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window")
    parser.add_argument("--listeners", type=int, nargs="*", default=[1, 20])
    arguments = parser.parse_args()
    print_setting()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PODRUN_HOME"] = str(Path(folder) / "home")
        with training(Path(folder)) as run, serving() as address:
            rates: dict[int, list[float]] = {number: [] for number in [0, *arguments.listeners]}
            delays: dict[int, list[float]] = {number: [] for number in arguments.listeners}
            for _ in range(arguments.rounds):
                for number in rates:
                    rate, late = window(run, address, number, arguments.seconds)
                    rates[number].append(rate)
                    if number:
                        delays[number] += late
            report(rates, delays)
            print_browser(run, address, arguments.seconds)


def report(rates: dict[int, list[float]], delays: dict[int, list[float]]) -> None:
    print(f"without     {statistics.median(rates[0]):6.1f} steps/s")
    for number, late in delays.items():
        ratios = [with_them / without for with_them, without in zip(rates[number], rates[0], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0], 0, ratios[0])
        print(
            f"{number:>3} listeners {statistics.median(rates[number]):6.1f} steps/s, ratio {statistics.median(ratios):.3f} "
            f"({low:.3f} to {high:.3f}); {described(late)}"
        )


def described(delays: list[float]) -> str:
    if not delays:
        return "no step in the window"
    return f"a step after {statistics.median(delays):.2f} s (median of {len(delays)}), at most {max(delays):.2f} s"


@contextlib.contextmanager
def training(folder: Path) -> Iterator[RunDirectory]:
    """Train in the background until the end of the block."""
    (folder / "job.yaml").write_text(json.dumps(JOB))
    command = [
        *PODRUN,
        "--slice",
        SLICE,
        "--simulate",
        "--detach",
        "-w",
        str(folder / "work"),
        str(folder / "job.yaml"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    run = all_runs()[0]
    try:
        deadline = time.monotonic() + LIMIT
        while not steps_of(run, 0.0):
            assert time.monotonic() < deadline and run.end() is None, "the run does not train"
            time.sleep(0.2)
        yield run
    finally:
        subprocess.run([*PODRUN, "stop", "--now", run.run_id], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve the newest run, and yield the address of its page."""
    with subprocess.Popen([*PODRUN, "watch"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)


def steps_of(run: RunDirectory, since: float) -> dict[int, float]:
    """Return the time of each recorded step after a moment."""
    events = (event for event in run.read_events() if event["event"] == "step" and event["time"] >= since)
    return {event["step"]: event["time"] for event in events if event["process"] == 0}


def window(run: RunDirectory, address: str, listeners: int, seconds: float) -> tuple[float, list[float]]:
    """Return the steps/s while so many listen, and the seconds from each step to the last of them."""
    with listening(address, listeners) as arrivals:
        time.sleep(1.0)  # those who have come have got what there is
        begin = time.time()
        time.sleep(seconds)
        deadline = time.monotonic() + LIMIT
        while len(steps := steps_of(run, begin)) < 2:  # a rate needs two
            assert time.monotonic() < deadline and run.end() is None, "the run does not train"
            time.sleep(0.2)
    first, last = min(steps), max(steps)
    late = [at - steps[step] for step, at in arrivals if step in steps]
    return (last - first) / (steps[last] - steps[first]), late


@contextlib.contextmanager
def listening(address: str, number: int) -> Iterator[list[tuple[int, float]]]:
    """Listen to the news during the block; after it, the list has each step and when it reached the last of them."""
    arrivals: list[tuple[int, float]] = []
    if not number:
        yield arrivals
        return
    command = [sys.executable, "-c", LISTENERS, address, str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield arrivals
        finally:
            arrivals += json.loads(process.communicate(timeout=LIMIT)[0])


LISTENERS = """
import base64, json, os, sys, threading, time, urllib.request
from array import array
address, number = sys.argv[1], int(sys.argv[2])
with urllib.request.urlopen(address) as page:
    after = json.loads(page.read().decode().partition('id="data">')[2].partition("</script>")[0])["live"]["after"]
arrivals, lock = {}, threading.Lock()
def listen():
    for line in urllib.request.urlopen(f"{address}/news?after={after}"):
        at = time.time()
        if not line.startswith(b'data: {"points"'):
            continue
        points = json.loads(line[6:])["points"]
        steps = array("d", base64.b64decode(points["places"][0]))
        with lock:
            for step in steps:
                arrivals[int(step)] = max(at, arrivals.get(int(step), 0.0))
for _ in range(number):
    threading.Thread(target=listen, daemon=True).start()
sys.stdin.read()
with lock:
    print(json.dumps(sorted(arrivals.items())), flush=True)
os._exit(0)
"""
"""Program of those who listen: it prints when each step has reached the last of them."""


def print_browser(run: RunDirectory, address: str, seconds: float) -> None:
    """Print how long a step takes to the curve in a real browser, and the steps/s with it on the same machine."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        seen: dict[int, float] = {}
        begin = time.time()
        while time.time() < begin + seconds:
            step = page.evaluate("charts.find((chart) => chart.spec.key === 'loss').series[0].x.at(-1)")
            seen.setdefault(int(step), time.time())
            page.wait_for_timeout(20)
        browser.close()
    steps = steps_of(run, begin)
    late = [at - steps[step] for step, at in seen.items() if step in steps]
    print(f"in Chromium: {described(late)}")


if __name__ == "__main__":
    main()

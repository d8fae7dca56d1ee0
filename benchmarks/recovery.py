"""Time from the SIGKILL of one of four workers to the next step beyond the last checkpoint.

    python benchmarks/recovery.py [--runs 3] [--kills 2] [--torch PYTHON]

Each run starts with no cache of compiled programs, and its own time from the command to the first step, *cold*, is the
yardstick. Then workers are killed, each some seconds after a checkpoint. *detected* is the time until its end is known;
then podrun stops the others. The same is done to `torchrun --max-restarts`, with a small model of torch's
DistributedDataParallel over gloo, if there is an interpreter with torch. Ratios are run by run, and all take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from child import ended, lines_of
from setting import print_setting

WORKERS, EVERY = 4, 20
MODEL = {"layers": 2, "heads": 2, "width": 64, "context": 64}
SETTLED = 5.0  # seconds between a step and a kill, in which prewarmed workers finish their imports
SHORT_LIMIT = 120.0  # seconds for a step to come
TORCH_PATIENCE = 45.0  # seconds for torchrun to recover
Event = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=2, help="in each run")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch")
    options = parser.parse_args()
    print_setting()
    recovered, colds, detections, ratios = [], [], [], []
    torch: list[float | None] = []
    for number in range(options.runs):
        cold, kills = time_podrun(options.kills)
        colds.append(cold)
        for seconds, detected in kills:
            recovered.append(seconds)
            detections.append(detected)
            ratios.append(seconds / cold)
            print(f"run {number}: cold {cold:.2f} s, detected {detected:.2f} s, recovered {seconds:.2f} s", flush=True)
        if options.torch:
            torch.append(time_torchrun(options.torch))
            print(f"run {number}: torchrun {told(torch[-1])}", flush=True)
    median = statistics.median
    print(f"\nmedians of {len(recovered)} kills in {options.runs} runs on cpu-{WORKERS}x1, seconds")
    print(f"cold start       {median(colds):7.2f}")
    print(f"detected         {median(detections):7.2f}   the longest {max(detections):.2f}")
    print(f"recovered        {median(recovered):7.2f}   against the cold start {median(ratios):.2f}")
    if not options.torch:
        print("torchrun         not measured: --torch PYTHON names an interpreter with torch")
    elif back := [seconds for seconds in torch if seconds is not None]:
        print(f"torchrun         {median(back):7.2f}   in {len(back)} of {len(torch)} runs")
    else:
        print(f"torchrun         did not recover within {TORCH_PATIENCE:g} s in any of {len(torch)} runs")


def told(seconds: float | None) -> str:
    return f"did not recover within {TORCH_PATIENCE:g} s" if seconds is None else f"recovered {seconds:.2f} s"


class Watched:
    """A command that prints events, those of podrun or of the script for torchrun, and what they have told so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pids: dict[int, int] = {}
        self.saved = self.step = 0
        """Steps of the last checkpoint, and of this attempt."""
        self._lines = lines_of(process)

    def until(self, wanted: Callable[[Event], bool], seconds: float = SHORT_LIMIT) -> float | None:
        """Return the time at which a wanted event came; None if none came in time, or the command has ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith("{"):
                event = json.loads(line)
                self._hear(event)
                if wanted(event):
                    return time.monotonic()
        return None

    def _hear(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start":
            self.step = 0
        elif kind == "host" and event["phase"] == "started":
            self.pids[event["process"]] = event["pid"]
        elif kind == "checkpoint":
            self.saved = event["step"]
        elif kind == "step" and event["process"] == 0:
            self.step = event["step"]

    def kill(self, victim: int, patience: float = SHORT_LIMIT) -> tuple[float, float | None, float | None]:
        """Kill a worker some time after a checkpoint. Return when, and when its end was known and training went on.

        torchrun reports no ends: there the second is the start of the next attempt.
        """
        calm = time.monotonic() + SETTLED
        if self.until(lambda e: self.saved > 0 and time.monotonic() > calm) is None:
            raise SystemExit("there is no checkpoint, or no step after it")
        killed = time.monotonic()
        os.kill(self.pids[victim], signal.SIGKILL)
        ends = (("exit", victim), ("start", None))
        detected = self.until(lambda e: (e["event"], e.get("process")) in ends, patience)
        if self.step:
            self.until(lambda e: e["event"] == "start", patience)
        return killed, detected, self.until(lambda e: self.step > self.saved, patience)


@contextmanager
def running(command: list[str], env: dict[str, str], folder: str) -> Iterator[Watched]:
    with open(Path(folder, "stderr"), "w") as stderr:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with ended(process):
        yield Watched(process)


def time_podrun(kills: int) -> tuple[float, list[tuple[float, float]]]:
    """Return the seconds of a cold start, and of each kill those until recovery and until detection."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "train.yaml"
        job.write_text(
            f"steps: 1000000\nbatch_size: 16\nmodel: {MODEL}\nlog: {{every: 1, tensorboard: false}}\n"
            f"checkpoint: {{every: {EVERY}}}\nlaunch: {{max_restarts: {kills}}}\n"
        )
        env = {**os.environ, "HOME": folder, "PODRUN_HOME": f"{folder}/home"}  # where caches are
        env.pop("JAX_COMPILATION_CACHE_DIR", None)
        command = [sys.executable, "-m", "podrun.launcher.cli", "--json", "--simulate", "--slice", f"cpu-{WORKERS}x1"]
        start = time.monotonic()
        with running([*command, "--workdir", f"{folder}/work", str(job)], env, folder) as run:
            first = run.until(lambda e: run.step > 0)
            times = []
            for number in range(kills if first else 0):
                killed, detected, recovered = run.kill(1 + number % (WORKERS - 1))
                if detected and recovered:
                    times.append((recovered - killed, detected - killed))
        if first is None or len(times) < kills:
            raise SystemExit(f"podrun came to no further step:\n{Path(folder, 'stderr').read_text()}")
        return first - start, times


def time_torchrun(python: str) -> float | None:
    """Return the seconds from the kill of a worker to a step beyond the last checkpoint; None if none came in time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={WORKERS}",
            "--max-restarts=3",
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with running([*command, str(Path(__file__).resolve()), "ddp", folder], env, folder) as run:
            killed, _, recovered = run.kill(1, TORCH_PATIENCE)
            return None if recovered is None else recovered - killed


def ddp(folder: str) -> None:
    """Train a small model with torch's DistributedDataParallel, as a worker of torchrun. Prints events like podrun's."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, saved = dist.get_rank(), Path(folder, "checkpoint.pt")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    trained = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters())
    step = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]

    def tell(**fields: Any) -> None:
        os.write(1, (json.dumps(fields) + "\n").encode())

    if rank == 0:
        tell(event="start", attempt=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    tell(event="host", phase="started", process=rank, pid=os.getpid())
    while True:
        step += 1
        optimizer.zero_grad()
        trained(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
        if rank == 0 and step % EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
            tell(event="checkpoint", step=step)
        if rank == 0:
            tell(event="step", step=step, process=0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ddp"]:
        ddp(sys.argv[2])
    else:
        main()

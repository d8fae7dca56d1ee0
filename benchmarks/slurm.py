"""Time a bare function on a SLURM cluster, by podrun and by submitit: to its first line, and from scancel until all is gone.

    pip install submitit
    python benchmarks/slurm.py [--rounds 24]

The cluster is one of this machine (tests/slurm): slurmctld and four slurmd, each in a network namespace. Both submit the
same function for two nodes, one process each, in turns. *To the first line*: from the command's start to the time that the
later of the two processes has written. The cluster has SLURM's own settings, with which a job waits for up to three seconds
after the end of the one before until SLURM looks at its queue: so each follows a job that does nothing, the rounds are spread
evenly over these three seconds, in random order and for both alike, and means are told. *Gone*: from scancel until no process
of the job is on a node, every sixth round; SLURM kills after 20 s what has not ended by itself.
Needs root and Debian's `slurm-wlm munge iproute2 openssh-server`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.slurm.cluster import Cluster, why_not

NODES = 2
TICK = 3.0  # seconds in which SLURM looks at its queue at least once
CANCELLED = 6  # every so many rounds
LIMIT = 120.0  # seconds for anything
FUNCTION = """\
import os, socket, sys, time

def work(folder, lasts):
    path = os.path.join(folder, f"line.{os.environ.get('RANK') or os.environ['SLURM_PROCID']}")
    with open(path + ".new", "w") as file:
        file.write(repr(time.time()))
    os.rename(path + ".new", path)
    print("first line", flush=True)
    while lasts:
        time.sleep(1)

if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2] == "lasts")
"""
SUBMITIT = """\
import sys
import submitit
from function import work

executor = submitit.AutoExecutor(folder=sys.argv[3], cluster="slurm")
executor.update_parameters(nodes=2, tasks_per_node=1, timeout_min=10)
print(executor.submit(work, sys.argv[1], sys.argv[2] == "lasts").job_id)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    args = parser.parse_args()
    print_setting()
    if reason := why_not():
        raise SystemExit(f"slurm.py: {reason}")
    cluster = Cluster(hurried=False)
    try:
        with tempfile.TemporaryDirectory(dir="/srv") as folder:  # in /tmp podrun refuses: each node may have its own
            project = Path(folder) / "project"
            project.mkdir()
            compare(cluster, project, args.rounds)
    finally:
        cluster.close()


def compare(cluster: Cluster, folder: Path, rounds: int) -> None:
    (folder / "function.py").write_text(FUNCTION)
    (folder / "by_submitit.py").write_text(SUBMITIT)
    ways = {"submitit": by_submitit, "podrun": by_podrun}
    if find_spec("submitit") is None:
        del ways["submitit"]
        print("not installed: submitit")
    start: dict[str, list[float]] = {name: [] for name in ways}
    gone: dict[str, list[float]] = {name: [] for name in ways}
    waits = [TICK * (number + 0.5) / rounds for number in range(rounds)]
    random.shuffle(waits)
    for number, wait in enumerate([0.0, *waits], -1):  # the first is not counted: caches
        for name, command in ways.items():
            seconds = to_first_line(cluster, folder, command, wait)
            print(f"{name}: first line {seconds:.2f} s", flush=True)
            if number >= 0:
                start[name].append(seconds)
            if number >= 0 and number % CANCELLED == 0:
                gone[name].append(cancelled(cluster, folder, command))
                print(f"{name}: gone {gone[name][-1]:.2f} s", flush=True)
    for what, times in (("to the first line", start), ("from scancel until all is gone", gone)):
        means = {name: statistics.mean(seconds) for name, seconds in times.items()}
        ratio = f", ratio {means['podrun'] / means['submitit']:.2f}" if "submitit" in means else ""
        print(f"{what}: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in means.items())}{ratio}")


def by_podrun(folder: Path, lasts: str) -> list[str]:
    words = ["--json", "--slurm=time=10", f"--slice=cpu-{NODES}x1"]
    return [sys.executable, "-m", "podrun.launcher.cli", *words, "--", "python", "function.py", str(folder), lasts]


def by_submitit(folder: Path, lasts: str) -> list[str]:
    # Its records are beside the project, as podrun's are: they are not what is submitted.
    return [sys.executable, "by_submitit.py", str(folder), lasts, str(folder.parent / "submitit")]


def start_job(
    cluster: Cluster, folder: Path, command: Callable[[Path, str], list[str]], lasts: str, wait: float = 0.0
) -> tuple[str, float]:
    """Wait, submit the function, and return the id of its job and the seconds until its first lines."""
    for path in folder.glob("line.*"):
        path.unlink()
    cluster.ask("sbatch", "--wrap=true", f"--nodes={NODES}", "--output=/dev/null")
    until(lambda: not cluster.jobs())
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    env = {**cluster.env, "PATH": path, "PODRUN_HOME": str(folder.parent / "home")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled, a checkout not yet
    time.sleep(wait)
    begin = time.time()
    done = cluster.hosts.run(command(folder, lasts), env=env, cwd=str(folder))
    if done.returncode:
        raise SystemExit(f"{command.__name__}: {done.stderr}")
    lines = [folder / f"line.{number}" for number in range(NODES)]
    until(lambda: all(line.exists() for line in lines))
    answer = done.stdout.strip().splitlines()[-1]
    job = str(json.loads(answer)["slurm_job"]) if answer.startswith("{") else answer
    return job, max(float(line.read_text()) for line in lines) - begin


def to_first_line(cluster: Cluster, folder: Path, command: Callable[[Path, str], list[str]], wait: float) -> float:
    _, seconds = start_job(cluster, folder, command, "ends", wait)
    until(lambda: not cluster.jobs())
    return seconds


def cancelled(cluster: Cluster, folder: Path, command: Callable[[Path, str], list[str]]) -> float:
    job, _ = start_job(cluster, folder, command, "lasts")
    begin = time.time()
    cluster.ask("scancel", job)
    until(lambda: not left(cluster, folder))
    seconds = time.time() - begin
    until(lambda: not cluster.jobs())
    return seconds


def left(cluster: Cluster, folder: Path) -> bool:
    """Return whether a process of the function, or of what has started it, is on a node."""
    words = re.compile(rf"{re.escape(str(folder))}|function\.py|submitit|podrun\.launcher|podrun.*agent")
    return any(
        words.search(process.args) and "slurmd" not in process.args.split()[0]
        for name in cluster.hosts.names
        for process in cluster.hosts.processes(name)
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("slurm.py: nothing has happened for two minutes")
        time.sleep(0.02)


if __name__ == "__main__":
    main()

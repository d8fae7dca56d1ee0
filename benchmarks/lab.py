"""Time four machines of a small lab: from `podrun init` to a trained model, and the same again warm.

    make .venv/installed
    sudo .venv/bin/python benchmarks/lab.py [--hosts 4] [--packages download|here] [CHANGE ...]

The machines are network namespaces with an ordinary user, a home of its own on each, and the system's Python. Nothing is set
but `hosts` and a shared workdir. They have no way to an index, so the packages that `podrun init` pins are downloaded here
first (400 MB), by pip as this machine has set it up; with `--packages here` the environments only point at those of this
Python, whose version must be the system's. CHANGE alters the job, as `model.layers=1`. It needs Debian's `openssh-server
iproute2 iptables python3-venv python3-pip`, 5 GB in /tmp, and takes 3 to 10 minutes. Every line is printed with the seconds
since its command was started, and at the end the seconds of each phase. Everything is removed afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from setting import ROOT, print_setting

sys.path.insert(0, str(ROOT))

from tests.hosts import USER, Hosts, why_not
from tests.wheels import packages_of_this_python

JOB = "examples/gpt2_tiny.yaml"
SHORT = ("steps=10", "eval.every=5", "checkpoint.every=5", "sample.tokens=5", "schedule.warmup_steps=2")
PYTHON = "/usr/bin/python3"
PHASES = {  # what a start does, and the words in the line that ends it
    "environments on all hosts, code, ready": "processes: ready",
    "Python and JAX, joining, data and model": "processes: compiling the step",
    "compiling, until the first validation": "validation at step 5",
    "the rest of 10 steps, checkpoints, sampled text": "podrun: done",
}
Lines = list[tuple[float, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--packages", choices=["download", "here"], default="download")
    parser.add_argument("changes", nargs="*", metavar="CHANGE")
    options = parser.parse_args()
    print_setting()
    if reason := why_not() or no_packages():
        raise SystemExit(f"lab.py: {reason}")
    hosts = Hosts(options.hosts)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(hosts, Path(folder), options.packages == "here", options.changes)
    finally:
        hosts.close()


def no_packages() -> str | None:
    """Return why the system's Python cannot make an environment; None if it can."""
    code = "import sys, ensurepip, pip; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([PYTHON, "-c", code], capture_output=True).returncode == 0:
        return None
    return f"{PYTHON} must be Python 3.11 or newer, with Debian's python3-venv and python3-pip"


def run(hosts: Hosts, work: Path, packages_here: bool, changes: list[str]) -> None:
    wheels, shared = hosts.folder / "wheels", hosts.folder / "shared"
    wheels.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    config = f"Host *\n User {USER}\n IdentityFile {hosts.key}\n UserKnownHostsFile {hosts.known_hosts}\n"
    (hosts.home / ".ssh" / "config").write_text(config)
    shutil.copytree(ROOT / "examples", work / "examples")
    where = [f"--slice=cpu-{len(hosts.names)}x2", f"--hosts={','.join(hosts.names)}", f"--workdir={shared}"]
    podrun(hosts, work, "init", "--yes", *where)
    requirements = work / "requirements.txt"
    if packages_here:
        requirements.write_text(f"--no-index\n{packages_of_this_python(wheels)}\n")
    else:
        download = [PYTHON, "-m", "pip", "download", "-qq", "--only-binary=:all:"]
        subprocess.run([*download, f"--dest={wheels}", f"--requirement={requirements}"], check=True)
        requirements.write_text(f"--no-index\n--find-links {wheels}\n{requirements.read_text()}")
    podrun(hosts, work, "check", "--pod=pod.yaml")
    first = podrun(hosts, work, "--pod=pod.yaml", JOB, *SHORT, *changes)
    checked = podrun(hosts, work, "check", "--pod=pod.yaml")
    again = podrun(hosts, work, "--pod=pod.yaml", "--workdir=again", JOB, *SHORT, *changes)
    print(f"\nseconds, first start and warm; a check before the warm start took {checked[-1][0]:.1f}")
    for name, cold, warm in zip(PHASES, by_phase(first), by_phase(again), strict=True):
        print(f"{name:50}{cold:8.1f}{warm:8.1f}")
    print(f"{'together':50}{first[-1][0]:8.1f}{again[-1][0]:8.1f}")


def by_phase(lines: Lines) -> list[float]:
    """Return the seconds of each phase."""
    ends = [next(seconds for seconds, line in lines if words in line) for words in PHASES.values()]
    return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]


def podrun(hosts: Hosts, work: Path, *args: str) -> Lines:
    """Run podrun in the head, and return what it prints, each line with its second. Raises SystemExit if it fails."""
    print("$ podrun", *args, flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        [*hosts.prefix, sys.executable, "-m", "podrun.launcher.cli", *args],
        cwd=work,
        env={**hosts.env, "PODRUN_HOME": str(work / "home"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append((time.monotonic() - start, line))
        print(f"[{lines[-1][0]:6.1f}] {line}", end="", flush=True)
    if process.wait():
        raise SystemExit(process.returncode)
    return lines


if __name__ == "__main__":
    main()

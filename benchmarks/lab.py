"""Time four machines of a small lab: from `podrun init` to a trained model, and the same again warm.

    make .venv/installed
    sudo .venv/bin/python benchmarks/lab.py

The machines are network namespaces with an ordinary user, a home of its own on each, and the system's Python. Nothing is set
but `hosts` and a shared workdir. They have no way to an index, so the packages that `podrun init` pins are downloaded here
first (400 MB), by pip as this machine has set it up. It needs Debian's `openssh-server iproute2 iptables python3-venv
python3-pip`, 5 GB in /tmp, and takes 3 to 10 minutes. Every line is printed with the seconds since its command was started,
and at the end the seconds of each phase. Everything is removed afterwards.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.hosts import USER, Hosts, why_not  # noqa: E402

JOB = "examples/gpt2_tiny.yaml"
SHORT = ("steps=10", "eval.every=5", "checkpoint.every=5", "sample.tokens=5", "schedule.warmup_steps=2")
PYTHON = "/usr/bin/python3"
PHASES = {  # what a start does, and the words in the line that ends it
    "environments on all four hosts, code, ready": "processes: ready",
    "Python and JAX, joining, data and model": "processes: compiling the step",
    "compiling, until the first validation": "validation at step 5",
    "the rest of 10 steps, checkpoints, sampled text": "podrun: done",
}
Lines = list[tuple[float, str]]


def main() -> None:
    if reason := why_not() or no_packages():
        raise SystemExit(f"lab.py: {reason}")
    hosts = Hosts(4)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(hosts, Path(folder))
    finally:
        hosts.close()


def no_packages() -> str | None:
    """Return why the system's Python cannot make an environment; None if it can."""
    code = "import sys, ensurepip, pip; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([PYTHON, "-c", code], capture_output=True).returncode == 0:
        return None
    return f"{PYTHON} must be Python 3.11 or newer, with Debian's python3-venv and python3-pip"


def run(hosts: Hosts, work: Path) -> None:
    wheels, shared = hosts.folder / "wheels", hosts.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    config = f"Host *\n User {USER}\n IdentityFile {hosts.key}\n UserKnownHostsFile {hosts.known_hosts}\n"
    (hosts.home / ".ssh" / "config").write_text(config)
    shutil.copytree(ROOT / "examples", work / "examples")
    podrun(hosts, work, "init", "--yes", "--slice=cpu-4x2", "--hosts=h[0-3]", f"--workdir={shared}")
    requirements = work / "requirements.txt"
    download = [
        PYTHON,
        "-m",
        "pip",
        "download",
        "-qq",
        "--only-binary",
        ":all:",
        "-d",
        str(wheels),
        "-r",
        str(requirements),
    ]
    subprocess.run(download, check=True)
    requirements.write_text(f"--no-index\n--find-links {wheels}\n{requirements.read_text()}")
    podrun(hosts, work, "check", "--pod=pod.yaml")
    first = podrun(hosts, work, "--pod=pod.yaml", JOB, *SHORT)
    checked = podrun(hosts, work, "check", "--pod=pod.yaml")
    again = podrun(hosts, work, "--pod=pod.yaml", "--workdir=again", JOB, *SHORT)
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

"""Four machines of a small lab: from `podrun init` to a trained model, and the same again warm.

    python benchmarks/lab.py        # as root; needs an index of packages, or pip's cache

The machines are network namespaces with an ordinary user, a home of its own on each, and the system's Python. Nothing is set
but `hosts` and a shared workdir. They have no way to an index, so the packages that `podrun init` pins are downloaded here
first. Every line is printed with the seconds since its command was started.
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

from tests.hosts import USER, Hosts  # noqa: E402

JOB = "examples/gpt2_tiny.yaml"
SHORT = ("steps=10", "eval.every=5", "checkpoint.every=5", "sample.tokens=5", "schedule.warmup_steps=2")


def main() -> None:
    hosts = Hosts(4)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(hosts, Path(folder))
    finally:
        hosts.close()


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
        "/usr/bin/python3",
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary",
        ":all:",
        "-d",
        wheels,
        "-r",
        requirements,
    ]
    subprocess.run(download, check=True)
    requirements.write_text(f"--no-index\n--find-links {wheels}\n{requirements.read_text()}")
    podrun(hosts, work, "check", "--pod=pod.yaml")
    podrun(hosts, work, "--pod=pod.yaml", JOB, *SHORT)
    podrun(hosts, work, "--pod=pod.yaml", "--workdir=again", JOB, *SHORT)


def podrun(hosts: Hosts, work: Path, *args: str) -> None:
    """Raises SystemExit if it fails."""
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
    for line in process.stdout:
        print(f"[{time.monotonic() - start:6.1f}] {line}", end="", flush=True)
    if process.wait():
        raise SystemExit(process.returncode)


if __name__ == "__main__":
    main()

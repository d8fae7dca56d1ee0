"""Workers: their environment, their threads, their program, and why one does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.login_folder import expand_process
from podrun.launcher.agent.base.protocol import MULTISLICE
from podrun.launcher.agent.run.worker import Worker, worker_env

from .child import worker_spec


@pytest.mark.parametrize(
    ("threads", "cores", "own", "there", "expected"),
    [
        (None, 4, {}, None, None),
        (None, 4, {}, "3", "3"),
        (8, 4, {}, None, "8"),
        (2, 4, {}, None, "4"),
        (2, None, {}, None, "2"),
        (8, 4, {}, "3", "8"),
        (8, 4, {"NPROC": "5"}, "3", "5"),
    ],
)
def test_threads_of_a_worker_on_cpu(
    threads: int | None,
    cores: int | None,
    own: dict[str, str],
    there: str | None,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread per device at least, or a collective waits for ever; one per core; the user's own number wins."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("NPROC", raising=False)
    if there:
        monkeypatch.setenv("NPROC", there)
    assert worker_env(worker_spec(threads=threads, env=own), {}).get("NPROC") == expected


def test_environment_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login's, the plan's over it, then what became known last; folders go before those that are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("A", "login")
    monkeypatch.setenv("B", "login")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = {"PATH": ["~/.podrun/envs/1/bin"], "PYTHONPATH": ["~/.podrun/podruns/2", "/x"]}
    spec = worker_spec(env={"B": "plan", "C": "plan", "PODRUN_DIR": "~/d"}, path=path)
    env = worker_env(expand_process(spec), {"C": "last"})
    assert (env["A"], env["B"], env["C"]) == ("login", "plan", "last")
    assert env["PATH"] == "/home/me/.podrun/envs/1/bin:/bin:/usr/bin"
    assert env["PYTHONPATH"] == "/home/me/.podrun/podruns/2:/x"
    assert (env["PODRUN_DIR"], env["PODRUN_WORKDIR"]) == (str(tmp_path), "/home/me/w")
    assert "NPROC" not in env or env["NPROC"] == os.environ["NPROC"]
    env = worker_env(expand_process(worker_spec(env={"PYTHONPATH": "/plan"}, path=path)), {})
    assert env["PYTHONPATH"] == "/home/me/.podrun/podruns/2:/x:/plan"


@pytest.mark.parametrize("name", [*MULTISLICE, "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE"])
def test_variables_of_another_job_stay_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login's do, and names that only look alike do not; the plan's, which the user has written, arrive."""
    monkeypatch.setenv(name, "stale")
    monkeypatch.setenv("MEGASCALE_PORTS", "mine")
    env = worker_env(worker_spec(), {})
    assert name not in env and env["MEGASCALE_PORTS"] == "mine"
    assert worker_env(worker_spec(env={name: "plan"}), {})[name] == "plan"


def test_which_variables_describe_slices() -> None:
    """All four: one that is left is enough to mislead libtpu."""
    parts = ("COORDINATOR_ADDRESS", "NUM_SLICES", "PORT", "SLICE_ID")
    assert sorted(MULTISLICE) == [f"MEGASCALE_{part}" for part in parts]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ["no-such-program"]}, "no program 'no-such-program' in the PATH"),
        ({"argv": ["/etc/passwd"]}, "/etc/passwd is not executable on this host"),
        ({"cwd": "no/such/folder"}, "no/such/folder"),
    ],
)
def test_a_worker_that_cannot_be_started(
    change: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason comes back at once, and the child is gone."""
    monkeypatch.chdir(tmp_path)
    worker = Worker(worker_spec(**change))
    worker.start({}, isolated=False)
    assert worker.pid is not None and os.WEXITSTATUS(os.waitpid(worker.pid, 0)[1]) == 127
    assert worker.error is not None and words in worker.error


def test_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own, no input, what it prints in its file in order, and signals as at a login."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    code = "import os, sys, signal; print(os.getcwd(), os.environ['X'], os.getsid(0) == os.getpid(), sys.stdin.read());"
    code += "print(signal.getsignal(signal.SIGPIPE), file=sys.stderr)"
    argv = [sys.executable, "-u", "-c", code, "it's", ""]
    worker = Worker(worker_spec(argv=argv, cwd="sub", env={"X": "1"}))
    worker.start({"X": "2"}, isolated=False)
    assert worker.error is None and worker.pid is not None
    assert os.waitpid(worker.pid, 0)[1] == 0
    lines = (tmp_path / "0.out").read_text().splitlines()
    assert lines == [f"{tmp_path}/sub 2 True ", "1"]  # 1: Python's own SIG_IGN for SIGPIPE


def pythons() -> list[str]:
    """This Python, the system's, and other versions that are beside this one."""
    others = [path for path in Path(sys.base_prefix).parent.glob("3.*/bin/python3") if path.exists()]
    return [sys.executable, *(str(path) for path in (Path("/usr/bin/python3"), *sorted(others)) if path.exists())]


@pytest.mark.parametrize("python", pythons())
def test_a_worker_in_a_virtual_environment_below_the_login_folder(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds its packages by the name it was called with: it must not be called `~/venv/bin/python`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    if subprocess.run([python, "-m", "venv", "--without-pip", "venv"], capture_output=True).returncode:
        pytest.skip(f"{python} makes no virtual environments")
    argv = ["~/venv/bin/python", "-c", "import sys; print(sys.prefix); print(sys.argv[1])", "~/x"]
    worker = Worker(expand_process(worker_spec(argv=argv)))
    worker.start({}, isolated=False)
    assert worker.error is None and worker.pid is not None
    assert os.waitpid(worker.pid, 0)[1] == 0
    assert (tmp_path / "0.out").read_text().splitlines() == [str(tmp_path / "venv"), "~/x"]

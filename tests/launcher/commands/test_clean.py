"""`podrun clean`: what is old, and what a run has left on its hosts."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podrun.runtime.executable_list import ExecutableList, StoredExecutable, compiled_beside

from ...conftest import Sandbox
from .conftest import Make, Podrun

HOUR, DAY = 3600.0, 86400.0


def test_clean_removes_old_runs_that_ended(podrun: Podrun, make: Make) -> None:
    """Nothing young, nothing that goes on, nothing whose agents may still live."""
    make("20260101-000001-old0", age=10 * DAY).end()
    make("20260101-000002-fail", age=8 * DAY).end(1, "host-0")
    make("20260101-000003-late", age=2 * DAY).end()
    left = make("20260101-000004-left", age=8 * DAY)
    young = make("20260101-000005-youn", age=2 * HOUR)
    run = make("20260101-000006-runs", age=30 * DAY)
    with run.directory.supervise():
        listed = podrun("clean", "--dry-run")
        assert [line.split("/")[-1][-4:] for line in listed.out.splitlines()] == ["left", "fail", "old0"]
        assert len(podrun("ps", "--all", "--json").json) == 6
        refused = podrun("clean")
        assert refused.code == 2 and "remove 3 runs here" in refused.err and "add --yes" in refused.err
        assert podrun("clean", "--yes").out.endswith("removed 3 runs here\n")
        assert not left.directory.path.exists()
        assert podrun("clean", "--yes").out.startswith("nothing to remove of runs that ended more than 7d ago")
        assert podrun("clean", "--older-than", "0", "--yes").out.endswith("removed 1 run here\n")
        assert [row["run"][-4:] for row in podrun("ps", "--json").json] == ["runs", "youn"]
    assert young.directory.path.exists()


def test_clean_of_one_run(podrun: Podrun, make: Make) -> None:
    """At any age, but not while it goes on."""
    run = make("20260101-000001-aaaa")
    with run.directory.supervise():
        refused = podrun("clean", "aaaa", "--yes")
        assert refused.code == 2 and f"is running; `podrun stop {run.id}` ends it" in refused.err
    assert "only its launcher is gone" in podrun("clean", "aaaa", "--yes").err
    run.end()
    assert podrun("clean", "aaaa", "--yes").code == 0
    assert list(run.directory.path.parent.iterdir()) == []


def store(home: Path, name: str, age: float, *keys: str) -> Path:
    """Write a list of programs, and its programs, as `podrun compile` does."""
    path = home / "programs" / f"{name}.json"
    store = compiled_beside(path)
    for key in keys:
        store.store(key, b"x" * 1000)
        os.utime(home / "programs" / "compiled" / key, (time.time() - 20 * DAY,) * 2)
    ExecutableList("v3-8", {}, tuple(StoredExecutable("step", key, 1000, 1.0) for key in keys)).write(path)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_compiled_programs_and_kept_answers(podrun: Podrun, sandbox: Sandbox) -> None:
    """Programs that were not used for long go; one that another job shares stays, and so does all while podrun compiles."""
    home = sandbox.path / "home"
    old = store(home, "old", 8 * DAY, "a", "shared")
    young = store(home, "young", DAY, "shared")
    answer = home / "answers" / "0123"
    answer.parent.mkdir(mode=0o700)
    answer.write_text("x" * 500)
    os.utime(answer, (time.time() - 9 * DAY,) * 2)
    lock = home / "programs" / "other.lock"
    lock.touch()
    os.utime(lock, (time.time() - 9 * DAY,) * 2)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "here  compiled programs" not in podrun("clean", "--dry-run").out
    listed = podrun("clean", "--dry-run").out.splitlines()
    assert [line.split("  ")[1] for line in listed[:2]] == ["compiled programs", "kept answers"]
    assert "last used 8d" in listed[0] and listed[1].split()[-3:] == ["500", "bytes", str(answer.parent)]
    assert listed[2].startswith("kept here: compiled programs (") and "`podrun compile` makes them again" in listed[3]
    refused = podrun("clean")
    assert refused.code == 2 and "and kept answers (500 bytes); add --yes" in refused.err
    assert podrun("clean", "--yes").code == 0
    assert not old.exists() and not answer.exists() and not lock.exists() and young.exists()
    assert [path.name for path in (home / "programs" / "compiled").iterdir()] == ["shared"]
    assert podrun("clean", "--older-than", "0", "--yes").code == 0
    assert not [path for path in (home / "programs").rglob("*") if path.is_file()]


def make_call(home: Path, name: str, age: float) -> Path:
    """Make the folder of a call by podrun.submit whose run is gone."""
    call = home / "functions" / name
    call.mkdir(parents=True)
    (call / "call.pickle").write_bytes(b"x" * 1000)
    os.utime(call, (time.time() - age,) * 2)
    return call


def test_calls_whose_run_is_gone(podrun: Podrun, sandbox: Sandbox) -> None:
    """They are counted and removed, but not what their functions have saved, and not a call that is being submitted."""
    home = sandbox.path / "home"
    old = make_call(home, "old", 8 * DAY)
    new = make_call(home, "new", 60)
    saved = make_call(home, "saved", 0) / "workdir" / "model"
    saved.parent.mkdir()
    saved.touch()
    os.utime(saved.parents[1], (time.time() - 8 * DAY,) * 2)
    listed = podrun("clean", "--dry-run", "--older-than", "0s").out
    assert "calls of functions whose run is gone" in listed and "  2 kB  " in listed, listed
    assert podrun("clean", "--yes", "--older-than", "0s").code == 0
    assert (old.exists(), new.exists(), [*saved.parents[1].iterdir()]) == (False, True, [saved.parent])
    assert podrun("clean", "--dry-run", "--older-than", "0s").out.startswith("nothing to remove")


def test_an_interrupted_clean_leaves_no_part_in_place(
    podrun: Podrun, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are renamed before they are removed, and the next clean removes the rest."""
    call = make_call(sandbox.path / "home", "old", 8 * DAY)

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(shutil, "rmtree", interrupt)
        assert podrun("clean", "--yes").code == 130
    assert [path.name for path in call.parent.iterdir()] == [".removed-old"]
    assert podrun("clean", "--yes").code == 0
    assert [*call.parent.iterdir()] == []


def test_a_call_that_cannot_be_removed_is_told(
    podrun: Podrun, make: Make, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = make_call(sandbox.path / "home", "old", 8 * DAY)

    def refuse(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    done = podrun("clean", "--yes")
    assert done.code == 1
    assert f"cannot remove {call.with_name('.removed-old')}: Device or resource busy" in done.err


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(600)", *args]
        started.append(subprocess.Popen(command, env={**os.environ, **env}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_clean_ends_what_a_run_has_left_on_its_hosts(
    podrun: Podrun, make: Make, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Processes and folders of this run alone, and none as long as an agent of it lives."""
    name, other = secrets.token_hex(4), secrets.token_hex(4)  # another run of this test may be on this machine
    run = make(f"20260101-000001-{name}")
    run.end()
    folder = run.directory.path / "hosts" / "host-1.0"
    folder.mkdir(parents=True)
    half = folder.with_name(".removed-host-1.1")  # left by an interrupted clean
    half.mkdir()
    (folder / "1.out").write_text("never fetched")
    ours = sleeper(PODRUN_RUN_ID=run.id, PODRUN_HOST="host-1")
    others = [
        sleeper(PODRUN_RUN_ID=f"20260101-000001-{other}", PODRUN_HOST="host-1"),
        sleeper(PODRUN_RUN_ID=run.id, PODRUN_HOST="host-7"),
        sleeper(PODRUN_HOST="host-1"),
    ]
    agent = sleeper("agent.pyz", "run", run.id)
    looked = podrun("clean", name, "--dry-run")
    assert "process" not in looked.out and "folder" not in looked.out
    agent.kill()
    agent.wait()
    looked = podrun("clean", name, "--dry-run")
    assert f"{ours.pid} of run {run.id}" in looked.out and str(folder) in looked.out and ours.poll() is None
    refused = podrun("clean", name)
    assert (
        "1 run here" in refused.err and "2 folders (13 bytes)" in refused.err and "1 process, by SIGKILL" in refused.err
    )
    done = podrun("clean", name, "--yes")
    assert done.code == 0 and "removed 2 folders, 1 process on the hosts" in done.out
    assert ours.wait(60) == -signal.SIGKILL
    assert [process.poll() for process in others] == [None] * 3
    assert not run.directory.path.exists()

"""`podrun.submit` on this machine."""

from __future__ import annotations

import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import pytest

import podrun

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import kill, processes_of

WORK = """\
import os, signal, time
import podrun

def add(a, b):
    return a + b, os.environ["PODRUN_PROCESS_ID"]

def fail():
    raise ValueError("boom")

def peak(data):
    import resource
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - int(status["VmRSS"].split()[0])) * 1024 + len(data)

def wait(path):
    open(path, "w").close()
    time.sleep(1000)

def die_first():
    if os.environ["PODRUN_PROCESS_ID"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, lost)
    time.sleep(1000)

def lost(number, frame):
    raise RuntimeError("a consequence")

def train(path):
    for step in podrun.steps(1000000, 0):
        open(path, "w").close()
        time.sleep(0.05)

def save():
    os.makedirs(os.environ["PODRUN_WORKDIR"] + "/checkpoints", exist_ok=True)
    open(os.environ["PODRUN_WORKDIR"] + "/checkpoints/1", "w").close()

class Odd(BaseException):
    def __str__(self):
        raise ValueError("no text")

def odd():
    raise Odd
"""


@pytest.fixture
def here(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Make a sandbox that is the working directory and environment of this process."""
    monkeypatch.chdir(sandbox.path)
    monkeypatch.syspath_prepend(sandbox.path)
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    (sandbox.path / "work.py").write_text(WORK)
    yield sandbox
    sys.modules.pop("work", None)
    for pid in processes_of(sandbox):
        if pid != os.getpid():
            kill(pid)


def test_a_function_and_its_result(here: Sandbox) -> None:
    import work

    call = podrun.submit(work.add, 1, 2, simulate=True, slice="cpu-2x1")
    failing = podrun.submit(work.fail, hosts="local")
    assert call.results(120) == [(3, "0"), (3, "1")]
    assert call.result() == (3, "0") and call.exception() is None and call.done() and call.job_id is None
    with pytest.raises(ValueError, match="boom") as raised:
        failing.result(120)
    assert "In process 0 on" in str(raised.value.__cause__)
    assert 'raise ValueError("boom")' in str(raised.value.__cause__)


def test_a_cancelled_call(here: Sandbox, tmp_path: Path) -> None:
    import work

    call = podrun.submit(work.wait, str(tmp_path / "begun"), simulate=True)
    wait_until((tmp_path / "begun").exists, "the call")
    with pytest.raises(TimeoutError):
        call.result(0.1)
    assert not call.done()
    assert call.cancel() and call.cancelled() and call.done()
    with pytest.raises(CancelledError):
        call.result()


def test_old_calls_are_removed_with_their_runs(here: Sandbox) -> None:
    import work

    call = podrun.submit(work.add, 1, 2, simulate=True)
    assert call.result(120) == (3, "0")
    (folder,) = (here.path / "home" / "functions").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    removed = here.podrun("clean", "--older-than", "0s", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert not folder.exists()


def test_a_consequence_is_not_the_cause(here: Sandbox) -> None:
    """After SIGKILL a process has raised nothing; what its neighbour raises, when it is ended then, is not the result."""
    import work

    call = podrun.submit(work.die_first, simulate=True, slice="cpu-2x1")
    with pytest.raises(podrun.LaunchError, match=r"process 1.*SIGKILL"):
        call.result(120)


def test_a_call_that_is_stopped(here: Sandbox, tmp_path: Path) -> None:
    """It has not called sys.exit."""
    import work

    call = podrun.submit(work.train, str(tmp_path / "begun"), simulate=True)
    wait_until((tmp_path / "begun").exists, "the call")
    here.podrun("stop", call.run_id)
    with pytest.raises(podrun.LaunchError):
        call.result(120)


def test_an_exception_without_a_text(here: Sandbox) -> None:
    import work

    call = podrun.submit(work.odd, simulate=True)
    assert type(call.exception(120)) is work.Odd


def test_what_a_function_has_saved_stays(here: Sandbox) -> None:
    """Results that were read once can be read again, although the record is gone; others cannot, and say so."""
    import work

    call, other = podrun.submit(work.save, simulate=True), podrun.submit(work.add, 1, 2, simulate=True)
    assert call.result(120) is None
    other.run.wait(120)
    assert here.podrun("clean", "--older-than", "0s", "--yes").returncode == 0
    assert call.result() is None
    (saved,) = (here.path / "home" / "functions").glob("*/workdir/checkpoints/1")
    assert [path.name for path in saved.parents[2].iterdir()] == ["workdir"]
    with pytest.raises(podrun.LaunchError, match="gone"):
        other.result()


def test_large_arguments_are_in_memory_once(here: Sandbox) -> None:
    """Nor are they copied in the process that makes the call; `podrun clean` counts them."""
    import work

    large = b"x" * 50_000_000
    tracemalloc.start()
    call = podrun.submit(work.peak, large, simulate=True)
    assert tracemalloc.get_traced_memory()[1] < len(large) / 2
    tracemalloc.stop()
    assert call.result(120) < len(large) * 1.5
    listed = here.podrun("clean", "--older-than", "0s", "--dry-run").stdout
    assert re.search(r"\brun\b.* 5\d(\.\d)? MB|47\.\d MiB|50\.\d MB", listed), listed


def test_a_module_from_elsewhere_is_named(here: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "distant.py").write_text("def f():\n    return 1\n")
    project = here.path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(elsewhere)
    import distant

    error = podrun.submit(distant.f, simulate=True).exception(120)
    assert isinstance(error, podrun.FunctionError)
    for words in ("no module 'distant'", str(elsewhere / "distant.py"), f"was called, {project}", "install it for"):
        assert words in str(error)


def test_options_that_submit_does_not_take(here: Sandbox) -> None:
    """Each message says what it takes."""
    import work

    with pytest.raises(TypeError, match=r"lr, n: not an option; they are slurm, slice.*partial\(f, lr=\.\.\.\)"):
        podrun.submit(work.add, lr=1, n=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"hosts='a,b': only 'local'.*podrun\.launch"):
        podrun.submit(work.add, hosts="a,b")
    with pytest.raises(ValueError, match=r"pod='pod\.yaml' has settings only: give one of slurm, hosts='local'"):
        podrun.submit(work.add, pod="pod.yaml")
    assert not (here.path / "home" / "functions").exists()


def test_a_call_that_is_cancelled_while_it_starts(here: Sandbox) -> None:
    """However early, the call does not run to its end, and nothing of it is left."""
    import work

    for _ in range(3):
        call = podrun.submit(work.add, 1, 2, simulate=True, slice="cpu-2x1")
        assert call.cancel() and call.cancelled() and call.done()
        with pytest.raises(CancelledError):
            call.result()
    wait_until(lambda: not [pid for pid in processes_of(here) if pid != os.getpid()], "the end of all processes")


def test_the_example_of_the_documentation(here: Sandbox) -> None:
    import work

    text = Path(__file__, "../../../docs/own_programs.md").resolve().read_text()
    (example,) = re.findall(r"```python\n(call = podrun\.submit.*?)```", text, re.DOTALL)
    names = {"podrun": podrun, "train": partial(work.add, 1)}
    exec(example, names)
    assert names["call"].results() == [(1.001, "0"), (1.001, "1")]  # type: ignore[attr-defined]

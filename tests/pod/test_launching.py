"""`podrun.launch`: runs from Python, in scripts and in notebooks."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import podrun
from podrun.launching import _typed

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import kill, processes_of

JOB = {"steps": 4, "log.tensorboard": False, "optimizer.learning_rate": 0.01}


@pytest.fixture
def here(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Make a sandbox that is the working directory and environment of this process."""
    monkeypatch.chdir(sandbox.path)
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    yield sandbox
    for pid in processes_of(sandbox):
        if pid != os.getpid():
            kill(pid)


@pytest.mark.long
def test_two_at_once(here: Sandbox) -> None:
    """Two runs of one program: each has its own record, and its metrics are those of metrics.jsonl."""
    runs = [
        podrun.launch("small.yaml", slice="cpu-1x1", simulate=True, workdir=name, overrides=JOB)
        for name in ("first", "second")
    ]
    kinds = [[event["event"] for event in run.events()] for run in runs]
    assert [run.wait(120) for run in runs] == [0, 0]
    for run, kind, name in zip(runs, kinds, ("first", "second"), strict=True):
        assert (kind[0], kind[-1]) == ("start", "end")
        assert not run.is_running
        losses = {row["step"]: row["loss"] for row in run.metrics() if row["kind"] == "train"}
        assert losses == here.losses(name)
        assert [row["kind"] for row in run.metrics()][-1] == "eval"
    assert runs[0].run_id != runs[1].run_id
    assert repr(runs[0]) == f"<podrun {runs[0].run_id}: ended with code 0>"


def test_a_mistake_is_an_exception(here: Sandbox) -> None:
    """With the text that the command prints, at once."""
    with pytest.raises(podrun.LaunchError) as refused:
        podrun.launch("small.yaml", slice="cpu-1x1", simulate=True, overrides={"stepps": 3})
    assert refused.value.code == 2
    expected = here.podrun("--slice=cpu-1x1", "--simulate", "small.yaml", "stepps=3").stderr
    assert f"podrun: {refused.value}" == expected.strip()
    with pytest.raises(ValueError, match="or a program"):
        podrun.launch()


def others(here: Sandbox) -> set[int]:
    """Return the processes of the sandbox but this one."""
    return {*processes_of(here)} - {os.getpid()}


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ctrl_c_before_the_start(here: Sandbox, count: int) -> None:
    """Nobody has the run then, so nothing of it is left: at once, and when it has `count` processes."""

    def interrupt() -> None:
        while not over.wait(0.01):
            if len(others(here)) >= count:
                os.kill(os.getpid(), signal.SIGINT)
                return

    over = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            podrun.launch("small.yaml", slice="cpu-1x1", simulate=True, overrides={"steps": 10_000_000})
    finally:
        over.set()
        thread.join()
    wait_until(lambda: not others(here), "the run ends")


def test_a_forked_process_knows_of_the_run(here: Sandbox) -> None:
    """It is told whether the run goes on and how it has ended, and does not end it by ending itself."""
    (here.path / "train.py").write_text(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nraise SystemExit(9)"
    )
    run = podrun.launch(program=["python", "train.py"], slice="cpu-1x1", simulate=True)
    if (pid := os.fork()) == 0:
        try:
            running = run.is_running, "running" in repr(run)
            atexit._run_exitfuncs()  # as Python does it, without pytest's own end
            (here.path / "go").touch()
            try:
                run.wait(60)
            except podrun.LaunchError as error:
                os._exit(error.code if running == (True, True) and not run.is_running else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    with pytest.raises(podrun.LaunchError, match="exited with code 9"):
        run.wait(60)


def test_kinds_of_overrides(tmp_path: Path) -> None:
    """Paths and numbers of numpy's are typed as their text; what has none is refused with its key."""
    typed = [
        _typed("key", value) for value in (tmp_path, np.float32(0.5), np.arange(2), [tmp_path, 1], {"a": None}, "x")
    ]
    assert typed == [str(tmp_path), "0.5", "[0, 1]", f'["{tmp_path}", 1]', '{"a": null}', "x"]
    itself: list[object] = []
    itself.append(itself)
    for wrong in (object(), {1, 2}, b"bytes", itself, {"a": [print]}):
        with pytest.raises(TypeError, match=r"podrun\.launch: overrides: data\.path is"):
            podrun.launch("train.yaml", overrides={"data.path": wrong})


def test_a_program_that_fails(here: Sandbox) -> None:
    (here.path / "train.py").write_text("import sys; print('so it goes'); sys.exit(9)")
    run = podrun.launch(program=["python", "train.py"], slice="cpu-2x1", simulate=True)
    with pytest.raises(podrun.LaunchError, match=r"exited with code 9 \(train.py:1\) \[exit code 9\]") as failed:
        run.wait(60)
    assert failed.value.code == 9
    assert not run.is_running


@pytest.mark.long
def test_a_run_is_stopped(here: Sandbox) -> None:
    """With a checkpoint; as a context manager does it, too."""
    with podrun.launch("small.yaml", slice="cpu-1x1", simulate=True, overrides={"steps": 10_000_000}) as run:
        assert next(event for event in run.events() if event["event"] == "step")["step"] >= 1
        with pytest.raises(TimeoutError, match="has not ended after 0 s"):
            run.wait(0)
    assert run.wait(0) == 143
    assert any(event["event"] == "checkpoint" for event in run.events())
    assert {pid for pid in processes_of(here) if pid != os.getpid()} == set()

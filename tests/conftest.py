"""Shared by all tests: the real podrun command, in a home and a working directory of its own."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.cli.root import main

from .forked import forked

# Without compiled files every process of a test would compile the sources of podrun again, a third of what a command takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

FAST = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
"""Environment of workers: their models are so small that it is compiling that takes the time."""

LONG_UNTIL = float(os.environ.get("PODRUN_LONG_UNTIL", "inf"))
"""Unix time from which on no long test begins, so that CI ends before a limit of its machine would hide what was found."""


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and time.time() > LONG_UNTIL:
        pytest.skip("this machine is too slow today: the time for long tests is over")


HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Let no test leave a signal handler behind: a Ctrl-C of a later test would reach it."""
    result = yield
    left = {signal.Signals(number).name for number, handler in HANDLERS.items() if signal.getsignal(number) != handler}
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    assert not left, f"it leaves a handler of {left} in its process"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Let a Ctrl-C that a test presses itself, and that reaches pytest, fail this test, and not end all others.

    A user's Ctrl-C reaches the process that started the workers of pytest-xdist as well, which ends everything.
    """
    try:
        return (yield)
    except KeyboardInterrupt:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            raise
        pytest.fail("a Ctrl-C of this test reached pytest")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep thousands of tests from being looked through for garbage again and again: a third of what collecting takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(
            20_000
        )  # tests of JAX make so many objects that looking for garbage is a twentieth of their time
        gc.enable()


TINY = """\
steps: 6
batch_size: 8
model: {layers: 1, heads: 2, width: 32, context: 32}
data: {name: text, path: text.txt}
optimizer: {learning_rate: 1e-3}
log: {every: 1, tensorboard: false}
eval: {every: 0, batches: 1}
checkpoint: {every: 0}
sample: {tokens: 0}
"""

SMALL = """\
task: regression
steps: 6
batch_size: 8
model: {layers: 1, width: 16}
data: {samples: 400}
optimizer: {learning_rate: 1e-3}
log: {every: 1, tensorboard: false}
eval: {every: 0, batches: 1}
checkpoint: {every: 0}
"""

PODRUN = [sys.executable, "-m", "podrun.launcher.cli"]

TEXT = "".join(f"{n} green bottles hanging on the wall, and if one should fall ...\n" for n in range(400))


@dataclass
class Sandbox:
    """A working directory with a small job, and podrun in it."""

    path: Path

    @property
    def place(self) -> list[str]:
        """Put before a command, this runs it where podrun runs, such as in another network. It is the same for many tests."""
        return []

    @property
    def command(self) -> list[str]:
        return [*self.place, *PODRUN]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **FAST, "PODRUN_HOME": str(self.path / "home"), "PYTHONUNBUFFERED": "1"}

    def podrun(self, *args: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Runs podrun to its end."""
        if self.command == [*self.place, *PODRUN]:
            done = forked(self.place, args, self.path, self.env, timeout)
            if done is not None:
                return done
        return subprocess.run(
            [*self.command, *args], cwd=self.path, env=self.env, capture_output=True, text=True, timeout=timeout
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Starts podrun with JSON events on its stdout."""
        return subprocess.Popen(
            [*self.command, "--json", *args],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def metrics(self, workdir: str, kind: str = "train") -> dict[int, dict[str, Any]]:
        """Records of metrics.jsonl by step."""
        lines = (self.path / workdir / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {r["step"]: r for r in records if r["kind"] == kind}

    def losses(self, workdir: str) -> dict[int, float]:
        return {step: record["loss"] for step, record in self.metrics(workdir).items()}


def make_sandbox(path: Path) -> Sandbox:
    (path / "train.yaml").write_text(TINY)
    (path / "text.txt").write_text(TEXT)
    (path / "small.yaml").write_text(SMALL)  # for tests that do not care what is trained: it compiles in half the time
    return Sandbox(path)


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return make_sandbox(tmp_path)


Podrun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def in_process(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Runs a podrun in this process that ends before it starts another: a new one would take a second to import."""
    return in_process_of(sandbox, monkeypatch, capfd)


def in_process_of(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Return podrun's command line in this process, in this sandbox."""
    monkeypatch.chdir(sandbox.path)
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    return here(capfd)


def here(capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Return podrun's command line in this process, with this environment."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(args), prog_name="podrun")
        return subprocess.CompletedProcess(args, int(ended.value.code or 0), *capfd.readouterr())

    return run


SLOWEST = ("ssh", "slurm", "pod")
"""Folders whose files take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the files that take longest: at the end they would keep one worker while the other has nothing to do."""

    def folder(item: pytest.Item) -> str:
        return item.nodeid.split("/", 2)[1]

    items.sort(key=lambda item: SLOWEST.index(folder(item)) if folder(item) in SLOWEST else len(SLOWEST))

"""Shared here: podrun in the process of the test, and runs that are made by hand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.cli.root import main
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import Label, RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.logs import index_path, log_path
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.config import Launch

from ...conftest import Sandbox


@dataclass
class Done:
    """Result of a podrun command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Podrun = Callable[..., Done]


@pytest.fixture
def podrun(sandbox: Sandbox, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Runs podrun in this process."""

    def run(*args: str) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(args), prog_name="podrun")
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run


@dataclass
class Made:
    """A run directory that a test fills."""

    directory: RunDirectory
    hosts: dict[str, list[int]]
    began: float

    @property
    def id(self) -> str:
        return self.directory.run_id

    def event(self, kind: str, /, **fields: Any) -> None:
        with self.directory.events.open("a") as file:
            file.write(json.dumps({"event": kind, "time": self.began + 1, **fields}) + "\n")

    def start(self, program: str | None = None, attempt: int = 0) -> None:
        self.event(
            "start",
            time=self.began,
            run_id=self.id,
            attempt=attempt,
            slice="cpu-2x1",
            devices=1,
            transport="local",
            hosts=self.hosts,
            program=program,
            workdir="/runs/job",
            logs=str(self.directory.logs),
        )

    def step(self, step: int, process: int = 0) -> None:
        host = next(h for h, processes in self.hosts.items() if process in processes)
        times = {"elapsed": 20.0, "seconds_left": 3725.0}
        self.event("step", step=step, steps=100, loss=1.0, **times, host=host, process=process)

    def end(self, code: int = 0, host: str | None = None, message: str = "done") -> None:
        self.event("end", time=self.began + 90, code=code, host=host, process=None, message=message)

    def log(self, name: str, data: bytes, marks: str | None = None) -> None:
        log_path(self.directory.logs, name).write_bytes(data)
        if marks is not None:
            index_path(self.directory.logs, name).parent.mkdir(exist_ok=True)
            index_path(self.directory.logs, name).write_text(marks)


Make = Callable[..., Made]


@pytest.fixture
def make(sandbox: Sandbox) -> Make:
    """Makes a run of two hosts that began `age` seconds ago."""

    def made(
        run_id: str,
        age: float = 120.0,
        hosts: dict[str, list[int]] | None = None,
        begin: bool = True,
        workdir: Path = sandbox.path,
        label: Label = Label(),  # noqa: B008
        **start: Any,
    ) -> Made:
        pod = replace(simulated_pod(parse_slice("cpu-2x1")), home=str(sandbox.path / "home"), python=sys.executable)
        program = Program(("python", "train.py"), Launch())
        directory = RunDirectory.create(RunSpec(run_id, pod, program, workdir, sandbox.path, label=label))
        run = Made(directory, hosts or {"host-0": [0], "host-1": [1]}, time.time() - age)
        if begin:
            run.start(**start)
        return run

    return made


HERE = ("--simulate", "--slice", "cpu-3x1")

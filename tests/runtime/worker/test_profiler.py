"""Traces of a run that goes on: what a process does when it finds an order between its steps."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from podrun.runtime.contract import profile_folder, profile_order
from podrun.runtime.worker.profiler import Profiler
from podrun.runtime.worker.progress import Reporter

ID = "4f2a"


class Process:
    """Trains: each step is a product on the device."""

    def __init__(self, directory: Path, events: Path) -> None:
        self.order = directory / profile_order(0)
        self.folder = directory / profile_folder(0, ID)
        self._events = events
        self._step = 0
        self._product = jnp.ones((8, 8))
        self.profiler = Profiler(directory, 0, Reporter(events), lambda: jax.block_until_ready(self._product))

    def ask(self, steps: int) -> None:
        self.order.write_text(json.dumps({"id": ID, "steps": steps}))
        self.profiler._due = 0.0  # the next step looks for it

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._step += 1
            self.profiler.begin_step(self._step)
            self._product = self._product @ self._product / 8

    def events(self) -> list[tuple[Any, ...]]:
        rows = [json.loads(line) for line in self._events.read_text().splitlines()]
        return [(row["state"], row["step"], row["last"]) for row in rows if row["event"] == "profile"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, tmp_path / "0.events")
    yield process
    process.profiler.end()


def test_the_steps_that_were_asked_for_are_traced(process: Process) -> None:
    process.train(3)
    process.ask(4)
    process.train(10)
    assert process.events() == [("begun", 4, 4), ("done", 4, 7)]
    names = {path.name.partition(".")[2] for path in process.folder.rglob("*") if path.is_file()}
    assert names >= {"trace.json.gz", "xplane.pb"}
    assert not process.order.exists()


def test_a_trace_that_is_taken_back_is_removed(process: Process) -> None:
    process.ask(50)
    process.train(2)
    process.order.unlink()
    process.train(2)
    assert process.events() == [("begun", 1, 1)] and not process.folder.exists()
    process.ask(1)  # and the next one is made
    process.train(2)
    assert process.events()[-1] == ("done", 5, 5)


def test_the_end_of_the_training_ends_the_trace(process: Process) -> None:
    process.ask(50)
    process.train(3)
    process.profiler.end()
    assert process.events() == [("begun", 1, 1), ("done", 1, 3)]


@pytest.mark.parametrize("order", ["", "[]", '{"id": "../up", "steps": 3}', '{"id": "a"}', '{"id": "a", "steps": "x"}'])
def test_a_damaged_order_is_removed(process: Process, order: str) -> None:
    process.order.write_text(order)
    process.train(2)
    assert process.events() == [] and not process.order.exists()


def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    try:
        process = Process(disk, tmp_path / "0.events")
        process.ask(2)
        process.train(5)
        assert process.events()[-1][0] == "failed"
        assert not process.folder.exists() and not process.order.exists()
    finally:
        subprocess.run(["umount", disk], check=True)

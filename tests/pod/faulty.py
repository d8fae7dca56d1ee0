"""User data sources for faults: one misbehaves when a step's batch is made, the other makes no more than it may."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config
from podrun.runtime.config.data import SineData, TextData
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Batch, Dataset, Tokenizer


class Faulty:
    """The examples of `inner`, with a fault in the `step`-th batch that is gathered."""

    def __init__(self, inner: Any, options: dict[str, Any]) -> None:
        self._inner = inner
        self._options = options
        self._batches = -1  # the first is what podrun looks at beforehand
        self.size = inner.size

    def gather(self, indices: Any, epochs: Any) -> Batch:
        self._batches += len(indices) > 1  # one is what a task looks at beforehand
        batch: Batch = self._inner.gather(indices, epochs)
        if self._batches == self._options["step"] and _is_here(self._options):
            return misbehave(self._options["action"], batch)
        return batch


def _is_here(options: dict[str, Any]) -> bool:
    again = options.get("again", False) or os.environ["PODRUN_ATTEMPT"] == "0"
    return bool(again and os.environ["PODRUN_PROCESS_ID"] == str(options["process"]))


def misbehave(action: str, batch: Batch) -> Batch:
    if action == "raise":
        raise RuntimeError("the disk of my dreams is broken")
    if action.startswith("exit"):
        sys.exit(int(action.removeprefix("exit")))
    if action == "abort":
        os.abort()
    if action == "leave":
        os._exit(0)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if action == "full":  # from now on this process can write no large file, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        return batch
    if action == "hang":
        time.sleep(600)
    if action == "loop":
        end = time.monotonic() + 600
        while time.monotonic() < end:
            pass
    raise AssertionError(action)


def dataset(options: dict[str, Any], config: Config) -> Dataset:
    """`data: {name: "faulty:dataset", options: {process, step, action, again}}`"""
    if options.get("step") == 0 and _is_here(options):
        misbehave(options["action"], {})
    good = load_dataset(config.model_copy(update={"data": SineData(samples=400)}))
    return replace(good, train=Faulty(good.train, options))


class Paced:
    """The examples of `inner`, so slowly that a test can choose a moment."""

    def __init__(self, inner: Any, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds
        self.size = inner.size

    def gather(self, indices: Any, epochs: Any) -> Batch:
        time.sleep(self._seconds)
        batch: Batch = self._inner.gather(indices, epochs)
        return batch


def paced(options: dict[str, Any], config: Config) -> Dataset:
    """`data: {name: "faulty:paced", options: {seconds}}`: each batch takes that long, also in evaluations."""
    good = load_dataset(config.model_copy(update={"data": SineData(samples=400)}))
    slow = [Paced(examples, float(options["seconds"])) for examples in (good.train, good.validation)]
    return replace(good, train=slow[0], validation=slow[1])


class Held:
    """The examples of `inner`; waits before each batch of a step that the file `batches` does not permit."""

    def __init__(self, inner: Any, file: Path) -> None:
        self._inner = inner
        self._file = file
        self._batches = -1  # as above
        self.size = inner.size

    def gather(self, indices: Any, epochs: Any) -> Batch:
        self._batches += len(indices) > 1
        while self._batches > int(self._file.read_text()):
            time.sleep(0.01)
        batch: Batch = self._inner.gather(indices, epochs)
        return batch


def held(options: dict[str, Any], config: Config) -> Dataset:
    """`data: {name: "faulty:held", options: {file}}`: the file has the number of steps that a run may make from its start."""
    good = load_dataset(config.model_copy(update={"data": SineData(samples=400)}))
    return replace(good, train=Held(good.train, Path(options["file"])))


class HeldText:
    """The tokenizer `inner`; what is sampled becomes text once the file `batches` permits more steps than `steps`."""

    def __init__(self, inner: Tokenizer, file: Path, steps: int) -> None:
        self._inner = inner
        self._file = file
        self._steps = steps
        self.vocabulary = inner.vocabulary

    def encode(self, text: str) -> Any:
        return self._inner.encode(text)

    def decode(self, ids: Any) -> str:
        while int(self._file.read_text()) <= self._steps:
            time.sleep(0.01)
        return self._inner.decode(ids)


def held_text(options: dict[str, Any], config: Config) -> Dataset:
    """`data: {name: "faulty:held_text", options: {file, text}}`: as above, for the sampling after the last step of a text."""
    good = load_dataset(config.model_copy(update={"data": TextData(path=options["text"])}))
    assert good.tokenizer is not None and isinstance(config.steps, int)
    return replace(good, tokenizer=HeldText(good.tokenizer, Path(options["file"]), config.steps))

"""Where metrics are written, by one process: metrics.jsonl is the truth, TensorBoard and W&B are views of it."""

from __future__ import annotations

import json
import os
import secrets
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from .config import Config, saved_config
from .contract import UserError, Workdir

_FLUSH = 10.0  # seconds between flushes of TensorBoard's file, which wait for the disk

Metrics = dict[str, Any]
"""Numbers by name. In metrics.jsonl also lists, of the members of an ensemble; the views leave them out."""


class Writer(ABC):
    """Gets every record of metrics."""

    @abstractmethod
    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        """`kind` is `train` or `eval`."""

    @abstractmethod
    def close(self) -> None: ...


class JsonLines(Writer):
    """One JSON object a line: {"step": 10, "kind": "train", "loss": ...}."""

    def __init__(self, path: Path, resumed_from: int) -> None:
        """Takes away the records after step `resumed_from`, which will be written again."""
        kept = [line for line in _lines(path) if _step(line) <= resumed_from] if resumed_from else []
        fresh = path.with_suffix(".tmp")
        fresh.write_text("".join(f"{line}\n" for line in kept))
        os.replace(fresh, path)
        self._last_eval = max((_step(line) for line in kept if '"kind": "eval"' in line), default=0)
        self._file = path.open("a", buffering=1)

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        if kind == "eval" and step <= self._last_eval:
            return  # a finished run was started once more
        self._file.write(json.dumps({"step": step, "kind": kind, **metrics}) + "\n")

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # cut off when the process was killed
        return float("inf")


class TensorBoard(Writer):
    """Writes its events at once, without tensorboardX's queue and threads: handing one over takes longer than writing it."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        """Tells TensorBoard to forget what is there of later steps than `resumed_from`."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary = Event, Summary
        self._file = EventsWriter(str(folder / "events"), f".{os.getpid()}")  # two may start within a second
        self._flushed = time.monotonic()
        if resumed_from:
            start = SessionLog(status=SessionLog.START)
            self._file.write_event(Event(wall_time=time.time(), step=resumed_from + 1, session_log=start))

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        values = [self._summary.Value(tag=f"{kind}/{k}", simple_value=v) for k, v in _numbers(metrics).items()]
        self._file.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        if time.monotonic() - self._flushed >= _FLUSH:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._file.close()


class WandB(Writer):
    def __init__(self, project: str, workdir: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("log.wandb needs the wandb library: pip install 'podrun[wandb]'") from None
        # One workdir is one run there too, however often it is resumed.
        name = workdir / "wandb-id"
        if not name.exists():
            name.write_text(secrets.token_hex(4))
        self._run: Any = wandb.init(
            project=project, id=name.read_text(), resume="allow", dir=str(workdir), config=saved_config(config)
        )

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        self._run.log({f"{kind}/{name}": value for name, value in _numbers(metrics).items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def make_writers(config: Config, workdir: Workdir, resumed_from: int) -> list[Writer]:
    """The writers that the config asks for; the caller is the one process that writes."""
    writers: list[Writer] = [JsonLines(workdir.metrics, resumed_from)]
    if config.log.tensorboard:
        writers.append(TensorBoard(workdir.tensorboard, resumed_from))
    if config.log.wandb:
        writers.append(WandB(config.log.wandb, workdir.path, config))
    return writers

"""Write metrics on one process: metrics.jsonl has all of them; TensorBoard and W&B get copies of the numbers."""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config import Config, saved_config
from ..contract import UserError, Workdir
from ..events import Metrics
from ..worker.workdir import check_folder, damaged_name, open_file, replace_text

_FLUSH = 10.0  # seconds between flushes of TensorBoard's file, which wait for the disk


class Writer(ABC):
    """Interface of a destination of metrics."""

    @abstractmethod
    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        """Write a record; `kind` is `train` or `eval`."""

    @abstractmethod
    def close(self) -> None: ...


class JsonLines(Writer):
    """Write one JSON object per line: {"step": 10, "kind": "train", "time": ..., "elapsed": ..., "loss": ...}.

    `time` is in seconds since 1970, `elapsed` in seconds of training; after a restart it continues from the last record.
    """

    def __init__(self, path: Path, resumed_from: int, note: Callable[[str], None] = print) -> None:
        """Open the file, and remove the records after step `resumed_from`, which training will write again.

        A file with lines that are not records is first kept under another name, which `note` reports to the user.
        Raises UserError if the file cannot be written.
        """
        try:
            lines = _read(path).split(b"\n")
            if any(_step(line) == math.inf for line in lines[:-1]):  # the last may be cut off: the process was killed
                damaged = damaged_name(path)
                os.rename(path, damaged)
                note(
                    f"{path} has lines that are not metrics; it is kept as {damaged}, and its valid records are copied"
                )
            kept = [line.decode() for line in lines if _step(line) <= resumed_from] if resumed_from else []
            replace_text(path, "".join(f"{line}\n" for line in kept))
            self._file = open(open_file(path, os.O_WRONLY | os.O_APPEND), "a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"metrics cannot be written to {path}: {error.strerror}; move it away, or choose another workdir with "
                "--workdir DIR"
            ) from None
        self._last_eval = max((_step(line.encode()) for line in kept if '"kind": "eval"' in line), default=0)
        self._began = time.monotonic() - (_elapsed(kept[-1]) if kept else 0.0)

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        if kind == "eval" and step <= self._last_eval:
            return  # a finished run was started again: its last evaluation is on record
        times = {"time": round(time.time(), 3), "elapsed": round(time.monotonic() - self._began, 3)}
        self._file.write(json.dumps({"step": step, "kind": kind, **times, **metrics}) + "\n")

    def close(self) -> None:
        self._file.close()


def _read(path: Path) -> bytes:
    if not os.path.lexists(path):
        return b""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _step(line: bytes) -> float:
    """Return the step of a record; infinity for a malformed line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # OverflowError: 1e999
        return math.inf


def _elapsed(line: str) -> float:
    """Return the seconds of training up to a record; 0 if it has no `elapsed`, which older versions did not write."""
    seconds = json.loads(line).get("elapsed", 0.0)
    return float(seconds) if isinstance(seconds, (int, float)) and math.isfinite(seconds) else 0.0


class TensorBoard(Writer):
    """Write TensorBoard events directly: tensorboardX's queue and threads take longer than the write itself."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        """Make TensorBoard drop earlier events of steps after `resumed_from`. Raises UserError if it cannot write."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = EventsWriter(
                str(folder / "events"), f".{os.getpid()}"
            )  # two processes may start within a second
        except OSError as error:
            raise UserError(
                f"TensorBoard's files cannot be written to {folder}: {error.strerror}; move it away, choose another workdir "
                "with --workdir DIR, or give log.tensorboard=false"
            ) from None
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
    """Write metrics to Weights & Biases. Raises UserError if its library is missing."""

    def __init__(self, project: str, workdir: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("log.wandb needs the wandb library: pip install wandb") from None
        # The id is kept in the workdir, so that a resumed run continues the same W&B run.
        name = workdir / "wandb-id"
        if not os.path.lexists(name):
            replace_text(name, secrets.token_hex(4))
        self._run: Any = wandb.init(
            project=project, id=_read(name).decode(), resume="allow", dir=str(workdir), config=saved_config(config)
        )

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        self._run.log({f"{kind}/{name}": value for name, value in _numbers(metrics).items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def make_writers(config: Config, workdir: Workdir, resumed_from: int, note: Callable[[str], None]) -> list[Writer]:
    """Return the writers that the config asks for. `note` reports to the user which of them is not available."""
    writers: list[Writer] = [JsonLines(workdir.metrics, resumed_from, note)]
    if config.log.tensorboard and find_spec("tensorboardX") is None:
        note("no TensorBoard files: tensorboardX is not installed; metrics.jsonl has all metrics")
    elif config.log.tensorboard:
        check_folder(workdir.tensorboard)
        try:
            writers.append(TensorBoard(workdir.tensorboard, resumed_from))
        except ImportError as error:  # installed, but incomplete or of another version
            note(f"no TensorBoard files: tensorboardX cannot be imported ({error}); metrics.jsonl has all metrics")
    if config.log.wandb:
        writers.append(WandB(config.log.wandb, workdir.path, config))
    return writers

"""Write metrics on one process: metrics.jsonl has all of them; TensorBoard and W&B get copies of the numbers."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import struct
import tempfile
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.sections import Log
from ..contract import UserError, Workdir
from ..events import Metrics, as_float
from ..worker.workdir import check_folder, damaged_name, open_file, replace_text
from .samples import Sample
from .tracker import Ending, TrackerThread

if TYPE_CHECKING:
    from ..config import SavedConfig

_FLUSH = 10.0  # seconds between flushes of TensorBoard's file, which wait for the disk


class Writer(ABC):
    """Interface of a destination of metrics."""

    @abstractmethod
    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        """Write a record; `kind` is `train` or `eval`."""

    @abstractmethod
    def sample(self, step: int, sample: Sample) -> None:
        """Write a sample, such as a text or an image."""

    @abstractmethod
    def close(self, status: Ending = "done") -> None:
        """End the writing. `status`: how the training ended."""


class JsonLines(Writer):
    """Write one JSON object per line: {"step": 10, "kind": "train", "time": ..., "elapsed": ..., "loss": ...}.

    Samples are files of their own, in the folder `samples` beside it.

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
            self._samples = path.parent / "samples"
            kept = [line.decode() for line in lines if _step(line) <= resumed_from] if resumed_from else []
            replace_text(path, "".join(f"{line}\n" for line in kept))
            self._file = open(open_file(path, os.O_WRONLY | os.O_APPEND), "a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"metrics cannot be written to {path}: {error.strerror}; move it away, or choose another workdir with "
                "--workdir DIR"
            ) from None
        self._evaluated = {_evaluation(json.loads(line)) for line in kept if '"kind": "eval"' in line}
        """Recorded evaluations, because a finished run that is started again evaluates its last step again."""
        self._began = time.monotonic() - (_elapsed(kept[-1]) if kept else 0.0)

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        if kind == "eval" and _evaluation({"step": step, **metrics}) in self._evaluated:
            return
        times = {"time": round(time.time(), 3), "elapsed": round(time.monotonic() - self._began, 6)}
        self._file.write(json.dumps({"step": step, "kind": kind, **times, **metrics}) + "\n")

    def sample(self, step: int, sample: Sample) -> None:
        """Write a file `samples/STEP-NAME.png`, `.txt` or `.json`. Raises OSError."""
        path = self._samples / f"{step:08d}-{_file_name(sample.name)}{sample.ending}"
        check_folder(self._samples)
        self._samples.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(sample.data)

    def close(self, status: Ending = "done") -> None:
        self._file.close()


def _file_name(name: str) -> str:
    """Return the part of a file's name for a sample. A digest distinguishes names that would otherwise become equal."""
    short = re.sub(r"[^\w.-]+", "_", name).encode("utf-8", "replace")[:100].decode("utf-8", "ignore")
    return short if short == name else f"{short}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


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


def _evaluation(record: Mapping[str, object]) -> tuple[object, frozenset[str]]:
    """Return the step of an evaluation and the names of its metrics."""
    return record["step"], frozenset(record) - {"step", "kind", "time", "elapsed"}


def _elapsed(line: str) -> float:
    """Return the seconds of training up to a record; 0 if it has no `elapsed`, which older versions did not write."""
    seconds = json.loads(line).get("elapsed", 0.0)
    return as_float(seconds) if isinstance(seconds, (int, float)) and math.isfinite(as_float(seconds)) else 0.0


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
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in _tagged(kind, metrics).items()]
        self._file.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        if time.monotonic() - self._flushed >= _FLUSH:
            self._file.flush()
            self._flushed = time.monotonic()

    def sample(self, step: int, sample: Sample) -> None:
        self._file.write_event(self._event(wall_time=time.time(), step=step, summary=_summary_of(sample)))

    def close(self, status: Ending = "done") -> None:
        self._file.close()


def _summary_of(sample: Sample) -> Any:
    """Return a sample in TensorBoard's form: a table is a text in Markdown."""
    from tensorboardX import summary

    if sample.form == "image":
        png = sample.data
        width, height = struct.unpack(">II", png[16:24])
        colorspace = {0: 1, 2: 3, 6: 4}[png[25]]  # channels, by the colour type of the PNG
        image = summary.Summary.Image(height=height, width=width, colorspace=colorspace, encoded_image_string=png)
        return summary.Summary(value=[summary.Summary.Value(tag=sample.name, image=image)])
    if sample.form == "histogram":
        content = json.loads(sample.content)
        if not content["counts"]:
            return summary.Summary()
        edges, counts = content["edges"], content["counts"]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        total = sum(middle * count for middle, count in zip(middles, counts, strict=True))
        squares = sum(middle**2 * count for middle, count in zip(middles, counts, strict=True))
        return summary.histogram_raw(sample.name, edges[0], edges[-1], sum(counts), total, squares, edges[1:], counts)
    text = sample.content
    if sample.form == "table":
        head, *rows = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in json.loads(text))
        text = "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    return summary.text(sample.name, text)


class WandB(Writer):
    """Write metrics to Weights & Biases. Raises UserError if its library is missing."""

    def __init__(self, project: str, workdir: Path, config: SavedConfig) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("log.wandb needs the wandb library: pip install wandb") from None
        # The id is kept in the workdir, so that a resumed run continues the same W&B run.
        name = workdir / "wandb-id"
        if not os.path.lexists(name):
            replace_text(name, secrets.token_hex(4))
        self._run: Any = wandb.init(
            project=project, id=_read(name).decode(), resume="allow", dir=str(workdir), config=config
        )

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        self._run.log(_tagged(kind, metrics), step=step)

    def sample(self, step: int, sample: Sample) -> None:
        import wandb

        value: Any = sample.content
        if sample.form == "image":
            with tempfile.NamedTemporaryFile(suffix=".png") as file:
                file.write(sample.data)
                file.flush()
                self._run.log({sample.name: wandb.Image(file.name)}, step=step)
            return
        if sample.form == "table":
            head, *rows = json.loads(sample.content)
            value = wandb.Table(
                columns=head, data=[[*row, *[""] * (len(head) - len(row))][: len(head)] for row in rows]
            )
        elif sample.form == "histogram":
            content = json.loads(sample.content)
            if not content["counts"]:
                return
            value = wandb.Histogram(np_histogram=(content["counts"], content["edges"]))
        self._run.log({sample.name: value}, step=step)

    def close(self, status: Ending = "done") -> None:
        self._run.finish()


class Tracker(Writer):
    """Write metrics to a tracker of the user's. Arguments and errors are those of `TrackerThread`."""

    def __init__(self, code: Any, workdir: Path, step: int, note: Callable[[str], None], config: SavedConfig) -> None:
        self._thread = TrackerThread(code, workdir, step, note, config)

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        self._thread.put(step, _tagged(kind, metrics))

    def sample(self, step: int, sample: Sample) -> None:
        """Do nothing: a tracker gets numbers."""

    def close(self, status: Ending = "done") -> None:
        self._thread.close(status)


def _tagged(kind: str, metrics: Metrics) -> dict[str, float]:
    """Return the numbers as `KIND/NAME`, or by their names alone if these begin with the kind already."""
    return {
        name if name.startswith(f"{kind}/") else f"{kind}/{name}": value
        for name, value in metrics.items()
        if isinstance(value, float)
    }


def make_writers(
    log: Log,
    workdir: Workdir,
    resumed_from: int,
    note: Callable[[str], None],
    config: SavedConfig,
    tracker: Any = None,
) -> list[Writer]:
    """Return the writers that the section `log` configures.

    Args:
        log: the job's section `log`.
        workdir: folder of the results.
        resumed_from: step after which records are removed.
        note: reports to the user that a writer is not available.
        config: the job as JSON, for Weights & Biases and a tracker.
        tracker: a program's tracker, in place of `log.tracker`.
    """
    writers: list[Writer] = [JsonLines(workdir.metrics, resumed_from, note)]
    if log.tensorboard and find_spec("tensorboardX") is None:
        note("no TensorBoard files: tensorboardX is not installed; metrics.jsonl has all metrics")
    elif log.tensorboard:
        check_folder(workdir.tensorboard)
        try:
            writers.append(TensorBoard(workdir.tensorboard, resumed_from))
        except (OSError, UserError):
            raise
        except Exception as error:  # installed, but incomplete, or with another protobuf or numpy than it was made for
            why = str(error).partition("\n")[0]
            note(f"no TensorBoard files: tensorboardX cannot be imported ({why}); metrics.jsonl has all metrics")
    if log.wandb:
        writers.append(WandB(log.wandb, workdir.path, config))
    if (code := tracker or log.tracker) is not None:
        writers.append(Tracker(code, workdir.path, resumed_from, note, config))
    return writers

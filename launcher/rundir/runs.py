"""Run directories, and the registry of all runs on the launcher's machine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from podrun.runtime.contract import UserError, output_stream
from podrun.runtime.events import EventKind

from ..agent.base.private import user_name
from ..agent.base.schema import Malformed, each, loads, printable, record, text
from ..plan.plan import LaunchPlan
from ..plan.program import OWN_PYTHON, Program
from ..plan.spec import Label, RunSpec
from ..pod.home import podrun_home, private, private_folder
from ..pod.pod import Host, Pod
from ..pod.run_id import unit_of
from .adoption import Adoption
from .backwards import lines_backwards
from .events import LIMIT, EndEvent, Event, StartEvent, parse_event
from .logs import size_of
from .records import AttemptRecord, StopRecord, SupervisorRecord, parse_attempt, parse_stop, parse_supervisor
from .run_state import reduce_events

_JOB = record({"job": text})
_SPEC = record({"pod": record({"transport": text})})
_LABEL = record({}, {"label": record({}, {"name": text, "note": text, "tags": each(text)})})
JOB_OUTPUT = "job.out"
_LOOK = 0.3  # seconds; longer than any reader holds the lock


class KeptFiles(NamedTuple):
    """What a program wrote beside its code on a host, in one attempt."""

    host: str
    folder: str
    """On the host."""
    earlier: int
    """Number of attempts that followed."""


@dataclass(frozen=True)
class RunDirectory:
    """Files of one run on the launcher's machine."""

    path: Path

    @classmethod
    def create(cls, spec: RunSpec) -> RunDirectory:
        """Create the directory of a new run. Raises UserError if that fails."""
        directory = cls(podrun_home() / "runs" / spec.run_id)
        try:
            private_folder("runs", spec.run_id, "logs")
            directory._write("spec.json", spec.to_json())
        except OSError as error:
            raise UserError(
                f"cannot make the run directory {directory.path}: {error.strerror}; "
                "set PODRUN_HOME to a folder you can write to"
            ) from None
        return directory

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def work_tree(self) -> Path:
        """Return the path of the file with the git state of the user's code (`rundir.work_tree.WorkTree`)."""
        return self.path / "work_tree.json"

    @property
    def supervisor_log(self) -> Path:
        """Return the path of a background supervisor's log, which is empty unless it crashes."""
        return self.path / "supervisor.log"

    @property
    def job_script(self) -> Path:
        """Return the path of the batch script of a submitted run."""
        return self.path / "job.sh"

    @property
    def job_options(self) -> Path:
        """Return the path of the file with the arguments of the program that submits, such as sbatch."""
        return self.path / "job_options.json"

    @property
    def job_output(self) -> Path:
        """Return the path of the output of the run's jobs."""
        return self.path / JOB_OUTPUT

    @property
    def bundles(self) -> Path:
        """Return the path of the code bundles made at submission, which its jobs send to their nodes."""
        return self.path / "bundles.pickle"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def spec(self) -> RunSpec:
        """Read the spec. Raises UserError if it is damaged, or of another version."""
        try:
            return RunSpec.from_json((self.path / "spec.json").read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"run {self.run_id}: cannot read {self.path / 'spec.json'} ({str(error).splitlines()[0]}): "
                "was it written by another version of podrun?"
            ) from None

    def settings(self) -> dict[str, str]:
        """Return the keys and values of the job as text, or a program with its options. Never raises.

        Environment variables are left out, because their values may be secrets.
        """
        try:
            spec = printable(loads((self.path / "spec.json").read_bytes(), LIMIT))
        except (OSError, Malformed):
            return {}
        job, pod = (spec.get(name) if isinstance(spec, dict) else None for name in ("job", "pod"))
        shape = (
            pod.get("slice", {}).get("name") if isinstance(pod, dict) and isinstance(pod.get("slice"), dict) else None
        )
        values = _leaves(job) if isinstance(job, dict) else {}
        if isinstance(job, dict) and isinstance(words := job.get("argv"), list):
            values = {**_options([str(word) for word in words]), **_leaves({"launch": job.get("launch")})}
        return {"slice": str(shape), **{key: text for key, text in values.items() if not key.startswith("launch.env")}}

    def write_spec(self, spec: RunSpec) -> None:
        """Replace the spec by one with another pod, such as a submitted job's nodes, or new machines. Raises OSError."""
        self._write("spec.json", spec.to_json())

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of the run directory atomically, readable only by this user. Raises OSError."""
        self._write(path.name, data)

    def record_job(self, job: str) -> None:
        """Record the id of the run's job in its queue. Raises OSError."""
        self._write("job.json", json.dumps({"job": job}).encode())

    def job_recorded(self) -> float:
        """Return the time at which the job was recorded, in seconds since the epoch; 0 without a job."""
        try:
            return (self.path / "job.json").stat().st_mtime
        except OSError:
            return 0.0

    def job(self) -> str | None:
        """Return the id of the run's job in its queue; None if it was not submitted."""
        try:
            record = loads((self.path / "job.json").read_bytes(), LIMIT)
            _JOB(record)
        except (OSError, Malformed):
            return None
        return str(record["job"])

    def transport(self) -> str | None:
        """Return the name of the transport to the run's hosts; None if neither spec nor events can be read."""
        try:
            return _transport(self.path)
        except (OSError, Malformed):
            start = self.start()
            return None if start is None else str(start["transport"])

    # --- attempts ---

    def begin(self, plan: LaunchPlan) -> None:
        """Record the plan of an attempt, and the sizes of the logs before it."""
        self._write("plan.json", plan.to_json().encode())
        logs = [host.log_name(process) for host in plan.hosts for process in host.processes]
        sizes = {name: size_of(self.log(name)) for name in logs}
        names = [h.host.name for h in plan.hosts]
        begun: AttemptRecord = {"attempt": plan.attempt, "log_sizes": sizes, "hosts": names}
        self._write("attempt.json", json.dumps(begun).encode())

    @property
    def profiles(self) -> Path:
        """Return the folder of traces downloaded by `podrun profile`."""
        return self.path / "profiles"

    def attempt(self) -> int | None:
        """Return the number of the last attempt. Raises UserError if its record is damaged."""
        begun = self._begun()
        return None if begun is None else begun["attempt"]

    def log_sizes(self) -> Mapping[str, int]:
        """Return the size in bytes that each log had before the last attempt; empty if that is unknown."""
        try:
            begun = self._begun()
        except UserError:
            return {}
        return begun["log_sizes"] if begun else {}

    def hosts(self, pod: Pod) -> tuple[Host, ...]:
        """Return the hosts of the last attempt, which may be fewer than the pod's, or include spares. Raises UserError."""
        begun = self._begun()
        names = begun.get("hosts") if begun else None
        by_name = {host.name: host for host in pod.all_hosts}
        return pod.hosts if names is None else tuple(by_name[name] for name in names if name in by_name)

    def _begun(self) -> AttemptRecord | None:
        """Return the record that `begin` wrote; None before the first attempt. Raises UserError if it is damaged."""
        path = self.path / "attempt.json"
        try:
            return parse_attempt(path.read_bytes(), LIMIT)
        except FileNotFoundError:
            return None
        except (OSError, Malformed) as error:
            raise UserError(
                f"run {self.run_id}: cannot read {path} ({getattr(error, 'strerror', None) or error}), so nobody can take "
                f"the run over: end what is left of it on its hosts by hand, then remove {self.path}"
            ) from None

    def adoption(self, plan: LaunchPlan) -> Adoption:
        """Return the records of the running attempt, for a supervisor that takes it over."""
        begun = self._begun()
        log_sizes = begun["log_sizes"] if begun else {}
        offsets: dict[str, dict[str, int]] = {}
        for host in plan.hosts:
            for process in host.processes:
                name = host.log_name(process)
                received = max(0, size_of(self.log(name)) - log_sizes.get(name, 0))
                offsets.setdefault(host.host.name, {})[output_stream(process)] = received
        state = reduce_events(self.read_events())
        started = any(phase == "started" for _, phase, _ in state.told)
        return Adoption(offsets, dict(state.reported), started, frozenset(state.told))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of events.jsonl; the last may be unfinished."""
        try:
            with self.events.open("rb") as file:
                yield from file
        except OSError:
            return

    def read_events(self) -> Iterator[Event]:
        for line in self.lines():
            if line.endswith(b"\n") and (event := parse_event(line)):
                yield event

    def struck(self) -> set[str]:
        """Return the injected faults that have occurred so far."""
        return {
            event["injected"]
            for event in self.read_events()
            if event["event"] == EventKind.NOTE and "injected" in event
        }

    def start(self) -> StartEvent | None:
        """Return the run's first event; None if it has not started, or the event is damaged."""
        return next((event for event in self.read_events() if event["event"] == EventKind.START), None)

    def newest_events(self) -> Iterator[Event]:
        """Yield events, newest first, reading only as far as needed."""
        for line in lines_backwards(self.events):
            if event := parse_event(line):
                yield event

    def kept_files(self) -> list[KeptFiles]:
        """Return the folders with what the program wrote beside its code, those of the last attempt first."""
        kept: list[KeptFiles] = []
        earlier = 0
        for line in lines_backwards(self.events):
            if b'"start"' not in line and b'"kept"' not in line:  # most are steps, which are not worth parsing
                continue
            event = parse_event(line)
            if event and event["event"] == EventKind.START:
                earlier += 1
            if event and event["event"] == EventKind.HOST and "kept" in event:
                kept.append(KeptFiles(event["host"], event["kept"], earlier))
        kept.reverse()  # within an attempt in the order in which the hosts have stopped
        return sorted(kept, key=lambda one: one.earlier)

    def end(self) -> EndEvent | None:
        """Return the event of the run's end; None if it has not ended."""
        last = next(self.newest_events(), None)
        return last if last is not None and last["event"] == EventKind.END else None

    def record_end(self, message: str, code: int, *, stopped: bool = False, at: float | None = None) -> None:
        """Record the end of a run that has no supervisor.

        Args:
            message: why it has ended.
            code: its exit code.
            stopped: it was stopped, so nothing has failed.
            at: the time of its end; None: now.
        """
        how, host = ("interrupted", None) if stopped else ("failed", "the launcher")
        end: EndEvent = {
            "event": EventKind.END,
            "time": time.time() if at is None else at,
            "code": int(code),
            "host": host,
            "process": None,
            "message": f"{how}: {message} [exit code {code}]",
            "left_behind": [],
        }
        recorder = Recorder(self.events)
        recorder.event(end)
        recorder.close()

    # --- who stops it ---

    @property
    def _stop(self) -> Path:
        return self.path / "stop.json"

    def record_stop(self, now: bool) -> None:
        """Record that this user calls `podrun stop`, for the message of the run's end. Does nothing on a full disk.

        `now`: without a save.
        """
        record: StopRecord = {"user": user_name(os.geteuid()), "machine": socket.gethostname(), "now": now}
        with suppress(OSError):
            self._write(self._stop.name, json.dumps(record).encode())

    def stopped_by(self) -> str:
        """Return which `podrun stop` the run's supervisor got, as `podrun stop --now` (ann on login1); empty without one."""
        try:
            stop = parse_stop(self._stop.read_bytes(), LIMIT)
        except (OSError, Malformed):
            return ""
        return f"`podrun stop{' --now' * stop['now']}` ({stop['user']} on {stop['machine']})"

    # --- who supervises it ---

    @contextmanager
    def supervise(self) -> Iterator[None]:
        """Hold the run's lock, so that no other process supervises it. Raises UserError if another process does."""
        file = os.open(self.path / "supervisor.json", os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(file):
            os.close(file)
            who = f"pid {self.supervisor()}" if (machine := self.elsewhere()) is None else f"on {machine}"
            raise UserError(f"run {self.run_id} is supervised by another podrun ({who})") from None
        try:
            self._stop.unlink(missing_ok=True)  # of an earlier supervisor, as in a job that was requeued
            os.ftruncate(file, 0)
            holder: SupervisorRecord = {"pid": os.getpid(), "machine": socket.gethostname()}
            os.pwrite(file, json.dumps(holder).encode(), 0)
            yield
        finally:
            os.close(file)

    def supervisor(self) -> int | None:
        """Return the pid of the run's supervisor; None if it has none. See `elsewhere`: it may be of another machine."""
        return holder["pid"] or None if (holder := self._holder()) else None  # 0 would signal a process group

    def elsewhere(self) -> str | None:
        """Return the name of the supervisor's machine; None if it is this one, or if there is no supervisor."""
        holder = self._holder()
        machine = holder.get("machine") if holder else None
        return None if machine == socket.gethostname() else machine

    def last_machine(self) -> str | None:
        """Return the name of the last supervisor's machine, even if that supervisor is gone; None if it is unknown."""
        try:
            return parse_supervisor((self.path / "supervisor.json").read_bytes(), LIMIT).get("machine")
        except (OSError, Malformed):
            return None

    def _holder(self) -> SupervisorRecord | None:
        """Return the record of the supervisor that holds the run's lock; None if nobody holds it."""
        try:
            with (self.path / "supervisor.json").open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return parse_supervisor(file.read(LIMIT), LIMIT)
        except (OSError, Malformed):
            pass
        return None

    def _write(self, name: str, data: bytes) -> None:
        """Write a file atomically, readable only by this user."""
        path = self.path / f"{name}.tmp"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            path.replace(self.path / name)
        except OSError:
            with suppress(OSError):
                path.unlink()  # on a full disk, the record of the run's end needs the space
            raise


def start_event(plan: LaunchPlan, logs: Path, time: float) -> StartEvent:
    """Return the first event of an attempt, with the parts of the plan that views show."""
    job = plan.run.job
    return {
        "event": EventKind.START,
        "time": time,
        "run_id": plan.run.run_id,
        "attempt": plan.attempt,
        "slice": plan.pod.slice.name,
        "devices": plan.pod.slice.devices_per_host,
        "transport": plan.pod.transport,
        "hosts": {h.host.name: h.processes for h in plan.hosts},
        "program": " ".join(job.argv) if isinstance(job, Program) else None,
        "python": plan.run.python if isinstance(job, Program) and job.argv[0] in OWN_PYTHON else None,
        "workdir": os.fspath(plan.run.workdir),
        "logs": os.fspath(logs),
    }


def _options(words: list[str]) -> dict[str, str]:
    """Return the words of a program as text, its options apart: `program`, and the value of each `--name`."""
    program, options = list[str](), dict[str, str]()
    name = ""  # of the option that the next word may be the value of
    for word in words:
        if word.startswith("--") and len(word) > 2 and program:
            name, equals, value = word.partition("=")
            options[name] = shlex.quote(value) if equals else "true"
            name = "" if equals else name
        elif name and not re.match(r"-[^\d.]", word):
            options[name], name = shlex.quote(word), ""
        else:
            program.append(word)
            name = ""
    return {"program": shlex.join(program), **options}


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    """Return the values of a nested dictionary as text, by their paths, such as `optimizer.learning_rate`."""
    if not isinstance(value, dict) or not value:
        return {path: json.dumps(value, ensure_ascii=False)}
    return {
        key: text
        for name, inner in value.items()
        for key, text in _leaves(inner, f"{path}.{name}" if path else str(name)).items()
    }


@lru_cache(maxsize=1024)
def _transport(path: Path) -> str:
    """Return the transport in a run's spec, cached because it never changes. Raises OSError, Malformed."""
    spec = loads((path / "spec.json").read_bytes(), LIMIT)
    _SPEC(spec)
    return str(spec["pod"]["transport"])


def _lock(file: int) -> bool:
    """Try to lock the file; return whether that succeeded. Retries, since readers hold the lock briefly."""
    deadline = time.monotonic() + _LOOK
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)


def all_runs() -> list[RunDirectory]:
    """Return the runs of this user on this machine, newest first."""
    folder = podrun_home() / "runs"
    names = (
        sorted((p.name for p in folder.iterdir() if p.name[0] != "." and (p / "spec.json").is_file()), reverse=True)
        if folder.is_dir()
        else []
    )
    return [RunDirectory(folder / name) for name in names]


def label_of(run: RunDirectory) -> Label:
    """Return the name, tags and note of a run; an empty label if its record cannot be read."""
    try:
        spec = printable(loads((run.path / "spec.json").read_bytes(), LIMIT))
        _LABEL(spec)
    except (OSError, Malformed):
        return Label()
    label = spec.get("label", {})
    return Label(label.get("name", ""), tuple(label.get("tags", ())), label.get("note", ""))


def find_run(name: str | None) -> RunDirectory:
    """Return the newest run whose `--name` is `name`, otherwise the run with `name` in its id; None: the newest run.

    A match at the beginning or the end of an id is preferred to one in the middle. Raises UserError for none or
    several.
    """
    runs = all_runs()
    if not runs:
        raise UserError(
            f"there are no runs in {podrun_home() / 'runs'}; `podrun --simulate --slice cpu-1x1 train.yaml` makes one"
        )
    if name is None:
        return runs[0]
    if named := next((r for r in runs if r.run_id == name), None) or next(
        (r for r in runs if label_of(r).name == name), None
    ):
        return named
    matches = [r for r in runs if r.run_id.startswith(name) or r.run_id.endswith(name)] or [
        r for r in runs if name in r.run_id
    ]
    if not matches:
        raise UserError(f"there is no run {name!r}; `podrun ps --all` lists them; the newest is {runs[0].run_id}")
    if len(matches) > 1 and {unit_of(r.run_id) for r in matches} == {array := unit_of(matches[0].run_id)}:
        raise UserError(
            f"{name!r} means {len(matches)} tasks of the array {array}; name one, such as {matches[-1].run_id}"
        )
    if len(matches) > 1:
        names = ", ".join(r.run_id for r in matches[:4])
        raise UserError(
            f"{name!r} means {len(matches)} runs: {names}{', ...' if len(matches) > 4 else ''}; give more of the id"
        )
    return matches[0]


class Recorder:
    """Appends every event to the run directory's events.jsonl."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = open(path, "a", buffering=1, opener=private)

    def event(self, event: Event) -> None:
        try:
            self._file.write(json.dumps(event) + "\n")
        except OSError:
            pass  # a full disk: the logs are on it as well, and fail the run

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass

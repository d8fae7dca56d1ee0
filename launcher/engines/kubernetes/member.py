"""The program of a JobSet's container: run podrun's runtime or a user program, and report how it ended.

Kubernetes takes the role of launcher and agent: it starts all containers, kills remaining processes, and restarts all
containers after a failure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from podrun.runtime.contract import (
    CONFIG_FILE,
    ErrorKind,
    ExitCode,
    UserError,
    WorkerEnv,
    events_stream,
    failure_code,
)
from podrun.runtime.events import ErrorEvent, EventKind

from ...agent.base.schema import Lines, Malformed
from ...plan.base_env import RUNTIME
from ...plan.container import WITH_PID
from ...plan.program import INSTRUMENT_FOLDER, OWN_PYTHON, coordinator_env, filled, program_env
from ...rundir.events import LIMIT, parse_worker_event

ENV_CONFIG = "PODRUN_CONFIG"
ENV_PROGRAM = "PODRUN_PROGRAM"
ENV_HOSTS = "PODRUN_HOSTS_PER_SLICE"
ENV_SLICE_INDEX = "PODRUN_SLICE_INDEX"
ENV_HOST_INDEX = "PODRUN_HOST_INDEX"
"""Variables of the manifest that only this module reads."""
_OWN = (ENV_CONFIG, ENV_PROGRAM, ENV_HOSTS, ENV_SLICE_INDEX, ENV_HOST_INDEX)
_TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes shows this file's content as the container's termination message."""
_POLL = 0.5  # seconds between two reads of the process's events
_GRACE = 2.0  # seconds for a process to exit after it has reported an error
_PEER_LOST_DELAY = 5.0  # seconds that a container with a lost peer waits, so that the peer's container fails first
_MESSAGE_BYTES = 4000  # bytes of the termination message that Kubernetes keeps
_RESERVED_CODES = (ExitCode.BAD_CONFIG, ExitCode.PREEMPTED, ExitCode.PEER_LOST)
"""Exit codes with a rule in the JobSet's failure policy. Programs without podrun's library use them with other meanings."""


def worker_env(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment of the runtime or the user program.

    Raises:
        LookupError, TypeError, ValueError, UserError: the manifest is not podrun's.
    """
    number = int(env[ENV_SLICE_INDEX]) * int(env[ENV_HOSTS]) + int(env[ENV_HOST_INDEX])
    plain = {name: value for name, value in env.items() if name not in _OWN}
    plain |= {"PODRUN_PROCESS_ID": str(number), "PODRUN_DIR": str(directory)}
    if env.get("JAX_PLATFORMS") == "cpu":  # a collective blocks one of XLA's threads for each device
        devices = len(env["PODRUN_LOCAL_DEVICE_IDS"].split(","))
        plain.setdefault("NPROC", str(max(devices, os.cpu_count() or 1)))
    worker = WorkerEnv.from_env(plain)
    if (program := env.get(ENV_PROGRAM)) is None:
        return {**plain, **filled(json.loads(env[ENV_CONFIG])["launch"]["env"], worker)}
    launch = json.loads(program)["launch"]
    second_port = int(worker.coordinator.rpartition(":")[2]) + 1
    names = {**program_env(worker, launch.get("join", False)), **coordinator_env(worker.coordinator, second_port)}
    names["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), plain.get("PATH", os.defpath)])
    if launch["instrument"]:
        folders = [os.fspath(INSTRUMENT_FOLDER), *filter(None, [plain.get("PYTHONPATH")])]
        names["PYTHONPATH"] = os.pathsep.join(folders)
    return {**plain, **names, **filled(launch["env"], worker)}


def worker_command(env: Mapping[str, str]) -> list[str]:
    """Return the command of the runtime or the user program. A program's `python` is this interpreter."""
    if (program := env.get(ENV_PROGRAM)) is None:
        return [sys.executable, *RUNTIME]
    argv = [str(word) for word in json.loads(program)["argv"]]
    return [*WITH_PID, *([sys.executable, *argv[1:]] if argv[0] in OWN_PYTHON else argv)]


class Member:
    """The runtime or the user program of this container.

    Args:
        env: environment of the container.
        directory: a temporary folder for the config and the events.

    Raises:
        LookupError, TypeError, ValueError, UserError: the manifest is not podrun's.
    """

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        if ENV_PROGRAM not in env:
            (directory / CONFIG_FILE).write_text(env[ENV_CONFIG])
        self._is_program = ENV_PROGRAM in env
        self._argv = worker_command(env)
        self._env = worker_env(env, directory)
        self._process_id = int(self._env["PODRUN_PROCESS_ID"])
        self._reported = _ReportedEvents(directory / events_stream(self._process_id))

    def run(self) -> int:
        """Run the worker, and return its exit code; 128 + N if signal N ended it. Passes SIGTERM on, so that it can save."""
        worker = subprocess.Popen(self._argv, env=self._env, start_new_session=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _send_signal(worker, number))
        code = self._await_end(worker)
        if code == 0:
            return ExitCode.DONE
        code = failure_code(128 - code if code < 0 else code)
        error = self._reported.error
        is_foreign = self._is_program and not self._reported.has_phases
        if is_foreign and code in _RESERVED_CODES and (error is None or error.get("program")):
            words, code = f"exited with code {code}", ExitCode.FAILED
        else:
            words = f"exited with code {code}" if self._is_program else "it has reported no error"
        if code == ExitCode.PEER_LOST:  # Kubernetes acts on the exit code of the first container that fails
            time.sleep(_PEER_LOST_DELAY)
        message = str(error["message"]).strip() if error else words
        first, newline, _ = message.partition("\n")
        if (
            error and newline and self._is_program and not error.get("traceback")
        ):  # a program leaves a mistake to podrun
            print(message, file=sys.stderr, flush=True)
        self._write_termination_log(code, first)
        return code

    def _await_end(self, worker: subprocess.Popen[bytes]) -> int:
        """Wait for the worker, and return its exit code. Kills a worker that has reported an error but does not exit.

        Python waits for its threads at exit, and JAX for the other processes, which wait for this one.
        """
        deadline = float("inf")
        while True:
            try:
                code = worker.wait(_POLL)
                self._reported.read()
                return code
            except subprocess.TimeoutExpired:
                self._reported.read()
            error = self._reported.error
            if error is not None and deadline == float("inf"):
                deadline = time.monotonic() + _GRACE
            if error is not None and time.monotonic() > deadline:
                _send_signal(worker, signal.SIGKILL)
                worker.wait()
                return int(error.get("code") or ErrorKind(error["kind"]).exit_code)

    def _write_termination_log(self, code: int, why: str) -> None:
        """Write why the worker ended to the termination message of the container, which `kubectl describe` shows."""
        text = f"podrun: {self._env['PODRUN_HOST']} (process {self._process_id}): {why} [exit code {int(code)}]"
        print(text, file=sys.stderr, flush=True)
        try:
            with _TERMINATION_LOG.open("r+b") as file:  # it exists only under Kubernetes
                file.write(text.encode()[:_MESSAGE_BYTES])
        except OSError:
            pass


class _ReportedEvents:
    """The events that a process has written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines = Lines(LIMIT)
        self.error: ErrorEvent | None = None
        """The first error."""
        self.has_phases = False
        """True if the process reports phases, as podrun's runtime and users of `podrun.steps` do."""

    def read(self) -> None:
        """Read new events."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return
        self._read += len(data)
        for line in self._lines.feed(data):
            try:
                event = parse_worker_event(line)
            except Malformed:
                continue
            self.has_phases |= event["event"] == EventKind.PHASE
            if event["event"] == EventKind.ERROR and self.error is None:
                self.error = event


def _send_signal(worker: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(worker.pid, number)
    except ProcessLookupError:
        pass


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="podrun-") as folder:
        try:
            member = Member(os.environ, Path(folder))
        except (LookupError, TypeError, ValueError, UserError) as error:
            print(f"podrun: this container has no manifest of `podrun render jobset`: {error!r}", file=sys.stderr)
            return ExitCode.BAD_CONFIG
        return member.run()

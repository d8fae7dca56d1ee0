"""Be one host of a JobSet: start podrun's runtime, or a program, in this container; end with its exit code and last words.

Kubernetes does here what the agent and the launcher do elsewhere: it starts all containers, kills what is left in one, and
starts all again when one has failed.
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
    Event,
    EventKind,
    ExitCode,
    UserError,
    WorkerEnv,
    events_stream,
    failure_code,
)

from ...agent.base.schema import Lines, Malformed
from ...plan.base_env import RUNTIME
from ...plan.container import WITH_PID
from ...plan.plan import OWN_PYTHON
from ...plan.program import INSTRUMENT_FOLDER, coordinator_env, filled, program_env
from ...rundir.events import LIMIT, parse_worker_event

ENV_CONFIG = "PODRUN_CONFIG"
ENV_PROGRAM = "PODRUN_PROGRAM"
ENV_HOSTS = "PODRUN_HOSTS_PER_SLICE"
ENV_SLICE_INDEX = "PODRUN_SLICE_INDEX"
ENV_HOST_INDEX = "PODRUN_HOST_INDEX"
"""Variables of the manifest that only this module reads."""
_OWN = (ENV_CONFIG, ENV_PROGRAM, ENV_HOSTS, ENV_SLICE_INDEX, ENV_HOST_INDEX)
_LAST_WORDS = Path("/dev/termination-log")
"""Kubernetes shows what is in it as the message of the container's end."""
_LOOK = 0.5  # seconds between two looks at what the process has reported
_GRACE = 2.0  # seconds for a process to end that has told its error
_CONSEQUENCE = 5.0  # seconds that a container waits whose failure follows from another's
_WORDS = 4000  # bytes of it that Kubernetes keeps
_TAKEN = (ExitCode.BAD_CONFIG, ExitCode.PREEMPTED, ExitCode.PEER_LOST)
"""Exit codes that mean something to a JobSet; a program that knows nothing of podrun means something else by them."""


def worker_env(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment of the runtime, or of the program.

    Raises LookupError, TypeError, ValueError, UserError for a manifest that is not podrun's.
    """
    number = int(env[ENV_SLICE_INDEX]) * int(env[ENV_HOSTS]) + int(env[ENV_HOST_INDEX])
    plain = {name: value for name, value in env.items() if name not in _OWN}
    plain |= {"PODRUN_PROCESS_ID": str(number), "PODRUN_DIR": str(directory)}
    if env.get("JAX_PLATFORMS") == "cpu":  # a collective holds a thread of XLA's for each device
        devices = len(env["PODRUN_LOCAL_DEVICE_IDS"].split(","))
        plain.setdefault("NPROC", str(max(devices, os.cpu_count() or 1)))
    worker = WorkerEnv.from_env(plain)
    if (program := env.get(ENV_PROGRAM)) is None:
        return {**plain, **filled(json.loads(env[ENV_CONFIG])["launch"]["env"], worker)}
    launch = json.loads(program)["launch"]
    second_port = int(worker.coordinator.rpartition(":")[2]) + 1
    names = {**program_env(worker), **coordinator_env(worker.coordinator, second_port)}
    names["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), plain.get("PATH", os.defpath)])
    if launch["instrument"]:
        folders = [os.fspath(INSTRUMENT_FOLDER), *filter(None, [plain.get("PYTHONPATH")])]
        names["PYTHONPATH"] = os.pathsep.join(folders)
    return {**plain, **names, **filled(launch["env"], worker)}


def worker_command(env: Mapping[str, str]) -> list[str]:
    """Return the command of the runtime, or of the program, whose `python` is the one that podrun is installed in."""
    if (program := env.get(ENV_PROGRAM)) is None:
        return [sys.executable, *RUNTIME]
    argv = [str(word) for word in json.loads(program)["argv"]]
    return [*WITH_PID, *([sys.executable, *argv[1:]] if argv[0] in OWN_PYTHON else argv)]


class Member:
    """The runtime, or the program, in this container, which prints what it does."""

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        """Prepare it. Raises as `worker_env` does."""
        if ENV_PROGRAM not in env:
            (directory / CONFIG_FILE).write_text(env[ENV_CONFIG])
        self._is_program = ENV_PROGRAM in env
        self._argv = worker_command(env)
        self._env = worker_env(env, directory)
        self._process_id = int(self._env["PODRUN_PROCESS_ID"])
        self._reported = _Reported(directory / events_stream(self._process_id))

    def run(self) -> int:
        """Run to the end, and return its exit code, 128 + N if it was ended by signal N. SIGTERM lets it save."""
        worker = subprocess.Popen(self._argv, env=self._env, start_new_session=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _pass_on(worker, number))
        code = self._await_end(worker)
        if code == 0:
            return ExitCode.DONE
        code = failure_code(128 - code if code < 0 else code)
        error = self._reported.error
        is_foreign = self._is_program and not self._reported.has_phases
        if is_foreign and code in _TAKEN and (error is None or error.get("program")):
            words, code = f"exited with code {code}", ExitCode.FAILED
        else:
            words = f"exited with code {code}" if self._is_program else "it has not said why"
        if code == ExitCode.PEER_LOST:  # the exit code of the container that failed first decides what Kubernetes does
            time.sleep(_CONSEQUENCE)
        self._tell_end(code, str(error["message"]).strip().partition("\n")[0] if error else words)
        return code

    def _await_end(self, worker: subprocess.Popen[bytes]) -> int:
        """Return the exit code of the worker, which is killed if it has told its error, and does not end by itself.

        The end of Python waits for threads, and JAX's for the other processes, which wait for this one.
        """
        deadline = float("inf")
        while True:
            try:
                code = worker.wait(_LOOK)
                self._reported.read()
                return code
            except subprocess.TimeoutExpired:
                self._reported.read()
            error = self._reported.error
            if error is not None and deadline == float("inf"):
                deadline = time.monotonic() + _GRACE
            if error is not None and time.monotonic() > deadline:
                _pass_on(worker, signal.SIGKILL)
                worker.wait()
                return int(error.get("code") or ErrorKind(error["kind"]).exit_code)

    def _tell_end(self, code: int, why: str) -> None:
        """Say in the container's last words why it ended: `kubectl describe` shows them."""
        text = f"podrun: {self._env['PODRUN_HOST']} (process {self._process_id}): {why} [exit code {int(code)}]"
        print(text, file=sys.stderr, flush=True)
        try:
            with _LAST_WORDS.open("r+b") as file:  # only where Kubernetes has made it
                file.write(text.encode()[:_WORDS])
        except OSError:
            pass


class _Reported:
    """What a process has reported in its file of events."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines = Lines(LIMIT)
        self.error: Event | None = None
        """The first error."""
        self.has_phases = False
        """True if it is podrun's runtime, or uses podrun's loop."""

    def read(self) -> None:
        """Read what is new."""
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


def _pass_on(worker: subprocess.Popen[bytes], number: int) -> None:
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

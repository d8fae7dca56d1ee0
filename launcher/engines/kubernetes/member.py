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

from podrun.runtime.config import Launch
from podrun.runtime.contract import (
    CONFIG_FILE,
    ErrorKind,
    ExitCode,
    UnavailableError,
    UserError,
    WorkerEnv,
    beat_file,
    events_stream,
    failure_code,
)
from podrun.runtime.events import ErrorEvent, EventKind

from ...agent.base.processes import descendants
from ...agent.base.schema import Lines, Malformed
from ...agent.run.progress import print_stacks, read_record
from ...plan.base_env import RUNTIME
from ...plan.container import WITH_PID
from ...plan.program import INSTRUMENT_FOLDER, OWN_PYTHON, coordinator_env, filled, program_env
from ...rundir.events import LIMIT, parse_worker_event
from .hang_watch import HangWatch, Verdict, report_of

ENV_CONFIG = "PODRUN_CONFIG"
ENV_PROGRAM = "PODRUN_PROGRAM"
ENV_HOSTS = "PODRUN_HOSTS_PER_SLICE"
ENV_SLICE_INDEX = "PODRUN_SLICE_INDEX"
ENV_HOST_INDEX = "PODRUN_HOST_INDEX"
ENV_LIBRARIES = "PODRUN_LIBRARIES"
"""Folder of the GPUs' driver: it is added to LD_LIBRARY_PATH, whose other folders belong to the image."""
ENV_SCRIPT = "PODRUN_ENV_SCRIPT"
"""Script on the node that exports the variables of NCCL's plug-in."""
ENV_INSTALLER = "PODRUN_ENV_INSTALLER"
"""Manifest that puts the script on the node, for messages."""
_OWN = (ENV_CONFIG, ENV_PROGRAM, ENV_HOSTS, ENV_SLICE_INDEX, ENV_HOST_INDEX, ENV_LIBRARIES, ENV_SCRIPT, ENV_INSTALLER)
"""Variables of the manifest that only this module reads."""
_TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes shows this file's content as the container's termination message."""
_SCRIPT_WAIT = 300.0  # seconds for the installer of a plug-in on a node that has just been created
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
    if folder := env.get(ENV_LIBRARIES):
        folders = [name for name in plain.get("LD_LIBRARY_PATH", "").split(os.pathsep) if name]
        plain["LD_LIBRARY_PATH"] = os.pathsep.join(folders if folder in folders else [*folders, folder])
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


def script_env(script: Path, installer: str, wait: float = _SCRIPT_WAIT) -> dict[str, str]:
    """Return the environment after the script, of which this process's variables stay as they are.

    Args:
        script: the file, which an installer may put there only now.
        installer: where it comes from, for the message.
        wait: seconds to wait for it.

    Raises:
        UnavailableError: the script is missing, or fails.
    """
    deadline = time.monotonic() + wait
    while not script.is_file():
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"this node has no {script} after {wait:g} s, which has NCCL's settings for its network: the cluster's "
                f"administrator installs it (gpudirect-*/{installer} of GoogleCloudPlatform/container-engine-accelerators); "
                "or render the job with --network pod"
            )
        time.sleep(_POLL)
    try:
        done = subprocess.run(["bash", "-c", '. "$0" >&2 && env -0', script], capture_output=True, check=False)
    except OSError as error:
        raise UnavailableError(f"cannot read {script} by bash: {error.strerror}; the image needs bash") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UnavailableError(f"{script} ended with {done.returncode}: {last or 'it said nothing'}")
    pairs = [entry.partition("=") for entry in done.stdout.decode(errors="surrogateescape").split("\0") if entry]
    return {**{name: value for name, _, value in pairs}, **os.environ}


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
        self._worker = WorkerEnv.from_env(self._env)
        self._process_id = self._worker.process_id
        self._reported = _ReportedEvents(directory / events_stream(self._process_id))
        given = json.loads(env[ENV_PROGRAM] if self._is_program else env[ENV_CONFIG])["launch"]
        self._launch = Launch(stall_timeout=given.get("stall_timeout"))

    def run(self) -> int:
        """Run the worker, and return its exit code; 128 + N if signal N ended it. Passes SIGTERM on, so that it can save.

        SIGUSR1 makes its processes print their stacks.
        """
        worker = subprocess.Popen(self._argv, env=self._env, start_new_session=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _send_signal(worker, number))
        signal.signal(signal.SIGUSR1, lambda *_: _print_all_stacks())
        hang = self._watch_for_hang(worker.pid)
        code = self._await_end(worker, hang)
        if code and hang and hang.failure:  # the first process that is killed may end the others
            write_termination_log(f"podrun: {hang.failure} [exit code {ExitCode.STALLED}]")
            return ExitCode.STALLED
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
        end = f"{self._env['PODRUN_HOST']} (process {self._process_id}): {first} [exit code {int(code)}]"
        write_termination_log(f"podrun: {end}")
        return code

    def _watch_for_hang(self, pid: int) -> HangWatch | None:
        """Start to report the worker's progress; None if there is no limit, as for most user programs."""
        worker = self._worker
        if self._is_program and self._launch.stall_timeout is None:
            return None
        run = f"{worker.run_id}.{worker.attempt}"
        record = os.fspath(worker.directory / beat_file(worker.process_id))
        leads = worker.process_id == 0
        return HangWatch(
            worker.coordinator,
            lambda: report_of(run, worker.process_id, worker.host, read_record(record), pid),
            _print_all_stacks,
            Verdict(run, worker.num_processes, self._launch, self._is_program) if leads else None,
        )

    def _await_end(self, worker: subprocess.Popen[bytes], hang: HangWatch | None) -> int:
        """Wait for the worker, and return its exit code.

        Kills a worker that has reported an error but does not exit, and a worker of a pod that hangs.

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
            if hang and hang.failure:
                _send_signal(worker, signal.SIGKILL)
                worker.wait()
                return ExitCode.STALLED
            error = self._reported.error
            if error is not None and deadline == float("inf"):
                deadline = time.monotonic() + _GRACE
            if error is not None and time.monotonic() > deadline:
                _send_signal(worker, signal.SIGKILL)
                worker.wait()
                return int(error.get("code") or ErrorKind(error["kind"]).exit_code)


def _print_all_stacks() -> None:
    """Make all processes of this container print the stacks of their threads."""
    for pid in descendants():
        print_stacks(pid)


def write_termination_log(text: str) -> None:
    """Write why this container ended to its termination message, which `kubectl describe` shows, and to stderr."""
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
            script = os.environ.get(ENV_SCRIPT)
            env = script_env(Path(script), os.environ.get(ENV_INSTALLER, "")) if script else os.environ
            member = Member(env, Path(folder))
        except UnavailableError as error:
            write_termination_log(f"podrun: {error}")
            return ExitCode.UNAVAILABLE
        except (LookupError, TypeError, ValueError, UserError) as error:
            print(f"podrun: this container has no manifest of `podrun render jobset`: {error!r}", file=sys.stderr)
            return ExitCode.BAD_CONFIG
        return member.run()

"""`--detach`: supervise a run without a terminal, even after the shell that started it is gone."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from podrun.runtime.contract import ExitCode, Phase, UserError, failure_code
from podrun.runtime.events import EventKind

from ..rundir.events import EndEvent, Event
from ..rundir.follow import follow
from ..rundir.runs import RunDirectory
from ..staging.bundle import Bundle
from ..transport.open_files import restore_limit
from ..view.console import NoConsole
from ..view.live_console import make_console
from ..view.terminal import guarded_streams
from .attempts import run_attempts
from .signals import Signals

_BEGIN = 5.0  # seconds between the creation of a run directory and the start of its supervisor
_REPORT = 5.0  # seconds between a run's last event and the end of its supervisor
_APPEAR = 30.0  # seconds for the supervisor to write its first event


def start_in_background(directory: RunDirectory, bundles: Sequence[Bundle], as_json: bool) -> int:
    """Start the supervisor of a created run, and show events until all processes have started or the run has ended.

    Returns:
        The exit code of the run if it has ended, otherwise 0.
    """
    spawn(directory, bundles)
    console = make_console(as_json)
    start = _Start()
    with Signals() as signals:
        try:
            for event in follow(directory):
                if event is not None:
                    console.event(event)
                    if event["event"] == EventKind.END:
                        return report_end(directory, event, as_json)
                    if start.complete(event):
                        break
                for number in signals.received:  # until the start is complete, Ctrl-C ends the run, not only the view
                    if pid := directory.supervisor():
                        os.kill(pid, number)
                signals.received.clear()
            else:
                raise UserError(failure_message(directory))
        finally:
            console.stop()
    console.say(attach_hint(directory))
    return ExitCode.DONE


def attach_hint(directory: RunDirectory) -> str:
    run = directory.run_id
    return (
        f"podrun: {run} goes on in the background\n"
        f"  podrun attach {run}    watch it\n  podrun logs -f {run}   what its processes print\n"
        f"  podrun stop {run}      end it"
    )


def spawn(directory: RunDirectory, bundles: Sequence[Bundle] = (), *, adopt: bool = False) -> None:
    """Start the supervisor, and wait until it has locked the run. Raises UserError if it fails to start.

    The supervisor gets a snapshot of the code, because the project may change while it starts.
    """
    log = os.open(directory.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, os.fspath(directory.path), *(["adopt"] if adopt else [])],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    restore_limit(process.pid)
    os.close(log)
    assert process.stdin is not None
    with process.stdin:
        pickle.dump(list(bundles), process.stdin)
    deadline = time.monotonic() + _APPEAR
    while directory.supervisor() != process.pid or not directory.events.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            if directory.end() is not None or directory.supervisor() is not None:  # another supervisor was faster
                return
            raise UserError(failure_message(directory))
        time.sleep(0.05)


def take_over(directory: RunDirectory) -> None:
    """Start a supervisor for a run without one. Raises UserError if there is nothing to take over."""
    deadline = time.monotonic() + _BEGIN
    while directory.attempt() is None:  # it may be starting
        if directory.supervisor() is not None:
            return
        if time.monotonic() > deadline:
            directory.record_end("its launcher was gone before it had started anything", ExitCode.UNAVAILABLE)
            raise UserError(f"run {directory.run_id} never began: its launcher was gone before it had started anything")
        time.sleep(0.1)
    spawn(directory, adopt=True)


def failure_message(directory: RunDirectory) -> str:
    try:
        text = directory.supervisor_log.read_text(errors="replace").strip()
    except OSError:
        text = ""
    return f"the supervisor of {directory.run_id} ended: {text.splitlines()[-1] if text else 'it was killed'}"


class _Start:
    """Detects when a run has started.

    A user program has started when all its processes run. A job with a train.yaml has started when its processes have
    agreed on workdir and data, because that is the last check that can fail.
    """

    def __init__(self) -> None:
        self._missing: set[int] | None = None
        self._is_program = False

    def complete(self, event: Event) -> bool:
        if event["event"] == EventKind.START:
            self._missing = {process for processes in event["hosts"].values() for process in processes}
            self._is_program = event["program"] is not None
        elif self._missing and self._is_program:
            if event["event"] == EventKind.HOST and event["phase"] == "started":
                self._missing.discard(event["process"])
        elif self._missing and event["event"] == EventKind.PHASE and event["phase"] not in (Phase.CONNECT, Phase.SETUP):
            self._missing.discard(event["process"])
        return self._missing == set()


def report_end(directory: RunDirectory, end: EndEvent, as_json: bool = False) -> int:
    """Print the report of a run that has ended with a supervisor in the background, and return its exit code.

    Prints nothing if `as_json`, because the JSON output contains the report already.
    """
    if as_json:
        return end["code"]
    deadline = time.monotonic() + _REPORT
    # the supervisor writes its report after the event
    while directory.supervisor() is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        text = directory.supervisor_log.read_text(errors="replace").strip()
    except OSError:  # the supervisor ran in a terminal
        text = ""
    print(text or f"podrun: {end['message']}", file=sys.stderr if end["code"] else sys.stdout, flush=True)
    return end["code"]


def main() -> None:
    directory = RunDirectory(Path(sys.argv[1]))
    bundles = pickle.load(sys.stdin.buffer)
    adopt = "adopt" in sys.argv[2:]
    try:
        spec = directory.spec()
        code = int(run_attempts(spec, directory, NoConsole(), bundles, adopt=adopt))
    except UserError as error:
        if directory.supervisor() is None:  # otherwise another supervisor has locked the run
            print(f"podrun: {error}", file=sys.stderr, flush=True)
        code = int(ExitCode.BAD_CONFIG)
    sys.exit(failure_code(code) if code else 0)


if __name__ == "__main__":
    with guarded_streams():
        main()

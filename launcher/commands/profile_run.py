"""`podrun profile`: trace some steps of a running job."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from podrun.runtime.config import Config
from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.events import EventKind

from ..pod.errors import HostError
from ..pod.pod import process_name
from ..remote.download import FileFailedError
from ..results.profile_run import Profile, Profiling, Target
from ..rundir.log_files import log_files
from ..rundir.runs import RunDirectory, find_run
from ..rundir.submitted import is_unfinished, pending_words
from ..transport.base import load_transport
from ..view.times import size


def profile(run: str | None, steps: int, hosts: tuple[str, ...], to: Path | None) -> int:
    """Trace the steps, and download the traces. Returns 69 if a host is unreachable. Raises UserError.

    Args:
        run: the name of a run, or a part of its id; None: the newest run.
        steps: number of steps.
        hosts: hosts as in `--host`; empty: the host of process 0.
        to: folder of the traces; None: in the run directory.
    """
    directory = find_run(run)
    _check(directory)
    targets, attempt = _targets(directory, hosts)
    folder = to.expanduser() if to else directory.profiles
    transport = load_transport(directory.spec().pod)
    try:
        profiling = Profiling(transport, directory, targets, secrets.token_hex(4), attempt)
        try:
            _profile(profiling, steps, folder)
        finally:
            for row in profiling.close():
                print(f"podrun: {row}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"\npodrun: given up; run {directory.run_id} goes on", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except (HostError, FileFailedError) as error:
        print(f"podrun: {error}; run {directory.run_id} is not touched", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename or folder}: {error.strerror}; choose another folder: --to DIR"
        ) from None
    finally:
        transport.close()
    return ExitCode.DONE


def _check(directory: RunDirectory) -> None:
    """Raise UserError if the run cannot be traced."""
    if (end := directory.end()) is not None:
        raise UserError(
            f"run {directory.run_id} has ended: {end['message']}; profile a run that is in progress (`podrun ps` lists them)"
        )
    if not isinstance(directory.spec().job, Config):
        raise UserError(
            f"run {directory.run_id} is a program of your own: call jax.profiler.start_trace and stop_trace in it; "
            "podrun traces the steps of its own runtime"
        )
    if words := pending_words(directory):
        raise UserError(f"{words}; profile it when it trains")
    if not is_unfinished(directory):
        raise UserError(f"nobody supervises {directory.run_id}; `podrun attach {directory.run_id}` takes it over first")


def _targets(directory: RunDirectory, patterns: Sequence[str]) -> tuple[list[Target], int]:
    """Return the selected processes of the last attempt, and its number. Raises UserError."""
    start = next((event for event in directory.newest_events() if event["event"] == EventKind.START), None)
    if start is None:
        raise UserError(f"run {directory.run_id} has not started any process yet; try again when it trains")
    hosts = {host.name: host for host in directory.spec().pod.all_hosts}
    names = {file.name for file in log_files(directory, patterns)} if patterns else set()
    targets = []
    for host, processes in start["hosts"].items():
        for process in processes:
            name = process_name(host, process, len(processes))
            if name in names or (not patterns and process == 0):
                targets.append(Target(hosts[host], process, name))
    if not targets:
        raise UserError(f"{', '.join(patterns)} takes no part in the run any more; `podrun status` lists who does")
    return targets, start["attempt"]


def _profile(profiling: Profiling, steps: int, to: Path) -> None:
    profiling.order(steps)
    print(f"tracing the next {steps} steps ...", flush=True)
    for target, event in profiling.traced(lambda text: print(text, flush=True)):
        _show(profiling.bring(target, event, to))


def _show(profile: Profile) -> None:
    print(f"{profile.target.name}: steps {profile.first} to {profile.last} in {profile.folder}")
    for file in profile.files:
        print(f"  {file.relative_to(profile.folder)}  {size(file.stat().st_size)}")
    for file in profile.files:
        if file.name.endswith(".trace.json.gz"):
            print(f"open {file} at https://ui.perfetto.dev, which reads it in your browser and sends it nowhere")
    print(f"or, with `pip install xprof`: xprof --logdir {profile.folder}", flush=True)

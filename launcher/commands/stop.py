"""`podrun stop`: end a run from any shell, even if its supervisor is gone."""

from __future__ import annotations

import os
import signal
import time

from podrun.runtime.contract import ExitCode, UserError

from ..pod.run_id import counted_runs, unit_of
from ..run.background import take_over
from ..run.cleanup import end_strays
from ..rundir.events import EndEvent
from ..rundir.follow import follow
from ..rundir.queues import QueueError, load_queue
from ..rundir.runs import RunDirectory, all_runs, find_run
from ..rundir.saved import resumed_by
from ..rundir.submitted import end_of, is_final, queue_of

_LIMIT = 180.0  # seconds; a save in progress may take a minute


def stop(name: str | None, now: bool) -> int:
    """End the run like one Ctrl-C, or like two if `now`. Returns the exit code when none of its processes are left.

    Raises UserError.
    """
    directory = _one_that_runs() if name is None else find_run(name)
    if (end := end_of(directory)) is not None:
        return _finish(directory, end)
    if (job := directory.job()) is not None:
        return _stop_job(directory, job, now)
    if (machine := directory.elsewhere()) is not None:
        raise UserError(f"{directory.run_id} is supervised on {machine}; call `podrun stop {directory.run_id}` there")
    if directory.supervisor() is None:
        print(f"the supervisor of {directory.run_id} is gone; asking its hosts", flush=True)
        take_over(directory)
    pid = directory.supervisor()
    print(f"stopping {directory.run_id} ...", flush=True)
    directory.record_stop(now)
    for _ in range(2 if now else 1):
        if pid is not None:
            _signal(pid)
            time.sleep(0.2)  # two pending signals of the same kind would be delivered as one
    return _await_end(directory)


def _stop_job(directory: RunDirectory, job: str, now: bool) -> int:
    """End a submitted run. Raises UserError."""
    queue = queue_of(directory) or load_queue(directory.spec().pod.transport)  # a damaged spec says so
    directory.record_stop(now)
    try:
        if queue.end([(directory, job)], now) == [True]:
            if (end := directory.end()) is not None:
                return _report(directory, end)
            print("podrun: ended")
            return ExitCode.DONE
        print(f"stopping {directory.run_id} ({queue.title} job {job}) ...", flush=True)
    except QueueError as error:
        raise UserError(f"{directory.run_id} is the {queue.title} job {job}: {error}") from None
    return _await_end(directory)


def _finish(directory: RunDirectory, end: EndEvent) -> int:
    """End the processes that an ended run left on hosts that were unreachable at its end. Returns the exit code."""
    if not end.get("left_behind"):
        print(f"podrun: {directory.run_id} has ended already: {end['message']}")
        _print_later(directory, end)
        return ExitCode.DONE
    print("\n".join(["asking again the hosts that could not be reached:", *end["left_behind"]]), flush=True)
    left = end_strays(directory.spec(), directory, end)
    return _report(directory, {**end, "left_behind": left})


def _print_later(directory: RunDirectory, end: EndEvent) -> None:
    """Name the run that has resumed this one, if there is one."""
    if end["code"] and (later := resumed_by(directory)):
        print(f"podrun: {later[0]} has resumed it from step {later[1]}")


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # the process has ended meanwhile


def _one_that_runs() -> RunDirectory:
    running = [run for run in all_runs() if (end := end_of(run)) is None or end.get("left_behind")]
    if not running:
        raise UserError("no run of yours is running; `podrun ps --all` lists the ended ones")
    names = list(dict.fromkeys(unit_of(run.run_id) for run in running))
    if names == [running[0].run_id]:
        return running[0]
    what = f"{counted_runs(run.run_id for run in running)} {'are' if len(names) > 1 else 'is'} running"
    which = "podrun stop RUN" if len(names) > 1 else f"podrun stop {names[0]}, or a task such as {running[-1].run_id}"
    raise UserError(f"{what}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}; say which: {which}")


def _await_end(directory: RunDirectory) -> int:
    deadline = time.monotonic() + _LIMIT
    for event in follow(directory):
        if event is not None and is_final(event, directory):
            return _report(directory, event)
        if event is None and time.monotonic() > deadline:
            break
    if (end := end_of(directory)) is not None:
        return _report(directory, end)
    raise UserError(f"{directory.run_id} has not ended; `podrun stop --now {directory.run_id}` does not wait for saves")


def _report(directory: RunDirectory, end: EndEvent) -> int:
    print(f"podrun: {end['message']}")
    _print_later(directory, end)
    for row in end.get("left_behind", ()):
        print(f"podrun: could not confirm that nothing is left on {row}; `podrun stop` tries again")
    return ExitCode.UNAVAILABLE if end.get("left_behind") else ExitCode.DONE

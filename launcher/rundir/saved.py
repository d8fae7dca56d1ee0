"""Find the newest checkpoint of a workdir in the records of earlier runs, and the run that has resumed a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

from podrun.runtime.config import bucket_url
from podrun.runtime.events import EventKind

from ..plan.spec import RunSpec
from .runs import RunDirectory, all_runs

_RUNS = 1000  # number of newest runs that are searched


def saved_on_record(spec: RunSpec, directory: RunDirectory) -> str:
    """Return `STEP HOST RUN` of the newest checkpoint that a run on these hosts has saved in the workdir; otherwise empty.

    HOST is the host of process 0, on whose disk the checkpoint may be. Returns an empty string for a workdir on this machine
    or in a bucket, which does not depend on the hosts.
    """
    for run in _runs_of_workdir(spec, directory):
        for event in run.newest_events():
            if event["event"] in (EventKind.CHECKPOINT, EventKind.RESUME) and "memory" not in event:
                return f"{event['step']} {event['host']} {run.run_id}"
    return ""


def host_of_checkpoints(spec: RunSpec, directory: RunDirectory) -> str | None:
    """Return the host on whose disk alone is the newest checkpoint on record of the workdir.

    Returns None if there is no checkpoint, or all hosts see it.
    """
    for run in _runs_of_workdir(spec, directory):
        has_saved = False
        for event in run.newest_events():
            if event["event"] in (EventKind.CHECKPOINT, EventKind.RESUME) and "memory" not in event:
                has_saved = True
            elif has_saved and event["event"] == EventKind.NOTE and event.get("one_disk"):
                return event.get("host")
            elif has_saved and event["event"] == EventKind.START:
                return None
        if has_saved:
            return None
    return None


def _runs_of_workdir(spec: RunSpec, directory: RunDirectory) -> Iterator[RunDirectory]:
    """Yield the runs on these hosts with the same workdir, the newest first.

    Yields none for a workdir on this machine or in a bucket, which does not depend on the hosts.
    """
    if spec.pod.traits.files_are_here or bucket_url.url(spec.workdir):
        return
    hosts = {host.name for host in spec.pod.all_hosts}
    older = (run for run in all_runs() if run.run_id < directory.run_id)
    for run in (directory, *islice(older, _RUNS)):
        start = run.start()
        if start is None or start["workdir"] != os.fspath(spec.workdir):
            continue
        if run is not directory and hosts.isdisjoint(start["hosts"]):  # the run's own may be other nodes each time
            continue
        yield run


def resumed_by(directory: RunDirectory) -> tuple[str, int] | None:
    """Return the id of the newest later run that resumed from a checkpoint in this run's workdir, and the step; or None."""
    before = directory.start()
    for run in islice(all_runs(), _RUNS):
        if before is None or run.run_id <= directory.run_id:
            return None
        start = run.start()
        if start is not None and start["workdir"] == before["workdir"] and (step := resumed_from(run)) is not None:
            return run.run_id, step
    return None


def resumed_from(directory: RunDirectory) -> int | None:
    """Return the step of the checkpoint of an earlier run from which a run resumed; None if it began anew."""
    for event in directory.read_events():
        if event["event"] == EventKind.RESUME:
            return event["step"]
        if event["event"] in (EventKind.STEP, EventKind.RESTART):
            return None
    return None

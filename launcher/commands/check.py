"""`podrun check`: check whether a pod is ready for a run; if not, name the hosts and the reasons."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path, PurePath

from podrun.runtime.config import bucket_url
from podrun.runtime.contract import UserError

from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..pod.in_thread import InThread
from ..pod.pod import WORKDIRS, Pod
from ..preflight.base import name_hosts
from ..preflight.bucket import try_bucket
from ..preflight.run_preflight import Report, run_preflight
from ..preflight.table import render, summary
from ..request.request import workdir_on_hosts
from ..transport.base import Transport, load_transport
from ..view.terminal import overwrite_line


def check(where: PodRequest, workdir: str | None, as_json: bool, bandwidth: bool) -> int:
    """Print the table. Return 0, 2 if a finding is fatal, or 69 if a host cannot be used. Raises UserError.

    With `bandwidth`, a pod that is ready then runs an all-reduce, whose exit code is returned.
    """
    if as_json and bandwidth:
        raise UserError("--bandwidth prints the lines of a run; leave --json out, or check twice")
    without_spares = find_pod(where)
    pod = replace(without_spares, hosts=without_spares.all_hosts)  # spares must be as ready as the other hosts
    folder = _find_workdir(pod, workdir)
    progress = _Progress()
    transport = load_transport(pod)
    try:
        report = InThread(lambda: _examine(transport, pod, folder, progress), "check").result()
    finally:
        transport.close()  # ends the threads' waits
        progress.clear()
    print(_as_json(report) if as_json else _as_table(report), flush=True)
    if not bandwidth:
        return report.code
    if report.code:
        print("no all-reduce was tried")
        return report.code
    print()
    if without_spares.slice.devices == 1:
        print("the pod has one device, so there is no all-reduce to measure")
        return report.code
    from .bandwidth import measure_bandwidth

    return measure_bandwidth(without_spares)


def _examine(transport: Transport, pod: Pod, workdir: str | None, progress: _Progress) -> Report:
    report = run_preflight(transport, pod, workdir, progress)
    if workdir is not None and (bucket := bucket_url.url(PurePath(workdir))):
        try_bucket(report, transport, bucket, progress)
    return report


def _find_workdir(pod: Pod, typed: str | None) -> str | None:
    """Return the workdir on the hosts that `podrun run` would use; None for the default workdir on this machine.

    Raises UserError.
    """
    workdir = typed or pod.workdir
    if workdir is None:  # the default workdir; the hosts need not share it
        return None if pod.traits.files_are_here else f"{pod.home}/{WORKDIRS}"
    if mistakes := bucket_url.mistakes(PurePath(workdir)):
        raise UserError("\n".join(mistakes))
    if bucket := bucket_url.url(PurePath(workdir)):
        return bucket
    if pod.traits.files_are_here:
        return str(Path(workdir).expanduser().absolute())
    return str(workdir_on_hosts(pod, Path(workdir)))


def _as_table(report: Report) -> str:
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return render(report, min(shutil.get_terminal_size((100, 24)).columns, 120), colour)


def _as_json(report: Report) -> str:
    hosts = {
        host.name: report.facts.get(host.name) or {"unreachable": report.unreached[host.name]}
        for host in report.pod.hosts
    }
    return json.dumps(
        {
            "slice": report.pod.slice.name,
            "transport": report.pod.transport,
            "code": int(report.code),
            "summary": summary(report),
            "coordinator": report.coordinator,
            "open_to_here": report.open_to_here,
            "workdir": report.shared,
            "findings": [finding._asdict() for finding in report.findings],
            "hosts": hosts,
        },
        indent=1,
    )


class _Progress:
    """A progress line in a terminal, redrawn in place: hosts done, and names of pending hosts."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._writing = threading.Lock()

    def __call__(self, doing: str, done: int, total: int, waiting: list[str]) -> None:
        if not self._shown:
            return
        text = f"{doing}: {done} of {total}"
        if done and waiting:
            text += f", waiting for {name_hosts(waiting)}"
        width = shutil.get_terminal_size().columns - 1
        with self._writing:
            overwrite_line(sys.stderr, text[:width])

    def clear(self) -> None:
        if self._shown:
            overwrite_line(sys.stderr, "")

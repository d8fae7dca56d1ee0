"""`podrun checkpoints`: list and verify the checkpoints of a workdir; drop, keep, unpin or restore some."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError

from ..agent.base import to_agent
from ..agent.base.from_agent import Checkpoint, Checkpoints
from ..inventory.pod_request import PodRequest
from ..inventory.simulated import simulated_pod
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..pod.slices import parse_slice
from ..remote.ask import ask
from ..request.hosts import select_hosts
from ..results.bucket_checkpoints import ask_bucket
from ..rundir.runs import find_run
from ..transport.base import load_transport
from ..view.printable import in_one_line
from ..view.text_table import text_table
from ..view.times import size
from .pull import bucket_of

_LIMIT = 3600.0  # seconds; all checkpoints are read completely


@dataclass(frozen=True)
class CheckpointsRequest:
    """Command line of `podrun checkpoints`."""

    where: PodRequest
    """Pod or run on whose first host the workdir is; if empty, it is on this machine."""
    run: str | None
    workdir: Path | None
    """A folder, or the URL of a workdir in a bucket, which is read from this machine; None: the workdir of the run."""
    action: str | None = None
    names: tuple[str, ...] = ()


def checkpoints(request: CheckpointsRequest) -> int:
    """Carry out the action and print a table. Returns 1 if a checkpoint in use is damaged. Raises UserError."""
    _check(request)
    if request.workdir is None:
        request = _of_run(request)
    assert request.workdir is not None
    bucket = bucket_of(str(request.workdir)) if ":/" in str(request.workdir) else None
    pod, host, workdir = _on_this_machine(request.workdir) if bucket else _find(request)
    transport = load_transport(pod)

    def ask_host(workdir: Path) -> Checkpoints:
        question: to_agent.CheckpointsRequest = {
            "workdir": str(workdir),
            "action": request.action,
            "names": list(request.names),
        }
        answer: Checkpoints = ask(transport, pod, host, "checkpoints", request=question, limit=_LIMIT).answer
        return answer

    try:
        answer = ask_bucket(bucket, request.action, request.names, ask_host, print) if bucket else ask_host(workdir)
    except HostError as error:
        if not bucket:
            raise UserError(str(error)) from None
        print(f"podrun: {error}", file=sys.stderr)
        return int(ExitCode.UNAVAILABLE)
    finally:
        transport.close()
    if answer["error"] is not None:
        raise UserError(in_one_line(answer["error"]))
    for line in answer["done"]:
        print(in_one_line(line))
    if bucket and request.action is not None:
        return int(ExitCode.DONE)  # changed checkpoints were not verified again
    rows = answer["rows"]
    if request.action is None or request.action == "restore":
        print(as_table(rows))
    damaged = any(row["problem"] is not None and row["name"].isdigit() for row in rows)
    return int(ExitCode.FAILED if damaged else ExitCode.DONE)


def _of_run(request: CheckpointsRequest) -> CheckpointsRequest:
    """Return the request with the workdir of its run, or of the newest run. Raises UserError."""
    if request.where.names_pod:
        raise UserError("no workdir: say which, for example podrun checkpoints --pod pod.yaml runs/train")
    directory = find_run(request.run)
    return replace(request, run=directory.run_id, workdir=directory.spec().workdir)


def _check(request: CheckpointsRequest) -> None:
    if request.action is not None and not request.names:
        workdir = request.workdir or "runs/train"
        raise UserError(f"no step: say which, for example podrun checkpoints {workdir} {request.action} 100")
    if request.action == "restore" and len(request.names) > 1:
        raise UserError("a run goes on from one step; name one")


def _find(request: CheckpointsRequest) -> tuple[Pod, Host, Path]:
    """Return the pod, the host that sees the workdir, and the path on it. For a run this is the host of process 0."""
    assert request.workdir is not None
    if request.run is None and not request.where.names_pod:
        return _on_this_machine(request.workdir)
    pod, run = select_hosts(request.where, request.run, "checkpoints")
    host = (run.hosts(pod) if run else pod.hosts)[0]
    if pod.traits.files_are_here:
        return pod, host, request.workdir.expanduser().absolute()
    return pod, host, pod.workdir_on_hosts(request.workdir)


def _on_this_machine(workdir: Path) -> tuple[Pod, Host, Path]:
    pod = simulated_pod(parse_slice("cpu-1x1"))
    return pod, pod.hosts[0], workdir.expanduser().absolute()


def as_table(rows: list[Checkpoint]) -> str:
    """Return a line per checkpoint. Below it are the values of the job that have changed since the line above."""
    has_loss = any(row["loss"] is not None for row in rows)  # of a validation before the save
    cells = [["step", "saved", "size", *["loss"] * has_loss, "files", ""]]
    for row in rows:
        loss = "" if row["loss"] is None else f"{row['loss']:.4g}"
        first = [in_one_line(row["name"]), _saved(row["time"]), size(row["bytes"])]
        cells.append([*first, *[loss] * has_loss, _files(row), _notes(row)])
    lines = text_table(cells, right=(2, 3) if has_loss else (2,)).splitlines()
    blocks = [
        [line, *(f"    {in_one_line(change)}" for change in row["changes"])]
        for line, row in zip(lines[1:], rows, strict=True)
    ]
    return "\n".join([lines[0], *(line for block in blocks for line in block)])


def _saved(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"  # a host may send any number


def _files(row: Checkpoint) -> str:
    if row["problem"] is not None:
        return f"damaged: {in_one_line(row['problem'])}"
    return "verified" if row["verified"] else "no manifest"


def _notes(row: Checkpoint) -> str:
    aside = "" if row["name"].isdigit() else "set aside"
    return ", ".join(note for note in ("kept" if row["pinned"] else "", aside) if note)

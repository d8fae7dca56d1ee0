"""Profile a running job: ask workers for traces of their next steps, and download them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import UserError, profile_folder, profile_order
from podrun.runtime.events import EventKind, ProfileEvent

from ..agent.base.from_agent import Error
from ..agent.base.places import agent_folder
from ..agent.base.to_agent import ProfileRequest
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..remote.ask import ask
from ..remote.download import RemoteFolder
from ..rundir.follow import follow
from ..rundir.runs import RunDirectory
from ..transport.base import Transport

Say = Callable[[str], None]
_BEGUN, _DONE = "begun", "done"
"""States that a worker reports. Any other state means that it failed."""


@dataclass(frozen=True)
class Target:
    """A process to profile."""

    host: Host
    process: int
    name: str
    """Name of its log: the host's name, with the process number if the host has several processes."""


@dataclass(frozen=True)
class Profile:
    """A downloaded trace."""

    target: Target
    folder: Path
    first: int
    last: int
    """First and last traced step."""
    files: tuple[Path, ...]


class Profiling:
    """A profile of some processes of a run. Cancelled on the hosts at the end of the `with` block."""

    def __init__(
        self, transport: Transport, directory: RunDirectory, targets: Sequence[Target], profile: str, attempt: int
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._spec = directory.spec()
        self._targets = targets
        self._id = profile
        self._attempt = attempt
        self._events = follow(directory, from_end=True)
        next(self._events, None)  # skips events from before the order
        self._ordered: list[Target] = []

    def order(self, steps: int) -> None:
        """Ask each process for a trace of `steps` steps. Raises UserError, HostError."""
        for target in self._targets:
            self._ordered.append(target)
            if error := self._ask(target, steps):
                self._ordered.remove(target)
                raise UserError(f"{target.name} cannot be profiled: {error}")

    def traced(self, say: Say) -> Iterator[tuple[Target, ProfileEvent]]:
        """Yield each process when its trace is complete on its host. Raises UserError if one fails, or the run ends."""
        waiting = {target.process: target for target in self._targets}
        for event in self._events:
            if not waiting:
                return
            if event is None:
                continue
            if event["event"] in (EventKind.START, EventKind.RESTART, EventKind.END):
                names = ", ".join(target.name for target in waiting.values())
                what = "has ended" if event["event"] == EventKind.END else "has been started again"
                raise UserError(f"the run {what} before {names} had traced the steps; nothing is left of the trace")
            if event["event"] != EventKind.PROFILE or event["id"] != self._id or event["process"] not in waiting:
                continue
            target = waiting[event["process"]]
            if event["state"] == _BEGUN:
                say(f"{target.name}: tracing from step {event['step']}")
            elif event["state"] == _DONE:
                del waiting[event["process"]]
                yield target, event
            else:
                raise UserError(f"{target.name} has made no trace: {event['error']}; the run continues")
        if waiting:
            raise UserError(
                "the run has no supervisor any more; `podrun attach` takes it over, then run the command again"
            )

    def bring(self, target: Target, event: ProfileEvent, to: Path) -> Profile:
        """Download a trace into a folder below `to`. Raises HostError, FileFailedError, OSError."""
        folder = to / f"{target.name}-steps-{event['step']}-{event['last']}"
        remote = RemoteFolder(self._transport, self._pod, target.host, self._path(target, self._trace(target)))
        try:
            files = [_bring_file(remote, path, folder, target.host) for path in remote.list_files().sizes]
        finally:
            remote.close()
        return Profile(target, folder, event["step"], event["last"], tuple(files))

    def close(self) -> list[str]:
        """Cancel the requests, and remove the traces from the hosts. Returns what could not be removed."""
        left = []
        while self._ordered:
            target = self._ordered.pop()
            try:
                error = self._ask(target, 0)
            except HostError as failure:
                error = str(failure)
            if error is not None and self._directory.end() is None:
                left.append(f"{target.name}: {self._trace(target)} may be left: {error}")
        return left

    @property
    def _pod(self) -> Pod:
        return self._spec.pod

    def _trace(self, target: Target) -> str:
        return profile_folder(target.process, self._id)

    def _path(self, target: Target, name: str = "") -> str:
        folder = agent_folder(self._pod.home, self._spec.run_id, target.host.name, self._attempt)
        return os.path.join(folder, name) if name else folder

    def _ask(self, target: Target, steps: int) -> str | None:
        """Ask a worker for a trace; return its error, or None. Raises HostError."""
        request: ProfileRequest = {
            "dir": self._path(target),
            "order": profile_order(target.process),
            "trace": self._trace(target),
            "id": self._id,
            "steps": steps,
        }
        answer: Error = ask(self._transport, self._pod, target.host, "profile", request=request).answer
        return answer["error"]


def _bring_file(remote: RemoteFolder, path: str, folder: Path, host: Host) -> Path:
    incoming = remote.get(path)
    file = folder / path  # `list_files` has rejected unsafe paths
    file.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("wb") as out:
            for piece in incoming.pieces():
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != incoming.digest:
            raise HostError(host.name, f"has sent {path} with bytes that do not match its digest")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file

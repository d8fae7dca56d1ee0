"""Copy data to every host of a pod. This machine sends each piece only once or a few times; hosts pass it on."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from podrun.runtime.wording import megabytes

from ..agent.base.from_agent import FROM_BRING, FromBring
from ..agent.base.to_agent import BringRequest
from ..agent.prepare.data_set import PIECE
from ..plan.data_set import DataFile, DataSet
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.in_thread import InThread
from ..pod.pod import Host, Pod
from ..remote.open_agent import open_agent
from ..transport.base import Transport
from .conversation import HostConversation
from .end_early import Channels, Refusal
from .routes import Routes

Tell = Callable[[str, str], None]
"""Called with (host, message) for the progress, from many threads."""
Note = Callable[[str], None]
"""Called with a message to the user, from many threads."""

_LAUNCHER = "the launcher"
_PAUSE = 2.0  # seconds between two progress reports of a host ...
_PAUSE_PER_HOST = 0.25  # ... in a small pod; in a large one, the sum over all hosts stays the same


@dataclass
class Received:
    """Says that a host has the data."""

    received: dict[str, int] = field(default_factory=dict)
    """Bytes received by source: a host's name, or `the launcher`."""

    @property
    def from_launcher(self) -> int:
        return self.received.get(_LAUNCHER, 0)

    @property
    def from_hosts(self) -> int:
        return sum(self.received.values()) - self.from_launcher


def distribute_data(
    pod: Pod, transport: Transport, data: DataSet, tell: Tell, note: Note
) -> dict[str, Received | HostError]:
    """Copy the data to all hosts at once. Returns the result or the error of each host, in the order of the pod.

    A failed host does not stop the others. An interruption stops all transfers; received data stays on the hosts.
    """
    routes = Routes([host.name for host in pod.hosts])
    pieces = Pieces(data)
    secret = secrets.token_hex(32)
    request: BringRequest = {
        "home": pod.home,
        "set": data.name,
        "names": [list(name) for name in data.names],
        "files": [{"sha256": f.sha256, "size": f.size, "pieces": list(f.pieces)} for f in data.files],
        "secret": secret,
        "ports": list(pod.ports) if pod.ports else None,
        "internal": None,
    }
    open_channels = Channels()

    def bring(host: Host) -> Received:
        try:
            channel = open_channels.add(open_agent(transport, pod, host, "bring"))
            with HostConversation(host, channel, Refusal()) as agent:
                agent.send_frame({**request, "internal": host.internal})
                pause = max(_PAUSE, _PAUSE_PER_HOST * len(pod.hosts))
                return _Transfer(agent, routes, pieces, partial(tell, host.name), note, pause).run()
        finally:
            routes.leave(host.name)

    with open_channels:  # all at once, because hosts wait for each other
        answers = InThread(lambda: fan_out(bring, pod.hosts, window=len(pod.hosts)), "bring").result()
    return {host.name: _or_host_error(answer) for host, answer in zip(pod.hosts, answers, strict=True)}


class _Transfer:
    """The transfer to one host."""

    def __init__(
        self,
        agent: HostConversation,
        routes: Routes,
        pieces: Pieces,
        tell: Callable[[str], None],
        note: Note,
        pause: float,
    ) -> None:
        self._agent = agent
        self._host = agent.host.name
        self._routes = routes
        self._pieces = pieces
        self._tell = tell
        self._note = note
        self._pause = pause
        self._told = 0.0
        self._missing = 0
        self._received = Received()

    def run(self) -> Received:
        """Answer the agent's frames until the transfer is complete. Raises HostError."""
        frame: FromBring
        for frame in self._agent.frames(FROM_BRING):
            if frame["type"] == "store":
                self._assign(frame["id"])
            elif frame["type"] == "holds":
                self._missing = frame["missing"]
                self._tell(f"{megabytes(self._missing)} of {megabytes(frame['total'])} are missing")
                sources = self._routes.sources(self._host, self._missing, frame["address"], self._agent.hear)
                self._agent.send_frame({"sources": sources})
            elif frame["type"] == "want":
                self._send(frame["pieces"])
            elif frame["type"] == "got":
                self._report(frame["bytes"], frame["source"])
            elif frame["type"] == "note" or frame["type"] == "changed":
                self._note(f"{self._host}: {frame['message']}{'; it is sent again' * (frame['type'] == 'changed')}")
            elif frame["type"] == "complete":
                self._received = Received(frame["received"])
                self._tell("has the data")
                self._routes.complete(self._host, self._agent.hear)
                self._agent.send_frame({"end": True})
            elif frame["type"] == "error":
                raise HostError(self._host, f"data: {frame['what']}; {frame['remedy']}")
            elif frame["type"] == "done":
                return self._received
        raise self._agent.lost()

    def _assign(self, store: str) -> None:
        """Tell the host to receive the data; or to wait, if another host with the same home receives it."""
        holder = self._routes.holder(self._host, store, self._agent.hear)
        self._agent.send_frame({"role": "receive" if holder == self._host else "wait"})
        if holder == self._host:
            return
        if not self._routes.await_holder(holder, self._agent.hear):
            raise HostError(self._host, f"data: it shares podrun's folder with {holder}, which did not get the data")
        self._agent.send_frame({"end": True})

    def _send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number >= len(self._pieces):
                raise HostError(self._host, f"sent a malformed frame: want: no piece {number}")
            data = self._pieces.read(number, self._host)
            self._agent.send_frame({"piece": number, "bytes": len(data)})
            self._agent.send(data)

    def _report(self, received: int, source: str) -> None:
        now = time.monotonic()
        if now - self._told >= self._pause:
            self._told = now
            self._tell(f"{received / 1e6:.0f} of {megabytes(self._missing)}, from {source}")


class Pieces:
    """The pieces of a data set, read from files on this machine when they are needed."""

    def __init__(self, data: DataSet) -> None:
        self._pieces = [(file, number, digest) for file in data.files for number, digest in enumerate(file.pieces)]
        self._lock = threading.Lock()
        self._last: tuple[int, bytes] = (-1, b"")  # several hosts may ask for the same piece in turn

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, number: int, host: str) -> bytes:
        """Return a piece for a host. Raises HostError if the file has changed since the run was started."""
        with self._lock:
            if self._last[0] == number:
                return self._last[1]
        file, place, digest = self._pieces[number]
        data = _read(file, place * PIECE, host)
        now = hashlib.sha256(data).hexdigest()
        if now != digest:
            what = f"{file.path} was changed while it was copied to the hosts (SHA-256 of bytes {place * PIECE} to "
            raise HostError(
                host, f"data: {what}{place * PIECE + len(data)}: {now}, before: {digest}); run podrun again"
            )
        with self._lock:
            self._last = number, data
        return data


def _read(file: DataFile, offset: int, host: str) -> bytes:
    try:
        with open(file.path, "rb") as source:
            return os.pread(source.fileno(), PIECE, offset)
    except OSError as error:
        raise HostError(host, f"data: cannot read {file.path} here: {error.strerror}; run podrun again") from None


def _or_host_error(answer: Any) -> Received | HostError:
    if isinstance(answer, Received | HostError):
        return answer
    raise answer  # a bug in podrun

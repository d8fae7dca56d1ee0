"""Brings code and environment to every host of a pod: what is missing there, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..agent.protocol import FROM_PREPARE, LIMIT, Lines, Malformed, parse, short
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.pod import Host, Pod
from ..remote.clock import with_skew
from ..remote.open_agent import open_agent
from ..transport.base import Channel, Transport
from .bundles import Bundle
from .preparations import Channels, EndedError, Refusal, interruptible
from .requirements import (
    DEFAULT_PYTHON,
    environment_key,
    environment_request,
    requirements_text,
    worker_python,
)

__all__ = ["EndedError", "Prepared", "environment_key", "prepare_hosts", "worker_python"]

Tell = Callable[[str, str, str], None]
"""Called with (host, phase, message), from many threads; phases: reach, sync, environment, setup, checked."""

SILENCE = 300.0  # seconds without a word after which a host is given up; an agent that waits says so every few seconds
_CHUNK = 1 << 18
_HIDDEN = "(secret)"
_SHORT = 4  # characters of a value below which hiding it would hide everything


@dataclass(frozen=True)
class Prepared:
    """A host that has all it needs for a run."""

    python: str
    """Absolute path of the workers' interpreter there."""
    sent: tuple[str, ...]
    """Bundles that were not there."""
    bytes_sent: int
    facts: dict[str, Any] | None
    """What the host is like, its clock set against this machine's."""
    pruned: int = 0
    """Old bundles and environments that were removed."""


def prepare_hosts(
    pod: Pod,
    transport: Transport,
    bundles: Sequence[Bundle],
    *,
    project: str | None,
    subfolder: str,
    env: Mapping[str, str],
    facts: Mapping[str, Any] | None,
    tell: Tell,
) -> dict[str, Prepared | HostError]:
    """Makes all hosts ready at once; for each its result or what went wrong there, in the order of the pod.

    `project` is the name of the bundle that setup commands find as PODRUN_PROJECT. `env` may hold secrets. Without
    `facts` the hosts are not asked what they are like. Raises UserError, before any host is reached, for requirements
    that cannot be used. An interruption ends the commands on all hosts.
    """
    text = requirements_text(pod)
    python = pod.python or DEFAULT_PYTHON
    request = {
        "home": pod.home,
        "bundles": [bundle.name for bundle in bundles],
        "python": python,
        "requirements": None if text is None else environment_request(text, python),
        "setup": list(pod.setup),
        "env": dict(env),
        "project": project,
        "subfolder": subfolder,
        "facts": None if facts is None else dict(facts),
    }
    refused = Refusal()
    hide = _hider(value for name, value in env.items() if pod.env.get(name) != value)
    open_channels = Channels()
    by_name = {bundle.name: bundle for bundle in bundles}

    def prepare(host: Host) -> Prepared:
        def say(phase: str, message: str) -> None:
            tell(host.name, phase, hide(message))

        say("reach", host.address)
        with _Talk(host, open_channels.add(open_agent(transport, pod, host, "prepare")), refused) as talk:
            try:
                return _prepare(talk, _for_host(request, host), by_name, say)
            except EndedError:
                raise
            except HostError as error:
                raise HostError(host.name, hide(error.reason)) from None

    def prepare_or_end(host: Host) -> Prepared:
        """The run cannot start without this host: the others need not go on for minutes before the user hears of it."""
        if refused.ended:
            raise EndedError(host.name, "was not begun")
        try:
            return prepare(host)
        except EndedError:
            raise
        except HostError:
            refused.end_soon(open_channels.close)
            raise

    answers = interruptible(lambda: fan_out(prepare_or_end, pod.hosts), open_channels)
    return {host.name: _or_host_error(host, answer) for host, answer in zip(pod.hosts, answers, strict=True)}


def _for_host(request: Mapping[str, Any], host: Host) -> Mapping[str, Any]:
    facts = request["facts"]
    return request if facts is None else {**request, "facts": {**facts, "internal": host.internal}}


def _prepare(
    talk: _Talk, request: Mapping[str, Any], bundles: Mapping[str, Bundle], say: Callable[[str, str], None]
) -> Prepared:
    """The conversation with one agent. Raises HostError."""
    talk.send(json.dumps(request).encode() + b"\n")
    sent: list[Bundle] = []
    asked = 0.0
    for frame in talk.frames():
        kind = frame["type"]
        if kind == "need":
            unknown = [name for name in frame["bundles"] if name not in bundles]
            if unknown:
                raise HostError(talk.host.name, f"sent a malformed frame: need: no bundle {short(unknown[0])}")
            sent = [bundles[name] for name in frame["bundles"]]
            for bundle in sent:
                say("sync", f"{bundle.name} ({len(bundle.data) / 1e6:.1f} MB, {bundle.files} files)")
                talk.send(json.dumps({"bundle": bundle.name, "bytes": len(bundle.data)}).encode() + b"\n")
                talk.send(bundle.data)
            if not sent:
                say("sync", "all there")
        elif kind == "progress":
            say(frame["phase"], frame["message"])
        elif kind == "ready":
            asked = time.time()
            talk.send(b"{}\n")
        elif kind == "error":
            what = frame["what"]
            join = "\n" if "\n" in what else "; "
            raise HostError(talk.host.name, f"{what}{join}{frame['remedy']}")
        elif kind == "done":
            facts = frame["facts"]
            if facts is not None:
                facts = with_skew(facts, asked, time.time())
            say("checked", "ready")
            names = tuple(bundle.name for bundle in sent)
            return Prepared(frame["python"], names, sum(len(b.data) for b in sent), facts, frame["pruned"])
    raise talk.lost()


class _Talk:
    """Frames from an agent, bytes to it, and an end to waiting for one that says nothing."""

    def __init__(self, host: Host, channel: Channel, refused: Refusal) -> None:
        self.host = host
        self._channel = channel
        self._refused = refused
        self._heard = time.monotonic()
        self._silent = False
        self._over = threading.Event()

    def __enter__(self) -> _Talk:
        threading.Thread(target=self._watch, name=f"prepare-{self.host.name}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._channel.close()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, SILENCE / 4)):
            if time.monotonic() - self._heard > SILENCE:
                self._silent = True
                self._channel.close()  # which ends the wait in `frames`
                return

    def send(self, data: bytes) -> None:
        """In pieces: a slow host is not a silent one. A connection that is gone shows in `frames`, with its reason."""
        try:
            for start in range(0, len(data), _CHUNK):
                self._channel.send(data[start : start + _CHUNK])
                self._heard = time.monotonic()
        except OSError:
            pass

    def frames(self) -> Iterator[dict[str, Any]]:
        """Until the agent ends. Raises HostError for a malformed frame."""
        lines = Lines(LIMIT)
        while data := self._channel.receive():
            self._heard = time.monotonic()
            for line in lines.feed(data):
                try:
                    yield parse(line, FROM_PREPARE)
                except Malformed as why:
                    raise HostError(self.host.name, f"sent a malformed frame: {why}") from None

    def lost(self) -> HostError:
        if self._silent:
            return HostError(self.host.name, f"not a word for {SILENCE:g} s while it was prepared; is it still up?")
        if self._refused.ended:
            return EndedError(self.host.name, "was ended")
        stderr_tail = self._channel.stderr_tail()
        why = f": {stderr_tail.splitlines()[-1]}" if stderr_tail else ""
        return HostError(self.host.name, f"the connection was lost while it was prepared{why}; run podrun again")


def _hider(values: Iterator[str]) -> Callable[[str], str]:
    """Takes secrets out of what tools print; those that are the longest first, as one may be a part of another."""
    lines = {line for value in values for line in value.splitlines() if len(line) >= _SHORT}
    hidden = sorted(lines, key=len, reverse=True)

    def hide(text: str) -> str:
        for value in hidden:
            text = text.replace(value, _HIDDEN)
        return text

    return hide


def _or_host_error(host: Host, answer: Prepared | Exception) -> Prepared | HostError:
    if isinstance(answer, Prepared | HostError):
        return answer
    raise answer  # a mistake of podrun's own

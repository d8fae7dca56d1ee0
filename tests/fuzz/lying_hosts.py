"""A transport whose hosts are played by the test: honest agents, and one that says whatever it was given to say."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Sequence
from typing import Any

from podrun.launcher.agent.main import MARK
from podrun.launcher.agent.run.relay import NO_AGENT
from podrun.launcher.pod.pod import Host
from podrun.launcher.transport.base import Channel, Transport


class ScriptedChannel(Channel):
    """Says what it was given, piece by piece, and ends; what is sent to it is `heard`."""

    def __init__(
        self, pieces: Sequence[bytes], stderr_tail: str = "", heard: Callable[[bytes], None] | None = None
    ) -> None:
        self._pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for piece in (MARK, *pieces):
            if piece:
                self._pieces.put(piece)
        self._stderr_tail = stderr_tail
        self._heard = heard
        self._ended = False
        if heard is None:
            self._pieces.put(b"")

    def say(self, **frame: Any) -> None:
        self._pieces.put(json.dumps(frame).encode() + b"\n")

    def send(self, data: bytes) -> None:
        if self._heard is not None:
            self._heard(data)

    def receive(self) -> bytes:
        data = b"" if self._ended else self._pieces.get(timeout=60)
        self._ended = not data
        return data

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._pieces.put(b"")

    def stderr_tail(self) -> str:
        return self._stderr_tail

    def exit_code(self) -> int | None:
        return 0


class HonestAgent:
    """An agent without processes: what it reports is what the launcher asked for."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._number = 0
        self.channel = ScriptedChannel((), heard=self._hear)

    def _report(self, kind: str, **fields: Any) -> None:
        self.channel.say(type=kind, n=self._number, **fields)
        self._number += 1

    def _hear(self, data: bytes) -> None:
        for line in data.splitlines():
            kind = json.loads(line)["type"]
            if kind == "attach":
                self._report("hello", pid=1, python="3.11", host="h")
                self._report("ready", port=1234, address=None)
            elif kind == "go":
                self._report("started", process=self._process, pid=2)
            elif kind == "stop":
                self._report("exit", process=self._process, code=-15, error=None, asked=True)
                self._report("stopped", reason="asked to stop", left=[], kept=None, missing=0)
            elif kind == "close":
                self.channel.close()


class LyingTransport(Transport):
    """The first host is honest, the others say `lies` when they run, and `answers` to everything else."""

    def __init__(self, honest: str, lies: Sequence[bytes], answers: Sequence[bytes]) -> None:
        self._honest = honest
        self._lies = lies
        self._answers = answers

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        if host.name == self._honest:
            return HonestAgent(0).channel
        if "attach" in argv:
            return ScriptedChannel((), stderr_tail=NO_AGENT)
        return ScriptedChannel(self._lies if "run" in argv else self._answers)

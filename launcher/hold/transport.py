"""The transport of a run on a held pod: each command is a connection to the process that holds it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..agent.base.schema import Malformed
from ..plan.agent_file import agent_file
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport, load_transport
from .record import (
    HoldRecord,
    NotHeldError,
    connect,
    forget_end,
    hold_id,
    read_record,
    receive_line,
    remove_stale,
    send_line,
    shell_settings,
)
from .relay import DATA, ENDED, EOF, FINISH, receive_frame, send_frame

_ANSWER = 5.0  # seconds for the process of the hold to answer
_OPEN = 60.0  # seconds for it to start a command
_LOOK, _STILL = 1.0, 3.0  # seconds between two looks whether it answers, and until it counts as standing still


def find_hold(pod: Pod, run_id: str) -> tuple[HeldTransport | None, str]:
    """Take the hold of the pod for a run.

    Returns:
        The transport, None if there is no hold or it cannot be used; and a line that says so, empty if there is none.
    """
    id = hold_id(pod)
    try:
        record = read_record(id)
        if record.agent != agent_file()[0]:
            raise NotHeldError("it was made by another version of podrun; `podrun release` and `podrun hold` renew it")
        try:
            control = connect(record.id)
        except NotHeldError:
            remove_stale(id)
            if (ended := forget_end(id)) is not None:
                raise NotHeldError(ended.why) from None
            raise
        if pod.traits.files_are_here and (differ := _other_settings(record)):
            control.close()
            raise NotHeldError(
                f"{differ} of this shell differ from those of the shell that made it; `podrun release` and `podrun hold` "
                "here renew it"
            )
        answer = ask(control, {"ask": "use", "run": run_id})
        if "refused" in answer:
            control.close()
            raise NotHeldError(str(answer["refused"]))
        return HeldTransport(pod, record, run_id, control), _remark(record, _reasons(answer.get("cold")))
    except NotHeldError as why:
        if str(why):
            return None, f"cold start: the hold of this pod is not used: {why}"
        return None, f"cold start: the hold of this pod {ended}" if (ended := forget_end(id)) else ""


def _other_settings(record: HoldRecord) -> str:
    """Return the names of the shell's settings that differ from those of a hold, separated by commas."""
    return ", ".join(name for name, value in shell_settings().items() if record.shell.get(name) != value)


def _remark(record: HoldRecord, cold: Mapping[str, str]) -> str:
    """Return the line about a hold that is used. `cold`: hosts without a warm interpreter, with the reasons."""
    since = time.strftime("%H:%M", time.localtime(record.since))
    line = f"this pod is held since {since}: its agents and interpreters are waiting"
    if not cold:
        return line
    host, why = next(iter(cold.items()))
    others = f" and {len(cold) - 1} more" if len(cold) > 1 else ""
    return f"{line}, but not those of {host}{others}: {why}"


def ask(control: socket.socket, request: dict[str, Any], limit: float = _ANSWER) -> dict[str, Any]:
    """Return the answer of a hold's process. Raises NotHeldError."""
    control.settimeout(limit)
    try:
        send_line(control, request)
        answer = receive_line(control)
        control.settimeout(None)
        return answer
    except TimeoutError:
        control.close()
        raise NotHeldError(f"its process did not answer within {limit:g} s") from None
    except (OSError, Malformed):
        control.close()
        raise NotHeldError("its process has just ended") from None


def _reasons(cold: Any) -> dict[str, str]:
    return {str(host): str(why) for host, why in cold.items()} if isinstance(cold, dict) else {}


class HeldTransport(Transport):
    """Starts commands through the process of a hold, or by the pod's own transport if that process is gone."""

    def __init__(self, pod: Pod, record: HoldRecord, run_id: str, control: socket.socket) -> None:
        """Use a hold that has accepted the run.

        Args:
            pod: the pod.
            record: the hold.
            run_id: the run.
            control: connection to the process of the hold; the hold is free again when it is closed.
        """
        self._pod = pod
        self._record = record
        self._run_id = run_id
        self._control = control
        self._lock = threading.Lock()
        self._channels: list[HeldChannel] = []
        self._own_transport: Transport | None = None
        self._opening: set[socket.socket] = set()  # connections on which a command is being started
        self._is_closed = False
        self._is_left = False  # the process of the hold does not answer any more
        threading.Thread(target=self._watch, name="watch hold", daemon=True).start()

    def _watch(self) -> None:
        """Leave the hold if its process stands still, before the agents miss the launcher."""
        while not self._is_closed:
            try:
                with connect(self._record.id) as sock:
                    ask(sock, {"ask": "status"}, _STILL)
            except NotHeldError:
                break
            time.sleep(_LOOK)
        with self._lock:
            self._is_left = True
            for channel in self._channels:
                channel.drop()
            for sock in self._opening:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        request: dict[str, Any] = {"ask": "open", "run": self._run_id, "host": host.name, "argv": list(argv)}
        if self._pod.traits.files_are_here:  # workers inherit the environment of their launcher
            request["env"] = dict(os.environ)
        try:
            sock = connect(self._record.id)
            answer = self._ask_to_open(sock, request)
        except NotHeldError:
            return self._own().open(host, argv)
        if answer.get("opened"):
            return self._add(HeldChannel(sock))
        sock.close()
        if "error" in answer:
            raise HostError(host.name, str(answer["error"]), bool(answer.get("dropped")))
        return self._own().open(host, argv)

    def _ask_to_open(self, sock: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the hold's process. Raises NotHeldError."""
        with self._lock:
            if self._is_left:
                sock.close()
                raise NotHeldError("its process does not answer")
            self._opening.add(sock)
        try:
            return ask(sock, request, _OPEN)
        finally:
            with self._lock:
                self._opening.discard(sock)

    def _add(self, channel: HeldChannel) -> HeldChannel:
        with self._lock:
            self._channels = [other for other in self._channels if not other.is_closed]
            self._channels.append(channel)
            if self._is_closed:
                channel.close()
            elif self._is_left:
                channel.drop()
        return channel

    def _own(self) -> Transport:
        with self._lock:
            if self._own_transport is None:
                self._own_transport = load_transport(self._pod)
                if self._is_closed:
                    self._own_transport.close()
            return self._own_transport

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels, direct = self._channels, self._own_transport
        for channel in channels:
            channel.close()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if direct is not None:
            direct.close()


class HeldChannel(Channel):
    """The streams of a command that the process of a hold has started."""

    def __init__(self, sock: socket.socket) -> None:
        self.is_closed = False
        self._socket = sock
        self._at_end = False
        self._ended: dict[str, Any] | None = None
        self._reading = threading.Lock()
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        with self._sending:
            send_frame(self._socket, DATA, data)

    def finish(self) -> None:
        with self._sending, suppress(OSError):
            send_frame(self._socket, FINISH)

    def receive(self) -> bytes:
        while not self._at_end:
            frame = receive_frame(self._socket)
            if frame.kind == DATA and frame.data:
                return frame.data
            self._at_end = frame.kind in (EOF, b"")
        return b""

    def close(self) -> None:
        self.is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def drop(self) -> None:
        """Cut the connection, so that its reader sees the end and connects again."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def stderr_tail(self) -> str:
        return str(self._end().get("stderr") or "")

    def why_not_started(self) -> str | None:
        why = self._end().get("why")
        return None if why is None else str(why)

    def exit_code(self) -> int | None:
        code = self._end().get("code")
        return code if isinstance(code, int) else None

    def _end(self) -> dict[str, Any]:
        """Return what is known of the command after the end of its output; nothing if the connection was lost."""
        with self._reading:
            if self._ended is None and self._at_end:
                frame = receive_frame(self._socket)
                self._ended = {}
                if frame.kind == ENDED:
                    with suppress(ValueError):
                        self._ended = json.loads(frame.data)
            return self._ended or {}

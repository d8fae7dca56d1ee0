"""Start the agent on a host, installing it first if it is missing, or raise the reason why it does not start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..agent.base.private import ELSEWHERE
from ..agent.base.protocol import MARK
from ..plan.agent_file import NO_AGENT, agent_command, agent_file, receive_command
from ..pod.errors import HostError
from ..pod.pod import Host, Pod
from ..transport.base import Channel, Transport
from .conversation import deadline, lines, send

ANSWER_TIMEOUT = 60.0  # seconds for a host to start Python
IMAGE_TIMEOUT = 1800.0  # seconds if Python is in a container image, which may have to be downloaded and unpacked
_NOISE_LIMIT = 1 << 20  # bytes that login scripts may print


def prepare_host(
    transport: Transport, host: Host, say: Callable[[str], None], opened: Callable[[Channel], object] = lambda _: None
) -> None:
    """Run the command that makes the host able to start the agent, if the transport has one: it may pull an image.

    Args:
        transport: reaches the host.
        host: the host.
        say: shows a line about the progress.
        opened: called with the command's channel, which it may close from another thread to end the command.

    Raises:
        HostError: the command has failed.
    """
    channel = transport.prepare(host)
    if channel is None:
        return
    opened(channel)
    last = ""
    with deadline(IMAGE_TIMEOUT, channel.close) as late:
        for line in lines(channel):
            if words := line.decode(errors="replace").strip():
                last = words[-300:]
                say(last)
    code, why = channel.exit_code(), channel.why_not_started()
    channel.close()
    if late.is_set():
        raise HostError(host.name, f"its image was not there after {IMAGE_TIMEOUT / 60:g} minutes: {last}")
    if code is None:
        raise HostError(
            host.name, why or f"the connection ended while it was prepared{last and f': {last}'}", dropped=True
        )
    if code:
        raise HostError(host.name, why or f"cannot be prepared: {last or f'exit code {code}'}")


def open_agent(transport: Transport, pod: Pod, host: Host, *args: str) -> Channel:
    """Start `agent ARGS` on the host, after installing the agent if it is missing. Reconnects once if the connection drops.

    Raises HostError if the host cannot be reached, has no Python, or cannot store the file.
    """
    try:
        return _open(transport, pod, host, args)
    except HostError as error:
        if not error.dropped:
            raise
    return _open(transport, pod, host, args)  # safe to retry: the agent does nothing before it gets its spec


def _open(transport: Transport, pod: Pod, host: Host, args: Sequence[str]) -> Channel:
    for tries_left in reversed(range(2)):
        channel = transport.open(host, agent_command(pod, *args))
        rest, noise, late = _await_mark(channel, _limit(pod))
        if rest is not None:
            return Unread(channel, rest)
        code, stderr_tail = channel.exit_code(), channel.stderr_tail()  # not available once the channel is closed
        why = channel.why_not_started()
        channel.close()
        if not tries_left or NO_AGENT not in stderr_tail:
            dropped = code is None and not (why or late or stderr_tail)
            raise HostError(host.name, why or _start_failure(pod, code, stderr_tail, noise), dropped)
        _install(transport, pod, host)
    raise AssertionError("unreachable")


def _limit(pod: Pod) -> float:
    """Return how many seconds an agent may take to start."""
    return IMAGE_TIMEOUT if pod.container and pod.container.holds_agent else ANSWER_TIMEOUT


def _install(transport: Transport, pod: Pod, host: Host) -> None:
    channel = transport.open(host, receive_command(pod))
    if send(channel, agent_file()[1]):
        channel.finish()
    noise = _await_end(channel, _limit(pod))
    code, stderr_tail, why = channel.exit_code(), channel.stderr_tail(), channel.why_not_started()
    channel.close()
    if code != 0:
        raise HostError(host.name, why or _start_failure(pod, code, stderr_tail, noise))


def _await_end(channel: Channel, limit: float) -> bytes:
    """Return the output of a command after its end. Closes the channel of a command that keeps printing for too long."""
    seen = b""
    with deadline(limit, channel.close):
        while data := channel.receive():
            seen = (seen + data)[-_NOISE_LIMIT:]
    return seen


def _await_mark(channel: Channel, limit: float) -> tuple[bytes | None, bytes, bool]:
    """Read up to the mark, the first line that the agent prints.

    Returns:
        The data after the mark, or None if the mark did not arrive; the output of login scripts before the mark; and
        whether the time limit was reached.
    """
    seen = bytearray()
    with deadline(limit, channel.close) as late:
        while data := channel.receive():
            start = max(0, len(seen) - len(MARK))
            seen += data
            if (at := seen.find(MARK, start)) >= 0:
                return bytes(seen[at + len(MARK) :]), bytes(seen[:at]), False
            if len(seen) > _NOISE_LIMIT:
                break
    return None, bytes(seen), late.is_set() or len(seen) > _NOISE_LIMIT


def _start_failure(pod: Pod, code: int | None, stderr_tail: str, noise: bytes) -> str:
    """Return one line that says why the agent did not start, and what to do.

    Python prints errors on stderr. If a login shell does not start Python, it gives its reason, if any, on stdout.
    """
    last = _last_line(stderr_tail)
    words = _last_line(noise.decode(errors="replace"))
    if code == 126 and "ermission denied" in last:
        return (
            f"this user may not run {pod.agent_python} ({last}); name a Python in a folder that it may read, with "
            "`python:` in a pod file for --pod"
        )
    if code in (126, 127) or "not found" in last:
        return (
            f"no Python at {pod.agent_python!r} ({last}); give its absolute path with `python:` in a pod file for --pod"
        )
    if "UnsafeError: " in last:
        return last.partition("UnsafeError: ")[2]
    if "Errno" in last or "No space" in last:
        reason = last.rpartition("] ")[2].partition(": ")[0]
        return f"cannot write to podrun's folder {pod.home}: {reason}; {ELSEWHERE}"
    if len(noise) > _NOISE_LIMIT:  # reading stopped in the middle: the last line may be incomplete
        words = _last_line((noise.rpartition(b"\n")[0] or noise).decode(errors="replace"))
        return (
            f"its login scripts print more than {_NOISE_LIMIT >> 10} KB, and podrun's agent did not start by then; they must "
            f"print nothing where there is no terminal; the end of the output: {words}"
        )
    if code is None:
        return f"the connection ended before its agent answered{': ' + (last or words) if last or words else ''}"
    if stderr_tail:
        return f"cannot start podrun's agent with {pod.agent_python}: {last}"
    ended = f"its login shell ended with exit code {code} and did not start podrun's agent"
    if words:
        remedy = (
            "use another user that may run commands there (`user:` in a pod file for --pod), or fix its login scripts"
        )
        return f"{ended}: {words}; {remedy}"
    return f"{ended}, without a message; is there an `exit` in a login script such as ~/.bashrc?"


def _last_line(text: str) -> str:
    return next((line.strip()[-300:] for line in reversed(text.splitlines()) if line.strip()), "")


class Unread(Channel):
    """A channel that returns bytes again that have already been read from it, then new ones."""

    def __init__(self, channel: Channel, first: bytes) -> None:
        self._channel = channel
        self._first = first

    def receive(self) -> bytes:
        first, self._first = self._first, b""
        return first or self._channel.receive()

    def send(self, data: bytes) -> None:
        self._channel.send(data)

    def finish(self) -> None:
        self._channel.finish()

    def close(self) -> None:
        self._channel.close()

    def stderr_tail(self) -> str:
        return self._channel.stderr_tail()

    def why_not_started(self) -> str | None:
        return self._channel.why_not_started()

    def exit_code(self) -> int | None:
        return self._channel.exit_code()

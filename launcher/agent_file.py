"""The agent as one file, put on hosts by its content, and started there."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from functools import lru_cache
from pathlib import Path

from .agent.main import MARK
from .errors import HostError
from .pod import Host, Pod
from .transport.base import Channel, Transport

_FOLDER = Path(__file__).with_name("agent")
_START = b"""import sys
if sys.version_info < (3, 8):
    sys.exit("podrun needs Python 3.8 or newer for its agent; this is %s" % sys.version.split()[0])
from podrun_agent.main import main
main(sys.argv[1:])
"""
# Receives the file on stdin. Checks it: a lost connection looks like the end of the file. One line: csh has no other quotes.
_RECEIVE = (
    "import hashlib,os,sys; p=os.path.expanduser(sys.argv[1]); d=sys.stdin.buffer.read(); "
    "hashlib.sha256(d).hexdigest()[:16] in p or sys.exit('not all of it arrived'); "
    "os.makedirs(os.path.dirname(p),0o700,True); t=p+'.'+os.urandom(8).hex(); "
    "f=os.open(t,os.O_WRONLY|os.O_CREAT,0o600); os.write(f,d)==len(d) or sys.exit('No space left on device'); "
    "os.close(f); os.rename(t,p)"
)
ANSWER_TIMEOUT = 60.0  # seconds for a host to start Python
_NOISE_LIMIT = 1 << 20  # bytes that login scripts may print


@lru_cache(maxsize=1)
def agent_file() -> tuple[str, bytes]:
    """(name, content) of the agent as a zip that Python runs. The same sources give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _START)
        for path in sorted(_FOLDER.glob("*.py")):
            _add(archive, f"podrun_agent/{path.name}", path.read_bytes())
    data = buffer.getvalue()
    return f"{hashlib.sha256(data).hexdigest()[:16]}.pyz", data


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


def agent_command(pod: Pod, *args: str) -> tuple[str, ...]:
    """What is started on a host. Isolated and without site-packages: only the standard library can be there."""
    return (_python(pod), "-I", "-S", f"{pod.home}/agents/{agent_file()[0]}", *args)


def open_agent(transport: Transport, pod: Pod, host: Host, *args: str) -> Channel:
    """Starts `agent ARGS` on the host, after putting the agent there if it is missing.

    Raises HostError if the host cannot be reached, has no Python, or cannot store the file.
    """
    for tries_left in reversed(range(3)):
        channel = transport.open(host, agent_command(pod, *args))
        rest = _await_mark(channel)
        if rest is not None:
            return _Marked(channel, rest)
        code, complaint = channel.exit_code(), channel.complaint()  # a closed channel would not hear of them
        channel.close()
        # Python looks twice: it takes a zip that appears in between, put there by another host of the same home, for text.
        appeared = "null bytes" in complaint or "Non-UTF-8 code" in complaint  # since Python 3.11, and before
        if not tries_left or not (appeared or "can't open file" in complaint):
            raise HostError(host.name, _why_not(pod, code, complaint))
        if not appeared:
            _put(transport, pod, host)
    raise AssertionError("unreachable")


def _put(transport: Transport, pod: Pod, host: Host) -> None:
    name, data = agent_file()
    channel = transport.open(host, (_python(pod), "-I", "-S", "-c", _RECEIVE, f"{pod.home}/agents/{name}"))
    try:
        channel.send(data)
        channel.finish()
    except OSError:
        pass  # its complaint says more
    while channel.receive():
        pass
    code, complaint = channel.exit_code(), channel.complaint()
    channel.close()
    if code != 0:
        raise HostError(host.name, _why_not(pod, code, complaint))


def _await_mark(channel: Channel) -> bytes | None:
    """Drops what login scripts print; returns what follows the mark, or None if it never comes."""
    late = threading.Timer(ANSWER_TIMEOUT, channel.close)
    late.daemon = True
    late.start()
    try:
        seen = b""
        while data := channel.receive():
            seen += data
            if MARK in seen:
                return seen.partition(MARK)[2]
            if len(seen) > _NOISE_LIMIT:
                return None
        return None
    finally:
        late.cancel()


def _why_not(pod: Pod, code: int | None, complaint: str) -> str:
    """One line, with what to do."""
    last = complaint.splitlines()[-1] if complaint else ""
    if code in (126, 127) or "not found" in last:
        return f"no Python at {_python(pod)!r} ({last}); give its absolute path with `python:` in the pod file"
    if "Errno" in last or "No space" in last:
        reason = last.rpartition("] ")[2].partition(": ")[0]
        return f"cannot write to podrun's folder {pod.home}: {reason}; give another with `home:` in the pod file"
    if code is None:
        return f"the connection ended before its agent answered{': ' + last if last else ''}"
    return f"cannot start podrun's agent with {_python(pod)}: {last or f'exit code {code}'}"


def _python(pod: Pod) -> str:
    return pod.python or "python3"


class _Marked(Channel):
    """A channel whose first bytes have been read already."""

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

    def complaint(self) -> str:
        return self._channel.complaint()

    def exit_code(self) -> int | None:
        return self._channel.exit_code()

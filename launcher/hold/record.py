"""The records of held pods on this machine: one file for each hold, beside the socket of its process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..agent.base.boot import boot_id
from ..agent.base.schema import Malformed, count, loads, number, record, table, text
from ..pod.home import podrun_home, private, private_folder
from ..pod.pod import Pod
from ..transport.open_files import USER_LIMITS

HOLDS = "holds"
_LIMIT = 1 << 16  # bytes of a record, or to read at once
_LINE_LIMIT = 1 << 24  # bytes of a line on the socket, which may have the launcher's environment
_RECORD = record(
    {
        "id": text,
        "pod": text,
        "pid": count,
        "since": number,
        "idle": number,
        "agent": text,
        "host": text,
        "shell": table(text),
    }
)
_END = record({"pod": text, "at": number, "why": text})
_REMEMBERED = 86400.0  # seconds for which `podrun hold --list` shows why a hold has ended
_STATUS = {"umask": "Umask", "group": "Gid", "groups": "Groups", "capabilities": "CapPrm"}
"""Fields of /proc/self/status that new processes inherit, by names for people."""
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")


class HoldRecord(NamedTuple):
    """A held pod, as its process has noted it."""

    id: str
    pod: str
    """What is held, for people: `cpu-2x2, simulated`."""
    pid: int
    since: float
    """Seconds since 1970."""
    idle: float
    """Seconds without a run after which the hold ends."""
    agent: str
    """Name of the agent's file, which is that of podrun's version."""
    host: str
    """Name of the machine on which its process runs; others may share the folder of the records."""
    shell: dict[str, str]
    """What its processes inherit from the shell, see `shell_settings`."""


class EndedHold(NamedTuple):
    """A hold that has ended although nobody released it."""

    pod: str
    at: float
    """Seconds since 1970."""
    why: str

    def __str__(self) -> str:
        return f"ended at {time.strftime('%H:%M', time.localtime(self.at))}: {self.why}"


class NotHeldError(Exception):
    """There is no usable hold; the message says why, and is empty if none was made."""


def hold_id(pod: Pod) -> str:
    """Return the id of a pod's hold on this machine: the same for pod files that name the same hosts in the same way."""
    hosts = [[host.name, host.address, host.internal] for host in pod.all_hosts]
    named: list[Any] = [boot_id(), pod.transport, pod.slice.name, hosts, asdict(pod.ssh), pod.home]
    if pod.traits.files_are_here:  # a container may share the home of another, and not its other files
        root = os.stat("/")
        named += [root.st_dev, root.st_ino, [_link(f"/proc/self/ns/{name}") for name in _NAMESPACES]]
    return hashlib.sha256(json.dumps(named, default=str).encode()).hexdigest()[:12]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def shell_settings() -> dict[str, str]:
    """Return what a process inherits from its shell beside variables, by names for people."""
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    limits["RLIMIT_NOFILE"] = limits["RLIMIT_OFILE"] = USER_LIMITS  # podrun raises its own
    return {
        **{name: status.get(key, "").strip() for name, key in _STATUS.items()},
        "CPU affinity": str(sorted(os.sched_getaffinity(0))),
        "priority": str(os.getpriority(os.PRIO_PROCESS, 0)),
        **{name: str(limit) for name, limit in limits.items()},
    }


def is_held(pod: Pod) -> bool:
    """Return True if there is a record of a hold, which may be out of date, or of the end of one."""
    path = _path(hold_id(pod))
    return os.path.lexists(path) or os.path.lexists(_end_path(path.stem))


def read_record(id: str) -> HoldRecord:
    """Read a record. Raises NotHeldError."""
    path = _path(id)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise NotHeldError(f"{path} is not a private file of this user")
            data = file.read(_LIMIT)
        if not data:
            raise NotHeldError("it is just being made")
        read: Any = loads(data, _LIMIT)
        _RECORD(read)
    except FileNotFoundError:
        raise NotHeldError("") from None
    except OSError as error:
        raise NotHeldError(f"cannot read {path}: {error.strerror}") from None
    except Malformed as why:
        raise NotHeldError(f"{path} is not the record of a hold: {why}") from None
    return HoldRecord(**{name: read[name] for name in HoldRecord._fields})


def all_records() -> Iterator[HoldRecord | NotHeldError]:
    """Yield the holds that have a record, or why a record cannot be used."""
    try:
        names = sorted(os.listdir(podrun_home() / HOLDS))
    except OSError:
        return
    for name in names:
        if name.endswith(".json"):
            try:
                yield read_record(name.removesuffix(".json"))
            except NotHeldError as error:
                yield error


@contextmanager
def claim(id: str) -> Iterator[IO[bytes]]:
    """Lock the record of a hold, and remove it with its socket in the end. Yields the empty file.

    Raises:
        NotHeldError: another process is making or has this hold.
        OSError: the file cannot be written.
    """
    folder = private_folder(HOLDS)
    path = folder / f"{id}.json"
    while True:
        file = open(path, "ab", opener=lambda name, flags: private(name, flags | os.O_NOFOLLOW))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise NotHeldError("this pod is held already, or is just being held, by another process") from None
        if _is_same(file, path):
            break
        file.close()  # its last owner has just removed it
    try:
        file.truncate(0)
        yield file
    finally:
        if _is_same(file, path):
            for name in (path.with_suffix(".sock"), path.with_suffix(".log"), path):
                with suppress(OSError):
                    os.unlink(name)
        file.close()


def write_record(file: IO[bytes], hold: HoldRecord) -> None:
    """Write the record into the claimed file. Raises OSError."""
    file.write(json.dumps(hold._asdict()).encode())
    file.flush()


def has_record(file: IO[bytes], id: str) -> bool:
    """Return whether the claimed file is still the one that launchers find."""
    return _is_same(file, _path(id))


def remove_stale(id: str) -> None:
    """Remove what a hold has left whose process is gone, and note its end. Does nothing if the process is there."""
    with suppress(NotHeldError, OSError):
        hold = read_record(id)
        words = _last_words(_path(id).with_suffix(".log"))
        with claim(id):
            note_end(id, hold.pod, f"its process is gone{words and f' ({words})'}")
        return
    with suppress(NotHeldError, OSError), claim(id):
        pass


def _last_words(log: Path) -> str:
    """Return the line of a log that tells of a crash in native code, otherwise its last line, which may be empty."""
    try:
        with open(log, errors="replace") as file:
            lines = [line.strip() for line in file.read(_LIMIT).splitlines() if line.strip()]
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("Fatal Python error")), lines[-1] if lines else "")


def note_end(id: str, pod: str, why: str) -> None:
    """Note why a hold has ended that nobody released, for the next run and `podrun hold --list`, as far as the disk takes it.

    Only the newest end of each hold is kept.
    """
    with suppress(OSError), open(_end_path(id), "w", opener=private) as file:
        json.dump(EndedHold(pod, time.time(), why)._asdict(), file)


def forget_end(id: str) -> EndedHold | None:
    """Remove the note of the end of a hold, and return the end. Returns None if there is no note."""
    ended = _read_end(id)
    with suppress(OSError):
        os.unlink(_end_path(id))
    return ended


def all_ends() -> dict[str, EndedHold]:
    """Return the noted ends of holds by their ids. Removes notes that are older than a day."""
    ends = {}
    for path in sorted((podrun_home() / HOLDS).glob("*.ended")):
        ended = _read_end(path.stem)
        if ended is None or time.time() - ended.at > _REMEMBERED:
            forget_end(path.stem)
        else:
            ends[path.stem] = ended
    return ends


def _read_end(id: str) -> EndedHold | None:
    try:
        with open(os.open(_end_path(id), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            read: Any = loads(file.read(_LIMIT), _LIMIT)
        _END(read)
    except (OSError, Malformed):
        return None
    return EndedHold(**{name: read[name] for name in EndedHold._fields})


def _end_path(id: str) -> Path:
    return podrun_home() / HOLDS / f"{id}.ended"


def listen(id: str) -> socket.socket:
    """Return the listening socket of a claimed hold. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(id) as path:
            with suppress(FileNotFoundError):
                os.unlink(path)
            sock.bind(path)
        sock.listen(64)
    except OSError:
        sock.close()
        raise
    return sock


def connect(id: str) -> socket.socket:
    """Connect to the process of a hold. Raises NotHeldError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(id) as path:
            sock.connect(path)
        return sock
    except OSError:
        sock.close()
        raise NotHeldError("its process is gone") from None


@contextmanager
def _short_path(id: str) -> Iterator[str]:
    """Yield the path of a socket by the descriptor of its folder, because the kernel allows only 107 bytes."""
    folder = os.open(podrun_home() / HOLDS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{id}.sock"
    finally:
        os.close(folder)


def send_line(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send a request or an answer. Raises OSError."""
    sock.sendall(json.dumps(message).encode() + b"\n")


def receive_line(sock: socket.socket) -> dict[str, Any]:
    """Return the other side's next line, an object, and read nothing beyond. Raises OSError, Malformed."""
    data = b""
    while not data.endswith(b"\n"):
        seen = sock.recv(_LIMIT, socket.MSG_PEEK)
        if not seen or len(data) > _LINE_LIMIT:
            raise ConnectionError("no answer")
        data += sock.recv(seen.find(b"\n") + 1 or len(seen))
    read: Any = loads(data, _LINE_LIMIT)
    if not isinstance(read, dict):
        raise Malformed("not an object")
    return read


def _path(id: str) -> Path:
    return podrun_home() / HOLDS / f"{id}.json"


def _is_same(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except OSError:
        return False

"""The record of hosts over all runs: one file of this user, to which attempts on other machines append lines.

An attempt is in it if one of its hosts has failed, then or before, and only with such hosts. So the file stays short, and
there is none as long as no host fails.
The events of runs could not take its place: `podrun clean` removes them, and a start would have to read those of all runs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from podrun.runtime.contract import UserError

from ..agent.base.private import OTHERS_WRITE, user_name
from ..agent.base.schema import Malformed, each, loads, number, printable, record, short, table, text
from ..pod.home import podrun_home, private, private_folder
from ..pod.pod import Pod
from .host_history import AttemptOfHosts, ClearedHosts, HostEntry, HostFailure, HostHistory, HostKey, host_histories

LIMIT = 1 << 20
"""Size in bytes of the file above which its older half is dropped."""
_LINE = 256 << 10  # bytes of a line, at most
_WHAT = 300  # characters of a failure
_WAIT = 5.0  # seconds to wait for another launcher that writes at the same time

_LAST_MOMENT = 250_000_000_000  # in the year 9892


def _moment(value: Any) -> None:
    """Accept seconds since 1970, within the range of `datetime`."""
    number(value)
    if not 0 <= value < _LAST_MOMENT:
        raise Malformed(f"{short(value)}, expected seconds since 1970")


_FAILED = record({"kind": text, "what": text})
_ATTEMPT = record({"time": _moment, "run": text, "place": text, "hosts": table(text), "failed": table(_FAILED)})
_CLEARED = record({"time": _moment, "cleared": each(record({"place": text, "address": text}))})


def place_of(pod: Pod) -> str | None:
    """Return how the addresses of a pod's hosts are to be understood; None if the hosts are this machine.

    Behind another jump host, at another port, or by another ssh.config, the same address is another machine.
    """
    if pod.traits.files_are_here:
        return None
    jump = f" via {pod.ssh.jump}" if pod.ssh.jump else ""
    port = f" port {pod.ssh.port}" if pod.ssh.port not in (None, 22) else ""
    return f"{pod.transport}{jump}{port}{f' by {pod.ssh.config}' if pod.ssh.config else ''}"


def record_path() -> Path:
    return podrun_home() / "hosts.jsonl"


def read_hosts() -> tuple[dict[HostKey, HostHistory], int]:
    """Return the history of each host, and the number of damaged lines, which are ignored.

    Raises:
        UserError: the file cannot be read, or another user could have written it.
    """
    damaged = 0
    entries: list[HostEntry] = []
    for line in _lines():
        try:
            entries.append(_parse(line))
        except Malformed:
            damaged += 1
    return host_histories(entries, time.time()), damaged


def note_attempt(attempt: AttemptOfHosts) -> bool:
    """Append an attempt, with those of its hosts that have failed, then or before. Returns False if there are none.

    Raises UserError, OSError.
    """
    known = {key for key, history in read_hosts()[0].items() if history.failures}
    hosts = {
        address: name
        for address, name in attempt.hosts.items()
        if address in attempt.failed or HostKey(attempt.place, address) in known
    }
    if not hosts:
        return False
    failed = {
        address: {"kind": failure.kind, "what": failure.what[:_WHAT]} for address, failure in attempt.failed.items()
    }
    _append({"time": attempt.time, "run": attempt.run, "place": attempt.place, "hosts": hosts, "failed": failed})
    return True


def clear_hosts(hosts: Sequence[HostKey]) -> None:
    """Let the failures of these hosts so far count no more. Raises UserError, OSError."""
    _append({"time": time.time(), "cleared": [key._asdict() for key in hosts]})


def _lines() -> Iterator[bytes]:
    """Yield the lines of the file, each cut at a limit. Raises UserError."""
    try:
        with record_path().open("rb") as file:
            _check_owner(file)
            while line := file.readline(_LINE + 1):
                if line.strip():
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"cannot read {record_path()}, the record of hosts: {error.strerror}; make it readable to you, or remove it, "
            "which forgets all failures of hosts"
        ) from None


def _check_owner(file: IO[bytes]) -> None:
    """Raise UserError if another user could have written the file: its content decides which hosts are used."""
    status = os.fstat(file.fileno())
    if status.st_uid != os.geteuid():
        raise UserError(
            f"{record_path()}, the record of hosts, belongs to {user_name(status.st_uid)}; remove it, which forgets all "
            "failures of hosts, or set PODRUN_HOME to a folder of your own"
        )
    if status.st_mode & OTHERS_WRITE:
        raise UserError(
            f"other users may write {record_path()}, the record of hosts; `chmod 600` it, or remove it, which forgets all "
            "failures of hosts"
        )


def _parse(line: bytes) -> HostEntry:
    """Return the entry of a line. Raises Malformed."""
    value: Any = loads(line, _LINE)
    if b"\\u" in line:
        value = printable(value)
    if isinstance(value, dict) and "cleared" in value:
        _CLEARED(value)
        return ClearedHosts(tuple(HostKey(host["place"], host["address"]) for host in value["cleared"]))
    _ATTEMPT(value)
    time, run = value["time"], value["run"]
    failed = {
        address: HostFailure(failure["kind"], failure["what"], time, run)
        for address, failure in value["failed"].items()
        if address in value["hosts"]
    }
    return AttemptOfHosts(time, run, value["place"], value["hosts"], failed)


def _append(value: dict[str, Any]) -> None:
    """Append a line, whole, although several launchers write at the same time. Raises UserError, OSError."""
    private_folder()
    line = json.dumps(value).encode() + b"\n"
    if len(line) > _LINE:
        raise OSError(f"a line would have {len(line)} bytes")
    with _locked() as is_locked, open(record_path(), "a+b", buffering=0, opener=private) as file:
        _check_owner(file)
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # a full disk has cut off the last line
            line = b"\n" + line
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if is_locked and size > LIMIT:
            _drop_older_half(file)


@contextmanager
def _locked() -> Iterator[bool]:
    """Hold the lock of writers. Yields False if it could not be had in time: an appended line is whole all the same."""
    with open(record_path().with_suffix(".lock"), "ab", opener=private) as lock:
        deadline = time.monotonic() + _WAIT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.01)
            except OSError:  # a file system without locks
                yield False
                return
        yield True


def _drop_older_half(file: IO[bytes]) -> None:
    """Replace the file by its newer half. Raises OSError."""
    size = file.seek(0, os.SEEK_END)
    file.seek(size - LIMIT // 2)
    newer = file.read().partition(b"\n")[2]
    path = record_path().with_suffix(".new")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as replacement:
        replacement.write(newer)
    path.replace(record_path())

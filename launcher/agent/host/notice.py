"""Watch for the preemption notice of this machine on Google Compute Engine's metadata server.

See https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice and .../instances/create-use-preemptible.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Dict, Optional, Set, Tuple

from ..base.processes import die_with_parent, parent
from .google import ask_metadata, metadata_server

_WAIT = 60  # seconds that the server keeps a request open until a value changes
_RETRY = 5.0  # seconds after a failed request
_LIMIT = 64  # bytes of a reason

# With MIGRATE_ON_HOST_MAINTENANCE the machine continues on other hardware.
_KEYS: Dict[str, Tuple[str, Callable[[str], bool]]] = {
    "maintenance-event": ("maintenance event", lambda value: value.startswith("TERMINATE")),
    "preempted": ("preemption of the machine", lambda value: value == "TRUE"),
}
"""Maps each key of the instance to the reason for a stop, and a function that tells which values mean one."""


class Notice:
    """A child process that watches for the notice. It then writes the reason to a pipe, and sends this process SIGTERM."""

    def __init__(self) -> None:
        self._reasons: Optional[int] = None
        self.watchers: Set[int] = set()
        """The pid of the child, which outlives an attempt; empty without one."""

    def watch(self) -> None:
        """Start the child, once, on a machine of Google's. Call it before this process has threads or a namespace."""
        server = metadata_server()
        if server is None or self.watchers:
            return
        self._reasons, write_end = os.pipe()
        os.set_blocking(self._reasons, False)
        agent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent()
                if parent() == agent:
                    _run_watcher(server, write_end, agent)
            finally:
                os._exit(0)
        self.watchers = {pid}
        os.close(write_end)

    def reason(self) -> Optional[str]:
        """Return the reason of the notice; None if there was none."""
        try:
            return (os.read(self._reasons, _LIMIT).decode() or None) if self._reasons is not None else None
        except BlockingIOError:
            return None


def _run_watcher(server: str, write_end: int, agent: int) -> None:
    """Watch all keys, and signal the agent when one means a stop."""
    import threading

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, write_end)  # the agent's sockets must not stay open in this process
    os.closerange(write_end + 1, 256)
    noticed = threading.Event()

    def watch(key: str) -> None:
        reason, means_stop = _KEYS[key]
        etag = None
        while True:
            try:
                value, etag = _value(server, key, etag)
                if means_stop(value.strip()):
                    break
            except (OSError, ValueError):  # urllib's errors are OSErrors
                time.sleep(_RETRY)
        os.write(write_end, reason.encode())
        noticed.set()

    for key in _KEYS:
        threading.Thread(target=watch, args=(key,), daemon=True).start()
    noticed.wait()
    os.kill(agent, signal.SIGTERM)


def _value(server: str, key: str, etag: Optional[str]) -> Tuple[str, Optional[str]]:
    """Return the value of a key and its tag. With `etag`, waits until the value has another tag."""
    key = "instance/" + key
    if etag is not None:
        key += "?wait_for_change=true&timeout_sec=%d&last_etag=%s" % (_WAIT, etag)
    value, headers = ask_metadata(server, key, timeout=_WAIT + 10, limit=_LIMIT)
    return value.decode(), headers.get("ETag", "0")

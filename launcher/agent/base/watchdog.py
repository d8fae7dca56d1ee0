"""End this process when its connection is gone, even if it is blocked."""

from __future__ import annotations

import os
import select
import threading
import time

from .processes import kill_descendants, reap

GRACE = 5.0  # seconds for a command that notices the end itself, to clean up


def end_with_connection() -> None:
    """End this process when its connection ends: a thread watches stdin and stdout, without reading."""
    threading.Thread(target=_watch, name="watchdog", daemon=True).start()


def _watch() -> None:
    poll = select.poll()
    # Pipes report a closed other end (POLLHUP, POLLERR) in any case; sockets only on request.
    for fd in (0, 1):
        poll.register(fd, select.POLLRDHUP)
    poll.poll()
    time.sleep(GRACE)
    killer = threading.Thread(target=kill_descendants, args=(reap,), daemon=True)
    killer.start()
    killer.join(GRACE)
    os._exit(1)

"""End a command when its connection is gone, whatever it is doing: it may read or wait where nothing ever comes."""

from __future__ import annotations

import os
import select
import threading
import time

from .processes import kill_descendants, reap

GRACE = 5.0  # seconds for a command that notices the end itself to tidy up


def end_with_connection() -> None:
    """Watch stdin and stdout from now on, in a thread; nothing is read from them."""
    threading.Thread(target=_watch, name="watchdog", daemon=True).start()


def _watch() -> None:
    poll = select.poll()
    # That nobody writes to stdin, or reads from stdout, any more is told without being asked for, but for sockets.
    for fd in (0, 1):
        poll.register(fd, select.POLLRDHUP)
    poll.poll()
    time.sleep(GRACE)
    killer = threading.Thread(target=kill_descendants, args=(reap,), daemon=True)
    killer.start()
    killer.join(GRACE)
    os._exit(1)

"""Create run ids. Imports only fast modules: simulated workers load this file first."""

from __future__ import annotations

import secrets
import time


def new_run_id() -> str:
    """Return a run id that sorts by time, down to 4 ms: `20261123-151707-c47a9f`.

    The first two of the last six digits are the fraction of the second, so runs of one machine sort in order. The other
    four are random, so that runs that start at the same moment on several machines have different ids.
    """
    now = time.time()
    fraction = int(now % 1 * 256)
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{fraction:02x}{secrets.token_hex(2)}"

"""Name a run. Nothing here takes long to import: the workers of a simulated pod are started with it ahead of all else."""

from __future__ import annotations

import secrets
import time


def new_run_id() -> str:
    """Return a run id that sorts by time; the random part separates two runs of one second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"

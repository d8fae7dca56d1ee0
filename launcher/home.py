"""Where podrun keeps its files on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from podrun.runtime.contract import UserError


def podrun_home() -> Path:
    """Where run directories live: $PODRUN_HOME, or ~/.podrun."""
    try:
        return Path(os.environ.get("PODRUN_HOME") or "~/.podrun").expanduser().absolute()
    except RuntimeError:
        raise UserError("there is no home directory for podrun's files; set PODRUN_HOME to a folder") from None

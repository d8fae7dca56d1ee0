"""The run directory on the launcher's side: plan, events, one log per host."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from podrun.runtime.contract import Event, UserError


def podrun_home() -> Path:
    """Where run directories live: $PODRUN_HOME, or ~/.podrun."""
    try:
        return Path(os.environ.get("PODRUN_HOME") or "~/.podrun").expanduser().absolute()
    except RuntimeError:
        raise UserError("there is no home directory for podrun's files; set PODRUN_HOME to a folder") from None


def new_run_id() -> str:
    """Sorts by time; the random part keeps two runs of one second apart."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class RunDirectory:
    """Everything that one run leaves on the launcher's machine."""

    path: Path

    @classmethod
    def create(cls, run_id: str) -> RunDirectory:
        """Raises UserError if it cannot be made."""
        path = podrun_home() / "runs" / run_id
        try:
            (path / "logs").mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise UserError(
                f"cannot make the run directory {path}: {error.strerror}; set PODRUN_HOME to a folder you can write to"
            ) from None
        return cls(path)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    def log(self, host: str) -> Path:
        return self.logs / f"{host}.log"


class Recorder:
    """Appends every event to the run directory's events.jsonl."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", buffering=1)

    def event(self, event: Event) -> None:
        try:
            self._file.write(json.dumps(event) + "\n")
        except OSError:
            pass  # a full disk: the logs are on it as well, and fail the run with that cause

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass

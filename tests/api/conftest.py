"""A program's session, alone, in a folder of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podrun import session


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forget the session, as a program that is started again has none. Nothing of a pod is in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("PODRUN_COORDINATOR", "PODRUN_WORKDIR"):
        monkeypatch.delenv(name, raising=False)

    def forget() -> None:
        if session._current is not None:  # its lock stays, for it belongs to this process
            session._current.workdir.lock.unlink(missing_ok=True)
        monkeypatch.setattr(session, "_current", None)

    forget()
    handler = signal.getsignal(signal.SIGTERM)
    yield forget
    signal.signal(signal.SIGTERM, handler)

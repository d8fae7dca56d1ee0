"""A program's session, alone, in a folder of its own."""

from __future__ import annotations

import gc
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
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield forget
    gc.collect()  # loops that were left by an exception give their handlers back now, and not during another test
    for number, handler in before.items():
        signal.signal(number, handler)

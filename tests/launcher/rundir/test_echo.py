"""The part that is shown of a line that a progress bar has written over."""

from __future__ import annotations

import pytest

from podrun.launcher.rundir.echo import last_state


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", "plain"),
        (b"", ""),
        (b"windows\r", "windows"),
        (b" 10%\r 50%\r100%", "100%"),
        (b" 10%\r 50%\r100%\r", "100%"),
        (b"\r\r", ""),
        (
            b"W1127 09:11:10.422231      18 preemption_notifier.cc:90] SIGTERM caught at 2026-11-27T09:11:10.42+00:00",
            "the process was asked to stop: it ends after its step",
        ),
        (
            b"what is preemption_notifier.cc:90] SIGTERM caught at ?",
            "what is preemption_notifier.cc:90] SIGTERM caught at ?",
        ),
        (b"\xc3\xa4\xff", "ä\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_a_progress_bar_shows_last(line: bytes, shown: str) -> None:
    assert last_state(line) == shown

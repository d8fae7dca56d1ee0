"""The part that is shown of a line that a progress bar has written over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.rundir.echo import Echo, last_state


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


NESTED = """
from tqdm import tqdm
for epoch in tqdm(range(2), desc="epochs", mininterval=0):
    for batch in tqdm(range(3), desc=f"batches {epoch}", mininterval=0):
        for part in tqdm(range(2), desc="parts", mininterval=0, leave=False):
            pass
print("end", flush=True)
"""


def test_nested_progress_bars_are_shown_at_their_end(tmp_path: Path) -> None:
    """Each bar that stays has a line; no state in between of an inner one, and no escape codes."""
    pytest.importorskip("tqdm")
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", NESTED], stdout=log, stderr=log, check=True)
    echo, shown = Echo(tmp_path / "log", 0), []
    while (text := echo.next(1 << 16, at_end=True)) is not None:
        shown += text.splitlines()
    assert "\x1b" not in "".join(shown) and shown[-1] == "end"
    assert [line.split(":")[0] for line in shown if "batches" in line] == ["batches 0", "batches 1"]
    assert all("3/3" in line for line in shown if "batches" in line), shown
    assert not any("parts" in line for line in shown)

"""Events of a run as they are recorded: how other shells watch a run that somebody else supervises."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from podrun.runtime.contract import Event, EventKind

from .runs import RunDirectory

_LOOK = 0.2  # seconds between two looks at the record


def follow(directory: RunDirectory) -> Iterator[Event | None]:
    """All events so far, then each as it comes, until the run has ended or nobody supervises it. None: a moment passed."""
    rest = ""
    with directory.events.open(encoding="utf-8") as file:
        while True:
            alone = directory.supervisor() is None  # asked before reading: what it wrote last is then seen
            text = rest + file.read()
            *lines, rest = text.split("\n")
            for line in lines:
                event: Event = json.loads(line)
                yield event
                if event["event"] == EventKind.END:
                    return
            if alone:
                return
            yield None
            time.sleep(_LOOK)

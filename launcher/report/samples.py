"""Choose the samples of a run that its page shows. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.events import EventKind

from ..rundir.events import Event
from .model import Seen

_LAST = 3  # samples of each name that are shown
_MOST = 24  # names


def last_samples(events: Sequence[Event]) -> list[Seen]:
    """Return the last samples of each name, the newest first."""
    by_name: dict[str, list[Seen]] = {}
    for event in events:
        if event["event"] == EventKind.SAMPLE:
            seen = Seen(event["name"], event["step"], event["form"], event["content"])
            before = [one for one in by_name.get(seen.name, []) if one.step < seen.step]  # a resumed run repeats steps
            by_name[seen.name] = [*before, seen][-_LAST:]
    return [seen for name in list(by_name)[:_MOST] for seen in reversed(by_name[name])]

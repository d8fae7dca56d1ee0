"""The feeds and followers of a server: a follower per run that is watched, a feed per page."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from podrun.runtime.contract import UserError

from ..rundir.runs import RunDirectory, find_run
from .feed import Feed
from .follower import Follower
from .index_source import IndexSource
from .overlay_source import MAX_RUNS, OverlaySource
from .run_source import RunSource


class Pages:
    """Feeds by run id or set of run ids, created on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[str, Follower] = {}
        self._runs: dict[str, Feed] = {}
        self._overlays: dict[tuple[str, ...], Feed] = {}
        self.index = Feed(IndexSource())

    def of_run(self, name: str) -> Feed:
        """Return the feed of a run's page. Raises UserError if there is no such run."""
        with self._lock:
            if name in self._runs:  # even if it was removed since
                return self._runs[name]
            directory = find_run(name)
            feed = self._runs.get(directory.run_id) or Feed(RunSource(self._follower(directory)))
            return self._runs.setdefault(directory.run_id, feed)

    def of_runs(self, names: Sequence[str]) -> Feed:
        """Return the feed of a page of several runs.

        Raises UserError if one does not exist, or there are none or too many.
        """
        if not 0 < len(set(names)) <= MAX_RUNS:
            raise UserError(f"choose up to {MAX_RUNS} runs in the list, not {len(set(names))}")
        with self._lock:
            directories = {directory.run_id: directory for directory in map(find_run, names)}
            key = tuple(sorted(directories))
            if key not in self._overlays:
                self._overlays[key] = Feed(OverlaySource([self._follower(directories[run]) for run in key]))
            return self._overlays[key]

    def _follower(self, directory: RunDirectory) -> Follower:
        return self._followers.setdefault(directory.run_id, Follower(directory))

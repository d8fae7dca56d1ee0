"""Decide from which host each host gets data: a tree, in which every host has its parent's parent to turn to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

CHILDREN = 2  # hosts that get the data from the same host: each takes a share of its network
_TICK = 1.0


class Routes:
    """What the hosts of a transfer have told so far. Hosts wait here for each other, each in its own thread.

    While it waits, a thread calls its `tick` once a second. A host that leaves is waited for no longer.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._changed = threading.Condition()
        self._stores: dict[str, str] = {}
        self._missing: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        self._complete: set[str] = set()
        self._gone: set[str] = set()
        # Hosts of which something is still expected: their store, how much they lack, that they are complete.
        self._unknown, self._unmeasured, self._unsettled = set(hosts), set(hosts), set(hosts)

    def holder(self, host: str, store: str, tick: Callable[[], None]) -> str:
        """Return the host that gets the data for all hosts with this store: the first of them."""
        with self._changed:
            self._stores[host] = store
            self._unknown.discard(host)
            self._wait(lambda: not self._unknown, tick)
            holder = next(name for name in self._hosts if self._stores.get(name) == store)
            if holder != host:
                self._unmeasured.discard(host)
                self._unsettled.discard(host)
            self._changed.notify_all()
            return holder

    def await_holder(self, holder: str, tick: Callable[[], None]) -> bool:
        """Wait for the host that gets the data for this one. Return whether it has it."""
        with self._changed:
            self._wait(lambda: holder not in self._unsettled, tick)
            return holder in self._complete

    def sources(self, host: str, missing: int, address: str | None, tick: Callable[[], None]) -> list[dict[str, str]]:
        """Return the hosts to turn to, the nearest first: parent, grandparent and so on. The launcher is the last resort."""
        with self._changed:
            self._missing[host] = missing
            if address:
                self._addresses[host] = address
            self._unmeasured.discard(host)
            self._wait(lambda: not self._unmeasured, tick)
            # A heap, in which those that lack the least are nearest to the root. The sort is stable: else the pod's order.
            tree = sorted((name for name in self._hosts if name in self._missing), key=lambda name: self._missing[name])
            place = tree.index(host) if missing else 0
            parents = []
            while place > 0:
                place = (place - 1) // CHILDREN
                if tree[place] in self._addresses and tree[place] not in self._gone:
                    parents.append({"host": tree[place], "address": self._addresses[tree[place]]})
            return parents

    def complete(self, host: str, tick: Callable[[], None]) -> None:
        """Wait until no host needs this one, which has all data, any more."""
        with self._changed:
            self._complete.add(host)
            self._unsettled.discard(host)
            self._wait(lambda: not self._unsettled, tick)

    def leave(self, host: str) -> None:
        """Expect nothing more of the host: it is done, or lost."""
        with self._changed:
            self._gone.add(host)
            for expected in (self._unknown, self._unmeasured, self._unsettled):
                expected.discard(host)
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], tick: Callable[[], None]) -> None:
        self._changed.notify_all()
        while not self._changed.wait_for(ready, _TICK):
            tick()

"""Decide from which host each host receives data. They form a tree: if its parent fails, a host asks the parent's parent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..agent.base.to_agent import Source

CHILDREN = 2  # hosts that receive from the same host, and so share its network
_TICK = 1.0


class Routes:
    """State of a data transfer: what each host has reported. Each host has a thread, which waits here for other hosts.

    A waiting thread calls its `tick` once a second. It no longer waits for hosts that have left.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = tuple(hosts)
        self._changed = threading.Condition()
        self._stores: dict[str, str] = {}
        self._missing: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        self._complete: set[str] = set()
        self._gone: set[str] = set()
        # hosts that have not yet reported: their store; how much they lack; that they are complete
        self._unknown, self._unmeasured, self._unsettled = set(hosts), set(hosts), set(hosts)

    def holder(self, host: str, store: str, tick: Callable[[], None]) -> str:
        """Return the host that receives the data for all hosts with the same store: the first of them."""
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
        """Wait for the host that receives the data for this one. Returns True if that host has all data."""
        with self._changed:
            self._wait(lambda: holder not in self._unsettled, tick)
            return holder in self._complete

    def sources(self, host: str, missing: int, address: str | None, tick: Callable[[], None]) -> list[Source]:
        """Return the hosts to fetch from, the nearest first: parent, grandparent and so on.

        The launcher sends what they cannot.

        Args:
            host: the host that fetches.
            missing: number of bytes that it lacks.
            address: address at which it serves other hosts; None: it serves none.
            tick: called once a second.
        """
        with self._changed:
            self._missing[host] = missing
            if address:
                self._addresses[host] = address
            self._unmeasured.discard(host)
            self._wait(lambda: not self._unmeasured, tick)
            # a heap: hosts that lack the least are nearest to the root; the stable sort keeps the pod's order otherwise
            tree = sorted((name for name in self._hosts if name in self._missing), key=lambda name: self._missing[name])
            place = tree.index(host) if missing else 0
            parents: list[Source] = []
            while place > 0:
                place = (place - 1) // CHILDREN
                if tree[place] in self._addresses and tree[place] not in self._gone:
                    parents.append({"host": tree[place], "address": self._addresses[tree[place]]})
            return parents

    def complete(self, host: str, tick: Callable[[], None]) -> None:
        """Record that a host has all data, and wait until no other host needs it."""
        with self._changed:
            self._complete.add(host)
            self._unsettled.discard(host)
            self._wait(lambda: not self._unsettled, tick)

    def leave(self, host: str) -> None:
        """Record that a host is done or lost, so that no other host waits for it."""
        with self._changed:
            self._gone.add(host)
            for expected in (self._unknown, self._unmeasured, self._unsettled):
                expected.discard(host)
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], tick: Callable[[], None]) -> None:
        self._changed.notify_all()
        while not self._changed.wait_for(ready, _TICK):
            tick()

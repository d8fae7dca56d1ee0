"""Ask again and again whether something holds for all hosts or processes, without looking at all of them each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Every(Generic[T]):
    """A condition on many items, asked after every message of ten thousand hosts.

    It remembers an item for which the condition does not hold, and looks at others only once it holds for that one.
    Items may change in any way meanwhile.
    """

    def __init__(self, items: Iterable[T], holds: Callable[[T], bool]) -> None:
        self._items = list(items)
        self._holds = holds
        self._at = 0

    def __call__(self) -> bool:
        """Return True if the condition holds for every item now."""
        for items in (range(self._at, len(self._items)), range(len(self._items))):
            for number in items:
                if not self._holds(self._items[number]):
                    self._at = number
                    return False
        self._at = 0
        return True

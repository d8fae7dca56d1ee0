"""Call a function on all hosts at once, with a cap on concurrency, and return a result or exception per host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

H = TypeVar("H")
R = TypeVar("R")

WINDOW = 64


def fan_out(function: Callable[[H], R], hosts: Sequence[H], window: int = WINDOW) -> list[R | Exception]:
    """Call `function` with every host, at most `window` at once. Return results or exceptions in the order of `hosts`."""
    if not hosts:
        return []

    def ask(host: H) -> R | Exception:
        try:
            return function(host)
        except Exception as error:
            return error

    with ThreadPoolExecutor(min(window, len(hosts))) as pool:
        return list(pool.map(ask, hosts))

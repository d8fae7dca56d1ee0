"""f(host) on all hosts at once: a cap on how many, and for each host its result or its exception."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

H = TypeVar("H")
R = TypeVar("R")

WINDOW = 64


def fan_out(function: Callable[[H], R], hosts: Sequence[H], window: int = WINDOW) -> list[R | Exception]:
    """`function(host)` for every host, `window` at a time; answers in the order of `hosts`."""
    if not hosts:
        return []

    def ask(host: H) -> R | Exception:
        try:
            return function(host)
        except Exception as error:
            return error

    with ThreadPoolExecutor(min(window, len(hosts))) as pool:
        return list(pool.map(ask, hosts))

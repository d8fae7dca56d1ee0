"""Start what a simulated run needs before its job is read; nothing here takes long to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError

if TYPE_CHECKING:
    from ..remote.prestart import HeadStart


@contextmanager
def head_start(slice: str | None, count: int = 1) -> Iterator[HeadStart | None]:
    """Give the transport of the simulated pod of so many slices, whose agents start meanwhile; None if there is none.

    At the end of the block nothing of it is left that no run has taken over.
    """
    ahead = _start(slice, count) if slice else None
    try:
        yield ahead
    finally:
        if ahead:
            ahead.close()


def _start(slice: str, count: int) -> HeadStart | None:
    from ..inventory.simulated import simulated_pod
    from ..pod.run_id import new_run_id
    from ..pod.slices import parse_slice, several_slices
    from ..remote.prestart import HeadStart

    try:
        return HeadStart(simulated_pod(several_slices(parse_slice(slice), count)), new_run_id())
    except UserError:  # it is found again, with the other mistakes
        return None

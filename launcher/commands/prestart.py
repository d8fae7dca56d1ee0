"""Start the agents of a simulated run before its job is read. Imports only fast modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError

if TYPE_CHECKING:
    from ..remote.prestart import Prestart


@contextmanager
def prestart(slice: str | None, count: int = 1) -> Iterator[Prestart | None]:
    """Start the agents of a simulated pod in the background, and yield its transport; None without a valid slice.

    At the end of the `with` block, agents that no run has taken over are ended.
    """
    prestarted = _start(slice, count) if slice else None
    try:
        yield prestarted
    finally:
        if prestarted:
            prestarted.close()


def _start(slice: str, count: int) -> Prestart | None:
    from ..hold.record import is_held
    from ..inventory.simulated import simulated_pod
    from ..pod.run_id import new_run_id
    from ..pod.slices import parse_slice, several_slices
    from ..remote.prestart import Prestart

    try:
        pod = simulated_pod(several_slices(parse_slice(slice), count))
        return None if is_held(pod) else Prestart(pod, new_run_id())
    except UserError:  # the main path reports it, with the other mistakes
        return None

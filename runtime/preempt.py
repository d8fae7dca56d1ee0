"""A request to stop, seen by all processes at the same step."""

from __future__ import annotations

from jax.experimental import multihost_utils


class Preempted(Exception):
    """Raised at the step at which all processes stop, after the checkpoint was saved."""


class StopRequest:
    """SIGTERM to any process becomes a stop of all of them at one common point.

    JAX's preemption service takes SIGTERM over and agrees on the point:
    https://docs.jax.dev/en/latest/jax.experimental.multihost_utils.html (reached_preemption_sync_point).
    It counts calls, so every process must make the same ones; a call takes less than a microsecond.
    """

    def __init__(self) -> None:
        self._calls = 0

    def reached(self) -> bool:
        self._calls += 1
        return multihost_utils.reached_preemption_sync_point(self._calls)

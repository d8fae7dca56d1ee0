"""Phases of hosts and processes in words for people."""

from __future__ import annotations

from podrun.runtime.lines import PHASES

_WORDS = {
    "reach": "reaching the host",
    "sync": "bringing the code up to date",
    "environment": "building the environment",
    "setup-commands": "running the setup commands",
    "checked": "checked",
    "data": "bringing the data",
    "hello": "agent started",
    "ready": "ready",
    "started": "starting Python and JAX",
    **PHASES,
    "running": "running",
    "exited": "exited",
    "stopped": "stopped",
    "lost": "lost",
}


def phase_words(phase: str) -> str:
    """Return a phase in words for people."""
    return _WORDS.get(phase, phase)

"""Phases of hosts and processes in words for people."""

from __future__ import annotations

from podrun.runtime.lines import PHASES, PROGRAM_PHASES

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


def phase_words(phase: str, *, is_program: bool = False) -> str:
    """Return a phase in words for people. `is_program`: of a user program."""
    return (PROGRAM_PHASES if is_program and phase in PROGRAM_PHASES else _WORDS).get(phase, phase)

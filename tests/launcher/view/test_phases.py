"""Phases in words."""

from __future__ import annotations

from podrun.launcher.view.phases import phase_words
from podrun.runtime.contract import Phase


def test_a_program_prepares_and_compiles_nothing_that_podrun_knows_of() -> None:
    """A loop of its own stays in `setup` to its end."""
    assert phase_words(Phase.SETUP, is_program=True) == "joined the pod"
    assert phase_words(Phase.COMPILE, is_program=True) == "in the first step"
    assert phase_words(Phase.SETUP) == "preparing data and model"


def test_all_phases_have_words() -> None:
    for phase in Phase:
        for is_program in (False, True):
            assert " " in phase_words(phase, is_program=is_program) or phase_words(phase) in (
                "training",
                "evaluating",
                "done",
            )

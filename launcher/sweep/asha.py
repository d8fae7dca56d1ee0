"""Stop trials early by ASHA: decide from the values at rungs which of the paused trials goes on. PURE.

L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, J. Ben-tzur, M. Hardt, B. Recht, A. Talwalkar: A System for Massively Parallel
Hyperparameter Tuning, MLSys 2020, https://arxiv.org/abs/1810.05934 (algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .sweep_file import EarlyStopping

if TYPE_CHECKING:
    from .state import SweepState, Trial


@dataclass(frozen=True)
class Asha:
    """The rungs of a sweep, and the rule by which a trial goes on from one to the next."""

    rungs: Sequence[int]
    """The steps at which each trial pauses, in increasing order."""
    steps: int
    """The last step of a trial."""
    factor: int

    @classmethod
    def of(cls, section: EarlyStopping, steps: int) -> Asha:
        """Return the rungs before step `steps`; there may be none."""
        rungs, step = [], section.min_steps
        while step < steps:
            rungs.append(step)
            step *= section.factor
        return cls(tuple(rungs), steps, section.factor)

    @property
    def fewest_trials(self) -> int:
        """Return the number of trials from which at least one is trained to its last step."""
        return int(self.factor ** len(self.rungs))

    def end_after(self, step: int) -> int:
        """Return the step at which a trial ends next that has reached rung `step`; 0: it has reached none."""
        return next((rung for rung in self.rungs if rung > step), self.steps)

    def promotable(self, state: SweepState) -> Trial | None:
        """Return the trial to promote next; None if there is none.

        Of the trials that have reached a rung, one of every `factor` goes on, the best first; the highest rung decides first.
        Equal values are ranked by the number of the trial.
        """
        for rung in reversed(self.rungs):
            reached = [trial for trial in state.trials.values() if rung in trial.rungs]
            best = sorted(reached, key=lambda trial: state.order_at(rung, trial))[: len(reached) // self.factor]
            if paused := [trial for trial in best if trial.is_paused and trial.step == rung]:
                return paused[0]
        return None

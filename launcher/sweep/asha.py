"""Stop trials early by ASHA: decide from the values at rungs which of the paused trials goes on. PURE.

L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, J. Ben-tzur, M. Hardt, B. Recht, A. Talwalkar: A System for Massively Parallel
Hyperparameter Tuning, MLSys 2020, https://arxiv.org/abs/1810.05934 (algorithm 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def end_of(self, trial: Trial) -> int:
        """Return the step at which a trial ends: its rung while it stays there, otherwise where its next run ends."""
        return trial.step if trial.is_paused else self.end_after(trial.step)

    def promotable(self, state: SweepState, left: int | None = None) -> Trial | None:
        """Return the trial to promote next; None if there is none.

        Of the trials that have arrived at a rung, one of every `factor` goes on, the best first. A higher rung decides first.
        Equal values are ranked by the number of the trial. A trial that has failed before the first rung counts there as the
        worst; after one that fails later another one goes on in its place. A place for which no trial is left counts as a
        trial that has arrived at the next rung. So one trial is trained to its end unless all fail.

        Args:
            state: the trials.
            left: number of steps that the budget has left; None: no limit.
        """
        arrived = sum(trial.is_failed and not trial.rungs for trial in state.trials.values())
        best: list[list[Trial]] = []
        for rung in self.rungs:
            reached = [trial for trial in state.trials.values() if rung in trial.rungs]
            places = (arrived + len(reached)) // self.factor
            alive = [trial for trial in reached if not trial.is_failed]
            best.append(sorted(alive, key=lambda trial: state.order_at(rung, trial))[:places])
            arrived = max(0, places - len(alive))
        for rung, trials in zip(reversed(self.rungs), reversed(best), strict=True):
            paused = [trial for trial in trials if trial.is_paused and trial.step == rung]
            if paused and (left is None or self.may_train(state, rung, left)):
                return paused[0]
        return None

    # --- a limit on the steps of all trials together -----------------------------------------------------------------

    @property
    def fewest_steps(self) -> int:
        """Return the number of steps of all trials together with which one is trained to its last step."""
        return sum(count * steps for count, _, steps in self._parts())

    def may_train(self, state: SweepState, step: int, left: int) -> bool:
        """Return whether a trial may be trained from `step` (0 or a rung) to its next end when `left` steps are left.

        As long as none is trained to its last step, the steps that this needs are kept for it, if there are as many.
        """
        end = self.end_after(step)
        kept = self._kept(state)
        return end - step <= left and (
            end in kept or end - step <= left - sum(kept.values()) or left < sum(kept.values())
        )

    def _kept(self, state: SweepState) -> dict[int, int]:
        """Return the steps that one trial still needs to reach its last step, by the ends of the runs that take them."""
        alive = [trial for trial in state.trials.values() if not trial.is_failed]
        kept: dict[int, int] = {}
        for count, end, steps in self._parts() if alive else ():
            first = end == self.rungs[0]  # failed trials count there as well
            arrived = len(state.trials) if first else sum(self.end_of(trial) >= end for trial in alive)
            if arrived >= count:
                break
            kept[end] = (count - arrived) * steps
        return kept

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield, from the last step to the first rung: how many trials must get there, the step, and the steps to it."""
        for above, end in enumerate(reversed([*self.rungs, self.steps])):
            before = max((rung for rung in self.rungs if rung < end), default=0)
            yield self.factor**above, end, end - before

"""How far a training job is: steps, examples, epochs, and its evaluations. A value without arrays or I/O."""

from __future__ import annotations

from dataclasses import dataclass

from .checkpoint.metadata import Counters
from .config import Config
from .data.base import Dataset
from .data.mixture import Stage
from .data.order import JobOrder
from .measure.epochs import EpochMeans
from .ranking import BestSoFar, Ranking


@dataclass
class JobCounts:
    """How far a training job is. A checkpoint has `step`, `position` and `counters`; the rest follows from the config."""

    config: Config
    order: JobOrder
    """Which examples are trained on, and which of them are left out."""
    examples: int
    """Size of the training set."""
    consumed: int
    """Number of examples that a step consumes."""
    steps: int
    """Number of the job's last step."""
    best: BestSoFar
    epoch: EpochMeans | None
    """The unfinished epoch; None if the job counts no epochs."""
    step: int = 0
    """Number of steps that were dispatched."""
    position: int = 0
    """Number of examples consumed by them."""
    evaluated: tuple[int, dict[str, float]] | None = None
    """Step and metrics of the last evaluation."""

    @classmethod
    def at_start(cls, config: Config, data: Dataset) -> JobCounts:
        """Return the counts of a job before its first step. Raises UserError if an epoch has no examples."""
        size = data.train.size
        return cls(
            config,
            JobOrder(config, data),
            size,
            size if config.batch_size == "all" else config.batch_size,
            config.total_steps(size),
            BestSoFar(Ranking.parse(config.eval.best), config.eval.patience),
            EpochMeans(config.epoch_size(size)) if config.epochs is not None else None,
        )

    def resume(self, step: int, position: int, counters: Counters) -> None:
        """Go on from a checkpoint. The number of steps may change, because the job may have had another batch size.

        Args:
            step: number of steps done.
            position: number of examples consumed by them.
            counters: the value of `counters` at the save.

        Raises:
            UserError: as `JobOrder.resume` does.
        """
        self.step, self.position = step, position
        self.best.restore(counters.best)
        if self.epoch is not None:
            self.epoch.restore(counters.epoch_means)
            if self.config.drop_last:
                self.position = self.epoch.position_from(counters.epoch_means, position, self.consumed)
        stages, skipped = counters.mixture or [], counters.skipped or []
        self.order.resume([Stage(**each) for each in stages], [(a, b) for a, b in skipped], self.position, step)
        self.steps = self.config.total_steps(self.examples, step, self.position)

    def counters(self, streams: list[str] | None = None) -> Counters:
        """Return the counters that a checkpoint stores. `streams`: states of the data's iterators, if it is read by any."""
        return Counters(
            self.epoch.saved() if self.epoch else None,
            self.best.saved(),
            [stage.saved() for stage in self.order.stages] or None,
            [list(each) for each in self.order.skipped] or None,
            streams,
            self.evaluation() is not None,
        )

    def advance(self) -> int | None:
        """Count one more step. Returns the number of the epoch that ends with it; None if none does."""
        self.step += 1
        self.position += self.consumed
        return self.epoch.epoch_of(self.position, self.consumed) if self.epoch is not None else None

    def is_logged(self, step: int) -> bool:
        """Return whether the metrics of a step are written."""
        return is_due(step, self.config.log.every) or step == self.steps

    @property
    def last(self) -> int:
        """Return the number of this run's last step: the job's, or an earlier one at which it has to end."""
        return self.steps if self.config.stop_at is None else min(self.config.stop_at, self.steps)

    @property
    def is_over(self) -> bool:
        """Return whether this run has no step left, or training ends early."""
        return self.step >= self.last or self.best.is_exhausted

    @property
    def is_cut(self) -> bool:
        """Return whether this run ends, and a later one goes on with the job."""
        return self.is_over and self.step < self.steps and not self.best.is_exhausted

    def add_evaluation(self, metrics: dict[str, float]) -> bool:
        """Note an evaluation after the present step. Returns False if it lacks the metric by which they are ranked."""
        self.evaluated = self.step, metrics
        if self.best.ranking.metric not in metrics:
            return False
        self.best.add(self.step, metrics)
        return True

    def evaluation(self) -> dict[str, float] | None:
        """Return the metrics of an evaluation after the present step; None if there was none."""
        return self.evaluated[1] if self.evaluated and self.evaluated[0] == self.step else None

    def cut(self) -> str:
        """Return the sentence that says why a run ends before the job's last step."""
        text = f"the run ends at step {self.step} of {self.steps} (stop_at: {self.config.stop_at})"
        return f"{text}; a later stop_at, or null, goes on exactly"

    def early_end(self) -> str:
        """Return the sentence that says why training ends before its last step."""
        best, text = self.best, f"training ends early at step {self.step} of {self.steps}"
        if best.value is None:
            why = f"{best.since} evaluations had no finite {best.ranking.metric}"
        else:
            why = (
                f"the best {best.ranking.metric} is {best.value:.5g} of step {best.step}, {best.since} evaluations ago"
            )
        return f"{text}: {why} (eval.patience; a higher one, or null, goes on)"


def is_due(step: int, every: int) -> bool:
    """Return whether something that is done after every so many steps, 0 for never, is done after this one."""
    return every > 0 and step % every == 0

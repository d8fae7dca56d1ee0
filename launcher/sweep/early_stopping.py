"""Check that the trials of a sweep can be stopped early: their rungs, and the metric that is compared there. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.config import Config
from podrun.runtime.config.task import TASKS
from podrun.runtime.contract import UserError

from .asha import Asha
from .sweep_file import SweepFile


def check_early_stopping(file: SweepFile, jobs: Sequence[Config], is_new: bool) -> Asha | None:
    """Return the rule of early stopping; None if the sweep has none.

    Args:
        file: the sweep.yaml.
        jobs: the job with each listed value and the ends of each range.
        is_new: the sweep begins. One that goes on may have a smaller budget, to end soon.

    Raises:
        UserError: trials could not be compared at the rungs, or none would be trained to its end.
    """
    section = file.early_stopping
    if section is None:
        return None
    job, first = jobs[0], section.min_steps
    if job.steps is None:
        raise UserError("early_stopping: the job gives epochs, and rungs are steps; give its steps")
    if job.stop_at is not None:
        raise UserError(
            f"stop_at: {job.stop_at} in the job, and early_stopping says where trials end; remove one of them"
        )
    if patience := next((each.eval.patience for each in jobs if each.eval.patience), None):
        raise UserError(
            f"eval.patience: {patience} in the job may end a trial between rungs, and early_stopping compares trials at the "
            "same steps; remove one of them"
        )
    asha = Asha.of(section, job.steps)
    if not asha.rungs:
        raise UserError(
            f"early_stopping.min_steps: {first} is not less than the {job.steps} steps of a trial, so none could be stopped; "
            "give less"
        )
    for each in jobs:
        _check_metric(file, first, each)
    _check_range(file, first, job)
    if is_new:
        _check_count(file, asha)
        _check_steps(file, asha)
    return asha


def _check_metric(file: SweepFile, first: int, job: Config) -> None:
    """Raise UserError if the job does not report the metric at the rungs. They are multiples of the first one."""
    key, every = _reported_every(job, file.ranking.metric)
    if key and not every:
        raise UserError(
            f"early_stopping: trials are compared by {file.ranking.metric} at step {first}, and {key} is 0: the job has no "
            f"evaluations before its end; give {key}: {first}"
        )
    if key and first % every:
        near = max(1, round(first / every)) * every
        raise UserError(
            f"early_stopping.min_steps: {first} is no multiple of {key}, {every}, so {file.ranking.metric} is not reported "
            f"at step {first}; give {near}, or {key}: {first}"
        )


def _check_range(file: SweepFile, first: int, job: Config) -> None:
    """Raise UserError if a whole number in a searched range, not only one of its ends, has no report at the first rung."""
    key, _ = _reported_every(job, file.ranking.metric)
    searched = file.space.get(key)
    if searched is None or searched.min is None or searched.max is None:
        return
    between = range(int(searched.min), int(searched.max) + 1)
    if (bad := next((every for every in between if every and first % every), None)) is not None:
        raise UserError(
            f"space.{key}: the range has {bad}, of which early_stopping.min_steps, {first}, is no multiple; list the numbers "
            f"instead, such as values: [1, {first}]"
        )


def _reported_every(job: Config, metric: str) -> tuple[str, int]:
    """Return the key that says how often the job reports a metric, and its value. No key: only code of the user knows."""
    name = metric.removeprefix("validation ")
    known = {text.split()[1] for text in TASKS[job.task].metrics} if job.task in TASKS else set()
    if name != metric or "/" in name or name in known or "member_" in name:
        return "eval.every", job.eval.every
    return ("", 0) if job.task_is_users else ("log.every", job.log.every)


def _check_count(file: SweepFile, asha: Asha) -> None:
    """Raise UserError if the sweep has too few trials for one of them to be trained to its end."""
    counts = [file.budget.trials, file.combinations() if file.search == "grid" else None]
    most = min((count for count in counts if count is not None), default=None)
    if most is None or most >= asha.fewest_trials:
        return
    rungs = ", ".join(map(str, asha.rungs))
    raise UserError(
        f"early_stopping: one of {asha.factor} trials goes on from each rung ({rungs}), so of {most} trials none is trained "
        f"to step {asha.steps}; give at least {asha.fewest_trials} trials, or a larger min_steps"
    )


def _check_steps(file: SweepFile, asha: Asha) -> None:
    """Raise UserError if budget.steps is too small for one trial to be trained to its end."""
    limit = file.budget.steps
    if limit is None or limit >= asha.fewest_steps:
        return
    raise UserError(
        f"budget.steps: {limit} is too few to train one trial to step {asha.steps}: one of {asha.factor} goes on "
        f"from each rung ({', '.join(map(str, asha.rungs))}), so {asha.fewest_trials} trials begin; give at least "
        f"{asha.fewest_steps}, or a larger min_steps"
    )

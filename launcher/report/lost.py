"""Find the part of an attempt's work that was lost because later attempts resumed from an older checkpoint. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from podrun.runtime.contract import Phase
from podrun.runtime.events import EventKind, StepEvent

from ..rundir.events import Event, saved_step


def lost_from_of(
    attempts: list[list[Event]], number: int, steps: dict[tuple[str, int], list[StepEvent]]
) -> float | None:
    """Return the time from which the work of attempt `number` was lost; None if nothing was lost."""
    if (step := _kept_step(attempts, number)) is None:
        return None
    attempt, following = attempts[number], attempts[number + 1 :]
    begin, until = attempt[0]["time"], following[0][0]["time"] if following else float("inf")
    leader = next((rows for (_, process), rows in sorted(steps.items(), key=lambda item: item[0][1]) if rows), [])
    mine = [e for e in leader if begin <= e["time"] < until]
    kept = [*(e["time"] for e in mine if e["step"] <= step), *_save_ends(attempt, step)]
    trained = mine or any(e["event"] == EventKind.PHASE and e["phase"] == Phase.TRAIN for e in attempt)
    return max(kept) if kept else begin if trained else None


def _kept_step(attempts: list[list[Event]], number: int) -> int | None:
    """Return the last step of attempt `number` whose work was kept; None if all of its work was kept.

    Later attempts continue from the step that they resume from, which may be an older one if a checkpoint is damaged.
    If no later attempt started to train, or if this is the last attempt of a failed run, only saved steps were kept.
    """
    begins = [step for attempt in attempts[number + 1 :] if (step := _first_step(attempt)) is not None]
    if begins:
        return min(begins)
    end = next((e for e in attempts[-1] if e["event"] == EventKind.END), None)
    if number + 1 == len(attempts) and (end is None or end["code"] == 0):
        return None
    mine = (event for attempt in attempts[: number + 1] for event in attempt)
    return max((step for event in mine if (step := saved_step(event)) is not None), default=0)


def _first_step(attempt: list[Event]) -> int | None:
    """Return the step that an attempt started from; None if the attempt ended before it trained."""
    # Of one process; another one may have reported before that it compiles.
    resumed = next((event["step"] for event in attempt if event["event"] == EventKind.RESUME), None)
    if resumed is not None:
        return resumed
    trains = any(
        event["event"] == EventKind.STEP or (event["event"] == EventKind.PHASE and event["phase"] == Phase.COMPILE)
        for event in attempt
    )
    return 0 if trains else None


def _save_ends(attempt: list[Event], step: int) -> Iterable[float]:
    """Yield the end time of each save of a step up to `step` by the leading process. Step records may be incomplete."""
    saving, ended = False, None
    for event in attempt:
        if event["event"] == EventKind.PHASE and event["process"] == 0:
            if saving:
                ended = event["time"]
            saving = event["phase"] == Phase.SAVE
        elif event["event"] == EventKind.CHECKPOINT and event["step"] <= step:
            yield event["time"] if saving or ended is None else ended

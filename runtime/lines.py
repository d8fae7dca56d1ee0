"""Format a worker's events as lines of text: the worker prints them to its log, and the launcher shows them.

Standard library only: the launcher imports this module where JAX is not installed.
"""

from __future__ import annotations

from .contract import Phase
from .events import SHOWN, EpochEvent, EvalEvent, EventKind, StepEvent, WorkerEvent
from .wording import first_rows

PHASES: dict[str, str] = {
    Phase.CONNECT: "joining the pod",
    Phase.SETUP: "preparing data and model",
    Phase.RESTORE: "restoring the checkpoint",
    Phase.COMPILE: "compiling the step",
    Phase.TRAIN: "training",
    Phase.EVALUATE: "evaluating",
    Phase.SAVE: "saving a checkpoint",
    Phase.SAMPLE: "sampling text",
    Phase.DONE: "done",
}
PROGRAM_PHASES: dict[str, str] = {
    **PHASES,
    Phase.SETUP: "joined the pod",
    Phase.COMPILE: "in the first step",
}
"""The same for user programs, which need not compile anything. A loop of their own has no phase after `setup`."""
_PROFILE = {
    "begun": "profiling from step {step} on",
    "done": "profiled steps {step} to {last}",
    "failed": "the profile has failed: {error}",
}
_LOGGED = (Phase.CONNECT, Phase.SETUP, Phase.RESTORE, Phase.COMPILE, Phase.SAMPLE)
"""Phases that get a line in the log. The others recur between steps."""


def log_line(event: WorkerEvent, *, leads: bool, is_program: bool = False) -> str | None:
    """Return the line that a worker prints to its log for an event; None if it prints none.

    Only process 0 (`leads`) prints steps.
    """
    if event["event"] == EventKind.PHASE:
        return (PROGRAM_PHASES if is_program else PHASES)[event["phase"]] if event["phase"] in _LOGGED else None
    if event["event"] == EventKind.STEP:
        return step_line(event) if leads else None
    return milestone(event)


def milestone(event: WorkerEvent) -> str | None:
    """Return the line of an event that every view shows, such as an evaluation or a checkpoint; None for other events."""
    match event["event"]:
        case EventKind.EVAL:
            return describe_eval(event)
        case EventKind.EPOCH:
            return describe_epoch(event)
        case EventKind.CHECKPOINT:
            following = f", the next one at step {event['next']}" if "next" in event else ""
            return f"checkpoint of step {event['step']} complete{following}"
        case EventKind.RESUME:
            if where := event.get("memory"):
                return f"resumed from step {event['step']} in {where}"
            return f"resumed from the checkpoint of step {event['step']}"
        case EventKind.NOTE:
            return event["message"]
        case EventKind.PROFILE:
            return _PROFILE.get(event["state"], "").format(**event) or None
        case EventKind.TEXT:
            rule = "-" * 60
            return f"sampled text:\n{rule}\n{event['text'].strip()}\n{rule}"
    return None


def step_line(event: StepEvent) -> str:
    """Return `step 20/300  loss 2.3146  accuracy 0.410  18.2k tok/s  elapsed 0:12  eta 2:40`."""
    parts = [f"step {out_of(event['step'], event['steps'])}", describe_step(event), times(event)]
    return "  ".join(filter(None, parts))


def times(event: StepEvent) -> str:
    """Return `elapsed 0:12  eta 2:40`, or what is known of it: the end of a program is known if its number of steps is."""
    left = event.get("seconds_left")
    parts = [f"elapsed {clock(event['elapsed'])}"] if "elapsed" in event else []
    return "  ".join(parts if left is None else [*parts, f"eta {clock(left)}"])


def out_of(step: int, steps: int | None) -> str:
    """Return `20/300`, or `20` if the number of steps is unknown, as in a user program."""
    return str(step) if steps is None else f"{step}/{steps}"


def describe_step(event: StepEvent) -> str:
    """Return `loss 2.3146  accuracy 0.410  18.2k tok/s`: the metrics that are shown, and the throughput."""
    parts = [
        f"{name} {value:.3f}" if name == "accuracy" else f"{name} {decimals(value)}"
        for name, value in shown_metrics(event).items()
    ]
    return "  ".join([*parts, *filter(None, [throughput(event)])])


def shown_metrics(event: StepEvent) -> dict[str, float]:
    """Return the metrics of a step that its line shows."""
    values = ((name, number_of(event, name)) for name in event.get("shown", SHOWN))
    return {name: value for name, value in values if value is not None}


def describe_pace(event: StepEvent) -> str:
    """Return `105 ms a step  grad norm 0.83`, or only the part that is known."""
    seconds, norm = number_of(event, "seconds_per_step"), number_of(event, "grad_norm")
    parts = [] if seconds is None else [f"{seconds_words(seconds)} a step"]
    return "  ".join([*parts, *([] if norm is None else [f"grad norm {norm:.3g}"])])


def number_of(event: StepEvent, name: str) -> float | None:
    """Return the number `name` of an event; None if it is missing, or not a number, as user programs may report."""
    value = event.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def seconds_words(seconds: float) -> str:
    """Return `12.5 ms` or `2.31 s`."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def throughput(event: StepEvent) -> str:
    """Return `18.2k tok/s`; empty if unknown."""
    if "tokens_per_second" in event:
        return f"{_thousands(event['tokens_per_second'])} tok/s"
    return f"{_thousands(event['examples_per_second'])} ex/s" if "examples_per_second" in event else ""


_MOST = 8  # most metrics on the line of an evaluation


def describe_eval(event: EvalEvent) -> str:
    """Return `validation at step 200: loss 2.0000  perplexity 7.3891  books/loss 1.9000`.

    A metric of a named set, other than the loss, is left out if the line shows that metric of the validation set.
    """
    return f"validation at step {event['step']}: {_values(event)}"


def describe_epoch(event: EpochEvent) -> str:
    """Return `epoch 3 of 10, means of its steps: loss 0.4321  accuracy 0.8654`."""
    return f"epoch {event['epoch']} of {event['epochs']:g}, means of its steps: {_values(event)}"


def _values(event: EvalEvent | EpochEvent) -> str:
    every = {k: v for k, v in event.items() if isinstance(v, float) and k not in ("time", "seconds", "epochs")}
    metrics = {
        k: v for k, v in every.items() if k.endswith("/loss") or k.rpartition("/")[2] not in every or "/" not in k
    }
    shown = [f"{name} {decimals(value)}" for name, value in metrics.items()]
    return "  ".join(first_rows(shown, _MOST))


def decimals(value: float) -> str:
    """Return a number with 4 decimals, `2.3146`; small ones have 4 significant digits, large ones 6: `0.0001234`, `29232`."""
    if abs(value) >= 1000:
        return f"{value:.6g}"
    return f"{value:.4f}" if abs(value) >= 0.1 or value == 0 else f"{value:#.4g}"


def _thousands(value: float) -> str:
    return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"


def clock(seconds: float | None) -> str:
    """Return `3:07`, `1:02:09`, or `-:--` if unknown."""
    if seconds is None:
        return "-:--"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"

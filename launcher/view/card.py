"""Draw the progress of a run as a few short lines, which are redrawn in place. PURE.

No line is wider than 39 columns. A terminal that is narrowed to 40 columns therefore wraps nothing, and the next drawing
finds the previous lines where it expects them.
"""

from __future__ import annotations

from podrun.runtime.events import StepEvent
from podrun.runtime.lines import decimals, number_of, out_of, seconds_words, shown_metrics, throughput, times

from ..rundir.events import LateEvent
from ..rundir.lateness import late_share
from ..rundir.run_state import RunState
from .phases import phase_words
from .sparkline import History
from .times import duration

WIDTH = 39
_LABEL, _LONGEST = 12, 18  # width of the labels, and at most, for metrics with long names


def card(state: RunState, step: StepEvent, history: History, now: float, plain: bool = False) -> list[str]:
    """Return the lines of the card.

    Args:
        state: the run.
        step: the last step event.
        history: values of the first shown metric, by step.
        now: seconds since 1970.
        plain: use only ASCII.
    """
    label = min(_LONGEST, max(_LABEL, *(len(name) + 1 for name in shown_metrics(step)), 0))
    rows = [("step", _progress(step, label, plain))]
    if 0 in state.processes:
        rows.append(("phase", phase_words(state.processes[0].phase, is_program=state.is_program)))
    for number, (name, value) in enumerate(shown_metrics(step).items()):
        text = f"{value:.3f}" if name == "accuracy" else decimals(value) if abs(value) < 1e6 else f"{value:.4g}"
        curve = f"  {history.sparkline(WIDTH - label - len(text) - 2, plain)}" if number == 0 else ""
        rows.append((name if len(name) < label else f"..{name[3 - label :]}", f"{text}{curve}"))
    if (norm := number_of(step, "grad_norm")) is not None and not state.is_program:
        rows.append(("grad norm", f"{norm:.3g}"))
    if (seconds := number_of(step, "seconds_per_step")) is not None and not state.is_program:
        rows.append(("step time", f"{seconds_words(seconds)}  {throughput(step)}"))
    elif rate := throughput(step):
        rows.append(("throughput", rate))
    if text := times(step):
        rows.append(("time", text))
    if state.checkpoint is not None:
        ago = duration(now - state.checkpoint["time"])
        rows.append(("checkpoint", f"step {state.checkpoint['step']}, {ago} ago"))
    if state.late is not None:
        rows.append(("late", _late(state.late, label)))
    return [f"{name:<{label}}{text}".rstrip()[:WIDTH] for name, text in rows]


def _progress(step: StepEvent, label: int, plain: bool) -> str:
    """Return `120/300 ━━━━━━━─────────`; without the bar if the number of steps is unknown."""
    text = out_of(step["step"], step["steps"])
    width = WIDTH - label - len(text) - 1
    if not step["steps"] or width < 1:
        return text
    done = min(width, round(width * step["step"] / step["steps"]))
    full, empty = "#." if plain else "━─"
    return f"{text} {full * done}{empty * (width - done)}"


def _late(late: LateEvent, label: int) -> str:
    """Return how late a process is: `host-2: 105 ms, 87 %`. Cuts a long name at its start: host names differ at the end."""
    lateness = f": {seconds_words(late['behind'])}, {100 * late_share(late):.0f} %"
    room = WIDTH - label - len(lateness)
    host = late["host"] if len(late["host"]) <= room else f"..{late['host'][2 - room :]}"
    return host + lateness

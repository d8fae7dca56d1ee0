"""Run the variants one after another, each displayed like a single run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.events import EventKind

from ..plan.spec import RunSpec
from ..pod.run_id import new_run_id
from ..request.request import make_workdir
from ..run.attempts import run_attempts
from ..run.signals import Signals
from ..rundir.events import Event
from ..rundir.runs import RunDirectory
from ..view.console import Console, PlainConsole
from ..view.live_console import LiveConsole
from .collect import collect
from .comparison import Comparison
from .table import Measurement, VariantState
from .variants import Variant


class _WithoutLastLines:
    """A console that leaves out the last lines of a run, which the table replaces."""

    def __init__(self, console: Console) -> None:
        self.piece = console.piece
        self.is_terminal = console.is_terminal
        self.output = console.output
        self.stop = console.stop
        self._console = console
        self._finished = False

    def event(self, event: Event) -> None:
        self._console.event(event)
        self._finished |= event["event"] == EventKind.END

    def say(self, text: str) -> None:
        if not self._finished:
            self._console.say(text)


def run_variants(comparison: Comparison, *, quiet: bool, ended: Callable[[Measurement], None]) -> list[Measurement]:
    """Run every variant, and return the measurements. A failed variant does not stop the others; Ctrl-C does.

    Args:
        comparison: the planned comparison.
        quiet: print nothing on stdout; progress goes to stderr.
        ended: called with the measurements of each run as soon as it has ended.
    """
    out = sys.stderr if quiet else sys.stdout
    measured: list[Measurement] = []
    with Signals() as signals:
        for number, (variant, spec) in enumerate(comparison.jobs, 1):
            if signals.received or VariantState.INTERRUPTED in [one.state for one in measured]:
                code = 128 + signals.received[0] if signals.received else None
                measured.append(Measurement(variant, VariantState.NOT_RUN, code=code, workdir=str(spec.workdir)))
                continue
            print(f"\n--- {number} of {len(comparison.jobs)}: {variant.label}", file=out, flush=True)
            console = _WithoutLastLines(PlainConsole(out) if quiet or not out.isatty() else LiveConsole())
            measured.append(_run_variant(variant, replace(spec, run_id=new_run_id()), comparison, console))
            ended(measured[-1])
    return measured


def exit_code(measured: Sequence[Measurement]) -> int:
    """Return the exit code of the comparison: that of Ctrl-C, or of the first failed variant; 0 if there is neither."""
    bad = [one for one in measured if one.code]
    stopped = [one for one in bad if one.state is not VariantState.FAILED]
    return next((one.code for one in [*stopped, *bad] if one.code), ExitCode.DONE)


def _run_variant(variant: Variant, spec: RunSpec, comparison: Comparison, console: Console) -> Measurement:
    try:
        if spec.pod.traits.files_are_here:
            make_workdir(spec.workdir)
        directory = RunDirectory.create(spec)
        run_attempts(spec, directory, console, comparison.bundles)
    except UserError as error:
        print(f"podrun: {error}", file=sys.stderr, flush=True)
        reason = str(error).partition("\n")[0]
        return Measurement(variant, VariantState.FAILED, reason, ExitCode.BAD_CONFIG, workdir=str(spec.workdir))
    return collect(variant, spec, directory, comparison.files)

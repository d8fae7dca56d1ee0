"""`podrun attach`: watch a run from any shell, and take it over if its supervisor is gone."""

from __future__ import annotations

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.events import EventKind

from ..run.background import attach_hint, failure_message, report_end, take_over
from ..run.signals import Signals
from ..rundir.follow import Output, follow
from ..rundir.runs import find_run
from ..rundir.submitted import end_of, is_final, is_unfinished, pending_words
from ..view.live_console import make_console


def attach(name: str | None, as_json: bool) -> int:
    """Show the run until it ends, and return its exit code; 0 if the user detaches earlier. Raises UserError."""
    directory = find_run(name)
    console = make_console(as_json)
    if directory.job() is None and end_of(directory) is None and not is_unfinished(directory):
        console.say(f"the supervisor of {directory.run_id} is gone; taking the run over")
        take_over(directory)
    if words := pending_words(directory):
        console.say(words)
    output = Output(directory)
    with Signals() as signals:
        try:
            for event in follow(directory):
                due = event is None or event["event"] in (EventKind.EXIT, EventKind.END)
                end = event if event is not None and is_final(event, directory) else None
                while due and not signals.received and (text := output.next_lines(at_end=end is not None)):
                    console.output(text)
                if event is not None:
                    console.event(event)
                if end is not None:
                    console.stop()
                    return report_end(directory, end, as_json)
                if signals.received:
                    console.stop()
                    console.say(attach_hint(directory))
                    return ExitCode.DONE
        finally:
            console.stop()
    if end := end_of(directory):
        return report_end(directory, end, as_json)
    raise UserError(failure_message(directory))

"""Report the end of a run: the paths of its results, or the first cause of its failure and the evidence."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.config import bucket_url
from podrun.runtime.contract import ExitCode, Workdir
from podrun.runtime.events import EventKind
from podrun.runtime.wording import counted

from ..attempt.cause import Failure
from ..attempt.outcome import Outcome
from ..attempt.view import View
from ..plan.plan import LaunchPlan
from ..plan.program import Program
from ..pod.masking import Mask
from ..pod.traits import location
from ..rundir.events import EndEvent
from ..rundir.logs import tail
from ..rundir.runs import RunDirectory
from ..rundir.saved import resumed_from
from ..view.folded_frames import fold_frames

if TYPE_CHECKING:
    from podrun.runtime.config import Config

_TAIL = 12  # lines of the failed process's output that are shown
_READ = 200  # lines from which these are chosen


def end_event(outcome: Outcome, plan: LaunchPlan, time: float) -> EndEvent:
    cause = outcome.cause
    return {
        "event": EventKind.END,
        "time": time,
        "code": int(outcome.code),
        "host": cause.host if cause else None,
        "process": cause.process if cause else None,
        "message": last_line(outcome, plan),
        "left_behind": outcome.left_behind,
    }


def last_line(outcome: Outcome, plan: LaunchPlan) -> str:
    over = f"; {outcome.over}" if outcome.over else ""
    if outcome.cause:
        return f"failed: {outcome.cause}{over} [exit code {outcome.code}]"
    if outcome.interrupted_by is not None:
        is_unknown = plan.is_program and outcome.saved_step is None and not outcome.no_checkpoint
        resume = "" if is_unknown or not plan.run.trains else _resume(outcome)
        how = f"stopped by {outcome.stopped_by}" if outcome.stopped_by else "interrupted"
        if outcome.hurried:
            how += ", at once" if outcome.stopped_by else " twice, so stopped at once"
            resume += "" if outcome.left_behind else "; no process is left"
        return f"{how}{resume}{over} [exit code {outcome.code}]"
    if outcome.nothing_left is not None and not plan.attempt:
        return f"done: all {outcome.nothing_left} steps were done before"
    restarts = f", after {counted(plan.attempt, 'restart')}" if plan.attempt else ""
    return f"done{restarts}"


def _resume(outcome: Outcome) -> str:
    """Return a sentence about what the same command will do next. It promises only what is certain."""
    if outcome.saved_step is not None:
        return f"; the checkpoint of step {outcome.saved_step} is complete; the same command resumes the run"
    if outcome.no_checkpoint:
        return "; there is no checkpoint yet, so the same command begins anew"
    return "; the same command goes on from the newest checkpoint, if there is one"


def report(outcome: Outcome, plan: LaunchPlan, directory: RunDirectory, view: View) -> None:
    """Print the paths of the results. After a failure print the first cause, its evidence, and the cause again."""
    files = _files(plan, directory)
    if outcome.cause is None:
        if outcome.interrupted_by is None:
            view.say(_result_paths(outcome, plan, directory))
        for line in files:
            view.say(line)
        view.say(f"podrun: {last_line(outcome, plan)}")
        _print_left_behind(outcome.left_behind, plan)
        return
    lines = _evidence(outcome, outcome.cause, plan, directory)
    _print_left_behind(outcome.left_behind, plan)
    text = "\n".join([*lines, *files, f"podrun: {last_line(outcome, plan)}"])
    print(Mask(plan.secrets.values()).text(text), file=sys.stderr, flush=True)


def _result_paths(outcome: Outcome, plan: LaunchPlan, directory: RunDirectory) -> str:
    """Return where the results are, and the commands that show and use them, as lines."""
    logs = f"logs         {directory.logs}\npage         podrun report {_page_of(plan, directory)}"
    if isinstance(plan.run.job, Program):
        if outcome.saved_step is None or plan.pod.traits.files_are_here:
            return logs
        return f"results      `podrun pull {plan.run.run_id}` brings metrics and checkpoints here\n{logs}"
    if not plan.run.trains:
        return f"logs         {directory.logs}"
    workdir = Workdir(plan.run.workdir)
    lines = [f"metrics      {_place(plan, workdir.metrics)}", f"checkpoints  {_place(plan, workdir.checkpoints)}"]
    if plan.run.job.log.tensorboard:
        lines.append(f"tensorboard  {_tensorboard_hint(plan, workdir.tensorboard)}")
    if not plan.pod.traits.files_are_here or bucket_url.url(workdir.path):
        lines.append(f"             `podrun pull {plan.run.run_id}` brings them here")
    return "\n".join([*lines, logs, *_next_commands(plan, plan.run.job)])


def _files(plan: LaunchPlan, directory: RunDirectory) -> list[str]:
    """Return a line about the files that a program wrote beside its code on the hosts; none if there are none."""
    kept = directory.kept_files()
    if not kept:
        return []
    others = f" and in {counted(len(kept) - 1, 'more folder')}" if len(kept) > 1 else ""
    place = f"{kept[0].host}:{kept[0].folder}{others}"
    return [f"files        {place}; `podrun pull {plan.run.run_id} files` brings what the program wrote there"]


def _page_of(plan: LaunchPlan, directory: RunDirectory) -> str:
    """Return what `podrun report` is to show: all runs of the workdir if this one has resumed; otherwise this run."""
    workdir = Path(plan.run.workdir)
    if not plan.pod.traits.files_are_here or not Workdir(workdir).metrics.is_file() or resumed_from(directory) is None:
        return plan.run.run_id
    return shlex.quote(os.fspath(workdir.relative_to(here) if workdir.is_relative_to(here := Path.cwd()) else workdir))


def _next_commands(plan: LaunchPlan, job: Config) -> list[str]:
    """Return lines with the commands that use the trained model; none if the model must be downloaded first."""
    if not plan.pod.traits.files_are_here and not bucket_url.url(plan.run.workdir):
        return []
    from podrun.runtime.config.job import writes_text  # slow import that user programs do not need

    text = [f"generate     podrun generate {plan.run.run_id} --prompt TEXT"] if writes_text(job) else []
    return [f"evaluate     podrun evaluate {plan.run.run_id}", *text]


def _place(plan: LaunchPlan, path: Path) -> str:
    """Return where this machine sees a path of process 0."""
    return bucket_url.url(path) or location(str(path), plan.pod.transport, plan.hosts[0].host.name)


def _tensorboard_hint(plan: LaunchPlan, folder: Path) -> str:
    """Return a command that opens TensorBoard here; or the folder and a hint, if TensorBoard is not installed here."""
    if plan.pod.traits.files_are_here and not bucket_url.url(folder) and shutil.which("tensorboard"):
        return f"tensorboard --logdir {shlex.quote(str(folder))}"
    return f"{_place(plan, folder)}  (pip install tensorboard; tensorboard --logdir ...)"


def _evidence(outcome: Outcome, cause: Failure, plan: LaunchPlan, directory: RunDirectory) -> list[str]:
    if cause.code == ExitCode.BAD_CONFIG:
        lines = cause.details.splitlines()
        return lines if len(lines) > 1 else []  # a single line repeats the last line of the report
    log = _log_of(cause, plan, directory)
    text = cause.details.strip().splitlines() or (tail(log, _READ) if log else [])
    is_told = len(text) == 1 and cause.what.startswith(text[0])  # by the last line of the report
    lines = [] if is_told else [f"{cause.host} | {line}" for line in fold_frames(text)[-_TAIL:]]
    if outcome.others:
        lines.append(f"meanwhile: {outcome.others}")
    others = [f for f in outcome.failures if f is not cause and f.who != cause.who]
    if others:
        lines.append("after that: " + "; ".join(dict.fromkeys(map(_first_line, others[:4]))))
    if log and log.exists():
        lines.append(f"log: {log}")
    if outcome.saved_step is not None:
        lines.append(f"the checkpoint of step {outcome.saved_step} is complete; the same command resumes the run")
    return lines


def _log_of(cause: Failure, plan: LaunchPlan, directory: RunDirectory) -> Path | None:
    """Return the log of the failed process, or of the first one of the failed host; None if the cause is not on a host."""
    for host in plan.hosts:
        if host.host.name == cause.host:
            process = host.processes[0] if cause.process is None else cause.process
            return directory.log(host.log_name(process))
    return None


def _first_line(failed: Failure) -> str:
    text = str(failed).partition("\n")[0]  # the remedy follows in further lines
    return text if len(text) <= 100 else text[:97] + "..."


def _print_left_behind(left_behind: Sequence[str], plan: LaunchPlan) -> None:
    for row in left_behind:
        print(f"podrun: could not confirm that nothing is left on {row}", file=sys.stderr, flush=True)
    if left_behind:
        print(f"podrun: `podrun stop {plan.run.run_id}` tries again", file=sys.stderr, flush=True)

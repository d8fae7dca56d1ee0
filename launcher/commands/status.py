"""`podrun status`: show the state of every process of a run, or how the run ended."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.events import metrics_of
from podrun.runtime.lines import PHASES, decimals, describe_pace, describe_step, out_of, shown_metrics, times
from podrun.runtime.wording import counted

from ..pod.fold import fold
from ..pod.traits import QUEUES, location, reached
from ..rundir.lateness import describe_late
from ..rundir.lost_launcher import lease_of
from ..rundir.read_state import read_state
from ..rundir.run_state import NOTHING_LEFT, ProcessState, RunState
from ..rundir.run_summary import RunStatus, Summary, summarize
from ..rundir.runs import RunDirectory, find_run
from ..rundir.saved import resumed_by
from ..rundir.submitted import pending_words, queue_of
from ..view.phases import phase_words
from ..view.printable import in_one_line
from ..view.text_table import shorten, text_table, wrap
from ..view.times import duration, moment

_IN_LINE = 4  # metrics on a line
_TOLD = (
    "grad_norm",
    "seconds_per_step",
    "tokens_per_second",
    "examples_per_second",
    "step_seconds_p50",
    "step_seconds_p95",
)
"""Metrics of podrun's runtime that other lines show already."""
_ROWS = 16  # up to this many processes get a row each; otherwise those in the same state share a row


def status(name: str | None, as_json: bool) -> int:
    """Print the status of the run. Raises UserError if there is no such run."""
    directory = find_run(name)
    if as_json:
        print(json.dumps(status_as_json(directory), indent=1))
    else:
        print("\n".join(_as_text(directory, summarize(directory), read_state(directory))))
    return ExitCode.DONE


def status_as_json(directory: RunDirectory) -> dict[str, Any]:
    """Return the status of a run as values for JSON."""
    summary, details = summarize(directory), read_state(directory)
    start, checkpoint, job = details.start, details.checkpoint, directory.job()
    queue = (directory.transport() if job else None) or QUEUES[0]  # a run without a job has the key of the first queue
    step: Mapping[str, object] = details.step or {}
    return {
        **asdict(summary),
        "attempt": start["attempt"] if start else None,
        "workdir": start["workdir"] if start else None,
        "logs": str(directory.logs),
        f"{queue}_job": job,
        "waits": pending_words(directory),
        "phase": _phase(details) if start and not summary.has_ended else None,
        **{name: step.get(name) for name in ("loss", "grad_norm", "seconds_per_step", "elapsed", "seconds_left")},
        "metrics": metrics_of(step),
        "evaluation": _evaluation(details),
        "message": details.end["message"] if details.end else None,
        "restart": {key: details.restart[key] for key in ("time", "message")} if details.restart else None,
        "checkpoint": {"step": checkpoint["step"], "time": checkpoint["time"]} if checkpoint else None,
        "late": details.late and {key: value for key, value in details.late.items() if key not in ("event", "time")},
        "agents": details.agents,
        "processes": [asdict(process) for process in details.processes.values()],
    }


def _evaluation(details: RunState) -> dict[str, Any] | None:
    last = details.evaluation
    return None if last is None else {"step": last["step"], "metrics": metrics_of(last)}


def _phase(details: RunState) -> str:
    """Return the common phase, such as `evaluating`, or `3 of 4 training, 1 of 4 compiling the step`."""
    if details.is_between:
        return "waiting for the restart"
    if details.common_phase is not None:
        return phase_words(details.common_phase, is_program=details.is_program)
    phases = Counter(process.phase for process in details.processes.values())  # ties keep the order of the processes
    count = len(details.processes)
    words = ((phase_words(phase, is_program=details.is_program), n) for phase, n in phases.most_common())
    return ", ".join(f"{n} of {count} {text}" for text, n in words)


def _as_text(directory: RunDirectory, summary: Summary, details: RunState) -> list[str]:
    lines = [_headline(directory, summary, details), *_label(directory)]
    lines += [f"  {name:<12}{text}" for name, text in _facts(directory, summary, details)]
    if details.start:
        lines += ["", _table(list(details.processes.values()), summary)]
    if summary.state is not RunStatus.PENDING:
        lines += _ending(details)
    if summary.state is RunStatus.ABANDONED:
        lines += ["", f"`podrun attach {summary.run}` takes it over, `podrun stop {summary.run}` ends it"]
    return lines


def _label(directory: RunDirectory) -> list[str]:
    """Return the lines with the run's name, tags and note, if it has any."""
    try:
        label = directory.spec().label
    except UserError:  # written by another version; the records are readable
        return []
    texts = (("name", label.name), ("tags", ", ".join(label.tags)), ("note", label.note))
    return [f"  {name:<12}{shorten(text, 200)}" for name, text in texts if text]


def _headline(directory: RunDirectory, summary: Summary, details: RunState) -> str:
    lasted = duration((summary.ended or time.time()) - summary.started)
    again = f", restart {details.start['attempt']}" if details.start and details.start["attempt"] else ""
    if summary.state is RunStatus.PENDING:
        return f"run {pending_words(directory) or f'{summary.run}: pending'}"
    if summary.state is RunStatus.RUNNING:
        return f"run {summary.run}: running for {lasted}{again}"
    when = moment(summary.ended or summary.started)
    if summary.state is RunStatus.ABANDONED:
        return f"run {summary.run}: abandoned: its launcher is gone, {silence(summary)}"
    code = f" with exit code {summary.code}" if summary.code else ""
    return f"run {summary.run}: {summary.state}{code} at {when}, after {lasted}{again}"


def silence(summary: Summary) -> str:
    """Return `last heard of 40s ago; its processes end by themselves after 15s`, for a run without a launcher."""
    lease = lease_of(RunDirectory(Path(summary.directory)))
    end = "" if lease is None else f"; its processes end by themselves after {duration(lease)}"
    return f"last heard of {duration(time.time() - (summary.ended or summary.started))} ago{end}"


def _facts(directory: RunDirectory, summary: Summary, details: RunState) -> list[tuple[str, str]]:
    hosts = counted(summary.hosts, "host")
    facts = [("slice", f"{summary.slice}, {hosts} {reached(summary.transport)}")]
    if summary.program or not details.start:
        facts.append(("program" if summary.program else "workdir", shorten(summary.job, 200)))
    else:
        place = location(summary.job, summary.transport, next(iter(details.start["hosts"]), ""))
        facts.append(("workdir", shorten(place, 200)))
    if details.start and not summary.has_ended:
        facts += [("phase", _phase(details)), *_restart(details)]
    facts += _step_facts(summary, details)
    if details.late and not summary.has_ended:
        facts.append(("late", f"{describe_late(details.late)}, since {moment(details.late['since'])}"))
    if details.checkpoint:
        has_next = "next" in details.checkpoint and not summary.has_ended
        following = f", the next one at step {details.checkpoint['next']}" if has_next else ""
        when = moment(details.checkpoint["time"])
        facts.append(("checkpoint", f"step {details.checkpoint['step']}, at {when}{following}"))
    if summary.has_ended and summary.code and (later := resumed_by(directory)):
        facts.append(("resumed", f"by {later[0]}, from step {later[1]}"))
    if summary.supervisor is not None:
        facts.append(("supervisor", f"pid {summary.supervisor} on {directory.elsewhere() or 'this machine'}"))
    if (job := directory.job()) and (queue := queue_of(directory)):
        facts.append((f"{queue.title} job", job))
    facts.append(("logs", str(directory.logs)))
    return facts


def _restart(details: RunState) -> list[tuple[str, str]]:
    """Return a fact with the cause of the last restart, the number of allowed ones, and its time."""
    if details.restart is None:
        return []
    cause = "; ".join(details.restart["message"].strip().splitlines())
    return [("restart", shorten(f"{cause}, at {moment(details.restart['time'])}", 300))]


def _step_facts(summary: Summary, details: RunState) -> list[tuple[str, str]]:
    if details.step is None:
        return []
    step = details.step
    facts = [("step", f"{out_of(step['step'], step['steps'])}  {describe_step(step)}".rstrip())]
    if not summary.program and (pace := describe_pace(step)):
        facts.append(("pace", pace))
    told = {*shown_metrics(step), *(() if summary.program else _TOLD)}
    others = {name: value for name, value in metrics_of(step).items() if name not in told}
    if others:
        facts.append(("metrics", _listed(others)))
    if details.evaluation is not None:
        facts.append(("evaluation", f"step {details.evaluation['step']}  {_listed(metrics_of(details.evaluation))}"))
    if summary.state is RunStatus.RUNNING and (text := times(step)):
        facts.append(("time", f"{text} (of this attempt)" if details.restart else text))
    return facts


def _listed(metrics: dict[str, float]) -> str:
    """Return metrics as text, such as `f1 0.9310  auc 0.8800`; on several lines if there are many."""
    texts = [f"{in_one_line(name)} {decimals(value)}" for name, value in metrics.items()]
    return f"\n{'':14}".join("  ".join(texts[at : at + _IN_LINE]) for at in range(0, len(texts), _IN_LINE))


def _table(processes: list[ProcessState], summary: Summary) -> str:
    """Return a table with a row per process; for a large pod, a row per distinct state."""
    if len(processes) > _ROWS:
        return _groups(processes, summary)
    rows = [["PROCESS", "HOST", "PHASE", "SINCE", "STEP", "PID", "EXIT"]]
    for process in processes:
        since = moment(process.since) if summary.has_ended else duration(time.time() - process.since)
        pid = "-" if process.pid is None else str(process.pid)
        row = [str(process.process), process.host, _phase_of(process, summary), since, _or_dash(process.step), pid]
        rows.append([*row, _exit(process)])
    if summary.program:
        rows = [[*row[:4], *row[5:]] for row in rows]
    return text_table(rows, right=(0,))


def _phase_of(process: ProcessState, summary: Summary) -> str:
    """Return the phase of a process; without a launcher, nobody has seen how it went on."""
    words = phase_words(process.phase, is_program=summary.program)
    is_watched = summary.state in (RunStatus.RUNNING, RunStatus.PENDING)
    return words if is_watched or process.phase not in PHASES or process.exit_code is not None else f"last seen {words}"


def _groups(processes: list[ProcessState], summary: Summary) -> str:
    hosts_by_state: dict[tuple[str, int | None, str], list[str]] = {}
    for process in processes:
        key = (_phase_of(process, summary), process.step, _exit(process))
        hosts_by_state.setdefault(key, []).append(process.host)
    rows = [["PROCESSES", "PHASE", "STEP", "EXIT", "HOSTS"]]
    for (phase, step, ended), hosts in sorted(hosts_by_state.items(), key=lambda item: -len(item[1])):
        rows.append([str(len(hosts)), phase, _or_dash(step), ended, fold(hosts)])
    return text_table(rows, right=(0,))


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _exit(process: ProcessState) -> str:
    """Return how a process ended: its exit code, a signal, and whether it failed or podrun stopped it after a failure."""
    code = process.exit_code
    if code is not None and process.was_stopped and code < 0:
        return "failed" if process.error else "stopped by podrun"
    if code is None or code >= 0:
        return _or_dash(code)
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _ending(details: RunState) -> list[str]:
    """Return the lines about the end of the run, or about failures so far."""
    if details.end:
        nothing = ["", *wrap(NOTHING_LEFT, 100)] if details.had_nothing_left else []
        return [*nothing, "", f"podrun: {details.end['message']}"]
    failed = [p for p in details.processes.values() if p.error]
    return ["", *(f"{p.host} (process {p.process}): {p.error}" for p in failed[:4])] if failed else []

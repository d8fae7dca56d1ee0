"""Run SLURM's programs, and query a job's state and remaining time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ...run.signals import deferred_interrupt
from ...rundir.queues import QueueError
from .srun import plain_env

_SLOW_AFTER = 3.0  # seconds after which an answer of SLURM's is late
LIMIT = 20.0  # seconds: timeout of SLURM's programs
_ID = re.compile(r"\d{1,19}(_\d{1,19})?(\+\d{1,9})?")  # also of job arrays and components of heterogeneous jobs
_STATE = re.compile(r"\bJobState=([A-Z_]{1,40})")
_TASKS = re.compile(r"\bArrayJobId=(\d{1,19}) ArrayTaskId=(\S{1,4096})")
_NUMBER = re.compile(r"JobId=(\d{1,19}) ")
_REASON = re.compile(r"\bReason=(\w{1,40})")
COMPLETING = "COMPLETING"
_REASONS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}  # reasons of a completing job, by the state that follows
_OUTPUT = re.compile(r"\bStdErr=(/\S{1,4096})")
_TAIL = 1 << 16  # bytes at the end of a batch script's output that are searched for SLURM's announcement
_DUE_TO = {
    b"": "CANCELLED",
    b"NODE FAILURE": "NODE_FAIL",
    b"TIME LIMIT": "TIMEOUT",
    b"PREEMPTION": "PREEMPTED",
    b"JOB REQUEUE": "REQUEUED",
}
_KILLED_WITHIN = 1.0  # seconds, unless its file system hangs
_PAUSE = 0.3  # seconds between two queries
_NOT_OVER = ("RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED")
_ENDED = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "has reached its time limit",
    "PREEMPTED": "was preempted by another job",
    "NODE_FAIL": "has lost a node: NODE_FAIL",
    "DEADLINE": "has reached its deadline",
    "OUT_OF_MEMORY": "ran out of memory",
    "COMPLETED": "has ended",
    "PENDING": "was requeued",
    "REQUEUED": "was requeued",
    "REVOKED": "was revoked",
    COMPLETING: "is being ended, and SLURM does not say why yet",
}
_MAY_BE_DONE = re.compile(
    r"timed out|not answered within|Zero Bytes|receive_msg|Transport endpoint|Connection reset|Broken pipe|ended with -\d"
    r"|which is not the id of a job"
)
_NO_ANSWER = re.compile(r"Unable to contact slurm controller|timed out|Connection refused|not answered within")


class SlurmError(QueueError):
    """A SLURM program has failed or timed out. `message` is its whole error output."""

    def __init__(self, why: str, message: str = "") -> None:
        super().__init__(why)
        self.message = message or why

    @property
    def is_silence(self) -> bool:
        """Return whether the controller did not answer, so that a retry may succeed."""
        return _NO_ANSWER.search(self.message) is not None

    @property
    def may_be_done(self) -> bool:
        """Return whether the controller may have done what it was asked for: its answer is lost or unreadable."""
        return _MAY_BE_DONE.search(self.message) is not None


def is_job_id(text: str) -> bool:
    """Return whether the text is a job id."""
    return _ID.fullmatch(text) is not None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a SLURM program was running, which has done its work nevertheless."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer
        """Its output."""


def ask_slurm(
    *command: str,
    env: Mapping[str, str] | None = None,
    limit: float = LIMIT,
    waits: Callable[[], None] = lambda: None,
    after_interrupt: float = 0.0,
) -> str:
    """Run one of SLURM's programs and return its output.

    Args:
        command: the program and its arguments.
        env: its environment.
        limit: timeout in seconds.
        waits: called if it has not answered within a few seconds.
        after_interrupt: seconds after Ctrl-C for which it may still answer, before it is killed.

    Raises:
        SlurmError: it has failed or timed out.
        Interrupted: Ctrl-C, and it has answered with success afterwards.
    """
    try:
        done = _run(command, plain_env(os.environ) if env is None else env, limit, waits, after_interrupt)
    except FileNotFoundError:
        raise SlurmError(f"there is no `{command[0]}` in the PATH of this machine; is SLURM installed here?") from None
    except subprocess.TimeoutExpired as error:
        words = last_line((error.stderr or b"").decode(errors="replace"))
        why = f"it says: {words}" if words else "is slurmctld up? (scontrol ping)"
        raise SlurmError(f"`{command[0]}` has not answered within {limit:g} s; {why}") from None
    except OSError as error:
        raise SlurmError(f"cannot start `{command[0]}`: {error.strerror}") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace")
        raise SlurmError(last_line(text) or f"`{command[0]}` ended with {done.returncode}", _all_lines(text))
    return done.stdout.decode(errors="replace")


def _run(
    command: Sequence[str], env: Mapping[str, str], limit: float, waits: Callable[[], None], after_interrupt: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command like `subprocess.run`, with the same exceptions, and Interrupted."""
    with ExitStack() as starting:
        starting.enter_context(deferred_interrupt())  # within Popen it would leave a program that nobody waits for
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,  # Ctrl-C in the terminal is for the launcher
        ) as process:
            try:
                starting.close()
                try:
                    output, errors = process.communicate(timeout=_SLOW_AFTER)
                except subprocess.TimeoutExpired:
                    waits()
                    output, errors = process.communicate(timeout=limit - _SLOW_AFTER)
            except KeyboardInterrupt:
                try:
                    output, errors = process.communicate(timeout=after_interrupt)
                except (subprocess.TimeoutExpired, KeyboardInterrupt):
                    process.kill()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_KILLED_WITHIN)
                    raise KeyboardInterrupt from None
                if process.returncode:
                    raise
                raise Interrupted(output.decode(errors="replace")) from None
            except BaseException:
                process.kill()
                raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def why_over(job: str, timeout: float = 0.0) -> str | None:
    """Return what has ended a job, as a phrase; None while it runs, or if it is unknown.

    Waits up to `timeout` seconds, since SLURM tells the reason only when the job's processes have ended.
    """
    deadline = time.monotonic() + timeout
    while (state := _state(job)) == COMPLETING and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return _end_in_words(job, state)


def why_task_over(job: str, records: str) -> str | None:
    """Return what has ended a task of an array, as a phrase; None while it runs, or if it is unknown.

    Args:
        job: its id, such as `4711_7`.
        records: what `scontrol show job` says about the array.
    """
    array, _, number = job.partition("_")
    tasks = {match[2]: line for line in records.splitlines() if (match := _TASKS.search(line)) and match[1] == array}
    if number in tasks:
        return _end_in_words(job, _state_in(tasks[number]))
    others = (line for tasks_, line in tasks.items() if not tasks_.isdecimal())
    state = next(map(_state_in, others), None)  # of the tasks that were cancelled before they began
    return None if state == "PENDING" else _end_in_words(job, state)


def _end_in_words(job: str, state: str | None) -> str | None:
    if state is None or state in _NOT_OVER:
        return None
    return f"the SLURM job {job} {_ENDED.get(state, f'has ended: {state}')}"


def _state(job: str) -> str | None:
    """Return the state of a job; None if SLURM does not know it."""
    try:
        answer = ask_slurm("scontrol", "--oneliner", "show", "job", job)
    except SlurmError as error:
        return "COMPLETED" if "Invalid job id" in str(error) else None
    array, of_array, _ = job.partition("_")
    if of_array and not _STATE.search(answer):  # tasks that were cancelled before they began are one record
        return _state(array)
    return _state_in(_record(job, answer))


def _state_in(record: str) -> str | None:
    """Return the state of a job from its record; None if it says none."""
    state, reason = _STATE.search(record), _REASON.search(record)
    if state and state[1] == COMPLETING:
        return _REASONS.get(reason[1] if reason else "") or _state_in_output(record) or COMPLETING
    return state[1] if state else None


def _record(job: str, answer: str) -> str:
    """Return the line about a job. An array and its last task have the same id, so SLURM answers with all tasks."""
    return next((line for line in answer.splitlines() if line.startswith(f"JobId={job} ")), answer)


def _state_in_output(record: str) -> str | None:
    """Return the state in which SLURM ends the job, from the line that SLURM writes to the output of the batch script."""
    path, job = _OUTPUT.search(record), _NUMBER.match(record)
    if not path or not job:
        return None
    try:
        with Path(path[1]).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            text = file.read(_TAIL)
    except OSError:
        return None
    announced = re.findall(rb"\*\*\* JOB %b ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?" % job[1].encode(), text)
    return _DUE_TO.get(announced[-1].strip()) if announced else None


def time_left(job: str) -> str | None:
    """Return a job's remaining time as SLURM writes it, `1-02:30:00` or `UNLIMITED`; None if it is unknown."""
    try:
        answer = ask_slurm("squeue", "--noheader", "--jobs", job, "--format=%A %L")
    except SlurmError:
        return None
    left = {id: time for id, _, time in (line.strip().partition(" ") for line in answer.splitlines())}.get(job, "")
    return left if re.fullmatch(r"[0-9:-]{1,20}|UNLIMITED", left) else None


def _all_lines(text: str) -> str:
    """Return the non-empty lines, at most 15, without the name of the program."""
    lines = [re.sub(r"^[a-z]+: (error: |fatal: )?", "", line.strip()) for line in text.splitlines() if line.strip()]
    return "\n".join(line[:300] for line in lines[:15])


def last_line(text: str) -> str:
    """Return the last non-empty line, without the name of the program."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"^[a-z]+: (error: |fatal: )?", "", lines[-1])[:300] if lines else ""

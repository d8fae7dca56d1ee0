"""Submit, query, requeue and cancel SLURM batch jobs."""

from __future__ import annotations

import getpass
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from .job import COMPLETING, Interrupted, SlurmError, ask_slurm, is_job_id, why_over, why_task_over
from .srun import plain_env

_AFTER_INTERRUPT = 3.0  # seconds after Ctrl-C for which sbatch may still answer
SBATCH_TIMEOUT = 60.0  # seconds for sbatch, which retries while the controller is busy
_CACHE_SECONDS = 5.0  # seconds for which squeue's answer is reused: frequent queries load the controller
_NEW_JOB_SECONDS = 0.5  # seconds until squeue is asked again about a job that was submitted after its answer
_CONTROLLER_OUTAGE = 240.0  # seconds for the controller to answer again, for example after a restart
_PAUSE = 5.0  # seconds between two tries
_EXCLUDED = re.compile(r"\bExcNodeList=(\S{1,4096})")
_TASK_HAS_ENDED = re.compile(r"job id \d+_\d+: (Invalid job id specified|Job/step already completing or completed)")
_CLOCK_SKEW = 30.0  # seconds by which the clocks of this machine and SLURM's controller may differ
_GONE = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
_OVER = {*_GONE, "TIMEOUT", "REVOKED", "SPECIAL_EXIT"}
_REMEDIES = (
    (r"[Ii]nvalid partition", "`sinfo --summarize` lists the partitions"),
    (r"[Ii]nvalid account", "`sacctmgr show associations user=$USER` lists your accounts"),
    (r"[Ii]nvalid qos", "`sacctmgr show qos` lists them"),
    (
        r"[Rr]equested node configuration is not available",
        "no node has all that: `sinfo -N -o '%N %c %m %G'` lists what they have",
    ),
    (r"[Rr]equested time limit is invalid|time limit.*exceeds", "`sinfo -o '%P %l'` lists the longest times"),
    (
        r"More processors requested|Node count specification invalid",
        "`sinfo --summarize` says how many nodes there are",
    ),
    (r"unrecognized option|[Ii]nvalid --|unable to parse", "`sbatch --help` lists the options"),
    (r"[Dd]ependency", "give the id of a job in the queue, such as dependency=afterok:4711; `squeue --me` lists yours"),
    (r"[Ii]nvalid job array", "`scontrol show config | grep MaxArraySize` says how many tasks an array may have"),
    (
        r"violates accounting/QOS policy|job submit limit|temporarily unable to accept",
        "the queue takes no more jobs now: `squeue --me` lists yours",
    ),
)
_REASONS = {
    "JobHeldUser": "it is held: `scontrol release {job}` lets it go",
    "JobHeldAdmin": "it is held by an administrator",
    "Resources": "it waits for free nodes",
    "Priority": "jobs of higher priority are before it",
    "BeginTime": "it may begin later",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it waits for has failed: `podrun stop` ends it",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "PartitionConfig": "its partition can never meet its request, such as its number of nodes: `podrun stop` ends it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionTimeLimit": "it asks for more time than its partition allows: `podrun stop` ends it",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows: `podrun stop` ends it",
    "BadConstraints": "no node meets its constraints: `podrun stop` ends it",
    "launch failed requeued held": "its start has failed, and it is held: `scontrol release {job}` lets it try again",
}


class Job(NamedTuple):
    """State of a job in SLURM's queue."""

    state: str
    """PENDING, RUNNING, COMPLETING, ..."""
    reason: str = ""
    start: str = ""
    """Expected start of a pending job, as SLURM writes it; empty if unknown."""
    has_ended: bool = False
    """True if its end time is in the past. False for a job that is being requeued."""

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def is_ending(self) -> bool:
        """Return whether its processes have ended and SLURM cleans up its nodes, which waits for nodes that do not answer."""
        return self.state == COMPLETING and self.has_ended

    def why_pending(self, job: str) -> str:
        """Return why it is pending, as a phrase."""
        words = _REASONS.get(self.reason, "SLURM says why").format(job=job)
        what = f"{words} ({self.reason})" if self.reason else "SLURM has not considered it yet"
        return f"{what}; expected to start at {self.start.replace('T', ' ')}" if self.start else what


class NotCancelled(SlurmError):
    """A job was submitted in spite of Ctrl-C, or perhaps, and is not cancelled. The text says why, and what to do."""

    def __init__(self, why: str, job: str) -> None:
        super().__init__(why)
        self.job = job
        """Empty if it is unknown whether there is a job."""


class UnknownJob(SlurmError):
    """SLURM may have taken a job: it answers neither sbatch nor squeue. The text says how that was found."""


def submit(options: Sequence[str], script: str, waits: Callable[[], None] = lambda: None, before: str = "") -> str:
    """Submit a script, and return its job id. If the answer of sbatch is lost, the job is looked for in the queue.

    Args:
        options: arguments of sbatch.
        script: the path of the script.
        waits: called if sbatch has not submitted it within a few seconds, since it retries for a while.
        before: id of the only job in the queue that may have this script already; empty if there is none.

    Raises:
        SlurmError: SLURM refuses it; the text says why, and what to do.
        UnknownJob: it is unknown whether SLURM has taken it.
        Interrupted: Ctrl-C, and SLURM has the job, whose id is the answer.
        KeyboardInterrupt: Ctrl-C, and SLURM may have the job.
    """
    env = {**plain_env(os.environ), **{name: v for name, v in os.environ.items() if name.startswith("SBATCH_")}}
    try:
        return _job_in(
            ask_slurm(
                *("sbatch", "--parsable", *options, script),
                env=env,
                limit=SBATCH_TIMEOUT,
                waits=waits,
                after_interrupt=_AFTER_INTERRUPT,
            )
        )
    except Interrupted as interrupted:
        raise Interrupted(_job_in(interrupted.answer)) from None
    except SlurmError as error:
        if error.may_be_done and (job := _find_submitted(script, before, error)):
            return job
        remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, error.message)), None)
        raise SlurmError(f"{error.message}\n{remedy}" if remedy else error.message) from None


def _find_submitted(script: str, before: str, error: SlurmError) -> str:
    """Return the id of the job that SLURM has taken although the answer of sbatch is lost; empty if it has not.

    Raises UnknownJob if the queue cannot be read for a while.
    """
    print(f"podrun: {error}; asking SLURM's queue for the job", file=sys.stderr, flush=True)
    deadline = time.monotonic() + SBATCH_TIMEOUT
    for is_last in (False, True):  # a controller that was busy may take the job after its first answer
        while True:
            try:
                # Without an earlier job, one that has ended already counts as well.
                job = _job_of_script(script, before, states="" if before else "all")
                break
            except SlurmError as silence:
                if time.monotonic() > deadline:
                    raise UnknownJob(f"{error}; squeue: {silence}") from None
            time.sleep(_PAUSE)
        if job:
            return job
        if not is_last:
            time.sleep(_PAUSE)
    return ""


def take_back(script: str, job: str) -> str:
    """Cancel a job that was submitted before Ctrl-C was noticed, and return its id; empty if SLURM has no such job.

    Args:
        script: the path of its script.
        job: its id; empty if it is unknown.

    Raises:
        NotCancelled: it is not cancelled.
    """
    try:
        job = job or _job_of_script(script)
        if job:
            ask_slurm("scancel", job)
    except SlurmError as error:
        if job:
            raise NotCancelled(
                f"the SLURM job {job} was submitted already, and is not cancelled: {error}; `scancel {job}` cancels it",
                job,
            ) from None
        raise NotCancelled(
            f"it is unknown whether SLURM has taken the job: {error}; `squeue --me` lists it, and scancel ends it", ""
        ) from None
    return job


def _job_of_script(script: str, before: str = "", states: str = "") -> str:
    """Return the id of this user's job with that script; empty without one. Raises SlurmError.

    Args:
        script: the path of the script.
        before: id of a job that does not count; of the task of an array, nor do the array's other tasks.
        states: states of the jobs that count; empty: those that have not ended.
    """
    which = [f"--states={states}"] if states else []
    array, _, task = before.partition("_")
    answer = ask_slurm("squeue", "--noheader", "--array", f"--user={_user()}", *which, "--format=%F|%K|%o")
    jobs = (line.strip().split("|", 2) for line in answer.splitlines() if line.count("|") >= 2)
    matching = (job for job, number, command in jobs if command == script and job != array and task in ("", number))
    return next(matching, "")


def _job_in(answer: str) -> str:
    """Return the id of the job in the answer of sbatch. Raises SlurmError."""
    job = answer.split("\n")[-2 if answer.endswith("\n") else -1].partition(";")[0].strip()
    if not is_job_id(job):
        raise SlurmError(f"sbatch answers {answer.strip()[:80]!r}, which is not the id of a job")
    return job


class JobCache:
    """This user's jobs in SLURM's queue, cached for a few seconds."""

    def __init__(self) -> None:
        self._asked = -_CACHE_SECONDS
        self._asked_at = 0.0  # by the wall clock
        self._jobs: dict[str, Job] | None = None
        self._records: dict[str, str] = {}

    def job(self, job: str, submitted: float = 0.0) -> Job | None:
        """Return a job; None if SLURM does not answer. A job that SLURM does not list is COMPLETED.

        `submitted`: seconds since the epoch at which it was submitted; a cached answer may be older than the job.
        """
        age = time.monotonic() - self._asked
        is_new = job not in (self._jobs or {}) and self._asked_at <= submitted
        if age >= _CACHE_SECONDS or (is_new and age >= _NEW_JOB_SECONDS):
            self._asked_at = time.time()
            self._jobs, self._records = _ask_queue(), {}
            self._asked = time.monotonic()
        elif is_new:
            return None
        return None if self._jobs is None else self._jobs.get(job, Job("COMPLETED"))

    def records(self, array: str) -> str:
        """Return what SLURM says about the tasks of an array, not older than the jobs' states; empty without an answer."""
        if array not in self._records:
            try:
                self._records[array] = ask_slurm("scontrol", "--oneliner", "show", "job", array)
            except SlurmError:
                self._records[array] = ""
        return self._records[array]

    def forget(self) -> None:
        """Drop the cached answer."""
        self._asked = -_CACHE_SECONDS


JOB_CACHE = JobCache()
"""The cache of this process."""


def _ask_queue() -> dict[str, Job] | None:
    command = ("squeue", "--noheader", "--array", f"--user={_user()}", "--states=all", "--format=%i|%T|%S|%e|%r")
    try:
        answer = ask_slurm(*command)
    except SlurmError:
        return None
    jobs = {}
    for line in answer.splitlines():
        job, _, rest = line.strip().partition("|")
        state, _, rest = rest.partition("|")
        start, _, rest = rest.partition("|")
        end, _, reason = rest.partition("|")
        start = start if re.fullmatch(r"[0-9T:-]{1,20}", start) else ""
        jobs[job] = Job(state, "" if reason in ("None", "") else reason[:80], start, _is_past(end))
    return jobs


def _is_past(moment: str) -> bool:
    """Return whether a time from SLURM is in the past, with a margin for clock skew."""
    try:
        return datetime.fromisoformat(moment).timestamp() < time.time() + _CLOCK_SKEW
    except (ValueError, OverflowError, OSError):  # `Unknown`, `N/A`
        return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a user name
        return str(os.getuid())


def why_ended(job: str) -> str:
    """Return how a job has ended, as a phrase."""
    array, of_array, _ = job.partition("_")
    why = why_task_over(job, JOB_CACHE.records(array)) if of_array else why_over(job)
    return why or f"the SLURM job {job} has ended"


def requeue(job: str, excluded: str = "") -> None:
    """Requeue a running job, which ends it on its nodes. Raises SlurmError.

    Retries for some minutes if the controller does not answer, since it may be restarting.

    Args:
        job: its id.
        excluded: names of the nodes to exclude from its next start. If given, the caller must ignore SIGTERM: SLURM accepts
            them only after it has begun to end the job.
    """
    deadline = time.monotonic() + _CONTROLLER_OUTAGE
    while True:
        try:
            ask_slurm("scontrol", "requeue", job)
            break
        except SlurmError as error:
            if not error.is_silence or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
    if excluded:
        try:
            ask_slurm("scontrol", "update", f"jobid={job}", f"excnodelist={excluded}")
        except SlurmError as error:
            print(f"podrun: SLURM does not exclude {excluded} from the job {job}: {error}", file=sys.stderr, flush=True)


def nodes_to_exclude(job: str, node: str, options: Sequence[str], script: str) -> str:
    """Return the nodes to exclude from the job's next start: `node`, and those that the job excludes already.

    Returns an empty text unless SLURM confirms that enough other nodes are up: otherwise the job might wait forever.
    """
    try:
        excluded = _EXCLUDED.search(ask_slurm("scontrol", "--oneliner", "show", "job", job))
        before = excluded[1] if excluded and excluded[1] != "(null)" else ""
        names = f"{before},{node}" if before else node
        ask_slurm("sbatch", "--test-only", *_options_of_next(options), f"--exclude={names}", script)
    except SlurmError:
        return ""
    return names


def submit_next(job: str, options: Sequence[str], script: str, excluded: str = "") -> str:
    """Submit a script again, to start when `job` has ended, and return the new job's id. Raises SlurmError.

    `excluded`: names of the nodes to exclude from it.
    """
    without = [f"--exclude={excluded}"] if excluded else []
    return submit([*_options_of_next(options), *without, f"--dependency=afterany:{job}"], script, before=job)


def _options_of_next(options: Sequence[str]) -> list[str]:
    return [word for word in options if word != "--hold"]


def cancel_pending(jobs: Sequence[str]) -> None:
    """Cancel those of the jobs that are pending. Raises SlurmError."""
    if alone := [job for job in jobs if "_" not in job]:
        ask_slurm("scancel", "--state=PENDING", *alone)
    tasks = [job for job in jobs if "_" in job]
    if not tasks:
        return
    JOB_CACHE.forget()
    pending = [job for job in tasks if (state := JOB_CACHE.job(job)) is not None and state.is_pending]
    _scancel(pending)  # with --state, SLURM 22.05 would cancel all pending tasks of the array


def signal_scripts(jobs: Sequence[str]) -> None:
    """Send SIGTERM only to the batch scripts of running jobs, not to their steps. Raises SlurmError."""
    _scancel(jobs, "--batch", "--signal=TERM")


def _scancel(jobs: Sequence[str], *options: str) -> None:
    """Call scancel once. Raises SlurmError unless it has failed only for tasks of arrays that have ended meanwhile."""
    if not jobs:
        return
    try:
        ask_slurm("scancel", *options, *_in_ranges(jobs))
    except SlurmError as error:
        lines = [line for line in error.message.splitlines() if not _TASK_HAS_ENDED.search(line)]
        if lines:
            raise SlurmError(lines[-1], "\n".join(lines)) from None


def _in_ranges(jobs: Sequence[str]) -> list[str]:
    """Return jobs as arguments of SLURM's programs, the tasks of an array together: `4711_[0-3,7]`."""
    tasks: dict[str, list[int]] = {}
    for job in jobs:
        array, of_array, number = job.partition("_")
        tasks.setdefault(array, []).extend([int(number)] if of_array else [])
    return [
        f"{array}_[{','.join(_ranges(sorted(set(numbers))))}]" if numbers else array for array, numbers in tasks.items()
    ]


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers as ranges: `0-3`, `7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in ranges]

"""Submit runs to a SLURM whose programs are scripts, and press Ctrl-C at each moment."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from podrun.launcher.engines.slurm.batch import JOB_CACHE, submit_next
from podrun.launcher.engines.slurm.job import SlurmError
from podrun.launcher.engines.slurm.submission import end_jobs
from podrun.launcher.rundir.runs import RunDirectory, all_runs
from podrun.runtime.contract import ExitCode

from ....conftest import Podrun, Sandbox

JOB = "4711"
INTERRUPT = "kill -INT $PPID; kill -INT $PPID"
LISTED = f'case "$*" in *%o*) for script in $PODRUN_HOME/runs/*/job.sh; do echo "{JOB}|N/A|$script"; exit; done;; esac'
ARRAY = ("--slurm=time=10", "--slice=cpu-1x1", "--array", "N=0,1,2", "--", "python", "-c", "pass")


@pytest.fixture
def slurm(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(sandbox.path, monkeypatch)


class Slurm:
    """Programs of SLURM, which note how they are called, and answer as if the job were in the queue."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bin, self._calls = path / "bin", path / "calls"
        self._bin.mkdir()
        JOB_CACHE.forget()
        self._calls.touch()
        self._home = path / "home"
        monkeypatch.setenv("PATH", f"{self._bin}:/usr/bin:/bin")
        self.program("sinfo", f"echo {socket.gethostname()}")  # the only node, so that no folder has to be shared
        for name in ("scontrol", "scancel"):
            self.program(name, "")
        self.program("sbatch", f"echo {JOB}")
        self.program("squeue", LISTED)

    def program(self, name: str, script: str) -> None:
        file = self._bin / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._calls}\n{script}\n')
        file.chmod(0o755)

    def cancelled(self) -> list[str]:
        return self.calls("scancel")

    def calls(self, name: str) -> list[str]:
        return [line for line in self._calls.read_text().splitlines() if line.startswith(name)]

    def forget_calls(self) -> None:
        self._calls.write_text("")
        JOB_CACHE.forget()

    def jobs(self) -> list[str | None]:
        """Return the recorded job of each run."""
        runs = self._home / "runs"
        return [RunDirectory(path).job() for path in sorted(runs.iterdir())] if runs.is_dir() else []


def interrupt_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C twice while the second of the runs is recorded."""
    record = RunDirectory.record_job
    monkeypatch.setattr(RunDirectory, "record_job", lambda run, job: (interrupt_second(run), record(run, job))[1])


def interrupt_second(run: RunDirectory) -> None:
    if run.run_id.endswith("_1") and run.job() is None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_while_runs_are_recorded(slurm: Slurm, in_process: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is cancelled, the user is told so, and no run is left."""
    interrupt_records(monkeypatch)
    done = in_process(*ARRAY)
    told = f"podrun: the SLURM job {JOB} was submitted already, and is cancelled\npodrun: interrupted\n"
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, told)
    assert slurm.cancelled() == [f"scancel {JOB}"]
    assert slurm.jobs() == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("answers", [True, False])
def test_ctrl_c_while_sbatch_runs(slurm: Slurm, in_process: Podrun, answers: bool) -> None:
    """A job that SLURM has taken is cancelled, also if sbatch no longer answers."""
    slurm.program("sbatch", f"{INTERRUPT}; {f'echo {JOB}' if answers else 'exec sleep 100'}")
    done = in_process(*ARRAY)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (ExitCode.INTERRUPTED, "podrun: interrupted")
    assert f"the SLURM job {JOB} was submitted already, and is cancelled" in done.stderr
    assert slurm.cancelled() == [f"scancel {JOB}"]
    assert slurm.jobs() == []


def test_ctrl_c_before_slurm_has_the_job(slurm: Slurm, in_process: Podrun) -> None:
    slurm.program("sbatch", f"{INTERRUPT}; exec sleep 100")
    slurm.program("squeue", "echo '7|N/A|/another/job.sh'")
    done = in_process(*ARRAY)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "podrun: interrupted\n")
    assert (slurm.cancelled(), slurm.jobs()) == ([], [])


@pytest.mark.parametrize("when", ["sbatch", "records"])
def test_a_job_that_cannot_be_cancelled_is_named(
    slurm: Slurm, in_process: Podrun, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The user learns why and what to do by hand, and its runs stay known."""
    if when == "sbatch":
        slurm.program("sbatch", f"{INTERRUPT}; echo {JOB}")
    else:
        interrupt_records(monkeypatch)
    slurm.program("scancel", "echo 'scancel: error: Kill job error on job id 4711: Access denied' >&2; exit 1")
    done = in_process(*ARRAY)
    assert done.returncode == ExitCode.INTERRUPTED
    assert done.stderr == (
        f"podrun: the SLURM job {JOB} was submitted already, and is not cancelled: Kill job error on job id {JOB}: Access "
        f"denied; `scancel {JOB}` cancels it\npodrun: interrupted\n"
    )
    assert slurm.jobs() == [f"{JOB}_{number}" for number in range(3)]


def test_a_queue_that_does_not_say_whether_it_has_the_job(slurm: Slurm, in_process: Podrun) -> None:
    slurm.program("sbatch", f"{INTERRUPT}; exec sleep 100")
    slurm.program("squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    done = in_process(*ARRAY)
    assert done.returncode == ExitCode.INTERRUPTED
    assert "it is unknown whether SLURM has taken the job: Unable to contact slurm controller" in done.stderr
    assert "`squeue --me` lists it" in done.stderr
    assert len(slurm.jobs()) == 3, "a job in the queue would find no run"


@pytest.mark.parametrize("words", [ARRAY, (*ARRAY[:2], *ARRAY[4:])])
def test_ctrl_c_after_the_submission_ends_only_the_question_why_it_waits(
    slurm: Slurm, in_process: Podrun, words: tuple[str, ...]
) -> None:
    slurm.program("squeue", INTERRUPT)
    done = in_process(*words)
    assert done.returncode == 0, done.stderr
    assert JOB in done.stdout and "podrun stop" in done.stdout
    assert slurm.cancelled() == []
    assert json.dumps(slurm.jobs()).count(JOB) == (3 if "--array" in words else 1)


def squeue_of(states: dict[int, str]) -> str:
    lines = (f"{JOB}_{number}|{state}|N/A|N/A|None" for number, state in states.items())
    return "\n".join(f"echo '{line}'" for line in lines)


MANY = (
    "--slurm=time=10",
    "--slice=cpu-1x1",
    "--array",
    f"N={','.join(map(str, range(30)))}",
    "--",
    "python",
    "-c",
    "0",
)


def test_an_array_in_the_queue_is_stopped_by_one_call(slurm: Slurm, in_process: Podrun, tmp_path: Path) -> None:
    """However many tasks it has; SLURM is asked for all of them together."""
    array = json.loads(in_process("--json", *MANY).stdout)["array"]
    slurm.program("squeue", f"[ -e {tmp_path}/gone ] && exit\n" + squeue_of(dict.fromkeys(range(30), "PENDING")))
    slurm.program("scancel", f"touch {tmp_path}/gone")
    slurm.forget_calls()
    done = in_process("stop", array)
    assert done.returncode == 0, done.stderr
    assert "30 interrupted" in done.stdout
    assert slurm.cancelled() == [f"scancel {JOB}_[0-29]"]
    assert len(slurm.calls("squeue")) <= 5 and not slurm.calls("scontrol")


def test_the_tasks_of_an_array_are_signalled_by_one_call(slurm: Slurm, in_process: Podrun) -> None:
    """Pending tasks are cancelled; a task that ends meanwhile is no error, but any other failure is."""
    assert in_process(*MANY).returncode == 0
    waiting = dict.fromkeys(range(10, 30), "PENDING")
    slurm.program("squeue", squeue_of({**dict.fromkeys(range(10), "RUNNING"), 3: "COMPLETED", **waiting}))
    error = "scancel: error: Kill job error on job id 4711_5: {}"
    slurm.program(
        "scancel", f"case $* in *TERM*) echo '{error.format('Invalid job id specified')}' >&2; exit 229;; esac"
    )
    slurm.forget_calls()
    runs = [(run, run.job() or "") for run in reversed(all_runs())]
    assert end_jobs(runs, now=True) == [number == 3 for number in range(30)]
    signalled = (
        f"scancel --batch --signal=TERM {JOB}_[0-2,4-29]"  # this squeue does not notice that tasks were cancelled
    )
    assert slurm.cancelled() == [f"scancel {JOB}_[10-29]", signalled, signalled]
    slurm.program("scancel", f"case $* in *TERM*) echo '{error.format('Access denied')}' >&2; exit 1;; esac")
    with pytest.raises(SlurmError, match="job id 4711_5: Access denied"):
        end_jobs(runs, now=False)


def test_why_the_tasks_of_an_array_have_ended_is_one_question(slurm: Slurm, in_process: Podrun) -> None:
    """As SLURM 22.05 answers about tasks that were cancelled: before they began they are one record."""
    array = json.loads(in_process("--json", *MANY).stdout)["array"]
    slurm.program("squeue", "")
    record = f"JobId={{}} ArrayJobId={JOB} ArrayTaskId={{}} JobName=x JobState={{}} Reason=None"
    records = [record.format(4712, 0, "NODE_FAIL"), record.format(4711, "1-29", "CANCELLED")]
    slurm.program("scontrol", "\n".join(f"echo '{record}'" for record in records))
    slurm.forget_calls()
    done = in_process("status", "--json", array)
    assert done.returncode == 0, done.stderr
    messages = [row["message"] for row in json.loads(done.stdout)]
    assert f"the SLURM job {JOB}_0 has lost a node: NODE_FAIL" in messages[0]
    assert all(f"the SLURM job {JOB}_{n} was cancelled" in message for n, message in enumerate(messages) if n)
    assert slurm.calls("scontrol") == [f"scontrol --oneliner show job {JOB}"]


# --- the answer of sbatch is lost ---

LOST = [
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
    "echo 'sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received' >&2; exit 1",
    "kill -9 $$",
    "exec sleep 100",
    "echo Welcome",
]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podrun.launcher.engines.slurm.job._SLOW_AFTER", 0.2)
    monkeypatch.setattr("podrun.launcher.engines.slurm.batch.SBATCH_TIMEOUT", 0.4)
    monkeypatch.setattr("podrun.launcher.engines.slurm.batch._PAUSE", 0.0)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("lost", LOST)
def test_a_job_that_slurm_has_taken_without_an_answer(slurm: Slurm, in_process: Podrun, lost: str) -> None:
    """The run has the job, as if sbatch had answered."""
    slurm.program("sbatch", lost)
    done = in_process(*ARRAY)
    assert done.returncode == 0, done.stderr
    assert "asking SLURM's queue for the job" in done.stderr
    assert slurm.jobs() == [f"{JOB}_{number}" for number in range(3)]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("lost", LOST)
def test_a_job_that_slurm_has_not_taken(slurm: Slurm, in_process: Podrun, lost: str) -> None:
    """It is looked for twice, and nothing is left."""
    slurm.program("sbatch", lost)
    slurm.program("squeue", "echo '7|N/A|/another/job.sh'; echo '8|/a|b'; echo ''")
    done = in_process(*ARRAY)
    assert done.returncode == ExitCode.BAD_CONFIG
    assert "SLURM has not taken the job" in done.stderr
    assert (len(slurm.calls("squeue")), slurm.jobs()) == (2, [])


def test_a_refused_job_is_not_looked_for(slurm: Slurm, in_process: Podrun) -> None:
    slurm.program("sbatch", "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    assert in_process(*ARRAY).returncode == ExitCode.BAD_CONFIG
    assert (slurm.calls("squeue"), slurm.jobs()) == ([], [])


@pytest.mark.usefixtures("hurried")
def test_a_queue_that_does_not_answer_after_sbatch(slurm: Slurm, in_process: Podrun) -> None:
    """The runs are kept, since their job may begin."""
    slurm.program("sbatch", LOST[0])
    slurm.program("squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    done = in_process(*ARRAY)
    assert done.returncode == ExitCode.BAD_CONFIG
    assert "it is unknown whether SLURM has taken the job: " in done.stderr and "submit it again" in done.stderr
    assert slurm.jobs() == [None] * 3


def test_a_comparison_submits_no_variant_twice(
    slurm: Slurm, in_process: Podrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs would write to one workdir. A refused variant is submitted again when another, as here, has ended."""
    monkeypatch.setattr("podrun.launcher.engines.slurm.batch.SBATCH_TIMEOUT", 5.0)
    once = slurm._bin / "once"
    slurm.program("sbatch", f"[ -e {once} ] || {{ touch {once}; echo {JOB}; exit; }}\n{LOST[0]}")
    slurm.program("squeue", 'case "$*" in *%o*) echo "Unable to contact slurm controller" >&2; exit 1;; esac')
    done = in_process("compare", "--slurm=time=10", "--slice=cpu-1x1", "small.yaml", "--over", "seed=1,2")
    assert done.returncode != 0
    assert "it is unknown whether SLURM has taken the job: " in done.stdout
    assert len([call for call in slurm.calls("sbatch") if "--test-only" not in call]) == 2
    assert slurm.jobs() == [JOB, None]


@pytest.mark.usefixtures("hurried")
def test_ctrl_c_while_the_job_is_looked_for(slurm: Slurm, in_process: Podrun) -> None:
    slurm.program("sbatch", LOST[0])
    once = slurm._bin / "once"
    slurm.program("squeue", f"[ -e {once} ] || {{ touch {once}; {INTERRUPT}; exec sleep 100; }}\n{LISTED}")
    done = in_process(*ARRAY)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (ExitCode.INTERRUPTED, "podrun: interrupted")
    assert (slurm.cancelled(), slurm.jobs()) == ([f"scancel {JOB}"], [])


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("job", "queue", "found"),
    [
        ("10", "10|N/A|/s\n11|N/A|/s", "11"),
        ("10", "10|N/A|/s", ""),
        ("10_3", "10|3|/s\n9|2|/s\n11|3|/s", "11"),  # 9 is the array from which 10_3 was continued
        ("10_3", "10|3|/s\n9|2|/s", ""),
    ],
)
def test_the_next_job_is_not_taken_for_the_one_before(slurm: Slurm, job: str, queue: str, found: str) -> None:
    """Both have the same script."""
    slurm.program("sbatch", LOST[0])
    slurm.program("squeue", f"printf '{queue}\n'")
    if found:
        assert submit_next(job, [], "/s") == found
    else:
        with pytest.raises(SlurmError, match="Socket timed out"):
            submit_next(job, [], "/s")

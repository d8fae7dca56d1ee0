"""Read what srun and scontrol say, and what podrun makes of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from podrun.launcher.engines.slurm import batch
from podrun.launcher.engines.slurm.batch import Job, JobCache, nodes_to_exclude, requeue, submit
from podrun.launcher.engines.slurm.job import SlurmError, is_job_id, last_line, time_left, why_over
from podrun.launcher.engines.slurm.srun import plain_env
from podrun.launcher.engines.slurm.srun_errors import command_stderr, why_not_started


@pytest.fixture(autouse=True)
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that `scontrol` and `squeue` print. Without this file there is no SLURM on this machine."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    for name in ("scontrol", "squeue"):
        program = tmp_path / "bin" / name
        program.write_text(
            f"#!/bin/sh\n[ -e {tmp_path}/answer ] && exec cat {tmp_path}/answer\ncat {tmp_path}/error >&2; exit 1\n"
        )
        program.chmod(0o755)
    return tmp_path / "answer"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Unable to create step for job 7: Requested node configuration is not available", "is not one of this job"),
        ("Unable to confirm allocation for job 7: Invalid job id specified", "the SLURM job 7 has ended"),
        ("Unable to create step for job 7: Job/step already completing or completed", "the SLURM job 7 has ended"),
        (
            "Unable to create step for job 7: Required node not available (down, drained or reserved)",
            "`sinfo -R` says why",
        ),
        ("Unable to create step for job 7: Requested nodes are busy", "its resources are taken"),
        ("Unable to create step for job 7: Memory required by task is not available", "its resources are taken"),
        ("Unable to create step for job 7: Invalid generic resource (gres) specification", "has made no step there"),
        ("Unable to allocate resources: Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("If munged is up, restart with --num-threads=10", "is munged up on both machines"),
        ("Unable to allocate resources: Invalid authentication credential", "is munged up on both machines"),
        ("Unable to confirm allocation for job 7: Access/permission denied", "is it yours?"),
        ("Task launch for StepId=7.0 failed on node h1: Communication connection failure", "`sinfo -R` says why"),
    ],
)
def test_what_srun_says(line: str, what: str) -> None:
    """One line, with srun's own words at its end."""
    why = why_not_started(f"srun: error: {line}\n", "7")
    assert why is not None and what in why and why.endswith(f"({line})") and "\n" not in why


def test_an_srun_that_waits_says_for_what() -> None:
    text = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    assert "its resources are taken" in str(why_not_started(text, "7"))


def test_a_missing_interpreter() -> None:
    text = "slurmstepd: error: execve(): /no/python: No such file or directory\nsrun: error: h1: task 0: Exited\n"
    assert str(why_not_started(text, "7")).startswith(
        "no /no/python there (No such file or directory); give an absolute"
    )


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            [
                "child 21 failed with error code: 1",
                "failed to create container filesystem for image: /no.sqsh",
                "printing enroot log file:",
                "    [ERROR] No such file or directory: /no.sqsh",
            ],
            "failed to create container filesystem for image: /no.sqsh; [ERROR] No such file or directory: /no.sqsh",
        ),
        (
            [
                "container start failed with error code: 1",
                "printing enroot log file:",
                "    enroot-switchroot: failed to execute: /bin/sh: No such file or directory",
                "container was not started successfully by another task",
            ],
            "enroot-switchroot: failed to execute: /bin/sh: No such file or directory",
        ),
        (
            [
                "--container-mounts: source path does not exist: /no",
                "couldn't create enroot start configuration script",
                "printing enroot log file:",
                "    [INFO] Extracting squashfs filesystem...",
                "    created 5 files",
            ],
            "--container-mounts: source path does not exist: /no",
        ),
    ],
)
def test_what_pyxis_says(lines: list[str], why: str) -> None:
    """As pyxis 0.24 and enroot 4.1 on SLURM 22.05 do."""
    text = "".join(f"slurmstepd-h0: error: pyxis: {line}\n" for line in lines)
    text += "slurmstepd-h0: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
    told = why_not_started(text + "srun: error: h0: task 0: Exited with exit code 1\n", "7")
    assert told == f"pyxis cannot start the image: {why}; see `container:` in the pod file"


def test_an_srun_without_pyxis() -> None:
    text = "srun: unrecognized option '--container-image=a.sqsh'\nTry \"srun --help\" for more information\n"
    assert "pyxis is not installed there" in str(why_not_started(text, "7"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "srun: error: h1: task 0: Exited with exit code 1\n",
        "Invalid job id of my program\nsrun: error: h1: task 0: Killed\n",
    ],
)
def test_a_command_that_was_started_is_not_blamed_on_slurm(text: str) -> None:
    assert why_not_started(text, "7") is None


def test_the_words_of_the_command_alone() -> None:
    text = "boom\nslurmstepd-h1: error: *** STEP 7.0 ON h1 CANCELLED ***\nsrun: error: h1: task 0: Exited with exit code 1\n"
    assert command_stderr(text) == "boom"
    assert last_line("\nscontrol: error: no such thing\n\n") == "no such thing"


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ("JobState=RUNNING Reason=None", None),
        ("JobState=COMPLETING Reason=None", "the SLURM job 7 is being ended, and SLURM does not say why yet"),
        ("JobState=COMPLETING Reason=TimeLimit", "the SLURM job 7 has reached its time limit"),
        ("JobState=CANCELLED Reason=None", "the SLURM job 7 was cancelled"),
        ("JobState=TIMEOUT Reason=TimeLimit", "the SLURM job 7 has reached its time limit"),
        ("JobState=PREEMPTED Reason=None", "the SLURM job 7 was preempted by another job"),
        ("JobState=NODE_FAIL Reason=NodeDown", "the SLURM job 7 has lost a node: NODE_FAIL"),
        ("JobState=PENDING Reason=BeginTime", "the SLURM job 7 was requeued"),
        ("JobState=SPECIAL_EXIT Reason=None", "the SLURM job 7 has ended: SPECIAL_EXIT"),
        ("nonsense", None),
        ("", None),
    ],
)
def test_states_of_a_job(answer: Path, state: str, what: str | None) -> None:
    others = (
        "JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=x JobState=FAILED Reason=None\n"  # the array has the id of a task
    )
    answer.write_text(f"{others}JobId=7 JobName=x UserId=me(1) {state} Dependency=(null)\n")
    assert why_over("7") == what


@pytest.mark.parametrize(
    ("announced", "what"),
    [
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "the SLURM job 7 has lost a node: NODE_FAIL"),
        (" DUE TO PREEMPTION", "the SLURM job 7 was preempted by another job"),
        (" DUE TO TIME LIMIT", "the SLURM job 7 has reached its time limit"),
        (" DUE TO JOB REQUEUE", "the SLURM job 7 was requeued"),
        ("", "the SLURM job 7 was cancelled"),
        (" DUE TO THE MOON", "the SLURM job 7 is being ended, and SLURM does not say why yet"),
    ],
)
def test_the_output_of_a_batch_job_says_why_it_is_ended(
    answer: Path, tmp_path: Path, announced: str, what: str
) -> None:
    """As slurmstepd of SLURM 22.05 writes it, the last time for this start; other jobs and steps do not count."""
    output = tmp_path / "job.out"
    line = "slurmstepd-h0: error: *** {} ON h0 CANCELLED AT 2026-11-25T00:44:02{} ***\n"
    lines = [line.format("JOB 7", " DUE TO JOB REQUEUE"), "step 4/9\n", line.format("JOB 7", announced)]
    lines += [line.format("STEP 7.0", " DUE TO PREEMPTION"), line.format("JOB 71", " DUE TO PREEMPTION")]
    output.write_text("".join(lines))
    answer.write_text(f"JobId=7 JobState=COMPLETING Reason=None StdErr={output} StdIn=/dev/null\n")
    assert why_over("7") == what


def test_a_job_that_completes_has_ended_unless_it_is_put_back(answer: Path) -> None:
    """Its end lies in the past then; as `squeue` of SLURM 22.05 answers."""
    past, future = "2026-01-01T00:00:00", "2099-01-01T00:00:00"
    for end, is_ending in ((past, True), ("Unknown", False), (future, False), ("N/A", False)):
        answer.write_text(f"7|COMPLETING|{past}|{end}|None\n")
        job = JobCache().job("7")
        assert job is not None and (job.is_ending, job.is_over) == (is_ending, False), end
    answer.write_text(f"7|RUNNING|{past}|{past}|None\n")
    job = JobCache().job("7")
    assert job is not None and not job.is_ending


def test_all_that_sbatch_says(tmp_path: Path) -> None:
    """Its last line alone is often the least of it."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(
        "#!/bin/sh\necho \"sbatch: unrecognized option '--foo=bar'\" >&2\necho 'Try --help' >&2\nexit 255\n"
    )
    sbatch.chmod(0o755)
    with pytest.raises(SlurmError) as caught:
        submit(["--foo=bar"], "job.sh")
    assert str(caught.value) == "unrecognized option '--foo=bar'\nTry --help\n`sbatch --help` lists the options"


def programs(tmp_path: Path, **scripts: str) -> Path:
    """Put programs of SLURM's in place, which note how they are called, and return the file of their calls."""
    calls = tmp_path / "calls"
    calls.touch()
    for name, script in scripts.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{script}\n')
        program.chmod(0o755)
    return calls


def test_a_job_is_put_back_without_a_node(tmp_path: Path) -> None:
    """SLURM takes the exclusion once the job is no longer running; what was excluded before still is."""
    calls = programs(tmp_path, scontrol="echo JobId=7 ExcNodeList=n[1-2] NodeList=n[3-4]", sbatch="")
    names = nodes_to_exclude("7", "n4", ["--nodes=2", "--hold"], "job.sh")
    assert names == "n[1-2],n4"
    requeue("7", names)
    assert calls.read_text().splitlines()[1:] == [
        "sbatch --test-only --nodes=2 --exclude=n[1-2],n4 job.sh",
        "scontrol requeue 7",
        "scontrol update jobid=7 excnodelist=n[1-2],n4",
    ]


def test_a_node_is_not_left_out_where_slurm_has_no_other(tmp_path: Path) -> None:
    """Else the job would wait for ever."""
    calls = programs(tmp_path, scontrol="echo JobId=7 'ExcNodeList=(null)'", sbatch="echo no >&2; exit 1")
    assert nodes_to_exclude("7", "n4", ["--nodes=2"], "job.sh") == ""
    requeue("7", "")
    assert "--exclude=n4" in calls.read_text() and "excnodelist" not in calls.read_text()


def test_a_controller_that_is_being_restarted_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_PAUSE", 0.0)
    silent = "slurm_requeue error: Unable to contact slurm controller (connect failure)"
    first = f"[ -e {tmp_path}/up ] || {{ touch {tmp_path}/up; echo '{silent}' >&2; exit 1; }}"
    calls = programs(tmp_path, scontrol=first)
    requeue("7")
    assert calls.read_text().splitlines() == ["scontrol requeue 7"] * 2
    programs(tmp_path, scontrol="echo 'Requested operation is presently disabled for job 7' >&2; exit 1")
    with pytest.raises(SlurmError, match="presently disabled"):
        requeue("7")


def test_a_job_that_slurm_does_not_know_any_more(answer: Path) -> None:
    answer.with_name("error").write_text("slurm_load_jobs error: Invalid job id specified\n")
    assert why_over("7") == "the SLURM job 7 has ended"
    answer.with_name("error").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
    assert why_over("7") is None
    assert time_left("7") is None


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("7 1-02:00:00\n", "1-02:00:00"),
        ("8 5:00\n7 UNLIMITED\n", "UNLIMITED"),
        ("7 \x1b[2J\n", None),
        ("8 5:00\n", None),
        ("", None),
    ],
)
def test_the_time_that_is_left(answer: Path, said: str, left: str | None) -> None:
    """An array and its last task have the same id, by which SLURM answers with all tasks."""
    answer.write_text(said)
    assert time_left("7") == left


def test_ids_of_jobs() -> None:
    assert all(is_job_id(text) for text in ("7", "71_3", "71+1"))
    assert not any(is_job_id(text) for text in ("", "-7", "7 ", "7\n", "all", "7;ls"))


def test_settings_of_the_user_do_not_change_what_srun_does() -> None:
    """Such as SLURM_EXACT or SRUN_CPUS_PER_TASK, which would leave each step one CPU."""
    env = {
        "SLURM_CONF": "c",
        "SLURM_EXACT": "1",
        "SRUN_CPUS_PER_TASK": "1",
        "SALLOC_X": "1",
        "PATH": "p",
        "SLURMD_DEBUG": "1",
    }
    assert plain_env(env) == {"SLURM_CONF": "c", "PATH": "p"}


def test_an_answer_from_before_a_job_was_submitted_says_nothing_of_it(answer: Path) -> None:
    """SLURM is asked again, though its last answer is seconds old; a job that it has forgotten is over."""
    queue = JobCache()
    answer.write_text("7|RUNNING|2026-01-01T00:00:00|Unknown|None\n")
    assert queue.job("7") == Job("RUNNING", "", "2026-01-01T00:00:00")
    submitted = time.time()
    answer.write_text("7|RUNNING|2026-01-01T00:00:00|Unknown|None\n8|PENDING|N/A|N/A|Resources\n")
    assert queue.job("8", submitted) is None
    time.sleep(0.6)
    assert queue.job("8", submitted) == Job("PENDING", "Resources")
    assert queue.job("5", submitted) == Job("COMPLETED")

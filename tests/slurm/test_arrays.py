"""`podrun --slurm=OPTIONS --array KEY=A,B`: a run for each value, as the tasks of one job array of a real SLURM."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from typing import Any

import pytest

from podrun.runtime.contract import ExitCode

from ..hosts import wait_until
from .conftest import PACED, LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OPTIONS = "--slurm=time=10,signal=30"
PROGRAM = """\
import os, sys
text = os.environ["LR"]
print("value", text, sys.argv[1:], flush=True)
if text == "7":
    raise ValueError("boom")
"""
LASTING = """\
import os, pathlib, time
mark = pathlib.Path(os.environ["MARKS"], os.environ["N"])
with mark.open("a") as file:
    file.write("begun\\n")
if len(mark.read_text().splitlines()) == 1:
    time.sleep(1000)
"""


def array(login: LoginNode, *words: str) -> tuple[str, list[dict[str, Any]]]:
    """Submit an array, and return its id and its runs."""
    done = login.podrun("--json", *words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["array"], answer["runs"]


def states(login: LoginNode, group: str) -> list[str]:
    return [row["state"] for row in json.loads(login.podrun("status", "--json", group).stdout)]


def test_twelve_of_which_one_fails(login: LoginNode) -> None:
    """The others end well; exit code and last lines name the one that failed, and why."""
    (login.path / "program.py").write_text(PROGRAM)
    numbers = ",".join(map(str, range(12)))
    words = [OPTIONS, "--slice=cpu-1x1", "--array", f"LR={numbers}", "--at-once=6"]
    group, runs = array(login, *words, "--", "python", "program.py", "--lr={LR}", "{other}")
    assert [run["name"] for run in runs] == [f"LR={n}" for n in range(12)]
    array_job = runs[0]["slurm_job"].partition("_")[0]
    assert [run["slurm_job"] for run in runs] == [f"{array_job}_{n}" for n in range(12)]
    done = login.podrun("attach", group)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == f"podrun: {group} has ended: 11 done, 1 failed"
    (last,) = done.stderr.splitlines()
    assert last.startswith(f"podrun: {group}_07 (LR=7): failed: h"), last
    assert "ValueError: boom (program.py:5) [exit code 1]" in last
    assert states(login, group) == ["done"] * 7 + ["failed"] + ["done"] * 4
    status = login.podrun("status", group)
    assert status.stdout.startswith(f"array {group}: 12 tasks: 11 done, 1 failed\n")
    assert f"{group}_07 (LR=7): failed" in status.stdout.splitlines()[-1]
    (row,) = (line for line in login.podrun("ps").stdout.splitlines() if group in line)
    assert re.search(r"11 done, 1 failed .* array of 12", row), row
    logs = login.podrun("logs", group[-6:])
    for number in range(12):
        assert f"value {number} ['--lr={number}', '{{other}}']" in logs.stdout, logs.stdout
    assert logs.stdout.count(f"== {group}_") == 12
    assert login.podrun("status", f"{group}_03").stdout.startswith(f"run {group}_03: done")
    login.wait_until_gone()


def test_values_reach_programs_as_they_were_typed(login: LoginNode) -> None:
    (login.path / "program.py").write_text(
        "import json, os, sys\nprint(json.dumps([os.environ['V'], *sys.argv[1:]]))\n"
    )
    values = ["a b", "", "it's", 'say "x"', "k=v,w", "$HOME `id`", "zwei\nZeilen", "ü {host}", "-1", "null"]
    quoted = (value.replace('"', '\\"') for value in values)
    typed = ",".join(f'"{value}"' for value in quoted)
    words = [OPTIONS, "--slice=cpu-1x1", "--array", f"V={typed}", "--", "python", "program.py", "{V}", "x={V}"]
    group, runs = array(login, *words)
    assert len(runs) == len(values)
    done = login.podrun("attach", group)
    assert done.returncode == 0, done.stderr
    logs = [login.podrun("logs", run["run"]).stdout for run in runs]
    got = [json.loads(log.strip().splitlines()[-1]) for log in logs]
    for value, (variable, *arguments) in zip(values, got, strict=True):
        assert arguments == [value, f"x={value}"]
        assert variable == value or "{host}" in value


def test_keys_of_a_job_and_their_product(login: LoginNode) -> None:
    """Each run has a workdir of its own, where the same command resumes it."""
    words = ["--slice=cpu-1x1", f"--workdir={login.path / 'shared'}", "small.yaml"]
    axes = ["--array", "optimizer.learning_rate=0.1,0.01", "--array", "seed=1,2"]
    for steps in (4, 6):
        _, runs = array(login, OPTIONS, *axes, *words, f"steps={steps}", "checkpoint.every=2")
        assert [run["name"] for run in runs] == [
            f"learning_rate={rate} seed={seed}" for rate in ("0.1", "0.01") for seed in (1, 2)
        ]
        done = login.podrun("attach")
        assert done.returncode == 0, done.stderr
    losses = [login.losses(f"shared/learning_rate={rate},seed={seed}") for rate in ("0.1", "0.01") for seed in (1, 2)]
    assert all(sorted(each) == list(range(1, 7)) for each in losses)
    assert len({each[6] for each in losses}) == 4
    assert login.status(runs[0]["run"])["step"] == 6
    login.wait_until_gone()


def test_a_stopped_array(login: LoginNode) -> None:
    """Runs in the queue are cancelled, and those that run save first."""
    words = ["--slice=cpu-1x1", f"--workdir={login.path / 'shared'}", "small.yaml", "steps=100000", PACED]
    group, runs = array(login, f"{OPTIONS},exclusive,nodelist=h0", "--array", "seed=1,2,3", *words)
    login.wait_for_steps(runs[0]["run"])
    assert states(login, group) == ["running", "pending", "pending"]
    status = login.podrun("status", group).stdout
    assert "1 running, 2 pending" in status or "2 pending, 1 running" in status
    assert re.search(r"waits in the queue of SLURM as job \d+_1: ", status), status
    following = login.podrun("logs", "-f", group)
    assert following.returncode == ExitCode.BAD_CONFIG and "follows one run" in following.stderr
    watching = subprocess.Popen(
        [*login.command, "attach", group], cwd=login.path, env=login.env, stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout
    assert "waits in the queue" in watching.stdout.readline() and "runs on h0" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(30) == 0 and "goes on" in watching.stdout.read()
    stopped = login.podrun("stop", runs[1]["run"])
    assert stopped.returncode == 0, stopped.stderr
    assert states(login, group) == ["running", "interrupted", "pending"], "SLURM cancels one task"
    stopped = login.podrun("stop", group)
    assert stopped.returncode == 0, stopped.stderr
    assert states(login, group) == ["interrupted"] * 3
    messages = [row["message"] for row in json.loads(login.podrun("status", "--json", group).stdout)]
    assert "the checkpoint of step" in messages[0] and "taken out of it" in messages[1]
    assert "has ended already" in login.podrun("stop", group).stdout
    wait_until(lambda: not login.cluster.jobs(), "the end of the jobs")
    login.wait_until_gone()


def test_a_run_whose_node_is_set_down_starts_again_alone(login: LoginNode) -> None:
    """SLURM requeues the task; the others go on."""
    (login.path / "program.py").write_text(LASTING)
    marks = login.path / "marks"
    marks.mkdir()
    words = [f"{OPTIONS},exclusive", "--slice=cpu-2x1", "--array", "N=0,1", f"launch.env.MARKS={marks}"]
    text = LASTING.replace('os.environ["N"]', 'os.environ["N"] + "-" + os.environ["RANK"]')
    (login.path / "program.py").write_text(text)
    group, runs = array(login, *words, "--", "python", "program.py")
    wait_until(lambda: len(list(marks.iterdir())) == 4, "all processes", 60)
    second = runs[1]["run"]
    lost = list(next(e["hosts"] for e in login.events(second) if e["event"] == "start"))[1]
    login.cluster.ask("scontrol", "update", f"nodename={lost}", "state=down", "reason=fan")
    wait_until(lambda: login.status(second)["state"] == "pending", f"{second} to be back in the queue", 60)
    assert login.job_of(second) == runs[1]["slurm_job"]
    assert states(login, group)[0] == "running"
    login.cluster.hosts.run(["scontrol", "update", f"nodename={lost}", "state=resume"], env=login.cluster.env)
    login.hurry(second)
    wait_until(lambda: login.status(second)["state"] == "done", f"the end of {second}", 90)
    stopped = login.podrun("stop", "--now", group)
    assert stopped.returncode == 0, stopped.stderr
    assert states(login, group) == ["interrupted", "done"]
    assert (marks / "1-0").read_text() == (marks / "1-1").read_text() == "begun\n" * 2
    login.wait_until_gone()


def test_another_job_for_the_one_that_slurm_does_not_requeue(login: LoginNode) -> None:
    words = ["--slice=cpu-1x1", f"--workdir={login.path / 'shared'}", "small.yaml", "steps=100000", PACED]
    group, runs = array(login, f"{OPTIONS},no-requeue", "--array", "seed=1,2", *words)
    second = runs[1]["run"]
    for run in runs:
        login.wait_for_steps(run["run"])
    login.cluster.ask("scancel", "--batch", "--signal=USR1", runs[1]["slurm_job"])
    login.wait_for_steps(second, 1)
    assert login.job_of(second).endswith("_1") and login.job_of(second) != runs[1]["slurm_job"]
    assert login.job_of(runs[0]["run"]) == runs[0]["slurm_job"]
    assert len(login.cluster.jobs()) == 2, "only the one task is submitted again"
    stopped = login.podrun("stop", "--now", group)
    assert stopped.returncode == 0, stopped.stderr
    login.wait_until_gone()


def test_mistakes_leave_nothing(login: LoginNode) -> None:
    """Each with what, where and a remedy, and exit code 2."""
    program = ["--", "python", "-c", "pass"]
    mistakes: list[tuple[list[str], str]] = [
        (["--array", "LR", *program], "--array LR: write key.path=value,value"),
        (["--array", "LR=1,,2", *program], "value 2 is empty; an empty text is ''"),
        (["--array", "LR=1,1", *program], "1 is there twice; keep one of them"),
        (["--array", "LR='1,2", *program], "a bracket or a quote has no partner"),
        (["--array", "LR=1", "--array", "LR=2", *program], "--array LR is there twice"),
        (["--array", f"N={','.join(map(str, range(10_000)))}", *program], "10000 variants, more than 1000"),
        (["--array", "optimizer.lr=1,2", *program], "they replace {optimizer.lr} in its arguments"),
        (["--array", "optimizer.learning_rat=1,2", "small.yaml"], "learning_rate"),
        (["--array", "seed=1,2", "small.yaml", "seed=3"], "one value on the command line and several in --array"),
        (["--array", "launch.slice=cpu-1x1,cpu-2x1", "small.yaml"], "use --slice, --pod and --workdir"),
        (["--array", "seed=1,2", "--compile-ahead", "small.yaml"], "leave it out with --array"),
        (["--at-once=2", *program], "--at-once is for --array"),
        (["--array", "N=1,2", "--slurm=partition=nope", *program], "`sinfo --summarize` lists the partitions"),
        (["--array", "N=1,2", "--slurm=time=10,array=1-2", *program], "`podrun --array KEY=A,B` submits"),
    ]
    for words, text in mistakes:
        done = login.podrun(OPTIONS, "--slice=cpu-1x1", *words)
        assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.BAD_CONFIG, False), done.stderr
        assert text in done.stderr and len(done.stderr) < 1500, done.stderr
    elsewhere = login.podrun("--local", "--array", "N=1,2", *program)
    assert elsewhere.returncode == ExitCode.BAD_CONFIG
    assert "give the options of the job with --slurm" in elsewhere.stderr
    shown = login.podrun(OPTIONS, "--slice=cpu-1x1", "--array", "N=1,2", "--dry-run", *program)
    assert shown.returncode == 0, shown.stderr
    assert "--array=0-1 " in shown.stdout and shown.stdout.splitlines()[-1] == "task 1: N=2"
    assert json.loads(login.podrun("ps", "--all", "--json").stdout) == []
    assert not login.cluster.jobs()


SLOW = """\
#!/bin/sh
case "$*" in *--array=*) ;; *) exec {sbatch} "$@";; esac
touch {path}/asked
{before}
{sbatch} "$@"
{after}
"""


class SlowLogin(LoginNode):
    """Submit where sbatch takes long, before or after SLURM has the job."""

    before, after = "sleep 2", ""

    @property
    def env(self) -> dict[str, str]:
        path = super().env["PATH"]
        sbatch = self.path / "bin" / "sbatch"
        sbatch.parent.mkdir(exist_ok=True)
        real = shutil.which("sbatch", path=path)
        sbatch.write_text(SLOW.format(sbatch=real, path=self.path, before=self.before, after=self.after))
        sbatch.chmod(0o755)
        return {**super().env, "PATH": f"{sbatch.parent}:{path}"}

    def submit_slowly(self, options: str) -> subprocess.Popen[str]:
        """Start the submission of an array, and return when sbatch runs."""
        words = [options, "--slice=cpu-1x1", "--array", "N=0,1", "--", "python", "-c", "pass"]
        process = subprocess.Popen(
            [*self.command, *words], cwd=self.path, env=self.env, stderr=subprocess.PIPE, text=True
        )
        wait_until((self.path / "asked").exists, "sbatch")
        return process


@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_while_it_is_submitted(login: LoginNode, after: bool) -> None:
    """Leave neither runs nor jobs, also where SLURM has taken the array already."""
    login = SlowLogin(login.path, login.cluster)
    if after:
        login.before, login.after = "", "sleep 2"
    submitting = login.submit_slowly(f"{OPTIONS},hold")
    if after:
        wait_until(lambda: bool(login.cluster.jobs()), "the jobs")
    submitting.send_signal(signal.SIGINT)
    _, errors = submitting.communicate(timeout=30)
    cancelled, last = errors.splitlines()
    assert (submitting.returncode, last) == (ExitCode.INTERRUPTED, "podrun: interrupted"), errors
    assert re.fullmatch(r"podrun: the SLURM job \d+ was submitted already, and is cancelled", cancelled), errors
    assert json.loads(login.podrun("ps", "--all", "--json").stdout) == []
    wait_until(lambda: not login.cluster.jobs(), "the end of the jobs")


def test_runs_whose_submitter_is_killed(login: LoginNode) -> None:
    """They record their jobs themselves when they start, and are runs like others."""
    login = SlowLogin(login.path, login.cluster)
    submitting = login.submit_slowly(OPTIONS)
    submitting.kill()
    submitting.wait()
    wait_until(lambda: bool(login.cluster.jobs()), "the jobs")
    wait_until(lambda: not login.cluster.jobs(), "the end of the jobs", 60)
    rows = json.loads(login.podrun("status", "--json").stdout)
    assert [row["state"] for row in rows] == ["done"] * 2
    assert [row["slurm_job"].partition("_")[2] for row in rows] == ["0", "1"]
    login.wait_until_gone()


WAITING = """\
import os, pathlib, time
print("value", number := os.environ["N"], flush=True)
while not pathlib.Path(os.environ["MARKS"], number).exists():
    time.sleep(0.1)
raise SystemExit(3 if number == "2" else 0)
"""


def test_attach_of_a_later_task(login: LoginNode) -> None:
    """It is followed from the queue to its end as a single run: its output alone, and its exit code."""
    (login.path / "program.py").write_text(WAITING)
    marks = login.path / "marks"
    marks.mkdir()
    words = [f"{OPTIONS},exclusive,nodelist=h0", "--slice=cpu-1x1", "--array", "N=0,1,2", f"launch.env.MARKS={marks}"]
    _, runs = array(login, *words, "--", "python", "program.py")
    last = runs[2]["run"]
    watching = subprocess.Popen(
        [*login.command, "attach", last], cwd=login.path, env=login.env, stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout
    assert re.search(rf"{last} waits in the queue of SLURM as job \d+_2: ", watching.stdout.readline())
    for number in range(3):
        (marks / str(number)).touch()
    output, _ = watching.communicate(timeout=120)
    assert watching.returncode == 3, output
    assert "value 2" in output and "value 0" not in output and "value 1" not in output
    assert login.podrun("attach", runs[1]["run"]).returncode == 0
    login.wait_until_gone()

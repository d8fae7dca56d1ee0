"""The report at the end of a run."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from podrun.launcher.attempt.cause import Failure
from podrun.launcher.attempt.outcome import Outcome
from podrun.launcher.attempt.view import View
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.report import last_line, report
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.view.console import PlainConsole
from podrun.runtime.config import Config, Launch
from podrun.runtime.contract import ExitCode

from ..rundir.made import begin, event, make, record


def plan_of(job: Config) -> LaunchPlan:
    pod = simulated_pod(parse_slice("cpu-1x2"))
    return make_plan(RunSpec("r", pod, job, Path("/w"), Path("/")))


def test_results_of_a_program_on_other_machines() -> None:
    """The command that brings them is named, if the program has saved."""
    plan = make_plan(
        RunSpec("r", simulated_pod(parse_slice("cpu-1x2")), Program(("a",), Launch()), Path("/w"), Path("/"))
    )
    remote = replace(plan, run=replace(plan.run, pod=replace(plan.run.pod, transport="ssh")))
    for outcome, wanted in ((Outcome(0, saved_step=5), True), (Outcome(0), False)):
        out = io.StringIO()
        report(outcome, remote, RunDirectory(Path("/runs/r")), cast(View, PlainConsole(out)))
        assert ("results      `podrun pull r` brings" in out.getvalue()) is wanted
    out = io.StringIO()
    report(Outcome(0, saved_step=5), plan, RunDirectory(Path("/runs/r")), cast(View, PlainConsole(out)))
    assert "podrun pull" not in out.getvalue()


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("tensorboard", [True, False])
def test_where_everything_is(
    tensorboard: bool, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were not written are not named, and a command that is not installed not without saying so."""
    if installed:
        (tmp_path / "tensorboard").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    job = Config.model_validate({"steps": 3, "batch_size": 64, "log": {"tensorboard": tensorboard}})
    plan = plan_of(job)
    out = io.StringIO()
    report(Outcome(0), plan, RunDirectory(Path("/runs/r")), cast(View, PlainConsole(out)))
    said = out.getvalue().splitlines()
    missing = "/w/tensorboard  (pip install tensorboard; tensorboard --logdir ...)"
    board = [f"tensorboard  {'tensorboard --logdir /w/tensorboard' if installed else missing}"] if tensorboard else []
    assert said == [
        "metrics      /w/metrics.jsonl",
        "checkpoints  /w/checkpoints",
        *board,
        "logs         /runs/r/logs",
        "page         podrun report r",
        "evaluate     podrun evaluate r",
        "generate     podrun generate r --prompt TEXT",
        "podrun: done",
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {"task": "regression"},
        {"parallel": "ensemble"},
        {"data": {"name": "tokens", "path": "ids.bin"}},
        {"data": "my.data:make"},
    ],
)
def test_a_model_that_writes_no_text(keys: dict[str, Any]) -> None:
    """It can be evaluated."""
    plan = plan_of(Config.model_validate({"steps": 3, "batch_size": 64, **keys}))
    out = io.StringIO()
    report(Outcome(0), plan, RunDirectory(Path("/runs/r")), cast(View, PlainConsole(out)))
    assert out.getvalue().splitlines()[-2:] == ["evaluate     podrun evaluate r", "podrun: done"]


def test_what_a_program_wrote_beside_its_code() -> None:
    """One line for all hosts and attempts, with the command that brings the files."""
    directory = make()
    begin(directory, 0)
    record(directory, event("host", host="host-0", phase="stopped", left=[], kept="/h/host-0.0/code"))
    begin(directory, 1)
    for n in range(2):
        record(directory, event("host", host=f"host-{n}", phase="stopped", left=[], kept=f"/h/host-{n}.1/code"))
    out = io.StringIO()
    report(Outcome(0), make_plan(directory.spec(), 1), directory, cast(View, PlainConsole(out)))
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("files")]
    assert line == (
        "files        host-0:/h/host-0.1/code and in 2 more folders; "
        f"`podrun pull {directory.run_id} files` brings what the program wrote there"
    )


def test_results_on_a_host_say_so() -> None:
    """Their paths are no paths of this machine; the command that brings them is named."""
    job = Config.model_validate({"steps": 3, "batch_size": 64, "log": {"tensorboard": True}})
    plan = plan_of(job)
    plan = replace(plan, run=replace(plan.run, pod=replace(plan.pod, transport="ssh")))
    out = io.StringIO()
    report(Outcome(0), plan, RunDirectory(Path("/runs/r")), cast(View, PlainConsole(out)))
    assert out.getvalue().splitlines() == [
        "metrics      host-0:/w/metrics.jsonl",
        "checkpoints  host-0:/w/checkpoints",
        "tensorboard  host-0:/w/tensorboard  (pip install tensorboard; tensorboard --logdir ...)",
        "             `podrun pull r` brings them here",
        "logs         /runs/r/logs",
        "page         podrun report r",
        "podrun: done",
    ]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"saved_step": 7}, "; the checkpoint of step 7 is complete; the same command resumes the run"),
        ({"no_checkpoint": True}, "; there is no checkpoint yet, so the same command begins anew"),
        ({}, "; the same command goes on from the newest checkpoint, if there is one"),
    ],
)
def test_what_the_same_command_will_do(outcome: dict[str, Any], words: str) -> None:
    """An interrupted run promises no more than there is."""
    plan = plan_of(Config.model_validate({"steps": 3, "batch_size": 64}))
    stopped = Outcome(130, interrupted_by=2, **outcome)
    assert last_line(stopped, plan) == f"interrupted{words} [exit code 130]"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"no_checkpoint": True}, "; there is no checkpoint yet, so the same command begins anew"),
        ({}, ""),
        ({"saved_step": 7}, "; the checkpoint of step 7 is complete; the same command resumes the run"),
    ],
)
def test_what_the_same_command_of_a_program_will_do(outcome: dict[str, Any], words: str) -> None:
    """Nothing is known of a program that does not use podrun's loop."""
    pod = simulated_pod(parse_slice("cpu-1x2"))
    plan = make_plan(RunSpec("r", pod, Program(("a",), Launch()), Path("/w"), Path("/")))
    stopped = Outcome(130, interrupted_by=2, **outcome)
    assert last_line(stopped, plan) == f"interrupted{words} [exit code 130]"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({}, "interrupted"),
        ({"stopped_by": "`podrun stop` (ann on login1)"}, "stopped by `podrun stop` (ann on login1)"),
        ({"hurried": True}, "interrupted twice, so stopped at once; no process is left"),
        (
            {"hurried": True, "stopped_by": "`podrun stop --now` (ann on login1)"},
            "stopped by `podrun stop --now` (ann on login1), at once; no process is left",
        ),
    ],
)
def test_who_has_stopped_a_run(outcome: dict[str, Any], words: str) -> None:
    pod = simulated_pod(parse_slice("cpu-1x2"))
    plan = make_plan(RunSpec("r", pod, Program(("a",), Launch()), Path("/w"), Path("/")))
    assert last_line(Outcome(143, interrupted_by=15, **outcome), plan) == f"{words} [exit code 143]"


def test_the_same_trouble_of_many_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line says what to do; of each other host one line says what happened."""
    failures = [
        Failure(f"h{i}", None, f"h{i} refused the login of me\nput the key there", ExitCode.UNAVAILABLE)
        for i in range(3)
    ]
    plan = plan_of(Config.model_validate({"steps": 3, "batch_size": 64}))
    outcome = Outcome(ExitCode.UNAVAILABLE, cause=failures[0], failures=failures)
    report(outcome, plan, RunDirectory(tmp_path), cast(View, PlainConsole(io.StringIO())))
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "after that: h1: h1 refused the login of me; h2: h2 refused the login of me"
    assert rest == ["podrun: failed: h0: h0 refused the login of me", "put the key there [exit code 69]"]


@pytest.mark.parametrize(
    ("attempt", "words"), [(0, "done"), (1, "done, after 1 restart"), (3, "done, after 3 restarts")]
)
def test_a_run_that_was_restarted_says_so(attempt: int, words: str) -> None:
    job = Config.model_validate({"steps": 3, "batch_size": 64})
    assert last_line(Outcome(ExitCode.DONE), replace(plan_of(job), attempt=attempt)) == words

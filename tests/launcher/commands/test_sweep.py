"""`podrun sweep` with runs that are made by hand, or cannot start: what the machine does is no trial's fault."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.config import Config
from podrun.runtime.config.optimizer import AdamW
from podrun.runtime.contract import ExitCode

from ...conftest import Sandbox
from .conftest import Make, Podrun

SWEEP = ("sweep", "--slice", "cpu-1x1", "--simulate", "sweep.yaml")
FILE = """
program: [python, trial.py, "{x}"]
space: {x: {values: [1, 2]}}
search: grid
metric: max score
"""


@pytest.fixture(autouse=True)
def folder(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a sweep.yaml in the current folder, and returns that."""
    monkeypatch.chdir(sandbox.path)
    (sandbox.path / "trial.py").write_text("")
    (sandbox.path / "sweep.yaml").write_text(FILE)
    return sandbox.path


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs" / "sweep" / "sweep.jsonl").read_text().splitlines()]


def test_a_machine_on_which_no_run_can_start_stops_the_sweep_and_costs_no_trial(
    podrun: Podrun, folder: Path, home: Path
) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "runs").write_text("in the way of the runs' records")
    done = podrun(*SWEEP)
    assert done.code == 1 and "Traceback" not in done.err
    assert "trial 0 cannot start: cannot make the run directory" in done.err
    assert "go on with: podrun sweep" in done.err
    assert [event["event"] for event in journal(folder)] == ["sweep", "trial"]


RUN = "20261128-151707-c47a9f"


@pytest.fixture
def killed(podrun: Podrun, folder: Path, home: Path) -> Callable[..., None]:
    """Leaves a sweep that was killed while its first trial ran."""

    def left(**start: Any) -> None:
        (home / "runs").write_text("so that nothing starts")
        podrun(*SWEEP)
        (home / "runs").unlink()
        started = {"event": "start", "time": 1.0, "trial": 0, "run": RUN, "hosts": ["host-0"]}
        where = {"home": str(home), "machine": socket.gethostname()}
        with (folder / "runs" / "sweep" / "sweep.jsonl").open("a") as file:
            print(json.dumps({**started, **where, **start}), file=file)

    home.mkdir(mode=0o700, exist_ok=True)
    return left


def test_a_run_that_cannot_be_brought_to_an_end_stops_the_sweep(
    podrun: Podrun, folder: Path, killed: Callable[..., None], make: Make
) -> None:
    """Podrun tries it once, and says so in one sentence."""
    killed()
    run = make(RUN, begin=False).directory
    run.events.unlink(missing_ok=True)
    run.events.mkdir()
    done = podrun(*SWEEP)
    assert done.code == 1
    message = f"podrun: run {RUN} of trial 0 cannot be brought to an end: see {run.supervisor_log}; go on with: podrun"
    assert done.err.splitlines()[-1].startswith(message) and done.err.count("cannot be brought") == 1
    assert journal(folder)[-1]["event"] == "resume"


def test_a_run_of_another_home_is_looked_for_there(
    podrun: Podrun,
    folder: Path,
    home: Path,
    killed: Callable[..., None],
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trial never runs twice at once, although the run's record is not among the runs of this podrun."""
    killed()
    make(RUN, begin=False).end(0, message="done")
    other = folder / "other"
    other.mkdir(mode=0o700)
    (other / "runs").write_text("so that nothing starts")
    monkeypatch.setenv("PODRUN_HOME", str(other))
    done = podrun(*SWEEP)
    assert "trial 1 cannot start" in done.err
    resume = next(event for event in journal(folder) if event["event"] == "resume")
    assert resume["last"] == next(RunDirectory(home / "runs" / RUN).newest_events())["time"]
    assert [(event["event"], event.get("trial")) for event in journal(folder)[-3:]] == [
        *(("resume", None), ("fail", 0), ("trial", 1))
    ]


def test_a_run_of_another_machine_that_may_go_on_is_refused(
    podrun: Podrun, folder: Path, killed: Callable[..., None]
) -> None:
    killed(machine="login7")
    before = journal(folder)
    done = podrun(*SWEEP)
    assert done.code == 2 and done.out == ""
    assert f"trial 0 may still run: login7 has started its run {RUN}" in done.err and "on host-0, remove" in done.err
    assert journal(folder) == before


def test_fewer_trials_at_once_than_were_running(
    podrun: Podrun, folder: Path, killed: Callable[..., None], make: Make
) -> None:
    """Podrun first brings their runs to an end, on whatever hosts they are."""
    killed()
    make(RUN, begin=False).end(0, message="done")
    second = "20261128-151707-c47aa0"
    shutil.copytree(make(RUN, begin=False).directory.path, make(second, begin=False).directory.path, dirs_exist_ok=True)
    started = journal(folder)[-1]
    with (folder / "runs" / "sweep" / "sweep.jsonl").open("a") as file:
        print(json.dumps({"event": "trial", "time": 1.0, "trial": 1, "values": {"x": 2}}), file=file)
        print(json.dumps({**started, "trial": 1, "run": second}), file=file)
    done = podrun(*SWEEP)
    assert done.code == 1, done.err
    assert {event["trial"] for event in journal(folder) if event["event"] == "fail"} == {0, 1}
    assert journal(folder)[-1]["is_complete"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"event": "trial", "trial": 0, "values": {"x": 9}}, 'trial 0 has {"x": 9} in place of {"x": 1}'),
        ({"event": "trial", "trial": 0, "values": {}}, 'trial 0 has {} in place of {"x": 1}'),
        ({"event": "trial", "trial": 1, "values": {"x": 2}}, "trial 1 is chosen in place of trial 0"),
    ],
)
def test_a_journal_with_a_trial_of_another_sweep_is_refused(
    podrun: Podrun, folder: Path, killed: Callable[..., None], line: dict[str, Any], why: str
) -> None:
    killed()
    path = folder / "runs" / "sweep" / "sweep.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (journal(folder)[0], {"time": 1.0, **line})))
    done = podrun(*SWEEP)
    assert done.code == 2 and f"contradicts itself: {why}; restore it" in done.err


@pytest.mark.parametrize("name", ["..yaml", "...yaml"])
def test_a_sweep_has_a_folder_of_its_own(podrun: Podrun, folder: Path, name: str) -> None:
    (folder / "sweep.yaml").rename(folder / name)
    done = podrun(*SWEEP[:-1], name)
    assert done.code == 2 and "name the file otherwise" in done.err
    assert not (folder / "sweep.jsonl").exists() and not (folder / "runs").exists()


def supervised(lost: Collection[str], spec: RunSpec, directory: RunDirectory, bundles: object) -> int:
    """Take the place of a run's supervisor: the run is done at once, or has lost its hosts."""
    if spec.pod.hosts[0].name in lost:
        directory.record_end("did not come back within 5 minutes", 69)
        return 69
    (spec.workdir / "metrics.jsonl").write_text('{"kind": "eval", "step": 1, "score": 1}')
    directory.record_end("done", 0)
    return 0


@pytest.mark.parametrize(
    ("lost", "code", "stops"), [(["host-1"], 0, 1), (["host-0", "host-1"], 69, 2)], ids=["one of two", "all"]
)
def test_a_lost_host_costs_no_trial_and_gets_no_other(
    podrun: Podrun, folder: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str], code: int, stops: int
) -> None:
    """A part of the pod whose trials fail at once would be free first each time, and take all of them."""

    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", partial(supervised, lost))
    (folder / "sweep.yaml").write_text(FILE.replace("[1, 2]", "[1, 2, 3, 4]") + "side_by_side: 2\n")
    done = podrun("sweep", "--slice", "cpu-2x1", "--simulate", "sweep.yaml")
    assert done.code == code, done.err
    events = [event["event"] for event in journal(folder)]
    assert events.count("stop") == stops and "fail" not in events
    assert f"no more trials start on {lost[0]}" in done.out
    assert ("no part of the pod is left" in done.err) == (code == 69)


def computed(wrong: Collection[str], spec: RunSpec, directory: RunDirectory, bundles: object) -> int:
    """Take the place of a run's supervisor: the job is trained at once, or one of these hosts computes wrongly."""
    if (host := spec.pod.hosts[0].name) not in wrong:
        return trained(spec, directory, bundles)
    differs = f"{host} (process 0): its values of the state differ after step 1, in params.bias"
    directory.record_end(differs, ExitCode.DIVERGED)
    return ExitCode.DIVERGED


@pytest.mark.parametrize(
    ("wrong", "code", "stops"), [(["host-1"], 0, 1), (["host-0", "host-1"], 78, 2)], ids=["one of two", "all"]
)
def test_a_host_that_computes_wrongly_costs_no_trial_and_gets_no_other(
    podrun: Podrun,
    folder: Path,
    early: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    wrong: list[str],
    code: int,
    stops: int,
) -> None:
    """With early stopping each of its trials would count as the worst at the first rung."""
    early("trials: 9", "side_by_side: 2\nretries: 0\n")
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", partial(computed, wrong))
    done = podrun("sweep", "--slice", "cpu-2x1", "--simulate", "sweep.yaml")
    assert done.code == code, done.err
    events = [event["event"] for event in journal(folder)]
    assert events.count("stop") == stops and "fail" not in events
    assert f"no more trials start on {wrong[0]}" in done.out
    assert ("no part of the pod is left" in done.err) == (code == 78)


def test_a_part_that_computes_wrongly_in_each_call_costs_no_trial(
    podrun: Podrun, folder: Path, early: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep goes on as soon as the host is mended."""
    early("trials: 9", "retries: 0\n")
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", partial(computed, ["host-0"]))
    for _ in range(3):
        done = podrun(*SWEEP)
        assert done.code == 78 and "; replace the hosts that compute wrongly; go on with:" in done.err
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", trained)
    done = podrun(*SWEEP)
    assert done.code == 0, done.err
    kinds = [event["event"] for event in journal(folder)]
    assert kinds.count("fail") == 0 and kinds.count("stop") == 3


def test_a_trial_that_computes_wrongly_on_one_part_after_another_fails(
    podrun: Podrun, folder: Path, early: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be its own doing, and the sweep would never get past it."""
    early("trials: 1")
    whole = EARLY.replace("early_stopping: {min_steps: 1}", "budget: {trials: 1}")
    (folder / "sweep.yaml").write_text(f"{whole}side_by_side: 3\nretries: 0\n")
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", partial(computed, ["host-0", "host-1"]))
    podrun("sweep", "--slice", "cpu-3x1", "--simulate", "sweep.yaml")
    assert [event["event"] for event in journal(folder)][-2:] == ["fail", "end"]
    assert journal(folder)[-2]["code"] == 78


def test_results_that_cannot_be_written_are_in_the_code_of_the_event_end(
    podrun: Podrun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", partial(supervised, ()))
    (folder / "runs" / "sweep" / "trials.csv").mkdir(parents=True)
    done = podrun(*SWEEP)
    assert done.code == 1 and "cannot write the results" in done.err
    assert (
        journal(folder)[-1]["event"] == "end" and journal(folder)[-1]["code"] == 1 and journal(folder)[-1]["done"] == 2
    )


def test_a_sweep_does_not_go_on_with_hosts_of_another_kind(
    podrun: Podrun, folder: Path, killed: Callable[..., None]
) -> None:
    """Such as a real pod in place of one that was simulated, whose slice has the same name."""
    killed()
    begun, *more = journal(folder)
    lines = [json.dumps(event) + "\n" for event in ({**begun, "transport": "ssh"}, *more)]
    (folder / "runs" / "sweep" / "sweep.jsonl").write_text("".join(lines))
    done = podrun(*SWEEP)
    assert done.code == 2 and 'the transport to its hosts was "ssh", and is "' in done.err


JOB = "task: regression\nsteps: 9\nbatch_size: 8\neval: {every: 1}\n"
EARLY = """
job: train.yaml
space: {optimizer.learning_rate: {min: 1.0e-3, max: 1.0, log: true}}
metric: min loss
early_stopping: {min_steps: 1}
"""


def trained(spec: RunSpec, directory: RunDirectory, bundles: object) -> int:
    """Take the place of a run's supervisor: the job is trained at once, from its newest evaluation on."""
    job = spec.job
    assert isinstance(job, Config) and isinstance(job.optimizer, AdamW)
    metrics = spec.workdir / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    with metrics.open("a") as file:
        for step in range(done + 1, (job.stop_at or job.steps or 0) + 1):
            print(json.dumps({"kind": "eval", "step": step, "loss": job.optimizer.learning_rate / step}), file=file)
    directory.record_end("done", 0)
    return 0


@pytest.fixture
def early(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that writes a sweep of trained jobs with early stopping, this budget and more keys."""
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", trained)
    (folder / "train.yaml").write_text(JOB)

    def written(budget: str, more: str = "") -> None:
        (folder / "sweep.yaml").write_text(f"{EARLY}budget: {{{budget}}}\n{more}")

    return written


def rungs(folder: Path) -> dict[int, list[int]]:
    """Return the steps that each trial was trained to, by its number."""
    steps: dict[int, list[int]] = {}
    for event in journal(folder):
        if event["event"] in ("rung", "done"):
            steps.setdefault(event["trial"], []).append(event.get("step", 9))
    return steps


def test_early_stopping_trains_the_best_and_says_which_trials_it_has_pruned(
    podrun: Podrun, folder: Path, early: Callable[[str], None]
) -> None:
    early("trials: 9")
    done = podrun(*SWEEP, "--json")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    rates = [event["values"]["optimizer.learning_rate"] for event in events if event["event"] == "trial"]
    best = min(range(9), key=lambda number: rates[number])
    end = events[-1]
    assert (end["best"], end["is_complete"], end["failed"]) == (best, True, 0)
    assert rungs(folder)[best] == [1, 3, 9] and end["done"] + end["pruned"] == 9
    promoted = {(event["trial"], event["step"]) for event in events if event["event"] == "promote"}
    assert promoted == {(trial, step) for trial, steps in rungs(folder).items() for step in steps[1:]}
    pruned = {event["trial"]: event["step"] for event in events if event["event"] == "prune"}
    assert pruned == {trial: steps[-1] for trial, steps in rungs(folder).items() if steps[-1] < 9}
    assert (folder / "runs" / "sweep" / "sweep.html").read_text().count("pruned at step") == len(pruned)
    again = podrun(*SWEEP, "--json")
    assert [json.loads(line)["event"] for line in again.out.splitlines()] == ["resume", "end"]


def test_a_larger_budget_lets_pruned_trials_go_on(podrun: Podrun, folder: Path, early: Callable[[str], None]) -> None:
    """Those that come later are worse than all before."""
    rates = [number / 100 for number in range(1, 31)]
    searched = EARLY.replace("{min: 1.0e-3, max: 1.0, log: true}", f"{{values: {rates}}}") + "search: grid\n"
    early("trials: 9")
    for count, longest in ((9, 3), (30, 10)):
        (folder / "sweep.yaml").write_text(f"{searched}budget: {{trials: {count}}}\n")
        done = podrun(*SWEEP)
        assert done.code == 0, done.err
        assert sorted(trial for trial, steps in rungs(folder).items() if len(steps) > 1) == [*range(longest)]


def test_a_budget_in_steps_counts_those_up_to_each_rung(
    podrun: Podrun, folder: Path, early: Callable[[str], None]
) -> None:
    early("steps: 30")
    done = podrun(*SWEEP)
    assert done.code == 0, done.err
    assert sum(steps[-1] for steps in rungs(folder).values()) == 30
    assert any(steps == [1, 3, 9] for steps in rungs(folder).values())
    assert "; complete: budget.steps has 0 left, and trial " in done.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("job", "space", "count"),
    [("stop_at: 3", "seed: {values: [1, 2]}", 4), ("", "stop_at: {values: [3]}", 4), ("", "seed: {values: [1, 2]}", 1)],
)
def test_a_budget_in_steps_counts_those_before_stop_at(
    podrun: Podrun, folder: Path, early: Callable[[str], None], job: str, space: str, count: int
) -> None:
    early("steps: 12")
    (folder / "train.yaml").write_text(f"{JOB}{job}\n")
    (folder / "sweep.yaml").write_text(
        f"job: train.yaml\nspace: {{{space}}}\nmetric: min loss\nbudget: {{steps: 12}}\n"
    )
    done = podrun(*SWEEP)
    assert done.code == 0, done.err
    assert [event["event"] for event in journal(folder)].count("done") == count


@pytest.mark.parametrize("budget", ["trials: 5", "steps: 5"])
def test_a_smaller_budget_ends_a_sweep_that_has_begun(
    podrun: Podrun, folder: Path, early: Callable[[str], None], budget: str
) -> None:
    """Although it would be refused for a new one."""
    early("trials: 9")
    podrun(*SWEEP)
    path = folder / "runs" / "sweep" / "sweep.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: 1 + 5 * 3]))
    early(budget)
    done = podrun(*SWEEP)
    assert done.code == 0 and "; complete: budget." in done.out.splitlines()[-1], done.err


@pytest.mark.parametrize("journal", ["", '{"event": "swe'], ids=["empty", "cut off"])
def test_a_journal_without_an_event_is_a_new_sweep(
    podrun: Podrun, folder: Path, early: Callable[..., None], journal: str
) -> None:
    """As a first call leaves it that could not write it: a budget with which no trial is trained to its end is refused."""
    early("trials: 2")
    path = folder / "runs" / "sweep" / "sweep.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(journal)
    done = podrun(*SWEEP)
    assert done.code == 2 and "of 2 trials none is trained to step 9" in done.err


def test_hours_are_counted_although_the_clock_is_set(podrun: Podrun, folder: Path, early: Callable[..., None]) -> None:
    """Set ahead by a day during a call that is killed, it does not end the sweep in the next one."""
    early("trials: 9, hours: 1")
    podrun(*SWEEP)
    first, *more = journal(folder)[: 1 + 2 * 3]
    later = [{**event, "time": event["time"] + 86_400} for event in more]
    path = folder / "runs" / "sweep" / "sweep.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in (first, *later)))
    done = podrun(*SWEEP)
    assert done.code == 0 and "complete: budget.trials is 9" in done.out, done.err


def test_a_full_disk_never_fails_a_trial_that_has_reached_a_rung(
    podrun: Podrun, folder: Path, early: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints had room before. However often the same command is called, it goes on when there is room."""

    def full(spec: RunSpec, directory: RunDirectory, bundles: object) -> int:
        assert isinstance(spec.job, Config)
        if spec.job.stop_at == 1:
            return trained(spec, directory, bundles)
        directory.record_end("OSError: [Errno 28] No space left on device", 1)
        return 1

    early("trials: 9")
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", full)
    for _ in range(3):
        done = podrun(*SWEEP)
        assert done.code == 1 and "No space left on device; make room: " in done.err
        assert "holds the checkpoints of 2 paused trials, which may go on; go on with:" in done.err
    monkeypatch.setattr("podrun.launcher.sweep.run_sweep.supervise", trained)
    done = podrun(*SWEEP)
    assert done.code == 0, done.err
    kinds = [event["event"] for event in journal(folder)]
    assert kinds.count("fail") == 0 and kinds.count("stop") == 3


def test_a_run_left_with_a_full_disk_costs_no_trial(
    podrun: Podrun, folder: Path, killed: Callable[..., None], make: Make
) -> None:
    """The journal could not be written then, so the trial had no chance."""
    killed()
    started, second = journal(folder)[-1], "20261128-151707-c47aa0"
    with (folder / "runs" / "sweep" / "sweep.jsonl").open("a") as file:
        reason = "OSError: [Errno 28] No space left on device"
        print(json.dumps({"event": "stop", "time": 1.0, "trial": 0, "run": RUN, "reason": reason}), file=file)
        print(json.dumps({**started, "run": second}), file=file)
    make(second, begin=False).end(1, host="host-0", message=reason)
    podrun(*SWEEP)
    kinds = [(event["event"], event.get("run")) for event in journal(folder)]
    assert ("stop", second) in kinds and ("fail", second) not in kinds


def test_a_journal_with_other_rungs_is_refused(podrun: Podrun, folder: Path, early: Callable[[str], None]) -> None:
    early("trials: 9")
    podrun(*SWEEP)
    path = folder / "runs" / "sweep" / "sweep.jsonl"
    lines = [json.dumps({**event, "step": 2} if event["event"] == "rung" else event) for event in journal(folder)[:4]]
    path.write_text("".join(f"{line}\n" for line in lines))
    done = podrun(*SWEEP)
    assert done.code == 2 and "trial 0 has paused at steps 2, and the rungs are 1, 3; restore it" in done.err

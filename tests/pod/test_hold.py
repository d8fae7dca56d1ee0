"""A held pod: warm interpreters wait for the next run, whose code is imported anew; nothing is left in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from ..tutorial import commands, run
from .conftest import Run, processes_of

Start = Callable[..., Run]
POD = ("--simulate", "--slice", "cpu-1x1")
TWO_HOSTS = ("--simulate", "--slice", "cpu-2x1")
JOB = ("small.yaml", "steps=1")
ENDLESS = ("small.yaml", "steps=100000", "data={name: 'faulty:paced', options: {seconds: 0.05}}")


@pytest.fixture
def held(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox whose POD is held, or another pod that a test names."""
    done = sandbox.podrun("hold", *getattr(request, "param", POD))
    assert done.returncode == 0, done.stderr
    yield sandbox
    # The hold may learn of the end of a run a moment after the run has ended.
    wait_until(lambda: sandbox.podrun("release", "--all").returncode == 0, "the pod is released")
    assert processes_of(sandbox) == {}
    assert os.listdir(sandbox.path / "home" / "holds") == []


on_two_hosts = pytest.mark.parametrize("held", [TWO_HOSTS], indirect=True, ids=["two hosts"])


def warm(run: Run) -> list[bool]:
    return ["standby" in e for e in run.of("host") if e["phase"] == "started"]


def id_of(run: Run) -> str:
    return str(run.of("start")[0]["run_id"])


def notes(run: Run) -> str:
    return "\n".join(e["message"] for e in run.of("note"))


def holder_of(sandbox: Sandbox) -> int:
    return next(pid for pid, command in processes_of(sandbox).items() if "hold_process" in command)


def interpreters(sandbox: Sandbox) -> int:
    return sum("--hold" in command for command in processes_of(sandbox).values())


def await_ready(sandbox: Sandbox) -> None:
    wait_until(lambda: "all hosts are ready" in sandbox.podrun("hold", "--list").stdout, "all hosts are ready")


@on_two_hosts
def test_runs_on_a_held_pod_are_warm_and_see_changed_code(start: Start, held: Sandbox) -> None:
    module = held.path / "mine.py"
    for colour in ("red", "blue"):
        module.write_text(
            f"def flat(options, peak, steps):\n    print('{colour} code')\n    return lambda step: peak\n"
        )
        run = start(*TWO_HOSTS, *JOB, "schedule.name=mine:flat", "--workdir", colour)
        assert run.end() == 0, run.stderr + notes(run)
        assert warm(run) == [True, True]
        assert "this pod is held since" in notes(run)
        logs = list((held.path / "home" / "runs" / id_of(run) / "logs").glob("host-*.log"))
        assert [f"{colour} code" in log.read_text() for log in logs] == [True, True]
        await_ready(held)
    assert held.podrun("release", *TWO_HOSTS).returncode == 0
    assert processes_of(held) == {}


def test_a_variable_that_the_interpreter_has_read_already_is_named(start: Start, held: Sandbox) -> None:
    run = start(*POD, *JOB, "launch.env.XLA_FLAGS=--xla_force_host_platform_device_count=1")
    assert run.end() == 0, run.stderr
    assert warm(run) == [False]
    assert "cold start on host-" in notes(run)
    assert "XLA_FLAGS changed" in notes(run)
    await_ready(held)
    again = start(*POD, *JOB, "launch.env.XLA_FLAGS=--xla_force_host_platform_device_count=1", "--workdir=again")
    assert again.end() == 0, again.stderr
    assert warm(again) == [True]


def test_a_killed_holder_leaves_nothing_and_the_next_run_is_cold(start: Start, held: Sandbox) -> None:
    os.kill(holder_of(held), signal.SIGKILL)
    wait_until(lambda: processes_of(held) == {}, "all processes have ended")
    run = start(*POD, *JOB)
    assert run.end() == 0, run.stderr
    assert "the hold of this pod is not used: its process is gone" in notes(run)
    assert list((held.path / "home" / "holds").iterdir()) == []


def test_a_pod_is_held_once_and_a_second_run_starts_without_the_hold(start: Start, held: Sandbox) -> None:
    first = start(*POD, *ENDLESS)
    first.wait_for(lambda e: e["event"] == "step")
    second = start(*POD, *JOB, "--workdir", "second")
    assert second.end() == 0, second.stderr
    assert f"run {id_of(first)} uses it" in notes(second)
    refused = held.podrun("release", *POD)
    assert (refused.returncode, f"podrun stop {id_of(first)}" in refused.stderr) == (2, True)
    refused = held.podrun("hold", *POD)
    assert (refused.returncode, "held already" in refused.stderr) == (2, True), refused.stderr
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130
    await_ready(held)


def test_a_killed_launcher_frees_the_hold(start: Start, held: Sandbox) -> None:
    run = start(*POD, *ENDLESS)
    run.wait_for(lambda e: e["event"] == "step")
    run.process.kill()
    await_ready(held)
    wait_until(lambda: interpreters(held) == 1, "the workers of the run have ended")


def test_the_holder_dies_during_a_run_which_goes_on(start: Start, held: Sandbox) -> None:
    run = start(*POD, *ENDLESS)
    run.wait_for(lambda e: e["event"] == "step")
    os.kill(holder_of(held), signal.SIGKILL)
    step = run.of("step")[-1]["step"]
    run.wait_for(lambda e: e["event"] == "step" and e["step"] > step + 3)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert processes_of(held) == {}


def test_the_holder_stands_still_during_a_run_which_goes_on(start: Start, held: Sandbox) -> None:
    run = start(*POD, *ENDLESS)
    run.wait_for(lambda e: e["event"] == "step")
    holder = holder_of(held)
    os.kill(holder, signal.SIGSTOP)
    try:
        later = run.of("step")[-1]["time"] + 12  # longer than the agents' lease
        run.wait_for(lambda e: e["event"] == "step" and e["time"] > later)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    finally:
        os.kill(holder, signal.SIGCONT)
    await_ready(held)


def test_trials_of_a_sweep_and_an_evaluation_use_the_hold(start: Start, held: Sandbox) -> None:
    """They start runs as `podrun train.yaml` does."""
    (held.path / "sweep.yaml").write_text(
        "job: small.yaml\nspace: {steps: {values: [1]}}\nsearch: grid\nmetric: min loss\n"
    )
    done = held.podrun("sweep", *POD, "sweep.yaml")
    assert done.returncode == 0, done.stderr + done.stdout
    await_ready(held)
    (workdir,) = [path.parent for path in held.path.glob("runs/sweep/*/metrics.jsonl")]
    done = held.podrun("evaluate", *POD, str(workdir))
    assert done.returncode == 0, done.stderr
    for record in (held.path / "home" / "runs").glob("*/events.jsonl"):
        events = record.read_text()
        assert "this pod is held since" in events and '"standby": true' in events, events


@on_two_hosts
def test_a_restart_within_a_held_run(start: Start, held: Sandbox) -> None:
    options = ("steps=6", "checkpoint.every=2", "launch.max_restarts=1", "--inject", "kill:host=1@step=4")
    run = start(*TWO_HOSTS, "small.yaml", *options)
    assert run.end() == 0, run.stderr + notes(run)
    await_ready(held)


def test_a_killed_interpreter_is_replaced(held: Sandbox) -> None:
    def waiting() -> set[int]:
        return {pid for pid, command in processes_of(held).items() if "--hold" in command}

    (killed,) = waiting()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(waiting()) == 1 and killed not in waiting(), "there is another one")
    await_ready(held)


def test_modules_of_the_current_folder_are_not_those_of_the_hold(sandbox: Sandbox) -> None:
    (sandbox.path / "queue.py").write_text("raise SystemExit('executed')\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("podrun")), "hold", *POD],
        cwd=sandbox.path,
        env=sandbox.env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert sandbox.podrun("release", "--all").returncode == 0


def test_a_variable_of_the_shell_that_a_library_has_read_already(
    start: Start, held: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAX_FIX_RNG_SEPARATOR", "1")
    (held.path / "mine.py").write_text(
        "import flax\ndef flat(options, peak, steps):\n"
        "    print('separator', flax.config.flax_fix_rng_separator)\n    return lambda step: peak\n"
    )
    run = start(*POD, *JOB, "schedule.name=mine:flat")
    assert run.end() == 0, run.stderr + notes(run)
    assert "FLAX_FIX_RNG_SEPARATOR changed" in notes(run)
    logs = list((held.path / "home" / "runs" / id_of(run) / "logs").glob("host-*.log"))
    assert ["separator True" in log.read_text() for log in logs] == [True]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--idle", "5s", *POD), "too short"),
        (("--idle", "soon", *POD), "not a duration"),
        (("--slice", "cpu-2x1"), "no hosts"),
    ],
)
def test_mistakes(sandbox: Sandbox, args: tuple[str, ...], words: str) -> None:
    done = sandbox.podrun("hold", *args)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not list(sandbox.path.glob("home/holds/*"))


def test_releasing_what_is_not_held(sandbox: Sandbox) -> None:
    done = sandbox.podrun("release", *POD)
    assert (done.returncode, "this pod is not held" in done.stderr) == (2, True), done.stderr
    done = sandbox.podrun("release", "--all")
    assert (done.returncode, done.stdout) == (0, "no pod is held on this machine\n")


@pytest.mark.long
def test_the_page(sandbox: Sandbox) -> None:
    page = (Path(__file__).parents[2] / "docs" / "hold.md").read_text()
    held, trained, listed, released = [run(sandbox, command) for command in commands(page)]
    assert "host-1: ready" in held
    assert "this pod is held since" in trained
    assert "cpu-2x1, 2 hosts simulated" in listed
    assert "released: cpu-2x1" in released
    assert processes_of(sandbox) == {}


def test_an_idle_hold_ends_and_the_next_run_says_so(start: Start, sandbox: Sandbox) -> None:
    assert sandbox.podrun("hold", "--idle", "10s", *POD).returncode == 0
    wait_until(lambda: processes_of(sandbox) == {}, "the hold has ended")
    listed = sandbox.podrun("hold", "--list").stdout
    assert "no pod is held" in listed and "no run came for 10s" in listed
    run = start(*POD, *JOB)
    assert run.end() == 0, run.stderr
    assert "the hold of this pod ended at" in notes(run) and "no run came for 10s" in notes(run)
    assert list(Path(sandbox.path / "home" / "holds").iterdir()) == []


def test_a_full_disk_is_found_before_the_hosts_are_made_ready(sandbox: Sandbox) -> None:
    holds = sandbox.path / "home" / "holds"
    holds.mkdir(parents=True, mode=0o700)
    sandbox.path.joinpath("home").chmod(0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=8k", "tmpfs", holds]).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        done = sandbox.podrun("hold", *POD)
    finally:
        subprocess.run(["umount", holds], check=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"podrun: cannot write in {holds}: No space left on device")
    assert "ready" not in done.stderr

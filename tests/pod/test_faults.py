"""A fault in one process ends the run at once, with the first cause named and nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from ..tiers import mostly_long
from .conftest import Run, kill, processes_of, relays_of

Start = Callable[..., Run]
POD = ("--simulate", "--slice", "cpu-2x1", "small.yaml", "steps=10000000", "eval.every=0")


SLEEP = ("--simulate", "--slice", "cpu-2x1", "--", "sleep", "600")  # for what does not depend on the program


def wait_for_start(run: Run) -> None:
    """Wait until both programs have been started."""
    for _ in range(2):
        run.wait_for(lambda event: event["event"] == "host" and event["phase"] == "started")


def faulty(action: str, process: int = 1, step: int = 5) -> tuple[str, ...]:
    options = f"{{process: {process}, step: {step}, action: {action}}}"
    return (*POD, f"data={{name: 'faulty:dataset', options: {options}}}")


def test_first_cause_is_named(start: Start, sandbox: Sandbox) -> None:
    """Host, process and cause come first, the exit code is the first failure's, and no process is left."""
    run = start(*faulty("raise"))
    assert run.end() == 1
    cause = "RuntimeError: the disk of my dreams is broken (faulty.py:44) in step 5"
    assert run.last_line.startswith(f"failed: host-1 (process 1): {cause}"), run.last_line
    assert run.last_line.endswith("[exit code 1]")
    assert run.stderr.splitlines()[-1] == f"podrun: {run.last_line}"
    assert processes_of(sandbox) == {}


@pytest.mark.long
def test_worker_killed_from_outside(start: Start, sandbox: Sandbox) -> None:
    """SIGKILL of a worker in the middle of training: the others are ended at once, and the victim is named."""
    run = start(*POD)
    run.wait_for_step(5)
    kill(run.worker(0))
    assert run.end() == 137
    assert run.last_line.startswith("failed: host-0 (process 0): was ended by SIGKILL after step")
    assert processes_of(sandbox) == {}


@pytest.mark.long
def test_launcher_naps_and_a_worker_is_asked_to_stop(start: Start, sandbox: Sandbox) -> None:
    """The launcher goes on if it was stopped for less than the lease.

    SIGTERM to one worker then: JAX tells all, which save and stop; the one that was sent the signal is named.
    """
    run = start(*POD)
    run.wait_for_step(5)
    kill(run.process.pid, signal.SIGSTOP)
    time.sleep(4)  # the lease is 10
    kill(run.process.pid, signal.SIGCONT)
    run.wait_for_step(run.wait_for_step(5)["step"] + 1000)
    kill(run.worker(1), signal.SIGTERM)
    assert run.end() == 75
    expected = "failed: host-1 (process 1): was asked to stop from outside after step"
    assert run.last_line.startswith(expected), run.stderr
    assert {e["code"] for e in run.of("exit")} == {75}
    assert run.of("checkpoint")
    assert processes_of(sandbox) == {}


def test_agent_killed(start: Start, sandbox: Sandbox) -> None:
    """An agent that is killed takes its worker along, and its host is named."""
    run = start(*SLEEP)
    wait_for_start(run)
    kill(run.agent("host-1"))
    assert run.end() == 69
    assert run.last_line.startswith("failed: host-1: its agent is gone")
    assert processes_of(sandbox) == {}


def test_dropped_connection_is_no_fault(start: Start, sandbox: Sandbox) -> None:
    """A killed relay, which is a dropped connection, loses nothing: the launcher attaches again and the run ends well."""
    run = start(*POD)
    run.wait_for_step(3)
    dropped = relays_of(sandbox, run, 2)
    assert len(dropped) == 2
    for pid in dropped:
        kill(pid)
    wait_until(lambda: len(relays_of(sandbox, run, 2) - dropped) == 2, "new connections")
    run.wait_for_step(run.events[-1].get("step", 3) + 1)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.stderr
    record = (Path(run.of("start")[0]["logs"]).parent / "events.jsonl").read_text().splitlines()
    steps = [e["step"] for e in map(json.loads, record) if e["event"] == "step" and e["process"] == 0]
    assert steps == list(sandbox.losses("runs/small")) == list(range(1, len(steps) + 1))
    assert processes_of(sandbox) == {}


def test_interpreter_that_does_not_exist(start: Start, sandbox: Sandbox) -> None:
    """The process that cannot be started is named with the reason; it is neither bad input nor a failed training."""
    broken = sandbox.path / "python"
    broken.write_text("#!/nowhere/python3\n")
    broken.chmod(0o755)
    run = start(*POD, f"launch.python={broken}")
    assert run.end() == 69
    assert re.match(r"failed: host-(\d) \(process \1\): could not be started:", run.last_line), run.last_line
    assert f"the interpreter that the first line of {broken} names is not on this host" in run.last_line
    assert "Traceback" not in run.stderr
    assert processes_of(sandbox) == {}


@pytest.mark.long
def test_process_that_never_joins(start: Start, sandbox: Sandbox) -> None:
    """If a process hangs before it joined the pod, it is named after launch.start_timeout, not those that wait for it."""
    wrapper = sandbox.path / "python"
    wrapper.write_text('#!/bin/sh\n[ "$PODRUN_PROCESS_ID" = 1 ] && exec sleep 600\nexec "$REAL_PYTHON" "$@"\n')
    wrapper.chmod(0o755)
    real = sandbox.command[0]
    run = start(*POD, f"launch.python={wrapper}", f"launch.env.REAL_PYTHON={real}", "launch.start_timeout=40")
    assert run.end() == 69
    assert run.last_line.startswith("failed: host-1 (process 1): did not say anything 40 s after its start")
    assert processes_of(sandbox) == {}


PHASES = ("ready", "started", "connect", "setup", "train")


@pytest.mark.parametrize(
    "phase", mostly_long(PHASES, lambda _, phase: phase == "ready", lambda _, phase: phase == "connect")
)
def test_ctrl_c_in_every_phase(start: Start, sandbox: Sandbox, phase: str) -> None:
    """Ctrl-C ends the run from any phase with code 130 and leaves nothing."""
    run = start(*POD)
    run.wait_for(lambda e: e.get("phase") == phase)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert run.last_line.startswith("interrupted")
    assert processes_of(sandbox) == {}


def test_a_program_that_ends_well_when_it_is_asked_to_stop(start: Start, sandbox: Sandbox) -> None:
    """Its work was cut off all the same: Ctrl-C ends with 130, not with 0."""
    run = start("--slice", "cpu-2x1", "--simulate", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait")
    wait_for_start(run)
    # The trap is set before it.
    wait_until(lambda: list(processes_of(sandbox).values()).count("sleep 600 ") == 2, "both programs")
    kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert processes_of(sandbox) == {}


@pytest.mark.long
@pytest.mark.parametrize(("phase", "slice"), [("save", "cpu-1x1"), ("sample", "cpu-2x1")])
def test_ctrl_c_around_a_long_sampling(start: Start, sandbox: Sandbox, phase: str, slice: str) -> None:
    """While the last step is saved, or the text sampled: podrun ends soon, the checkpoint is there, nothing is left."""
    run = start("--slice", slice, "--simulate", "train.yaml", "steps=4", "sample.tokens=200000")
    run.wait_for(lambda event: event["event"] == "phase" and event["phase"] == phase)
    kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert processes_of(sandbox) == {}
    assert (sandbox.path / "runs/train/checkpoints/4").is_dir()
    assert run.of("end")[-1]["left_behind"] == []


def test_ctrl_c_twice_stops_now(start: Start, sandbox: Sandbox) -> None:
    """A second Ctrl-C waits for no save."""
    run = start(*SLEEP[:3], "launch.stop_grace=500", "--", "sh", "-c", "trap '' TERM; sleep 600")
    wait_for_start(run)
    # The signal is ignored before it.
    wait_until(lambda: list(processes_of(sandbox).values()).count("sleep 600 ") == 2, "both programs")
    run.process.send_signal(signal.SIGINT)
    run.wait_for(lambda e: e["event"] == "note" and e["message"].startswith("stopping"))
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert processes_of(sandbox) == {}


def test_launcher_killed(start: Start, sandbox: Sandbox) -> None:
    """Agents that hear nothing from the launcher end their workers and themselves within the lease."""
    run = start(*SLEEP)
    wait_for_start(run)
    run.process.kill()
    wait_until(lambda: not processes_of(sandbox), "an end of all processes", 120)


@pytest.mark.long
def test_stop_among_evaluations_and_saves(start: Start, sandbox: Sandbox) -> None:
    """All processes find a common point to stop at, however often they evaluate, save and resume.

    Ctrl-C once saves the step that was reached; the same command goes on from there.
    """
    saved = 0
    for _ in range(2):
        run = start(*POD[:4], "steps=10000000", "eval.every=3", "eval.batches=2", "checkpoint.every=2", "log.every=1")
        run.wait_for_step(saved + 10)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert {e["code"] for e in run.of("exit")} == {75}, run.stderr
        assert [e["step"] for e in run.of("resume") if e["process"] == 0] == [saved] * (saved > 0)
        saved = run.of("checkpoint")[-1]["step"]
        assert f"the checkpoint of step {saved} is complete" in run.last_line
    assert sorted(sandbox.losses("runs/small")) == list(range(1, saved + 1))


@pytest.mark.long
def test_one_process_cannot_write_its_part(start: Start, sandbox: Sandbox) -> None:
    """A state is saved in parts: that process is named, and the checkpoint before is kept."""
    job = ("model.width=512", "model.layers=2", "parallel=jit", "parallel.mesh.fsdp=2")
    run = start(*faulty("full", step=20), *job, "checkpoint.every=5", "checkpoint.keep=1")
    assert run.end() == 1
    expected = (
        r"failed: host-1 \(process 1\): checkpoint (\d+) cannot be saved in \S+: File too large; "
        r"the last good checkpoint is of step (\d+), and is kept \[exit code 1\]"
    )
    told = re.fullmatch(expected, run.last_line)
    assert told is not None, run.stderr
    assert int(told[1]) - int(told[2]) == 5
    assert (sandbox.path / "runs/small/checkpoints" / told[2]).is_dir()
    assert processes_of(sandbox) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
@pytest.mark.parametrize(
    ("size", "codes"),
    [("4k", {1, 2}), pytest.param("1m", {1}, marks=pytest.mark.long)],
    ids=["at the start", "on the way"],
)
def test_full_home(sandbox: Sandbox, size: str, codes: set[int]) -> None:
    """The last line says so when podrun's own folder is full.

    At the start that is met by the run directory, with which nothing has begun, or by the first file in it.
    """
    home = sandbox.path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(home)], check=True)
    try:
        done = sandbox.podrun(*POD, "steps=10000000", "log.every=1")
        assert done.returncode in codes
        assert "No space left on device" in done.stderr.splitlines()[-1]
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.long
def test_interrupted_before_the_first_checkpoint(start: Start, sandbox: Sandbox) -> None:
    """Stopped while it compiles, a run has no checkpoint, and promises none."""
    run = start(*faulty("hang", step=1))
    run.wait_for(lambda e: e["event"] == "phase" and e["phase"] == "compile")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert run.last_line == "interrupted; there is no checkpoint yet, so the same command begins anew [exit code 130]"


@pytest.mark.long
def test_nan_names_the_step(start: Start, sandbox: Sandbox) -> None:
    """NaN as loss stops all processes at the same step, and no checkpoint of it is kept."""
    run = start(*POD, "optimizer.learning_rate=1e30", "optimizer.clip_norm=null", "checkpoint.every=1")
    assert run.end() == 1
    assert "is not finite in step" in run.last_line
    step = run.of("error")[0]["step"]
    assert {e["step"] for e in run.of("error")} == {step}
    saved = [int(p.name) for p in Path(sandbox.path / "runs/small/checkpoints").iterdir() if p.name.isdigit()]
    assert all(s < step for s in saved)


@pytest.mark.long
def test_restart_from_the_last_checkpoint(start: Start, sandbox: Sandbox) -> None:
    """With launch.max_restarts a failed attempt is followed by one that resumes and finishes: an injected fault shows it."""
    fault = ("--inject", "kill:host=1@step=8", "--inject", "nan@step=99")
    run = start(*POD[:4], *fault, "steps=12", "checkpoint.every=3", "launch.max_restarts=1")
    assert run.end() == 0, run.stderr
    assert [e["injected"] for e in run.of("note") if "injected" in e] == ["kill:host=host-1,process=1@step=8"]
    assert run.of("note")[-1]["message"].startswith("--inject: not reached, so not injected: nan:host=host-0")
    assert run.of("resume")[0]["step"] in (3, 6)
    assert sorted(sandbox.losses("runs/small")) == list(range(1, 13))


def test_daemonised_child_is_ended(start: Start, sandbox: Sandbox) -> None:
    """A worker's child in another session is found and ended too."""
    (sandbox.path / "littering.py").write_text(
        "import os, shutil, subprocess\n"
        "subprocess.Popen(['sh', '-c', 'setsid sleep 600 & exit'])\n"
        "name = b'sle\\xe9p' + os.environb[b'PODRUN_PROCESS_ID']  # a name that is not text\n"
        "shutil.copy('/bin/sleep', name)\n"
        "subprocess.Popen([b'./' + name, b'600'], start_new_session=True)\n"
    )
    run = start("--simulate", "--slice", "cpu-2x1", "--", sys.executable, "littering.py")
    assert run.end() == 0, run.stderr
    assert processes_of(sandbox) == {}

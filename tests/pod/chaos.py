"""One fault in one run, and what must be true after it: for tests/pod/test_chaos.py and benchmarks/chaos.py."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..conftest import Sandbox
from ..hosts import wait_until
from .chaos_faults import EARLY, EVERY, HOSTS, LIMIT, MOMENTS, STEPS, Fault
from .conftest import Run, end_processes, kill, kill_if_alive, processes_of, relays_of

_SAVES = (f"eval.every={EVERY}", f"checkpoint.every={EVERY}", "log.every=1", "launch.stop_grace=5")


@dataclass
class Result:
    """The outcome of one case: what was wrong, by category, and what podrun printed last."""

    case: str
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """(code, cause, loss, processes, checkpoint, lines or stuck; what exactly)."""
    last_line: str = ""
    seconds: float = 0.0


class Chaos:
    """One case: a fault, in a phase, in one process; with restarts, or with the same command given again."""

    def __init__(self, sandbox: Sandbox, fault: Fault, phase: str, seed: int, restarts: bool) -> None:
        chance = random.Random(seed)
        self.sandbox = sandbox
        self.fault = fault
        self.phase = phase
        self.process = chance.randrange(HOSTS) if fault.process is None else fault.process
        self.step = chance.randrange(2, STEPS - 8)  # after a stop come some steps, and it must not be done by then
        self._pause = chance.uniform(0.0, 0.3)
        self.restarts = restarts and fault.restarts
        self.ends = not self.restarts or (phase in EARLY and fault.code not in (0, 69, 75))
        self.moment = ""
        if fault.at_restart is not None:
            self.moment = "restart" if fault.spare else chance.choice([*MOMENTS])
            self.restarts, self.ends = True, bool(fault.end)
        self._workdir = self.workdir()
        self.run: Run
        how = ("with restarts" if self.restarts else "and again") + (self.moment and f", at {self.moment}")
        self._result = Result(f"seed {seed}: {fault.name}, process {self.process}, in {phase}, {how}")

    # --- the pod ---

    def start(self, *more: str) -> Run:
        """Start the job, with more arguments."""
        return start(self.sandbox, self.phase, self.fault, *more)

    def workdir(self) -> Path:
        return self.sandbox.path / "work"

    def host(self, process: int) -> str:
        return f"host-{process}"

    def processes(self) -> dict[int, str]:
        """Return all processes of the run: command by pid."""
        return processes_of(self.sandbox)

    # --- what breaks ---

    def kill_worker(self) -> None:
        kill(self.run.worker(self.process))

    def kill_agent(self) -> None:
        kill(self.run.agent(self.host(self.process)))

    def kill_host(self) -> None:
        """Kill the agent first, so that it has no time to report anything."""
        mark = f"PODRUN_HOST={self.host(self.process)}".encode()
        workers = [pid for pid in processes_of(self.sandbox) if mark in _environ(pid)]
        for pid in (self.run.agent(self.host(self.process)), *workers):
            kill_if_alive(pid)

    def break_connections(self) -> None:
        for pid in relays_of(self.sandbox, self.run, HOSTS):
            kill_if_alive(pid)

    def kill_launcher(self) -> None:
        kill(self.run.process.pid)

    def suspend_launcher(self) -> None:
        """Stop the launcher until the hosts have ended the run by themselves."""
        self.run.sleep_until_hosts_give_up()

    def interrupt(self) -> None:
        kill(self.run.process.pid, signal.SIGINT)

    def fill_home(self) -> None:
        """Leave no byte in the file system of podrun's folder."""
        for name, size in (("filler", 1 << 16), ("rest", 1)):
            with contextlib.suppress(OSError), open(self.sandbox.path / "home" / name, "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * size)

    def struck(self) -> None:
        """Let the job go on after a strike from outside."""

    def mend(self) -> None:
        """Mend what was broken, so that the job can go on."""
        if self.fault.mounts:
            mount(self._workdir, "200m,remount")
        if self.fault.small_home:
            self.mount_home("400m,remount")

    # --- the case ---

    def execute(self, expected: dict[int, float]) -> Result:
        """Run it; `expected` are the losses of an undisturbed run."""
        began = time.monotonic()
        if self.fault.mounts:
            mount(self._workdir, "5m")
        if self.fault.small_home:
            self.mount_home()
        try:
            self._disturb()
            self.mend()
            if self.ends and self.fault.code != 0 and not self._result.wrong:
                self._again()
            if not self._result.wrong:
                self._check_losses(expected)
        except (AssertionError, subprocess.TimeoutExpired, TimeoutError) as error:
            self._wrong("stuck", str(error)[-400:])
        finally:
            self.clean()
            if self.fault.mounts:
                subprocess.run(["umount", "-l", str(self._workdir)], check=True)
            if self.fault.small_home:
                self.unmount_home()
        self._result.seconds = time.monotonic() - began
        return self._result

    def clean(self) -> None:
        """End whatever is left."""
        end_processes(self.sandbox)

    def mount_home(self, options: str = "40m") -> None:
        mount(self.sandbox.path / "home", options)

    def unmount_home(self) -> None:
        subprocess.run(["umount", "-l", str(self.sandbox.path / "home")], check=True)

    def _wrong(self, category: str, what: str) -> None:
        self._result.wrong.append((category, what))

    @property
    def holds(self) -> bool:
        """Return True if process 0 hangs in the phase, so that a strike from outside is in it, and not after the end."""
        return self.fault.strike is not None and not self.fault.inject

    def injected(self) -> list[str]:
        """Return the options for the faults that podrun injects itself."""
        faults = [text.format(p=self.process, at=self._at) for text in self.fault.inject]
        return [word for text in faults for word in ("--inject", text)]

    @property
    def _at(self) -> str:
        return f"step={self.step}" if self.phase == "step" else f"phase={self.phase}"

    def _disturb(self) -> None:
        most = 0 if not self.restarts else 1 if self.fault.at_restart else 3
        held = ("--inject", f"hang:process=0@{self._at}") if self.holds else ()
        self.run = self.start(*self.injected(), *held, *self.fault.options, f"launch.max_restarts={most}")
        if self.fault.strike is not None:
            self.wait_for_moment()
            self.fault.strike(self)
            self.struck()
        if self.fault.at_restart is not None:
            self.run.wait_for(self._is_moment)
            self.fault.at_restart(self)
        code = self.run.end(LIMIT)
        if self.fault.end and code == 0:
            self.ends = False  # the attempt that ended has left room enough for the next
        wanted = self.fault.code if self.ends else 0
        self._result.last_line = self.run.last_line if self.run.of("end") else ""
        if code != wanted:
            self._wrong("code", f"{code}, expected {wanted}: {self._result.last_line} {self.run.stderr[-300:]}")
            return
        self._check_cause()
        self.check_processes()
        self._check_lines()
        self._check_resumes(self.run.events)

    def _is_moment(self, event: dict[str, Any]) -> bool:
        attempt = len(self.run.of("start")) - 1
        return (attempt, event["event"], event.get("phase", "")) == MOMENTS[self.moment]

    def wait_for_moment(self) -> None:
        if self.holds:
            self.run.wait_for(lambda e: "injected" in e and e["injected"].startswith("hang"))
        elif self.phase == "step":
            self.run.wait_for_step(self.step // 2)
        else:
            self.run.wait_for(lambda e: e["event"] == "phase" and e["phase"] == self.phase)
        time.sleep(self._pause)

    def _again(self) -> None:
        """Give the same command again, without the fault."""
        before = checkpoints(self._workdir)
        again = self.start()
        code = again.end(LIMIT)
        if code != 0:
            self._wrong("code", f"{code} of the second command: {again.stderr[-300:]}")
            return
        kept = [step for step in before if step not in self._damaged()]
        resumed = [event["step"] for event in again.of("resume")]
        if resumed != kept[-1:]:
            self._wrong("checkpoint", f"resumed from {resumed}, and there were {before}")
        self.check_processes()

    def _damaged(self) -> list[int]:
        """Return the steps of checkpoints that the fault has damaged."""
        messages = [event["message"] for event in self.run.of("note")]
        return [int(step) for text in messages for step in re.findall(r"/checkpoints/(\d+)/.* is cut in half", text)]

    def _check_cause(self) -> None:
        """Check the last line of a run that has ended by the fault, and what is told at a restart."""
        causes = [event["message"] for event in self.run.of("restart") if event["ending"] not in ("asleep", "unfit")]
        last = self._result.last_line.removeprefix("failed: ")
        last = last or self.run.stderr[-400:]  # the launcher's own disk may have no room for the end of its record
        if self.fault.end and self.ends and not re.search(self.fault.end, last):
            self._wrong("cause", last)
        causes += [last] if self.ends and self.fault.cause and not self.fault.end else []
        pattern = self.fault.cause.format(p=self.process, host=self.host(self.process))
        if len(causes) != bool(self.fault.cause) or not all(re.match(pattern, cause) for cause in causes):
            self._wrong("cause", str(causes))

    def check_processes(self) -> None:
        # Agents that nobody can tell wait for their lease.
        if self.run.process.returncode < 0 or self.fault.name == "link down for good":
            wait_until(lambda: not self.processes(), "the end of all processes", 120)
        if left := self.processes():
            self._wrong("processes", str(left))

    def _check_lines(self) -> None:
        """Each step that process 0 has reported is a line of its log, in order."""
        if self.run.process.returncode < 0:
            return
        log = Path(self.run.of("start")[0]["logs"]) / f"{self.host(0)}.log"
        # Tracebacks that orbax's threads print at the same time come in pieces, so a step may begin within one's line.
        logged = [int(n) for n in re.findall(rb"\bstep (\d+)/", log.read_bytes())] if log.exists() else []
        reported = [event["step"] for event in self.run.of("step") if event["process"] == 0]
        missing = [step for step in reported[:-1] if step not in logged]
        stranded = self.fault.code == 69 and self.process == 0  # its last lines may stay on a host out of reach
        if missing and stranded and min(missing) > max(logged, default=0):
            missing = []
        if missing or len(logged) > len(reported) + HOSTS:
            self._wrong("lines", f"of the steps {reported[-5:]} the log has {logged[-5:]}; missing {missing[:5]}")

    def _check_resumes(self, events: list[dict[str, object]]) -> None:
        """No attempt goes on from an older checkpoint than the newest that was complete."""
        saved: list[int] = []
        for event in events:
            if event["event"] == "checkpoint":
                saved.append(int(str(event["step"])))
            elif event["event"] == "resume":
                kept = [step for step in saved if step not in self._damaged()]
                if kept and int(str(event["step"])) < kept[-1]:
                    self._wrong("checkpoint", f"resumed from {event['step']}, and {saved} had been complete")

    def _check_losses(self, expected: dict[int, float]) -> None:
        losses = self.sandbox.losses(str(self._workdir))
        if losses != expected:
            other = sorted(step for step in {*losses, *expected} if losses.get(step) != expected.get(step))
            self._wrong("loss", f"steps {other[:5]} of {len(losses)} differ")


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={options}", "none", str(folder)], check=True)


def checkpoints(workdir: Path) -> list[int]:
    """Return the steps of the complete checkpoints, the newest last."""
    folder = workdir / "checkpoints"
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit()) if folder.exists() else []


def job_of(fault: Fault, phase: str) -> tuple[str, ...]:
    """Return the train.yaml and what is changed in it. Only a language model samples."""
    if phase == "sample":
        return ("train.yaml", f"steps={STEPS}", "sample.tokens=4", *_SAVES)
    return (*(fault.job or ("small.yaml",)), f"steps={STEPS}", *_SAVES)


def start(sandbox: Sandbox, phase: str, fault: Fault, *more: str) -> Run:
    return Run(sandbox, "--simulate", "--slice", f"cpu-{HOSTS}x1", "-w", "work", *job_of(fault, phase), *more)


def undisturbed(sandbox: Sandbox, phase: str, fault: Fault) -> dict[int, float]:
    """Return the losses of the job without a fault."""
    run = start(sandbox, phase, fault)
    assert run.end(LIMIT) == 0, run.stderr
    return sandbox.losses("work")

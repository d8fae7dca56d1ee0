"""Faults on hosts that are reached by SSH: what tests/pod/chaos.py has for a simulated pod."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from functools import partial
from pathlib import Path

from ..conftest import make_sandbox
from ..hosts import Hosts, wait_until
from ..pod import chaos as simulated
from ..pod.chaos import Chaos, job_of
from ..pod.chaos_faults import EARLY, HOSTS, KILLED, NO_SPACE, STEPS, WORKER, Fault
from ..pod.conftest import Run
from .pod import PodSandbox

_MARKS = ("agents/", "podrun.runtime")
_HELD = {"evaluate": 15, "save": 15, "sample": STEPS}
"""Step at which the job is held in phases that are too short to be struck otherwise; it evaluates and saves at step 10."""
_PHASES = (*EARLY, "step", *_HELD)


def _on_worker(number: int, chaos: SshChaos) -> None:
    for process in chaos.hosts.processes(chaos.host(chaos.process)):
        if "podrun.runtime" in process.args:
            process.kill(number)


def _kill_agent(chaos: SshChaos) -> None:
    """Kill all that is called like an agent: relay, agent, and the first process of its PID namespace."""
    for process in chaos.hosts.processes(chaos.host(chaos.process)):
        if "agents/" in process.args:
            process.kill()


def _power_off(chaos: SshChaos) -> None:
    chaos.hosts.kill(chaos.host(chaos.process))


def _break_connections(chaos: SshChaos) -> None:
    for process in range(HOSTS):
        chaos.hosts.kill_sessions(chaos.host(process))


def _pull_cable(chaos: SshChaos) -> None:
    chaos.hosts.cut(chaos.host(chaos.process))


def _pull_cable_for_a_moment(chaos: SshChaos) -> None:
    _pull_cable(chaos)
    time.sleep(4)
    chaos.hosts.restore()


def _kill_launcher(chaos: SshChaos) -> None:
    chaos.run.process.kill()


def _sleep(chaos: SshChaos) -> None:
    """Stop the launcher until the hosts have ended the run by themselves."""
    chaos.run.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not chaos.processes(), "the hosts to give up", 120)
    finally:
        chaos.run.process.send_signal(signal.SIGCONT)


def _lose_the_spare(chaos: SshChaos) -> None:
    """The spare dies while it is prepared, and the host that was lost returns."""
    chaos.run.wait_for(lambda e: e["event"] == "host" and e["host"] == SPARE and e["phase"] == "setup-commands")
    chaos.hosts.kill(SPARE)
    chaos.hosts.set_cable(chaos.host(chaos.process), "up")


def _fill_home(chaos: SshChaos) -> None:
    """Leave no byte on the disk of one host's home."""
    script = "f=$0/filler; while head -c 65536 /dev/zero; do :; done > $f; while printf x; do :; done >> $f"
    with contextlib.suppress(RuntimeError):
        chaos.hosts.run_on(chaos.host(chaos.process), "bash", "-c", script, str(chaos.small_home))


SPARE = f"h{HOSTS}"
_kill = partial(_on_worker, signal.SIGKILL)
FAULTS = (
    Fault("kill the worker", 137, WORKER + "was ended by SIGKILL", (), partial(_on_worker, signal.SIGKILL), _PHASES),
    Fault("segfault", 139, WORKER + "was ended by SIGSEGV", (), partial(_on_worker, signal.SIGSEGV), _PHASES),
    Fault("SIGTERM", 75, WORKER + "was asked to stop", strike=partial(_on_worker, signal.SIGTERM), phases=("step",)),
    Fault("kill the agent", 69, "{host}: its agent is gone", strike=_kill_agent, phases=_PHASES),
    Fault("power off", 69, "{host}: ", strike=_power_off, phases=_PHASES),
    Fault("cable out for good", 69, "{host}: has not answered", strike=_pull_cable, phases=_PHASES),
    Fault("cable out for a moment", 0, strike=_pull_cable_for_a_moment, phases=_PHASES),
    Fault("break the connections", 0, strike=_break_connections, phases=_PHASES),
    Fault("kill the launcher", -9, strike=_kill_launcher, phases=_PHASES, restarts=False),
    Fault("connections broken at a restart", 137, KILLED, (), _kill, ("step",), at_restart=_break_connections),
    Fault("launcher asleep at a restart", 137, KILLED, (), _kill, ("step",), at_restart=_sleep),
    Fault("spare lost at a restart", 69, "{host}: ", (), _pull_cable, ("step",), at_restart=_lose_the_spare, spare=True),
    Fault("disk full at a restart", 1, KILLED, (), _kill, ("step",), at_restart=_fill_home, end=NO_SPACE, small_home=True),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}


class SshChaos(Chaos):
    """One case on two hosts in network namespaces. From the phase `step` on its data holds the job.

    `own_disks`: the hosts do not share the workdir, which is on the disk of the first one.
    """

    def __init__(
        self, hosts: Hosts, path: Path, fault: Fault, phase: str, seed: int, restarts: bool, own_disks: bool = False
    ) -> None:
        sandbox = PodSandbox(make_sandbox(path).path, hosts)
        self._disk = Path("runs", path.name) if own_disks else None
        self.hosts = hosts
        super().__init__(sandbox, fault, phase, seed, restarts)
        self._pod = sandbox
        self.small_home = path / "home-of-hosts"
        keys: dict[str, object] = {"workdir": str(hosts.home_inside() / self._disk)} if self._disk else {}
        if fault.spare:  # it is prepared for as long as it lives
            keys |= {"spares": [SPARE], "setup": [f'test "$(uname -n)" != {SPARE} || sleep 600']}
        if fault.small_home:
            keys["home"] = str(self.small_home)
        self._option = sandbox.write_pod([self.host(process) for process in range(HOSTS)], **keys)
        self._gate = path / "shared" / "batches"
        self._open_gate({"step": self.step, **_HELD}.get(phase, STEPS + 1))
        shutil.copy(Path(simulated.__file__).with_name("faulty.py"), path)

    def _open_gate(self, step: int) -> None:
        """Let the job make steps up to this one."""
        new = self._gate.with_name("batches.new")
        new.write_text(str(step))
        new.replace(self._gate)  # a process reads the old number or the new one

    def start(self, *more: str) -> Run:
        name, text = (
            ("held_text", f", text: '{self.sandbox.path / 'text.txt'}'") if self.phase == "sample" else ("held", "")
        )
        data = f"data={{name: 'faulty:{name}', options: {{file: '{self._gate}'{text}}}}}"
        return self._pod.run(self._option, "-w", "work", *job_of(self.fault, self.phase), data, *more)

    def workdir(self) -> Path:
        shared = self.sandbox.path / "shared"
        return (self.hosts.home_of(self.host(0)) / self._disk if self._disk else shared) / "work"

    def host(self, process: int) -> str:
        return f"h{process}"

    def processes(self) -> dict[int, str]:
        every = []
        for number in range(HOSTS + 1):
            with contextlib.suppress(FileNotFoundError):  # a host without power has none
                every += self.hosts.processes(self.host(number))
        return {process.pid: process.args for process in every if any(mark in process.args for mark in _MARKS)}

    def injections(self) -> list[str]:
        return []

    def wait_for_moment(self) -> None:
        if self.phase == "step":
            self.run.wait_for_step(self.step - 1)
        else:
            self.run.wait_for(
                lambda e: e["event"] == "phase" and e["phase"] == self.phase and e["process"] == self.process
            )

    def mount_home(self, options: str = "60m") -> None:
        self.small_home.mkdir(exist_ok=True)
        for process in range(HOSTS):
            command = ["mount", "-t", "tmpfs", "-o", f"mode=755,size={options}", "none", str(self.small_home)]
            self.hosts.run_on(self.host(process), *command)

    def unmount_home(self) -> None:
        for process in range(HOSTS):
            self.hosts.run_on(self.host(process), "umount", "-l", str(self.small_home))

    def struck(self) -> None:
        if self.fault.code == 75:  # its small steps would all be done before the processes have agreed where to stop
            for step in range(self.step, STEPS):
                self._open_gate(step)
                time.sleep(0.2)
        self._open_gate(STEPS + 1)
        if not self.ends and self.fault.code != 0 and not self.fault.at_restart:
            self.run.wait_for(lambda e: e["event"] == "restart")
            self.hosts.restore()

    def mend(self) -> None:
        self.hosts.restore()
        if self.fault.small_home:
            self.mount_home("400m,remount")
        if self.fault.code == 69:  # a host that was cut off ends its part by itself
            wait_until(lambda: not self.processes(), "the end of all processes", 120)

    def check_processes(self) -> None:
        if self.fault.name != "cable out for good":
            super().check_processes()

    def clean(self) -> None:
        self.hosts.restore()
        self._pod.close()
        for number in range(HOSTS + 1):
            for process in self.hosts.processes(self.host(number)):
                if any(mark in process.args for mark in _MARKS):
                    process.kill()

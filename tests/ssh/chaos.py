"""One fault in one run on hosts that are reached by SSH; see tests/pod/chaos.py."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

from ..conftest import make_sandbox
from ..hosts import Hosts, wait_until
from ..pod import chaos as simulated
from ..pod.chaos import Chaos, job_of
from ..pod.chaos_faults import HOSTS, SPARE, STEPS, Fault
from ..pod.conftest import Run
from .pod import PodSandbox

_MARKS = ("agents/", "podrun.runtime")
_HELD = {"evaluate": 15, "save": 15, "sample": STEPS}
"""Step at which the job is held in phases that are too short to be struck otherwise; it evaluates and saves at step 10."""


class SshChaos(Chaos):
    """One case on two hosts in network namespaces. From the phase `step` on its data holds the job.

    `own_disks`: the hosts do not share the workdir, which is on the disk of the first one.
    """

    def __init__(
        self, hosts: Hosts, path: Path, fault: Fault, phase: str, seed: int, restarts: bool, own_disks: bool = False
    ) -> None:
        fault = replace(fault, inject=(), strike=fault.strike_by_ssh or fault.strike)
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
        self._held_at = {"step": self.step, **_HELD}.get(phase, STEPS + 1)
        self._open_gate(self._held_at)
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

    @property
    def holds(self) -> bool:
        return False  # its data does

    def kill_worker(self, number: int = signal.SIGKILL) -> None:
        for process in self.hosts.processes(self.host(self.process)):
            if "podrun.runtime" in process.args:
                process.kill(number)

    def kill_agent(self) -> None:
        """Kill all that is called like an agent: relay, agent, and the first process of its PID namespace."""
        for process in self.hosts.processes(self.host(self.process)):
            if "agents/" in process.args:
                process.kill()

    def power_off(self) -> None:
        self.hosts.kill(self.host(self.process))

    def break_connections(self) -> None:
        for process in range(HOSTS):
            self.hosts.kill_sessions(self.host(process))

    def pull_cable(self, seconds: float | None = None) -> None:
        """Cut a host off, for good or for a time."""
        self.hosts.cut(self.host(self.process))
        if seconds is not None:
            time.sleep(seconds)
            self.hosts.restore()

    def suspend_launcher(self) -> None:
        self.run.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: not self.processes(), "the hosts to give up", 120)
        finally:
            self.run.process.send_signal(signal.SIGCONT)

    def lose_the_spare(self) -> None:
        """The spare dies while it is prepared, and the host that was lost returns."""
        self.run.wait_for(lambda e: e["event"] == "host" and e["host"] == SPARE and e["phase"] == "setup-commands")
        self.hosts.kill(SPARE)
        self.hosts.set_cable(self.host(self.process), "up")

    def fill_home(self) -> None:
        """Leave no byte on the disk of one host's home."""
        script = "f=$0/filler; while head -c 65536 /dev/zero; do :; done > $f; while printf x; do :; done >> $f"
        with contextlib.suppress(RuntimeError):
            self.hosts.run_on(self.host(self.process), "bash", "-c", script, str(self.small_home))

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
            for step in range(self._held_at, STEPS):
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

"""The faults that break runs, on simulated pods and on hosts reached by SSH, and how podrun must report each."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HOSTS = 2
STEPS, EVERY = 40, 10
LIMIT = 240.0  # seconds for a run that should end
PHASES = ("connect", "setup", "compile", "step", "evaluate", "save", "sample")
WIDE = ("small.yaml", "model.layers=2", "model.width=512")  # 3 MB in each checkpoint
EARLY = ("connect", "setup", "compile")
"""Phases before the first step, in which a failure of a process is not worth a restart."""


LOCAL, SSH = "local", "ssh"
BOTH = (LOCAL, SSH)
SPARE = f"h{HOSTS}"


@dataclass(frozen=True)
class Fault:
    """Something that breaks in one process or its host, and how podrun must report it."""

    name: str
    code: int
    """Exit code of a run without restarts; 0: the run survives it."""
    cause: str = ""
    """Pattern of the last line after `failed: `; {p} is the process, {host} its host."""
    inject: tuple[str, ...] = ()
    """Faults that podrun injects itself; {p} is the process and {at} the moment."""
    strike: Callable[[Any], None] | None = None
    """Break something from outside, with a method of the `Chaos`, while a process of the run hangs in the phase."""
    strike_by_ssh: Callable[[Any], None] | None = None
    """Do so where podrun injects nothing: on hosts that are reached by SSH; None: as `strike` does."""
    pods: tuple[str, ...] = (LOCAL,)
    """Transports of the pods that can have it."""
    phases: tuple[str, ...] = PHASES
    job: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Further arguments of the disturbed run."""
    process: int | None = None
    """The process that must be struck; None: any."""
    restarts: bool = True
    """The launcher lives on, and a restart helps."""
    mounts: bool = False
    """The workdir is a file system of 5 MB, which only root can mount."""
    at_restart: Callable[[Any], None] | None = None
    """Break something more while podrun restarts the run, at a moment that chance chooses."""
    end: str = ""
    """Pattern of the last line of a run that does not survive this."""
    spare: bool = False
    """The pod has a spare host, which is reached by SSH; this is struck when it is being prepared."""
    small_home: bool = False
    """Podrun's folder on the hosts is a small file system, which only root can mount."""


WORKER = r"{host} \(process {p}\): "
KILLED = WORKER + "was ended by SIGKILL"
FULL = r"host-\d \(process \d\): .*No space left on device"
NO_SPACE = r"(No space left on device|is full)"
_FSDP = (*WIDE, "parallel=jit", f"parallel.mesh.fsdp={HOSTS}")
_SHORT, _SOON = ("step", "evaluate"), ("launch.stall_timeout=5",)  # elsewhere a hang is allowed many times as long
_STOP = ("stop:host={p}@step=5", "slow:host={p}@step=6")  # it goes on to print its stacks, and must not finish
_ASKED = ("sigterm:host={p}@{at}", "slow:seconds=0.1")  # the run must not finish before all have agreed to stop
_KILL = ("kill:host={p}@{at}",)
_SLOW = ("slow:seconds=0.05",)
MOMENTS = {
    "stop": (0, "exit", ""),
    "confirm": (0, "host", "stopped"),
    "restart": (0, "restart", ""),
    "plan": (1, "start", ""),
    "hello": (1, "host", "hello"),
    "ready": (1, "host", "ready"),
    "go": (1, "host", "started"),
}
"""Attempt, event and phase from the stop of one attempt to the start of the next."""
FAULTS = (
    Fault("kill the worker", 137, KILLED, strike=lambda chaos: chaos.kill_worker(), pods=BOTH),
    Fault("kill the coordinator", 137, KILLED, ("kill:host=0@{at}",), process=0),
    Fault("kill the agent", 69, "{host}: its agent is gone", strike=lambda chaos: chaos.kill_agent(), pods=BOTH),
    Fault("kill the host", 69, "{host}: its agent is gone", strike=lambda chaos: chaos.kill_host()),
    Fault("power off", 69, "{host}: ", strike=lambda chaos: chaos.power_off(), pods=(SSH,)),
    Fault("break the connections", 0, inject=_SLOW, strike=lambda chaos: chaos.break_connections(), pods=BOTH),
    Fault("kill the launcher", -9, strike=lambda chaos: chaos.kill_launcher(), pods=BOTH, restarts=False),
    Fault(
        "stop the launcher",
        69,
        r"the launcher: was asleep for \d+ s",
        strike=lambda chaos: chaos.suspend_launcher(),
        restarts=False,
    ),
    Fault("Ctrl-C", 130, inject=_SLOW, phases=PHASES[:-1], strike=lambda chaos: chaos.interrupt(), restarts=False),
    Fault("exception", 1, WORKER + "RuntimeError: injected", ("exception:host={p}@{at}",)),
    Fault("exit 0", 1, WORKER + "exited with code 0", ("exit:host={p}@{at}",)),
    Fault("exit 7", 7, WORKER + "exited with code 7", ("exit:host={p},code=7@{at}",)),
    Fault(
        "segfault",
        139,
        WORKER + "was ended by SIGSEGV",
        ("segfault:host={p}@{at}",),
        strike_by_ssh=lambda chaos: chaos.kill_worker(signal.SIGSEGV),
        pods=BOTH,
    ),
    Fault("out of memory", 1, WORKER + "MemoryError", ("oom:host={p}@{at}",)),
    Fault(
        "SIGTERM",
        75,
        WORKER + "was asked to stop",
        _ASKED,
        strike_by_ssh=lambda chaos: chaos.kill_worker(signal.SIGTERM),
        phases=("step", "evaluate", "save"),
        pods=BOTH,
    ),
    Fault("NaN", 1, r"host-\d .*is not finite in step", ("nan:host={p}@{at}",), phases=("step",)),
    Fault("hang in a lock", 77, WORKER + "no progress", ("hang:host={p}@{at}",), phases=_SHORT, options=_SOON),
    Fault("SIGSTOP", 77, WORKER + "no progress.* is stopped", _STOP, phases=("step",), options=_SOON),
    Fault("link down for a moment", 0, inject=("link_down:host={p},seconds=3@{at}", "slow:seconds=0.1")),
    Fault(
        "link flapping",
        0,
        inject=(*(f"link_down:host={{p}},seconds=0.5@step={step}" for step in (2, 12, 22, 32)), "slow:seconds=0.2"),
        phases=("step",),
    ),
    Fault(
        "link down for good",
        69,
        "{host}: (has not answered|its agent is gone)",
        ("link_down:host={p},seconds=60@{at}", "hang:process=0@step=39"),
        phases=("setup", "compile", "step"),
        restarts=False,
    ),
    Fault("cable out for a moment", 0, strike=lambda chaos: chaos.pull_cable(seconds=4), pods=(SSH,)),
    Fault("cable out for good", 69, "{host}: has not answered", strike=lambda chaos: chaos.pull_cable(), pods=(SSH,)),
    Fault("damaged checkpoint", 137, KILLED, ("bad_checkpoint:host={p}@step=35",), phases=("step",)),
    Fault("slow host", 0, inject=("slow:host={p},seconds=0.2@{at}",), phases=("step",)),
    Fault("error of a full disk", 1, FULL, ("disk_full:host={p}@step=15",), phases=("save",)),
    Fault("full disk", 1, FULL, phases=("save",), job=WIDE, restarts=False, mounts=True),
    Fault("full disk, saved in parts", 1, FULL, phases=("save",), job=_FSDP, restarts=False, mounts=True),
    Fault(
        "connections broken at a restart",
        137,
        KILLED,
        _KILL,
        strike_by_ssh=lambda chaos: chaos.kill_worker(),
        phases=("step",),
        at_restart=lambda chaos: chaos.break_connections(),
        pods=BOTH,
    ),
    Fault(
        "launcher asleep at a restart",
        137,
        KILLED,
        _KILL,
        strike_by_ssh=lambda chaos: chaos.kill_worker(),
        phases=("step",),
        at_restart=lambda chaos: chaos.suspend_launcher(),
        pods=BOTH,
    ),
    Fault(
        "disk full at a restart",
        1,
        KILLED,
        _KILL,
        strike_by_ssh=lambda chaos: chaos.kill_worker(),
        phases=("step",),
        at_restart=lambda chaos: chaos.fill_home(),
        end=NO_SPACE,
        small_home=True,
        pods=BOTH,
    ),
    Fault(
        "spare lost at a restart",
        69,
        "{host}: ",
        strike=lambda chaos: chaos.pull_cable(),
        phases=("step",),
        at_restart=lambda chaos: chaos.lose_the_spare(),
        spare=True,
        pods=(SSH,),
    ),
)
BY_NAME = {fault.name: fault for fault in FAULTS}

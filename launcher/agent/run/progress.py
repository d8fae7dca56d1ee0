"""Tell the launcher where the workers are, and what they do when they are stuck."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Dict, List, Optional

from ..base.connection import Connection
from ..base.processes import children_beside, descendants, mount_own_proc, stat_fields
from .worker import Worker

if TYPE_CHECKING:
    import subprocess

    from ..base.from_agent import Dumped, Stuck
    from ..base.to_agent import WorkerSpec

EVERY = 1.0  # seconds between two looks at the beats of the workers
BEAT = 128  # bytes of a beat that are sent; the launcher knows what they say
PRINTING = 0.5  # seconds for processes to print their stacks
LOOK = 0.1  # seconds between two looks whether it has
NATIVE = 8.0  # seconds for py-spy to read the stacks of native code
CATCHES = 1 << (signal.SIGUSR1 - 1)
STOPPED = ("T", "t")  # by a signal, or by a debugger


class Progress:
    """The beats of the workers, of which the launcher gets those that have changed."""

    def __init__(self) -> None:
        self.due = 0.0
        self.sent: Dict[int, str] = {}
        self.sent_to: Optional[Connection] = None

    def send(self, workers: List[Worker], connection: Connection) -> None:
        """Send the beats that have changed. A worker without a beat, such as most user programs, sends nothing."""
        now = time.monotonic()
        if connection.offsets is None or connection.unsent or now < self.due:
            return
        self.due = now + EVERY
        if connection is not self.sent_to:
            self.sent_to, self.sent = connection, {}
        beats = {w.process: read_beat(w.spec["beat"]) for w in workers if w.running}
        changed = {process: beat for process, beat in beats.items() if beat != self.sent.get(process, "")}
        if changed:
            self.sent.update(changed)
            texts = {str(process): beat for process, beat in changed.items()}
            connection.send({"type": "progress", "beats": texts, "now": now})


def read_beat(path: str) -> str:
    """Return the beat in hexadecimal digits; empty if there is none. A user program may have put anything in its place."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # nobody may ever write to a pipe
    except OSError:
        return ""
    try:
        return os.read(fd, BEAT).hex()
    except OSError:
        return ""
    finally:
        os.close(fd)


class Dump:
    """Let all workers print their stacks, and look at what they do meanwhile."""

    def __init__(self, workers: List[Worker], isolated: bool) -> None:
        self.workers = [w for w in workers if w.running]
        self.states = {w.process: state_of(w.pid) for w in self.workers}
        self.before = self.cpu_seconds()
        self.began = time.monotonic()
        self.told = self.over = False
        self.spies = [spy for w in self.workers for spy in [start_spy(w, isolated)] if spy is not None]
        for pid in descendants():
            print_stacks(pid)

    def seconds_left(self) -> float:
        """Return the seconds until `result` should be asked again."""
        return max(LOOK, self.began + PRINTING - time.monotonic())

    def result(self) -> Optional[Dumped]:
        """Return a frame `dumped` if there is anything new: first before the native stacks, which take long."""
        passed = time.monotonic() - self.began
        more = passed < NATIVE and any(spy.poll() is None for spy in self.spies)
        if passed < PRINTING or (more and self.told):
            return None
        self.told = True
        self.over = not more
        for spy in self.spies:
            if self.over and spy.poll() is None:
                spy.kill()
        after = self.cpu_seconds()
        processes: List[Stuck] = [
            {
                "process": w.process,
                "state": self.states[w.process],
                "load": round((after[w.process] - self.before[w.process]) / passed, 2),
            }
            for w in self.workers
        ]
        return {"type": "dumped", "processes": processes, "more": more}

    def cpu_seconds(self) -> Dict[int, float]:
        return {w.process: cpu_seconds(w.pid) for w in self.workers}


def state_of(pid: Optional[int]) -> str:
    """Return the state of a process as `ps` shows it: T if it is stopped, D if it waits for a disk; empty if it is gone."""
    try:
        return stat_fields(pid or 0)[0].decode()
    except OSError:
        return ""


def cpu_seconds(pid: Optional[int]) -> float:
    try:
        fields = stat_fields(pid or 0)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def print_stacks(pid: int) -> None:
    """Let a process print its stacks if it is able to: the signal would end another one. A stopped one goes on for that."""
    try:
        if int(status_of(pid, b"SigCgt"), 16) & CATCHES:
            os.kill(pid, signal.SIGUSR1)
            if state_of(pid) in STOPPED:
                os.kill(pid, signal.SIGCONT)
    except (OSError, ValueError, StopIteration):
        pass


def status_of(pid: Optional[int], name: bytes) -> bytes:
    """Return the last word of a line of /proc/PID/status. Raises OSError or StopIteration."""
    with open("/proc/%d/status" % (pid or 0), "rb") as file:
        return next(line.split()[-1] for line in file if line.startswith(name + b":"))


def start_spy(worker: Worker, isolated: bool) -> "Optional[subprocess.Popen[bytes]]":
    """Start py-spy, where it is installed, which appends the stacks of native code to the worker's output."""
    spy = find_spy(worker.spec)
    if spy is None:
        return None
    import subprocess  # here, because hardly an agent ever does this

    try:
        pid = int(
            status_of(worker.pid, b"NSpid")
        )  # as the workers' PID namespace, in which py-spy runs too, numbers it
        with open(worker.spec["output"], "ab") as out, children_beside(worker.pid or 0):
            return subprocess.Popen(
                [spy, "dump", "--native", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=mount_own_proc if isolated else None,
            )
    except (OSError, ValueError, StopIteration, subprocess.SubprocessError):
        return None


def find_spy(spec: WorkerSpec) -> Optional[str]:
    """Return the path of py-spy: beside the worker's Python, or in the PATH."""
    folders = [os.path.dirname(spec["argv"][0]), *os.environ.get("PATH", "").split(os.pathsep)]
    paths = [os.path.join(folder, "py-spy") for folder in folders if os.path.isabs(folder)]
    return next((path for path in paths if os.access(path, os.X_OK)), None)

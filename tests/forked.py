"""Processes `podrun` that are forked from one which has imported the launcher: imports are most of a short command's time.

Each is a process of its own, with its own environment, working directory and output, and ends by its own exit code. Only its
/proc/PID/environ and command line are those of the process that it was forked from.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LAUNCHER = "podrun.launcher.cli"
_IN_ROOMS = ("cli", "commands", "run", "attempt", "request", "transport", "plan", "preflight", "rundir", "view")
"""Rooms of the launcher whose modules are imported beforehand, with what they import."""
_AT_START = ("LANG", "LC_", "PYTHON")
"""Prefixes of variables that Python reads at its start only."""


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Return what Python reads at its start."""
    return {name: value for name, value in env.items() if name.startswith(_AT_START)}


class Forkserver:
    """The process that has imported the launcher; it ends with this one."""

    def __init__(self, place: Sequence[str], env: Mapping[str, str]) -> None:
        self.at_start = at_start(env)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*place, sys.executable, __file__, str(theirs.fileno())],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # the kind of its output is that of the processes: a pipe
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self, args: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run podrun to its end, as subprocess.run does with `capture_output`. Raises subprocess.TimeoutExpired."""
        status, theirs = socket.socketpair()
        outputs, written = zip(os.pipe(), os.pipe(), strict=True)
        os.umask(umask := os.umask(0))
        request = json.dumps({"args": list(args), "cwd": str(cwd), "env": dict(env), "umask": umask}).encode()
        try:
            socket.send_fds(self._control, [request], [*written, theirs.fileno()])
            for number in written:
                os.close(number)
            theirs.close()
            out, err, ended = self._read([*outputs, status.fileno()], time.monotonic() + timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(["podrun", *args], timeout) from None
        finally:
            status.close()
            for number in outputs:
                os.close(number)
        if not ended:
            raise RuntimeError("the process that forks podrun has ended")
        return subprocess.CompletedProcess(["podrun", *args], int(ended.split()[1]), out, err)

    def _read(self, files: list[int], deadline: float) -> list[str]:
        """Read all to their ends; the last has the process's pid and its exit code. Raises TimeoutError."""
        read = dict.fromkeys(files, b"")
        with selectors.DefaultSelector() as selector:
            for number in files:
                selector.register(number, selectors.EVENT_READ)
            while selector.get_map():
                if time.monotonic() > deadline:
                    os.kill(int(read[files[-1]].split()[0]), signal.SIGKILL)
                    raise TimeoutError
                for key, _ in selector.select(1):
                    data = os.read(key.fd, 1 << 16)
                    read[key.fd] += data
                    if not data:
                        selector.unregister(key.fd)
        return [data.decode().replace("\r\n", "\n").replace("\r", "\n") for data in read.values()]


_STARTING = threading.Lock()


@functools.cache
def _forkserver(place: tuple[str, ...]) -> Forkserver:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PODRUN_")}  # of no test
    return Forkserver(place, {**own, "PYTHONUNBUFFERED": "1"})


def forked(
    place: Sequence[str], args: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str] | None:
    """Run podrun in a forked process. Returns None if Python itself would start otherwise with this environment.

    `place`: put before a command, it runs the command where podrun runs, such as in another network.
    """
    with _STARTING:
        server = _forkserver(tuple(place))
    return server.run(args, cwd, env, timeout) if at_start(env) == server.at_start else None


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; return in that process, with the request."""
    for room in _IN_ROOMS:
        package = importlib.import_module(f"podrun.launcher.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    assert threading.active_count() == 1
    gc.freeze()  # what is looked through for garbage would be copied
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for its children
    while True:
        data, given, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        for number in given:
            os.close(number)
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out, err, status = given
    pid = os.fork()
    if pid:  # its parent, which tells how it has ended
        os.close(out)
        os.close(err)
        os.write(status, f"{pid} ".encode())
        os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for number in given:
        os.close(number)
    request: dict[str, Any] = json.loads(data)
    return request


def become(request: dict[str, Any]) -> None:
    """Run podrun in this process."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    sys.path[0] = request["cwd"]
    sys.argv[1:] = request["args"]
    try:
        runpy.run_module(LAUNCHER, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit_code[0] = end.code
        raise


_exit_code = [1]
"""The exit code: that of an exception which nobody catches, until there is another one."""


def leave() -> None:
    """End here, as the last of the exit functions: to free each object would copy the memory that is shared."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_code[0])


if __name__ == "__main__":
    atexit.register(leave)
    become(serve(socket.socket(fileno=int(sys.argv[1]))))

"""Start and signal one worker process."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from ..base.container import container_env
from ..base.private import restore_umask
from ..base.processes import die_with_parent, mount_own_proc, parent, take_host_name
from ..base.protocol import ENV_DIR, ENV_MAIN_PID, ENV_PID, MULTISLICE, OTHER_LAUNCHERS

if TYPE_CHECKING:
    from ..base.to_agent import Expected, Program, WorkerSpec


class Worker:
    """One worker process on this host."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.process: int = spec["process"]
        self.spec = spec
        self.pid: Optional[int] = None
        self.code: Optional[int] = None  # negative: the signal that ended it
        self.error: Optional[str] = None  # why it could not be started
        self.was_prewarmed = False  # its imports were done before it was started
        self.cold: Optional[str] = None  # why the interpreter that was held for it could not be used

    def start(self, extra_env: Dict[str, str], isolated: bool) -> None:
        """Start the process: sets `pid`, and `error` on failure. `isolated`: the agent has entered a PID namespace."""
        stdin = os.open(os.devnull, os.O_RDONLY)
        out = self.open_output()
        try:
            self.pid, self.error = fork_worker(self.spec, worker_env(self.spec, extra_env), isolated, stdin, out)
        finally:
            os.close(stdin)
            os.close(out)

    def open_output(self) -> int:
        return os.open(self.spec["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def running(self) -> bool:
        return self.pid is not None and self.code is None

    def signal(self, number: int) -> None:
        """Send a signal to the worker's process group. The worker is not reaped yet, so its pid is not reused."""
        if self.pid is not None and self.code is None:
            try:
                os.killpg(self.pid, number)
            except OSError:
                pass


def fork_worker(spec: Expected, env: Dict[str, str], isolated: bool, stdin: int, out: int) -> Tuple[int, Optional[str]]:
    """Start the process. Returns its pid, and the reason why the program could not be executed, or None."""
    failure, failure_in = os.pipe()  # closed by a successful exec
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(stdin, 0)
            become_worker(agent, spec, env, out, isolated, spec.get("names"))
        except BaseException as error:
            os.write(failure_in, start_failure(error, spec["argv"][0]).encode("utf-8", "replace")[:1000])
        finally:
            os._exit(127)
    os.close(failure_in)
    reason = os.read(failure, 1000).decode("utf-8", "replace") or None
    os.close(failure)
    return pid, reason


def become_worker(
    agent: int,
    program: Program,
    env: Dict[str, str],
    out: int,
    isolated: bool = False,
    names: Optional[List[str]] = None,
) -> None:
    """Execute the worker in this forked child, in a session of its own.

    Args:
        agent: pid of the agent; the worker is killed when it ends.
        program: the command.
        env: its environment.
        out: descriptor for its output.
        isolated: the agent has entered a PID namespace.
        names: host names of a simulated pod, this host's first.
    """
    os.setsid()
    die_with_parent()
    if parent() != agent:  # the agent died before the line above
        os._exit(127)
    env[ENV_PID] = visible_pid()
    env[ENV_MAIN_PID] = str(os.getpid())
    if isolated and mount_own_proc() and names:
        take_host_name(names)
    restore_umask()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(program["cwd"])
    os.execvpe(program["argv"][0], program["argv"], env)


def visible_pid() -> str:
    """Return the pid that `ps` on this host shows. Call it before the PID namespace gets its own /proc."""
    try:
        return os.readlink("/proc/self")
    except OSError:
        return str(os.getpid())


def start_failure(error: BaseException, program: str) -> str:
    """Return the message for the user about a program that could not be started."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        if error.filename and os.path.basename(os.fsdecode(error.filename)) != os.path.basename(program):
            return "there is no folder %s on this host" % os.fsdecode(error.filename)
        if "/" not in program:
            return "there is no program %r in the PATH of this host; install it there, or give its path" % program
        if os.path.exists(program):
            return "the interpreter that the first line of %s names is not on this host" % program
        return "there is no file %s on this host" % program
    if isinstance(error, PermissionError) and os.path.isdir(program):
        return "%s is a folder, not a program" % program
    if isinstance(error, PermissionError):
        return "%s is not executable on this host; `chmod +x` makes it so" % program
    return "%s: %s" % (program, error.strerror)


def worker_env(spec: Expected, extra: Dict[str, str]) -> Dict[str, str]:
    """Return the environment of a worker: that of the login, `spec["env"]` and `extra`.

    Folders of `spec["path"]` come first in their variables, such as PATH and PYTHONPATH.
    """
    env = {name: value for name, value in os.environ.items() if not _of_another_job(name)}
    env.update(spec["env"])
    env.update(extra)
    for name, folders in spec["path"].items():
        env[name] = os.pathsep.join([*folders, env[name]] if env.get(name) else folders)
    env[ENV_DIR] = os.getcwd()
    if spec["threads"] and "NPROC" not in spec["env"]:
        # XLA's CPU client sizes its thread pool by NPROC, and a collective blocks a thread per device: with fewer threads
        # than devices a step would hang. More threads than needed cost time (docs/performance.md).
        env["NPROC"] = str(max(spec["threads"], os.cpu_count() or 1))
    given = {*spec["env"], *extra, *spec["path"], ENV_DIR, "NPROC"}
    return container_env(spec.get("container"), env, given)


def _of_another_job(name: str) -> bool:
    """Return whether a login variable describes the job of another launcher."""
    return name.startswith(OTHER_LAUNCHERS) or name in MULTISLICE

"""Linux process trees: list descendants, kill them, and tie their lives to the agent's."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import AbstractSet, Callable, Dict, Iterator, List, Sequence, Tuple

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID = 0x00020000, 0x04000000, 0x20000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
HOSTS = "/etc/hosts"
STUCK = 10.0  # seconds after which a killed process counts as stuck in the kernel ...
ROUNDS = 50  # ... if `kill_until_none` made as many rounds: on an overloaded machine processes take longer to die
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that ask a process to end."""


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends."""
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_on_signals() -> Tuple[int, int]:
    """Return the two ends of a pipe: the first becomes readable at each handled signal, also when a child ends."""
    wake, wake_in = os.pipe()
    for fd in (wake, wake_in):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake, wake_in


def stat_fields(pid: int) -> List[bytes]:
    """Return the fields of /proc/PID/stat from the third one on, which is the state of the process.

    Raises OSError if there is no such process.
    """
    with open("/proc/%d/stat" % pid, "rb") as file:  # a command's name may not be valid text
        return file.read().rsplit(b")", 1)[1].split()


def parent() -> int:
    """Return the parent's pid from /proc: getppid() returns 0 for a parent outside this PID namespace."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[1])


def all_pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(spare: AbstractSet[int] = frozenset()) -> List[int]:
    """Return all live descendants of this process, adopted orphans included, without `spare` and their descendants."""
    children = _children_listed if os.path.exists("/proc/self/task/%d/children" % os.getpid()) else _children_scanned()
    pids = [os.getpid()]
    for pid in pids:
        pids += [child for child in children(pid) if child not in spare]
    return [pid for pid in pids[1:] if _is_alive(pid)]


def _children_listed(pid: int) -> List[int]:
    """Return the children of a process from the kernel's lists, one per thread.

    With thousands of processes on a machine this is far cheaper than a scan of /proc.
    """
    children: List[int] = []
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # the process has ended
    return children


def _children_scanned() -> Callable[[int], List[int]]:
    """Return a function that returns the children of a process by one scan of /proc, for kernels without these lists."""
    children: Dict[int, List[int]] = {}
    for pid in all_pids():
        try:
            children.setdefault(int(stat_fields(pid)[1]), []).append(pid)
        except OSError:
            continue
    return lambda pid: children.get(pid, [])


def _is_alive(pid: int) -> bool:
    try:
        return stat_fields(pid)[0] != b"Z"
    except OSError:
        return False


def ended_children() -> Iterator[Tuple[int, int]]:
    """Reap ended children and adopted orphans, and yield (pid, code) of each; a negative code is a signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reap() -> None:
    """Reap all children that have ended."""
    for _ in ended_children():
        pass


def kill_descendants(reap: Callable[[], None], spare: AbstractSet[int] = frozenset()) -> List[int]:
    """Kill all descendants of this process until none is left, not even a zombie. Call `adopt_orphans` before.

    Children in `spare` and their descendants live on. Returns the pids that are left after `STUCK` seconds.
    """

    def childless() -> bool:
        # The kernel can confirm only that there are no children at all; with spared ones, repeated scans take its place.
        return not any(descendants(spare) for _ in range(5)) if spare else _childless()

    return kill_until_none(lambda: descendants(spare), reap, childless)


def end_all() -> None:
    """Kill all processes that this one has started. From now on, signals that ask this process to end are ignored."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    kill_descendants(reap)


def kill_until_none(
    find: Callable[[], List[int]], reap: Callable[[], None], confirm: Callable[[], bool] = lambda: True
) -> List[int]:
    """Kill the processes that `find` returns, until it returns none: a process may fork while it is being killed.

    Args:
        find: returns the pids to kill.
        reap: reaps ended children.
        confirm: returns whether none are certainly left when `find` returns none.

    Returns:
        The pids that are left after `STUCK` seconds.
    """
    deadline = time.monotonic() + STUCK
    rounds = 0
    pause = 0.01
    left = find()
    while (left or not confirm()) and (rounds < ROUNDS or time.monotonic() < deadline):
        rounds += 1
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(pause)
        pause = min(2 * pause, 0.2)  # a thousand agents may end at once, and each scans all processes
        reap()
        left = find()
    return left


def _childless() -> bool:
    """Return whether the kernel says that this process has no children. (A scan of /proc misses one that forks and ends.)"""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


# --- a PID namespace: when its first process dies, the kernel kills all others ----------------------------------------


def enter_pid_namespace() -> int:
    """Start all further children of this process in a new PID namespace, which ends with this process.

    Only root may do so. (A user namespace would allow it to others, but sudo and ssh do not work in one.) Returns the pid of
    the namespace's first process, whose end kills all others; 0 if a namespace is not possible.
    """
    if not namespaces_work():
        return 0
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    libc().setns(namespace, CLONE_NEWPID)  # leave a namespace that was entered before, which may have ended
    os.close(namespace)
    if libc().unshare(CLONE_NEWPID) != 0:
        return 0
    agent = os.getpid()
    first = os.fork()
    if first == 0:
        _be_init(agent)
    return first


@contextmanager
def children_in_namespace_of(pid: int) -> Iterator[None]:
    """Within the block, start children in the PID namespace of process `pid`. Raises OSError."""
    with ExitStack() as stack:
        before, other = (
            os.open(name, os.O_RDONLY) for name in ("/proc/self/ns/pid_for_children", "/proc/%d/ns/pid" % pid)
        )
        for file in (before, other):
            stack.callback(os.close, file)
        stack.callback(libc().setns, before, CLONE_NEWPID)
        libc().setns(other, CLONE_NEWPID)
        yield


def mount_own_proc() -> bool:
    """Mount a /proc for this child's own PID namespace, because tools such as psutil would read other processes without it.

    Returns whether that succeeded.
    """
    c = libc()
    return bool(
        c.unshare(CLONE_NEWNS) == 0
        and c.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) == 0  # later mounts of the host still appear
        and c.mount(b"proc", b"/proc", b"proc", 0, None) == 0
    )


def take_host_name(names: Sequence[str]) -> bool:
    """Give this process, a child with mounts of its own, the host name `names[0]`.

    All `names`, the hosts of a simulated pod, resolve to loopback for this process, because programs tell each other
    their host names. Returns False, without visible change, if this is not permitted.
    """
    file = "hosts.%d" % os.getpid()
    try:
        with open(HOSTS, encoding="utf-8", errors="surrogateescape") as known:
            text = known.read().rstrip("\n")
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as hosts:
            # Its own name comes first, so that `socket.getfqdn()` returns it: torchrun tells hosts apart by that.
            hosts.write("%s%s\n" % ("".join("127.0.0.1 %s\n" % name for name in names), text))
        os.chmod(file, 0o644)
        c = libc()
        if c.unshare(CLONE_NEWUTS) != 0 or c.mount(os.fsencode(file), HOSTS.encode(), None, MS_BIND, None) != 0:
            return False
        socket.sethostname(names[0])
        return True
    except OSError:
        return False
    finally:
        with suppress(OSError):
            os.unlink(file)  # the mount keeps it


@lru_cache(maxsize=None)
def namespaces_work() -> bool:
    """Return whether unshare and mount both work: a container may permit only one. Tested in processes that end at once.

    An agent that the forkserver has forked inherits the result.
    """
    if os.geteuid() != 0:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            if libc().unshare(CLONE_NEWPID) != 0:
                os._exit(1)
            inner = os.fork()
            if inner == 0:
                os._exit(0 if mount_own_proc() else 1)
            os._exit(0 if os.waitpid(inner, 0)[1] == 0 else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _be_init(agent: int) -> None:
    """Run as the first process of the namespace: reap orphans, and die with the agent. Never returns."""
    try:
        die_with_parent()
        if parent() != agent:  # the agent died before the line above
            os._exit(1)
        os.setsid()
        os.closerange(3, 256)  # the agent's sockets must not stay open in this process
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                signal.sigtimedwait([signal.SIGCHLD], 5.0)
    finally:
        os._exit(1)

#!/usr/bin/env python3
"""podrun's supervisor on a host: starts the workers, keeps their output, and leaves nothing behind.

    agent.py run     reads a spec (one JSON line) from stdin, starts the agent in the background, then relays
    agent.py attach DIR        relays to the agent that runs in DIR

A relay copies frames (JSON lines) between its own stdin/stdout and the agent's socket, so a dropped connection ends a relay
and not the agent. This file is sent to hosts as it is: Python 3.8+, standard library only, no other file of podrun.

What always holds:
1. Workers run in sessions of their own and end with the agent: it stops them, then kills every descendant it finds, and
   repeats until none is left. If the agent itself is killed, the kernel kills the workers (PR_SET_PDEATHSIG).
2. Without a frame from the launcher for `lease` seconds the agent stops the workers and ends.
3. What workers print and report goes to files in DIR first, then to the launcher by byte offset. A launcher that attaches
   says what it has; it gets the rest, once and in order.
4. It signals only processes it started and their descendants.

Frames to the agent:    attach {next, offsets} | go {env} | ping | stop {grace} | dump | close
Frames from the agent:  hello {pid, python, host} | ready {port} | started {process, pid} | output {stream, offset, data}
                        | exit {process, code, error, asked} | stopped {reason, left}
All but `output` carry a sequence number `n`. `code` is negative for a signal, `data` keeps any byte by surrogateescape.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

Frame = Dict[str, Any]

SOCKET = "agent.sock"
GONE = "no agent here"  # what a relay says if there is nobody to relay to
TICK = 0.03  # seconds between two looks at the output files
CHUNK = 65536
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(argv: List[str]) -> None:
    if argv[:1] == ["run"]:
        line, rest = read_line(0)
        spec = json.loads(line)
        child = start(spec)
        relay(spec["dir"], rest)
        os.waitpid(child, 0)
    elif argv[:1] == ["attach"] and len(argv) == 2:
        relay(argv[1], b"")
    else:
        sys.exit("usage: agent.py run | agent.py attach DIR")


# --- connection -----------------------------------------------------------------------------------------------------


def read_line(fd: int) -> Tuple[bytes, bytes]:
    """The first line of `fd`, and what was read beyond it."""
    data = b""
    while b"\n" not in data:
        chunk = os.read(fd, CHUNK)
        if not chunk:
            sys.exit("agent.py: the connection ended before the spec arrived")
        data += chunk
    line, _, rest = data.partition(b"\n")
    return line, rest


def start(spec: Frame) -> int:
    """Makes the run folder and its socket, then forks the agent. Returns its pid."""
    os.makedirs(spec["dir"], mode=0o700, exist_ok=True)
    os.chdir(spec["dir"])  # a relative name keeps the socket's path below the 107 bytes the kernel allows
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listener.bind(SOCKET)
    listener.listen(4)
    pid = os.fork()
    if pid:
        listener.close()
        return pid
    os.setsid()
    log = os.open("agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    code = 1
    try:
        Agent(spec, listener).serve()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def relay(directory: str, first: bytes) -> None:
    """Copies stdin to the agent and the agent to stdout until either ends."""
    os.chdir(directory)
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(SOCKET)
    except OSError as error:
        sys.exit("%s: %s" % (GONE, last_words() or error))
    agent.sendall(first)
    sources: List[Any] = [0, agent]
    while True:
        for source in select.select(sources, [], [])[0]:
            if source == 0:
                data = os.read(0, CHUNK)
                if not data:
                    return
                agent.sendall(data)
            else:
                data = agent.recv(CHUNK)
                if not data:
                    return
                while data:
                    data = data[os.write(1, data) :]


def last_words() -> str:
    """Why the agent ended, if it could still say so."""
    try:
        with open("agent.log", encoding="utf-8", errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]
    except OSError:
        return ""


class Connection:
    """The launcher's current connection: frames in, frames out, never blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self.unsent = b""
        self.unparsed = b""
        self.next = 0  # sequence number of the next state frame to send
        self.offsets: Optional[Dict[str, int]] = None  # stream: bytes the launcher has; None until it has attached

    def receive(self) -> List[Frame]:
        """Frames that have arrived."""
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        *lines, self.unparsed = (self.unparsed + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def send(self, frame: Frame) -> None:
        self.unsent += json.dumps(frame).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self) -> None:
        self.open = False
        self.sock.close()


# --- workers --------------------------------------------------------------------------------------------------------


class Worker:
    """One worker process."""

    def __init__(self, spec: Frame) -> None:
        self.process: int = spec["process"]
        self.spec = spec
        self.pid: Optional[int] = None
        self.code: Optional[int] = None  # negative: the signal that ended it
        self.error: Optional[str] = None  # why it could not be started

    def start(self, extra_env: Dict[str, str]) -> None:
        out = os.open(self.spec["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        failure, failure_in = os.pipe()  # closed by a successful exec
        env = dict(os.environ, **self.spec["env"])
        env.update(extra_env)
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become_worker(agent, self.spec, env, out)
            except BaseException as error:
                os.write(failure_in, str(error).encode("utf-8", "replace")[:1000])
            finally:
                os._exit(127)
        os.close(out)
        os.close(failure_in)
        self.error = os.read(failure, 1000).decode("utf-8", "replace") or None
        os.close(failure)

    @property
    def running(self) -> bool:
        return self.pid is not None and self.code is None

    def signal(self, number: int) -> None:
        """To its whole process group. It is not reaped yet, so the id is still its own."""
        if self.pid is not None and self.code is None:
            try:
                os.killpg(self.pid, number)
            except OSError:
                pass


def become_worker(agent: int, spec: Frame, env: Dict[str, str], out: int) -> None:
    """In the new child: an own session, dead with its agent, no stdin, output to its file."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # the agent died before the line above
        os._exit(127)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(spec["cwd"])
    os.execvpe(spec["argv"][0], spec["argv"], env)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants() -> List[int]:
    """Live processes below this one, with those that were orphaned to it (it is a subreaper)."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:  # a command's name is bytes, not always text
                    fields = file.read().rsplit(b")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def reserve_port() -> socket.socket:
    """A free TCP port, held for this run: the coordinator binds it too (gRPC sets SO_REUSEPORT), nobody else can."""
    sock = socket.socket(socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("", 0))
    return sock


# --- agent ----------------------------------------------------------------------------------------------------------


class Agent:
    """Serves one launcher connection at a time, and ends when all is over and the launcher has everything."""

    def __init__(self, spec: Frame, listener: socket.socket) -> None:
        self.spec = spec
        self.listener = listener
        self.connection: Optional[Connection] = None
        self.history: List[Frame] = []  # state frames, kept to be sent again after a reconnect
        self.workers = [Worker(w) for w in spec["processes"]]
        # Events first: however much is printed, what a worker reports is not kept waiting by it.
        self.streams: List[str] = [w[kind] for kind in ("events", "output") for w in spec["processes"]]
        self.port: Optional[socket.socket] = None
        self.heard = time.monotonic()
        self.kill_at: Optional[float] = None  # when a stop that was asked for becomes a kill
        self.stop_reason: Optional[str] = None
        self.started = False
        self.stopped = False
        self.finished = False

    def serve(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake, wake_in = os.pipe()
        for fd in (wake, wake_in):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda number, _: self.stop(0, "the agent got signal %d" % number))
        self.prepare()
        while not self.finished:
            self.wait(wake)
            self.reap()
            self.enforce()
            self.send_news()

    def prepare(self) -> None:
        self.report("hello", pid=os.getpid(), python=platform.python_version(), host=socket.gethostname())
        for name, text in self.spec["files"].items():
            with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        if self.spec["coordinator"]:
            self.port = reserve_port()
        self.report("ready", port=self.port.getsockname()[1] if self.port else None)

    def report(self, kind: str, **fields: Any) -> None:
        self.history.append(dict(fields, type=kind, n=len(self.history)))

    def wait(self, wake: int) -> None:
        """Sleeps until a frame, a signal, or the next look at the files is due; handles frames."""
        connection = self.connection
        sources: List[Any] = [self.listener, wake]
        if connection:
            sources.append(connection.sock)
        writable = [connection.sock] if connection and connection.unsent else []
        ready, can_write, _ = select.select(sources, writable, [], TICK)
        if connection and can_write:
            connection.flush()
        if wake in ready:
            os.read(wake, 4096)
        if connection and connection.sock in ready:
            for frame in connection.receive():
                self.heard = time.monotonic()
                self.handle(connection, frame)
        if self.listener in ready:
            if connection:
                connection.close()
            self.connection = Connection(self.listener.accept()[0])
        if self.connection and not self.connection.open:
            self.connection = None

    def handle(self, connection: Connection, frame: Frame) -> None:
        kind = frame["type"]
        if kind == "attach":
            connection.next = frame["next"]
            connection.offsets = dict(dict.fromkeys(self.streams, 0), **frame["offsets"])
        elif kind == "go" and self.stop_reason is None and not self.started:  # it may come twice, after a reconnect
            self.started = True
            self.start_workers(frame["env"])
        elif kind == "stop":
            self.stop(frame["grace"], "asked to stop")
        elif kind == "dump":
            for worker in self.workers:
                worker.signal(signal.SIGUSR1)
        elif kind == "close" and self.stopped:
            self.remove_files(connection.offsets or {})
            self.finished = True

    def start_workers(self, env: Dict[str, str]) -> None:
        for worker in self.workers:
            worker.start(env)
            if worker.error is None:
                self.report("started", process=worker.process, pid=worker.pid)

    def stop(self, grace: float, reason: str) -> None:
        """SIGTERM now, SIGKILL after `grace` seconds. A later stop may move that moment."""
        if self.stop_reason is None:
            self.stop_reason = reason
            for worker in self.workers:
                worker.signal(signal.SIGTERM)
        self.kill_at = time.monotonic() + grace

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for worker in self.workers:
                if worker.pid == pid:
                    worker.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    asked = self.stop_reason is not None
                    self.report("exit", process=worker.process, code=worker.code, error=worker.error, asked=asked)

    def enforce(self) -> None:
        """Lease, and the end of a stop."""
        now = time.monotonic()
        if now - self.heard > self.spec["lease"]:
            if self.stopped:
                self.finished = True  # the folder stays: nobody else has these logs
            elif self.stop_reason is None:
                self.stop(self.spec["grace"], "no word from the launcher for %g s" % self.spec["lease"])
        if self.kill_at is None or self.stopped:
            return
        if now >= self.kill_at or not any(w.running for w in self.workers):
            self.kill_all()
            self.stopped = True
            self.report("stopped", reason=self.stop_reason, left=descendants())

    def kill_all(self) -> None:
        """Every descendant, again and again until none is left: a process may fork while it is being killed."""
        deadline = time.monotonic() + 10  # beyond it only a process stuck in the kernel is left; `stopped` names it
        while descendants() and time.monotonic() < deadline:
            for pid in descendants():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.01)
            self.reap()

    def remove_files(self, offsets: Dict[str, int]) -> None:
        """Leave nothing of this run on the host but what the launcher does not have."""
        delivered = [name for name in self.streams if size_of(name) <= offsets.get(name, 0)]
        for name in [SOCKET, "agent.log", *self.spec["files"], *delivered]:
            try:
                os.unlink(name)
            except OSError:
                pass
        os.chdir("/")
        try:
            os.rmdir(self.spec["dir"])
        except OSError:
            pass  # the user's program left something there

    # --- news to the launcher ---

    def send_news(self) -> None:
        """Output before the state it belongs to, and only as fast as the launcher takes it."""
        connection = self.connection
        if connection and connection.open and connection.offsets is not None:
            for stream in self.streams:
                self.send_output(connection, connection.offsets, stream)
            self.send_state(connection, connection.offsets)

    def send_output(self, connection: Connection, offsets: Dict[str, int], stream: str) -> None:
        offset = offsets[stream]
        while connection.open and not connection.unsent and size_of(stream) > offset:
            with open(stream, "rb") as file:
                file.seek(offset)
                data = file.read(CHUNK)
            connection.send(
                {"type": "output", "stream": stream, "offset": offset, "data": data.decode("utf-8", "surrogateescape")}
            )
            offset += len(data)
            offsets[stream] = offset

    def send_state(self, connection: Connection, offsets: Dict[str, int]) -> None:
        """A worker's exit follows its last event, which may be the reason; `stopped` follows all output."""
        while connection.open and connection.next < len(self.history):
            frame = self.history[connection.next]
            ends = frame["type"]
            events = [w.spec["events"] for w in self.workers if w.process == frame.get("process")]
            waits_for = events if ends == "exit" else self.streams if ends == "stopped" else []
            if any(size_of(name) > offsets[name] for name in waits_for):
                return
            connection.send(frame)
            connection.next += 1


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return 0


if __name__ == "__main__":
    main(sys.argv[1:])

"""The agent itself: serves one launcher connection at a time, and ends when all is over and the launcher has everything."""

from __future__ import annotations

import errno
import os
import platform
import select
import signal
import socket
import time
from typing import Any, Dict, List, Optional

from .code import copy_code, remove_code
from .connection import CHUNK, Connection, Frame
from .lock import HostLock, own_address
from .port import RefusedError, deafen, probe, reserve_port
from .processes import adopt_orphans, ended_children, enter_pid_namespace, kill_descendants
from .relay import LOG, SOCKET
from .store import SIGN, in_use
from .worker import Worker

TICK = 0.03  # seconds between two looks at the output files
LOCK_RETRY = 0.5  # seconds between two tries
LOCK_PATIENCE = 15.0  # seconds for a run that is ending to let go of the host


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
        self.lock = HostLock()
        self.waits_since: Optional[float] = None  # for another run to let go of the host
        self.next_try = 0.0
        self.ready = False
        self.isolated = False
        self.signed = 0.0  # when the folders that the run uses were last said to be in use
        self.port: Optional[socket.socket] = None
        self.heard = time.monotonic()
        self.kill_at: Optional[float] = None  # when a stop that was asked for becomes a kill
        self.stop_reason: Optional[str] = None
        self.started = False
        self.stopped = False
        self.finished = False

    def serve(self) -> None:
        adopt_orphans()
        wake, wake_in = os.pipe()
        for fd in (wake, wake_in):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda number, _: self.stop(0, "the agent got signal %d" % number))
        self.report("hello", pid=os.getpid(), python=platform.python_version(), host=socket.gethostname())
        while not self.finished:
            self.get_ready()
            self.wait(wake)
            self.reap()
            self.enforce()
            self.send_news()

    def get_ready(self) -> None:
        """Takes the host and writes what the workers need; again and again while another run has the host."""
        now = time.monotonic()
        if self.ready or self.stop_reason is not None or now < self.next_try:
            return
        self.next_try = now + LOCK_RETRY
        try:
            holder = self.lock.take(self.spec["run"]) if self.spec["exclusive"] else None
            if holder is not None:
                self.wait_for(holder)
                return
            self.prepare()
        except OSError as error:
            self.refuse("cannot write %s: %s" % (error.filename or self.spec["dir"], error.strerror))
        except RefusedError as error:
            self.refuse(str(error))

    def prepare(self) -> None:
        for name, text in self.spec["files"].items():
            with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        if self.spec["code"]:
            copy_code(os.path.expanduser(self.spec["code"]), "code")
        self.isolated = enter_pid_namespace()
        if self.spec["coordinator"]:
            self.port = reserve_port(self.spec["ports"])
        self.ready = True
        self.report("ready", port=self.port.getsockname()[1] if self.port else None, address=own_address())

    def wait_for(self, holder: str) -> None:
        now = time.monotonic()
        if self.waits_since is None:
            self.waits_since = now
            self.report("waiting", holder=holder)
        elif now - self.waits_since > LOCK_PATIENCE:
            self.refuse("the host is taken by %s; `podrun stop RUN` ends a run of yours" % holder)

    def refuse(self, reason: str) -> None:
        self.report("refused", reason=reason)
        self.stop(0, reason)

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
        elif kind == "ping":
            if not connection.unsent:  # else it sees that we live
                connection.send({"type": "pong"})
        elif kind == "probe":
            self.report("probed", error=probe(frame["address"]))
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
        if self.port is not None:
            self.port = deafen(self.port)
        for worker in self.workers:
            worker.start(env, self.isolated)
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
        for pid, code in ended_children():
            for worker in self.workers:
                if worker.pid == pid:
                    worker.code = code
                    asked = self.stop_reason is not None
                    self.report("exit", process=worker.process, code=code, error=worker.error, asked=asked)

    def enforce(self) -> None:
        """Lease, and the end of a stop."""
        now = time.monotonic()
        self.lock.answer()
        if self.started and not any(w.running for w in self.workers):
            self.lock.release()  # it only waits for somebody to fetch the last output
        elif self.ready and self.spec["exclusive"] and now > self.next_try:
            self.next_try = now + LOCK_RETRY
            self.lock.take(self.spec["run"])  # another agent of the run may have had it, and ended
        if self.spec["uses"] and now - self.signed > SIGN:
            self.signed = now
            in_use(*map(os.path.expanduser, self.spec["uses"]))
        if now - self.heard > self.spec["lease"]:
            if self.stopped:
                self.finished = True  # the folder stays: nobody else has these logs
            elif self.stop_reason is None:
                self.stop(self.spec["grace"], "no word from the launcher for %g s" % self.spec["lease"])
        if self.kill_at is None or self.stopped:
            return
        if now >= self.kill_at or not any(w.running for w in self.workers):
            left = kill_descendants(self.reap)
            self.stopped = True
            kept = remove_code("code") if self.spec["code"] else None
            self.report("stopped", reason=self.stop_reason, left=left, kept=kept)

    def remove_files(self, offsets: Dict[str, int]) -> None:
        """Leave nothing of this run on the host but what the launcher does not have."""
        delivered = [name for name in self.streams if size_of(name) <= offsets.get(name, 0)]
        for name in [SOCKET, LOG, *self.spec["files"], *delivered]:
            try:
                os.unlink(name)
            except OSError:
                pass
        os.chdir("/")
        folder = self.spec["dir"]
        for _ in range(3):  # it, the run's folder of hosts, and the run's own
            try:
                os.rmdir(folder)
            except OSError:
                return  # other hosts are in it, or the user's program left something there
            folder = os.path.dirname(folder)

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

"""The agent's main loop: run the workers, serve the launcher's connection, and leave no process behind."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..base.address import address_env, only_address, own_address
from ..base.boot import boot_id
from ..base.connection import Connection
from ..base.disk import FULL, cannot_write, full_disk
from ..base.login_folder import expand_spec
from ..base.private import UnsafeError, is_private
from ..base.processes import adopt_orphans, ended_children, enter_pid_namespace, kill_descendants
from ..base.protocol import ASKED, PREEMPTED, UNHEARD
from ..base.run_folder import remove_folder
from ..host.lock import HostLock
from ..host.memory import has_killed, kills, usage
from ..host.notice import Notice
from ..host.port import RefusedError, probe, release, reserve_port
from ..host.usage import Usage
from .claim import LOCK_RETRY, Claim
from .limits import Ending, Lease
from .outbox import Outbox
from .prewarmed import PrewarmedWorkers
from .progress import RecordSender, StackDump
from .worker import Worker

if TYPE_CHECKING:
    from ..base.from_agent import Exit
    from ..base.to_agent import Close, Spec, ToAgent

TICK = 0.03  # seconds between two checks of growing output files
QUIET_TICK = 0.25  # the same when nothing has been printed for a while
IDLE, LONGEST_IDLE = 1.0, 5.0  # least and most seconds between two rounds while no worker runs
SAVE_GRACE = (
    60.0  # seconds added to the grace, for a save, when the machine asks for a stop; it may kill the agent sooner
)
LOCK_TIMEOUT = 15.0  # seconds to wait for a run that is ending to release the host


class Agent:
    """Runs one attempt. Serves one launcher connection at a time, and ends when the launcher has everything.

    If another attempt may follow, only prewarmed workers are left while the agent waits for its spec.
    """

    def __init__(
        self,
        spec: Spec,
        listener: socket.socket,
        lock: HostLock,
        prewarmed: PrewarmedWorkers,
        notice: Notice,
        connection: Optional[Connection] = None,
    ) -> None:
        self.spec = spec
        self.listener = listener
        self.connection = connection
        if connection is not None:
            connection.begin_again()
        self.prewarmed = prewarmed
        self.waits_for_spec = False  # the attempt is over, and another may follow
        self.next_spec: Optional[Spec] = None
        self.outbox = Outbox(spec["processes"])
        self.workers = [Worker(w) for w in spec["processes"]]
        self.progress = RecordSender()
        self.usage = Usage()
        self.dump: Optional[StackDump] = None  # while the workers print their stacks
        self.claim = Claim(lock, spec)
        self.ready = False
        self.isolated = False
        self.ports: List[socket.socket] = []  # reserved for JAX's coordinator, and for that of another library
        self.lease = Lease(spec["lease"])
        self.ending = Ending()
        self.last_error = ""  # the last one logged
        self.kills = kills()  # the kernel's kills for lack of memory before the workers started
        self.started = False
        self.closing: Optional[Close] = None  # the launcher's frame `close`
        self.finished = False
        self.notice = notice

    def serve(self) -> None:
        adopt_orphans()
        wake, wake_in = os.pipe()
        for fd in (wake, wake_in):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda number, _: self.stop(0, "the agent got signal %d" % number))
        signal.signal(signal.SIGTERM, lambda *_: self.preempt())
        self.notice.watch()
        python = sys.version.split()[0]
        host, boot = socket.gethostname(), boot_id()
        self.outbox.report({"type": "hello", "pid": os.getpid(), "python": python, "host": host, "boot": boot})
        self.listener.setblocking(False)
        while not self.finished:
            for action in (
                self.get_ready,
                lambda: self.wait(wake),
                self.reap,
                self.enforce_limits,
                self.hold_host,
                self.send_pending,
            ):
                self.run_action(action)
        signal.set_wakeup_fd(-1)
        for fd in (wake, wake_in):
            os.close(fd)

    def run_action(self, action: Callable[[], None]) -> None:
        """Run one action of a round. An OSError, such as a full disk, is logged: the workers would die with the agent."""
        try:
            if not self.finished:
                action()
        except OSError as error:
            self.log_error(error)
            time.sleep(TICK)

    def log_error(self, error: Exception) -> None:
        """Log an error, once while it repeats, because the disk may be full."""
        if str(error) != self.last_error:
            self.last_error = str(error)
            try:
                print("the agent continues after %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
            except OSError:
                pass

    def get_ready(self) -> None:
        """Lock the host and prepare the attempt; retry while another run holds the lock."""
        if self.ready or self.ending.reason is not None or not self.claim.is_due():
            return
        try:
            holder = self.claim.take()
            if holder is not None:
                self.wait_for(holder)
                return
            self.prepare()
        except UnsafeError as error:
            self.refuse(str(error))
        except OSError as error:
            self.refuse(cannot_write(error, self.spec["dir"]))
        except RefusedError as error:
            self.refuse(str(error))

    def prepare(self) -> None:
        """Write the workers' files, copy the code, and reserve the coordinator's ports. Raises OSError, RefusedError."""
        for name, text in self.spec["files"].items():
            # Python's cache folder is made here, because a worker's umask might open it to others.
            compiled = "__pycache__" if name.endswith(".py") else ""
            os.makedirs(os.path.join(os.path.dirname(name), compiled) or ".", exist_ok=True)
            with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        for folder in self.spec["uses"]:
            if not is_private(folder):
                raise RefusedError("%s is gone, or others could have changed it; run podrun again" % folder)
        if self.spec["code"]:
            from ..prepare.project_copy import copy_code

            copy_code(self.spec["code"], "code")
        self.isolated = (self.prewarmed.release_namespace() or enter_pid_namespace()) > 0
        if self.spec["coordinator"]:
            address, allowed = only_address(self.spec["internal"]), self.spec["ports"]
            number = 2 if self.spec["is_program"] and (allowed is None or allowed[0] < allowed[1]) else 1
            self.ports = [reserve_port(allowed, address) for _ in range(number)]
        self.ready = True
        port, second_port = [*(sock.getsockname()[1] for sock in self.ports), None, None][:2]
        self.outbox.report(
            {
                "type": "ready",
                "port": port,
                "second_port": second_port,
                "address": own_address(),
                "isolated": self.isolated,
            }
        )

    def wait_for(self, holder: str) -> None:
        waited = self.claim.waited()
        if waited is None:
            self.outbox.report({"type": "waiting", "holder": holder})
        elif waited > LOCK_TIMEOUT:
            self.refuse("the host is taken by %s; `podrun stop RUN` ends a run of yours" % holder)

    def refuse(self, reason: str) -> None:
        self.outbox.report({"type": "refused", "reason": reason})
        self.stop(0, reason)

    def wait(self, wake: int) -> None:
        """Wait for a frame, a signal or the next round, and handle frames."""
        connection = self.current_connection()
        sources: List[Any] = [self.listener, wake]
        if connection:
            sources.append(connection.sock)
        writable = [connection.sock] if connection and connection.unsent else []
        timeout = self.timeout()
        if connection and connection.received:
            timeout = 0.0
        asleep = time.monotonic()
        ready, can_write, _ = select.select(sources, writable, [], timeout)
        # A machine too busy to run this process on time was too busy to deliver the launcher's frames as well.
        self.lease.extend(time.monotonic() - asleep - timeout)
        if wake in ready:
            os.read(wake, 4096)
        if connection:
            self.serve_connection(connection, connection.sock in ready, bool(can_write))
        if self.listener in ready:
            sock = self.listener.accept()[0]
            if connection:
                connection.close()
            self.connection = Connection(sock)

    def current_connection(self) -> Optional[Connection]:
        """Return the connection; None if it is closed. A failed send or receive closes it."""
        if self.connection is not None and not self.connection.open:
            self.connection = None
        return self.connection

    def serve_connection(self, connection: Connection, readable: bool, writable: bool) -> None:
        """Flush and handle frames. An error ends only the connection: the launcher attaches again and repeats its frames."""
        try:
            if writable:
                connection.flush()
            if readable:
                connection.receive()
            while connection.received and not self.finished:  # the rest is for the next attempt
                self.lease.renew()
                self.handle(connection, connection.received.popleft())
        except (OSError, ValueError) as error:
            self.log_error(error)
            connection.close()

    def timeout(self) -> float:
        """Return the seconds until output, a deadline or the lock must be checked: these do not wake `select`."""
        now = time.monotonic()
        if self.outbox.pending:
            return 0.0
        seconds: float = min(LONGEST_IDLE, max(IDLE, self.spec["lease"] / 20))
        if self.started and not self.ending.is_over:
            # The interval is a tenth of the time without output.
            seconds = min(QUIET_TICK, max(TICK, (now - self.outbox.last_growth) / 10))
        if self.dump is not None:
            seconds = min(seconds, self.dump.seconds_left())
        if self.spec["exclusive"]:
            seconds = min(seconds, LOCK_RETRY)
        left = self.ending.seconds_left()
        return seconds if left is None else min(seconds, left)

    def handle(self, connection: Connection, frame: ToAgent) -> None:
        if frame["type"] == "attach":
            self.lease.is_attached = True
            self.closing = None  # sent by an earlier launcher
            connection.next = frame["next"]
            connection.offsets = dict(dict.fromkeys(self.outbox.streams, 0), **frame["offsets"])
        elif frame["type"] == "ping":
            if not connection.unsent:  # else the pending frames answer it
                connection.send({"type": "pong"})
        elif frame["type"] == "probe":
            self.outbox.report({"type": "probed", "error": probe(frame["address"])})
        elif frame["type"] == "go" and self.ending.reason is None and not self.started:  # comes again after a reconnect
            self.started = True
            self.start_workers(frame["env"])
        elif frame["type"] == "stop":
            self.outbox.skips_output = frame.get("hurry", False)
            self.stop(frame["grace"], ASKED)
        elif frame["type"] == "dump":
            self.dump = self.dump or StackDump(self.workers, self.isolated)
        elif frame["type"] == "standby" and self.started and self.ending.reason is None:
            self.prewarmed.start([worker.spec for worker in self.workers], frame["count"])
        elif frame["type"] == "close":  # may come before the workers have ended
            self.closing = frame
            if self.ending.is_over:  # now, because the next frame may be the spec of the next attempt
                self.end_attempt(frame)
        elif frame["type"] == "spec" and self.ending.is_over:
            if not self.waits_for_spec:  # `close` was lost with its connection
                self.remove_files(connection.offsets or {})
            self.next_spec = expand_spec(frame)
            self.finished = True

    def start_workers(self, env: Dict[str, str]) -> None:
        if self.ports:
            self.ports = release(self.ports, hold_first=not self.spec["is_program"])
        self.kills = kills()
        env = dict(address_env(self.spec["internal"]), **env)
        self.outbox.last_growth = time.monotonic()
        for worker in self.workers:
            try:
                if not self.prewarmed.assign(worker, env):
                    self.start_worker(worker, env)
            except OSError as error:  # no fork, or no output file
                full = error.errno in FULL
                why = cannot_write(error, ".") if full else "%s: %s" % (error.filename or "fork", error.strerror)
                worker.error, worker.code = why, 127
                self.outbox.report(
                    {"type": "exit", "process": worker.process, "code": 127, "error": why, "asked": False}
                )
            if worker.error is None and worker.pid is not None:
                self.outbox.report(
                    {"type": "started", "process": worker.process, "pid": worker.pid, "standby": worker.was_prewarmed}
                )
        self.prewarmed.stop_unused()

    def start_worker(self, worker: Worker, env: Dict[str, str]) -> None:
        """Start a worker as a new process. Raises OSError."""
        try:
            worker.start(env, self.isolated)
        except OSError as error:
            if error.errno != errno.ENOMEM or not self.isolated:
                raise
            # ENOMEM also means that the first process of the PID namespace was killed, and no other can start there.
            self.isolated = enter_pid_namespace() > 0
            worker.start(env, self.isolated)

    def stop(self, grace: float, reason: str) -> None:
        """Send SIGTERM now, and SIGKILL after `grace` seconds. A further stop sets a new deadline."""
        self.finished = self.finished or self.waits_for_spec
        if self.ending.ask(grace, reason):
            for worker in self.workers:
                worker.signal(signal.SIGTERM)

    def preempt(self) -> None:
        """Stop with time for a save, because the machine shuts down or is needed by SLURM or its owner."""
        if self.ending.reason is None or self.waits_for_spec:
            self.stop(self.spec["grace"] + SAVE_GRACE, PREEMPTED + (self.notice.reason() or "SIGTERM to its agent"))

    def reap(self) -> None:
        for pid, code in ended_children():
            self.prewarmed.note_end(pid)
            for worker in self.workers:
                if worker.pid == pid:
                    worker.code = code
                    self.outbox.report(self.exit_of(worker, code))

    def exit_of(self, worker: Worker, code: int) -> Exit:
        """Return the frame for a worker's exit. Unless it was asked to stop, add whether memory or disk was exhausted."""
        asked = self.ending.reason is not None
        ended: Exit = {
            "type": "exit",
            "process": worker.process,
            "code": code,
            "error": worker.error,
            "asked": asked,
        }
        if asked:
            return ended
        if code == -signal.SIGKILL:
            ended["out_of_memory"], ended["memory"] = has_killed(self.kills, kills()), usage()
            return ended
        full = self.disk_that_was_full(worker, code)
        if full:
            ended["full"] = full
        return ended

    def disk_that_was_full(self, worker: Worker, code: int) -> Optional[str]:
        """Return the full disk, if any, when a worker failed: the worker's own message may be lost on that disk."""
        if code <= 0 and code != -signal.SIGBUS:  # SIGBUS: no space for a mapped file
            return None
        try:  # not the workdir: a network file system may hang, and the worker itself can report that it is full
            return full_disk([os.getcwd(), worker.spec["env"].get("TMPDIR", "/tmp")])
        except OSError:
            return None  # report the exit without it

    def enforce_limits(self) -> None:
        """Stop the workers when the lease has expired, and kill them when the grace of a stop is over."""
        expires = self.lease.expires()
        if self.lease.has_expired and self.ending.is_over:
            self.finished = True  # keep the folder, the only copy of these logs
            print(self.ending.reason, flush=True)  # `relay` shows the last line of the log
        elif expires:
            # A requested stop keeps its deadline: no launcher is left to extend it for a save.
            left = self.ending.seconds_left()
            grace = self.spec["grace"] if left is None else min(self.spec["grace"], left)
            self.stop(grace, "%s for %g s" % (UNHEARD, self.lease.limit()))
        if self.waits_for_spec and self.current_connection() is None:
            self.finished = True
        if self.ending.is_over and self.closing is not None:
            self.end_attempt(self.closing)
        left = self.ending.seconds_left()
        if left is not None and (left == 0.0 or not any(w.running for w in self.workers)):
            pids = kill_descendants(self.reap, self.prewarmed.survivors | self.notice.watchers)
            self.ending.is_over = True
            reason, kept = self.ending.reason or "", self.remove_code()
            # `missing` is counted when the frame is sent.
            self.outbox.report({"type": "stopped", "reason": reason, "left": pids, "kept": kept, "missing": 0})

    def end_attempt(self, close: Close) -> None:
        """Remove the attempt's files. The agent ends unless another attempt may follow."""
        if not self.waits_for_spec:
            self.remove_files(close["offsets"])
        self.closing = None
        self.waits_for_spec = close.get("again", False)
        self.finished = not self.waits_for_spec

    def hold_host(self) -> None:
        """Hold the host's lock while workers run, and mark the run's folders as in use."""
        self.claim.lock.drain_connections()
        if self.started and not any(w.running for w in self.workers):
            self.claim.lock.release()  # only the last output remains to be fetched
        elif self.ready and self.claim.is_due():
            self.claim.take()
        self.claim.mark_in_use()

    def remove_code(self) -> Optional[str]:
        """Remove the run's copy of the code. Returns its path if it stays because the program wrote files there."""
        if not self.spec["code"]:
            return None
        from ..prepare.project_copy import remove_code

        try:
            return remove_code("code")
        except OSError as error:  # go on, because the launcher waits for `stopped`
            self.log_error(error)
            return os.path.abspath("code")

    def remove_files(self, offsets: Dict[str, int]) -> None:
        """Remove the attempt's files from the host, except output that the launcher does not have."""
        delivered = [name for name in self.outbox.streams if self.outbox.has_all(name, offsets.get(name, 0))]
        others = [w.spec[name] for w in self.workers for name in ("beat", "profile")]
        remove_folder(self.spec["dir"], [*self.spec["files"], *others, *delivered])

    def send_pending(self) -> None:
        if self.dump is not None:
            stuck = self.dump.result()
            if stuck is not None:
                self.outbox.report(stuck)
            if self.dump.over:
                self.dump = None
        connection = self.current_connection()
        if connection and not self.waits_for_spec:
            self.progress.send(self.workers, connection)
            if self.spec["measures"] and any(w.running for w in self.workers):
                self.usage.send(connection)
            self.outbox.send(connection)

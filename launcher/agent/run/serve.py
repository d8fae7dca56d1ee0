"""The agent's main loop: run the workers, serve the launcher's connection, and leave no process behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..base.boot import boot_id
from ..base.connection import Connection
from ..base.disk import cannot_write
from ..base.holder import how_to_end
from ..base.login_folder import expand_spec
from ..base.private import UnsafeError, is_private
from ..base.processes import adopt_orphans, ended_children, kill_descendants, wake_on_signals
from ..base.protocol import ASKED, PREEMPTED, UNHEARD
from ..base.run_folder import remove_folder
from ..host.lock import HostLock
from ..host.notice import Notice
from ..host.port import RefusedError, probe
from .claim import LOCK_RETRY, Claim
from .limits import Ending, Lease
from .outbox import Outbox
from .prewarmed import PrewarmedWorkers
from .run_memory import make_memory
from .telemetry import Telemetry
from .workers import Workers

if TYPE_CHECKING:
    from ..base.to_agent import Close, Spec, ToAgent

TICK = 0.03  # seconds between two checks of growing output files
QUIET_TICK = 0.25  # the same when nothing has been printed for a while
IDLE, LONGEST_IDLE = 1.0, 5.0  # least and most seconds between two rounds while no worker runs
SAVE_GRACE = (
    60.0  # seconds added to the grace, for a save, when the machine asks for a stop; it may kill the agent sooner
)
LOCK_TIMEOUT = 15.0  # seconds to wait for a run that is ending to release the host


class Agent:
    """Runs one attempt. Serves one connection of the launcher at a time, and ends when the launcher has everything.

    If another attempt may follow, the agent waits for its spec, and only prewarmed workers are left meanwhile.
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
        self.waits_for_spec = False  # the attempt is over, and another may follow
        self.next_spec: Optional[Spec] = None
        self.outbox = Outbox(spec["processes"])
        self.workers = Workers(spec, prewarmed)
        self.telemetry = Telemetry(self.workers)
        self.claim = Claim(lock, spec)
        self.ready = False
        self.lease = Lease(spec["lease"])
        self.ending = Ending()
        self.last_error = ""  # the last one logged
        self.closing: Optional[Close] = None  # the launcher's frame `close`
        self.finished = False
        self.notice = notice

    def serve(self) -> None:
        adopt_orphans()
        wake, wake_in = wake_on_signals()
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
        """Run one action of a round. Logs an OSError, such as a full disk, because the workers would end with the agent."""
        try:
            if not self.finished:
                action()
        except OSError as error:
            self.log_error(error)
            time.sleep(TICK)

    def log_error(self, error: Exception) -> None:
        """Log an error; if it repeats, only once, because the disk may be full."""
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
        make_memory(self.spec)
        if self.spec["code"]:
            from ..prepare.project_copy import copy_code

            copy_code(self.spec["code"], "code")
        frame = self.workers.reserve()
        self.ready = True
        self.outbox.report(frame)

    def wait_for(self, holder: str) -> None:
        waited = self.claim.waited()
        if waited is None:
            self.outbox.report({"type": "waiting", "holder": holder})
        elif waited > LOCK_TIMEOUT:
            self.refuse("the host is taken by %s; %s" % (holder, how_to_end(holder)))

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
        """Return the seconds after which to look at output, deadlines and the lock, because these do not wake `select`."""
        now = time.monotonic()
        if self.outbox.pending:
            return 0.0
        seconds: float = min(LONGEST_IDLE, max(IDLE, self.spec["lease"] / 20))
        if self.workers.started and not self.ending.is_over:
            # The interval is a tenth of the time without output.
            seconds = min(QUIET_TICK, max(TICK, (now - self.outbox.last_growth) / 10))
        awaited = self.telemetry.seconds_left()
        if awaited is not None:
            seconds = min(seconds, awaited)
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
        elif frame["type"] == "go" and self.ending.reason is None and not self.workers.started:  # repeated on reconnect
            self.outbox.last_growth = time.monotonic()
            for told in self.workers.start(frame["env"]):
                self.outbox.report(told)
        elif frame["type"] == "stop":
            self.outbox.skips_output = frame.get("hurry", False)
            self.stop(frame["grace"], ASKED)
        elif frame["type"] == "dump":
            self.telemetry.dump_stacks()
        elif frame["type"] == "standby" and self.workers.started and self.ending.reason is None:
            self.workers.prewarm(frame["count"])
        elif frame["type"] == "close":  # may come before the workers have ended
            self.closing = frame
            if self.ending.is_over:  # now, because the next frame may be the spec of the next attempt
                self.end_attempt(frame)
        elif frame["type"] == "spec" and self.ending.is_over:
            if not self.waits_for_spec:  # `close` was lost with its connection
                self.remove_files(connection.offsets or {})
            self.next_spec = expand_spec(frame)
            self.finished = True

    def stop(self, grace: float, reason: str) -> None:
        """Send SIGTERM now, and SIGKILL after `grace` seconds. Another call sets a new deadline."""
        self.finished = self.finished or self.waits_for_spec
        if self.ending.ask(grace, reason):
            self.workers.signal(signal.SIGTERM)

    def preempt(self) -> None:
        """Stop with time for a save, because the machine shuts down or is needed by SLURM or its owner."""
        if self.ending.reason is None or self.waits_for_spec:
            self.stop(self.spec["grace"] + SAVE_GRACE, PREEMPTED + (self.notice.reason() or "SIGTERM to its agent"))

    def reap(self) -> None:
        for pid, code in ended_children():
            ended = self.workers.note_end(pid, code, asked=self.ending.reason is not None)
            if ended is not None:
                self.outbox.report(ended)

    def enforce_limits(self) -> None:
        """Stop the workers when the lease has expired, and kill them at the deadline of a stop."""
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
        if left is not None and (left == 0.0 or not self.workers.running):
            pids = kill_descendants(self.reap, self.workers.prewarmed.survivors | self.notice.watchers)
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
        if self.workers.started and not self.workers.running:
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
        others = [w.spec[name] for w in self.workers.each for name in ("beat", "profile")]
        remove_folder(self.spec["dir"], [*self.spec["files"], *others, *delivered])

    def send_pending(self) -> None:
        dumped = self.telemetry.dumped()
        if dumped is not None:
            self.outbox.report(dumped)
        connection = self.current_connection()
        if connection and not self.waits_for_spec:
            self.telemetry.send(connection, self.spec["measures"])
            self.outbox.send(connection)

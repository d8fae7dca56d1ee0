"""The agent's main loop: run the workers, serve the launcher's connection, and leave nothing behind."""

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
from .outbox import News
from .prewarmed import Standbys
from .progress import Dump, Progress
from .worker import Worker

if TYPE_CHECKING:
    from ..base.from_agent import Exit
    from ..base.to_agent import Close, Spec, ToAgent

TICK = 0.03  # seconds between two checks of growing output files
QUIET_TICK = 0.25  # the same when nothing has been printed for a while
IDLE, LONGEST_IDLE = 1.0, 5.0  # seconds between two turns while no worker runs, and the most under a long lease:
# a thousand agents may share two cores
FIRST_WORD = 60.0  # seconds for the launcher to attach; its lease begins then
SIGN = 300.0  # seconds between two marks that the run uses its folders
LOCK_RETRY = 0.5  # seconds between two attempts to take the host
SAVE_GRACE = 60.0  # seconds for a save, beyond the grace, when the machine asks for a stop; it may end us sooner
LOCK_PATIENCE = 15.0  # seconds to wait for a run that is ending to release the host


class Agent:
    """Serves one launcher connection at a time, and ends when the workers have ended and the launcher has everything.

    An agent whose attempt may be followed by another waits, without any process but standbys, for the spec of that one.
    """

    def __init__(
        self,
        spec: Spec,
        listener: socket.socket,
        lock: HostLock,
        standbys: Standbys,
        notice: Notice,
        connection: Optional[Connection] = None,
    ) -> None:
        self.spec = spec
        self.listener = listener
        self.connection = connection
        if connection is not None:
            connection.begin_again()
        self.standbys = standbys
        self.waits_for_spec = False  # the attempt is over, and another may follow
        self.next_spec: Optional[Spec] = None
        self.news = News(spec["processes"])
        self.workers = [Worker(w) for w in spec["processes"]]
        self.progress = Progress()
        self.usage = Usage()
        self.dump: Optional[Dump] = None  # while the workers print their stacks
        self.lock = lock
        self.waits_since: Optional[float] = None  # when it began to wait for another run to release the host
        self.next_try = 0.0
        self.ready = False
        self.isolated = False
        self.marked_in_use = 0.0  # when the folders that the run uses were last marked as in use
        self.ports: List[socket.socket] = []  # of the coordinator: JAX's, and one for another library
        self.heard = time.monotonic()
        self.attached = False
        self.lease_expired = False
        self.last_error = ""  # the last one that was logged
        self.kill_at: Optional[float] = None  # when a requested stop becomes a kill
        self.stop_reason: Optional[str] = None
        self.kills = kills()  # by the kernel for lack of memory, before the workers started
        self.started = False
        self.stopped = False
        self.closing: Optional[Close] = None  # the frame `close`: all that the launcher has
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
        self.news.report({"type": "hello", "pid": os.getpid(), "python": python, "host": host, "boot": boot})
        self.listener.setblocking(False)
        while not self.finished:
            for action in (self.get_ready, lambda: self.wait(wake), self.reap, self.enforce, self.keep, self.send_news):
                self.survive(action)
        signal.set_wakeup_fd(-1)
        for fd in (wake, wake_in):
            os.close(fd)

    def survive(self, action: Callable[[], None]) -> None:
        """Run one action of a turn, and survive a shortage of files, memory or disk: the workers would die with the agent."""
        try:
            if not self.finished:
                action()
        except OSError as error:
            self.log_error(error)
            time.sleep(TICK)

    def log_error(self, error: Exception) -> None:
        """Log an error, but not again while it repeats, because the disk may be full."""
        if str(error) != self.last_error:
            self.last_error = str(error)
            try:
                print("the agent goes on after %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
            except OSError:
                pass

    def get_ready(self) -> None:
        """Take the host and write the workers' files; retry while another run has the host."""
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
        except UnsafeError as error:
            self.refuse(str(error))
        except OSError as error:
            self.refuse(cannot_write(error, self.spec["dir"]))
        except RefusedError as error:
            self.refuse(str(error))

    def prepare(self) -> None:
        for name, text in self.spec["files"].items():
            # With the folder of what Python compiles: made by the worker, it might be open to others.
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
        self.isolated = (self.standbys.give_namespace() or enter_pid_namespace()) > 0
        if self.spec["coordinator"]:
            address, allowed = only_address(self.spec["internal"]), self.spec["ports"]
            number = 2 if self.spec["is_program"] and (allowed is None or allowed[0] < allowed[1]) else 1
            self.ports = [reserve_port(allowed, address) for _ in range(number)]
        self.ready = True
        port, second_port = [*(sock.getsockname()[1] for sock in self.ports), None, None][:2]
        self.news.report(
            {
                "type": "ready",
                "port": port,
                "second_port": second_port,
                "address": own_address(),
                "isolated": self.isolated,
            }
        )

    def wait_for(self, holder: str) -> None:
        now = time.monotonic()
        if self.waits_since is None:
            self.waits_since = now
            self.news.report({"type": "waiting", "holder": holder})
        elif now - self.waits_since > LOCK_PATIENCE:
            self.refuse("the host is taken by %s; `podrun stop RUN` ends a run of yours" % holder)

    def refuse(self, reason: str) -> None:
        self.news.report({"type": "refused", "reason": reason})
        self.stop(0, reason)

    def wait(self, wake: int) -> None:
        """Sleep until a frame, a signal or the next turn is due, and handle frames."""
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
        # A machine too busy to run this process on time was also too busy to deliver the launcher's frames.
        self.heard += max(0.0, time.monotonic() - asleep - timeout)
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
        """Return the connection if it is still open. Sends and receives that fail close it."""
        if self.connection is not None and not self.connection.open:
            self.connection = None
        return self.connection

    def serve_connection(self, connection: Connection, readable: bool, writable: bool) -> None:
        """Flush and handle frames. An error ends only the connection: the launcher attaches again and repeats itself."""
        try:
            if writable:
                connection.flush()
            if readable:
                connection.receive()
            while connection.received and not self.finished:  # the rest is for the next attempt
                self.heard = time.monotonic()
                self.handle(connection, connection.received.popleft())
        except (OSError, ValueError) as error:
            self.log_error(error)
            connection.close()

    def timeout(self) -> float:
        """Return the seconds until something is due that does not wake `select`: output, a deadline, another run's lock."""
        now = time.monotonic()
        if self.news.pending:
            return 0.0
        seconds: float = min(LONGEST_IDLE, max(IDLE, self.spec["lease"] / 20))
        if self.started and not self.stopped:
            # Files that have been quiet for a second are checked every tenth of a second, and so on.
            seconds = min(QUIET_TICK, max(TICK, (now - self.news.grew) / 10))
        if self.dump is not None:
            seconds = min(seconds, self.dump.seconds_left())
        if self.spec["exclusive"]:
            seconds = min(seconds, LOCK_RETRY)
        if self.kill_at is not None and not self.stopped:
            seconds = min(seconds, max(0.0, self.kill_at - now))
        return seconds

    def handle(self, connection: Connection, frame: ToAgent) -> None:
        if frame["type"] == "attach":
            self.attached = True
            self.closing = None  # that was an earlier launcher's frame
            connection.next = frame["next"]
            connection.offsets = dict(dict.fromkeys(self.news.streams, 0), **frame["offsets"])
        elif frame["type"] == "ping":
            if not connection.unsent:  # else the pending frames show that the agent lives
                connection.send({"type": "pong"})
        elif frame["type"] == "probe":
            self.news.report({"type": "probed", "error": probe(frame["address"])})
        elif (
            frame["type"] == "go" and self.stop_reason is None and not self.started
        ):  # it may come twice, after a reconnect
            self.started = True
            self.start_workers(frame["env"])
        elif frame["type"] == "stop":
            self.news.hurried = frame.get("hurry", False)
            self.stop(frame["grace"], ASKED)
        elif frame["type"] == "dump":
            self.dump = self.dump or Dump(self.workers, self.isolated)
        elif frame["type"] == "standby" and self.started and self.stop_reason is None:
            self.standbys.start([worker.spec for worker in self.workers], frame["count"])
        elif frame["type"] == "close":  # may come before the workers have ended
            self.closing = frame
            if self.stopped:  # at once: the spec of the next attempt may be the next frame
                self.end_attempt(frame)
        elif frame["type"] == "spec" and self.stopped:
            if not self.waits_for_spec:  # the `close` before was lost with its connection
                self.remove_files(connection.offsets or {})
            self.next_spec = expand_spec(frame)
            self.finished = True

    def start_workers(self, env: Dict[str, str]) -> None:
        if self.ports:
            self.ports = release(self.ports, hold_first=not self.spec["is_program"])
        self.kills = kills()
        env = dict(address_env(self.spec["internal"]), **env)
        self.news.grew = time.monotonic()
        for worker in self.workers:
            try:
                if not self.standbys.become(worker, env):
                    self.start_worker(worker, env)
            except OSError as error:  # no process, or no file for its output
                full = error.errno in FULL
                why = cannot_write(error, ".") if full else "%s: %s" % (error.filename or "fork", error.strerror)
                worker.error, worker.code = why, 127
                self.news.report({"type": "exit", "process": worker.process, "code": 127, "error": why, "asked": False})
            if worker.error is None and worker.pid is not None:
                self.news.report(
                    {"type": "started", "process": worker.process, "pid": worker.pid, "standby": worker.stood_by}
                )
        self.standbys.dismiss()

    def start_worker(self, worker: Worker, env: Dict[str, str]) -> None:
        """Start a worker as a new process. Raises OSError."""
        try:
            worker.start(env, self.isolated)
        except OSError as error:
            if error.errno != errno.ENOMEM or not self.isolated:
                raise
            # So says the kernel also of a PID namespace whose first process was killed: nothing can start there any more.
            self.isolated = enter_pid_namespace() > 0
            worker.start(env, self.isolated)

    def stop(self, grace: float, reason: str) -> None:
        """Send SIGTERM now, and SIGKILL after `grace` seconds. A later stop may move that moment."""
        self.finished = self.finished or self.waits_for_spec
        if self.stop_reason is None:
            self.stop_reason = reason
            for worker in self.workers:
                worker.signal(signal.SIGTERM)
        self.kill_at = time.monotonic() + grace

    def preempt(self) -> None:
        """Let the workers save and stop: the machine shuts down, or SLURM or its owner needs it."""
        if self.stop_reason is None or self.waits_for_spec:
            self.stop(self.spec["grace"] + SAVE_GRACE, PREEMPTED + (self.notice.reason() or "SIGTERM to its agent"))

    def reap(self) -> None:
        for pid, code in ended_children():
            self.standbys.ended(pid)
            for worker in self.workers:
                if worker.pid == pid:
                    worker.code = code
                    self.news.report(self.exit_of(worker, code))

    def exit_of(self, worker: Worker, code: int) -> Exit:
        """Return the frame for a worker's exit, with what the host lacked if nobody asked the worker to stop."""
        asked = self.stop_reason is not None
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
        """Return which disk was full when a worker failed: it could not say so itself, as that goes to the same disk."""
        if code <= 0 and code != -signal.SIGBUS:  # which the kernel sends for a mapped file without room
            return None
        try:  # not in the workdir: a network file system may hang, and a worker can say itself that it is full
            return full_disk([os.getcwd(), worker.spec["env"].get("TMPDIR", "/tmp")])
        except OSError:
            return None  # the exit is told in any case

    def enforce(self) -> None:
        """Enforce the lease, and kill the workers when a stop has used up its grace."""
        now = time.monotonic()
        lease = self.spec["lease"] if self.attached else max(FIRST_WORD, self.spec["lease"])
        silent = now - self.heard > lease
        if silent and self.stopped:
            self.finished = True  # the folder stays, because it holds the only copy of these logs
            print(self.stop_reason, flush=True)  # the last words that `attach` finds
        elif silent and not self.lease_expired:
            # A requested stop keeps its deadline: no launcher is left to extend it for a save.
            end = min(self.spec["grace"], (self.kill_at or now + self.spec["grace"]) - now)
            self.stop(max(0.0, end), "%s for %g s" % (UNHEARD, lease))
        self.lease_expired = silent
        if self.waits_for_spec and self.current_connection() is None:
            self.finished = True
        if self.stopped and self.closing is not None:
            self.end_attempt(self.closing)
        if self.kill_at is None or self.stopped:
            return
        if now >= self.kill_at or not any(w.running for w in self.workers):
            left = kill_descendants(self.reap, self.standbys.spared | self.notice.watchers)
            self.stopped = True
            reason, kept = self.stop_reason or "", self.remove_code()
            # What is missing is counted when the frame is sent.
            self.news.report({"type": "stopped", "reason": reason, "left": left, "kept": kept, "missing": 0})

    def end_attempt(self, close: Close) -> None:
        """Remove the attempt's files, and end, unless another attempt may follow."""
        if not self.waits_for_spec:
            self.remove_files(close["offsets"])
        self.closing = None
        self.waits_for_spec = close.get("again", False)
        self.finished = not self.waits_for_spec

    def keep(self) -> None:
        """Keep the host's lock, and mark the run's folders as in use, while it has processes."""
        now = time.monotonic()
        self.lock.answer()
        if self.started and not any(w.running for w in self.workers):
            self.lock.release()  # only the last output remains to be fetched
        elif self.ready and self.spec["exclusive"] and now > self.next_try:
            self.next_try = now + LOCK_RETRY
            self.lock.take(self.spec["run"])  # another agent of the run may have held it, and ended
        if self.spec["uses"] and now - self.marked_in_use > SIGN:
            from ..prepare.store import in_use

            self.marked_in_use = now
            in_use(*self.spec["uses"])

    def remove_code(self) -> Optional[str]:
        """Remove the run's copy of the code; return the folder if the program wrote something there."""
        if not self.spec["code"]:
            return None
        from ..prepare.project_copy import remove_code

        try:
            return remove_code("code")
        except OSError as error:  # the launcher still waits for `stopped`
            self.log_error(error)
            return os.path.abspath("code")

    def remove_files(self, offsets: Dict[str, int]) -> None:
        """Remove this run's files from the host, except output that the launcher does not have."""
        delivered = [name for name in self.news.streams if self.news.has_all(name, offsets.get(name, 0))]
        others = [w.spec[name] for w in self.workers for name in ("beat", "profile")]
        remove_folder(self.spec["dir"], [*self.spec["files"], *others, *delivered])

    def send_news(self) -> None:
        if self.dump is not None:
            stuck = self.dump.result()
            if stuck is not None:
                self.news.report(stuck)
            if self.dump.over:
                self.dump = None
        connection = self.current_connection()
        if connection and not self.waits_for_spec:
            self.progress.send(self.workers, connection)
            if self.spec["measures"] and any(w.running for w in self.workers):
                self.usage.send(connection)
            self.news.send(connection)

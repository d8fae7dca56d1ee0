"""Exchange frames with the agent of one host, and reconnect after a dropped connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ..agent.base import protocol
from ..agent.base.from_agent import FromAgent
from ..agent.base.protocol import NO_AGENT, NOT_STARTED, Malformed
from ..agent.base.to_agent import ToAgent
from ..plan.plan import DETACHED_LEASE, HostPlan, attached_lease
from ..pod.errors import HostError, IncompleteWriteError
from ..pod.pod import Pod
from ..transport.base import Channel, Transport
from .ask import ask
from .conversation import deadline, drain, lines, send_frame
from .delivery import Delivered, Lost
from .liveness import Liveness
from .open_agent import open_agent
from .served import Closing, ServedAttempt, WaitingAgent

OnFrame = Callable[[str, Delivered], None]
"""Called with (host name, frame) in the session's thread, which it may block.

The frames are about processes of this host. Raises IncompleteWriteError for output that could not be recorded.
"""

_RETRY = 0.3  # seconds between two attempts to attach again
FIRST_WORD = 10.0  # seconds to wait for an agent's first frame before the next agent is started
_FAREWELL = 15.0  # seconds to tell an agent that it is not reused
NO_WORD = "it was killed, or the host ran out of memory"
REBOOTED = "the host was restarted"
"""Likely reasons for the end of an agent that did not report one."""
SILENCE = 6.0  # seconds without an answer to a ping after which a connection counts as dead


class _Swept(NamedTuple):
    """Result of the search for processes that a killed agent left behind."""

    left: list[int] | None
    """Pids of processes that are left; None if the host does not answer."""
    has_rebooted: bool = False


class Session:
    """The connection to one agent. Frames are delivered once and in order, over any number of reconnects."""

    def __init__(
        self,
        transport: Transport,
        pod: Pod,
        plan: HostPlan,
        on_frame: OnFrame,
        after: Session | None = None,
    ) -> None:
        """Create the session without connecting. `after`: a session whose agent must end before this one starts its own."""
        self.host = plan.host.name
        self._transport = transport
        self._pod = pod
        self._after = after
        self._channel: Channel | None = None
        # Hosts that share this machine in thousands have a longer lease; a new connection would not make them faster.
        lease = plan.spec["lease"]
        silence = max(SILENCE, 0.4 * (attached_lease(pod) if lease == DETACHED_LEASE else lease))
        self.liveness = Liveness(silence)
        self._set_attempt(plan, on_frame)
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._closing = Closing()
        self._is_connected = False  # whether frames reach the agent of this attempt, as far as is known
        self._waiting: WaitingAgent | None = None  # set once the agent was kept, also when it is reused
        self._boot = ""  # boot id of the agent's machine; empty if unknown
        self._thread = threading.Thread(target=self._receive, name=f"session-{self.host}", daemon=True)

    def open(self) -> None:
        """Start the agent and wait for its first frame. Raises HostError.

        The wait keeps the starts of many agents apart, so that they do not compete for the processor. If nothing
        arrives in time, that is not yet an error.
        """
        if self._after is not None:
            self._after.close()
            self._after = None
        plan = self._served.plan
        if self._waiting is not None:
            self._transmit(plan.spec)
            self._attach()
            self._spoken.wait(FIRST_WORD)
            return
        channel = self._connect("run", plan.spec["run"])
        if self._closing.is_closed:
            channel.close()  # an agent without a spec ends by itself
            raise HostError(self.host, "the run was stopped before it was started")
        send_frame(channel, plan.spec)
        self._channel = channel  # only now: no other frame may come before the spec
        self.liveness.hear()
        self._attach()
        self._thread.start()
        if self._closing.is_closed:
            self.send({"type": "close", "offsets": {}})
        self._spoken.wait(FIRST_WORD)

    def keep(self) -> bool:
        """Let the stopped agent wait for the next attempt. Call `reuse` or `close` afterwards.

        Returns False if its connection has ended: a new one would deliver the frames of this attempt again. The session
        can then only be closed.
        """
        with self._ending:
            if self._closing.is_closed or not self._is_connected:
                return False
            self._waiting = WaitingAgent(self._served.plan.spec["dir"], self._served.delivery.close())
        self.send({**self._served.delivery.close(), "again": True})
        return True

    def reuse(self, plan: HostPlan, on_frame: OnFrame) -> bool:
        """Prepare the session and its waiting agent for the next attempt, which `open` then starts.

        Returns False if the agent or its host may be gone; then the session can only be closed.
        """
        with self._ending:
            if self._waiting is None or self._waiting.is_reused or self._closing.is_closed:
                return False
            if not self._is_connected or self.liveness.silence > SILENCE:
                return False
            self._waiting = self._waiting._replace(is_reused=True)
            self._set_attempt(plan, on_frame)
        return True

    def _set_attempt(self, plan: HostPlan, on_frame: OnFrame) -> None:
        self._served, self._on_frame = ServedAttempt(plan), on_frame
        self._spoken = threading.Event()  # set by the first frame, or the end of the connection
        self.liveness.progress()

    def adopt(self, offsets: dict[str, int]) -> None:
        """Attach to an agent that another launcher has started. `offsets`: bytes of each stream that are recorded already."""
        self._served.delivery.offsets = offsets
        self._thread.start()

    def send(self, frame: ToAgent, wait: bool = True) -> None:
        """Send a frame if there is a connection. The frames `go`, `standby` and `stop` are sent again after a reconnect.

        `wait`: if another frame is being sent, wait for that; otherwise drop this frame.
        """
        self._served.note_sent(frame, time.monotonic())
        self._transmit(frame, wait)

    def _transmit(self, frame: ToAgent, wait: bool = True) -> None:
        if not self._sending.acquire(wait):
            return
        try:
            if self._channel is not None:
                send_frame(self._channel, frame)
        finally:
            self._sending.release()

    @property
    def has_stopped(self) -> bool:
        """Return whether the agent has confirmed that all processes on its host have ended."""
        return self._served.delivery.has_stopped

    @property
    def is_open(self) -> bool:
        """Return whether the session has been started and not closed."""
        return self._thread.ident is not None and not self._closing.is_closed

    def ping(self) -> None:
        """Ping the agent. If it has not answered earlier pings for too long, replace the connection."""
        if self.liveness.ping() and self._channel is not None:
            # This ends the wait in `_read_channel`. It runs in a thread, because it may take longer than other hosts' leases.
            threading.Thread(target=self._cut_off, args=[self._channel], name=f"close-{self.host}", daemon=True).start()
            self.liveness.connect()
        self.send({"type": "ping"}, wait=False)

    def give_up(self, reason: str) -> None:
        """Declare the agent lost because it no longer answers."""
        self._lose(reason, None, silent=True)

    def close(self, timeout: float = 5.0) -> None:
        """Tell the agent to end and wait until it is gone. Safe to call twice."""
        with self._ending:
            closed, self._closing.is_closed = self._closing.is_closed, True
            self._closing.must_be_told = self.has_stopped
        if not closed:
            self.send(self._served.delivery.close())
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._channel is not None:
            self._cut_off(self._channel)
        if self._closing.must_be_told:  # maybe over another connection
            self._thread.join(timeout)
            self._closing.must_be_told = False

    def _cut_off(self, channel: Channel) -> None:
        self._closing.cut = channel
        channel.close()

    def _is_left(self) -> bool:
        """Return whether the agent waits for another attempt, with its connection ended; then the session is closed."""
        with self._ending:
            is_waiting = self._waiting is not None and not self._waiting.is_reused
            self._closing.is_closed |= is_waiting
            return is_waiting

    def _dismiss(self) -> None:
        """Tell the agent to end, and ignore its frames: the session was closed while this connection was being made."""
        assert self._channel is not None
        self._repeat("stop")
        self._transmit(self._served.delivery.close())
        drain(self._channel)
        self._channel.close()

    def _end_waiting(self) -> None:
        """Tell the waiting agent to end.

        An agent ends by itself when its connection ends. But the connection may have ended before the agent was told to
        wait, or may only be silent; then the agent would live until its lease expires.
        """
        assert self._waiting is not None
        end = time.monotonic() + _FAREWELL
        while time.monotonic() < end:
            try:
                channel = self._connect("attach", self._waiting.folder)
            except HostError:
                time.sleep(_RETRY)
                continue
            send_frame(channel, {"type": "attach", "next": 0, "offsets": self._waiting.close["offsets"]})
            send_frame(channel, {"type": "stop", "grace": 0.0})
            send_frame(channel, self._waiting.close)
            with deadline(_FAREWELL, channel.close):
                drain(channel)
            channel.close()
            return

    def _connect(self, command: str, argument: str) -> Channel:
        """Start a command of the agent on the host, and return its channel. Raises HostError."""
        return open_agent(self._transport, self._pod, self._served.plan.host, command, argument)

    def _attach(self) -> None:
        self.liveness.connect()
        self.send(self._served.delivery.attach())
        self._repeat()

    def _repeat(self, *kinds: str) -> None:
        for frame in self._served.repeated(time.monotonic(), *kinds):
            self._transmit(frame)

    def _receive(self) -> None:
        """Deliver frames until the session is closed or the agent is lost. Runs in a thread."""
        try:
            reason = self._stay_connected()
        except Malformed as malformed:
            self._abandon(f"sent a malformed frame: {malformed}")
            return
        except Exception as error:  # never leave the supervisor waiting
            self._abandon(f"what it sent could not be handled: {type(error).__name__}: {error}")
            return
        if NOT_STARTED in reason:
            why = reason.rpartition(NOT_STARTED)[2].strip(": \n")
            self._lose(f"cannot start its agent: {why.partition(chr(10))[0]}", self._sweep().left)
            return
        words = reason.rpartition(NO_AGENT)[2].strip(": \n").splitlines()
        swept = self._sweep()
        why = REBOOTED if swept.has_rebooted else words[-1] if words else NO_WORD
        self._fetch_rest()
        self._lose(f"its agent is gone ({why})", swept.left)

    def _abandon(self, reason: str) -> None:
        """Give up an agent that is running but violates the protocol."""
        self.send({"type": "stop", "grace": 0.0})  # if the agent does not understand it, its lease ends it
        if self._channel is not None:
            self._channel.close()
        self._lose(reason, None)

    def _lose(self, reason: str, left: list[int] | None, silent: bool = False) -> None:
        self._spoken.set()  # no first frame will come
        with self._ending:
            if not self._closing.is_closed:
                self._closing.is_closed = True
                lost: Lost = {
                    "type": "lost",
                    "reason": reason,
                    "left": left,
                    "silent": silent,
                    "silence": self.liveness.silence,
                    "trouble": self.liveness.trouble,
                    "ended": self.liveness.ended,
                }
                self._on_frame(self.host, lost)

    def _stay_connected(self) -> str:
        """Attach again until the session is closed or the host reports that the agent is gone. Returns that report."""
        if self._channel is not None:
            stderr_tail = self._read_channel()
            if NOT_STARTED in stderr_tail and not self._served.delivery.next:
                return stderr_tail
        while not self._closing.is_finished:
            if self._is_left():
                self._end_waiting()
                return ""
            try:
                self._channel = self._connect("attach", self._served.plan.spec["dir"])
            except HostError as error:
                self.liveness.trouble = error.reason
                time.sleep(_RETRY)
                continue
            if self._closing.is_closed:
                self._dismiss()
                return ""
            before = self._served.delivery.position()
            self._attach()
            stderr_tail = self._read_channel()
            if self._served.delivery.position() == before and self._agent_is_gone(stderr_tail):
                if self._waiting is not None and not self._served.delivery.next:  # it does not know of this attempt yet
                    self._end_waiting()
                return stderr_tail
            time.sleep(_RETRY)
        return ""

    def _sweep(self) -> _Swept:
        """Kill the processes that a killed agent left behind, and return which are left."""
        if self._closing.is_closed:
            return _Swept(None)
        plan = self._served.plan
        try:
            reply = ask(self._transport, self._pod, plan.host, "sweep", plan.spec["run"], self.host)
        except HostError:
            return _Swept(None)
        has_rebooted = bool(self._boot) and reply.answer.get("boot", self._boot) != self._boot
        return _Swept(reply.answer["left"], has_rebooted)

    def _fetch_rest(self) -> None:
        """Deliver output and events that a dead agent had stored but not sent. They may explain its end."""
        if self._closing.is_closed:
            return
        try:
            self._channel = self._connect("rest", self._served.plan.spec["dir"])
            self.send(self._served.delivery.attach())
            self._read_channel()
        except (HostError, Malformed, OSError):
            pass  # the files stay on the host

    @staticmethod
    def _agent_is_gone(stderr_tail: str) -> bool:
        """Return whether the host reported that the agent is gone. `stderr_tail`: the end of the command's stderr."""
        return NO_AGENT in stderr_tail

    def _read_channel(self) -> str:
        """Deliver frames until the channel ends. Returns the end of its stderr."""
        channel = self._channel
        assert channel is not None
        begun = time.monotonic()
        self._is_connected = True
        for line in lines(channel, protocol.STREAM_LIMIT, self.liveness.hear):
            frame = self._served.delivery.parse(line)
            with self.liveness.delivering():
                self._deliver(frame)
        with self._ending:  # from here on the next connection is to the agent of this attempt
            self._is_connected = False
        self.liveness.end(begun)
        self._spoken.set()
        self._closing.note_end(channel)
        channel.close()
        return channel.stderr_tail()

    def _deliver(self, frame: FromAgent) -> None:
        delivered = self._served.delivery.take(frame)
        if delivered is None:
            return
        if delivered["type"] == "output":
            try:
                self._on_frame(self.host, delivered)
            except IncompleteWriteError as error:
                self._served.delivery.record(delivered["stream"], error.written)
                return
            self._served.delivery.record(delivered["stream"], len(delivered["data"]))
        elif delivered["type"] == "progress" or delivered["type"] == "usage":
            self._on_frame(self.host, delivered)
            return
        else:
            self._spoken.set()
            if delivered["type"] == "hello":
                self._boot = delivered.get("boot", self._boot)
            self._on_frame(self.host, delivered)
        self.liveness.progress()

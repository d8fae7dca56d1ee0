"""Notice a hang of all pods of a JobSet: their members report progress to that of process 0, which decides.

Each member sends a datagram a second to the port of process 0. When every process has been without progress for longer than
it may (`attempt.hang`), process 0 answers with the failure: all print their stacks, and end together with `ExitCode.STALLED`.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from podrun.runtime.config import Launch
from podrun.runtime.contract import ProgressRecord

from ...agent.run.progress import cpu_seconds, state_of
from ...attempt.messages import Tick
from ...attempt.outcome import Process
from ...attempt.watch import ProgressWatch

PORT_OFFSET = 2
"""The port of the reports, counted from the coordinator's."""
INTERVAL = 1.0  # seconds between two reports
_SILENT = 10.0  # seconds without a report after which a member does not answer
_ANSWERING = 3.0  # seconds from the failure to the common end, in which each member hears of it
_BYTES = 4096  # limit of a datagram
_LOOKUPS = 30.0, 60.0  # seconds between two lookups of process 0: at random, so that not all members ask DNS at once


@dataclass(frozen=True)
class Report:
    """The progress of one process, as its member reports it."""

    run: str
    """`RUN.ATTEMPT`: reports of another attempt are ignored."""
    process: int
    host: str
    record: str
    """The progress record as hexadecimal digits; empty if there is none yet."""
    state: str
    """State of the process, as `ps` shows it."""
    cpu: float
    """Seconds of CPU time that it has used."""

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> Report:
        """Parse a datagram, which anybody may have sent. Raises ValueError."""
        try:
            report = cls(**json.loads(data))
            texts = (report.run, report.host, report.record, report.state)
            numbers = isinstance(report.process, int) and isinstance(report.cpu, float)
            if not numbers or not all(isinstance(text, str) for text in texts):
                raise TypeError("a field has another type")
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"not a report: {error}") from None
        return report


class Verdict:
    """The reports of all processes, and whether they hang. Belongs to process 0.

    Args:
        run: `RUN.ATTEMPT`.
        processes: number of processes.
        launch: the job's section `launch`.
        is_program: they run a user program.
    """

    def __init__(self, run: str, processes: int, launch: Launch, is_program: bool) -> None:
        self._run = run
        self._processes = [Process(f"process {number}", number) for number in range(processes)]
        self._watch = ProgressWatch(self._processes, launch, is_program)
        self._heard: dict[int, float] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._began = time.monotonic()

    def hear(self, report: Report, now: float) -> None:
        """Take up a report. `now`: seconds of the monotonic clock."""
        if report.run != self._run or not 0 <= report.process < len(self._processes):
            return
        process = self._processes[report.process]
        process.host, process.state = report.host[:100], report.state[:1]
        before, at = self._cpu.get(process.process, (report.cpu, now))
        if now - at >= INTERVAL / 2:
            process.load = round((report.cpu - before) / (now - at), 2)
        self._cpu[process.process] = report.cpu, now
        self._heard[process.process] = now
        try:
            record = ProgressRecord.parse(report.record) if report.record else None
        except ValueError:
            record = None
        if record and (process.record is None or process.record.moves != record.moves):
            process.signs += 1
        process.record = record

    def failure(self, now: float) -> str | None:
        """Return the failure if all processes hang; None if one moves, has no record, or is silent."""
        answering = {self._processes[number].host for number, at in self._heard.items() if now - at < _SILENT}
        if any(process.record is None for process in self._processes):
            return None
        if not self._watch.is_stuck(now - self._began, Tick(answering, {})):
            return None
        failed = self._watch.failure()
        return f"{failed.host} (process {failed.process}): {failed.what}"


class HangWatch:
    """Reports the progress of this container's process, and on process 0 decides on that of all. Has a thread of its own.

    Args:
        coordinator: `host:port` of process 0.
        report: returns the report of this container's process.
        on_failure: called at once when a hang is known.
        verdict: on process 0.
    """

    def __init__(
        self, coordinator: str, report: Callable[[], Report], on_failure: Callable[[], None], verdict: Verdict | None
    ) -> None:
        host, _, port = coordinator.rpartition(":")
        self._address = host.strip("[]"), int(port) + PORT_OFFSET
        self._report = report
        self._on_failure = on_failure
        self._verdict = verdict
        self.failure: str | None = None
        """Why all processes end now; None as long as they do not hang."""
        threading.Thread(target=self._run, name="hang watch", daemon=True).start()

    def _run(self) -> None:
        try:
            self._serve() if self._verdict else self._send()
        except OSError as error:  # training does not depend on it
            print(f"podrun: a hang will not be noticed: port {self._address[1]}: {error.strerror}", flush=True)

    def _serve(self) -> None:
        """Hear reports, and answer with the failure once there is one. Raises OSError."""
        assert self._verdict
        failure, ends, due = None, float("inf"), 0.0
        with _listening(self._address[1]) as listener:
            listener.settimeout(INTERVAL / 2)
            while (now := time.monotonic()) < ends:
                if now >= due and failure is None:
                    due = now + INTERVAL / 2
                    self._verdict.hear(self._report(), now)
                    if failure := self._verdict.failure(now):
                        ends = now + _ANSWERING
                        self._on_failure()
                try:
                    data, sender = listener.recvfrom(_BYTES)
                    report = Report.parse(data)
                except (TimeoutError, ValueError):
                    continue
                self._verdict.hear(report, time.monotonic())
                if failure:
                    listener.sendto(_answer(report.run, failure, ends - time.monotonic()), sender)
        self.failure = failure

    def _send(self) -> None:
        """Send reports until process 0 answers with a failure."""
        process_0: Any = None
        next_lookup = 0.0
        while self.failure is None:
            report = self._report()
            try:
                # A restarted process 0 has another address, and nothing tells that the old one is gone.
                if time.monotonic() >= next_lookup:
                    process_0 = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
                    next_lookup = time.monotonic() + random.uniform(*_LOOKUPS)
                family, kind, protocol, _, address = process_0
                with socket.socket(family, kind, protocol) as sender:
                    sender.connect(address)  # takes answers from process 0 only
                    sender.settimeout(INTERVAL)
                    sender.send(report.to_bytes())
                    answer = _parse_answer(sender.recv(_BYTES), report.run)
            except TimeoutError:  # no answer, which is the rule
                continue
            except OSError:  # process 0 has not started, or has ended
                next_lookup = 0.0
                time.sleep(INTERVAL)
                continue
            if answer:
                self._on_failure()
                time.sleep(answer[1])
                self.failure = answer[0]


def _listening(port: int) -> socket.socket:
    """Return a socket of datagrams at a port of all addresses. Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
    except OSError:
        listener.close()
        raise
    return listener


def _answer(run: str, failure: str, seconds: float) -> bytes:
    """Return the answer to a report. `seconds`: until the common end."""
    return json.dumps({"run": run, "failure": failure[:2000], "seconds": max(0.0, seconds)}).encode()


def _parse_answer(data: bytes, run: str) -> tuple[str, float] | None:
    """Return the failure and the seconds until the end; None if the answer is of another attempt, or malformed."""
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or answer.get("run") != run:
        return None
    failure, seconds = answer.get("failure"), answer.get("seconds")
    if isinstance(failure, str) and isinstance(seconds, float) and 0 <= seconds <= _ANSWERING:
        return failure, seconds
    return None


def report_of(run: str, process: int, host: str, record: str, pid: int) -> Report:
    """Return the report of a process of this container."""
    return Report(run, process, host, record, state_of(pid), cpu_seconds(pid))

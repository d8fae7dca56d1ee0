"""Feed the launcher the messages of 100, 1,000 and 10,000 hosts that do not exist, and measure what they cost it.

    python benchmarks/many_hosts.py [--hosts 100 1000 10000] [--seconds 20] [--lost 40]

All of the launcher from a host's frame on is real: its check, the inbox, the supervisor with the attempt's state, the
first cause, the record, the restart policy, the plan of the next attempt, the page and `status`. Only connections are
simulated: there is no thread, no SSH and no network for a host, and the simulated hosts answer at once.

In each case the hosts start and train for some seconds; then the case happens:

    train     they train for `--seconds`, one of them slower than the others, and end
    rack      `--lost` hosts do not answer any more; the others are stopped
    storm     every other process reports the loss of a peer first, and then these hosts do not answer
    program   the processes of a user program print a traceback about a lost peer and exit with code 1, then the same
    hang      no process moves any more; all are asked for their stacks
    preempted all processes are sent SIGTERM, and save

The last lines say how the figures grow from one size to the next, divided by how the number of hosts grows: 1 is linear.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import queue
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from setting import print_setting

CASES = ("train", "rack", "storm", "program", "hang", "preempted")
BEAT = struct.Struct("=6Q4dQ")
STEP_SECONDS = 0.05
STALL = 3.0  # seconds, launch.stall_timeout of the case `hang`
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    step()\n'
    "RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [10.0.0.7]:4444: Connection reset by peer\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--seconds", type=float, default=20.0, help="of training in the case `train`")
    parser.add_argument("--lost", type=int, default=40)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="print where the time of each case goes")
    args = parser.parse_args()
    if args.child:
        case, hosts = args.child
        print(json.dumps(measure(case, int(hosts), args.seconds, args.lost, args.profile)))
        return
    print_setting()
    for case in args.cases:
        rows = {hosts: in_child(case, hosts, args) for hosts in args.hosts}
        names = [name for name in next(iter(rows.values())) if name not in ("cause", "decision")]
        print(f"{case:<36}" + "".join(f"{hosts:>12,}" for hosts in rows) + "   growth")
        for name in names:
            values = [rows[hosts].get(name) for hosts in rows]
            print(f"  {name:<34}" + "".join(map(shown, values)) + "   " + growth(args.hosts, values))
        for name in ("cause", "decision"):
            print(f"  {name}: {list(rows.values())[-1][name][:120]}")
        print(flush=True)


def shown(value: Any) -> str:
    return f"{value:>12,.2f}" if isinstance(value, float) else f"{value!s:>12}"


def growth(sizes: list[int], values: list[Any]) -> str:
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        return ""
    pairs = zip(zip(sizes, values, strict=True), zip(sizes[1:], values[1:], strict=True), strict=False)
    return " ".join(f"{(after / before) / (more / few):.2f}" for (few, before), (more, after) in pairs)


def in_child(case: str, hosts: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a case in a process of its own, so that its memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            "--child",
            case,
            str(hosts),
            f"--seconds={args.seconds}",
            f"--lost={args.lost}",
        ]
        command += ["--profile"] if args.profile else []
        env = {**os.environ, "PODRUN_HOME": folder}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{case} with {hosts} hosts failed with exit code {done.returncode}")
    *profile, figures = done.stdout.splitlines()
    print("\n".join(profile), end="\n" * bool(profile))
    measured: dict[str, Any] = json.loads(figures)
    return measured


# --- the simulated side ---


class Network:
    """Delivers the frames of all hosts in the order in which they were sent, in one thread."""

    def __init__(self) -> None:
        self._frames: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.stop_asked = 0.0
        """Time at which the first host was asked to stop."""
        self.thread = threading.Thread(target=self._run, name="network", daemon=True)
        self.thread.start()

    def put(self, deliver: Callable[[], None]) -> None:
        self._frames.put(deliver)

    def close(self) -> None:
        self._frames.put(None)
        self.thread.join()

    def _run(self) -> None:
        while (deliver := self._frames.get()) is not None:
            deliver()


def make_session_class() -> Any:
    """Return the class of simulated sessions. Imported late: the parent of all measurements needs nothing of podrun."""
    from podrun.launcher.agent.base.protocol import ASKED
    from podrun.launcher.remote.delivery import Delivery
    from podrun.launcher.remote.liveness import Liveness

    class SimulatedSession:
        """A session whose host exists only here. It answers what the supervisor sends."""

        def __init__(self, plan: Any, number: int, network: Network, on_frame: Any) -> None:
            self.host, self.number, self.network = plan.host.name, number, network
            self.process = plan.processes[0]
            self.liveness, self._delivery, self._on_frame = Liveness(60.0), Delivery(plan), on_frame
            self.is_open = self.is_lost = self._has_exited = self._is_ended = False
            self._n = self._sent_events = 0

        @property
        def has_stopped(self) -> bool:
            return self._delivery.has_stopped

        def open(self) -> None:
            self.is_open = True
            self.frame("hello", pid=4, python="3.12.3", host=self.host)
            self.frame("ready", port=7000, address="10.0.0.1", second_port=7001, isolated=True)

        def send(self, frame: Any, wait: bool = True) -> None:
            json.dumps(frame).encode()
            if self.is_lost:
                return
            if frame["type"] == "probe":
                self.frame("probed", error=None)
            elif frame["type"] == "go":
                self.frame("started", process=self.process, pid=5)
                for phase in ("connect", "setup", "compile", "train"):
                    self.event(event="phase", phase=phase)
            elif frame["type"] == "dump":
                self.frame("dumped", processes=[{"process": self.process, "state": "S", "load": 0.0}])
            elif frame["type"] == "stop" and not self._is_ended:
                self.network.stop_asked = self.network.stop_asked or time.perf_counter()
                if not self._has_exited:
                    self.exit(-15, asked=True)
                self.stopped()

        def ping(self) -> None:
            self.liveness.ping()
            if not self.is_lost:
                self.liveness.hear()

        def keep(self) -> bool:
            return False

        def close(self, timeout: float = 5.0) -> None:
            self.is_open = False

        def give_up(self, reason: str) -> None:
            raise AssertionError(reason)

        # --- what the host sends ---

        def frame(self, type: str, **fields: Any) -> None:
            n = self._n
            self._n += 1
            self._put({"type": type, "n": n, **fields})

        def event(self, **event: Any) -> None:
            text = json.dumps({"time": time.time(), **event}) + "\n"
            self._put({"type": "output", "stream": f"{self.process}.events", "offset": self._sent_events, "data": text})
            self._sent_events += len(text)

        def prints(self, text: str) -> None:
            self._put({"type": "output", "stream": f"{self.process}.out", "offset": 0, "data": text})

        def exit(self, code: int, asked: bool = False) -> None:
            self._has_exited = True
            self.frame("exit", process=self.process, code=code, error=None, asked=asked)

        def stopped(self, reason: str = ASKED) -> None:
            self._is_ended = True
            self.frame("stopped", reason=reason, left=[], kept=None, missing=0)

        def step(self, step: int) -> None:
            self.event(event="step", step=step, steps=100_000, loss=2.5, elapsed=1.0 * step, waited=0.5 * step)

        def usage(self) -> None:
            used = {"cpu": 0.5, "memory": 1 << 34, "memory_total": 1 << 36, "received": 1e6, "sent": 1e6, "devices": []}
            self._put({"type": "usage", **used})

        def beat(self, moves: int, waiting: float) -> None:
            words = BEAT.pack(moves, 4, 4, 0, moves + 1, moves, 0.0, 0.001 * moves, waiting, time.monotonic(), 0)
            self._put({"type": "progress", "beats": {str(self.process): words.hex()}, "now": time.monotonic()})

        def lose(self) -> None:
            lost = {"type": "lost", "reason": "", "left": None, "silent": True, "silence": 21.0, "trouble": "timed out"}
            self.is_lost = True
            self.network.put(lambda: self._on_frame(self.host, {**lost, "ended": None}))

        def _put(self, frame: dict[str, Any]) -> None:
            self.network.put(partial(self._deliver, json.dumps(frame).encode()))

        def _deliver(self, line: bytes) -> None:
            self.liveness.hear()
            delivered = self._delivery.take(self._delivery.parse(line))
            if delivered is None:
                return
            self._on_frame(self.host, delivered)
            if delivered["type"] == "output":
                self._delivery.record(delivered["stream"], len(delivered["data"]))
            self.liveness.progress()

    return SimulatedSession


class Case:
    """What happens to the simulated hosts once all of them train, in a thread of its own."""

    def __init__(self, case: str, sessions: dict[str, Any], network: Network, seconds: float, lost: int) -> None:
        self.network, self.seconds = network, seconds
        self.everyone = list(sessions.values())
        first = len(self.everyone) // 2
        self.gone = self.everyone[first : first + lost]
        self.others = [*self.everyone[:first], *self.everyone[first + lost :]]
        self.first_message = self.named = self.told = 0.0
        self.first_cpu = 0.0
        self.rounds: list[tuple[float, float]] = []
        """Seconds of time and of CPU of each second of training."""
        self._happens: Callable[[], None] = getattr(self, case)
        self._is_long = case == "train"

    def event(self, event: Any) -> None:
        """Observe an event of the supervisor."""
        if event["event"] == "late":
            self.named = time.perf_counter()
        if event["event"] == "note" and "; stopping all" in event["message"]:
            self.told = time.perf_counter()

    def run(self) -> None:
        self._await_network()
        begin = time.perf_counter()
        for second in range(1, 1 + (int(self.seconds) if self._is_long else 2)):
            before = time.perf_counter(), time.process_time()
            self._second(second)
            self._await_network()
            time.sleep(max(0.0, begin + second - time.perf_counter()))
            self.rounds.append((time.perf_counter() - before[0], time.process_time() - before[1]))
        self._happens()

    def _second(self, second: int) -> None:
        """Send what the hosts send in a second of training."""
        every = seconds_between_reports(len(self.everyone))
        last = int(second / STEP_SECONDS)
        for session in self.everyone:  # the slowest process waits least
            session.beat(last, (0.8 * STEP_SECONDS if session.number != 1 else 0.0) * last)
        for step in range(last - int(1 / STEP_SECONDS), last):
            self.everyone[0].step(step)
        for number in range(max(1, round(1 / every))):
            for session in self.everyone[1:]:
                if every <= 1 or (second + session.number) % round(every) == 0:
                    session.step(last - number)
        if second % 10 == 0:
            for session in self.everyone:
                session.usage()

    def _await_network(self) -> None:
        done = threading.Event()
        self.network.put(done.set)
        done.wait()

    def _first_message(self) -> None:
        """Take the time once the network has delivered all that came before."""

        def mark() -> None:
            self.first_message, self.first_cpu = time.perf_counter(), time.process_time()

        self.network.put(mark)

    # --- the cases ---

    def train(self) -> None:
        for session in self.everyone:
            session.event(event="phase", phase="done")
            session.exit(0)
            session.stopped()

    def rack(self) -> None:
        self._lose()

    def storm(self) -> None:
        for session in self.others:
            session.event(event="error", kind="peer_lost", message="reset by peer", step=40, traceback=TRACEBACK)
            session.exit(77)
        self._lose()

    def program(self) -> None:
        for session in self.others:
            session.prints(TRACEBACK)
            session.exit(1)
        self._lose()

    def hang(self) -> None:
        pass

    def preempted(self) -> None:
        self._first_message()
        for session in self.everyone:
            session.event(event="signal", number=15)
            session.event(event="phase", phase="save")
        self.everyone[0].event(event="checkpoint", step=41)
        for session in self.everyone:
            session.exit(75)
            session.stopped("its machine is needed elsewhere, or shuts down: maintenance")

    def _lose(self) -> None:
        self._first_message()
        for session in self.gone:
            session.lose()


def seconds_between_reports(processes: int) -> float:
    """Return the seconds between two steps that a process other than 0 reports."""
    from podrun.runtime.worker.progress import Reporter

    return Reporter(None, processes=processes).every


def measure(case: str, hosts: int, seconds: float, lost: int, profiled: bool) -> dict[str, Any]:
    """Run a case, and return its figures."""
    from podrun.launcher.attempt.agent_reuse import ReusableAgents
    from podrun.launcher.attempt.observers import Observers
    from podrun.launcher.attempt.supervisor import Supervisor
    from podrun.launcher.attempt.view import View
    from podrun.launcher.commands.status import status_as_json
    from podrun.launcher.plan.plan import make_plan
    from podrun.launcher.plan.program import Program
    from podrun.launcher.plan.spec import RunSpec
    from podrun.launcher.pod.pod import Host, Pod
    from podrun.launcher.pod.slices import parse_slice
    from podrun.launcher.report.make_page import page_of_run
    from podrun.launcher.report.write_html import html_of
    from podrun.launcher.run.history import AttemptHistory, budget_of, restart_event
    from podrun.launcher.run.host_failures import HostFailures
    from podrun.launcher.run.policy import decide
    from podrun.launcher.rundir.logs import Logs
    from podrun.launcher.rundir.runs import Recorder, RunDirectory, start_event
    from podrun.launcher.transport.open_files import raise_limit
    from podrun.launcher.view.console import PlainConsole
    from podrun.runtime.config import Config, Launch

    session_class = make_session_class()
    raise_limit()
    figures: dict[str, Any] = {}

    def figure(name: str, begin: tuple[float, float]) -> None:
        figures[f"{name}: wall, s"] = time.perf_counter() - begin[0]
        figures[f"{name}: CPU, s"] = time.process_time() - begin[1]

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    machines = tuple(Host(f"host-{n:05}", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(hosts))
    pod = Pod(parse_slice(f"gpu-{hosts}x8"), machines, "ssh", "cuda")
    if case == "program":
        job: Any = Program(("python", "train.py"), Launch(max_restarts=3))
    else:
        launch = {"max_restarts": 3, "start_timeout": 600, **({"stall_timeout": STALL} if case == "hang" else {})}
        job = Config.model_validate({"steps": 100_000, "batch_size": hosts * 8, "launch": launch})
    begin = now()
    folder = Path("/data")
    spec = RunSpec("20261128-120000-simulated", pod, job, folder / "work", folder)
    directory = RunDirectory.create(spec)
    plan = make_plan(spec)
    directory.begin(plan)
    figure("plan and record of an attempt", begin)

    network = Network()
    sessions: dict[str, Any] = {}

    class SimulatedAgents(ReusableAgents):
        def session(self, plan: Any, on_frame: Any) -> Any:
            sessions[plan.host.name] = session_class(plan, len(sessions), network, on_frame)
            return sessions[plan.host.name]

    class NoTransport:
        window = 64

    begin = now()
    recorder, history = Recorder(directory.events), AttemptHistory()
    host_failures = HostFailures(lambda text: None)
    view = View(PlainConsole(open(os.devnull, "w")), recorder)
    logs = Logs(directory.logs)
    observers = Observers(history, host_failures, view)
    observers.event(start_event(plan, directory.logs, time.time()))
    agents = SimulatedAgents()
    supervisor = Supervisor(plan, NoTransport(), logs, observers, agents=agents)  # type: ignore[arg-type]
    scene = Case(case, sessions, network, seconds, lost)

    class Begun:
        """Begins the case when all processes train."""

        def __init__(self) -> None:
            self.training = 0

        def event(self, event: Any) -> None:
            scene.event(event)
            self.training += event["event"] == "phase" and event["phase"] == "train"
            if self.training == hosts:
                self.training = 0
                figure("start", begin)
                threading.Thread(target=scene.run, daemon=True).start()
            if event["event"] == "note" and "nothing moves any more" in event["message"]:
                scene.first_message, scene.first_cpu = time.perf_counter(), time.process_time()

    supervisor._observer = Observers(Begun(), observers)
    profile = cProfile.Profile(time.thread_time) if profiled else None
    if profile:
        profile.enable()
    outcome = supervisor.run()
    ended = time.perf_counter(), time.process_time()
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(14)
    if case == "train":
        figures["training: CPU, s per second"] = sum(cpu for _, cpu in scene.rounds) / len(scene.rounds)
        figures["training: slowest second, s"] = max(wall for wall, _ in scene.rounds)
        figures["straggler named"] = "yes" if scene.named else "no"
    else:
        if case in ("rack", "storm", "program"):
            figures["first message to the stop, s"] = network.stop_asked - scene.first_message
        if scene.told:
            figures["first message to the note of the first failure, s"] = scene.told - scene.first_message
        figures["first message to first cause: wall, s"] = ended[0] - scene.first_message
        figures["first message to first cause: CPU, s"] = ended[1] - scene.first_cpu
        figures["attempt: CPU, s"] = time.process_time() - begin[1]
    begin = now()
    history_entry = history.attempt(outcome, plan, time.time())
    host_failures.record(plan, outcome, time.time(), lambda host, process: "")
    decision = decide([history_entry], budget_of(plan))
    observers.event(restart_event(history_entry, str(outcome.cause), time.time()))
    view.stop()
    view.close()
    recorder.close()
    figure("policy and record", begin)
    begin = now()
    page = html_of(page_of_run(directory))
    figure("page", begin)
    begin = now()
    status = json.dumps(status_as_json(directory), indent=1)
    figure("status --json", begin)
    figures["memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name in ("events.jsonl", "spec.json", "plan.json", "attempt.json"):
        figures[f"{name}, MB"] = (directory.path / name).stat().st_size / 1e6
    figures["page, MB"] = len(page) / 1e6
    figures["status --json, MB"] = len(status) / 1e6
    figures["cause"] = str(outcome.cause)
    figures["decision"] = str(decision)
    network.close()
    return figures


if __name__ == "__main__":
    main()

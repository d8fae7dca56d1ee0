"""Whatever happens to the launcher, a connection, a link or an agent: nothing is lost, nothing is left, the host is named."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ..hosts import USER, Hosts, Process, wait_until
from ..pod.conftest import Run, is_alive
from .pod import PROGRAMS, PodSandbox
from .processes import COUNT, is_pid_inside, of_run, wait_for_start, wait_until_gone

SOON = 12.0  # seconds; less than the lease, after which agents end everything by themselves


def check_logs(logs: Path, names: list[str]) -> None:
    """Every line of every process is in its log, once and in order."""
    for process, host in enumerate(names):
        *lines, last = (logs / f"{host}.log").read_text().splitlines()
        assert lines == [f"{process} {i}" for i in range(len(lines))], host
        assert last == f"{process} made {len(lines)}", host


def logs_of(run: Run) -> Path:
    return Path(run.of("start")[0]["logs"])


def wait_for_lines(files: Iterable[Path]) -> None:
    """Wait until each of them has grown."""
    sizes = {file: file.stat().st_size if file.exists() else 0 for file in files}
    grown = lambda: all(file.exists() and file.stat().st_size > size for file, size in sizes.items())  # noqa: E731
    wait_until(grown, f"lines in {', '.join(map(str, sizes))}", 120)


def dials(run: Run, address: str) -> bool:
    """Return whether podrun waits for an answer to a new connection to the address."""
    fields = [line.split() for line in Path(f"/proc/{run.process.pid}/net/tcp").read_text().splitlines()[1:]]
    number = socket.inet_aton(address)[::-1].hex().upper()
    return any(remote == f"{number}:0016" and state == "02" for _, _, remote, state, *_ in fields)


@pytest.fixture
def names() -> list[str]:
    return ["h0", "h1", "h2"]


@pytest.fixture
def counting(pod: PodSandbox, names: list[str]) -> Iterator[Callable[[], Run]]:
    """Starts a count on all hosts and waits until it runs."""

    def start() -> Run:
        option = pod.write_pod(names)
        run = pod.run(option, "--", "python3", pod.add(COUNT), str(pod.enough))
        wait_for_start(run, len(names))
        return run

    yield start
    pod.close()
    wait_until_gone(pod.hosts, names, 90)


def test_connections_killed(counting: Callable[[], Run], pod: PodSandbox, names: list[str]) -> None:
    """The sshd processes of all connections are killed, twice: podrun connects again and misses nothing."""
    run = counting()
    logs = [logs_of(run) / f"{name}.log" for name in names]
    for _ in range(2):
        wait_for_lines(logs)
        for name in names:
            wait_until(lambda name=name: bool(pod.hosts.kill_sessions(name)), f"a connection to {name}")  # type: ignore[misc]
    for _ in range(2):  # what was on its way, and what came later
        wait_for_lines(logs)
    pod.enough.touch()
    assert run.end() == 0, run.stderr
    check_logs(logs_of(run), names)


@pytest.mark.long
def test_link_down_and_up(counting: Callable[[], Run], pod: PodSandbox, names: list[str]) -> None:
    """An unreachable host is waited for, and connected to again."""
    run = counting()
    log = logs_of(run) / "h1.log"
    wait_for_lines([log])
    pod.hosts.cut("h1")
    wait_until(lambda: dials(run, pod.hosts.address("h1")), "the end of the connection that does not answer")
    pod.hosts.restore()
    wait_for_lines([log])
    pod.enough.touch()
    assert run.end() == 0, run.stderr
    check_logs(logs_of(run), names)


@pytest.mark.long
def test_link_down_for_good(counting: Callable[[], Run], pod: PodSandbox, names: list[str]) -> None:
    """The run ends with that host as the first cause, says that it could not look there, and the host cleans up itself."""
    run = counting()
    pod.hosts.cut("h1")
    assert run.end(90) == 69
    assert run.last_line.startswith("failed: h1: has not answered for")
    assert "could not confirm that nothing is left on h1" in run.stderr
    wait_until_gone(pod.hosts, ["h0", "h2"], SOON)
    wait_until_gone(pod.hosts, ["h1"], 40)


def test_host_dies(make_hosts: Callable[..., Hosts], pod: PodSandbox) -> None:
    """The machine takes the run with it, and is named."""
    own = PodSandbox(pod.path, make_hosts(2))
    try:
        option = own.write_pod(["h0", "h1"])
        run = own.run(option, "--", "python3", own.add(COUNT), str(own.enough))
        wait_for_start(run, 2)
        own.hosts.kill("h1")
        assert run.end(90) == 69
        assert run.last_line.startswith("failed: h1: ")
        wait_until_gone(own.hosts, ["h0"], SOON)
    finally:
        own.close()


@pytest.mark.long
def test_launcher_killed(counting: Callable[[], Run], pod: PodSandbox, names: list[str]) -> None:
    """The hosts notice within the lease that nobody is there any more, and end everything."""
    run = counting()
    assert of_run(pod.hosts, names).keys() == set(names)
    run.process.kill()
    wait_until_gone(pod.hosts, names, 90)  # the lease, and a grace


def test_agent_killed(pod: PodSandbox, names: list[str]) -> None:
    """Its workers go with it, those children too that are daemons with sessions of their own."""
    run = pod.run(pod.write_pod(names), "--", "python3", pod.add("stubborn.py"))
    wait_for_start(run, 3)
    agent = run.agent("h1")
    wait_until(lambda: len(stubborn(pod.hosts, "h1")) == 3, "the worker's children")
    (outer,) = [p for p in pod.hosts.processes("h1") if "agents/" in p.args and is_pid_inside(p, agent)]
    outer.kill()
    wait_until(lambda: not stubborn(pod.hosts, "h1"), "an end of all that the agent had started", SOON)
    assert run.end() == 69
    assert run.last_line.startswith("failed: h1: its agent is gone")
    assert "could not confirm" not in run.stderr
    wait_until_gone(pod.hosts, names, SOON)


def test_agent_of_an_ordinary_user_killed(pod: PodSandbox) -> None:
    """Without root there is no PID namespace: the launcher ends what the agent could not."""
    option = pod.write_pod(["h0", "h1"], ssh=pod_ssh(pod, USER), python="/usr/bin/python3")
    run = pod.run(option, "--", "python3", pod.add("stubborn.py"))
    wait_for_start(run, 2)
    agent = run.agent("h1")
    wait_until(lambda: len(stubborn(pod.hosts, "h1")) == 3, "the worker's children")
    (outer,) = [p for p in pod.hosts.processes("h1") if "agents/" in p.args and is_pid_inside(p, agent)]
    outer.kill()
    assert run.end() == 69
    assert "could not confirm" not in run.stderr
    wait_until_gone(pod.hosts, ["h0", "h1"], SOON)


def test_stop_ends_what_ignores_signals(pod: PodSandbox, names: list[str]) -> None:
    """`podrun stop` from another shell; a process of the same name that somebody else has started stays."""
    theirs_too = shutil.copy(PROGRAMS / "stubborn.py", pod.hosts.home_of("h1", USER))
    on_host = pod.hosts.folder / "home" / USER / Path(theirs_too).name
    other = pod.hosts.command_on("h1", ["/usr/bin/python3", str(on_host)], user=USER)
    with subprocess.Popen(other, stdout=subprocess.PIPE) as theirs:
        try:
            assert theirs.stdout is not None and theirs.stdout.readline() == b"ready\n"
            wait_until(lambda: len(stubborn(pod.hosts, "h1")) == 3, "their children")
            before = stubborn(pod.hosts, "h1")
            run = pod.run(pod.write_pod(names), "--", "python3", pod.add("stubborn.py"))
            wait_for_start(run, 3)
            wait_until(lambda: len(stubborn(pod.hosts, "h1")) == 6, "the worker's children")
            done = pod.podrun("stop")
            assert done.returncode == 0, done.stderr
            assert run.end() == 143
            assert stubborn(pod.hosts, "h1") == before
            assert not of_run(pod.hosts, ["h0", "h2"])
        finally:
            for process in pod.hosts.processes("h1"):
                if "stubborn.py" in process.args:
                    process.kill()


@pytest.mark.long
def test_detached(pod: PodSandbox, names: list[str]) -> None:
    """A run without a terminal goes on when its supervisor is killed; `attach` takes it over, and not a line is missing."""
    option = pod.write_pod(names)
    done = pod.podrun(option, "--detach", "--", "python3", pod.add(COUNT), str(pod.enough))
    assert done.returncode == 0, done.stderr
    (directory,) = (pod.path / "home" / "runs").iterdir()
    supervisor = json.loads((directory / "supervisor.json").read_text())["pid"]
    logs = [directory / "logs" / f"{name}.log" for name in names]
    wait_for_lines(logs)
    Process(supervisor, 0, "").kill(signal.SIGKILL)
    wait_until(lambda: not is_alive(supervisor), "the end of the supervisor")
    unseen = [pod.hosts.home_of(name) / f".podrun/runs/{directory.name}" for name in names]
    for _ in range(10):
        wait_for_lines([file for folder in unseen for file in folder.rglob("*.out")])
    assert of_run(pod.hosts, names).keys() == set(names)
    with subprocess.Popen([*pod.command, "attach"], cwd=pod.path, env=pod.env) as attached:
        wait_for_lines(logs)
        pod.enough.touch()
        assert attached.wait(120) == 0
    check_logs(directory / "logs", names)
    wait_until_gone(pod.hosts, names, SOON)


@pytest.mark.long
def test_one_run_at_a_time(counting: Callable[[], Run], pod: PodSandbox) -> None:
    """Another run's host is not shared; the other run is named with its user."""
    run = counting()
    second = pod.run("--pod=pod.yaml", "--", "true")
    assert second.end() == 69
    run_id = run.of("start")[0]["run_id"]
    assert f"the host is taken by run {run_id} of root" in second.last_line
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130


def pod_ssh(pod: PodSandbox, user: str) -> dict[str, str]:
    return {"user": user, "key": str(pod.hosts.key), "known_hosts": str(pod.hosts.known_hosts)}


def stubborn(hosts: Hosts, name: str) -> list[int]:
    return sorted(p.pid for p in hosts.processes(name) if p.args.endswith("stubborn.py") and "nsenter" not in p.args)


@pytest.mark.long
def test_detached_and_cut_off(pod: PodSandbox) -> None:
    """StrayProcesses of a detached run on an unreachable host are ended by another `stop`, and `clean` waits for it."""
    done = pod.podrun(pod.write_pod(["h0", "h1"]), "--detach", "--", "python3", pod.add("stubborn.py"))
    assert done.returncode == 0, done.stderr
    pod.hosts.cut("h1")
    done = pod.podrun("stop")
    assert done.returncode == 69
    assert "could not confirm that nothing is left on h1" in done.stdout
    assert pod.podrun("stop").returncode == 69  # still cut off
    pod.hosts.restore()
    assert of_run(pod.hosts, ["h0", "h1"]).keys() == {"h1"}
    (run,) = (pod.path / "home" / "runs").iterdir()
    refused = pod.podrun("clean", run.name, "--yes")
    assert refused.returncode == 2
    assert f"`podrun stop {run.name}` ends that first" in refused.stderr
    done = pod.podrun("stop")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until_gone(pod.hosts, ["h0", "h1"], SOON)
    assert pod.podrun("stop", run.name).stdout.startswith(f"podrun: {run.name} has ended already")


@pytest.mark.long
def test_many_take_a_run_over_at_once(pod: PodSandbox) -> None:
    """One does, all see the run to its end, and no line is missing."""
    option = pod.write_pod(["h0", "h1"])
    done = pod.podrun(option, "--detach", "--", "python3", pod.add(COUNT), str(pod.enough))
    assert done.returncode == 0, done.stderr
    (directory,) = (pod.path / "home" / "runs").iterdir()
    Process(json.loads((directory / "supervisor.json").read_text())["pid"], 0, "").kill()
    wait_until(lambda: pod.podrun("ps").stdout.find("abandoned") > 0, "the end of the supervisor")
    attached = [subprocess.Popen([*pod.command, "attach"], cwd=pod.path, env=pod.env) for _ in range(3)]
    wait_for_lines(directory / "logs" / f"{name}.log" for name in ("h0", "h1"))
    pod.enough.touch()
    assert [process.wait(120) for process in attached] == [0, 0, 0]
    check_logs(directory / "logs", ["h0", "h1"])
    assert "Traceback" not in (directory / "supervisor.log").read_text()


def test_ctrl_c_before_a_detached_run_has_started(pod: PodSandbox) -> None:
    """It ends the run: nothing goes on that the user has not seen start."""
    option = pod.write_pod(["h0"], setup=["sleep 300"])
    process = subprocess.Popen([*pod.command, option, "--detach", "--", "true"], cwd=pod.path, env=pod.env)
    sleeping = lambda: [p for p in pod.hosts.processes("h0") if "sleep 300" in p.args]  # noqa: E731
    wait_until(lambda: bool(sleeping()), "the setup command")
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    wait_until(lambda: not sleeping(), "an end of the setup command")

"""podrun on hosts whose agents run in containers of docker or podman."""

from __future__ import annotations

from pathlib import Path

from ..containers import PYTHON
from ..containers.engines import IMAGE, EngineHosts
from ..hosts import USER_ID, wait_until
from ..pod.conftest import Run
from .pod import PodSandbox
from .processes import wait_for_start
from .results import log_of, newest

NAMES = ["h0", "h1"]


def hosts_of(pod: PodSandbox) -> EngineHosts:
    assert isinstance(pod.hosts, EngineHosts)
    return pod.hosts


def write_pod(pod: PodSandbox, hosts: list[str], user: str = "root", **keys: object) -> str:
    engine_hosts = hosts_of(pod)
    container = {
        "engine": engine_hosts.engine,
        "image": IMAGE,
        "python": PYTHON if user == "root" else "/usr/bin/python3",  # the other is root's own
        "mounts": engine_hosts.image.mounts if user == "root" else ["/usr:/usr:ro"],
        **keys,
    }
    ssh = {"user": user, "key": str(pod.hosts.key), "known_hosts": str(pod.hosts.known_hosts)}
    workdir = workdir_of(pod, user)
    env = {"OF_BOTH": "pod", "JAX_COMPILATION_CACHE_DIR": str(workdir / "xla")}
    return pod.write_pod(hosts, python=None, container=container, env=env, ssh=ssh, workdir=str(workdir))


def workdir_of(pod: PodSandbox, user: str) -> Path:
    """Return the pod's workdir. Only root may enter the folders of tests."""
    if user == "root":
        return pod.path / "shared"
    folder = pod.hosts.folder / "shared" / pod.path.name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    return folder


SHOW = """\
import os, sys
print(os.path.exists("/etc/image"), sys.prefix, os.getpid() == int(os.environ["PODRUN_MAIN_PID"]))
print({n: os.environ.get(n) for n in ("OF_IMAGE", "OF_BOTH", "OF_JOB")})
print(sys.argv[1:], os.path.basename(os.getcwd()), os.statvfs("/dev/shm").f_blocks > 1 << 16)
print(os.getuid(), os.uname().nodename)
os.makedirs(os.environ["PODRUN_WORKDIR"], exist_ok=True)
open(os.environ["PODRUN_WORKDIR"] + "/made", "w").close()
"""


def check_program(pod: PodSandbox, user: str) -> None:
    """A program has the image's files and variables, podrun's go before them, and its arguments arrive unchanged.

    Its files belong to the user, and no container is left.
    """
    uid = 0 if user == "root" else USER_ID
    (pod.path / "show.py").write_text(SHOW)
    option = write_pod(pod, NAMES, user)
    done = pod.podrun(option, "launch.env.OF_JOB=a b", "--", "python", "show.py", "it's", "$HOME", "")
    assert done.returncode == 0, done.stderr + done.stdout
    for host in NAMES:
        assert log_of(newest(pod), host) == [
            f"True {'/opt/image' if user == 'root' else '/usr'} True",
            str({"OF_IMAGE": "image", "OF_BOTH": "pod", "OF_JOB": "a b"}),
            "[\"it's\", '$HOME', ''] code True",
            f"{uid} {host}",
        ]
    (made,) = workdir_of(pod, user).rglob("made")
    assert made.stat().st_uid == uid
    assert not hosts_of(pod).containers(user)
    assert not hosts_of(pod).leftovers()


def check_first_cause(pod: PodSandbox) -> None:
    """An exception in the image ends all within seconds; its code and message come through the engine."""
    (pod.path / "fails.py").write_text(
        "import os, sys, time\nif os.environ['PODRUN_PROCESS_ID'] == '1':\n    raise ValueError('boom')\ntime.sleep(100)\n"
    )
    done = pod.podrun(write_pod(pod, NAMES), "--", "python", "fails.py")
    assert done.returncode == 1
    assert "failed: h1 (process 1): ValueError: boom (fails.py:3) [exit code 1]" in done.stderr.splitlines()[-1]
    assert not hosts_of(pod).containers()
    assert not hosts_of(pod).leftovers()


_IGNORES = """\
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", flush=True)
time.sleep(1000)
"""


def begin(pod: PodSandbox, hosts: list[str], user: str = "root") -> Run:
    """Start a program that ignores signals, and wait until it runs."""
    (pod.path / "ignores.py").write_text(_IGNORES)
    run = pod.run(write_pod(pod, hosts, user), "launch.stop_grace=1", "--", "python", "ignores.py")
    wait_for_start(run, len(hosts))
    wait_until(lambda: all(_is_up(newest(pod) / "logs" / f"{host}.log") for host in hosts), "the program")
    return run


def _is_up(log: Path) -> bool:
    return log.exists() and log.read_text() == "up\n"


def check_nothing_is_left(pod: PodSandbox, how: str) -> None:
    """Nothing is left of a program that ignores signals: after a stop, or after agent or the engine's client was killed."""
    run = begin(pod, ["h0"])
    hosts = hosts_of(pod)
    assert len(hosts.containers()) == 1
    if how == "stop":
        assert pod.podrun("stop").returncode == 0
    else:
        mark = {"agent": ".pyz run ", "client": f"{hosts.engine} run"}[how]
        for process in hosts.processes("h0"):
            if mark in process.args:
                process.kill()
    if how == "client":  # the agent lives on, and podrun reaches it from another container
        wait_until(lambda: len(hosts.containers()) == 2, "another connection")
        assert pod.podrun("stop").returncode == 0
    assert run.end() != 0
    wait_until(lambda: not hosts.containers() and not hosts.leftovers(), "an end of all")


def check_killed_launcher(pod: PodSandbox, user: str) -> None:
    """The container ends with the lease of its agent, also if nothing of the engine is left that could remove it.

    The next command on the host removes what the engine has recorded of it.
    """
    hosts = hosts_of(pod)
    run = begin(pod, NAMES, user)
    run.process.kill()
    for process in (process for name in NAMES for process in hosts.processes(name)):
        if any(word in process.args for word in (f"{hosts.engine} run", "conmon")):
            process.kill()
    assert hosts.leftovers()
    wait_until(lambda: not hosts.leftovers(), "an end of all", 40)
    cleaned = pod.podrun("clean", "--pod=pod.yaml", "--yes", "--older-than=0")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not hosts.containers(user)

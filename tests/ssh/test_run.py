"""`podrun` on real hosts: the same results as simulated, everything arrives unchanged, every mistake names its host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import TINY, Sandbox, make_sandbox
from ..hosts import Hosts, wait_until
from .pod import SECRET, PodSandbox
from .processes import wait_for_start
from .results import events_of, log_of, newest

NASTY = [
    "two  words",
    "it's",
    '"quoted"',
    "$HOME $(id) `id` \\$x",
    "one\ntwo\n",
    "grün 火",
    "",
    "*",
    "--",
    "a;b|c&d",
    "!x",
]


def sent(pod: PodSandbox) -> dict[str, list[str]]:
    """Kinds of the bundles that each host got in the last run."""
    (note,) = [e for e in events_of(pod) if "sent" in e and e["event"] != "usage"]
    return {host: [name.partition("-")[0] for name in names] for host, names in note["sent"].items()}


# --- a training job ---


@pytest.fixture(scope="module")
def trained(shared_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> PodSandbox:
    """A job on 2 hosts x 2 devices and simulated."""
    pod = PodSandbox(make_sandbox(tmp_path_factory.mktemp("trained")).path, shared_hosts)
    job = ["train.yaml", "eval.every=3", "checkpoint.every=3", "sample.tokens=5"]
    here = Sandbox(pod.path).podrun("--slice=cpu-2x2", "--simulate", "--workdir=simulated", *job)
    assert here.returncode == 0, here.stderr
    there = pod.podrun(pod.write_pod(shared_hosts.names[:2], slice="cpu-2x2"), *job)
    assert there.returncode == 0, there.stderr + there.stdout
    return pod


@pytest.mark.long
def test_same_losses_as_simulated(trained: PodSandbox) -> None:
    """The transport is the only difference."""
    there, here = trained.losses("shared/train"), trained.losses("simulated")
    assert len(there) == 6
    assert there == pytest.approx(here, rel=1e-6)


@pytest.mark.long
def test_the_checkpoint_resumes_and_a_profile_is_brought(trained: PodSandbox) -> None:
    """Repeating the command in the same workdir goes on; there are no bundles to send any more."""
    started = trained.podrun("--pod=pod.yaml", "--detach", "train.yaml", "steps=100000", "log.every=10")
    assert started.returncode == 0, started.stderr
    name = trained.hosts.names[1]
    done = trained.podrun("profile", "--steps", "1", "--host", name, "--to", "traces")
    assert trained.podrun("stop", "--now").returncode == 0
    assert done.returncode == 0, done.stderr
    (trace,) = (trained.path / "traces").rglob("*.trace.json.gz")
    assert trace.relative_to(trained.path / "traces").parts[0].startswith(f"{name}-steps-")
    assert {event["step"] for event in events_of(trained) if event["event"] == "resume"} == {6}
    assert set(map(tuple, sent(trained).values())) == {()}


@pytest.mark.long
def test_nothing_of_the_runs_is_left(trained: PodSandbox) -> None:
    """Hosts may still clean up when `podrun stop --now` returns: the run went on without a terminal."""
    ours = {path.name for path in (trained.path / "home" / "runs").iterdir()}
    for name in trained.hosts.names[:2]:
        runs = trained.hosts.home_of(name) / ".podrun" / "runs"
        wait_until(lambda runs=runs: not ours & {path.name for path in runs.iterdir()}, f"an empty {runs}", 30)
        assert not [p.args for p in trained.hosts.processes(name) if "podrun" in p.args and "sshd" not in p.args]


# --- programs ---


def test_a_plain_jax_program(pod: PodSandbox) -> None:
    """It knows only the documented environment; stray variables of a scheduler change nothing."""
    stray = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "9",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "3",
        "OMPI_COMM_WORLD_SIZE": "5",
    }
    option = pod.write_pod(["h0", "h1"], slice="cpu-2x2", env=stray)
    done = pod.podrun(option, "--", "python", pod.add("collective.py"), *NASTY)
    assert done.returncode == 0, done.stderr
    for host in ("h0", "h1"):
        lines = log_of(newest(pod), host)
        assert "ids [0, 1] devices 4 2" in lines
        assert f"args {NASTY}" in lines
    assert "ids [0, 1] devices 4 2" in done.stdout


def test_a_program_with_podruns_initialize(pod: PodSandbox) -> None:
    """One process per device: each has its own."""
    option = pod.write_pod(["h0", "h1"], slice="cpu-2x2")
    done = pod.podrun(option, "launch.process_per=device", "--", "python", pod.add("joined.py"))
    assert done.returncode == 0, done.stderr
    for process in range(4):
        lines = log_of(newest(pod), f"h{process // 2}.{process}")
        assert f"process {process} of 4 devices 4 [{process % 2}]" in lines


def test_values_arrive_unchanged(pod: PodSandbox) -> None:
    """Environment and arguments, whatever is in them."""
    env = {f"V{i}": value for i, value in enumerate(NASTY)}
    option = pod.write_pod(["h0", "h1"], env=env, secrets=["MY_SECRET"])
    names = ",".join([*env, "MY_SECRET"])
    done = pod.podrun(option, f"launch.env.SHOW={names}", "--", "python3", pod.add("show.py"), *NASTY)
    assert done.returncode == 0, done.stderr
    for host in ("h0", "h1"):
        (line,) = log_of(newest(pod), host)
        assert json.loads(line) == {"args": NASTY, "env": {**env, "MY_SECRET": SECRET}}


def test_only_what_changed_is_sent(pod: PodSandbox) -> None:
    """A second start sends nothing, a changed file only the project."""
    option = pod.write_pod(["h0", "h1"])
    program = pod.path / pod.add("show.py")
    (pod.path / ".podrunignore").write_text("home/\nshared/\n")

    def sent_by_a_start() -> list[list[str]]:
        done = pod.podrun(option, "launch.env.SHOW=HOME", "--", "python3", program.name)
        assert done.returncode == 0, done.stderr
        return list(sent(pod).values())

    assert all("project" in kinds for kinds in sent_by_a_start())
    assert sent_by_a_start() == [[], []]
    program.write_text(program.read_text() + "# changed\n")
    assert sent_by_a_start() == [["project"], ["project"]]
    assert sent_by_a_start() == [[], []]


def test_a_program_that_writes_beside_its_code(pod: PodSandbox) -> None:
    """Files that it wrote stay, are named and can be brought; the next run starts from the project as it is."""
    (pod.path / "write.py").write_text(
        "import os\nassert os.listdir('.').count('made') == 0\nopen('made', 'w').write('x')\n"
    )
    option = pod.write_pod(["h0"])
    for _ in range(2):
        done = pod.podrun(option, "--", "python3", "write.py")
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("files ")]
        place = line.partition("h0:")[2].partition(";")[0]
        folder = Path(pod.hosts.home_of("h0"), *Path(place).parts[-6:])
        assert [p.name for p in folder.iterdir()] == ["made"]
    pulled = pod.podrun("pull", "files", "--to", "here")
    assert pulled.returncode == 0, pulled.stderr
    assert (pod.path / "here" / "files" / "h0" / "made").read_text() == "x"


# --- secrets ---


def test_secrets_are_never_shown(pod: PodSandbox) -> None:
    """Not in any process list, here or there, while the run is made ready, goes on and ends; and in no file."""
    names = ["h0", "h1"]
    option = pod.write_pod(names, secrets=["MY_SECRET"], setup=["true"])
    run = pod.run(option, "--", "python3", pod.add("count.py"), str(pod.enough))
    seen = set()
    while run.process.poll() is None:
        for folder in Path("/proc").glob("[0-9]*"):  # the hosts' processes are processes of this machine
            try:
                seen.add((folder / "cmdline").read_bytes())
            except OSError:
                continue
        if any(b"count.py" in args for args in seen):
            pod.enough.touch()
        time.sleep(0.02)
    assert run.end() == 0, run.stderr
    assert any(b"count.py" in args for args in seen)
    assert not [args for args in seen if SECRET.encode() in args]
    done = pod.podrun(option, "--dry-run", "--", "python3", "count.py", str(pod.enough))
    assert "MY_SECRET=(secret)" in done.stdout
    assert SECRET not in done.stdout
    files = [p for p in newest(pod).rglob("*") if p.is_file()]
    assert {"spec.json", "plan.json", "events.jsonl"} <= {p.name for p in files}
    assert not [p for p in files if SECRET in p.read_text()]


def test_files_on_a_host_are_private(pod: PodSandbox) -> None:
    run = pod.run(pod.write_pod(["h0"]), "--", "python3", pod.add("count.py"), str(pod.enough))
    wait_for_start(run, 1)
    folder = pod.hosts.home_of("h0") / ".podrun" / "runs"
    files = [p for p in folder.rglob("*") if p.is_file() and "code" not in p.parts]
    assert {p.name for p in files} >= {"0.out", "agent.log"}
    assert {oct(p.stat().st_mode & 0o777) for p in files} == {"0o600"}
    assert pod.podrun("stop").returncode == 0
    run.end()


# --- what can be wrong with a host ---


def failure_of(pod: PodSandbox, option: str, *job: str) -> str:
    """Return what podrun says of a run that does not start."""
    done = pod.podrun(option, *(job or ("--", "true")))
    assert done.returncode == 69, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 8, done.stderr
    return done.stderr


@pytest.fixture
def mounted(pod: PodSandbox) -> Iterator[Any]:
    """Mounts something over the home directory of h1."""
    home = str(pod.hosts.folder / "home" / "root")

    def mount(*options: str) -> None:
        pod.hosts.run_on("h1", "mount", "-t", "tmpfs", *options, "none", home)

    yield mount
    pod.hosts.run_on("h1", "umount", home)


def test_wrong_host_key(pod: PodSandbox, tmp_path: Path) -> None:
    known = tmp_path / "known"
    lines = pod.hosts.known_hosts.read_text().splitlines()
    key = lines[0].split(" ", 1)[1]
    known.write_text("\n".join([lines[0], f"{lines[1].split(' ', 1)[0]} {key}", *lines[2:]]) + "\n")
    ssh = {"user": "root", "key": str(pod.hosts.key), "known_hosts": str(known)}
    said = failure_of(pod, pod.write_pod(["h0", "h1"], ssh=ssh))
    assert "podrun: failed: h1: " in said
    assert "ssh-keygen" in said


def test_wrong_login(pod: PodSandbox) -> None:
    ssh = {"user": "nobody-here", "key": str(pod.hosts.key), "known_hosts": str(pod.hosts.known_hosts)}
    assert "nobody-here" in failure_of(pod, pod.write_pod(["h0"], ssh=ssh))


def test_no_python(pod: PodSandbox) -> None:
    said = failure_of(pod, pod.write_pod(["h0"], python="/no/such/python"))
    assert "podrun: failed: h0: no Python at '/no/such/python'" in said
    assert "`python:` in a pod file for --pod" in said


def test_disk_full(pod: PodSandbox, mounted: Any) -> None:
    mounted("-o", "size=16k")
    said = failure_of(pod, pod.write_pod(["h0", "h1"]))
    assert "podrun: failed: h1: cannot write" in said
    assert "No space left on device" in said


def test_disk_full_of_code(pod: PodSandbox, mounted: Any) -> None:
    """The agent fits, the project does not."""
    mounted("-o", "size=400k")
    (pod.path / "big").write_bytes(os.urandom(1 << 20))
    said = failure_of(pod, pod.write_pod(["h0", "h1"]))
    assert "failed: h1: " in said
    assert "No space left on device" in said


def test_read_only_home(pod: PodSandbox, mounted: Any) -> None:
    mounted("-o", "ro")
    said = failure_of(pod, pod.write_pod(["h0", "h1"]))
    assert "podrun: failed: h1: cannot write" in said
    assert "Read-only file system" in said
    assert "`home:` in a pod file for --pod" in said


def test_a_busy_port_range(pod: PodSandbox) -> None:
    code = "import socket, sys; s = socket.create_server(('', 8476)); print(1, flush=True); sys.stdin.read()"
    command = pod.hosts.command_on("h0", [sys.executable, "-c", code])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdin is not None and taker.stdout is not None and taker.stdout.readline() == b"1\n"
        said = failure_of(pod, pod.write_pod(["h0"], ports="8476-8476"))
        taker.stdin.close()
    assert "failed: h0: no port of [8476, 8476] is free" in said


def test_ctrl_c_while_hosts_are_made_ready(pod: PodSandbox) -> None:
    """A setup command that takes long ends with it."""
    run = pod.run(pod.write_pod(["h0", "h1"], setup=["sleep 300"]), "--", "true")
    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "setup-commands")
    sleeping = lambda: [p for n in ("h0", "h1") for p in pod.hosts.processes(n) if "sleep 300" in p.args]  # noqa: E731
    wait_until(lambda: bool(sleeping()), "the setup command")
    run.process.send_signal(2)
    assert run.end() == 130
    wait_until(lambda: not sleeping(), "an end of the setup commands")


@pytest.mark.long
def test_train_yaml_is_the_projects(pod: PodSandbox) -> None:
    """A relative path of data is found in the project, in the folder in which podrun was called."""
    inner = pod.path / "jobs" / "one"
    inner.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "."], cwd=pod.path, check=True)
    (pod.path / ".gitignore").write_text("home/\nshared/\n")
    (inner / "train.yaml").write_text(TINY.replace("steps: 6", "steps: 2"))
    shutil.copy(pod.path / "text.txt", inner / "text.txt")
    (pod.path / "text.txt").unlink()
    option = pod.write_pod(["h0"])
    command = [*pod.command, option.replace("pod.yaml", "../../pod.yaml"), "train.yaml"]
    done = subprocess.run(command, cwd=inner, env=pod.env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr

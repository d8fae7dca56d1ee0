"""Code and environment arrive on every host, whole or not at all: real agents, real builds, hosts that are folders."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent import store
from podrun.launcher.agent.extract import DamagedError, extract
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.remote.open_agent import open_agent
from podrun.launcher.staging import prepare as prepare_module
from podrun.launcher.staging.bundles import Bundle, podrun_bundle, project_bundle
from podrun.launcher.staging.prepare import Prepared, prepare_hosts
from podrun.launcher.staging.requirements import environment_key, worker_python
from podrun.launcher.transport.local import LocalChannel, LocalTransport
from podrun.runtime.contract import UserError

from ...wheels import make_wheel
from ..powerless import POWERLESS

pytestmark = pytest.mark.timeout(120)

Answers = dict[str, Prepared | HostError]


class Behind(LocalTransport):
    """A host on which every command is started by another."""

    def __init__(self, pod: Pod, before: Sequence[str]) -> None:
        super().__init__(pod)
        self._before = before

    def open(self, host: Host, argv: Sequence[str]) -> LocalChannel:
        return super().open(host, [*self._before, *argv])


class Case:
    """A project, hosts that share a home, and what they said while they were prepared."""

    def __init__(self, path: Path, hosts: int = 1) -> None:
        self.project = path / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text("print('first')")
        self.home = path / "home"
        self.mark = uuid.uuid4().hex
        self.before: Sequence[str] = ()
        self.told: list[tuple[str, str, str]] = []
        self.pod = Pod(
            slice=parse_slice("cpu-1x1"),
            hosts=tuple(Host(f"h{n}", f"h{n}") for n in range(hosts)),
            transport="local",
            platform="cpu",
            home=str(self.home),
            python=sys.executable,
        )

    def bundles(self) -> list[Bundle]:
        return [project_bundle(self.project)[0], podrun_bundle()]

    def run(
        self,
        *,
        env: dict[str, str] | None = None,
        tell: Callable[[str, str, str], None] | None = None,
        facts: dict[str, Any] | None = None,
        **pod: Any,
    ) -> Answers:
        self.pod = replace(self.pod, **pod)
        self.told.clear()
        bundles = self.bundles()
        return prepare_hosts(
            self.pod,
            Behind(self.pod, self.before),
            bundles,
            project=bundles[0].name,
            subfolder=".",
            env={"PODRUN_TEST": self.mark, **(env or {})},
            facts=facts,
            tell=tell or (lambda *news: self.told.append(news)),
        )

    def prepared(self, **arguments: Any) -> Prepared:
        answer = self.run(**arguments)["h0"]
        assert isinstance(answer, Prepared), answer
        return answer

    def refused(self, **arguments: Any) -> str:
        answer = self.run(**arguments)["h0"]
        assert isinstance(answer, HostError), answer
        return answer.reason

    def said(self, phase: str) -> list[str]:
        return [message for _, p, message in self.told if p == phase]

    def there(self, folder: str = "bundles") -> set[str]:
        """Names in a folder of the home, hidden ones left out."""
        return {path.name for path in (self.home / folder).glob("[!.]*")}

    def processes(self) -> list[int]:
        """What this case has started and still lives."""
        mark = f"PODRUN_TEST={self.mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    for pid in case.processes():
        os.kill(pid, signal.SIGKILL)


def wait_until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# --- bundles ----------------------------------------------------------------------------------------------------------


def test_only_what_is_missing_is_sent(case: Case) -> None:
    """At first all; then nothing; after a change the project alone."""
    names = [bundle.name for bundle in case.bundles()]
    first = case.prepared()
    assert first.sent == tuple(names)
    assert first.bytes_sent == sum(len(bundle.data) for bundle in case.bundles())
    assert [phase for _, phase, _ in case.told] == ["reach", "sync", "sync", "checked"]
    again = case.prepared()
    assert (again.sent, again.bytes_sent) == ((), 0)
    (case.project / "train.py").write_text("print('second')")
    changed = case.prepared()
    assert [name.partition("-")[0] for name in changed.sent] == ["project"]
    assert case.there() == {*names, *changed.sent}


def test_what_arrives_is_what_was_packed(case: Case) -> None:
    """Content, names, links and modes; times are zero, by which a program's own files are known."""
    (case.project / "deep" / "er").mkdir(parents=True)
    for name in ["a b", "line\nbreak", "snow ☃", os.fsdecode(b"latin-\xe9"), "x" * 200, "deep/er/" + "y" * 200]:
        (case.project / name).write_bytes(name.encode(errors="surrogateescape"))
    (case.project / "run.sh").write_text("#!/bin/sh")
    (case.project / "run.sh").chmod(0o755)
    (case.project / "link").symlink_to("deep/er")
    case.before = ["env", "LC_ALL=C"]  # a host without a locale
    name = case.prepared().sent[0]
    assert contents(case.home / "bundles" / name) == contents(case.project)
    assert all(path.lstat().st_mtime == 0 for path in (case.home / "bundles" / name).rglob("*") if not path.is_dir())


def contents(folder: Path) -> dict[str, tuple[str, bytes]]:
    """name: (link target or whether its owner may execute it, content)"""
    return {
        str(path.relative_to(folder)): (os.readlink(path), b"")
        if path.is_symlink()
        else (str(path.stat().st_mode & 0o100), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_hosts_that_share_a_home(tmp_path: Path) -> None:
    """All of them start at once; what is there in the end is there once, and whole."""
    case = Case(tmp_path, hosts=4)
    answers = case.run()
    assert list(answers) == ["h0", "h1", "h2", "h3"]
    assert all(isinstance(answer, Prepared) for answer in answers.values()), answers
    assert case.there() == {bundle.name for bundle in case.bundles()}
    assert contents(case.home / "bundles" / case.bundles()[0].name) == contents(case.project)


class Upload:
    """The protocol by hand, to break it."""

    def __init__(self, case: Case) -> None:
        case.home.mkdir(exist_ok=True)
        self.case = case
        self.bundle = case.bundles()[0]
        self.channel = open_agent(LocalTransport(case.pod), case.pod, case.pod.hosts[0], "prepare")
        keys = dict.fromkeys(["requirements", "project", "facts"])
        request = {"home": case.pod.home, "bundles": [self.bundle.name], "python": "python3", "setup": [], "env": {}}
        self.channel.send(json.dumps({**keys, **request, "subfolder": "."}).encode() + b"\n")

    def send(self, name: str, data: bytes, size: int | None = None) -> list[dict[str, Any]]:
        """Answers up to the end of the agent."""
        head = {"bundle": name, "bytes": len(data) if size is None else size}
        self.channel.send(json.dumps(head).encode() + b"\n" + data)
        self.channel.finish()
        answers = b""
        while received := self.channel.receive():
            answers += received
        self.channel.close()
        assert "Traceback" not in self.channel.complaint()
        return [json.loads(line) for line in answers.splitlines()]


def test_an_upload_that_ends_too_early_leaves_nothing(case: Case) -> None:
    (case.project / "large").write_bytes(os.urandom(300_000))
    upload = Upload(case)
    half = upload.bundle.data[: len(upload.bundle.data) // 2]
    assert [a["type"] for a in upload.send(upload.bundle.name, half, len(upload.bundle.data))] == ["need"]
    assert case.there() == set()
    assert case.prepared().sent[0] == upload.bundle.name


@pytest.mark.parametrize("damage", ["cut", "changed", "another", "not an archive"])
def test_a_damaged_bundle_leaves_nothing(case: Case, damage: str) -> None:
    (case.project / "large").write_bytes(os.urandom(300_000))
    upload = Upload(case)
    data = upload.bundle.data
    flipped = data[:200_000] + bytes([data[200_000] ^ 1]) + data[200_001:]
    broken = {"cut": data[:-50_000], "changed": flipped, "another": podrun_bundle().data, "not an archive": b"x" * 99}
    *_, error = upload.send(upload.bundle.name, broken[damage])
    assert error["type"] == "error"
    assert f"{upload.bundle.name} did not arrive as it was sent" in error["what"]
    assert case.there() == set()


def test_a_bundle_cannot_be_put_elsewhere(case: Case) -> None:
    upload = Upload(case)
    *_, error = upload.send("../project-0123456789abcdef", upload.bundle.data)
    assert "is not the name of a bundle" in error["what"]
    assert not list(case.home.glob("project-*"))


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([("../escaped", None)], "not a path inside"),
        ([("/tmp/podrun-escaped", None)], "not a path inside"),
        ([("a/../../escaped", None)], "not a path inside"),
        ([("link", "..")], "leads out"),
        ([("link", "/tmp")], "leads out"),
        ([("deep/link", "../../x")], "leads out"),
        ([("up", "."), ("link", "up/../..")], "leads out"),
        ([("link", "inside"), ("link/file", None)], "not a path inside"),
        ([("link", "inside"), ("link", None)], "not a path inside"),
    ],
)
def test_an_archive_never_writes_outside(tmp_path: Path, members: list[tuple[str, str | None]], complaint: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = (tarfile.SYMTYPE, target) if target else (tarfile.REGTYPE, "")
            archive.addfile(info)
    folder = tmp_path / "parent" / "folder"
    folder.mkdir(parents=True)
    with pytest.raises(DamagedError, match=complaint):
        extract(io.BytesIO(gzip.compress(buffer.getvalue())), str(folder), "")
    assert {path.name for path in tmp_path.rglob("*")} <= {"parent", "folder", "link", "up", "deep"}


# --- a home that is none ----------------------------------------------------------------------------------------------


def test_a_home_that_cannot_be_written(case: Case) -> None:
    case.prepared()  # the agent itself is there
    for path in (case.home / "bundles").iterdir():
        subprocess.run(["rm", "-r", path], check=True)
    (case.home / "bundles").chmod(0o500)
    case.before = POWERLESS
    try:
        reason = case.refused()
    finally:
        (case.home / "bundles").chmod(0o700)
    assert f"cannot write {case.home}/bundles: Permission denied" in reason
    assert "`home:` in the pod file" in reason


def test_a_disk_that_is_full(case: Case) -> None:
    """A limit on the size of files gives the same kind of error, at the same place."""
    (case.project / "large").write_bytes(os.urandom(3_000_000))
    case.before = ["prlimit", "--fsize=1000000"]
    reason = case.refused()
    assert f"cannot write {case.home}/bundles: File too large" in reason
    assert case.there() == set()


def test_a_file_where_the_home_should_be(case: Case) -> None:
    case.prepared()
    case.home.joinpath("bundles").rename(case.home / "moved")
    case.home.joinpath("bundles").write_text("")
    assert f"cannot write {case.home}: Not a directory" in case.refused()


# --- the environment --------------------------------------------------------------------------------------------------


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    """One tiny package, from a file: no network is asked."""
    wheel = make_wheel(tmp_path, "tinypod", {"tinypod.py": "NAME = 'tiny'\n"})
    path = tmp_path / "requirements.txt"
    path.write_text(f"# what the job needs\n--no-index\n{wheel}\n")
    return path


def ask(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def built(case: Case) -> int:
    return sum("building the virtual environment" in message for message in case.said("environment"))


def test_requirements_become_an_environment_once(tmp_path: Path, requirements: Path) -> None:
    """Of two hosts that share a home one builds and the other waits; the next start builds nothing.

    What is there of another version of Python is built anew.
    """
    case = Case(tmp_path, hosts=2)
    stale = case.home / "envs" / environment_key(requirements.read_text(), sys.executable)
    stale.mkdir(parents=True)
    (stale / "podrun.json").write_text(json.dumps({"python": "3.7.1 cpython"}))
    (stale / "left-behind").touch()
    answers = case.run(requirements=requirements, setup=("command -v python; python -c 'import tinypod'",))
    for answer in answers.values():
        assert isinstance(answer, Prepared), answer
        assert answer.python == worker_python(case.pod)
    assert built(case) == 1
    assert not (stale / "left-behind").exists()
    assert any("waiting for" in message for message in case.said("environment"))
    assert case.said("setup").count(worker_python(case.pod)) == 2
    assert ask(worker_python(case.pod), "import tinypod; print(tinypod.NAME)") == "tiny"
    requirements.write_text(requirements.read_text() + "\n# another remark\n")
    case.prepared()
    assert built(case) == 0


def test_an_interrupted_build_is_built_anew(case: Case, requirements: Path) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(host: str, phase: str, message: str) -> None:
        if "building" in message:
            wait_until(lambda: (folder / "bin").exists())
            raise Interrupt

    folder = Path(worker_python(replace(case.pod, requirements=requirements))).parents[1]
    with pytest.raises(Interrupt):
        case.run(requirements=requirements, tell=interrupt)
    wait_until(lambda: not case.processes())
    assert folder.exists()
    (folder / "left-behind").touch()
    python = case.prepared().python
    assert ask(python, "import tinypod; print(tinypod.NAME)") == "tiny"
    assert not (folder / "left-behind").exists()


def test_requirements_that_cannot_be_installed(case: Case, requirements: Path) -> None:
    """The tool's own last lines are the reason."""
    requirements.write_text("--no-index\nno-such-package==1.2.3\n")
    reason = case.refused(requirements=requirements)
    assert reason.startswith("cannot install the requirements: ")
    assert "no-such-package==1.2.3" in reason.split("\n", 1)[1]
    assert "Traceback" not in reason
    assert case.processes() == []


def test_requirements_that_mean_files_here(case: Case, requirements: Path) -> None:
    """They would not be on the hosts: said before any is reached."""
    for line in (
        "-r other.txt",
        "-c constraints.txt",
        "--requirement=a.txt",
        "-e .",
        "./wheels/a.whl",
        "-e ../lib",
        ".",
    ):
        requirements.write_text(f"numpy\n{line}\n")
        with pytest.raises(UserError, match=r"requirements\.txt, line 2: "):
            case.run(requirements=requirements)
    assert case.told == []
    requirements.write_text("-r https://example.org/r.txt\n-e git+https://example.org/x\n-i https://x\nnumpy\n")
    assert worker_python(replace(case.pod, requirements=requirements))


def test_the_key_is_that_of_what_counts() -> None:
    key = environment_key("numpy==1\nscipy\n", "python3")
    assert environment_key("# why\nnumpy==1  \n\nscipy", "python3") == key
    assert environment_key("numpy==2\nscipy\n", "python3") != key
    assert environment_key("numpy==1\nscipy\n", "python3.12") != key


# --- setup ------------------------------------------------------------------------------------------------------------


def test_setup_sees_the_project_and_the_environment(case: Case) -> None:
    """Its output is progress; the bundle stays as it is."""
    setup = ("cat $PODRUN_PROJECT/train.py; echo; pwd", 'test "$TOKEN" = "a b" && printf "%s" "no newline"')
    case.prepared(setup=setup, env={"TOKEN": "a b"})
    assert case.said("setup") == [setup[0], "print('first')", str(case.home), setup[1], "no newline"]


def test_setup_that_fails(case: Case) -> None:
    """The command, how it ended, its last lines; what is secret in them is not shown, what comes after is not run."""
    setup = ("echo the reason is $TOKEN; exit 3", "touch after")
    reason = case.refused(setup=setup, env={"TOKEN": "s3cret-value"})
    expected = (
        "the setup command `echo the reason is $TOKEN; exit 3` ended with exit code 3\n"
        "  the reason is (secret)\nsee `setup:` in the pod file"
    )
    assert reason == expected
    assert "s3cret" not in str(case.told)
    assert not (case.home / "after").exists()


def test_failing_setup_leaves_no_process(case: Case) -> None:
    case.refused(setup=("sleep 1000 & setsid sleep 1000 & exit 1",))
    assert case.processes() == []


def test_setup_may_leave_a_daemon(case: Case) -> None:
    """A file system that is mounted in it must stay. Nobody waits for its output to end."""
    start = time.monotonic()
    case.prepared(setup=("sleep 1000 & echo started",))
    assert time.monotonic() - start < 20
    assert "started" in case.said("setup")
    assert len(case.processes()) == 1


LAUNCHER = """
import sys
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.staging.prepare import prepare_hosts
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.local import LocalTransport
home, mark = sys.argv[1:]
setup = ("setsid sleep 1000 & sleep 1000 & touch started; sleep 1000",)
pod = Pod(parse_slice("cpu-1x1"), (Host("h0", "h0"),), "local", "cpu", home=home, python=sys.executable, setup=setup)
tell = lambda *news: None
prepare_hosts(
    pod, LocalTransport(pod), [], project=None, subfolder=".", env={"PODRUN_TEST": mark}, facts=None, tell=tell
)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_setup_started_ends_with_the_launcher(case: Case, number: int) -> None:
    """However it ends, and also what has left its process group."""
    command = [sys.executable, "-c", LAUNCHER, str(case.home), case.mark]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until((case.home / "started").exists)
        assert len(case.processes()) >= 3
        launcher.send_signal(number)
        launcher.wait(10)
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: case.processes() == [], 5)


def test_what_setup_started_ends_when_the_agent_is_told_to(case: Case) -> None:
    def hang_up(host: str, phase: str, message: str) -> None:
        if message == "here":
            # All of a session: what a login's end does.
            (agent,) = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if is_agent(p)]
            os.kill(agent, signal.SIGHUP)

    def is_agent(path: Path) -> bool:
        try:
            return f"{case.home}/agents/".encode() in path.read_bytes()
        except OSError:
            return False

    reason = case.refused(setup=("setsid sleep 1000 & echo here; sleep 1000",), tell=hang_up)
    assert "the connection was lost" in reason
    assert case.processes() == []


def test_secrets_are_in_no_command_line(case: Case) -> None:
    secret = f"secret-{case.mark}"
    seen: list[bytes] = []

    def look(*_: str) -> None:
        seen.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.path.exists(path))

    case.prepared(setup=('test -n "$TOKEN"',), env={"TOKEN": secret}, tell=look)
    assert any(b"agents/" in line for line in seen)
    assert not any(secret.encode() in line for line in seen)
    assert not any(secret.encode() in path.read_bytes() for path in case.home.rglob("*") if path.is_file())


def test_a_host_that_says_nothing_is_given_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "SILENCE", 1.0)
    stop = ("kill -STOP $PPID; sleep 1000",)
    assert "not a word for 1 s" in case.refused(setup=stop)


def test_a_long_silence_of_a_command_is_none_of_the_host(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "SILENCE", 6.0)
    case.prepared(setup=("sleep 7",))


def test_one_host_that_cannot_is_named(tmp_path: Path) -> None:
    case = Case(tmp_path, hosts=3)
    answers = case.run(setup=('test "$PODRUN_TEST_HOST" != bad',), env={"PODRUN_TEST_HOST": "good"})
    assert all(isinstance(answer, Prepared) for answer in answers.values())

    class OneIsBad(LocalTransport):
        def open(self, host: Host, argv: Sequence[str]) -> LocalChannel:
            if host.name == "h1":
                raise HostError(host.name, "no route to host")
            return super().open(host, argv)

    answers = prepare_hosts(
        case.pod, OneIsBad(case.pod), [], project=None, subfolder=".", env={}, facts=None, tell=lambda *_: None
    )
    assert str(answers["h1"]) == "h1: no route to host"


def test_facts_come_with_the_clock_set_against_ours(case: Case) -> None:
    """The difference is found within moments, however long the setup took."""
    facts = case.prepared(setup=("sleep 2",), facts={"platform": "cpu"}).facts
    assert facts is not None
    assert facts["interpreter"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert abs(facts["clock"]["skew"]) < 1
    assert facts["clock"]["uncertain"] < 1


# --- what is removed --------------------------------------------------------------------------------------------------


def make_old(folder: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(folder, (then, then))


def test_old_bundles_go_those_in_use_stay(case: Case) -> None:
    """The newest of each kind stay, and what a run has given a sign of, and what is used now."""
    sent = []
    for n in range(10):
        (case.project / "train.py").write_text(f"print({n})")
        sent.append(case.prepared().sent[0])
    assert set(sent) <= case.there()  # all were used within the hour
    bundles = case.home / "bundles"
    for age, name in enumerate(reversed(sent)):
        make_old(bundles / name, 10 + age)
    store.in_use(str(bundles / sent[0]))  # as the agent of a run does that goes on for days
    (case.project / "train.py").write_text("print(1)")
    answer = case.prepared()
    assert answer.sent == ()
    stay = {sent[0], sent[1], *sent[-3:]}  # in use, used now, and with these the newest five
    assert case.there() & set(sent) == stay
    assert answer.pruned == 5


def test_old_environments_go(case: Case) -> None:
    case.prepared()
    for n in range(6):
        folder = case.home / "envs" / f"{n:016x}"
        folder.mkdir(parents=True)
        (folder / store.DONE).write_text("{}")
        make_old(folder, 10 + n)
    assert case.prepared().pruned == 3
    assert case.there("envs") == {f"{n:016x}" for n in range(3)}


def test_what_a_dead_host_left_unfinished_goes(case: Case) -> None:
    name = case.prepared().sent[0]
    for suffix, hours in {"new.h7.12": 30, "old.h7.12": 30, "new.h7.13": 1}.items():
        folder = case.home / "bundles" / f"{name}.{suffix}"
        (folder / "deep").mkdir(parents=True)
        make_old(folder, hours)
    case.prepared()
    assert {n for n in case.there() if n.startswith(f"{name}.")} == {f"{name}.new.h7.13"}

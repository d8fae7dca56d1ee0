"""Wheels that this machine downloads for hosts without a package index: real pip, with a folder as its index."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.commands.clean import wheel_folders
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.staging.requirements import worker_python
from podrun.launcher.staging.wheels import Target, download_wheels, target_of
from podrun.runtime.contract import UserError

from ...wheels import make_wheel

OLD = Target("3.11.2", "x86_64", 28)
DOWNLOAD = """
import sys
from pathlib import Path
from podrun.launcher.staging.requirements import worker_python
from podrun.launcher.staging.wheels import Target, download_wheels
download_wheels(Path(sys.argv[1]), Target("3.11.2", "x86_64", 28), print)
"""
NEW = Target("3.12.4", "aarch64", 39)


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one wheel for each of two kinds of hosts, and other dependencies on each."""
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    index = tmp_path / "index"
    index.mkdir()
    needs = [
        'backport; python_version < "3.12"',
        'onarm; platform_machine == "aarch64"',
        'nowhere; sys_platform == "win32"',
    ]
    for tag in ("cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64"):
        make_wheel(index, "compiled", {"compiled.py": f"TAG = {tag!r}\n"}, tag=tag, needs=needs)
    make_wheel(index, "backport", {})
    make_wheel(index, "onarm", {})
    path = tmp_path / "requirements.txt"
    path.write_text(f"--no-index\n--find-links {index}\ncompiled\n")
    return path


def names(requirements: Path, target: Target) -> list[str]:
    wheels = download_wheels(requirements, target, lambda text: None)
    return [path.name.split("-manylinux")[0] for path in wheels.files]


def test_wheels_and_dependencies_are_those_of_the_hosts(requirements: Path) -> None:
    """Neither the Python nor the architecture of this machine counts."""
    assert names(requirements, OLD) == ["backport-1.0-py3-none-any.whl", "compiled-1.0-cp311-cp311"]
    assert names(requirements, NEW) == ["compiled-1.0-cp312-cp312", "onarm-1.0-py3-none-any.whl"]
    assert download_wheels(requirements, NEW, lambda text: None).pins == "compiled==1.0\nonarm==1.0\n"


def test_wheels_are_downloaded_once(requirements: Path, tmp_path: Path) -> None:
    """The same requirements need no index again; comments do not count. `podrun clean` sees the wheels."""
    progress: list[str] = []
    first = download_wheels(requirements, OLD, progress.append)
    assert progress[0] == "downloading the packages of requirements.txt for Python 3.11 on Linux x86_64 with glibc 2.28"
    assert progress[-1].startswith("downloaded 2 wheels, ")
    requirements.write_text(requirements.read_text() + "# a remark\n")
    assert download_wheels(requirements, OLD, pytest.fail) == first
    assert wheel_folders(0) == ([first.files[0].parent], [first.files[0].parent])
    assert wheel_folders(3600)[1] == []


def test_a_wheel_that_is_built_again_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same version; and so is that of another project whose requirements have the same text."""
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    kept, environments = set(), set()
    for project, content in (("a", "1"), ("b", "2"), ("b", "3")):
        folder = tmp_path / project / "wheels"
        folder.mkdir(parents=True, exist_ok=True)
        make_wheel(folder, "mine", {"mine.py": content})
        requirements = tmp_path / project / "requirements.txt"
        requirements.write_text("--no-index\n--find-links wheels\nmine\n")
        (wheel,) = download_wheels(requirements, OLD, lambda text: None).files
        assert wheel.read_bytes() == (folder / wheel.name).read_bytes()
        kept.add(wheel)
        pod = Pod(
            parse_slice("cpu-1x1"),
            (Host("h0", "h0"),),
            "ssh",
            "cpu",
            home="~/p",
            requirements=requirements,
            offline=True,
        )
        environments.add(worker_python(pod))
        requirements.write_text(f"--no-index\nwheels/{wheel.name}\n")
        assert download_wheels(requirements, OLD, lambda text: None).pins == "mine==1.0\n"
    assert len(kept) == len(environments) == 3


def test_wheels_that_were_removed_in_part_are_downloaded_again(requirements: Path) -> None:
    """As by a podrun that was killed while it removed them."""
    first = download_wheels(requirements, OLD, lambda text: None)
    first.files[0].unlink()
    assert download_wheels(requirements, OLD, lambda text: None) == first
    assert first.files[0].exists()


def test_the_last_number_of_the_version_counts(requirements: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "picky", {}, python=">=3.11.1")
    requirements.write_text(requirements.read_text() + "picky\n")
    assert "picky-1.0-py3-none-any.whl" in names(requirements, OLD)


def test_requirements_that_contradict_each_other(requirements: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "wants", {}, needs=["backport<1"])
    requirements.write_text(requirements.read_text() + "wants\nbackport==1.0\n")
    told = r"contradict each other; .*:\n  The user requested backport==1.0\n(.*\n)*  wants 1.0 depends on backport<1"
    with pytest.raises(UserError, match=told):
        download_wheels(requirements, OLD, lambda text: None)


def test_a_package_without_a_wheel_is_named(requirements: Path, tmp_path: Path) -> None:
    """With what to do. Nothing is kept of the attempt."""
    with pytest.raises(
        UserError,
        match=r"^compiled of .* has no wheel for Python 3.11 on Linux x86_64 with glibc 2.17, or there is no such package; ",
    ):
        download_wheels(requirements, Target("3.11.2", "x86_64", 17), lambda text: None)
    requirements.write_text(requirements.read_text() + "backport==2\n")
    with pytest.raises(
        UserError, match=r"^backport==2 of .* has no wheel for .*, only of 1\.0; choose another version"
    ):
        download_wheels(requirements, OLD, lambda text: None)
    assert list((tmp_path / "home" / "wheels").iterdir()) == []


def test_an_index_that_cannot_be_reached_is_not_blamed_on_a_package(
    requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        requirements.write_text(f"--index-url http://127.0.0.1:{closed.getsockname()[1]}/simple\ncompiled\n")
        monkeypatch.setenv("PIP_RETRIES", "1")
        with pytest.raises(UserError, match="no package index can be reached"):
            download_wheels(requirements, OLD, lambda text: None)


def test_nothing_is_left_of_a_podrun_that_is_killed(requirements: Path) -> None:
    """pip, which waits for an index that never answers, ends with it."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        requirements.write_text(f"--index-url http://127.0.0.1:{index.getsockname()[1]}/simple\ncompiled\n")
        podrun = subprocess.Popen([sys.executable, "-c", DOWNLOAD, str(requirements)])
        try:
            index.settimeout(60)
            connection, _ = index.accept()
            with connection:
                connection.settimeout(60)
                assert connection.recv(1 << 16)  # the request
                podrun.kill()
                assert connection.recv(1 << 16) == b""
        finally:
            podrun.kill()
            podrun.wait(60)


def test_what_a_host_says_about_itself_is_checked() -> None:
    answer = {"version": "3.12.4", "implementation": "cpython", "machine": "aarch64", "libc": "2.39"}
    assert target_of(answer) == NEW  # type: ignore[arg-type]
    for change in ({"machine": "x; rm"}, {"libc": "two"}, {"implementation": "pypy"}):
        with pytest.raises(UserError, match=next(iter(change.values()))):
            target_of({**answer, **change})  # type: ignore[arg-type]

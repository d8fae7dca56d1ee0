"""Virtual environments on a host: extended instead of built anew, refused where there is no room, of the right Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare import facts
from podrun.launcher.agent.prepare.store import DONE
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.fan_out import WINDOW
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.staging import end_early
from podrun.launcher.staging import prepare as prepare_module
from podrun.launcher.staging.end_early import EndedError, Refusal
from podrun.launcher.transport.local import LocalTransport
from podrun.launcher.transport.process_channel import ProcessChannel

from ...wheels import make_wheel
from .prepared import Case, ask, wait_until

pytestmark = pytest.mark.timeout(120)


def write_requirements(folder: Path, *wheels: Path) -> Path:
    path = folder / "requirements.txt"
    path.write_text("--no-index\n" + "".join(f"{wheel}\n" for wheel in wheels))
    return path


def make_tiny(folder: Path, name: str) -> Path:
    """A package with a command."""
    info = f"{name}-1.0.dist-info"
    files = {f"{name}.py": "def main():\n    print(__file__)\n"}
    return make_wheel(folder, name, {**files, f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n"})


@pytest.mark.long
def test_a_line_that_is_added_extends_the_environment(tmp_path: Path, case: Case) -> None:
    """Both have what they should, neither refers to the other, and the smaller one may go."""
    one, two = make_tiny(tmp_path, "onepod"), make_tiny(tmp_path, "twopod")
    first = case.prepared(requirements=write_requirements(tmp_path, one)).python
    assert any("building" in message for message in case.said("environment"))
    second = case.prepared(requirements=write_requirements(tmp_path, one, two)).python
    assert first != second
    assert not any("building" in message for message in case.said("environment"))
    folder = Path(second).parents[1]
    assert ask(second, "import onepod, twopod, sys; print(sys.prefix)") == str(folder)
    assert subprocess.run([first, "-c", "import twopod"], capture_output=True).returncode == 1
    subprocess.run(["rm", "-r", Path(first).parents[1]], check=True)
    for name in ("onepod", "twopod"):
        printed = subprocess.run([folder / "bin" / name], capture_output=True, text=True, check=True).stdout
        assert Path(printed.strip()).is_relative_to(folder)
    third = case.prepared(requirements=write_requirements(tmp_path, two)).python
    assert any("building" in message for message in case.said("environment")), "a line less is another environment"
    assert subprocess.run([third, "-c", "import onepod"], capture_output=True).returncode == 1


@pytest.fixture
def small_disk(case: Case) -> Iterator[None]:
    """podrun's folder on a disk of 140 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    case.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=140m,mode=700", "none", case.home], check=True)
    yield
    subprocess.run(["umount", case.home], check=True)


@pytest.mark.usefixtures("small_disk")
def test_too_little_room_is_seen_before_anything_is_built(tmp_path: Path, case: Case) -> None:
    reason = case.refused(requirements=write_requirements(tmp_path, make_wheel(tmp_path, "jax", {})))
    assert "the virtual environment needs about 900 MB, and 14" in reason
    assert f"MB is left at {case.home}/envs" in reason
    assert not [path for path in (case.home / "envs").iterdir() if path.is_dir()]


@pytest.mark.long
@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_fills_up_is_blamed(tmp_path: Path, case: Case) -> None:
    """Not the tool that stumbles over it."""
    large = make_wheel(tmp_path, "largepod", {f"largepod/{n}.txt": "x" * 20_000_000 for n in range(8)})
    reason = case.refused(requirements=write_requirements(tmp_path, large))
    assert reason.startswith("the disk is full: ")
    assert f"left at {case.home}/envs" in reason


def test_a_host_that_is_refused_ends_the_preparation_of_the_others(tmp_path: Path) -> None:
    """The user hears of it now, not when the others have built for minutes. Nothing of them goes on."""
    pair = Case(tmp_path, hosts=2)
    ours = tmp_path / "first"
    answers = pair.run(setup=(f"mkdir {ours} 2>/dev/null && exit 3; echo waits; sleep 60",))
    refused = [host for host, answer in answers.items() if not isinstance(answer, EndedError)]
    assert len(refused) == 1
    assert isinstance(answers[refused[0]], HostError)
    assert not pair.processes()


class Rejecting(LocalTransport):
    """Lets nobody in: the first host at once, the others only when the preparation has been given up."""

    def __init__(self, pod: Pod, refusal: Refusal) -> None:
        super().__init__(pod)
        self._refusal = refusal
        self.opened: list[str] = []

    def open(self, host: Host, argv: Sequence[str]) -> ProcessChannel:
        self.opened.append(host.name)
        wait_until(lambda: "h1" in self.opened if host.name == "h0" else self._refusal.ended)
        raise HostError(host.name, "no such user there")


def test_hosts_that_failed_are_not_hidden_by_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable host has failed, however late that shows; one that was not tried has not."""
    monkeypatch.setattr(end_early, "SETTLE", 0.1)
    refusal = Refusal()
    monkeypatch.setattr(prepare_module, "Refusal", lambda: refusal)
    pod = replace(Case(tmp_path).pod, hosts=tuple(Host(f"h{n}", f"h{n}") for n in range(WINDOW + 9)))
    transport = Rejecting(pod, refusal)
    answers = prepare_module.prepare_hosts(
        pod, transport, [], project=None, subfolder=".", env={}, facts=None, tell=lambda *news: None
    )
    failed = {host for host, answer in answers.items() if not isinstance(answer, EndedError)}
    assert failed == set(transport.opened)
    assert 2 <= len(failed) < len(answers)


@pytest.mark.long
def test_a_command_that_says_nothing_is_seen_to_go_on(case: Case) -> None:
    case.prepared(setup=("echo unpacking; sleep 10.5",))
    assert [message for message in case.said("setup") if message.startswith("unpacking ... (0:10)")]


def test_an_environment_of_a_python_that_has_changed_is_not_what_a_run_will_use(tmp_path: Path) -> None:
    """The interpreter that it would be made of has another version now: a run builds it anew, and a check says so."""
    others = [str(path) for path in Path(sys.base_prefix).parent.glob("3.1*/bin/python3") if path.exists()]
    others = [
        python
        for python in others
        if ask(python, "import sys; print(sys.version_info[:2])") != str(sys.version_info[:2])
    ]
    if not others:
        pytest.skip("no other version of Python here")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (tmp_path / "env" / DONE).write_text("{}")
    inside = str(tmp_path / "env" / "bin" / "python")
    same = facts.gather({"python": inside, "python_before": sys.executable})["interpreter"]
    assert same["packages"] is not None
    changed = facts.gather({"python": inside, "python_before": others[0]})["interpreter"]
    assert changed["packages"] is None
    assert changed["version"] == ask(others[0], "import platform; print(platform.python_version())")


def test_an_environment_whose_build_was_interrupted_is_not_what_a_run_will_use(tmp_path: Path) -> None:
    """It has an interpreter, and no packages yet: a run builds it, so a check does not miss them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    request = {"python": str(tmp_path / "env" / "bin" / "python"), "python_before": sys.executable}
    assert facts.gather(request)["interpreter"]["packages"] is None
    (tmp_path / "env" / DONE).write_text("{}")
    assert facts.gather(request)["interpreter"]["packages"]["jax"] == "missing"

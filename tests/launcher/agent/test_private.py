"""Nobody else on a host, or on this machine, can read or change what podrun keeps there and runs from there."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.base.private import UnsafeError, is_private, private_path
from podrun.launcher.plan.agent_file import agent_file
from tests.conftest import Sandbox

from ..staging.prepared import Case

POD = ("--slice", "cpu-1x1", "--simulate")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
NOBODY = 65534


@pytest.fixture(params=["000", "002"])
def careless(request: pytest.FixtureRequest) -> Iterator[str]:
    """A shell whose new files others may write."""
    before = os.umask(int(request.param, 8))
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Whatever is open to others."""
    paths = [folder, *folder.rglob("*")]
    return {
        str(p): oct(stat.S_IMODE(p.lstat().st_mode)) for p in paths if not p.is_symlink() and p.lstat().st_mode & 0o77
    }


PROGRAM = """
import os, subprocess, sys
home = os.environ["PODRUN_HOME"]
subprocess.run(["find", home, "(", "-perm", "/077", "-a", "-not", "-type", "s", ")", "-print"])
open("made", "w").close()
print(oct(os.stat("made").st_mode & 0o777))
"""


def test_a_careless_umask(sandbox: Sandbox, careless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run goes on, and afterwards, all is the user's alone; the program has the umask that the user has."""
    (sandbox.path / "look.py").write_text(PROGRAM)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    done = sandbox.podrun(*POD, "--", sys.executable, "look.py")
    assert done.returncode == 0, done.stderr
    shown = [
        line
        for line in done.stdout.splitlines()
        if not line.startswith((" ", "podrun ", "podrun:", "logs", "page", "the "))
    ]
    assert shown == [oct(0o666 & ~int(careless, 8))]
    assert modes(sandbox.path / "home") == {}
    assert (sandbox.path / "home" / "agents" / agent_file()[0]).is_file()


def test_what_is_open_is_closed(tmp_path: Path) -> None:
    """Folders of podrun's own names, made by an earlier podrun in a careless shell."""
    home = tmp_path / ".podrun"
    (home / "runs" / "r" / "other").mkdir(parents=True)
    for folder in (home, home / "runs", home / "runs" / "r"):
        folder.chmod(0o777)
    made = Path(private_path(str(home), "runs", "r", "hosts", "h.0"))
    assert made == home / "runs" / "r" / "hosts" / "h.0"
    assert {oct(p.stat().st_mode & 0o777) for p in (home, *made.parents[:3], made)} == {"0o700"}


def test_a_home_that_is_a_link(tmp_path: Path) -> None:
    """The target of the link is the user's choice, too: podrun does not close it."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o755)
    (tmp_path / ".podrun").symlink_to("scratch")
    private_path(str(tmp_path / ".podrun"), "runs")
    assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o755
    (tmp_path / "scratch").chmod(0o775)
    with pytest.raises(UnsafeError, match="chmod go-w"):
        private_path(str(tmp_path / ".podrun"), "runs")


def test_a_home_that_the_user_chose(tmp_path: Path) -> None:
    """It may hold other things: it is not podrun's to change. Others may read it, but not write there."""
    tmp_path.chmod(0o755)
    private_path(str(tmp_path), "runs")
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o775)
    with pytest.raises(UnsafeError, match=rf"{tmp_path} \(mode 775\).*`chmod go-w {tmp_path}`.*`home:`"):
        private_path(str(tmp_path), "runs")
    assert tmp_path.stat().st_mode & 0o777 == 0o775


@needs_root
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    """Named, with its owner and what to do: on the way in, and below."""
    (tmp_path / "runs").mkdir()
    os.chown(tmp_path / "runs", NOBODY, NOBODY)
    with pytest.raises(UnsafeError, match=rf"{tmp_path}/runs belongs to \S+, who could change .*choose another folder"):
        private_path(str(tmp_path), "runs", "r")


@needs_root
def test_the_launchers_own_folder_of_another_user(sandbox: Sandbox) -> None:
    """A message, not a run directory that somebody else can read."""
    (sandbox.path / "home").mkdir()
    os.chown(sandbox.path / "home", NOBODY, NOBODY)
    done = sandbox.podrun(*POD, "--", "true")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "home belongs to nobody" in done.stderr and "PODRUN_HOME" in done.stderr


def swap_file(agents: Path, evil: Path) -> None:
    """By whoever may write in the folder: the name stays that of the agent's content."""
    os.replace(evil, agents / agent_file()[0])
    os.chown(agents / agent_file()[0], NOBODY, NOBODY)


def open_file(agents: Path, evil: Path) -> None:
    (agents / agent_file()[0]).write_bytes(evil.read_bytes())
    (agents / agent_file()[0]).chmod(0o666)


def open_folder(agents: Path, evil: Path) -> None:
    os.replace(evil, agents / agent_file()[0])
    agents.chmod(0o777)


@needs_root
@pytest.mark.parametrize("swap", [swap_file, open_file, open_folder])
def test_an_agent_that_somebody_swapped(sandbox: Sandbox, swap: Callable[[Path, Path], None]) -> None:
    """It is not run: where others could have changed it, it is sent again, and its folder closed."""
    evil, trace = sandbox.path / "evil.pyz", sandbox.path / "trace"
    agents = sandbox.path / "home" / "agents"
    sandbox.podrun("exec", *POD, "--", "true")
    code = f"import os; os.system({('touch ' + shlex.quote(str(trace)))!r})\n"
    (sandbox.path / "podrun_agent").mkdir()
    (sandbox.path / "podrun_agent" / "main.py").write_text(code)
    (sandbox.path / "podrun_agent" / "__init__.py").write_text("")
    (sandbox.path / "__main__.py").write_text(code)
    command = [sys.executable, "-m", "zipfile", "-c", evil, "podrun_agent", "__main__.py"]
    subprocess.run(command, cwd=sandbox.path, check=True)
    swap(agents, evil)
    done = sandbox.podrun("exec", *POD, "--", "echo", "fine")
    assert not trace.exists()
    assert done.returncode == 0 and "fine" in done.stdout, done.stderr
    assert b"podrun_agent/run/serve.py" in (agents / agent_file()[0]).read_bytes()
    assert is_private(str(agents)) and is_private(str(agents / agent_file()[0]))


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_bundle_that_others_could_have_changed(tmp_path: Path, careless: str, mode: int) -> None:
    """Arriving files are closed whatever the umask; one that was open is not trusted, and sent again."""
    case = Case(tmp_path)
    sent = case.prepared().sent
    assert modes(case.home) == {}
    assert case.prepared().sent == ()
    bundle = case.home / "bundles" / sent[0]
    (bundle / "evil.py").write_text("")
    bundle.chmod(mode)
    assert case.prepared().sent == sent[:1]
    assert not (bundle / "evil.py").exists()
    assert modes(case.home) == {}

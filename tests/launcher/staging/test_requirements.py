"""Requirements become a virtual environment, once: real builds, of a package that is a file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.staging.prepare import Prepared
from podrun.launcher.staging.requirements import environment_key, worker_python
from podrun.runtime.contract import UserError

from ...wheels import make_wheel
from .prepared import Case, ask, wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    """One tiny package, from a file: no network is asked."""
    wheel = make_wheel(tmp_path, "tinypod", {"tinypod.py": "NAME = 'tiny'\n"})
    path = tmp_path / "requirements.txt"
    path.write_text(f"# what the job needs\n--no-index\n{wheel}\n")
    return path


def built(case: Case) -> int:
    return sum("building the virtual environment" in message for message in case.said("environment"))


@pytest.mark.long
def test_requirements_become_an_environment_once(tmp_path: Path, requirements: Path) -> None:
    """One of two hosts that share a home builds and the other waits; the next start builds nothing.

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


@pytest.mark.long
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


@pytest.mark.long
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

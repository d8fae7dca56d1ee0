"""`podrun check` reports room that a start may not need, and a workdir that a start may bring."""

from __future__ import annotations

import json
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.prepare import facts as facts_of_host
from podrun.launcher.preflight.environment import check_environment
from podrun.launcher.preflight.rules import apply_rules
from podrun.launcher.staging.runtime_packages import pinned

from .pods import changed, healthy


@pytest.mark.parametrize("workdir", [{**healthy()["disk_home"], "free": 0, "writable": False}, {"error": "no answer"}])
def test_a_workdir_that_setup_may_mount_is_judged_at_a_start(workdir: dict[str, Any]) -> None:
    """Before it, what is wrong there is a warning. A full /tmp on the same disk stays an error."""
    pod, facts = changed("cpu-1x1", {"a": {"disk_workdir": workdir}})
    (finding,) = apply_rules(pod, facts, program=False, before_setup=True)
    assert not finding.fatal
    assert finding.remedy.startswith("nothing if `setup:`")
    assert [f.fatal for f in apply_rules(pod, facts, program=False)] == [True]
    if "error" not in workdir:
        facts["a"]["disk_tmp"] = workdir
        assert [f.fatal for f in apply_rules(pod, facts, program=False, before_setup=True)] == [True]


@pytest.mark.parametrize(("free", "extends", "fatal"), [(300, True, False), (90, True, True), (300, False, True)])
def test_an_environment_that_can_be_extended_needs_less_room(free: int, extends: bool, fatal: bool) -> None:
    """The rule is the same as at the start itself."""
    interpreter = {**healthy()["interpreter"], "packages": None, "extends": extends}
    pod, facts = changed("cpu-1x1", {"a": {"interpreter": interpreter, "disk_home/free": free * 10**6}})
    (finding,) = check_environment(pod, facts, "jax\n", program=True)
    assert finding.fatal == fatal


def test_versions_that_an_older_python_on_a_host_cannot_have() -> None:
    """Versions that `podrun init` wrote here may be too new for the hosts: JAX 0.11 and later are not for Python 3.11."""
    requirements = pinned("cpu") + "needs-nothing-known==1.0\nnumpy\n"
    interpreter = {**healthy()["interpreter"], "packages": None}
    pod, facts = changed("cpu-2x1", {"a": {"interpreter": {**interpreter, "version": "3.9.2"}}})
    facts["b"]["interpreter"] = {**interpreter, "version": platform.python_version()}
    (finding,) = check_environment(pod, facts, requirements, program=True)
    assert finding.fatal and finding.hosts == ("a",)
    assert re.search(
        rf"is Python 3\.9\.2, for which jax=={re.escape(version('jax'))}, .* cannot be installed", finding.what
    )
    assert "needs-nothing-known" not in finding.what and "`python:`" in finding.remedy


def test_a_host_says_whether_there_is_an_environment_to_extend(tmp_path: Path) -> None:
    """A complete one, of the same Python and of fewer lines."""
    here = facts_of_host.gather({"python": sys.executable})["interpreter"]["version"]
    folder = tmp_path / "envs" / ("a" * 16)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "requirements.txt").write_text("numpy\n")

    def extends(requirements: str) -> bool:
        request = {"python": "/nowhere/python", "python_before": sys.executable, "home": str(tmp_path)}
        return bool(facts_of_host.gather({**request, "requirements": requirements})["interpreter"]["extends"])

    assert not extends("numpy\nscipy\n")
    (folder / "podrun.json").write_text(json.dumps({"python": f"{here} cpython"}))
    assert extends("numpy\nscipy\n")
    assert not extends("scipy\n")
    (folder / "podrun.json").write_text(json.dumps({"python": "3.1.0 cpython"}))
    assert not extends("numpy\nscipy\n")

"""Hosts without a package index: this machine sends them the wheels of their environment."""

from __future__ import annotations

import pytest

from ..wheels import make_wheel
from .pod import PodSandbox

pytestmark = pytest.mark.long


def test_hosts_without_a_network_build_an_environment(pod: PodSandbox) -> None:
    """`init --offline` writes the pod file. Wheels go to the hosts once, and a second start sends nothing.

    A new host gets the wheels that were kept. One that is built again under the same version is another one.
    """
    index = pod.path / "index"
    index.mkdir()
    make_wheel(index, "tinypod", {"tinypod.py": "from tinydep import NAME\n"}, needs=["tinydep"])
    make_wheel(index, "tinydep", {"tinydep.py": "NAME = 'tiny'\n"})
    (pod.path / "requirements.txt").write_text(f"--no-index\n--find-links {index}\ntinypod\n")
    (pod.path / "use.py").write_text("import sys, tinypod\nprint(tinypod.NAME, 'from', sys.prefix)\n")
    written = pod.podrun("init", "--slice", "cpu-2x1", "--hosts", "h0,h1", "--user", "root", "--offline", "--yes")
    assert written.returncode == 0, written.stdout + written.stderr
    assert "\noffline: true " in (pod.path / "pod.yaml").read_text()

    option = pod.write_pod(["h0", "h1"], requirements="requirements.txt", offline=True)
    first = pod.podrun(option, "--", "python", "use.py", timeout=300)
    output = first.stdout + first.stderr
    assert first.returncode == 0, output
    assert "packages for Python 3." in output and "2 wheels, " in output and "sent from here" in output
    assert "tiny from" in output

    again = pod.podrun(option, "--", "python", "use.py", timeout=300)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "wheels" not in again.stdout + again.stderr

    wider = pod.write_pod(["h0", "h1", "h2"], requirements="requirements.txt", offline=True)
    more = pod.podrun(wider, "--", "python", "use.py", timeout=300)
    assert more.returncode == 0, more.stdout + more.stderr
    assert "2 wheels, " in more.stdout + more.stderr and "downloaded" not in more.stdout + more.stderr

    make_wheel(index, "tinydep", {"tinydep.py": "NAME = 'tinier'\n"})
    changed = pod.podrun(option, "--", "python", "use.py", timeout=300)
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert "tinier from" in changed.stdout + changed.stderr


def test_a_package_that_hosts_cannot_get_is_named_before_anything_is_built(pod: PodSandbox) -> None:
    """`podrun check` says it as well."""
    (pod.path / "requirements.txt").write_text("--no-index\nno-such-package==1.2.3\n")
    option = pod.write_pod(["h0"], requirements="requirements.txt", offline=True)
    checked = pod.podrun("check", option)
    assert checked.returncode == 2
    table = " ".join(checked.stdout.split())
    assert "no-such-package==1.2.3 of " in table and "has no wheel for Python 3." in table
    done = pod.podrun(option, "--", "python", "-c", "pass")
    assert done.returncode == 69
    assert "no-such-package==1.2.3 of " in done.stderr and "`--find-links FOLDER`" in done.stderr

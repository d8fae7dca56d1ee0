"""Hosts with a stock Python 3.10 train: podrun brings the Python that the pod file asks for, and uv, which installs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import make_sandbox
from ..hosts import Hosts
from ..managed import keep_uv, make_mirror, served, stock_programs
from ..pythons import other_python
from ..wheels import packages_of_this_python
from .pod import PodSandbox

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

VERSION = "{}.{}".format(*sys.version_info)
"""Version of this Python, whose packages the hosts' environments see."""
_HEAD = "10.77.0.1"


@pytest.fixture
def stock(tmp_path: Path, make_hosts: Callable[..., Hosts]) -> PodSandbox:
    """Two hosts with Python 3.10 alone, which reach nothing but each other and the launcher's machine."""
    programs = stock_programs(tmp_path / "programs", other_python("3.10"))
    sandbox = PodSandbox(make_sandbox(tmp_path).path, make_hosts(2, {"SetEnv": f"PATH={programs}"}))
    keep_uv(tmp_path / "home")
    return sandbox


def train_and_resume(pod: PodSandbox, option: str) -> str:
    """Return what podrun has said at the first start."""
    seen = pod.hosts.run(
        [
            "ssh",
            "-i",
            str(pod.hosts.key),
            "-o",
            f"UserKnownHostsFile={pod.hosts.known_hosts}",
            "root@h0",
            "python3 --version; command -v python3.11 python3.12 python3.13 uv pip",
        ]
    )
    assert seen.stdout.split() == ["Python", *[word for word in seen.stdout.split()[1:] if word.startswith("3.10.")]]
    checked = pod.podrun("check", option)
    assert checked.returncode == 0 and "the one that podrun brings" in checked.stdout, checked.stdout + checked.stderr
    first = pod.podrun(option, "small.yaml", "steps=2", "checkpoint.every=2", timeout=400)
    assert first.returncode == 0, first.stdout + first.stderr
    again = pod.podrun(option, "small.yaml", "steps=4", "checkpoint.every=2", timeout=400)
    assert again.returncode == 0, again.stdout + again.stderr
    assert sorted(pod.losses("shared/small")) == [1, 2, 3, 4]
    assert "uv" not in (again.stdout + again.stderr).split()
    return first.stdout + first.stderr


def test_hosts_with_a_network_download_their_python(stock: PodSandbox, tmp_path: Path) -> None:
    mirror = make_mirror(tmp_path / "mirror", VERSION)
    packages_of_this_python(mirror.folder)
    with stock.hosts.inside(), served(mirror.folder, _HEAD) as server:
        (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {server.url}/\nouterpod\n")
        env = {"UV_PYTHON_DOWNLOADS_JSON_URL": mirror.write_list(server.url)}
        option = stock.write_pod(["h0", "h1"], python=VERSION, requirements="requirements.txt", env=env)
        output = train_and_resume(stock, option)
        assert "uv, which downloads Python; " in output
        assert server.archives == 2


def test_hosts_without_a_network_get_their_python_sent(
    stock: PodSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent once, and then from host to host."""
    mirror = make_mirror(tmp_path / "mirror", VERSION)
    index = tmp_path / "index"
    index.mkdir()
    packages_of_this_python(index)
    (tmp_path / "requirements.txt").write_text(f"--no-index\n--find-links {index}\nouterpod\n")
    with stock.hosts.inside(), served(mirror.folder) as server:
        monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", mirror.write_list(server.url))
        option = stock.write_pod(["h0", "h1"], python=VERSION, requirements="requirements.txt", offline=True)
        output = train_and_resume(stock, option)
        assert f"Python {mirror.version} and uv; " in output
        assert server.archives == 1

"""`--hosts-from NAME`: inventories that installed packages bring, good ones and others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.hosts_from import names
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.runtime.contract import UnavailableError, UserError

from ..cli.completing import complete
from .plugin import GOOD, install

DOCS = Path(__file__).parents[3] / "docs" / "plugins.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def find(source: str, slice: str | None = None) -> Pod:
    return find_pod(PodRequest(slice, inventories={"hosts_from": source}))


def test_a_plugin(site: Path) -> None:
    """It lists hosts, by the text after its name; slots make a slice, settings reach the pod."""
    install(site)
    pod = find("mine:pod-a")
    assert pod.hosts == (Host("n0", "10.0.0.2", "10.0.0.2"), Host("n1", "10.0.0.3", "10.0.0.3"))
    assert (pod.slice.name, pod.transport, pod.ssh) == ("gpu-2x8", "ssh", Ssh(user="me"))
    assert find("mine").slice.name == find("mine:").slice.name == "gpu-1x8"
    with pytest.raises(UserError, match=r"^--hosts-from mine: there is no pod 'x:y'; known are pod-a, $"):
        find("mine:x:y")
    with pytest.raises(UserError, match="--hosts-from: slots=8, but gpu-2x4 has 4 devices per host"):
        find("mine:pod-a", "gpu-2x4")


def test_its_name_is_offered(site: Path) -> None:
    """As a completion, and to who has mistyped it. It is not imported for that."""
    install(site, "raise RuntimeError")
    assert names() == ["metadata", "gke", "mine"]
    assert complete("--hosts-from", "m") == ["metadata", "mine"]
    with pytest.raises(
        UserError, match=r"no source of hosts 'mien'; did you mean mine.\nsources here: metadata, gke, mine;"
    ):
        find("mien")
    for wrong in ("", ":", "\x1b[2J", "mine/../x"):
        with pytest.raises(UserError, match=r"^--hosts-from: there is no source of hosts "):
            find(wrong)


def test_a_name_of_podruns_own_is_not_taken(site: Path) -> None:
    install(site, entry="gke = {module}:find")
    with pytest.raises(UserError, match=r"^--hosts-from gke: TPU_WORKER_HOSTNAMES is not set"):
        find("gke")
    assert names() == ["metadata", "gke"]
    with pytest.raises(UserError, match=r"^--hosts-from gke: takes nothing after its name; leave ':pod-a' out$"):
        find("gke:pod-a")


def test_two_of_one_name(site: Path) -> None:
    install(site)
    install(site, package="other")
    with pytest.raises(
        UserError, match=r"mine: (my-inventory|other) 1\.2 and (my-inventory|other) 1\.2 both have .*uninstall"
    ):
        find("mine")


@pytest.mark.parametrize(
    ("source", "entry", "what"),
    [
        (
            "import nothing_of_this_name",
            "mine = {module}:find",
            "cannot be loaded: .*ModuleNotFoundError: No module named",
        ),
        ("def find(:", "mine = {module}:find", "cannot be loaded: .*SyntaxError"),
        (
            "raise SystemExit(3)",
            "mine = {module}:find",
            r"cannot be loaded: .*SystemExit: 3' \(my_inventory_\d+.py:1\)",
        ),
        (GOOD, "mine = {module}:fnid", r"cannot be loaded: [^()]*AttributeError[^()]*; tell"),
        (GOOD, "mine = {module}", "has failed: .*TypeError: 'module' object is not callable[^()]*; tell"),
        ("def find(): pass", "mine = {module}:find", r"has failed: .*TypeError: find\(\) takes 0 [^()]*; tell"),
        ("def find(name):\n    return 1 / 0", "mine = {module}:find", r"has failed: .*ZeroDivisionError.*\(my_.*:2\)"),
        (
            "def find(name): raise OSError('\\x1b[2J\\nb')",
            "mine = {module}:find",
            r"has failed: .*OSError: \\x1b\[2J",
        ),
        (
            "def find(name): pass",
            "mine = {module}:find",
            "has returned a wrong listing: None is not a Listing; return a",
        ),
    ],
)
def test_a_plugin_that_fails(site: Path, source: str, entry: str, what: str) -> None:
    """It and its package are named, with the line; there is no traceback."""
    install(site, source, entry)
    with pytest.raises(
        UserError, match=rf"^--hosts-from mine: the plug-in 'my_inventory_.*' of my-inventory 1\.2 {what}"
    ):
        find("mine")


def test_its_own_errors_go_through(site: Path) -> None:
    install(site, "from podrun.runtime.contract import *\ndef find(name): raise UnavailableError('the service sleeps')")
    with pytest.raises(UnavailableError, match=r"^the service sleeps$"):
        find("mine")


@pytest.mark.parametrize(
    ("listing", "what"),
    [
        ("Listing([Host('a', 'a')])", "hosts is .*give a tuple"),
        ("Listing(('a', 'b'))", "hosts is .*give a tuple"),
        ("Listing(())", "hosts has 0 entries; list 1 to 10000"),
        ("Listing((Host('a', 'a'),) * 10001)", "hosts has 10001 entries"),
        ("Listing((Host('a', 'a'),) * 2)", "two hosts have the name a"),
        ("Listing((Host('a b', 'a'),))", "name of a host is 'a b'"),
        ("Listing((Host('a', '-oProxyCommand=x'),))", "address of a host is .*-oProxyCommand"),
        ("Listing((Host('a', None),))", "address of a host is None"),
        ("Listing((Host('a', 'a', 'b:22'),))", "internal of a host is .*b:22"),
        ("Listing((Host('a', 'a'),), slots=0)", "slots is 0; give the number"),
        ("Listing((Host('a', 'a'),), slice='v2-8')", "slice is .*v2-8.*; give what .*parse_slice returns"),
        (
            "Listing((Host('a', 'a'),), slice=replace(parse_slice('v2-8'), hosts=2))",
            "slice 'v2-8' is not as podrun knows",
        ),
        ("Listing((Host('a', 'a'),), slice=parse_slice('v3-32'))", "1 host, but v3-32 has 4 hosts; give 4"),
        ("Listing((Host('a', 'a'),), transport='local')", "transport is .*local.*; give this_machine or ssh or slurm"),
        ("Listing((Host('a', 'a'),), is_queued=True)", "is_queued is only for a job that is submitted to a queue"),
        ("Listing((Host('a', 'a'),), transport=None)", "transport is None"),
        ("Listing((Host('a', 'a'),), ssh={'user': 'me'})", "ssh is .*; give a podrun.launcher.pod.pod.Ssh"),
        ("Listing((Host('a', 'a'),), ssh=Ssh(key='~/.ssh/k'))", "ssh.key is .*; give a Path"),
        ("Listing((Host('a', 'a'),), ssh=Ssh(host_keys='none'))", "ssh.host_keys is .*; give strict or accept-new"),
        ("Listing((Host('a', 'a'),), python='')", "python is .*; give the interpreter"),
    ],
)
def test_a_listing_that_is_no_pod(site: Path, listing: str, what: str) -> None:
    install(site, f"{GOOD}\nfrom dataclasses import replace\ndef find(name): return {listing}\n")
    with pytest.raises(
        UserError, match=f"^--hosts-from mine: the plug-in .* has returned a wrong listing: {what}"
    ) as raised:
        find("mine")
    assert len(str(raised.value)) < 500


def test_the_documentation(site: Path) -> None:
    """Its plug-in lists hosts, and passes the tests that it runs with pytest."""
    text = DOCS.read_text()
    entry = re.findall(r"```toml\n# pyproject.toml\n\[project.entry-points.\"podrun.inventories\"\]\n(.*?)\n```", text)
    files = dict(re.findall(r"```python\n# (\w*my_inventory\.py)\n(.*?)```", text, re.DOTALL))
    install(site, "", entry[0].replace('"', ""))
    for name, source in files.items():
        (site / name).write_text(source)
    assert [host.name for host in find("mine:pod-a").hosts] == ["pod-a-0", "pod-a-1"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_inventory.py"]
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=site, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr

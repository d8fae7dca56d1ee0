"""The agent tests whether an environment can be built, with a package index that answers and one that does not."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare import buildable, facts
from podrun.launcher.agent.prepare.buildable import why_not_buildable
from podrun.launcher.preflight.environment import check_environment

from ..preflight.pods import changed

PATH = {"PATH": "/nowhere", "HOME": "/nowhere"}  # without uv


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither uv nor settings of this machine's pip take part."""
    monkeypatch.setattr(buildable, "find_uv", lambda env: None)
    monkeypatch.setattr(buildable, "_PIP_CONFIG", ())


@pytest.fixture
def closed() -> Iterator[str]:
    """The URL of an index at whose port nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/simple"


@pytest.fixture
def open_index() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/simple"


def why(text: str = "jax==0.10.2\n", python: str = sys.executable, **env: str) -> str | None:
    return why_not_buildable(python, text, {**PATH, **env})


def test_an_index_that_cannot_be_reached(closed: str) -> None:
    """By the environment, by the requirements, and behind a proxy that is away."""
    for told in (
        why(PIP_INDEX_URL=closed),
        why(f"--index-url {closed}\njax\n"),
        why(f"-i {closed}\n# with a comment\njax\n"),
        why(f"--extra-index-url={closed}\njax\n", PIP_INDEX_URL=closed),
    ):
        assert told is not None and told.startswith(
            "the package index 127.0.0.1 cannot be reached: Connection refused; "
        )
        assert "`offline: true` in the pod file" in told and "`python:`" in told and "PIP_INDEX_URL" in told
    proxied = why(PIP_INDEX_URL="https://index.invalid/simple", https_proxy=closed)
    assert proxied is not None and proxied.startswith("the proxy 127.0.0.1 cannot be reached")
    unresolved = why(PIP_INDEX_URL="https://index.invalid/simple")
    assert unresolved is not None and unresolved.startswith("the package index index.invalid cannot be reached: ")


def test_an_index_that_can(open_index: str, closed: str) -> None:
    """One of several is enough."""
    assert why(PIP_INDEX_URL=open_index) is None
    assert why(f"--extra-index-url {open_index}\njax\n", PIP_INDEX_URL=closed) is None
    assert why(PIP_INDEX_URL=closed, PIP_EXTRA_INDEX_URL=open_index) is None


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("--no-index\n/wheels/jax.whl\n", "A", "b"),
        ("--find-links /wheels\njax\n", "A", "b"),
        ("/wheels/jax.whl\nhttps://example.org/a.whl\n", "A", "b"),
        ("# nothing\n\n", "A", "b"),
        *(("jax\n", name, "1") for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_OFFLINE")),
        ("jax\n", "PIP_INDEX_URL", "file:///mirror/simple"),
        ("jax\n", "PIP_INDEX_URL", "http://[broken"),
    ],
)
def test_what_needs_no_index_or_is_not_clear_is_not_judged(closed: str, text: str, name: str, value: str) -> None:
    assert why(text, **{"PIP_INDEX_URL": closed, name: value}) is None


def test_an_index_of_pips_settings(tmp_path: Path, closed: str) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {closed}\n")
    assert "127.0.0.1" in str(why(PIP_CONFIG_FILE=str(settings)))
    settings.write_text(f"[global]\nindex-url = {closed}\n[install]\nfind-links = /wheels\n")
    assert why(PIP_CONFIG_FILE=str(settings)) is None
    settings.write_bytes(b"\xff[broken")
    assert why(PIP_CONFIG_FILE=str(settings)) is None


def test_a_python_without_venv(tmp_path: Path, open_index: str) -> None:
    """Make an interpreter like that of Debian without the package python3-venv."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    told = why(python=str(python), PIP_INDEX_URL=open_index)
    assert told is not None and "it has no venv or no ensurepip; install uv, or Python's venv" in told


def test_check_names_the_hosts(tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod is not ready if a host would have to build its environment and cannot."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    text = "jax\njaxlib\nflax\noptax\norbax-checkpoint\nnumpy\npydantic\npyyaml\n"
    asked = {"python": str(tmp_path / "env/bin/python"), "python_before": sys.executable, "requirements": text}
    gathered = facts.gather({**asked, "env": {"PIP_INDEX_URL": closed}, "home": str(tmp_path)})["interpreter"]  # type: ignore[typeddict-item]
    pod, known = changed("cpu-2x1", {"a": {"interpreter": gathered}})
    (finding,) = check_environment(pod, known, text, program=True)
    assert (finding.hosts, finding.fatal, finding.about) == (("a",), True, "packages")
    assert finding.what.startswith("the environment cannot be built: the package index 127.0.0.1 cannot be reached")
    assert finding.remedy.startswith("this host does not reach the package index; write `offline: true`")
    assert os.listdir(tmp_path) == []

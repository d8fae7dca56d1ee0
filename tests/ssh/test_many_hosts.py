"""Many hosts at once, that all print as fast as they can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import make_sandbox
from ..hosts import LiteHosts
from .pod import PodSandbox

LINES = 10_000


@pytest.fixture
def many(_possible: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PodSandbox]:
    hosts = LiteHosts(request.param)
    pod = PodSandbox(make_sandbox(tmp_path).path, hosts)
    yield pod
    pod.close()
    hosts.close()


@pytest.mark.parametrize(
    "many", [pytest.param(20, marks=pytest.mark.long), pytest.param(64, marks=pytest.mark.nightly)], indirect=True
)
def test_every_line_once_and_in_order(many: PodSandbox) -> None:
    """Each host's 10 000 lines are in its log; the first host's are shown as they come."""
    assert isinstance(many.hosts, LiteHosts)
    option = many.write_pod(many.hosts.addresses)
    done = many.podrun(option, "--", "seq", "-f", "line %.0f", str(LINES))
    assert done.returncode == 0, done.stderr
    expected = "".join(f"line {i}\n" for i in range(1, LINES + 1))
    (run,) = (many.path / "home" / "runs").iterdir()
    logs = {path.stem: path for path in (run / "logs").glob("*.log")}
    assert set(logs) == set(many.hosts.addresses)
    assert [name for name, path in logs.items() if path.read_text() != expected] == []
    assert expected in done.stdout

"""Shared here: a server of buckets of each kind, and a workdir of the test's own on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...buckets import BUCKET, bucket_server


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the scheme, and the environment that leads to the server."""
    with bucket_server(request.param, tmp_path_factory.mktemp("server") / "log") as env:
        yield request.param, env


@pytest.fixture
def url(server: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in {**server[1], "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return f"{server[0]}://{BUCKET}/{tmp_path.name}"

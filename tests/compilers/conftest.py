"""The tests of this folder need the compilers of TPUs and GPUs."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def compilers() -> None:
    """Skip the test without the compilers; in CI it fails."""
    for package in ("libtpu", "jax_cuda13_plugin"):
        if find_spec(package) is None:
            reason = f"{package} is missing: make compilers"
            pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)

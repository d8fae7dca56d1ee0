"""Google's TPU service on this machine, for the real `gcloud`."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .gcloud import ZONE, node

PLACE = f"projects/my-project/locations/{ZONE}"


class _Server(ThreadingHTTPServer):
    queued: dict[str, Any]


class _Api(BaseHTTPRequestHandler):
    """The service, with the TPU VM `my-tpu` and the queued resources that were created."""

    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix(f"/v2/{PLACE}/")
        queued = self.server.queued
        known = {
            "nodes/my-tpu": node(),
            "nodes": {"nodes": [node()]},
            "queuedResources": {"queuedResources": list(queued.values())},
            **{f"queuedResources/{name}": row for name, row in queued.items()},
        }
        self._answer(known.get(path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        place, _, name = self.path.partition("queuedResourceId=")
        if not place.startswith(f"/v2/{PLACE}/"):
            self._answer(None)
            return
        self.server.queued[name] = {**body, "name": f"{PLACE}/queuedResources/{name}", "state": {"state": "ACTIVE"}}
        self._answer({"name": f"{PLACE}/operations/1", "done": True, "response": self.server.queued[name]})

    def do_DELETE(self) -> None:
        path, _, options = self.path.partition("?")
        gone = self.server.queued.pop(path.rpartition("/")[2], None) if "force=true" in options.lower() else None
        self._answer(gone and {"name": f"{PLACE}/operations/2", "done": False})

    def _answer(self, answer: Any) -> None:
        """Answer; None: there is no such thing."""
        error = {"error": {"code": 404, "message": f"Resource '{self.path}' was not found", "status": "NOT_FOUND"}}
        body = json.dumps(answer or error).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serve() -> Iterator[str]:
    """Serve, and yield the address."""
    with _Server(("127.0.0.1", 0), _Api) as server:
        server.queued = {}
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def use_real_gcloud(monkeypatch: pytest.MonkeyPatch, api: str, folder: Path) -> None:
    """Have the real gcloud ask the service at `api`, with a configuration in `folder`."""
    for name in [name for name in os.environ if name.startswith("CLOUDSDK_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    settings = {
        "CONFIG": str(folder / "gcloud"),
        "CORE_PROJECT": "my-project",
        "CORE_CHECK_GCE_METADATA": "false",
        "CORE_DISABLE_USAGE_REPORTING": "true",
        "COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "AUTH_DISABLE_CREDENTIALS": "true",
        "API_ENDPOINT_OVERRIDES_TPU": api,
        "API_ENDPOINT_OVERRIDES_COMPUTE": f"{api}compute/v1/",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"CLOUDSDK_{name}", value)
    monkeypatch.setenv("PATH", f"{Path(str(shutil.which('gcloud'))).parent}:/usr/bin:/bin")

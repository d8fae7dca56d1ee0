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

COMPUTE = "/compute/v1/"
PLACE = f"projects/my-project/locations/{ZONE}"


class _Server(ThreadingHTTPServer):
    queued: dict[str, Any]
    compute: dict[str, Any]
    """Resources of Compute Engine by path."""


class _Api(BaseHTTPRequestHandler):
    """The service, with the TPU VM `my-tpu` and the queued resources that were created."""

    server: _Server

    def do_GET(self) -> None:
        if self.path.startswith(COMPUTE):
            self._get_compute(self.path.removeprefix(COMPUTE).partition("?")[0])
            return
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
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        if self.path.startswith(COMPUTE):
            self._post_compute(self.path.removeprefix(COMPUTE).partition("?")[0], body)
            return
        place, _, name = self.path.partition("queuedResourceId=")
        if not place.startswith(f"/v2/{PLACE}/"):
            self._answer(None)
            return
        self.server.queued[name] = {**body, "name": f"{PLACE}/queuedResources/{name}", "state": {"state": "ACTIVE"}}
        self._answer({"name": f"{PLACE}/operations/1", "done": True, "response": self.server.queued[name]})

    # Compute Engine: https://docs.cloud.google.com/compute/docs/reference/rest/v1

    def _post_compute(self, path: str, body: Any) -> None:
        rows = self.server.compute
        if path.endswith("/wait"):
            self._answer(self._operation(path.partition("/operations/")[0]))
        elif path.endswith("/listManagedInstances"):
            group = rows.get(path.rpartition("/")[0])
            names = [f"{group['name']}-{n:04d}" for n in range(group["targetSize"])] if group else []
            rows = [{"name": name, "instanceStatus": "RUNNING", "currentAction": "NONE"} for name in names]
            self._answer({"managedInstances": rows} if group else None)
        else:
            link = f"{self._url}{path}/{body['name']}"
            zone = f"{self._url}projects/my-project/zones/{ZONE}"
            more = {"id": "4815162342108", "baseInstanceName": body["name"], "selfLink": link, "zone": zone}
            more["instanceGroup"] = link.replace("instanceGroupManagers", "instanceGroups")
            rows[f"{path}/{body['name']}"] = {**body, **more}
            self._answer(self._operation(f"{path}/{body['name']}"))

    def _get_compute(self, path: str) -> None:
        rows = self.server.compute
        if "/zones/" in path and f"/zones/{ZONE}" not in path:
            self._answer(None)
        elif "/operations/" in path:
            self._answer(self._operation(path.partition("/operations/")[0]))
        elif path.endswith(f"/zones/{ZONE}"):
            self._answer({"name": ZONE, "region": "us-central1", "status": "UP"})
        elif "/images/" in path:
            self._answer({"name": "image-1", "selfLink": f"{self._url}{path.rpartition('/family')[0]}/image-1"})
        elif path.endswith("/autoscalers"):
            self._answer({"items": [], "kind": "compute#autoscalerList"})
        elif path.endswith("/instances"):
            self._answer({"items": self._machines(), "kind": "compute#instanceList"})
        elif path.endswith("/instanceGroups"):
            managers = [row for row in rows.values() if "targetSize" in row]
            self._answer(
                {"items": [{"name": one["name"], "selfLink": one["instanceGroup"], "size": 1} for one in managers]}
            )
        elif path.endswith("/instanceGroupManagers"):
            self._answer(
                {"items": [row for key, row in rows.items() if key.startswith(f"{path}/")], "kind": "compute#list"}
            )
        else:
            self._answer(rows.get(path))

    def _machines(self) -> list[Any]:
        groups = [row for row in self.server.compute.values() if "targetSize" in row]
        return [
            {
                "id": str(100 + number),
                "name": f"{group['name']}-{number:04d}",
                "labels": {"podrun-tpu": group["name"]},
                "machineType": "zones/z/machineTypes/ct6e-standard-8t",
                "networkInterfaces": [{"networkIP": f"10.0.0.{number + 2}", "accessConfigs": [{"natIP": "34.1.2.3"}]}],
                "status": "RUNNING",
                "zone": f"{self._url}projects/my-project/zones/{ZONE}",
            }
            for group in groups
            for number in range(group["targetSize"])
        ]

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{COMPUTE}"

    def _operation(self, target: str) -> Any:
        """Return an operation that is done, about a resource, or about a zone or region."""
        words = target.split("/")
        kind = words[2] if words[2] in ("zones", "regions") else ""
        place = "/".join(words[:4]) if kind else "projects/my-project/global"
        return {
            "kind": "compute#operation",
            "name": "operation-1",
            "operationType": "insert",
            "status": "DONE",
            "selfLink": f"{self._url}{place}/operations/operation-1",
            "targetLink": f"{self._url}{target}",
            **({kind[:-1]: f"{self._url}{place}"} if kind else {}),
        }

    def do_DELETE(self) -> None:
        if self.path.startswith(COMPUTE):
            path = self.path.removeprefix(COMPUTE).partition("?")[0]
            self._answer(self._operation(path) if self.server.compute.pop(path, None) else None)
            return
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
        server.compute = {}
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

"""An executable `gcloud` that prints a recorded answer."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

ZONE = "us-central1-a"


def make_gcloud(folder: Path, answer: Any = None, *, out: str = "", err: str = "", code: int = 0) -> Path:
    """Write it to the folder and return its path. It prints `answer` as JSON, or `out`; `asked` has its arguments."""
    (folder / "out").write_text(json.dumps(answer, indent=2) if answer is not None else out)
    (folder / "err").write_text(err)
    here = shlex.quote(str(folder))
    script = (
        f'#!/bin/sh\necho "$@" >> {here}/asked\ncat >> {here}/asked\ncat {here}/out\ncat {here}/err >&2\nexit {code}\n'
    )
    return write_program(folder, script)


def write_program(folder: Path, script: str) -> Path:
    """Write a script that is called gcloud."""
    path = folder / "gcloud"
    path.write_text(script)
    path.chmod(0o755)
    return path


def node(hosts: int = 4, kind: str | None = "v3-32", external: bool = True, ipv6: bool = False, **fields: Any) -> Any:
    """Return a TPU VM as `gcloud compute tpus tpu-vm describe my-tpu --format=json` prints it; a field None is left out."""
    internal, outside = ("2001:db8::1:", "2600:1900::") if ipv6 else ("10.128.0.", "34.1.2.")
    endpoints = [
        {
            "ipAddress": f"{internal}{host + 2}",
            "port": 8470,
            "accessConfig": {"externalIp": f"{outside}{host + 2}"} if external else {},
        }
        for host in range(hosts)
    ]
    answer = {
        "acceleratorType": kind,
        "apiVersion": "V2",
        "createTime": "2026-01-31T10:30:00.123456789Z",
        "health": "HEALTHY",
        "id": "4815162342108",
        "name": f"projects/my-project/locations/{ZONE}/nodes/my-tpu",
        "networkConfig": {"enableExternalIps": True, "network": "projects/my-project/global/networks/default"},
        "networkEndpoints": endpoints,
        "runtimeVersion": "tpu-ubuntu2204-base",
        "schedulingConfig": {},
        "serviceAccount": {"email": "1234-compute@developer.gserviceaccount.com"},
        "shieldedInstanceConfig": {},
        "state": "READY",
        **fields,
    }
    return {key: value for key, value in answer.items() if value is not None}

"""Executables `gcloud`: one that prints a recorded answer, and one that is a service of queued resources."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.engines.tpu import provision

from .conftest import Sandbox

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


def first_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder whose gcloud is found first. podrun looks as often as it can."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(provision, "PAUSE", 0.01)
    return folder


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


COURSE = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
"""States of a queued resource whose machines are got at once."""


@cache
def start_service() -> str:
    """Start the process that answers for all services of these tests, and return its socket. It ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="gcloud-"))
    program = [sys.executable, "-SE", str(Path(__file__).with_name("gcloud_service.py")), str(folder / "socket")]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout

    starter = os.getpid()

    @atexit.register
    def end() -> None:
        if os.getpid() == starter:  # not a process that a test has forked
            process.communicate()
            shutil.rmtree(folder)

    assert process.stdout.readline() == b"ready\n"
    return str(folder / "socket")


class Service:
    """Google's TPU service, as an executable `gcloud` that keeps its state in a folder; see gcloud_service.py."""

    def __init__(self, folder: Path, endpoints: Sequence[str] = ("10.0.0.2",)) -> None:
        self.folder = folder
        program = [
            sys.executable,
            "-ISE",
            str(Path(__file__).with_name("gcloud_client.py")),
            start_service(),
            str(folder),
        ]
        write_program(folder, f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
        self.state = {
            "queued": {},
            "vms": {},
            "errors": {},
            "courses": [COURSE],
            "created": 0,
            "endpoints": [{"ipAddress": address, "port": 8470, "accessConfig": {}} for address in endpoints],
            "compute": {"templates": {}, "policies": {}, "groups": {}, "made": 0, "faults": {}},
        }

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        (self.folder / "state.json").write_text(json.dumps(state))

    def change(self, **parts: Any) -> None:
        """Replace parts of the state, while gcloud does not look."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.state = {**self.state, **parts}

    @property
    def compute(self) -> dict[str, Any]:
        """Return what there is of Compute Engine."""
        compute: dict[str, Any] = self.state["compute"]
        return compute

    def change_compute(self, **parts: Any) -> None:
        """Replace parts of the state of Compute Engine, while gcloud does not look."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.state = {**self.state, "compute": {**self.state["compute"], **parts}}

    @property
    def ledger(self) -> list[str]:
        """Return all that Google has: `groups us-central1-a/my-tpu` costs, templates and policies do not."""
        kinds = ("templates", "policies", "groups")
        return [*self.state["queued"], *(f"{kind} {key}" for kind in kinds for key in self.compute[kind])]

    def make(self, name: str = "my-tpu", state: Any = "ACTIVE", **fields: Any) -> None:
        """Make a queued resource for a v5litepod-16 that is in this state already; a field None is left out."""
        now = state if isinstance(state, dict) else {"state": state, "stateInitiator": "SERVICE"}
        node = {
            "acceleratorType": "v5litepod-16",
            "queuedResource": f"projects/1/locations/{ZONE}/queuedResources/{name}",
        }
        queued = {
            "createTime": "2026-01-31T10:30:00.123456789Z",
            "name": f"projects/my-project/locations/{ZONE}/queuedResources/{name}",
            "state": now,
            "tpu": {"nodeSpec": [{"node": node, "nodeId": name}]},
            "spot": {},
            "course": [],
            "id": "1",
            **fields,
        }
        kept = {key: value for key, value in queued.items() if value is not None}
        self.change(queued={**self.state["queued"], name: kept})

    @property
    def asked(self) -> list[str]:
        """Return what gcloud was asked to change."""
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if " create " in line or " delete " in line]

    @property
    def made(self) -> list[str]:
        """Return verb and kind of what Compute Engine was asked to change, such as `create group`."""
        kinds = {"instance-templates": "template", "resource-policies": "policy", "instance-groups": "group"}
        rows = [line.split() for line in self.asked if " tpus " not in line]
        return [f"{words[3 if words[1] == 'instance-groups' else 2]} {kinds[words[1]]}" for words in rows]


def interrupt_held(service: Service, sandbox: Sandbox, *words: str) -> subprocess.CompletedProcess[str]:
    """Run podrun, send it a SIGINT while a gcloud has the fault `hold`, and let that gcloud go on."""
    command, pipe = [*sandbox.command, *words], subprocess.PIPE
    with subprocess.Popen(command, cwd=sandbox.path, env=sandbox.env, stdout=pipe, stderr=pipe, text=True) as process:
        while not (service.folder / "held").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        (service.folder / "go").touch()
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, out, err)

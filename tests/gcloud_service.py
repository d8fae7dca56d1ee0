"""Answer as `gcloud compute tpus` does: Google's service as far as podrun asks it. A program, no part of pytest.

state.json in the folder of a service is what there is, asked is what was asked. A queued resource goes on by one state of
its course each time that it is described.

`python gcloud_service.py SOCKET` answers programs `gcloud` (gcloud_client.py) until its stdin is closed. Each is answered
by a process of its own, forked: one that had to import its modules would take three times as long.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import gcloud_compute  # type: ignore[import-not-found] # a program has its own folder first on the path

State = dict[str, Any]
PROJECT = "my-project"


def serve(path: str) -> None:
    """Answer every gcloud that connects to this socket, until stdin is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel collects the processes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    reply(connection)


def reply(connection: socket.socket) -> NoReturn:
    """Print one answer to the stdout and stderr of a gcloud, send it its exit code, and end this process."""
    code = 1
    try:
        sent, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        folder, *words = sent.decode().split("\0")
        code = main(Path(folder), words)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(str(code).encode())
        os._exit(0)


def main(folder: Path, words: list[str]) -> int:
    """Return the exit code of a gcloud with these arguments. HANGS: it is to wait until it is killed."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (folder / "asked").open("a") as asked:
            asked.write(" ".join(words) + "\n")
        state: State = json.loads((folder / "state.json").read_text())
        try:
            code = answer(state, words, folder)
        finally:
            (folder / "state.json.tmp").write_text(json.dumps(state))
            (folder / "state.json.tmp").replace(folder / "state.json")
    return code


def answer(state: State, words: list[str], folder: Path) -> int:
    """Do what is asked for, and print the answer."""
    if words[:2] == ["config", "get"]:
        print(PROJECT)
        return 0
    words = words[words[0] == "alpha" :]
    if words[1] != "tpus":
        return gcloud_compute.answer(state, words[1:], folder)
    group, verb = words[2:4]
    options = dict(word.lstrip("-").partition("=")[::2] for word in words[4:] if word.startswith("--"))
    name = next((word for word in words[4:] if not word.startswith("--")), "")
    if errors := state["errors"].get(f"{group} {verb}"):
        print(errors.pop(0), file=sys.stderr)
        return 1
    if verb == "list":
        rows = state["queued"] if group == "queued-resources" else vms(state)
        print(json.dumps([shown(row) for row in rows.values()]))
        return 0
    return globals()[f"{verb}_{group.replace('-', '_')}"](state, name, options)  # type: ignore[no-any-return]


def missing(group: str, name: str, zone: str) -> int:
    path = f"projects/{PROJECT}/locations/{zone}/{'queuedResources' if group == 'queued-resources' else 'nodes'}/{name}"
    print(f"ERROR: (gcloud.compute.tpus.{group}.describe) NOT_FOUND: Resource '{path}' was not found", file=sys.stderr)
    return 1


def create_queued_resources(state: State, name: str, options: dict[str, str]) -> int:
    if name in state["queued"]:
        print("ERROR: (gcloud.compute.tpus.queued-resources.create) ALREADY_EXISTS: it already exists", file=sys.stderr)
        return 1
    place = f"projects/{PROJECT}/locations/{options['zone']}"
    node = {
        "acceleratorType": options["accelerator-type"],
        "bootDisk": {},
        "networkConfig": {"enableExternalIps": True},
        "queuedResource": f"projects/1234/locations/{options['zone']}/queuedResources/{name}",
        "runtimeVersion": options["runtime-version"],
        "schedulingConfig": {"spot": True} if "spot" in options else {},
    }
    state["created"] += 1
    courses = state["courses"]
    state["queued"][name] = {
        "createTime": "2026-01-31T10:30:00.123456789Z",
        "name": f"{place}/queuedResources/{name}",
        "state": {"state": "CREATING", "stateInitiator": "USER"},
        "tpu": {
            "nodeSpec": [{"node": node, "nodeId": options["node-id"], "parent": f"projects/1234/locations/{place}"}]
        },
        **({"spot": {}} if "spot" in options else {}),
        **({"guaranteed": {"reserved": True}} if "reserved" in options else {}),
        **({"provisioningModel": options["provisioning-model"]} if "provisioning-model" in options else {}),
        "course": list(courses[min(state["created"], len(courses)) - 1]),
        "id": str(4815162342000 + state["created"]),
    }
    print(json.dumps({"name": f"{place}/operations/operation-1", "done": True}))
    return 0


def describe_queued_resources(state: State, name: str, options: dict[str, str]) -> int:
    queued = state["queued"].get(name)
    if queued is None:
        return missing("queued-resources", name, options["zone"])
    if queued["course"]:
        step = queued["course"].pop(0)
        if step is None:
            del state["queued"][name]
            return missing("queued-resources", name, options["zone"])
        queued["state"] = step if isinstance(step, dict) else {"state": step, "stateInitiator": "SERVICE"}
    print(json.dumps(shown(queued)))
    return 0


def delete_queued_resources(state: State, name: str, options: dict[str, str]) -> int:
    if name not in state["queued"]:
        return missing("queued-resources", name, options["zone"])
    state["queued"][name]["course"] = ["DELETING", None]
    return 0


def describe_tpu_vm(state: State, name: str, options: dict[str, str]) -> int:
    vm = vms(state).get(name)
    if vm is None:
        return missing("tpu-vm", name, options["zone"])
    if "left" in vm:  # so often it is there still
        vm["left"] -= 1
        if vm["left"] < 0:
            del state["vms"][name]
            return missing("tpu-vm", name, options["zone"])
    print(json.dumps(vm))
    return 0


def vms(state: State) -> State:
    """Return the TPU VMs: those of active queued resources, and those that were created without one."""
    rows = dict(state["vms"])
    for queued in state["queued"].values():
        if queued["state"]["state"] in ("ACTIVE", "SUSPENDED"):
            spec = queued["tpu"]["nodeSpec"][0]
            gone = queued["state"]["state"] != "ACTIVE"
            rows[spec["nodeId"]] = {
                **spec["node"],
                "createTime": queued["createTime"],
                "health": "HEALTHY",
                "id": queued["id"],
                "name": queued["name"].replace("queuedResources/" + last(queued["name"]), f"nodes/{spec['nodeId']}"),
                "networkEndpoints": state["endpoints"],
                "state": "PREEMPTED" if gone else queued.get("vm_state", "READY"),
            }
    return rows


def shown(row: State) -> State:
    return {key: value for key, value in row.items() if key not in ("course", "vm_state", "id")}


def last(path: str) -> str:
    return path.rpartition("/")[2]


if __name__ == "__main__":
    serve(sys.argv[1])

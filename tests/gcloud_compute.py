"""Answer as `gcloud compute` does about templates, workload policies, instance groups and machines, with a ledger.

Forms of the answers: https://docs.cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers (and its
listManagedInstances), .../instanceTemplates, .../resourcePolicies, .../instances. Rules of TPUs:
https://docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice,
https://docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode. Messages: as Compute Engine words them.

A group goes on by one step of its course each time that its machines are listed.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

State = dict[str, Any]
PROJECT = "my-project"
TEMPLATE_FLAGS = {
    "boot-disk-size", "boot-disk-type", "description", "disk", "image-family", "image-project",
    "instance-termination-action", "labels", "machine-type", "maintenance-policy", "max-run-duration", "metadata",
    "network", "no-address", "provisioning-model", "request-valid-for-duration", "reservation", "reservation-affinity",
    "scopes", "service-account", "shielded-secure-boot", "subnet", "tags",
}  # fmt: skip
GROUP_FLAGS = {
    "default-action-on-vm-failure", "description", "list-managed-instances-results", "size",
    "target-size-policy-mode", "template", "workload-policy",
}  # fmt: skip
POLICY_FLAGS = {"accelerator-topology", "description", "type"}
FLAGS = {"instance-templates": TEMPLATE_FLAGS, "resource-policies": POLICY_FLAGS, "managed": GROUP_FLAGS}
SHARED = {"filter", "format", "project", "quiet", "region", "zone", "zones"}
KINDS = {"instance-templates": "templates", "resource-policies": "policies", "managed": "groups"}
PATHS = {
    "templates": "global/instanceTemplates/{name}",
    "policies": "regions/{region}/resourcePolicies/{name}",
    "groups": "zones/{zone}/instanceGroupManagers/{name}",
}
HANGS = -1
"""Google has done it, but gcloud never ends."""
STEPS = {
    "PENDING": ("", "CREATING", ""),
    "STAGING": ("STAGING", "CREATING", ""),
    "RUNNING": ("RUNNING", "NONE", ""),
    "TERMINATED": ("TERMINATED", "NONE", ""),
    "RECREATING": ("", "RECREATING", ""),
    "REPAIRING": ("REPAIRING", "NONE", ""),
    "DELETING": ("STOPPING", "DELETING", ""),
}


def fail(command: str, *lines: str) -> int:
    print(f"ERROR: (gcloud.compute.{command}) Could not fetch resource:", file=sys.stderr)
    for line in lines:
        print(f" - {line}", file=sys.stderr)
    return 1


def answer(state: State, words: list[str], folder: Path) -> int:
    """Do what is asked for, and print the answer. `words` begin after `compute`."""
    state = state.setdefault("compute", {"templates": {}, "policies": {}, "groups": {}, "made": 0})
    names = [word for word in words if not word.startswith("--")]
    options = dict(word.lstrip("-").partition("=")[::2] for word in words if word.startswith("--"))
    group = names[1] if names[0] == "instance-groups" else names[0]
    rest = names[2:] if names[0] == "instance-groups" else names[1:]
    verb, name = rest[0], rest[-1]
    command = ".".join(["instance-groups", "managed", verb] if group == "managed" else [group, verb])
    if unknown := set(options) - SHARED - FLAGS.get(group, set()):
        flag = sorted(unknown)[0]
        print(f"ERROR: (gcloud.compute.{command}) unrecognized arguments: --{flag}", file=sys.stderr)
        return 2
    faults = state.setdefault("faults", {}).get(f"{group} {verb}", [])
    fault = faults.pop(0) if faults else ""
    if fault.startswith("ERROR"):
        print(fault, file=sys.stderr)
        return 1
    if fault == "hold":  # until the test lets it go on
        (folder / "held").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
    if group == "instances":
        base = {"zones": options["zone"], "filter": f"name~^{name.rpartition('-')[0]}-"} if verb == "describe" else {}
        rows = list_vms(state, {**options, **base})
        if "metadata" not in options["format"]:
            rows = [{key: value for key, value in row.items() if key != "metadata"} for row in rows]
        print(json.dumps(rows if verb == "list" else next(row for row in rows if row["name"] == name)))
        return 0
    kind = KINDS[group]
    place = {"groups": "zone", "policies": "region"}.get(
        kind, ""
    )  # a template is global, its --region is the subnetwork's
    key = f"{options.get(place, '')}/{name}"
    path = f"projects/{PROJECT}/" + PATHS[kind].format(
        name=name, region=options.get("region", ""), zone=options.get("zone", "")
    )
    if verb == "list":
        rows = [shown(row) for row in state[kind].values() if row["zone"] == options["zones"]]
        print(json.dumps([row for row in rows if row["description"].startswith("podrun:")]))
        return 0
    if verb == "create":
        code = create(state, kind, key, name, path, command, options)
    elif verb == "describe" and kind == "groups" and state.get("late", [""])[0] == key and state["looks"]:
        state["looks"] -= 1
        if not state["looks"]:
            state[kind][key] = state.pop("late")[1]
        return fail(command, f"The resource '{path}' was not found")
    elif key not in state[kind]:
        return fail(command, f"The resource '{path}' was not found")
    elif verb == "delete":
        code = delete(state, kind, key, path, command)
    elif verb == "list-instances":
        print(json.dumps(list_machines(state[kind][key])))
        return 0
    else:
        text = json.dumps(shown(state[kind][key]), indent=2)
        print("WARNING: a line of a wrapper\n" + text if fault == "warns" else text[:40] if fault == "cut" else text)
        return 0
    if fault == "late":  # Google does it, but only after it has been asked for twice
        state["late"] = [key, state[kind].pop(key)]
        state["looks"] = 2
    if fault in ("dies", "late"):  # after Google has done it
        print("ERROR: gcloud crashed (ConnectionError): connection reset", file=sys.stderr)
        return 1
    return HANGS if fault == "hangs" else code


def create(state: State, kind: str, key: str, name: str, path: str, command: str, options: dict[str, str]) -> int:
    if key in state[kind]:
        return fail(command, f"The resource '{path}' already exists")
    row: State = {"name": name, "description": options.get("description", ""), "options": options}
    if kind == "templates" and options.get("provisioning-model") == "FLEX_START" and "max-run-duration" not in options:
        return fail(command, "Invalid value for field 'scheduling.maxRunDuration'")
    if kind == "groups":
        template = state["templates"].get(f"/{options['template']}")
        if template is None:
            return fail(
                command,
                f"The resource 'projects/{PROJECT}/global/instanceTemplates/{options['template']}' was not found",
            )
        chips = int(template["options"]["machine-type"].rpartition("-")[2][:-1]) * int(options["size"])
        policy = options.get("workload-policy")
        topology = ""
        if policy:
            found = state["policies"].get(f"{policy.split('/')[3]}/{policy.rpartition('/')[2]}")
            if found is None:
                return fail(command, f"The resource '{policy}' was not found")
            topology = found["options"]["accelerator-topology"]
            if math.prod(int(n) for n in topology.split("x")) != chips:
                return fail(command, f"Unsupported TPU configuration: {chips} chips do not form {topology}")
            if options.get("target-size-policy-mode") != "bulk":
                return fail(command, "MIGs with TPU accelerator topology require BULK mode in target size policy")
        flex = template["options"].get("provisioning-model") == "FLEX_START"
        if flex and options.get("default-action-on-vm-failure") != "do-nothing":
            return fail(command, "Invalid value for field 'instanceLifecyclePolicy': flex-start needs DO_NOTHING")
        state["made"] += 1
        courses = state.get("courses", [["PENDING", "STAGING", "RUNNING"]])
        row |= {
            "zone": options["zone"],
            "size": int(options["size"]),
            "topology": topology,
            "template": template["options"],
            "repairs": options.get("default-action-on-vm-failure") != "do-nothing",
            "course": list(
                state.get("by_zone", {}).get(options["zone"]) or courses[min(state["made"], len(courses)) - 1]
            ),
            "now": "PENDING",
            "number": state["made"],
        }
    state[kind][key] = row
    state["most"] = max(state.get("most", 0), len(state["groups"]))  # groups that there were at one time
    print(json.dumps([{"name": name}]))
    return 0


def delete(state: State, kind: str, key: str, path: str, command: str) -> int:
    for group in state["groups"].values():
        part = f"{group['name']}-{group['zone']}"
        if (kind, key) in (("templates", f"/{part}"), ("policies", f"{group['zone'].rpartition('-')[0]}/{part}")):
            user = f"projects/{PROJECT}/zones/{group['zone']}/instanceGroupManagers/{group['name']}"
            return fail(command, f"The {kind[:-1]} resource '{path}' is already being used by '{user}'")
    del state[kind][key]
    return 0


def shown(row: State) -> State:
    """Return a group as `describe` and `list` print it; of the others only what podrun reads."""
    if "size" not in row:
        return {"name": row["name"], "description": row["description"], "kind": "compute#resource"}
    applied = [{"acceleratorTopology": row["topology"], "state": "ACTIVE"}] if row["topology"] else []
    errors = [error.partition(": ") for _, _, error in steps(row) if error]
    bulk: State = {"inProgress": row["now"] != "RUNNING"}
    if errors:
        bulk["lastProgressCheck"] = {"error": {"errors": [{"code": e[0], "message": e[2]} for e in errors]}}
    return {
        "baseInstanceName": row["name"],
        "creationTimestamp": "2026-01-31T10:30:00.123-08:00",
        "currentActions": {},
        "description": row["description"],
        "id": str(7000 + row["number"]),
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR" if row["repairs"] else "DO_NOTHING"},
        "kind": "compute#instanceGroupManager",
        "name": row["name"],
        "status": {
            "appliedAcceleratorTopologies": applied,
            "isStable": row["now"] in ("RUNNING", "ENDED"),
            **({"bulkInstanceOperation": bulk} if applied else {}),
        },
        "targetSize": row["size"],
        "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{row['zone']}",
    }


def steps(row: State) -> list[tuple[str, str, str]]:
    """Return (state, action, error) of each machine now. A step may be a list with one step for each machine."""
    now = row["now"] if isinstance(row["now"], list) else [] if row["now"] == "ENDED" else [row["now"]] * row["size"]
    return [STEPS.get(one, ("", "CREATING", one)) for one in now if one]


def list_machines(row: State) -> list[State]:
    if row["course"]:
        row["now"] = row["course"].pop(0)
    rows = []
    for number, (status, action, error) in enumerate(steps(row)):
        code, _, message = error.partition(": ")
        rows.append(
            {
                "currentAction": action,
                "instance": f"https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/{row['name']}-{number:04d}",
                "name": f"{row['name']}-{number:04d}",
                **({"instanceStatus": status} if status else {}),
                **(
                    {"lastAttempt": {"errors": {"errors": [{"code": code, "message": message}]}}}
                    if error and not row["topology"]
                    else {}
                ),
                "version": {},
            }
        )
    return rows


def list_vms(state: State, options: dict[str, str]) -> list[State]:
    rows = []
    for group in state["groups"].values():
        if group["zone"] != options["zones"]:
            continue
        if options["filter"].startswith("name~") and not options["filter"].startswith(f"name~^{group['name']}-"):
            continue
        addresses = state.get("addresses") or [f"10.0.0.{n + 2}" for n in range(group["size"])]
        order = state.get("order") or list(range(group["size"]))
        names = [f"{group['name']}-{number:04d}" for number in order]
        ends = state.get("ends") if "max-run-duration" in group["template"] else None
        for number, (status, _, _) in enumerate(steps(group)):
            external = [{"name": "external-nat", "natIP": f"34.1.2.{number + 2}"}]
            inside = "no-address" in group["template"] or "addresses" in state
            rows.append(
                {
                    "id": str(group["number"] * 1000 + number),
                    "labels": dict(pair.split("=") for pair in group["template"].get("labels", "").split(",") if pair),
                    "machineType": f"https://www.googleapis.com/x/machineTypes/{group['template']['machine-type']}",
                    "metadata": {"items": [{"key": "worker-network-endpoints", "value": ",".join(names)}]},
                    "name": f"{group['name']}-{number:04d}",
                    "networkInterfaces": [
                        {"networkIP": addresses[number], "accessConfigs": [] if inside else external, "name": "nic0"}
                    ],
                    "status": status,
                    **({"resourceStatus": {"scheduling": {"terminationTimestamp": ends}}} if ends else {}),
                }
            )
    return rows

"""Rules about accelerators: a host has as many as the slice says, and none is in use. PURE."""

from __future__ import annotations

from podrun.runtime.wording import counted, first_names

from ..agent.base.from_agent import DeviceFiles, Facts, Holder, LockFile
from ..pod.pod import Pod
from .base import FactsByHost, Finding, group, is_known, judge_each

_MONITORS = {
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "dcgmi",
    "nvidia-smi",
    "nvtop",
    "nvitop",
    "gpustat",
}
_OTHERS_NAMED = 3  # most processes that are described; further ones are counted
_UNSURE = ("tpu7x",)  # generations whose device files are not confirmed


def check_devices(pod: Pod, facts: FactsByHost) -> list[Finding]:
    if pod.platform == "cpu":
        return []
    return [
        *judge_each(facts, "devices", lambda nodes: _count(pod, nodes), about="devices"),
        *_holders(pod, facts),
        *_lock(pod, facts),
    ]


def device_files(pod: Pod, nodes: DeviceFiles) -> list[str]:
    """Return the device files of the pod's platform."""
    if pod.platform == "cuda":
        return nodes["nvidia"]
    return max(nodes["accel"], nodes["vfio"], key=len)


def expected_device_files(pod: Pod) -> int:
    """Return the number of device files that a host should have."""
    return pod.slice.devices_per_host if pod.platform == "cuda" else pod.slice.chips // pod.slice.hosts


def _count(pod: Pod, nodes: DeviceFiles) -> tuple[str, str, bool] | None:
    count, expected_count = len(device_files(pod, nodes)), expected_device_files(pod)
    what, where = ("GPU", "/dev/nvidia*") if pod.platform == "cuda" else ("TPU chip", "/dev/accel*, /dev/vfio/*")
    if count == expected_count:
        return None
    present = counted(count, what) if count else f"no {what}"
    what_is_wrong = f"{present} ({where}), but {pod.slice.name} has {expected_count} on every host"
    if count > expected_count:
        return what_is_wrong, "the others stay idle; choose a slice that uses them with --slice, or ignore this", False
    remedy = "check that these are the slice's hosts, and that a container, if this is one, has access to the devices"
    return what_is_wrong, remedy, not pod.slice.name.startswith(_UNSURE)


def _holders(pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Return findings about processes that use the devices. Hosts with the same users and commands share one."""
    held: dict[str, tuple[tuple[str, str], ...]] = {}
    for host, f in facts.items():
        if is_known(f, "holders") and (users := _users(pod, f)):
            held[host] = tuple((p["user"], p["command"]) for p in users)
    findings = []
    for _, hosts in group(held):
        first = facts[hosts[0]]
        text = _describe(_users(pod, first), first["clock"]["answered"], hosts)
        pids = " ".join(str(p["pid"]) for p in _users(pod, first))
        remedy = f"wait for it, or end it there (`kill {pids}`; a run of podrun's: `podrun stop`)"
        if len(hosts) > 1:
            remedy = "wait for it, or end it on each host (a run of podrun's: `podrun stop`)"
        findings.append(Finding(hosts, text, remedy, pod.platform == "tpu", "in use"))
    return findings


def _users(pod: Pod, facts: Facts) -> list[Holder]:
    nodes = set(device_files(pod, facts["devices"])) if is_known(facts, "devices") else set()
    return [
        p
        for p in facts["holders"]["processes"]
        if nodes & set(p["files"]) and p["command"].split(" ")[0].rpartition("/")[2] not in _MONITORS
    ]


def _describe(users: list[Holder], now: float, hosts: tuple[str, ...]) -> str:
    on = f" on {hosts[0]}" if len(hosts) > 1 else ""
    texts = [
        f"{p['command']} (pid {p['pid']}{on}, user {p['user']}, for {format_age(now - p['since'])})" for p in users
    ]
    return f"the devices are in use: {first_names(texts, _OTHERS_NAMED)}"


def format_age(seconds: float) -> str:
    """Return an age such as `40 s`, `12 min`, `3 h` or `2 days`."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds / unit))} {name}"
    return f"{int(seconds / 86400)} days"


def _lock(pod: Pod, facts: FactsByHost) -> list[Finding]:
    if pod.platform != "tpu":
        return []
    free = {
        h: f for h, f in facts.items() if not (is_known(f, "holders") and _users(pod, f))
    }  # otherwise already reported
    return judge_each(free, "lock_file", _judge_lock, about="in use")


def _judge_lock(lock: LockFile | None) -> tuple[str, str, bool] | None:
    if lock is None:
        return None
    path, owner = lock["path"], lock["owner"]
    if lock["held"]:
        return (
            f"a process has libtpu's lock file {path} (of user {owner}): the TPU is in use",
            f"find it with `sudo lsof {path}`, and wait for it or end it",
            True,
        )
    if not lock["writable"]:
        return f"{path} of user {owner} is left over, and blocks the TPU for you", f"remove it: `sudo rm {path}`", True
    return (
        f"{path} of user {owner} is left over",
        f"remove it if libtpu says that the TPU is in use: `rm {path}`",
        False,
    )

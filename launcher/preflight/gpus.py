"""Rules about GPUs from nvidia-smi: number, model, memory in use, errors, and driver. PURE."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from podrun.runtime.wording import first_names, in_bytes

from ..agent.base.from_agent import Facts, Gpu, Gpus, GpuUser
from ..agent.base.protocol import MISSING
from ..pod.gpu_slices import declared_model
from ..pod.pod import Pod
from ..rundir.host_history import HostFailureKind
from .base import FactsByHost, Finding, group, is_known, judge_each, minority_findings, set_variable

DRIVERS = {"jax-cuda13-plugin": 580, "jax-cuda12-plugin": 525}
"""Minimum driver version for each plug-in. Source: https://docs.jax.dev/en/latest/installation.html#nvidia-gpu"""
PREALLOCATED = 0.75
"""Fraction of GPU memory that JAX allocates at its start.

Source: https://docs.jax.dev/en/latest/gpu_memory_allocation.html
"""
_USERS_NAMED = 3

Verdict = tuple[str, str, bool] | None


def check_gpus(pod: Pod, facts: FactsByHost) -> list[Finding]:
    if pod.platform != "cuda":
        return []
    with_driver = {host: f for host, f in facts.items() if not is_known(f, "driver") or f["driver"]}
    return [
        *_unusable(pod, with_driver),
        *_models(pod, facts),
        *_declared(pod, facts),
        *_users(facts),
        *judge_each(facts, "gpus", partial(_judge_free, pod), about="GPU memory"),
        *judge_each(facts, "gpus", _judge_errors, about="ECC", speaks_against=HostFailureKind.ECC),
        *minority_findings(
            "ECC", _values(facts, ecc_text), "set the same mode: `nvidia-smi -e 1`", fatal=False, about="ECC"
        ),
        *_old_drivers(facts),
    ]


def _unusable(pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Return findings about GPUs that nvidia-smi does not list. One that only answers late may be on a busy host."""
    judge = partial(_judge_list, pod.slice.devices_per_host)
    findings = judge_each(facts, "gpus", judge, about="devices")
    return [
        finding._replace(speaks_against=HostFailureKind.HARDWARE) if finding.fatal else finding for finding in findings
    ]


def rows(facts: Facts) -> list[Gpu]:
    """Return the GPUs that nvidia-smi lists on a host; empty if unknown."""
    return list(facts["gpus"]["rows"]) if is_known(facts, "gpus") and facts["gpus"] else []


def models(facts: Facts) -> str:
    """Return the distinct GPU models of a host as text; empty if unknown."""
    return ", ".join(dict.fromkeys(row["name"] for row in rows(facts)))


def least_free(facts: Facts) -> int | None:
    """Return the least free memory of any GPU of the host, in bytes; None if unknown."""
    return min((row["free"] for row in rows(facts) if row["free"] is not None), default=None)


def ecc_text(facts: Facts) -> str:
    """Return the ECC mode: `on`, `off`, both if the GPUs differ, or an empty text if they have no ECC."""
    words = {"Enabled": "on", "Disabled": "off"}
    return ", ".join(dict.fromkeys(words[row["ecc"]] for row in rows(facts) if row["ecc"] in words))


def _values(facts: FactsByHost, value: Callable[[Facts], str]) -> dict[str, str]:
    return {host: text for host, f in facts.items() if (text := value(f))}


def _judge_list(expected: int, gpus: Gpus | None) -> Verdict:
    if gpus is None:
        return None
    count, why = len(gpus["rows"]), gpus["why"]
    if gpus["late"]:
        remedy = "run `nvidia-smi` and `sudo dmesg | grep -i xid` there: a GPU that hangs needs a restart of the host"
        return f"nvidia-smi: {why}", remedy, False
    if why is None:
        return None  # the rule about device files reports it
    remedy = "run `nvidia-smi` and `sudo dmesg | grep -i xid` there; restart the host, or leave it out"
    some = f"{count} of {expected} GPUs can be used" if count else "no GPU can be used"
    return f"nvidia-smi: {why}" if count >= expected else f"{some}; nvidia-smi: {why}", remedy, count < expected


def _models(pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Return findings about different GPU models: a program is compiled for one, and CUDA may use any GPU of several."""
    listed = {host: f for host, f in facts.items() if models(f)}
    exact = all(len(rows(f)) <= pod.slice.devices_per_host for f in listed.values())
    mixed = tuple(host for host, f in listed.items() if "," in models(f))
    by_host = "" if pod.traits.files_are_here else "by `hosts` of a pod file, or "
    remedy = f"exclude the others: {by_host}{set_variable(pod, 'CUDA_VISIBLE_DEVICES')}"
    what = f"GPUs of several models: {models(listed[mixed[0]])}" if mixed else ""
    same = {host: models(f) for host, f in listed.items() if host not in mixed}
    return [
        *([Finding(mixed, what, remedy, exact, "devices")] if mixed else ()),
        *minority_findings("GPU model", same, remedy, fatal=exact, about="devices"),
    ]


def _declared(pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Return findings about GPU models that differ from the model in the slice's name."""
    declared = declared_model(pod.slice.name)
    if declared is None:
        return []
    # whole words only: an L40S is not an L4, and a GB200 not a B200
    is_declared = re.compile(rf"\b{declared}\b", re.IGNORECASE)
    other = {
        host: f"{pod.slice.name} has {declared} GPUs, but this host has {models(f)}"
        for host, f in facts.items()
        if models(f) and not is_declared.search(models(f))
    }
    remedy = f"give the slice by its shape, as in gpu-{pod.slice.topology}, or hosts with {declared}"
    return [Finding(hosts, what, remedy, True, "devices") for what, hosts in group(other)]


def _judge_free(pod: Pod, gpus: Gpus | None) -> Verdict:
    if gpus is None:
        return None
    texts = [
        f"GPU {row['index']}: {in_bytes(free)} of {in_bytes(memory)} free"
        for row in gpus["rows"]
        if (memory := row["memory"]) and (free := row["free"]) is not None and free < PREALLOCATED * memory
    ]
    if not texts:
        return None
    remedy = (
        "JAX allocates 75 % of each at its start: see with `nvidia-smi` who uses them and wait for that, "
        f"or {set_variable(pod, 'XLA_PYTHON_CLIENT_MEM_FRACTION')} to a smaller part, such as 0.5"
    )
    return ", ".join(texts), remedy, False


def _users(facts: FactsByHost) -> list[Finding]:
    """Return findings about processes, such as those of other users, that the rules in `devices` do not report."""
    unseen = {}
    for host, f in facts.items():
        seen = {p["pid"] for p in f["holders"]["processes"]} if is_known(f, "holders") else set()
        users = f["gpus"]["users"] if is_known(f, "gpus") and f["gpus"] else []
        if others := [user for user in users if user["pid"] not in seen]:
            unseen[host] = f"the GPUs are in use: {first_names([*map(_describe, others)], _USERS_NAMED)}"
    remedy = "wait for it, or ask that user to end it"
    return [Finding(hosts, what, remedy, False, "in use") for what, hosts in group(unseen)]


def _describe(user: GpuUser) -> str:
    owner = f", user {user['user']}" if user["user"] else ""
    return f"{user['command']} (pid {user['pid']}{owner}, GPU {user['gpu']})"


def _judge_errors(gpus: Gpus | None) -> Verdict:
    bad = [row for row in gpus["rows"] if row["errors"]] if gpus else []
    if not bad:
        return None
    texts = [f"GPU {row['index']}: {row['errors']}" for row in bad]
    remedy = (
        "see `nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER` there; a reset (`nvidia-smi -r`) or a restart retires bad "
        "memory; replace a GPU on which the errors return"
    )
    return f"uncorrected ECC errors since the driver was loaded: {', '.join(texts)}", remedy, False


def _old_drivers(facts: FactsByHost) -> list[Finding]:
    """Return findings about drivers that are too old for the plug-in of the workers' interpreter."""
    remedy = "install a newer driver there, or the plug-in of an older CUDA: jax[cuda12]"
    findings = []
    for plugin, least in DRIVERS.items():
        old: dict[str, list[str]] = {}
        for host, f in facts.items():
            if not is_known(f, "interpreter") or not is_known(f, "driver"):
                continue
            driver, installed = f["driver"] or "", f["interpreter"]["packages"] or {}
            major = re.match(r"\d+", driver)
            if major and int(major[0]) < least and installed.get(plugin, MISSING) != MISSING:
                old.setdefault(driver, []).append(host)
        findings += [
            Finding(
                tuple(hosts),
                f"NVIDIA driver {driver} is too old for {plugin}, which needs {least}",
                remedy,
                True,
                "driver",
            )
            for driver, hosts in old.items()
        ]
    return findings

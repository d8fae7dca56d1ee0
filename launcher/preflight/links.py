"""Rules about links between GPUs: NCCL finds its interface, and no host is slower than the others. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..agent.base.from_agent import Facts, Links
from ..agent.base.protocol import IFNAME
from ..pod.pod import Pod
from .base import FactsByHost, Finding, group, is_known, minority_findings, set_variable

_NAMED = 8  # most interfaces that are named


def check_links(pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Return all findings; none for a pod with fewer than two GPUs."""
    if pod.platform != "cuda" or pod.slice.devices == 1:
        return []
    known = {host: f["links"] for host, f in facts.items() if is_known(f, "links") and f["links"]}
    return [
        *_without_interface(pod, known),
        *minority_findings(
            "network",
            {host: text for host, links in known.items() if (text := speed_text(links))},
            "see `ip -br link` there: another card than on the other hosts, or a link at reduced speed? "
            f"{IFNAME} under `env:` selects the card for NCCL, `internal:` of the host its address for podrun",
            fatal=False,
            about="network",
        ),
        *minority_findings(
            "InfiniBand",
            {host: ports_text(links) for host, links in known.items()},
            "see `ibstat` there: a cable, a switch, or the subnet manager",
            fatal=False,
            about="network",
        ),
        *_inactive_nvlinks(known),
    ]


def selected(names: Sequence[str], chosen: str) -> list[str]:
    """Return the interfaces that NCCL selects among `names`.

    `chosen` lists prefixes of names. After `=` it lists whole names, and after `^` what to exclude.
    Source: NCCL_SOCKET_IFNAME in https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    excludes, exact = chosen.startswith("^"), chosen.lstrip("^").startswith("=")
    words = [word for word in chosen.lstrip("^").lstrip("=").split(",") if word]
    return [
        name for name in names if any(name == word if exact else name.startswith(word) for word in words) != excludes
    ]


def speed_text(links: Links) -> str:
    """Return the speed of the interface that the other hosts use; empty if unknown."""
    speed = next((row["speed"] for row in links["interfaces"] if row["name"] == links["used"]), None)
    return "" if speed is None else f"of {speed / 1000:g} Gb/s"


def ports_text(links: Links) -> str:
    """Return the number of active InfiniBand ports of each rate."""
    active = [row["rate"] or "unknown rate" for row in links["infiniband"] if row["state"] == "ACTIVE"]
    counts = [f"{active.count(rate)} of {rate}" for rate in dict.fromkeys(active)]
    return f"active ports: {', '.join(counts) or 'none'}"


def links_text(facts: Facts) -> str:
    """Return the links of a host and between its GPUs as text; empty if unknown."""
    if not is_known(facts, "links") or not facts["links"]:
        return ""
    links = facts["links"]
    parts = [f"{links['used']} {speed_text(links)}".strip()] if links["used"] else []
    parts += [f"InfiniBand {ports_text(links)}"] if links["infiniband"] else []
    counts = sorted({row["active"] for row in links["nvlink"]})
    parts += [f"NVLink {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} links per GPU"] if counts else []
    return "; ".join(parts)


def _without_interface(pod: Pod, known: Mapping[str, Links]) -> list[Finding]:
    """Return findings about hosts on which NCCL would fail at its start because it finds no interface."""
    wrong = {}
    for host, links in known.items():
        names = [row["name"] for row in links["interfaces"]]
        chosen = links["chosen"]
        # A pattern such as `eth{local_rank}` is another name in each process.
        if chosen and "{" not in chosen and names and not selected(names, chosen):
            more = ", ..." if len(names) > _NAMED else ""
            wrong[host] = f"{IFNAME}={chosen} matches no network interface: there are {', '.join(names[:_NAMED])}{more}"
    remedy = f"{set_variable(pod, IFNAME)} to the prefix of an interface of every host, or leave {IFNAME} out"
    return [Finding(hosts, what, remedy, True, "network") for what, hosts in group(wrong)]


def _inactive_nvlinks(known: Mapping[str, Links]) -> list[Finding]:
    most = max((row["active"] for links in known.values() for row in links["nvlink"]), default=0)
    few = {
        host: ", ".join(f"GPU {row['gpu']} has {row['active']}" for row in rows)
        for host, links in known.items()
        if (rows := [row for row in links["nvlink"] if row["active"] < most])
    }
    remedy = "see `nvidia-smi nvlink --status` and `nvidia-smi topo -m` there; the fabric manager may not run"
    return [
        Finding(hosts, f"NVLink: other GPUs of the pod have {most} active links, {what}", remedy, False, "network")
        for what, hosts in group(few)
    ]

"""Where and when Kubernetes runs the pods: spot nodes, tolerations, queue, priority, and who they are. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from podrun.runtime.contract import UserError

SPOT = "cloud.google.com/gke-spot"
"""Label and taint of GKE's spot nodes: https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms."""
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION = re.compile(
    r"(?P<key>[A-Za-z0-9]([A-Za-z0-9._/-]{0,250}[A-Za-z0-9])?)(=(?P<value>[A-Za-z0-9._-]{0,63}))?(:(?P<effect>\w+))?"
)
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Scheduling:
    """Options of scheduling. None leaves the choice to the cluster."""

    spot: bool = False
    """Only on spot nodes."""
    tolerations: tuple[dict[str, str], ...] = ()
    queue: str | None = None
    """Kueue's LocalQueue."""
    priority: str | None = None
    """Kubernetes' PriorityClass."""
    service_account: str | None = None
    ttl: int | None = None
    """Seconds after its end after which the JobSet is deleted."""

    def problems(self) -> Iterator[str]:
        """Yield a message for each name that is none of Kubernetes' objects."""
        names = {"--queue": self.queue, "--priority": self.priority, "--service-account": self.service_account}
        for option, name in names.items():
            if name is not None and not _OBJECT.fullmatch(name):
                kind = {"--queue": "queues", "--priority": "priorityclasses"}.get(option, "serviceaccounts")
                yield f"{option} {name!r} is not a valid Kubernetes name; `kubectl get {kind}` lists those of the cluster"


def parse_tolerations(texts: Sequence[str]) -> tuple[dict[str, str], ...]:
    """Parse the values of `--toleration`: KEY[=VALUE][:EFFECT]. Raises UserError."""
    return tuple(map(_parse, texts))


def _parse(text: str) -> dict[str, str]:
    match = _TOLERATION.fullmatch(text)
    if match is None or match["effect"] not in (None, *_EFFECTS):
        raise UserError(
            f"--toleration {text!r}: write KEY, KEY=VALUE or KEY=VALUE:EFFECT, as the taint of the nodes has it "
            f"(kubectl describe node); an effect is {', '.join(_EFFECTS[:-1])} or {_EFFECTS[-1]}"
        )
    value = {"operator": "Exists"} if match["value"] is None else {"operator": "Equal", "value": match["value"]}
    return {"key": match["key"], **value, **({"effect": match["effect"]} if match["effect"] else {})}

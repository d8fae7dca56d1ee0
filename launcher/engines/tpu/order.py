"""An order for a TPU VM: its name, type, runtime version and class of cost. PURE."""

from __future__ import annotations

import re
from dataclasses import dataclass

from podrun.runtime.contract import UserError

from ...pod.slices import parse_slice
from ...yamlfile.short import short
from .gcloud import TpuName
from .queued import Cost

_RUNTIMES = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""Maps TPU generations to runtime versions for JAX: https://cloud.google.com/tpu/docs/runtimes."""
_RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Order:
    """An order for one TPU VM. Its queued resource has the same name."""

    tpu: TpuName
    kind: str
    """Accelerator type in gcloud's spelling, such as `v5litepod-16`."""
    runtime: str
    """Runtime version of the TPU VM, such as `v2-alpha-tpuv5-lite`."""
    cost: Cost

    def __str__(self) -> str:
        project = f"project {self.tpu.project}" if self.tpu.project else "gcloud's project"
        return (
            f"{self.tpu.name}: {self.kind}, {self.cost}, in {self.tpu.zone}, {project}, runtime version {self.runtime}"
        )

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of `gcloud compute tpus queued-resources create`."""
        cost = {Cost.SPOT: ("--spot",), Cost.RESERVED: ("--reserved",), Cost.ON_DEMAND: ()}[self.cost]
        return (
            f"--node-id={self.tpu.name}",
            f"--accelerator-type={self.kind}",
            f"--runtime-version={self.runtime}",
            *cost,
        )


def make_order(tpu: TpuName, slice: str, runtime: str | None, spot: bool, reserved: bool) -> Order:
    """Return the order for the typed options. Raises one UserError with all mistakes."""
    problems = []
    kind, generation = "", ""
    try:
        parsed = parse_slice(slice)
        kind, generation = parsed.name, parsed.name.rpartition("-")[0]
        if parsed.kind != "tpu":
            problems.append(f"--slice: {parsed.name} is no TPU type; `podrun slices` lists them")
        elif parsed.slices > 1:
            problems.append(
                f"--slice: {parsed.name} is {parsed.slices} slices, but a TPU VM is one; give the type of one"
            )
    except UserError as error:
        problems.append(f"--slice: {error}")
    if spot and reserved:
        problems.append("--spot and --reserved are two classes of cost; give one, or neither for on demand")
    if runtime is not None and not _RUNTIME.fullmatch(runtime):
        problems.append(
            f"--runtime-version: {short(runtime)} cannot be a version; versions are like {_RUNTIMES['v6e']}; "
            f"`gcloud compute tpus versions list --zone={tpu.zone}` lists those of {tpu.zone}"
        )
    runtime = runtime or _RUNTIMES.get(generation)
    if runtime is None and not problems:
        problems.append(
            f"podrun does not know the runtime version of a {kind}; give --runtime-version "
            f"(`gcloud compute tpus versions list --zone={tpu.zone}` lists those of {tpu.zone})"
        )
    if problems:
        raise UserError("\n".join(problems))
    cost = Cost.SPOT if spot else Cost.RESERVED if reserved else Cost.ON_DEMAND
    return Order(tpu, kind, runtime or "", cost)

"""Slices named by their GPU model: `h100-16` is 2 machines of 8 H100.

Sources: NVIDIA's documentation of DGX and HGX (8 GPUs per board, A100 to B300) and of GB200 and GB300 NVL72 (4 GPUs per
compute tray). Other GPU models have no standard number of GPUs per machine; use `gpu-HxD` for them.
"""

from __future__ import annotations

import re

from podrun.runtime.contract import UserError

PER_HOST = {**dict.fromkeys(("a100", "h100", "h200", "b200", "b300"), 8), **dict.fromkeys(("gb200", "gb300"), 4)}
"""Number of GPUs per machine, by model."""
EXAMPLES = tuple(f"{model}-{count * hosts}" for model, count in PER_HOST.items() for hosts in (1, 2, 4))
_NAME = re.compile(rf"({'|'.join(PER_HOST)})-([1-9]\d{{0,5}})")


def split_gpus(name: str) -> tuple[int, int] | None:
    """Return (hosts, GPUs per host) of a slice name in lower case; None if it does not name a GPU model.

    A number below that of one machine means a part of a machine. Raises UserError if a larger number is not a multiple
    of it.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    model, count = match[1], int(match[2])
    per_host = PER_HOST[model]
    if count <= per_host:
        return 1, count
    hosts, rest = divmod(count, per_host)
    if rest:
        near = f"{model}-{hosts * per_host} or {model}-{(hosts + 1) * per_host}"
        raise UserError(
            f"slice {name!r}: machines with {model.upper()} have {per_host} GPUs, so {count} GPUs are no whole number of "
            f"machines; give {near}, or the shape of your machines, as in gpu-{hosts + 1}x{-(-count // (hosts + 1))}"
        )
    return hosts, per_host


def declared_model(name: str) -> str | None:
    """Return the GPU model that a slice name declares, spelled as nvidia-smi prints it; None for `gpu-HxD`."""
    match = _NAME.fullmatch(re.sub(r"^\d+x", "", name))
    return match[1].upper() if match else None

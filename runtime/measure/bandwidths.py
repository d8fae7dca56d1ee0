"""Bandwidths of one JAX device, by its `device_kind`: of its memory, and of the links to other devices in one direction.

A link's bandwidth is the sum over all ports of a device. Google and NVIDIA publish both directions together, for ICI and
NVLink, so the figures here are half of those. On TPU v2, v3 and 7x a device is half a chip and has half its bandwidth.

- Of v2's and v3's ICI there is no such figure: v2's is 4 links of 496 Gb/s in Google's paper, v3's is the all-reduce
  bandwidth of a pod divided by its chips, which for v5e and v6e is exactly half of both directions.
- DCN is the network of a host divided by its chips.
- `network` is the network of NVIDIA's DGX systems: one port of 200 or 400 Gb/s for each GPU. Other hosts have less.
"""

from __future__ import annotations

from dataclasses import dataclass

_GIGA = 1e9


@dataclass(frozen=True)
class Bandwidths:
    """Bytes per second of one JAX device."""

    hbm: float
    links: dict[str, float]
    """By name of the link: `ICI`, `DCN`, `NVLink`, `PCIe`, `network`. A link without a published figure is missing."""
    sources: tuple[str, ...]
    """Address of the page that publishes the numbers."""


def bandwidths_of(device_kind: str) -> Bandwidths | None:
    """Return the bandwidths of a device kind, as JAX names it; None if they are unknown, as for CPUs."""
    return BANDWIDTHS.get(device_kind)


def _table(*rows: tuple[tuple[str, ...], float, dict[str, float], tuple[str, ...]]) -> dict[str, Bandwidths]:
    """Return the bandwidths by device kind, from rows of (device kinds, memory GB/s, GB/s of each link, sources)."""
    return {
        kind: Bandwidths(hbm * _GIGA, {name: speed * _GIGA for name, speed in links.items()}, sources)
        for kinds, hbm, links, sources in rows
        for kind in kinds
    }


_TPU = "https://docs.cloud.google.com/tpu/docs/"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_DGX = "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai/latest/core-components.html"
_DGX_A100 = "https://docs.nvidia.com/dgx/dgxa100-user-guide/introduction-to-dgxa100.html"

BANDWIDTHS = _table(
    # Per chip: 700, ICI 4 x 496 / 8.
    (("TPU v2",), 700 / 2, {"ICI": 248 / 2}, ("https://doi.org/10.1145/3360307",)),
    # Per chip: 900, ICI 340,000 / 1024.
    (("TPU v3",), 900 / 2, {"ICI": 332 / 2}, (f"{_TPU}v3",)),
    # Both directions of ICI: 400, 1200, 800, 1200. DCN in Gb/s: 25, 50, 100, 100.
    (("TPU v5 lite", "TPU v5e"), 819, {"ICI": 200, "DCN": 25 / 8}, (f"{_TPU}v5e",)),
    (("TPU v5", "TPU v5p"), 2765, {"ICI": 600, "DCN": 50 / 8}, (f"{_TPU}v5p",)),
    (("TPU v6 lite", "TPU v6e"), 1638, {"ICI": 400, "DCN": 100 / 8}, (f"{_TPU}v6e", f"{_TPU}tpu7x")),
    (("TPU7x",), 7380 / 2, {"ICI": 600 / 2, "DCN": 100 / 8 / 2}, (f"{_TPU}tpu7x",)),
    # Both directions of NVLink: 600 for A100, 900 for H100 and H200, 1800 since Blackwell.
    (("NVIDIA A100-SXM4-40GB",), 1555, {"NVLink": 300, "network": 200 / 8}, (f"{_NVIDIA}a100/", _DGX_A100)),
    (("NVIDIA A100-SXM4-80GB",), 2039, {"NVLink": 300, "network": 200 / 8}, (f"{_NVIDIA}a100/", _DGX_A100)),
    (("NVIDIA H100 80GB HBM3",), 3350, {"NVLink": 450, "network": 400 / 8}, (f"{_NVIDIA}h100/", _DGX)),
    (("NVIDIA H200",), 4800, {"NVLink": 450, "network": 400 / 8}, (f"{_NVIDIA}h200/", _DGX)),
    (("NVIDIA B200",), 8000, {"NVLink": 900, "network": 400 / 8}, (f"{_NVIDIA}hgx/", _DGX)),
    (("NVIDIA B300 SXM6 AC",), 8000, {"NVLink": 900}, (f"{_NVIDIA}hgx/",)),
    # Between the hosts of an NVL72 rack there is NVLink, too.
    (("NVIDIA GB200",), 8000, {"NVLink": 900}, (f"{_NVIDIA}gb200-nvl72/",)),
    (("NVIDIA GB300",), 8000, {"NVLink": 900}, (f"{_NVIDIA}gb300-nvl72/",)),
    (("NVIDIA L4",), 300, {"PCIe": 64 / 2}, (f"{_NVIDIA}l4/",)),
)

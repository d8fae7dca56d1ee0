"""The memory of devices by their kind."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from podrun.runtime.device_memory import GPUS, gpu_memory, usable_memory
from podrun.runtime.devices import Devices
from podrun.runtime.measure.peak import peak_of

TPUS = ("TPU v2", "TPU v3", "TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU7x")


def gpu_kinds() -> list[str]:
    texts = [path.read_text() for path in GPUS.glob("*.txtpb")]
    return [re.findall(r'^device_description_str: "(.+)"$', text, re.MULTILINE)[0] for text in texts]


def test_memory_of_the_kinds_of_every_target() -> None:
    """JAX takes 75 % of what CUDA counts of a GPU. A TPU's program gets what the compiler leaves of the HBM."""
    kinds = [*TPUS, *gpu_kinds()]
    assert len(kinds) == len(set(kinds)) == 15
    assert [kind for kind in kinds if not usable_memory(kind)] == []
    assert usable_memory("NVIDIA H100 80GB HBM3") == 63_707_234_304 == 0.75 * 84_942_979_072
    assert usable_memory("TPU v5 lite") == int(15.75 * 2**30)


def test_unknown_kinds_have_none() -> None:
    assert usable_memory("cpu") is None
    assert usable_memory("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None


def test_the_kinds_are_those_of_the_peaks() -> None:
    """Both are looked up by the same name."""
    assert [kind for kind in [*TPUS, *gpu_kinds()] if peak_of(kind) is None] == []


def test_the_memory_of_gpus_only() -> None:
    """The loss is computed in pieces that depend on it: a GPU without a description counts as one of 16 GB."""

    def pod(platform: str, kind: str) -> Devices:
        device: Any = SimpleNamespace(platform=platform, device_kind=kind)
        return Devices((device,))

    assert gpu_memory(pod("cuda", "NVIDIA H200")) == usable_memory("NVIDIA H200")
    assert gpu_memory(pod("cuda", "NVIDIA RTX 4090")) == 12 * 2**30
    assert gpu_memory(pod("tpu", "TPU v5 lite")) is None
    assert gpu_memory(pod("cpu", "cpu")) is None

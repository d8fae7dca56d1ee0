"""Every TPU slice of podrun, as the TPU compiler sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest

from podrun.launcher.pod.slices import parse_slice, tpu_slices
from podrun.launcher.pod.target import GPUS, target_of
from podrun.runtime.compiler import devices_of
from podrun.runtime.contract import UserError
from podrun.runtime.device_memory import usable_memory
from podrun.runtime.target import Target

pytestmark = pytest.mark.compilers
DOCS = Path(__file__).parents[2] / "docs" / "compile.md"


@pytest.fixture(autouse=True)
def on_cpu() -> None:
    jax.config.update("jax_platforms", "cpu")


def test_every_slice_has_the_devices_and_processes_that_the_compiler_sees() -> None:
    """`devices_of` compares both. The table in docs/compile.md says how many of each generation."""
    accepted: Counter[str] = Counter()
    for name, slice in tpu_slices().items():
        generation = name.rpartition("-")[0]
        if generation == "v4":
            with pytest.raises(UserError, match=r"two devices with half the memory"):
                target_of(slice)
            continue
        target = target_of(slice)
        assert target
        pod = devices_of(target)
        assert usable_memory(pod.kind), pod.kind
        accepted[generation] += 1
    table = re.findall(r"^\| (\w+) \| (\d+) \| `TPU", DOCS.read_text(), re.MULTILINE)
    assert {name: int(count) for name, count in table} == accepted


def test_every_gpu_has_its_description_read_and_its_memory_known() -> None:
    for gpu in GPUS:
        pod = devices_of(Target("gpu-2x4", "cuda", "1x2x4", 8, 2, gpu=gpu))
        assert pod.platform == "gpu"
        assert usable_memory(pod.kind), pod.kind


def test_two_processes_use_the_tpu_compiler_at_once() -> None:
    """By itself libtpu refuses the second, because of /tmp/libtpu_lockfile."""
    target = Target("v5litepod-4", "tpu", "v5e:2x2", 4, 1)
    devices_of(target)
    code = f"from podrun.runtime.compiler import *; print(devices_of({target!r}).count)"
    env = {name: value for name, value in os.environ.items() if name != "ALLOW_MULTIPLE_LIBTPU_LOAD"} | {
        "JAX_PLATFORMS": "cpu"
    }
    second = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert second.stdout == "4\n", second.stderr


def test_a_topology_that_the_compiler_refuses() -> None:
    with pytest.raises(
        UserError, match=r"^the compiler for tpu \(JAX .*, libtpu .*\) cannot compile for v9-8, topology v9:2x2: ."
    ):
        devices_of(Target("v9-8", "tpu", "v9:2x2", 4, 1))


def test_a_topology_that_the_compiler_divides_differently() -> None:
    with pytest.raises(
        UserError, match=r"^the compiler sees v5litepod-16 with 16 devices in 4 processes, and a real one has 16 in 2, "
    ):
        devices_of(Target("v5litepod-16", "tpu", "v5e:4x4", 16, 2))


def test_every_slice_has_a_mesh_for_every_power_of_two() -> None:
    """Also where JAX cannot follow the interconnect. The second axis stays within a slice."""
    names = [name for name, slice in tpu_slices().items() if slice.devices <= 1024 and not name.startswith("v4")]
    for name in (*names, "2xv5e-16", "3xv5p-16", "4xv3-32"):
        target = target_of(parse_slice(name))
        assert target
        pod = devices_of(target)
        for fsdp in (2**power for power in range(1, 11)):
            if (pod.count // pod.slices) % fsdp == 0:
                mesh = pod.mesh({"batch": pod.count // fsdp, "fsdp": fsdp})
                assert {*mesh.devices.flat} == {*pod.all}, (name, fsdp)
                assert all(len({getattr(d, "slice_index", 0) for d in row}) == 1 for row in mesh.devices), (name, fsdp)

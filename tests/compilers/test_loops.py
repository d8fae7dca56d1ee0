"""The turns of loops are known in programs for TPUs and GPUs."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.pod.target import target_of
from podrun.runtime.compiler import devices_of
from podrun.runtime.inspect_job import hlo
from podrun.runtime.inspect_job.loops import unknown_loops
from podrun.runtime.inspect_job.traffic import PodMesh, traffic

from ..runtime.inspect_job.programs import COLLECTIVES, looping

pytestmark = pytest.mark.compilers


@pytest.mark.parametrize(("slice", "platform", "is_written"), [("v5e-4", "tpu", False), ("h100-4", "cuda", True)])
def test_collectives_count_as_often_as_they_run(slice: str, platform: str, is_written: bool) -> None:
    """The compiler of TPUs does not write the number of turns."""
    jax.config.update("jax_platforms", "cpu")
    target = target_of(parse_slice(slice))
    assert target
    devices = devices_of(target).all
    text = looping(devices).lower(lowering_platforms=(platform,)).compile().as_text()
    assert ("known_trip_count" in text) == is_written
    program = hlo.read(text)
    sent = traffic(program, PodMesh(("device",), np.array(devices)))
    assert {one.kind: one.count for one in sent} == COLLECTIVES
    assert unknown_loops(program) == 1

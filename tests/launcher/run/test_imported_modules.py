"""The modules that a start looks for on the hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.stage import imported_modules
from podrun.runtime.config import Config


@pytest.mark.parametrize(
    ("keys", "modules"),
    [
        ({"task": "classification", "data": "digits"}, {"sklearn": "scikit-learn, for data.name digits"}),
        ({"task": "classification", "data": "my.data:make"}, {}),
        ({"task": "regression"}, {}),
    ],
)
def test_data_that_is_part_of_a_package(keys: dict[str, Any], modules: dict[str, str]) -> None:
    """It is no package of the runtime, so the environments that `podrun init` describes lack it."""
    job = Config.model_validate({"steps": 3, "batch_size": 64, **keys})
    spec = RunSpec("r", simulated_pod(parse_slice("cpu-1x2")), job, Path("/w"), Path("/"))
    assert imported_modules(make_plan(spec)) == modules

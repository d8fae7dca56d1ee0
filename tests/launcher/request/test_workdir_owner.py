"""The owner of a workdir on hosts: the job's, on whatever machine podrun runs."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from podrun.launcher.plan.program import Program
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.request.request import Request, owner_of_workdir
from podrun.runtime.config import Launch

POD = Pod(parse_slice("cpu-1x1"), (Host("h0", "h0"),), transport="ssh", platform="cpu")


def owner(train: Path) -> str:
    return owner_of_workdir(Request(train), Program((), Launch()), POD)


def test_a_machine_with_another_name_may_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed laptop, or a new container, may. A job of the same name in another project may not."""
    before = owner(tmp_path / "one" / "train.yaml")
    monkeypatch.setattr(platform, "node", lambda: "renamed")
    assert owner(tmp_path / "one" / "train.yaml") == before != ""
    assert owner(tmp_path / "two" / "train.yaml") != before

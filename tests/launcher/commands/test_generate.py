"""The devices of `podrun generate`."""

from __future__ import annotations

import pytest

from podrun.launcher.commands.generate import environment_of
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "0,1"), ("3,5,7", "3,5"), ("GPU-a,GPU-b", "GPU-a,GPU-b"), ("4", "4")]
)
def test_only_the_gpus_of_the_slice_are_opened(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that the user has chosen; the others may train."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    pod = Pod(parse_slice("gpu-1x2"), (Host("h0", "h0"),), "local", "cuda")
    assert environment_of(pod)["CUDA_VISIBLE_DEVICES"] == expected

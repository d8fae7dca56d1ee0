"""The targets of slices: what podrun tells the compiler of TPUs and GPUs about them."""

from __future__ import annotations

import pytest

from podrun.launcher.pod.gpu_slices import PER_HOST
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.pod.target import GPUS, target_of
from podrun.runtime.contract import UserError
from podrun.runtime.device_memory import GPUS as DESCRIPTIONS
from podrun.runtime.target import Target


def test_targets_of_slices() -> None:
    assert target_of(parse_slice("v3-32")) == Target("v3-32", "tpu", "v3:4x4", 32, 4)
    assert target_of(parse_slice("v5e-8")) == Target("v5litepod-8", "tpu", "v5e:2x4", 8, 1, host=(2, 4, 1))
    assert target_of(parse_slice("2xv5e-16")) == Target("2xv5litepod-16", "tpu", "v5e:4x4", 32, 8, slices=2)
    assert target_of(parse_slice("h100-16")) == Target("h100-16", "cuda", "1x2x8", 16, 2, gpu="h100")
    assert target_of(parse_slice("gpu-2x4"), "l4") == Target("gpu-2x4", "cuda", "1x2x4", 8, 2, gpu="l4")


def test_the_model_given_is_taken_in_place_of_the_one_of_the_name() -> None:
    slice = parse_slice("a100-8")
    assert target_of(slice) == Target("a100-8", "cuda", "1x1x8", 8, 1, gpu="a100")
    assert target_of(slice, "a100-40gb") == Target("a100-8", "cuda", "1x1x8", 8, 1, gpu="a100-40gb")


def test_slices_without_a_compiler_have_no_target() -> None:
    assert target_of(parse_slice("cpu-2x4")) is None
    assert target_of(parse_slice("gpu-2x8")) is None, "its model is not known"


def test_a_description_of_every_gpu_that_slices_are_named_by() -> None:
    assert set(PER_HOST) <= set(GPUS)
    assert set(GPUS) == {path.stem for path in DESCRIPTIONS.glob("*.txtpb")}


def test_an_unknown_gpu_is_refused_with_those_known() -> None:
    with pytest.raises(UserError, match=r"^unknown GPU 'h1000'; the compiler's descriptions are of a100, .*, l4"):
        target_of(parse_slice("gpu-2x8"), "h1000")


@pytest.mark.parametrize("slice", ["cpu-2x2", "v5e-16"])
def test_a_gpu_for_a_slice_of_others_is_refused(slice: str) -> None:
    with pytest.raises(UserError, match=r"^--gpu h100: .* is a slice of [CT]PUs; leave it out$"):
        target_of(parse_slice(slice), "h100")


def test_v4_is_refused_with_the_reason() -> None:
    with pytest.raises(
        UserError, match=r"^v4-32: the TPU compiler treats a chip of v4 as two devices .* would be wrong$"
    ):
        target_of(parse_slice("v4-32"))

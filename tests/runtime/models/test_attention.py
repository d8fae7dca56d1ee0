"""The kernel of attention: which one a job takes, and why."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.runtime.config import Config, check_slice
from podrun.runtime.contract import UserError
from podrun.runtime.devices import Devices
from podrun.runtime.models.attention import Setting, choose, resolve

CPU = Setting("cpu", "cpu")
H100 = Setting("gpu", "NVIDIA H100", (9, 0))
WITHOUT_CUDNN = Setting("gpu", "NVIDIA H100", (9, 0), "cuDNN not found")
INSPECTED = Setting("gpu", "NVIDIA H100", (9, 0), "cuDNN not found", are_here=False)
A100, V100, AMD = Setting("gpu", "A100", (8, 0)), Setting("gpu", "V100", (7, 0)), Setting("gpu", "MI300")


def job(precision: str = "bfloat16", **model: Any) -> Config:
    name = "decoder" if "head_size" in model or "attention_soft_cap" in model else "gpt2"
    section = {"name": name, "width": 128, "heads": 2, **model}
    return Config.model_validate({"batch_size": 8, "steps": 1, "precision": precision, "model": section})


@pytest.mark.parametrize(
    ("setting", "config", "kernel", "reason"),
    [
        (CPU, job(), "xla", "the only one for cpu"),
        (H100, job(), "cudnn", "keeps no scores in the memory of NVIDIA H100"),
        (H100, job(attention="cudnn"), "cudnn", "as the job says"),
        (H100, job(attention="xla"), "xla", "as the job says"),
        (H100, job("float32"), "xla", "16 bits, and precision is float32"),
        (H100, job(dropout=0.1), "xla", "dropout is not 0"),
        (H100, job(attention_soft_cap=50), "xla", "no attention_soft_cap"),
        (H100, job(head_size=36), "xla", "a multiple of 8 up to 256, and they have the size 36"),
        (H100, job(head_size=256), "cudnn", "keeps no scores"),
        (A100, job(head_size=256), "xla", "heads up to 128 on A100, and they have the size 256"),
        (A100, job(), "cudnn", "keeps no scores"),
        (V100, job(), "xla", "Ampere or later, and the devices are V100"),
        (AMD, job(), "xla", "NVIDIA's GPUs, and the devices are MI300"),
        (WITHOUT_CUDNN, job(), "xla", "cuDNN's cannot be compiled here: cuDNN not found"),
        (
            INSPECTED,
            job(),
            "xla",
            "a run on NVIDIA H100 takes cudnn, which this machine cannot compile: cuDNN not found",
        ),
    ],
)
def test_the_choice_and_its_reason(setting: Setting, config: Config, kernel: str, reason: str) -> None:
    choice = choose(config, setting)
    assert choice is not None
    assert choice.kernel == kernel and reason in str(choice)
    assert (choice.of_run != kernel) == (setting is INSPECTED)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (CPU, "model.attention: cudnn is for GPUs, and the devices are CPUs; change that, or take attention: auto"),
        (V100, "model.attention: cudnn needs Ampere or later"),
        (WITHOUT_CUDNN, "model.attention: cuDNN's cannot be compiled here: cuDNN not found"),
    ],
)
def test_a_named_kernel_that_the_devices_lack(setting: Setting, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        choose(job(attention="cudnn"), setting)


def test_a_named_kernel_that_does_not_fit_the_job() -> None:
    """It is an error of train.yaml, and of its slice, before anything is started."""
    with pytest.raises(ValueError, match=r"model\.attention: cudnn computes with 16 bits, and precision is float32"):
        job("float32", attention="cudnn")
    check_slice(job(attention="cudnn"), 8, platform="gpu")
    with pytest.raises(UserError, match="cudnn is for GPUs, and the devices are TPUs"):
        check_slice(job(attention="cudnn"), 8, platform="tpu")


def test_the_devices_of_this_machine_decide() -> None:
    config, choice = resolve(job(), Devices.here())
    assert config.model.attention == "xla" and choice is not None and not choice.has_alternatives  # type: ignore[union-attr]
    with_mlp = Config.model_validate({"task": "regression", "batch_size": 8, "steps": 1})
    assert resolve(with_mlp, Devices.here()) == (with_mlp, None)

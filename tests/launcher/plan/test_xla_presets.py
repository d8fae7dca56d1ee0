"""`launch.xla` in the environment of workers, for every kind of pod and job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.engines.kubernetes.member import worker_env
from podrun.launcher.engines.kubernetes.render_jobset import JobSetRequest, make_manifest
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.runtime.config import Config, Launch, LaunchSection
from podrun.runtime.config.xla_presets import PRESETS
from podrun.runtime.contract import UserError

from .made import environments, make, pod_of

TPU, GPU = ({name: preset.flags for name, preset in PRESETS[kind].items()} for kind in ("tpu", "gpu"))


def jobs(**launch: Any) -> list[Config | Program]:
    return [
        Config.model_validate({"steps": 3, "batch_size": 64, "launch": launch}),
        Program(("python", "my.py"), Launch(**launch)),
    ]


def test_flags_of_tpus_and_of_gpus() -> None:
    for job in jobs(xla=("latency_hiding",)):
        for transport in ("ssh", "slurm"):
            (env, *_) = environments(make(pod_of("v3-32", transport=transport), job))
            assert (env["LIBTPU_INIT_ARGS"], env.get("XLA_FLAGS")) == (" ".join(TPU["latency_hiding"]), None)
            (env, *_) = environments(make(pod_of("gpu-2x8", transport=transport), job))
            assert (env["XLA_FLAGS"], env.get("LIBTPU_INIT_ARGS")) == (" ".join(GPU["latency_hiding"]), None)


def test_the_users_flags_come_last() -> None:
    """The compilers let the last of two values win. The job's variable replaces the pod's, as always."""
    names, own = ("async_collectives", "latency_hiding"), "--xla_enable_async_all_reduce=false"
    flags = " ".join(TPU["async_collectives"] + TPU["latency_hiding"])
    pod = pod_of("v3-32", transport="ssh")
    for job in jobs(xla=names, env={"LIBTPU_INIT_ARGS": own}):
        assert environments(make(pod, job))[3]["LIBTPU_INIT_ARGS"] == f"{flags} {own}"
    with_env = replace(pod, env={"LIBTPU_INIT_ARGS": "--pod=1"})
    for job in jobs(xla=names):
        assert environments(make(with_env, job))[0]["LIBTPU_INIT_ARGS"] == f"{flags} --pod=1"


def test_none_without_a_name_and_none_on_simulated_devices() -> None:
    for job, pod in (
        *((j, pod_of("v3-32", transport="ssh")) for j in jobs()),
        (jobs(xla=("latency_hiding",))[0], pod_of("v3-32")),
    ):
        assert not {"LIBTPU_INIT_ARGS", "XLA_FLAGS"} & environments(make(pod, job))[0].keys()


def test_the_plan_and_the_record_have_them() -> None:
    for job in jobs(xla=("overlap_between_slices",)):
        plan = make(pod_of("2xv5e-16", transport="ssh"), job)
        for flag in TPU["overlap_between_slices"]:
            assert plan.render().count(flag) == 8, "for the process of every host"
        assert RunSpec.from_json(plan.run.to_json()).job.launch.xla == ("overlap_between_slices",)


def test_every_preset_is_described() -> None:
    description = LaunchSection.model_fields["xla"].description or ""
    docs = (Path(__file__).parents[3] / "docs" / "compile.md").read_text("utf-8")
    for kind, presets in PRESETS.items():
        assert f"{kind.upper()}s {', '.join(presets)}" in description
        for name in presets:
            assert f"| {kind.upper()}s | `{name}` |" in docs, name


def test_a_flag_of_two_presets_is_given_once() -> None:
    (job, _) = jobs(xla=("latency_hiding", "latency_hiding"))
    assert environments(make(pod_of("gpu-2x8", transport="ssh"), job))[0]["XLA_FLAGS"] == GPU["latency_hiding"][0]


@pytest.mark.parametrize("is_program", [False, True])
def test_a_container_of_kubernetes_has_them(is_program: bool, tmp_path: Path) -> None:
    """The manifest shows them, and the process that the container starts has the same."""
    own = "--xla_gpu_enable_pipelined_all_gather=false"
    train = tmp_path / "train.yaml"
    train.write_text("task: regression\nsteps: 3\nbatch_size: 64\n")
    manifest: Any = make_manifest(
        JobSetRequest(
            None if is_program else train,
            ("launch.xla=[pipelined_collectives]", f"launch.env={{XLA_FLAGS: {own}}}"),
            "image",
            "gpu-2x8",
            workdir=None if is_program else "gs://bucket/t",
            program=("python", "my.py") if is_program else (),
        ),
        "run",
    )
    (container,) = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value", "0") for entry in container["env"]}
    flags = " ".join([*GPU["pipelined_collectives"], own])
    assert env["XLA_FLAGS"] == flags
    assert worker_env({**env, "PODRUN_HOST": "h"}, tmp_path)["XLA_FLAGS"] == flags


def test_a_container_of_kubernetes_for_other_devices() -> None:
    request = JobSetRequest(None, ("launch.xla=async_collectives",), "image", "gpu-2x8", program=("python", "my.py"))
    with pytest.raises(
        UserError, match="async_collectives is not a preset for gpu-2x8, which has GPUs; give some of late"
    ):
        make_manifest(request, "run")

"""Plans of well-known pods as text, and where they are kept: `python -m tests.launcher.plan.golden` writes them anew."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import Code, RunSpec
from podrun.launcher.pod.container import Container
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Config

FOLDER = Path(__file__).with_suffix("")
_PLATFORMS = {"gpu": "cuda"}
_CODE = Code("~/.podrun/bundles/project-1f", "", "~/.podrun/bundles/podrun-2e", "~/.podrun/envs/3d/bin/python")
_JOB = {"steps": 100, "batch_size": 512}


def _pod(slice: str, transport: str = "ssh") -> Pod:
    shape = parse_slice(slice)
    hosts = tuple(Host(f"h{number}", f"10.0.0.{number + 1}") for number in range(shape.hosts))
    pod = Pod(shape, hosts, transport, _PLATFORMS.get(shape.kind, shape.kind), workdir="/mnt/runs")
    return replace(pod, queue_job="4711") if transport == "slurm" else pod


def _in_image(pod: Pod, engine: str, image: str) -> Pod:
    return replace(pod, container=Container(engine, image, mounts=("/data", "/mnt/runs")))


def _plan(pod: Pod, job: Config | Program) -> LaunchPlan:
    code = replace(_CODE, python=pod.container.python) if pod.container else _CODE
    return make_plan(RunSpec("20260101-000000-abcd", pod, job, Path("/mnt/runs/train"), Path("/jobs"), code))


def _train(**launch: object) -> Config:
    return Config.model_validate({**_JOB, "launch": launch})


def plans() -> dict[str, LaunchPlan]:
    """Return the plans by their names."""
    return {
        **{name: _plan(_pod(name), _train()) for name in ("v3-32", "v4-64", "v5p-128", "v6e-16")},
        "gpu-4x8 per host": _plan(_pod("gpu-4x8"), _train()),
        "gpu-4x8 per device": _plan(_pod("gpu-4x8"), _train(process_per="device")),
        "two v5e-64": _plan(_pod("2xv5e-64"), _train()),
        "slurm gpu-4x8": _plan(_pod("gpu-4x8", "slurm"), _train()),
        "gpu-4x8 in an image": _plan(_in_image(_pod("gpu-4x8"), "apptainer", "/shared/jax.sif"), _train()),
        "slurm gpu-4x8 in an image": _plan(_in_image(_pod("gpu-4x8", "slurm"), "pyxis", "a#nvidia/jax:1"), _train()),
        "v6e-16 in an image": _plan(_in_image(_pod("v6e-16"), "docker", "us-docker.pkg.dev/lab/jax:1"), _train()),
        "slurm cpu-4x1": _plan(_pod("cpu-4x1", "slurm"), _train()),
    }


def shown(plan: LaunchPlan) -> str:
    """Return the plan as it is printed: head, first host and last one, without what changes with any code."""
    head, *hosts = plan.render().rstrip("\n").split("\n\n")
    text = "\n\n".join([head, hosts[0], f"... {len(hosts) - 2} hosts ...", hosts[-1]]) + "\n"
    text = re.sub(r"^  agent .*$", "  agent    ...", text, flags=re.MULTILINE)
    return re.sub(r"\(\d+ bytes\)", "(... bytes)", text)


def file_of(name: str) -> Path:
    return FOLDER / f"{name.replace(' ', '_')}.txt"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, plan in plans().items():
        file_of(name).write_text(shown(plan), encoding="utf-8")


if __name__ == "__main__":
    write()

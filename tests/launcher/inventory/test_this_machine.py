"""This machine as a pod: its devices are counted as they are, and nothing else names hosts beside it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from podrun.launcher.agent.host.devices import device_nodes
from podrun.launcher.agent.host.google import ENV_SERVER
from podrun.launcher.inventory import this_machine
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Pod
from podrun.runtime.config import Launch
from podrun.runtime.contract import UserError

from ...metadata_server import serving, tpu_worker

H100 = "{0}, GPU-5c2b1f6e-0000-4f0e-9d5c-{0:012d}, 81559, 81008, Enabled, 0, NVIDIA H100 80GB HBM3\n"
LOST = (
    "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


@pytest.fixture(autouse=True)
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of this machine's device files: none, and no nvidia-smi."""
    folder = tmp_path / "dev"
    folder.mkdir()
    monkeypatch.setattr(this_machine, "device_nodes", lambda: device_nodes(str(folder)))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(ENV_SERVER, raising=False)
    return folder


def nvidia_smi(folder: Path, answer: str) -> None:
    """Make an nvidia-smi that lists these GPUs."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=*) printf %s {shlex.quote(answer)};; esac\n")
    program.chmod(0o755)


def local(slice: str | None = None, **values: object) -> Pod:
    return find_pod(PodRequest(slice, inventories={"local": True, **values}))


def pod_file(folder: Path, text: str, slice: str | None = None, **values: object) -> Pod:
    (folder / "pod.yaml").write_text(text)
    return find_pod(PodRequest(slice, folder / "pod.yaml", values))


def plan_of(pod: Pod, launch: Launch) -> LaunchPlan:
    return make_plan(RunSpec("r-1", pod, Program(("python", "a.py"), launch), Path("/w"), Path("/c")))


# --- devices ----------------------------------------------------------------------------------------------------------


def test_a_machine_without_accelerators_is_one_cpu_device(tmp_path: Path) -> None:
    pod = local()
    assert (pod.slice.name, pod.platform, pod.python, pod.home) == (
        *("cpu-1x1", "cpu", sys.executable),
        str(tmp_path / "home"),
    )
    assert [(h.name, h.address, h.internal) for h in pod.hosts] == [("local", "127.0.0.1", "127.0.0.1")]
    assert pod.traits.files_are_here and pod.traits.is_exclusive and not pod.traits.needs_staging


@pytest.mark.parametrize(
    ("chosen", "slice"),
    [
        *((None, "gpu-1x8"), ("3,5", "gpu-1x2"), ("GPU-5c2b1f6e-0000-4f0e-9d5c-000000000001", "gpu-1x1")),
        *(("", "cpu-1x1"), ("-1", "cpu-1x1")),
    ],
)
def test_the_gpus_that_programs_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, slice: str
) -> None:
    nvidia_smi(tmp_path, "".join(map(H100.format, range(8))))
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    pod = local()
    assert (pod.slice.name, pod.platform) == (slice, "cpu" if slice == "cpu-1x1" else "cuda")


def test_a_plan_for_gpus_is_that_of_a_host_by_ssh(tmp_path: Path) -> None:
    """One process with all GPUs, or one for each, with the same variables as on a host that is reached by SSH."""
    nvidia_smi(tmp_path, "".join(map(H100.format, range(2))))
    by_ssh = find_pod(PodRequest("gpu-1x2", inventories={"hosts": "a"}))

    def environments(pod: Pod, launch: Launch) -> list[dict[str, str]]:
        (host,) = plan_of(pod, launch).hosts
        own = ("PODRUN_HOST", "PODRUN_DIR")
        return [{n: v for n, v in w["env"].items() if n not in own} for w in host.spec["processes"]]

    whole, single = Launch(), Launch(process_per="device")
    for launch in (whole, single):
        assert environments(local(), launch) == environments(by_ssh, launch)
    assert [env["JAX_LOCAL_DEVICE_IDS"] for env in environments(local(), whole)] == ["0,1"]
    assert [(env["RANK"], env["LOCAL_RANK"]) for env in environments(local(), single)] == [("0", "0"), ("1", "1")]


def test_without_nvidia_smi_the_device_files_count(dev: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (dev / name).touch()
    assert local().slice.name == "gpu-1x2"


@pytest.mark.parametrize("answer", [NO_DRIVER, "No devices were found\n", LOST])
def test_gpus_that_cannot_be_used_are_never_replaced_by_the_cpu(tmp_path: Path, answer: str) -> None:
    nvidia_smi(tmp_path, answer)
    with pytest.raises(UserError, match=r"cannot be counted: nvidia-smi: .*--slice cpu-1x1 for the CPU"):
        local()
    assert local("cpu-1x2").platform == "cpu" and local("gpu-1x1").platform == "cuda"


def test_a_lost_gpu_is_left_out(tmp_path: Path) -> None:
    nvidia_smi(tmp_path, H100.format(0) + LOST)
    assert local().slice.name == "gpu-1x1"


def test_the_chips_of_a_tpu_vm(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata server knows the type; a host of several cannot compute alone."""
    for chip in range(4):
        (dev / f"accel{chip}").touch()
    with serving(tpu_worker(1, "v3-8")) as (address, server):
        monkeypatch.setenv(ENV_SERVER, address)
        assert (local().slice.name, local().platform) == ("v3-8", "tpu")
        server.values = tpu_worker(4, "v3-32")
        with pytest.raises(UserError, match=r"one of the 4 hosts of a v3-32.* --hosts-from metadata"):
            local()
        server.values = tpu_worker(1, "v99-8")
        with pytest.raises(UserError, match="4 TPU chips of unknown type; say it, as in --slice v5e-4"):
            local()
        server.values = tpu_worker(1, None, env="")
        with pytest.raises(UserError, match="names no type; say it"):
            local()
    assert local("v3-8").slice.name == "v3-8"  # without asking


def test_chips_of_unknown_type(dev: Path) -> None:
    (dev / "accel0").touch()
    with pytest.raises(UserError, match="1 TPU chips, and nothing here knows their type; say it, as in --slice"):
        local()


def test_vfio_devices_are_chips_only_on_googles_machines(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dev / "vfio").mkdir()
    (dev / "vfio" / "0").touch()
    assert local().slice.name == "cpu-1x1"
    with serving(tpu_worker(1, "v5litepod-1")) as (address, _):
        monkeypatch.setenv(ENV_SERVER, address)
        assert local().slice.name == "v5litepod-1"


# --- options and pod files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("hosts", "a"), ("hostfile", Path("no")), ("tpu", "t"), ("slurm", ""), ("simulate", True)]
)
def test_another_source_of_hosts_is_refused_in_one_sentence(name: str, value: object) -> None:
    """Before it is asked for: there is no gcloud here, and no file."""
    with pytest.raises(UserError) as raised:
        local(**{name: value})
    assert str(raised.value) == f"--local and --{name} both say where the hosts are; give one of them"


def test_a_pod_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--local is this machine, and --pod .*`hosts: \[local\]` into the pod file$"):
        find_pod(PodRequest(None, tmp_path / "no.yaml", {"local": True}))


def test_the_pod_file_of_a_job_is_left_out(tmp_path: Path) -> None:
    """`launch.pod` is the default of the job, which the command line replaces."""
    (tmp_path / "pod.yaml").write_text("slice: v3-32\nhosts: tpu-[0-3]\n")
    request = PodRequest(inventories={"local": True})
    assert find_pod(request, Launch(pod=tmp_path / "pod.yaml")).slice.name == "cpu-1x1"
    assert find_pod(request, Launch(slice="cpu-1x4")).slice.name == "cpu-1x4"


@pytest.mark.parametrize("slice", ["v3-32", "cpu-2x2", "2xcpu-1x1"])
def test_this_machine_is_one_host(slice: str, tmp_path: Path) -> None:
    for ask in (lambda: local(slice), lambda: pod_file(tmp_path, "hosts: [local]\n", slice)):
        with pytest.raises(UserError, match="and this machine is one; give a slice of one host, or simulate it"):
            ask()


def test_in_a_pod_file(tmp_path: Path) -> None:
    """With its settings, and with a slice or not."""
    pod = pod_file(tmp_path, "hosts: [local]\nenv: {A: b}\nworkdir: /data/runs\npython: /opt/py\nports: 41000-41999\n")
    assert (pod.transport, pod.slice.name, dict(pod.env), pod.workdir, pod.python) == (
        *("this_machine", "cpu-1x1", {"A": "b"}),
        *("/data/runs", "/opt/py"),
    )
    assert pod_file(tmp_path, "slice: cpu-1x4\nhosts: local\n").slice.name == "cpu-1x4"
    assert pod_file(tmp_path, "slice: cpu-1x4\nhosts: [a]\n", hosts="local").transport == "this_machine"
    assert pod_file(tmp_path, "slice: cpu-1x1\nhosts: [{name: local, address: 10.0.0.5}]\n").transport == "ssh"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("ssh", "{user: me}"), ("home", "~/x"), ("setup", "ls"), ("requirements", "r.txt"), ("spares", "b")),
        *(("min_hosts", "1"), ("container", "{engine: apptainer, image: a.sif}"), ("transport", "ssh")),
    ],
)
@pytest.mark.parametrize("typed", [False, True])
def test_settings_of_other_machines_are_refused(tmp_path: Path, key: str, value: str, typed: bool) -> None:
    (tmp_path / "r.txt").touch()
    options = {"hosts": "local"} if typed else {}
    with pytest.raises(UserError, match=rf"{key}\b.*this (one|machine)") as raised:
        pod_file(tmp_path, f"{'' if typed else 'hosts: [local]'}\n{key}: {value}\n", "cpu-1x1", **options)
    assert len(str(raised.value).splitlines()) == 2


def test_it_stands_alone(tmp_path: Path) -> None:
    for ask in (
        lambda: find_pod(PodRequest("cpu-2x1", inventories={"hosts": "a,local"})),
        lambda: pod_file(tmp_path, "slice: cpu-2x1\nhosts: [a, local]\n"),
    ):
        with pytest.raises(UserError, match="local is this machine, which trains alone; name it by an address"):
            ask()


def test_commands_that_need_no_slice_ask_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("asked for devices"))
    assert find_pod(PodRequest(inventories={"local": True}, any_slice=True)).hosts[0].name == "local"

"""The networks of pods: the host's, Kubernetes' own, and those of GKE's GPU machines with more network cards. PURE.

Sources: https://github.com/GoogleCloudPlatform/container-engine-accelerators of 2026-06-11, folders gpudirect-tcpx,
gpudirect-tcpxo and gpudirect-rdma; https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from podrun.runtime.contract import UserError

from ...pod.gpu_slices import declared_model
from ...pod.slices import Slice

DRIVER = "/usr/local/nvidia"
"""Folder of the driver in a container on GKE: the device plug-in mounts it, but no image has it in its library path."""
LIBRARIES = f"{DRIVER}/lib64"
_INSTALLED = "/home/kubernetes/bin/nvidia"
"""Folder of GKE's nodes with the driver, and with NCCL and its plug-in where one is installed."""
_GPUS_OF_A_HOST = 8


@dataclass(frozen=True)
class Network:
    """What a network needs in the manifest of a pod."""

    is_hosts: bool = False
    """The pod uses the network of its host, without an address of its own."""
    accelerator: str | None = None
    """GKE's node label of the only GPUs whose machines have this network; None: any."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    env_script: str | None = None
    """Script in the container that exports the variables of NCCL: it belongs to the installed version of the plug-in."""
    sidecar: Mapping[str, Any] | None = None
    """Container that runs beside the worker."""
    capabilities: tuple[str, ...] = ()
    """Capabilities of Linux that the worker's container needs."""
    volumes: tuple[Mapping[str, Any], ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Where the worker's container mounts the volumes, by their names."""
    installer: str = ""
    """What the cluster's administrator installs for it."""


def _interfaces(*networks: str, first: int = 1) -> dict[str, str]:
    """Return the annotations that attach these `Network` objects of the cluster, the first one as eth1."""
    named = [("eth0", "default"), *((f"eth{number}", name) for number, name in enumerate(networks, first))]
    interfaces = [{"interfaceName": interface, "network": network} for interface, network in named]
    return {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(interfaces),
    }


def _devices(container: str, *more: str) -> dict[str, str]:
    """Return the annotation by which a container without GPUs of its own gets all of the host."""
    gpus = [f"/dev/nvidia{number}" for number in range(_GPUS_OF_A_HOST)]
    paths = [*gpus, "/dev/nvidiactl", "/dev/nvidia-uvm", *more]
    return {f"devices.gke.io/container.{container}": "".join(f"- path: {path}\n" for path in paths)}


def _host_path(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path}}


def _sidecar(
    name: str, image: str, command: list[str], capabilities: list[str], mounts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a container that starts before the worker, and that Kubernetes ends after it (restartPolicy: Always)."""
    return {
        "name": name,
        "image": image,
        "restartPolicy": "Always",
        "command": command,
        "env": [{"name": "LD_LIBRARY_PATH", "value": LIBRARIES}],
        "securityContext": {"capabilities": {"add": capabilities}},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
    }


_TCPX = Network(
    # gpudirect-tcpx/nccl-test-latest.yaml; variables of NCCL: gpudirect-tcpx/nccl-config.yaml
    accelerator="nvidia-h100-80gb",
    annotations={**_devices("tcpx-daemon"), **_interfaces("vpc1", "vpc2", "vpc3", "vpc4")},
    env={
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_ALGO": "Ring,Tree",
        "NCCL_PROTO": "Simple",
        "NCCL_CROSS_NIC": "0",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_P2P_PXN_LEVEL": "0",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
        "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
        "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
        "NCCL_P2P_NET_CHUNKSIZE": "524288",
        "NCCL_P2P_PCI_CHUNKSIZE": "524288",
        "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        "NCCL_BUFFSIZE": "4194304",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_SOCKET_NTHREADS": "1",
        "NCCL_GPUDIRECTTCPX_TX_BINDINGS": ("eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177"),
        "NCCL_GPUDIRECTTCPX_RX_BINDINGS": (
            "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191"
        ),
        "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
        # The example mounts the daemon's sockets at /tmp, the default of the plug-in; there they would hide its files.
        "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
    },
    sidecar=_sidecar(
        "tcpx-daemon",
        "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.12",
        [
            *("/tcpgpudmarxd/build/app/tcpgpudmarxd", "--gpu_nic_preset", "a3vm", "--gpu_shmem_type", "fd"),
            *(
                "--uds_path",
                "/run/tcpx",
                "--setup_param",
                r"\"--verbose 128 2 0 \"",
            ),  # the backslashes are in Google's file
        ],
        ["NET_ADMIN"],
        {"libraries": LIBRARIES, "tcpx-socket": "/run/tcpx", "sys": "/hostsysfs", "proc-sys": "/hostprocsysfs"},
    ),
    capabilities=("IPC_LOCK",),
    volumes=(
        _host_path("libraries", f"{_INSTALLED}/lib64"),
        _host_path("tcpx-socket", "/run/tcpx"),
        _host_path("sys", "/sys"),
        _host_path("proc-sys", "/proc/sys"),
    ),
    mounts={"libraries": LIBRARIES, "tcpx-socket": "/run/tcpx"},
    installer="nccl-tcpx-installer.yaml",
)

_TCPXO = Network(
    # gpudirect-tcpxo/nccl-test-latest.yaml; the sidecar and the script: gpudirect-tcpxo/best-practice.md
    accelerator="nvidia-h100-mega-80gb",
    annotations={
        **_devices("tcpxo-daemon", "/dev/dmabuf_import_helper"),
        **_interfaces(*(f"vpc{number}" for number in range(1, 9))),
    },
    env={"NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices", "NCCL_LIB_DIR": LIBRARIES},
    env_script=f"{LIBRARIES}/nccl-env-profile.sh",
    sidecar=_sidecar(
        "tcpxo-daemon",
        "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21",
        [
            *("/bin/sh", "-c"),
            "set -ex; chmod 755 /fts/entrypoint_rxdm_container.sh; "
            "exec /fts/entrypoint_rxdm_container.sh --num_hops=2 --num_nics=8 --uid= --alsologtostderr",
        ],
        ["NET_ADMIN", "NET_BIND_SERVICE"],
        {"libraries": LIBRARIES, "sys": "/hostsysfs", "proc-sys": "/hostprocsysfs"},
    ),
    volumes=(
        _host_path("libraries", f"{_INSTALLED}/lib64"),
        _host_path("sys", "/sys"),
        _host_path("proc-sys", "/proc/sys"),
        _host_path("aperture-devices", "/dev/aperture_devices"),
    ),
    mounts={"libraries": LIBRARIES, "aperture-devices": "/dev/aperture_devices"},
    installer="nccl-tcpxo-installer.yaml",
)

_RDMA = Network(
    # gpudirect-rdma/nccl-test.yaml (A3 Ultra) and nccl-test-a4.yaml
    annotations=_interfaces(*(f"rdma-{number}" for number in range(8)), first=2),  # eth1 is the host's second card
    env_script="/usr/local/gib/scripts/set_nccl_env.sh",
    volumes=(_host_path("libraries", _INSTALLED), _host_path("gib", "/home/kubernetes/bin/gib")),
    mounts={"libraries": DRIVER, "gib": "/usr/local/gib"},
    installer="nccl-rdma-installer.yaml",
)

NETWORKS = {
    "pod": Network(),
    "host": Network(is_hosts=True),
    "tcpx": _TCPX,
    "tcpxo": _TCPXO,
    "rdma": _RDMA,
}
"""Networks by their names. Machines: `tcpx` a3-highgpu-8g, `tcpxo` a3-megagpu-8g, `rdma` a3-ultragpu-8g and a4-highgpu-8g."""
_MODELS = {"tcpx": ("H100",), "tcpxo": ("H100",), "rdma": ("H200", "B200")}
"""GPUs of the machines with each network."""
_LABELS = {"H200": "nvidia-h200-141gb", "B200": "nvidia-b200"}
"""GKE's node labels of the GPUs of the machines with `rdma`."""


def default_network(slice: Slice) -> str:
    """Return the host's network where hosts exchange much data, which is faster without a second network on top."""
    return "host" if slice.kind == "tpu" or (slice.kind == "gpu" and slice.hosts > 1) else "pod"


def accelerator_of(slice: Slice, network: Network) -> str | None:
    """Return GKE's label of the nodes with the network; None: any, such as those of clusters without GKE's labels."""
    if network is not _RDMA:
        return network.accelerator
    return _LABELS.get(declared_model(slice.name) or "")


def check_network(name: str, slice: Slice, accelerator: str | None) -> None:
    """Raise UserError if the slice's machines do not have this network."""
    if (models := _MODELS.get(name)) is None:
        return
    network, model = NETWORKS[name], declared_model(slice.name)
    if slice.kind != "gpu":
        raise UserError(
            f"--network {name} is of GPU machines, but {slice.name} has none; leave it out, or give host or pod"
        )
    if slice.devices_per_host != _GPUS_OF_A_HOST:
        raise UserError(
            f"--network {name}: its machines have {_GPUS_OF_A_HOST} GPUs, and a pod uses all of them, but {slice.name} has "
            f"{slice.devices_per_host} on a host; give gpu-{max(1, slice.devices // _GPUS_OF_A_HOST)}x{_GPUS_OF_A_HOST}"
        )
    if model not in (None, *models):
        raise UserError(
            f"--network {name} is that of machines with {' or '.join(models)}, but {slice.name} has {model}; leave it out"
        )
    if network.accelerator and accelerator not in (None, network.accelerator):
        raise UserError(
            f"--network {name} is that of {network.accelerator}, but --accelerator is {accelerator}; leave one of them out"
        )

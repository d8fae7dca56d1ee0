"""Compare podrun's JobSets with those of xpk, Google's launcher for GKE.

`python -m tests.launcher.engines.kubernetes.xpk FOLDER` prints the table of docs/gke.md. FOLDER has xpk, by
`pip install --target FOLDER xpk==1.16.0`. It is called as a user calls it, in its dry run: none of its code is here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from .golden import manifests

SHAPES: dict[str, list[str] | None] = {
    "v5e-8": None,
    "v5e-8 of two hosts": ["--tpu-type=v5litepod-8"],
    "v6e-16": ["--tpu-type=v6e-16"],
    "tpu7x-16": ["--tpu-type=tpu7x-16"],
    "two v6e-64": ["--tpu-type=v6e-64", "--num-slices=2"],
    "gpu-2x8 tcpxo": ["--device-type=h100-mega-80gb-8", "--num-nodes=2"],
}
"""Options of xpk for each of podrun's JobSets; None: xpk has no such slice."""
Manifest = dict[str, Any]


def xpk_manifest(folder: Path, options: list[str]) -> Manifest:
    """Return the JobSet that xpk would create."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "manifest.yaml")
        words = (
            *("workload", "create", "--dry-run", "--skip-validation", "--project=p", "--zone=us-central1-a"),
            *("--cluster=c", "--workload=train", "--command=python my_train.py", "--docker-image=image:1"),
        )
        done = subprocess.run(
            [sys.executable, "-m", "xpk.main", *words, f"--output-manifest-file={path}", *options],
            env={"PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": str(folder)},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def _job(manifest: Manifest) -> Manifest:
    return dict(manifest["spec"]["replicatedJobs"][0]["template"]["spec"])


def _pod(manifest: Manifest) -> Manifest:
    return dict(_job(manifest)["template"]["spec"])


def _container(manifest: Manifest) -> Manifest:
    return dict(_pod(manifest)["containers"][0])


def _metadata(manifest: Manifest) -> Manifest:
    return {**manifest["metadata"], **(_job(manifest)["template"].get("metadata") or {})}


def _env(manifest: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in _container(manifest).get("env") or []}


def _selector(manifest: Manifest, label: str) -> str:
    return str((_pod(manifest).get("nodeSelector") or {}).get(f"cloud.google.com/{label}", "none"))


def _tolerations(manifest: Manifest) -> str:
    return ", ".join(toleration["key"] for toleration in _pod(manifest).get("tolerations") or []) or "none"


def _mounted(manifest: Manifest, path: str) -> str:
    """Return the source of the volume that is mounted at the path or above it."""
    mounts = [m for m in _container(manifest)["volumeMounts"] if f"{path}/".startswith(f"{m['mountPath']}/")]
    volumes = {volume["name"]: volume for volume in _pod(manifest)["volumes"]}
    if not mounts:
        return "none"
    volume = volumes[mounts[0]["name"]]
    return str(volume["hostPath"]["path"]) if "hostPath" in volume else f"memory{_limit(volume)}"


def _limit(volume: Manifest) -> str:
    size = volume["emptyDir"].get("sizeLimit")
    return f" of {size}" if size else ""


def _daemon(manifest: Manifest) -> str:
    containers = _pod(manifest).get("initContainers") or []
    return ", ".join(container["image"].rpartition("/")[2] for container in containers) or "none"


def _devices(manifest: Manifest) -> str:
    names = [name for name in (_metadata(manifest).get("annotations") or {}) if name.startswith("devices.gke.io/")]
    return ", ".join(names) or "none"


def _nccl(manifest: Manifest) -> str:
    env = _env(manifest)
    script = env.get("PODRUN_ENV_SCRIPT", "").rpartition("/")[2]
    return script or ("left to the image" if "USE_GPUDIRECT" in env else "none")


def _yes(value: object) -> str:
    return "yes" if value else "no"


FIELDS: dict[str, tuple[Callable[[Manifest], str], bool, str]] = {
    "slices": (lambda m: str(m["spec"]["replicatedJobs"][0]["replicas"]), True, ""),
    "pods of a slice": (lambda m: str(_job(m)["parallelism"]), True, ""),
    "chips or GPUs of a pod": (lambda m: str(next(iter(_container(m)["resources"]["limits"].values()))), True, ""),
    "restarts of a single pod": (lambda m: str(_job(m)["backoffLimit"]), True, ""),
    "TPU label": (lambda m: _selector(m, "gke-tpu-accelerator"), True, ""),
    "topology label": (lambda m: _selector(m, "gke-tpu-topology"), True, ""),
    "GPU label": (
        lambda m: _selector(m, "gke-accelerator"),
        False,
        "xpk leaves the nodes to Kueue",
    ),
    "a node pool for each slice": (
        lambda m: _yes("alpha.jobset.sigs.k8s.io/exclusive-topology" in (m["metadata"].get("annotations") or {})),
        True,
        "slices of one host share a pool",
    ),
    "placement policy": (
        lambda m: _selector(m, "placement-policy-name"),
        False,
        "xpk names the policy that it has made; `--set pod.spec.nodeSelector...` for yours",
    ),
    "host's network": (lambda m: _yes(_pod(m).get("hostNetwork")), True, ""),
    "`/dev/shm`": (
        lambda m: _mounted(m, "/dev/shm"),
        False,
        "without a limit it is as large as the pod's memory",
    ),
    "tolerations": (
        _tolerations,
        False,
        "the taint `user-workload` is of the Cluster Toolkit: `--toleration`",
    ),
    "driver's libraries": (
        lambda m: _env(m).get("LD_LIBRARY_PATH") or _env(m).get("PODRUN_LIBRARIES") or "none",
        True,
        "podrun adds the folder to the image's path, xpk replaces the path",
    ),
    "`/usr/local/nvidia/lib64`": (
        lambda m: _mounted(m, "/usr/local/nvidia/lib64"),
        False,
        "the folder, as in Google's newer example, or the one above it",
    ),
    "GPUs of the daemon": (_devices, True, ""),
    "daemon": (_daemon, False, "podrun's version is that of Google's release of January 2026"),
    "NCCL's variables": (_nccl, False, "the script belongs to the plug-in that is installed on the node"),
    "privileged container": (
        lambda m: _yes((_container(m).get("securityContext") or {}).get("privileged")),
        False,
        "for TPUs on the host's network; `--set container.securityContext=null` takes it away, old versions of GKE need it",
    ),
    "seconds to save": (
        lambda m: str(_pod(m)["terminationGracePeriodSeconds"]),
        False,
        "`launch.stop_grace` and 60 s for the checkpoint",
    ),
    "deleted after its end": (
        lambda m: str(m["spec"].get("ttlSecondsAfterFinished", "no")),
        False,
        "`--ttl`; xpk's default is 12 h",
    ),
    "queue": (
        lambda m: (m["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name", "none"),
        False,
        "`--queue`; xpk has set up its own",
    ),
    "priority": (lambda m: _pod(m).get("priorityClassName", "none"), False, "`--priority`"),
    "service account": (lambda m: _pod(m).get("serviceAccountName") or "none", False, "`--service-account`"),
}
"""Fields: how to read one, whether it must be equal, and why it may differ."""


def facts(manifest: Manifest) -> dict[str, str]:
    return {name: read(manifest) for name, (read, _, _) in FIELDS.items()}


def compared(folder: Path) -> dict[str, tuple[dict[str, str], dict[str, str] | None]]:
    """Return podrun's and xpk's facts of each shape."""
    ours = {name: facts(yaml.safe_load(text)) for name, text in manifests().items() if name in SHAPES}
    return {
        name: (ours[name], None if options is None else facts(xpk_manifest(folder, options)))
        for name, options in SHAPES.items()
    }


def differences(both: dict[str, tuple[dict[str, str], dict[str, str] | None]]) -> list[str]:
    """Return the fields that must be equal, and are not."""
    return [
        f"{shape}: {name}: {ours[name]}, xpk: {theirs[name]}"
        for shape, (ours, theirs) in both.items()
        if theirs
        for name, (_, must_be_equal, _) in FIELDS.items()
        if must_be_equal and ours[name] != theirs[name]
    ]


def table(both: dict[str, tuple[dict[str, str], dict[str, str] | None]]) -> str:
    """Return the comparison as Markdown."""
    rows = ["| field | podrun | xpk | |", "|---|---|---|---|"]
    for name, (_, _, why) in FIELDS.items():
        ours = {shape: facts[name] for shape, (facts, _) in both.items()}
        theirs = {shape: facts[name] for shape, (_, facts) in both.items() if facts}
        are_equal = all(ours[shape] == value for shape, value in theirs.items())
        rows.append(f"| {name} | {_cell(ours)} | {'the same' if are_equal else _cell(theirs)} | {why} |")
    return "\n".join(rows)


def _cell(values: dict[str, str]) -> str:
    """Return the values, each with its shapes unless all have it."""
    shapes: dict[str, list[str]] = {}
    for shape, value in values.items():
        shapes.setdefault(value, []).append(shape)
    if len(shapes) == 1:
        return next(iter(shapes))
    named = [(value, names) for value, names in shapes.items() if value not in ("none", "no")]
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in named)


if __name__ == "__main__":
    made = compared(Path(sys.argv[1]))
    print(table(made))
    sys.exit("\n".join(differences(made)) or None)

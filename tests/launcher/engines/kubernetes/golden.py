"""JobSets of well-known slices. `python -m tests.launcher.engines.kubernetes.golden` writes their files anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from podrun.launcher.engines.kubernetes.render_jobset import JobSetRequest, make_manifest, to_yaml

from ....conftest import SMALL

FOLDER = Path(__file__).with_suffix("")
_VOLUME = {"volume": ("runs:/runs",), "workdir": "/runs/train"}
_OPTIONS = {
    "v5e-8": {},
    "v5e-8 of two hosts": {"slice": "v5e-8", "chips_per_host": 4},
    "v5e-16": {},
    "v6e-16": {},
    "scheduling": {
        "slice": "v6e-16",
        "spot": True,
        "queue": "team",
        "priority": "high",
        "service_account": "trainer",
        "ttl": 3600,
    },
    "two v6e-16": {"slice": "v6e-16", "num_slices": 2},
    "two v6e-64": {"slice": "v6e-64", "num_slices": 2},
    "tpu7x-16": {},
    "gpu-2x8": {"accelerator": "nvidia-h100-80gb", "namespace": "ml", **_VOLUME},
    "gpu-2x8 tcpx": {"slice": "gpu-2x8", "network": "tcpx"},
    "gpu-2x8 tcpxo": {"slice": "gpu-2x8", "network": "tcpxo"},
    "gpu-2x8 rdma": {"slice": "gpu-2x8", "network": "rdma", "accelerator": "nvidia-h200-141gb"},
    "volumes": {
        "slice": "cpu-2x1",
        "volume": ("runs:/runs", "gs://my-bucket:/data:ro", "nfs://10.0.0.2/share:/home/me"),
        "workdir": "/runs/train",
        "toleration": ("team=a:NoSchedule", "maintenance"),
    },
}


def manifests() -> dict[str, str]:
    """Return the manifests as text by their names."""
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder, "train.yaml")
        train.write_text(SMALL)
        overrides = ("batch_size=256", "launch.max_restarts=3", "model.layers=2")
        written = {name: _manifest(train, overrides, name, more) for name, more in _OPTIONS.items()}
    program = {"slice": "v5e-16", "workdir": None, "program": ("python", "my_train.py", "--cost", "$1")}
    return {**written, "program": _manifest(None, ("launch.max_restarts=3",), "program", program)}


def _manifest(train: Path | None, overrides: tuple[str, ...], slice: str, more: dict[str, object]) -> str:
    options = {"image": "image:1", "slice": slice, "workdir": "gs://bucket/train", **more}
    manifest = make_manifest(JobSetRequest(train, overrides, **options), "20260101-000000-abcd")  # type: ignore[arg-type]
    return to_yaml(manifest)


def file_of(name: str) -> Path:
    return FOLDER / f"{name.replace(' ', '_')}.yaml"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in manifests().items():
        file_of(name).write_text(text, encoding="utf-8")

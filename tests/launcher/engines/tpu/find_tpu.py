"""The pod of `--tpu my-tpu`."""

from __future__ import annotations

from pathlib import Path

from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.pod import Pod
from podrun.runtime.config import Launch

from ....gcloud import ZONE


def find(slice: str | None = None, launch: Launch | None = None, pod: Path | None = None, **more: str) -> Pod:
    """Return it, with these options besides --zone."""
    return find_pod(PodRequest(slice, pod, {"tpu": "my-tpu"}, {"zone": ZONE, **more}), launch)

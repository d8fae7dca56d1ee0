"""Volumes of a pod: persistent volume claims, buckets by GCS FUSE, and shares by NFS such as those of Filestore. PURE.

Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-ephemeral (buckets),
https://kubernetes.io/docs/concepts/storage/volumes/#nfs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from podrun.runtime.contract import UserError

from ...pod.errors import Mistakes

_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])/?")
_SHARE = re.compile(r"nfs://([A-Za-z0-9][A-Za-z0-9.-]{0,252})(/[^:]*)")
_FORMS = "CLAIM:/FOLDER (a persistent volume claim), gs://BUCKET:/FOLDER (GCS FUSE) or nfs://SERVER/SHARE:/FOLDER (Filestore)"
_TAKEN = ("/", "/dev/shm", "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/lib")
FUSE_ANNOTATION = {"gke-gcsfuse/volumes": "true"}
"""Makes GKE add the container that mounts buckets to a pod."""


@dataclass(frozen=True)
class Volume:
    """A volume, and where the worker's container mounts it."""

    typed: str
    """As the user wrote it."""
    source: dict[str, Any]
    """Kubernetes' definition of the volume, without its name."""
    folder: PurePosixPath
    is_read_only: bool = False

    @property
    def is_fuse(self) -> bool:
        return "csi" in self.source

    def source_of(self, is_host_network: bool) -> dict[str, Any]:
        """Return Kubernetes' definition of the volume for a pod on the network of its host, or on one of its own.

        On the host's network the metadata server answers for the node. GCS FUSE reads a bucket as the pod's service account
        only if it is asked to: https://github.com/GoogleCloudPlatform/gcs-fuse-csi-driver/tree/main/docs, on authentication.
        """
        if not (self.is_fuse and is_host_network):
            return self.source
        csi = self.source["csi"]
        return {"csi": {**csi, "volumeAttributes": {**csi["volumeAttributes"], "hostNetworkPodKSA": "true"}}}

    def holds(self, path: Path) -> bool:
        """Return True if the path is below the volume's folder."""
        return PurePosixPath(os.path.normpath(path)).is_relative_to(os.path.normpath(self.folder))


def parse_volumes(texts: Sequence[str]) -> tuple[Volume, ...]:
    """Parse the values of `--volume`. Raises UserError with all mistakes."""
    mistakes = Mistakes()
    volumes = [volume for text in texts if (volume := mistakes.check(partial(_parse, text)))]
    for number, volume in enumerate(volumes):
        if any(other.folder == volume.folder for other in volumes[:number]):
            mistakes.add(
                f"--volume {volume.typed!r}: another volume is mounted at {volume.folder}; give another folder"
            )
    mistakes.raise_any()
    return tuple(volumes)


def _parse(text: str) -> Volume:
    given, is_read_only = (text[:-3], True) if text.endswith(":ro") else (text, False)
    where, colon, folder = given.rpartition(":")
    if not colon or not folder.startswith("/"):
        raise UserError(f"--volume {text!r}: write {_FORMS}; :ro at the end makes it read-only")
    if os.path.normpath(folder) in _TAKEN:
        raise UserError(f"--volume {text!r}: {folder} belongs to the container; choose a folder such as /data")
    return Volume(text, _source(where, text, is_read_only), PurePosixPath(os.path.normpath(folder)), is_read_only)


def _source(where: str, text: str, is_read_only: bool) -> dict[str, Any]:
    read_only = {"readOnly": True} if is_read_only else {}
    if bucket := _BUCKET.fullmatch(where):
        driver = {"driver": "gcsfuse.csi.storage.gke.io", **read_only}
        # implicit-dirs: folders exist without an object of their own, as other programs write them
        return {"csi": {**driver, "volumeAttributes": {"bucketName": bucket[1], "mountOptions": "implicit-dirs"}}}
    if share := _SHARE.fullmatch(where):
        return {"nfs": {"server": share[1], "path": share[2], **read_only}}
    if _CLAIM.fullmatch(where):
        return {"persistentVolumeClaim": {"claimName": where, **read_only}}
    raise UserError(f"--volume {text!r}: {where!r} is no claim, bucket or share; write {_FORMS}")

"""SSH settings for Google's machines: gcloud's key, and a known_hosts file for each TPU VM as gcloud has."""

from __future__ import annotations

from pathlib import Path

from ...pod.home import podrun_home
from ...pod.pod import Ssh

_KEY = Path("~/.ssh/google_compute_engine")  # gcloud makes it, and copies the public key to the TPU VMs


def google_ssh(known: str | None) -> Ssh:
    """Return the SSH settings for a TPU VM.

    Args:
        known: name of its known_hosts file; None: the user's own. The name contains Google's unique number of the TPU
            VM, because another machine with another host key may get its address later.
    """
    key = _KEY if _KEY.expanduser().is_file() else None
    if known is None:
        return Ssh(key=key)
    return Ssh(key=key, known_hosts=podrun_home() / "known_hosts" / known, host_keys="accept-new")

"""Say how to log in to machines of Google: by gcloud's key, with host keys as gcloud handles them."""

from __future__ import annotations

from pathlib import Path

from ...pod.home import podrun_home
from ...pod.pod import Ssh

_KEY = Path("~/.ssh/google_compute_engine")  # which gcloud makes, and brings to the TPU VMs


def google_login(known: str | None) -> Ssh:
    """Return the SSH settings. `known` names the file of known keys, by a number that Google gives once; None: the user's.

    The next machine at the same address is another one with another key, so known keys are kept by such a number.
    """
    key = _KEY if _KEY.expanduser().is_file() else None
    if known is None:
        return Ssh(key=key)
    return Ssh(key=key, known_hosts=podrun_home() / "known_hosts" / known, host_keys="accept-new")

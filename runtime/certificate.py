"""The certificate of a run, with which only its own processes can reach JAX's coordination service.

Source: https://docs.jax.dev/en/latest/jep/501-coordination-service-mtls.html
"""

from __future__ import annotations

import base64
import inspect
import os
from typing import Any

import jax

from .contract import CERTIFICATE_URI, ENV_CERTIFICATE


def mutual_tls() -> dict[str, Any]:
    """Return arguments of `jax.distributed.initialize` that make its connections use mutual TLS.

    Empty if podrun has given this process no certificate, or JAX is older than 0.12 and cannot use one. The certificate
    leaves the environment, so that no process that is started later has it.

    Raises OSError if this host cannot keep a file in memory.
    """
    encoded = os.environ.pop(ENV_CERTIFICATE, "")
    if not encoded or "mtls_cert_file" not in inspect.signature(jax.distributed.initialize).parameters:
        return {}
    # JAX takes paths, and reads them again later: so it stays open, and has a path without being in a file system.
    memory = os.memfd_create("certificate")
    os.write(memory, base64.b64decode(encoded))
    path = f"/proc/self/fd/{memory}"
    files = dict.fromkeys(("mtls_cert_file", "mtls_key_file", "mtls_ca_file"), path)
    return {**files, "mtls_peer_uri_prefix": CERTIFICATE_URI}

"""Set the address at which gloo, the collectives of CPUs, listens.

gloo tells the other processes the address that its host's own name resolves to. Debian's installer writes `127.0.1.1 NAME`
into /etc/hosts, with which they would look for it on themselves, and only root can change that file.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.backend import register_backend_factory

_SETTING = "jax_cpu_collectives_implementation"


def listen_at(address: str) -> None:
    """Let gloo listen at `address`, which the other hosts reach. Must be called before JAX makes its CPU backend.

    JAX has no setting for it. The code here uses private parts of JAX, whose version setup.cfg bounds.
    """

    def make_client() -> Any:
        from jax._src import distributed, xla_bridge
        from jaxlib import _jax

        client = distributed.global_state.client
        if client is None or getattr(jax.config, _SETTING) != "gloo":
            return xla_bridge.make_cpu_client()
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(distributed_client=client, hostname=address))

    register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)

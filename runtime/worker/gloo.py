"""Set the address at which gloo, JAX's collectives library for CPUs, listens.

By default gloo publishes the address that the host's own name resolves to. Debian's installer writes `127.0.1.1 NAME` to
/etc/hosts, which other hosts cannot connect to, and only root can change that file.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.backend import register_backend_factory

_SETTING = "jax_cpu_collectives_implementation"


def listen_at(address: str) -> None:
    """Make gloo listen at `address`, where the other hosts can reach it. Call it before JAX makes its CPU backend.

    JAX has no setting for this, so private functions of JAX are used; setup.cfg limits its versions.
    """

    def make_client() -> Any:
        from jax._src import distributed, xla_bridge
        from jaxlib import _jax

        client = distributed.global_state.client
        if client is None or getattr(jax.config, _SETTING) != "gloo":
            return xla_bridge.make_cpu_client()
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(distributed_client=client, hostname=address))

    register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)

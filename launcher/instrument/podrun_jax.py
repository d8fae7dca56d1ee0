"""Let JAX find the pod, and warn of a program that joins it wrongly or not at all: `sitecustomize` calls this."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Note = Callable[[str], None]
_POD = {
    name: os.environ.get("PODRUN_" + name, "") for name in ("COORDINATOR", "NUM_PROCESSES", "PROCESS_ID", "ADDRESS")
}
"""Identity of this process, from its start: the program may change its environment."""


def join_with_jax(clusters: "Any", note: "Note") -> None:
    """Let a bare `jax.distributed.initialize()` join the pod: JAX asks the kinds of clusters it knows, this one first.

    JAX has no public way to add one; the bounds of its version in setup.cfg say where this was tried.
    """
    try:

        class Podrun(clusters.ClusterEnv):  # type: ignore[misc]
            name = "podrun"

            @classmethod
            def is_env_present(cls) -> bool:
                return "PODRUN_COORDINATOR" in os.environ

            @classmethod
            def get_coordinator_address(
                cls, timeout_secs: "Any" = None, override_coordinator_port: "Any" = None
            ) -> str:
                return _POD["COORDINATOR"]

            @classmethod
            def get_process_count(cls) -> int:
                return int(_POD["NUM_PROCESSES"])

            @classmethod
            def get_process_id(cls) -> int:
                return int(_POD["PROCESS_ID"])

            @classmethod
            def get_local_process_id(cls) -> None:
                """Return None: the devices of this process are in JAX_LOCAL_DEVICE_IDS, or all of its host."""

        kinds = clusters.ClusterEnv._cluster_types
        kinds.insert(0, kinds.pop(kinds.index(Podrun)))
    except Exception as error:  # another JAX than those that were tried
        what = (
            "jax.distributed.initialize() needs its arguments with this JAX (%s: %s); the PODRUN_* variables have them"
        )
        note(what % (type(error).__name__, error))


def prepare_joining(distributed: "Any", note: "Note") -> None:
    """Let JAX listen where podrun says when it joins the pod, with or without arguments of the program's own."""
    state = distributed.State
    start = state.initialize

    def initialize(self: "Any", coordinator_address: "Any" = None, *args: "Any", **kwargs: "Any") -> "Any":
        try:
            _prepare(coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"), note)
            _compare(dict(zip(("num_processes", "process_id"), args), **kwargs), note)
        except Exception:  # what the program gave is for JAX to refuse
            pass
        return start(self, coordinator_address, *args, **kwargs)

    state.initialize = initialize


def _prepare(chosen: "Any", note: "Note") -> None:
    pods = _POD["COORDINATOR"]
    if chosen == pods and _is_loopback(pods):  # all others are on this machine, so nobody else needs to reach it
        os.environ.setdefault("JAX_COORDINATOR_BIND_ADDRESS", pods)
    elif chosen != pods and _is_loopback(str(chosen)) and not _is_loopback(pods) and _is_first():
        note(
            "jax.distributed.initialize() was told that process 0 is at %s, where each host finds only itself; give it "
            "no arguments, or JAX_COORDINATOR_ADDRESS" % chosen
        )
    _listen_where_podrun_says()


def _compare(given: "Any", note: "Note") -> None:
    """Warn of a program that joins with other numbers than podrun's, for which JAX would wait for minutes."""
    for name in ("num_processes", "process_id"):
        right = _POD[name.upper()]
        if right and given.get(name) not in (None, int(right)):
            what = "jax.distributed.initialize() was called with %s=%s, and podrun has %s; call it without arguments"
            note(what % (name, given[name], right))


def _is_first() -> bool:
    return _POD["PROCESS_ID"] == "0"


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost:", "[::1]:"))


def _listen_where_podrun_says() -> None:
    """Let the collectives of CPUs listen at PODRUN_ADDRESS, as podrun's own helper does, if its runtime is at hand."""
    if _POD["ADDRESS"] and os.environ.get("JAX_PLATFORMS") == "cpu":
        try:
            from podrun.runtime.worker.gloo import listen_at
        except Exception:  # another environment, an older Python, a file podrun.py of the program
            return  # the host's name must resolve
        listen_at(_POD["ADDRESS"])


def watch_backends(bridge: "Any", note: "Note") -> None:
    """Warn if JAX starts to compute in a process of several that has not joined the others."""
    start = getattr(bridge, "_init_backend", None)
    number = _POD["NUM_PROCESSES"]
    if start is None or not _is_first() or number == "1":
        return

    def init_backend(platform: str) -> "Any":
        bridge._init_backend = start
        state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        if getattr(state, "client", state) is None:
            note(
                "this program runs as %s independent copies: each sees only its own devices, because JAX computes before "
                "jax.distributed.initialize() was called; call it first, without arguments" % number
            )
        return start(platform)

    bridge._init_backend = init_backend

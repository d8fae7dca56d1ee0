"""Let JAX find the pod, and warn of a program that joins it wrongly or not at all. Called by `sitecustomize`."""

import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    Note = Callable[[str], None]
_NAMES = ("COORDINATOR", "NUM_PROCESSES", "PROCESS_ID", "ADDRESS", "LOCAL_DEVICE_IDS", "SLICE", "CERTIFICATE")
_POD = {name: os.environ.get("PODRUN_" + name, "") for name in _NAMES}
"""Environment variables that identify this process. Read at the start, because the program may change them."""
_SHUTDOWN = 24 * 3600
"""Seconds for which a process that is done waits for the others, equal to `SHUTDOWN_LIMIT` of podrun's runtime."""
_ALONE = 60
"""Seconds after its first computation at which a program that has computed nothing on several processes is warned."""
_SHARDING = "spread the batch over jax.devices() with a sharding (docs/programs.md)"


def join_with_jax(clusters: "Any", note: "Note") -> None:
    """Add podrun in front of the clusters that JAX detects, so that `jax.distributed.initialize()` needs no arguments.

    JAX has no public function for that. setup.cfg limits its versions to those with which this was tested.
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
                """Return None: the process uses the devices in JAX_LOCAL_DEVICE_IDS, or all devices of its host."""

        kinds = clusters.ClusterEnv._cluster_types
        kinds.insert(0, kinds.pop(kinds.index(Podrun)))
    except Exception as error:  # an untested version of JAX
        what = (
            "jax.distributed.initialize() needs its arguments with this JAX (%s: %s); the PODRUN_* variables have them"
        )
        note(what % (type(error).__name__, error))


def join(jax: "Any") -> None:
    """Join the pod now, if `launch.join` asks for it. Processes that the program starts later do not join again."""
    if os.environ.get("PODRUN_JOIN") != "1" or _POD["NUM_PROCESSES"] == "1" or _is_child():
        return
    jax.distributed.initialize(shutdown_timeout_seconds=_SHUTDOWN)
    os.environ["PODRUN_JOIN"] = str(os.getpid())


def _is_child() -> bool:
    """Return whether a process of the pod has started this one: by Python's multiprocessing, or after `join`."""
    process = sys.modules.get("multiprocessing.process")
    joined = os.environ.get("PODRUN_JOIN", "1")
    return (process is not None and process.parent_process() is not None) or joined not in ("1", str(os.getpid()))


def prepare_joining(distributed: "Any", note: "Note") -> None:
    """Wrap JAX's `initialize`: give it the run's certificate, set the listening addresses, and warn of wrong arguments."""
    state = distributed.State
    start = state.initialize

    def initialize(self: "Any", coordinator_address: "Any" = None, *args: "Any", **kwargs: "Any") -> "Any":
        if os.environ.get("PODRUN_JOIN") == str(os.getpid()):
            return None  # `join` was faster
        try:
            _prepare(coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"), note)
            _compare(dict(zip(("num_processes", "process_id"), args), **kwargs), note)
        except Exception:  # JAX itself reports invalid arguments
            pass
        if "mtls_cert_file" in start.__code__.co_varnames and not kwargs.get("mtls_cert_file"):
            kwargs.update(_mutual_tls(coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")))
        return start(self, coordinator_address, *args, **kwargs)

    state.initialize = initialize


def _mutual_tls(chosen: "Any") -> "Dict[str, Any]":
    """Return the arguments with which only processes of this run can join, as in certificate.py of podrun's runtime.

    Empty if the program has chosen another coordinator, which may serve others too. Raises OSError without files in memory.
    """
    if not _POD["CERTIFICATE"] or chosen not in (None, _POD["COORDINATOR"]):
        return {}
    from binascii import a2b_base64

    memory = os.memfd_create("certificate")
    os.write(memory, a2b_base64(_POD["CERTIFICATE"]))
    path = "/proc/self/fd/%d" % memory
    files = dict.fromkeys(("mtls_cert_file", "mtls_key_file", "mtls_ca_file"), path)
    return {**files, "mtls_peer_uri_prefix": "podrun://run/"}


def _prepare(chosen: "Any", note: "Note") -> None:
    pods = _POD["COORDINATOR"]
    if chosen == pods and _is_loopback(pods):  # all processes are on this machine, so loopback is enough
        os.environ.setdefault("JAX_COORDINATOR_BIND_ADDRESS", pods)
    elif chosen != pods and _is_loopback(str(chosen)) and not _is_loopback(pods) and _is_first():
        note(
            "jax.distributed.initialize() was called with the coordinator %s, which other hosts cannot reach; call it "
            "without arguments, or with JAX_COORDINATOR_ADDRESS" % chosen
        )
    _set_collectives_address()


def _compare(given: "Any", note: "Note") -> None:
    """Warn if the arguments `given` to JAX's `initialize` differ from podrun's, because JAX would wait for minutes."""
    for name in ("num_processes", "process_id"):
        right = _POD[name.upper()]
        if right and given.get(name) not in (None, int(right)):
            what = "jax.distributed.initialize() was called with %s=%s, and podrun has %s; call it without arguments"
            note(what % (name, given[name], right))


def _is_first() -> bool:
    return _POD["PROCESS_ID"] == "0"


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost:", "[::1]:"))


def _set_collectives_address() -> None:
    """Let CPU collectives listen at PODRUN_ADDRESS, as `podrun.init` does, if podrun's runtime can be imported."""
    if _POD["ADDRESS"] and os.environ.get("JAX_PLATFORMS") == "cpu":
        try:
            from podrun.runtime.worker.gloo import listen_at
        except Exception:  # another environment, an older Python, a file podrun.py of the program
            return  # JAX then listens at the address of the host's name
        listen_at(_POD["ADDRESS"])


def watch_backends(bridge: "Any", note: "Note") -> None:
    """Warn if the program computes before it joins the pod, or on devices that are not the slice's."""
    start = getattr(bridge, "_init_backend", None)
    if start is None or not _is_first() or _is_child():
        return

    def init_backend(platform: str) -> "Any":
        _warn_of_copies(note)
        backend = start(platform)
        try:
            _compare_devices(backend, note)
        except Exception:  # another version of JAX
            pass
        return backend

    bridge._init_backend = init_backend


_warned: "Dict[str, bool]" = {}
"""Warnings that this program has already been given."""


def _warn_of_copies(note: "Note") -> None:
    number = _POD["NUM_PROCESSES"]
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if number == "1" or _warned.setdefault("joined", getattr(state, "client", state) is not None):
        return
    if not _warned.setdefault("copies", False):
        _warned["copies"] = True
        note(
            "this program runs as %s independent copies: each sees only its own devices, because JAX computes before "
            "jax.distributed.initialize() was called; call it first, without arguments, or give podrun the option --join"
            % number
        )
        atexit.register(
            _print, "podrun: %s independent copies of this program have run; with --join they are one" % number
        )


def watch_compiler(compiler: "Any", note: "Note") -> None:
    """Warn of a program whose processes have joined the pod, but compute nothing together."""
    before = getattr(compiler, "compile_or_get_cached", None)
    if before is None or not _is_first() or _POD["NUM_PROCESSES"] == "1" or _is_child():
        return

    def compile_or_get_cached(backend: "Any", computation: "Any", devices: "Any", *args: "Any", **keys: "Any") -> "Any":
        try:
            _watch_devices(devices, note)
        except Exception:  # another version of JAX
            pass
        return before(backend, computation, devices, *args, **keys)

    compiler.compile_or_get_cached = compile_or_get_cached


def _watch_devices(devices: "Any", note: "Note") -> None:
    """Note the devices of a computation. At the first one of a process that has joined, start to watch for others."""
    if len({device.process_index for device in devices.flat}) > 1:
        _warned["together"] = True
    elif _warned.get("joined") and "together" not in _warned:
        _warned["together"] = False
        atexit.register(_warn_at_the_end)
        _thread.start_new_thread(_warn_later, (note,))


def _warn_later(note: "Note") -> None:
    time.sleep(_ALONE)
    if not _warned["together"]:
        what = "the %s processes of this program have joined, but so far each computes on its own devices alone, as an "
        note(what % _POD["NUM_PROCESSES"] + "independent copy; " + _SHARDING)


def _warn_at_the_end() -> None:
    if not _warned["together"] and not hasattr(sys, "last_value"):  # unless it has failed
        what = "podrun: the %s processes of this program had joined, but each computed on its own devices alone; %s"
        _print(what % (_POD["NUM_PROCESSES"], _SHARDING))


def _print(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except Exception:  # stderr is closed
        pass


def _compare_devices(backend: "Any", note: "Note") -> None:
    """Warn if this process has more or fewer devices than its part of the slice."""
    on_cpu = _POD["SLICE"].startswith("cpu-") or os.environ.get("JAX_PLATFORMS") == "cpu"
    expected, seen = len(_POD["LOCAL_DEVICE_IDS"].split(",")), backend.local_device_count()
    if (backend.platform == "cpu") != on_cpu or seen == expected or _warned.setdefault("devices", False):
        return
    _warned["devices"] = True
    cause = ": the program sets jax_num_cpu_devices or XLA_FLAGS" if on_cpu else ""
    note("JAX has %d devices in this process, and its part of %s are %d%s" % (seen, _POD["SLICE"], expected, cause))

"""Gather the facts of one host from the kernel and the workers' interpreter, without touching an accelerator."""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..base.address import is_own, peer_address, resolve_or_raise
from ..base.boot import boot_id
from ..base.places import environments_folder
from ..base.python_version import is_version
from ..host.devices import device_nodes, holders, lock_file
from ..host.gpus import read_gpus
from ..host.links import read_links
from ..host.lock import claimed_by_others, current_holder
from .packages import InterpreterError, ask_interpreter, ask_target, missing_modules
from .store import is_complete

if TYPE_CHECKING:
    from ..base.from_agent import Disk, Facts, HostName, Interpreter, Limits, Links, Memory, Proxies, System
    from ..base.to_agent import FactsRequest

LIMIT = 15.0  # seconds for a fact: a dead network file system or name server never answers
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
_DRIVER = "/proc/driver/nvidia/version"
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def gather(
    request: FactsRequest, devices: str = "/dev", interpreter: Optional[Callable[[], Interpreter]] = None
) -> Facts:
    """Return facts by name. A fact that cannot be determined is `{"error": reason}`. Never raises.

    The fact `clock` has this host's time when the request was `received` and `answered`.

    Args:
        request: the values that the facts depend on. Paths may begin with `~/`.
        devices: folder of the device nodes.
        interpreter: returns the facts of the workers' interpreter, if they were gathered before.
    """
    received = time.time()
    env: Dict[str, str] = dict(request.get("env") or {})
    nodes = device_nodes(devices)
    questions: Dict[str, Callable[[], Any]] = {
        "system": _system,
        "interpreter": interpreter or (lambda: _interpreter(request, env)),
        "driver": _driver,
        "disk_home": lambda: _disk(request.get("home") or "~/.podrun"),
        "disk_tmp": lambda: _disk("/tmp"),
        "machine": _machine,
        "disk_workdir": lambda: _disk(request.get("workdir")),
        "memory": _memory,
        "devices": lambda: nodes,
        "holders": lambda: holders(path for paths in nodes.values() for path in paths),
        "gpus": lambda: read_gpus(dict(os.environ, **env)) if request.get("platform") == "cuda" else None,
        "links": lambda: _links(request, env),
        "lock_file": lock_file,
        "run": lambda: current_holder(os.path.expanduser(request.get("home") or "~/.podrun")),
        "claim": claimed_by_others,
        "host_name": lambda: _host_name(request.get("internal")),
        "proxies": lambda: _proxies(dict(os.environ, **env)),
        "huge_pages": _huge_pages,
        "limits": _limits,
        "lacks": lambda: _lacks(request, env),
    }
    facts: Any = _ask_all(questions)
    facts["clock"] = {"received": received, "answered": time.time()}
    gathered: Facts = facts
    return gathered


def _ask_all(questions: Dict[str, Callable[[], Any]]) -> Dict[str, Any]:
    """Call all functions at the same time, each in a thread, so that only the fact of one that hangs is missing."""
    facts: Dict[str, Any] = {}

    def ask(name: str, question: Callable[[], Any]) -> None:
        try:
            facts[name] = question()
        except Exception as error:  # the other facts must not be lost
            facts[name] = {"error": str(error) or type(error).__name__}

    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = {"error": "no answer within %g s" % LIMIT}
    answered = dict(facts)  # a late thread may still write
    return {name: answered.get(name, late) for name in questions}


def _interpreter(request: FactsRequest, env: Dict[str, str]) -> Interpreter:
    """Return version, executable and packages of the workers' interpreter. Raises InterpreterError.

    `packages` is None if a run will build the environment, because it is missing, unfinished, or of another Python.
    Then `extends` is true if the build starts from an environment with fewer requirements, and `cannot_build` says why
    a build is impossible, and `target` for which interpreter the launcher must send wheels.
    """
    python, before = request.get("python") or "python3", request.get("python_before")
    if not before or before == python:
        return ask_interpreter(python, env, request.get("container"))
    brought = False
    if is_version(before):
        from .managed_python import find_version

        ready = find_version(_home(request), before, dict(os.environ, **env))
        if ready is None:
            return _to_bring(request, before, env)
        before, brought = ready.python, ready.uv is not None
    base = ask_interpreter(before, env)
    built = _ask_environment(python, env)
    if built is not None and built["version"] == base["version"]:
        return built
    missing: Interpreter = {**base, "packages": None, "extends": _can_extend(request, base["version"])}
    if request.get("offline"):
        missing["target"] = ask_target(before, env)
    from .buildable import why_not_buildable

    # wheels need no index, as a file without packages needs none
    text = "" if request.get("offline") else request.get("requirements") or ""
    why = why_not_buildable(base["executable"], text, dict(os.environ, **env), brought)
    if why is not None:
        missing["cannot_build"] = why
    return missing


def _to_bring(request: FactsRequest, version: str, env: Dict[str, str]) -> Interpreter:
    """Return the facts about a Python that a run will install."""
    facts: Interpreter = {
        "version": version,
        "executable": "the one that podrun brings",
        "packages": None,
        "brings": ask_target(sys.executable, {}),
    }
    if not request.get("offline"):
        from .buildable import why_no_python, why_not_buildable

        all_env = dict(os.environ, **env)
        why = why_no_python(all_env) or why_not_buildable(version, request.get("requirements") or "", all_env, True)
        if why is not None:
            facts["cannot_build"] = why
    return facts


def _home(request: FactsRequest) -> str:
    return os.path.abspath(os.path.expanduser(request.get("home") or "~/.podrun"))


def _ask_environment(python: str, env: Dict[str, str]) -> Optional[Interpreter]:
    """Return the facts of an environment's interpreter; None if the environment is missing or unfinished."""
    if not is_complete(os.path.dirname(os.path.dirname(os.path.expanduser(python)))):
        return None  # an interrupted build leaves an interpreter without packages
    try:
        return ask_interpreter(python, env)
    except InterpreterError:
        return None


def _can_extend(request: FactsRequest, version: str) -> bool:
    from .environment import extendable

    envs = environments_folder(_home(request))
    versions = [built_with.split() for built_with, _ in extendable(envs, request.get("requirements") or "")]
    return any(words[:1] == [version] for words in versions)


def _lacks(request: FactsRequest, env: Dict[str, str]) -> List[str]:
    """Return the modules of the user's program that the workers' interpreter does not find; empty if that is unknown."""
    modules = request.get("modules")
    if not modules:
        return []
    try:
        return missing_modules(request.get("python") or "python3", env, request.get("container"), modules)
    except InterpreterError:
        return []  # another fact tells what is wrong with the interpreter


def _system() -> System:
    return {
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _machine() -> str:
    """Return an id of this machine, or of this container if it has its own network."""
    return "%s %s" % (boot_id(), os.readlink("/proc/self/ns/net"))


def _driver() -> Optional[str]:
    """Return the version of NVIDIA's kernel module; None if it is not loaded."""
    try:
        with open(_DRIVER) as file:
            text = file.readline()
    except FileNotFoundError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+[.\d]*)", text)
    return match.group(1) if match else text.strip()


def _disk(path: Optional[str]) -> Optional[Disk]:
    """Return the free space of the nearest existing folder above `path`; None if `path` is not a local folder."""
    if not path or "://" in path:
        return None
    place = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(place) and place != "/":
        place = os.path.dirname(place)
    space = os.statvfs(place)
    return {
        "path": os.path.expanduser(path),
        "folder": place,
        "free": space.f_bavail * space.f_frsize,
        "total": space.f_blocks * space.f_frsize,
        "files": space.f_favail if space.f_files else None,  # some file systems have no limit
        "writable": os.access(place, os.W_OK | os.X_OK),
    }


def _memory() -> Memory:
    with open("/proc/meminfo") as file:
        kilobytes = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in file)}
    return {"total": kilobytes["MemTotal"] * 1024, "available": kilobytes["MemAvailable"] * 1024}


def _host_name(internal: Optional[str]) -> HostName:
    """Return the `addresses` to which this host's own name resolves.

    `used` is the first one that belongs to this host, which programs take for the address at which other hosts reach
    it. `peers` is the address at which they do, if known.
    """
    name = socket.gethostname()
    peers = peer_address(internal)
    try:
        addresses = resolve_or_raise(name)
    except OSError as error:
        return {"name": name, "addresses": [], "used": None, "peers": peers, "why": error.strerror or str(error)}
    return {"name": name, "addresses": addresses, "used": next(filter(is_own, addresses), None), "peers": peers}


def _links(request: FactsRequest, env: Dict[str, str]) -> Optional[Links]:
    if request.get("platform") != "cuda":
        return None
    return read_links(peer_address(request.get("internal")), dict(os.environ, **env))


def _proxies(env: Dict[str, str]) -> Proxies:
    """Return the names of the proxy variables that are set. Values are left out, because they may contain a password."""
    names = sorted(name for name in env if name.lower() in _PROXIES and env[name])
    return {"set": names, "no_proxy": env.get("no_proxy") or env.get("NO_PROXY") or env.get("no_grpc_proxy")}


def _huge_pages() -> str:
    """Return the setting of transparent huge pages: `always`, `madvise` or `never`."""
    with open(_HUGE_PAGES) as file:
        text = file.read()
    return text.partition("[")[2].partition("]")[0] or text.strip()


def _limits() -> Limits:
    """Return the soft limits of this process; None: unlimited."""

    def soft(which: int) -> Optional[int]:
        value = resource.getrlimit(which)[0]
        return None if value == resource.RLIM_INFINITY else value

    return {"nofile": soft(resource.RLIMIT_NOFILE), "memlock": soft(resource.RLIMIT_MEMLOCK)}

"""Prewarm a worker: import what training needs, then wait until the host's agent says which worker to become.

Until then no device is used, and nothing that belongs to a particular attempt is read.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import site
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from ..contract import ENV_MAIN_PID, ENV_PID

PREWARM = "--prewarm"
"""Argument of a worker that is prewarmed for the next attempt, while others train: it imports at low priority."""
PRESTART = "--prestart"
"""Argument of a worker that is prewarmed for the first attempt, which is about to start."""
HOLD = "--hold"
"""Argument of a worker that is prewarmed for a later run on a held pod, perhaps in half an hour and with other code."""
_NICE = 19
_CLOCK = (
    20_000_000  # nanoseconds by which the time of a change may be too early, because the kernel's clock for files ticks
)
_SMALL = {"embedding": (16, 8), "weights": (8, 8)}


def wait_to_start(import_modules: Callable[[], None], how: str) -> None:
    """Import modules, wait for the agent's orders, then take on the worker's environment, working directory and output.

    On a held pod, files may have changed since this process was started. Then it starts again, as the worker, without them.

    Args:
        import_modules: imports what training needs.
        how: PREWARM, PRESTART or HOLD.
    """
    packages = _packages() if how == HOLD else {}
    importing = os.dup(1)  # the agent reads its end, and so learns when the imports are done
    with tempfile.TemporaryFile() as printed:
        _print_to(printed.fileno())
        with contextlib.suppress(Exception):  # the worker imports again and reports the error
            if how == PREWARM:  # another worker is training on this host
                _import_at_low_priority(import_modules)
            else:
                import_modules()
        files, origins = (_imported_files(), _origins(sys.path[1:])) if how == HOLD else ({}, {})
        os.close(importing)
        orders = _await_orders()
        os.chdir(orders["folder"])
        out = os.open(orders["output"], os.O_WRONLY | os.O_APPEND)
        _print_to(out)
        os.chdir(orders["cwd"])
        if how == HOLD and (reason := _why_stale(files, packages, origins, _start_time())):
            print(f"cold start: {reason}", flush=True)
            _start_again(orders["env"])
        printed.seek(0)
        os.write(out, printed.read())
        os.close(out)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[0] = os.getcwd()
    del sys.argv[1:]  # which modules of the job may parse when they are imported
    _set_environ(orders["env"])
    tempfile.tempdir = None  # it was chosen by the environment before
    sys.path_importer_cache.clear()  # folders of Python's path may have appeared meanwhile
    importlib.invalidate_caches()


def trace_small_step() -> None:
    """Trace a small training step, so that a job finds JAX's own functions traced. Initializes no backend."""
    import jax
    import jax.numpy as jnp
    import optax

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = jnp.take(params["embedding"], tokens, axis=0)
        x = (x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)
        scores = jnp.einsum("btd,bsd->bts", x, x)
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
        x = jax.nn.gelu(jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), x) @ params["weights"])
        logits = x @ params["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    optimizer = optax.adamw(1e-3)

    def step(params: Any, state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value, jax.random.split(key)

    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in _SMALL.items()}
    state = jax.eval_shape(optimizer.init, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    jax.jit(step).trace(params, state, jax.ShapeDtypeStruct((2, 4), jnp.int32), key)


class _Version(NamedTuple):
    """A file or folder as it was at some time; all zero if there is none."""

    changed: int = 0
    """Time of the last change, in nanoseconds."""
    mtime: int = 0
    size: int = 0
    inode: int = 0


def _imported_files() -> dict[str, _Version]:
    """Return the version of the file of each imported module, by its path."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {path: _version(path) for path in paths if isinstance(path, str)}


def _packages() -> dict[str, _Version]:
    """Return the versions of the files and folders in the places of installed packages, and of those places.

    A new one may be a package that an import has looked for in vain, or a `.pth` file, which changes Python's path.
    """
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    settings = os.path.join(sys.prefix, "pyvenv.cfg")
    packages = {settings: _version(settings)}
    for place in [*site.getsitepackages(), *user]:
        packages[place] = _Version(inode=_version(place).inode)
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.name == "__pycache__":  # an import may make it
                    continue
                is_read = entry.name.endswith(".pth")
                packages[entry.path] = _version(entry.path) if is_read else _Version(inode=entry.inode())
    return packages


def _version(path: str) -> _Version:
    try:
        status = os.stat(path)
    except OSError:
        return _Version()
    # Package managers link files into further environments, which changes the time of the inode, not the file.
    changed = status.st_ctime_ns if status.st_nlink == 1 else min(status.st_ctime_ns, status.st_mtime_ns)
    return _Version(changed, status.st_mtime_ns, status.st_size, status.st_ino)


def _start_time() -> int:
    """Return the time at which this process was started, in nanoseconds."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age * 1e9) - _CLOCK


def _origins(path: list[str]) -> dict[str, str]:
    """Return the file from which each imported top-level module would be imported now, if its folders are these."""
    sys.path_importer_cache.clear()
    modules = [(name, getattr(module, "__spec__", None)) for name, module in sys.modules.items() if "." not in name]
    names = [name for name, spec in modules if spec is not None and spec.has_location and name != "__main__"]
    specs = {name: PathFinder.find_spec(name, path) for name in names}
    return {name: spec.origin for name, spec in specs.items() if spec is not None and spec.origin is not None}


def _why_stale(files: dict[str, _Version], packages: dict[str, _Version], origins: dict[str, str], start: int) -> str:
    """Return why an import would give something else now; empty if all modules are those that would be imported.

    Args:
        files: the imported files as they were after the imports.
        packages: the installed packages before the imports.
        origins: the files of the imported modules after the imports, by `_origins`.
        start: time at which this process was started.
    """
    before = {**packages, **files}
    now = {**_packages(), **{path: _version(path) for path in files}}
    for path in sorted({*before, *now}):
        version = before.get(path, _Version())
        if version.changed >= start or version != now.get(path, _Version()):
            return f"{path} has changed since this pod was held"
    # The working directory comes first on Python's path, then the folders of PYTHONPATH.
    for name, origin in _origins([os.getcwd(), *sys.path[1:]]).items():
        if origin not in files and (origin != origins.get(name) or _version(origin).changed >= start):
            return f"{origin} has the name of a module that was imported before"
    return ""


def _start_again(env: dict[str, str]) -> None:
    """Replace this process by the worker as it is started without a hold."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _set_environ(env)
    command = sys.orig_argv[:-1]
    os.execvp(command[0], command)


def _set_environ(env: dict[str, str]) -> None:
    pids = {name: os.environ[name] for name in (ENV_PID, ENV_MAIN_PID)}
    os.environ.clear()
    os.environ.update({**env, **pids})


def _import_at_low_priority(import_modules: Callable[[], None]) -> None:
    """Import at the lowest priority, if this process may raise its priority again; otherwise at its own."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -1)
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        pass
    import_modules()
    for thread in os.listdir("/proc/self/task"):  # threads that libraries have started inherit the low priority
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def _await_orders() -> Any:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)  # the agent is gone, or does not need this worker
    return json.loads(line)


def _print_to(out: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for target in (1, 2):
        os.dup2(out, target)

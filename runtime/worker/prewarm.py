"""Prewarm a worker: import what training needs, then wait until the host's agent says which worker to become.

Until then no device is used, and nothing that belongs to a particular attempt is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from ..contract import ENV_MAIN_PID, ENV_PID

PREWARM = "--prewarm"
"""Argument of a worker that is prewarmed for the next attempt, while others train: it imports at low priority."""
PRESTART = "--prestart"
"""Argument of a worker that is prewarmed for the first attempt, which is about to start."""
HOLD = "--hold"
"""Argument of a worker that is prewarmed for a later run on a held pod, perhaps in half an hour and with other code."""
_NICE = 19
_SMALL = {"embedding": (16, 8), "weights": (8, 8)}


def wait_to_start(import_modules: Callable[[], None], how: str) -> None:
    """Import modules, wait for the agent's orders, then take on the worker's environment, working directory and output.

    On a held pod, files may have changed since the imports. Then the process starts again, as the worker, without them.

    Args:
        import_modules: imports what training needs.
        how: PREWARM, PRESTART or HOLD.
    """
    importing = os.dup(1)  # the agent reads its end, and so learns when the imports are done
    with tempfile.TemporaryFile() as printed:
        _print_to(printed.fileno())
        with contextlib.suppress(Exception):  # the worker imports again and reports the error
            if how == PREWARM:  # another worker is training on this host
                _import_at_low_priority(import_modules)
            else:
                import_modules()
        files = dict(_imported_files()) if how == HOLD else {}
        os.close(importing)
        orders = _await_orders()
        os.chdir(orders["folder"])
        out = os.open(orders["output"], os.O_WRONLY | os.O_APPEND)
        _print_to(out)
        os.chdir(orders["cwd"])
        if how == HOLD and (reason := _why_stale(files)):
            print(f"cold start: {reason}", flush=True)
            _start_again(orders["env"])
        printed.seek(0)
        os.write(out, printed.read())
        os.close(out)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[0] = os.getcwd()
    _set_environ(orders["env"])


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


def _imported_files() -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield path and version of the file of each imported module; (0, 0) for a file that is gone."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            yield path, _version(path)


def _version(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _why_stale(files: dict[str, tuple[int, int]]) -> str:
    """Return why an import would give something else now; empty if all modules are those that would be imported.

    Args:
        files: the imported files with their versions at that time.
    """
    for path, version in files.items():
        if _version(path) != version:
            return f"{path} has changed since this pod was held"
    with os.scandir() as entries:  # of the working directory, which comes first on Python's path
        for entry in entries:
            name, dot, _ = entry.name.partition(".")
            is_module = entry.name.endswith((".py", ".so")) if dot else os.path.exists(f"{entry.name}/__init__.py")
            if is_module and name in sys.modules and name != "__main__":
                return f"{entry.name} in the job's folder has the name of a module that was imported before"
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

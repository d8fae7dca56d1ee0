"""Time from the command to the end of the first step, against what cannot be avoided.

    python benchmarks/startup.py [--runs 5]

The yardstick is a bare script in one process for each host: interpreter, `import jax`, `jax.distributed.initialize`, the
initial state and the first step of the same model by a plain pmap. podrun and the yardstick take turns; both compile
without a cache. What podrun adds is the launcher, the agents, the barrier, its other imports, the data, the check that
all hosts agree, and opening the checkpoint directory.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = {"layers": 2, "heads": 2, "width": 64, "context": 64}
SLICES = ((1, 1), (1, 4), (2, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print(f"{'slice':<9}{'podrun':>9}{'bare':>9}   ratio (medians of {runs} runs, seconds; ratio run by run)")
    for hosts, devices in SLICES:
        ours, bare = [], []
        for _ in range(runs):
            bare.append(time_bare(hosts, devices))
            ours.append(time_podrun(hosts, devices))
        ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
        print(
            f"cpu-{hosts}x{devices:<5}{statistics.median(ours):>9.2f}{statistics.median(bare):>9.2f}{ratio:>8.2f}",
            flush=True,
        )


def time_podrun(hosts: int, devices: int) -> float:
    """Return the seconds from starting the command to its first step event."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "train.yaml"
        job.write_text(f"steps: 1000000\nbatch_size: 16\nmodel: {MODEL}\nlog: {{every: 1, tensorboard: false}}\n")
        env = {**os.environ, "PODRUN_HOME": folder, "JAX_ENABLE_COMPILATION_CACHE": "0"}
        command = [sys.executable, "-m", "podrun.launcher.cli", "--json", "--simulate"]
        command += ["--slice", f"cpu-{hosts}x{devices}", "--workdir", f"{folder}/work", str(job)]
        start = time.perf_counter()
        run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        line = next((line for line in run.stdout if '"event": "step"' in line), None)
        seconds = time.perf_counter() - start
        run.terminate()
        run.communicate(timeout=60)
        if line is None:
            raise SystemExit("podrun ended before its first step")
        return seconds


def time_bare(hosts: int, devices: int) -> float:
    """Return the seconds from starting the processes until the last of them has ended its first step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    start = time.perf_counter()
    commands = [[sys.executable, __file__, "bare", str(i), str(hosts), str(port)] for i in range(hosts)]
    processes = [subprocess.Popen(c, env=env, stdout=subprocess.DEVNULL) for c in commands]
    if any(process.wait(120) for process in processes):
        raise SystemExit("a bare process failed")
    return time.perf_counter() - start


def bare(process: int, processes: int, port: int) -> None:
    import jax
    import jax.flatten_util
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from podrun.runtime.config.model import GPT2Model
    from podrun.runtime.models.gpt2 import GPT2

    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, cluster_detection_method="deactivate")
    model = GPT2(GPT2Model.model_validate(MODEL), 256, jnp.dtype("float32"))
    optimizer = optax.adamw(1e-3)
    devices = jax.local_device_count()

    def init() -> object:
        params = model.init(jax.random.key(0), jnp.zeros((1, 64), jnp.int32))["params"]
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *x.shape)), (params, optimizer.init(params)))

    def step(state: tuple[object, object], tokens: jax.Array) -> tuple[object, jax.Array]:
        def loss_fn(params: object) -> jax.Array:
            logits = model.apply({"params": params}, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state[0])
        flat, unravel = jax.flatten_util.ravel_pytree((loss, grads))
        loss, grads = unravel(jax.lax.pmean(flat, "device"))
        updates, opt_state = optimizer.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt_state), loss

    tokens = np.zeros((devices, 16 // processes // devices, 65), np.int32)
    split = NamedSharding(Mesh(np.array(jax.local_devices()), ("device",)), PartitionSpec("device"))
    state = jax.jit(init, out_shardings=split)()
    _, loss = jax.pmap(step, "device", donate_argnums=0)(state, tokens)
    jax.block_until_ready(loss)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        bare(*(int(a) for a in sys.argv[2:5]))
    else:
        main()

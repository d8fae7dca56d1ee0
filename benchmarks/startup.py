"""Time from the command to the end of the first step, against what cannot be avoided.

    python benchmarks/startup.py [--runs 3] [--slices 1x1,2x2,4x8] [--ssh]

The yardstick is a bare script in one process for each host: interpreter, `import jax`, `jax.distributed.initialize`, the
initial state and the first step of the same model by a plain pmap. Each process compiles for itself. podrun and the yardstick
take turns. What podrun adds is the launcher, the agents, the barrier, its other imports, the data, the check that all hosts
agree, and opening the checkpoint directory.

*cold*: no program was compiled before; Python's bytecode is there, as pip leaves it. *warm*: the same once more, with what
the cold start has left on the hosts, against the yardstick with JAX's own cache, which a run before has filled. *sent*: hosts
that have compiled nothing, and the programs that `podrun compile` has made before, against the same yardstick. Wall and CPU
seconds of all processes, medians; ratios run by run. 4x8 is v3-32. `--ssh` (as root): four hosts in network namespaces with a
home of their own each, one device on each, against the same bare processes on this machine, which need no SSH.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from setting import print_setting

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.hosts import Hosts, why_not  # noqa: E402

MODEL = {"layers": 2, "heads": 2, "width": 64, "context": 64}
BATCH = 32
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Took:
    """The cost of one start, in seconds."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slices", default="1x1,2x2,4x8")
    parser.add_argument("--ssh", action="store_true")
    options = parser.parse_args()
    print_setting()
    if options.ssh and (reason := why_not()):
        raise SystemExit(f"startup.py: {reason}")
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # where it is set, Python compiles podrun's source at every start
    for package in ("runtime", "launcher", "api"):  # as pip does for an installed package
        compileall.compile_dir(ROOT / package, quiet=1)
    print(f"{'':16}{'wall, s':^24}{'CPU time, s':^24}   medians of {options.runs} runs")
    print(f"{'':16}{'podrun':>8}{'bare':>8}{'ratio':>8}{'podrun':>8}{'bare':>8}{'ratio':>8}")
    for slice in options.slices.split(","):
        hosts, devices = (int(number) for number in slice.split("x"))
        compare(f"cpu-{slice}", hosts, devices, options.runs, None)
    if options.ssh:
        pod = Hosts(4)
        try:
            compare("ssh cpu-4x1", 4, 1, options.runs, pod)
        finally:
            pod.close()


def compare(name: str, hosts: int, devices: int, runs: int, pod: Hosts | None) -> None:
    """Print three rows: cold, warm and sent."""
    rows: dict[str, list[tuple[Took, Took]]] = {"cold": [], "warm": [], "sent": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            for temperature in rows:
                bare = time_bare(hosts, devices, Path(folder), temperature)
                ours = time_podrun(hosts, devices, Path(folder), temperature, pod)
                rows[temperature].append((ours, bare))
    for temperature, pairs in rows.items():
        text = ""
        for kind in ("wall", "cpu"):
            ours, bare = ([getattr(pair[i], kind) for pair in pairs] for i in (0, 1))
            ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
            text += f"{statistics.median(ours):8.2f}{statistics.median(bare):8.2f}{ratio:8.2f}"
        print(f"{name + ' ' + temperature:16}{text}", flush=True)


def time_podrun(hosts: int, devices: int, folder: Path, temperature: str, pod: Hosts | None) -> Took:
    """Return the time from starting the command to its first step event. Raises SystemExit if there is none."""
    job, home = folder / "train.yaml", folder / ("home-sent" if temperature == "sent" else "home")
    job.write_text(f"steps: 1000000\nbatch_size: {BATCH}\nmodel: {MODEL}\nlog: {{every: 1, tensorboard: false}}\n")
    where = ["--simulate", "--slice", f"cpu-{hosts}x{devices}"]
    command = [sys.executable, "-m", "podrun.launcher.cli", "--json"]
    env = {**os.environ, "PODRUN_HOME": str(folder / "state"), "HOME": str(home)}
    home.mkdir(exist_ok=True)
    if pod is not None:
        command = [*pod.prefix, *command]
        env = {**pod.env, "PODRUN_HOME": env["PODRUN_HOME"]}
        where = [f"--pod={write_pod(pod, folder, temperature)}"]
    if temperature == "sent":
        words = [word for word in where if word != "--simulate"]
        compiling = [*command[:-1], "compile", str(job), *words]
        subprocess.run(compiling, env=env, stdout=subprocess.DEVNULL, check=True, cwd=folder)
    command += [*where, "--workdir", str(folder / f"work-{temperature}"), str(job)]
    before = cpu_of(folder, pod)
    start = time.perf_counter()
    run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert run.stdout is not None
    line = next((line for line in run.stdout if '"event": "step"' in line), None)
    wall = time.perf_counter() - start
    cpu = sum(seconds - before.get(process, 0) for process, seconds in cpu_of(folder, pod).items())
    run.terminate()
    run.communicate(timeout=120)
    if line is None:
        raise SystemExit("podrun ended before its first step")
    return Took(wall, cpu)


def cpu_of(folder: Path, pod: Hosts | None) -> dict[str, float]:
    """Return the CPU seconds of every process that was started with `folder` in its environment, or is on a host of `pod`."""
    pids = {process.pid for name in pod.names for process in pod.processes(name)} if pod else set()
    seconds = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(path.name) in pids or f"PODRUN_HOME={folder}".encode() in (path / "environ").read_bytes():
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                # utime, stime and those of its children that are gone; a process by its id and the time it was started
                seconds[f"{path.name} {fields[19]}"] = sum(int(field) for field in fields[11:15]) / _TICKS
    return seconds


def write_pod(pod: Hosts, folder: Path, temperature: str) -> Path:
    """Write the pod file of the hosts, which have compiled nothing yet if they are cold."""
    if temperature != "warm":
        for name in pod.names:
            shutil.rmtree(pod.home_of(name, "root") / ".cache", ignore_errors=True)
    ssh = {"user": "root", "key": str(pod.key), "known_hosts": str(pod.known_hosts)}
    settings = {"slice": "cpu-4x1", "hosts": list(pod.names), "ssh": ssh, "python": sys.executable}
    path = folder / "pod.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def time_bare(hosts: int, devices: int, folder: Path, temperature: str) -> Took:
    """Return the time from starting the processes until the last of them has ended its first step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    if temperature != "cold":
        env |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "bare"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
        if not (folder / "bare").exists():
            (folder / "bare").mkdir()
            time_bare(hosts, devices, folder, temperature)  # fills the cache
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    commands = [[sys.executable, __file__, "bare", str(i), str(hosts), str(port)] for i in range(hosts)]
    processes = [subprocess.Popen(c, env=env, stdout=subprocess.DEVNULL) for c in commands]
    codes = [process.wait(300) for process in processes]
    if any(codes):
        raise SystemExit("a bare process failed")
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


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

    tokens = np.zeros((devices, BATCH // processes // devices, 65), np.int32)
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

"""Measure saving and restoring a state: podrun against plain orbax and against np.save with fsync, of the same arrays.

    python benchmarks/checkpoint.py [--gigabytes 1] [--rounds 3] [--folder DIR]
    python benchmarks/checkpoint.py --steps             # seconds of one step of GPT-2 124M, to compare blocking with
    python benchmarks/checkpoint.py --manifest          # steps while a thread computes digests, and alone
    python benchmarks/checkpoint.py --trained STATE     # what zstd is worth, on the folder `state` of a checkpoint

Every measurement is a process of its own; the ways take turns, and a ratio is the median over rounds of ratios within one
round, so that all see the same machine. Restores read from the page cache. Memory is the peak resident size beyond that
before the save or the restore, as a share of the state: the state is in memory already when a save begins.

To add a place, such as a bucket, add a line to WAYS: a function that takes a folder and the arrays, and returns `Measured`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ARRAYS = 48
"""Number of arrays; each of the parameters comes with the two moments of Adam."""
GPT2 = {"name": "gpt2", "layers": 12, "heads": 12, "width": 768, "context": 1024}
STEPS = {"model": {"name": "gpt2", "layers": 2, "heads": 2, "width": 64, "context": 64}, "batch_size": 8}


@dataclass
class Measured:
    """One save and one restore."""

    blocking: float
    """Seconds until the program goes on."""
    save: float
    """Seconds until the checkpoint is complete on the disk."""
    restore: float
    save_memory: float
    """Peak bytes beyond those before the save, as a share of the state."""
    restore_memory: float
    bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are written; by default in the folder for temporary files"
    )
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--manifest", action="store_true")
    parser.add_argument("--trained", type=Path, help="the folder `state` of a checkpoint")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(asdict(measure(arguments.worker, arguments.gigabytes, arguments.folder, arguments.trained))))
    elif arguments.steps:
        print(f"one step of GPT-2 124M's layers, 1 example of 1024 tokens: {time_of_124m_step():.1f} s")
    elif arguments.manifest:
        print_manifest(arguments.rounds)
    else:
        ways = ("orbax", "orbax without zstd") if arguments.trained else ("podrun", "orbax", "np.save")
        print_table(ways, arguments)


# --- the comparing side ---------------------------------------------------------------------------------------------


def print_table(ways: tuple[str, ...], arguments: argparse.Namespace) -> None:
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for round_ in range(arguments.rounds):
        for way in ways if round_ % 2 == 0 else reversed(ways):
            results[way].append(run_worker(way, arguments))
    print(f"{'':<20}{'blocking s':>11}{'save s':>9}{'restore s':>11}{'memory +%':>11}{'restore +%':>11}{'MB':>9}")
    for way, rows in results.items():
        blocking, save, restore, more, restoring, size = (
            statistics.median(row[key] for row in rows) for key in Measured.__dataclass_fields__
        )
        times = f"{blocking:>11.2f}{save:>9.2f}{restore:>11.2f}"
        print(f"{way:<20}{times}{more * 100:>10.0f}%{restoring * 100:>10.0f}%{size / 1e6:>9.0f}")
    for other in ways[1:]:
        shown = ", ".join(
            f"{key} {ratio(results[ways[0]], results[other], key):.2f}" for key in ("save", "restore", "bytes")
        )
        print(f"{ways[0]} / {other}: {shown}")


def ratio(ours: list[dict[str, float]], others: list[dict[str, float]], key: str) -> float:
    return statistics.median(one[key] / other[key] for one, other in zip(ours, others, strict=True))


def run_worker(way: str, arguments: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="podrun-checkpoint-", dir=arguments.folder))
    command = [
        sys.executable,
        __file__,
        "--worker",
        way,
        "--gigabytes",
        str(arguments.gigabytes),
        "--folder",
        str(folder),
    ]
    command += ["--trained", str(arguments.trained)] if arguments.trained else []
    try:
        done = subprocess.run(
            command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True, check=True
        )
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result
    finally:
        shutil.rmtree(folder)


# --- the measured side ----------------------------------------------------------------------------------------------


def measure(way: str, gigabytes: float, folder: Path, trained: Path | None) -> Measured:
    import jax
    import numpy as np
    import orbax.checkpoint  # noqa: F401  (podrun imports it in the background, while the first steps are made)

    if trained is not None:
        import orbax.checkpoint as ocp

        reader = ocp.StandardCheckpointer()
        shapes = reader.metadata(trained.absolute()).item_metadata.tree
        state = reader.restore(trained.absolute(), jax.tree.map(lambda a: np.empty(a.shape, a.dtype), shapes))
    else:
        width = int((gigabytes * 1e9 / 4 / ARRAYS) ** 0.5)
        keys = jax.random.split(jax.random.key(0), ARRAYS)  # made on the device, so that no other copy is in memory
        state = {f"layer_{i}": {"kernel": jax.random.normal(key, (width, width))} for i, key in enumerate(keys)}
    state = {"params": jax.device_put(state)}
    jax.block_until_ready(state)
    return WAYS[way](folder, state)


def save_podrun(folder: Path, state: Any) -> Measured:
    import jax
    import numpy as np

    from podrun.runtime.checkpoint.store import Checkpoints
    from podrun.runtime.config import Checkpoint, Config

    config = Config.model_validate({"task": "regression", "steps": 1, "batch_size": 1})
    checkpoints = Checkpoints(folder / "checkpoints", Checkpoint())

    def start() -> None:
        checkpoints.save(1, jax.tree.map(np.asarray, state), 0, config, b"", None)

    template = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)  # as Strategy.template
    return timed(
        state,
        folder,
        start,
        lambda: checkpoints.completed(wait=True),
        lambda: checkpoints.restore(1, template, config, b"").state,
    )


def save_orbax(folder: Path, state: Any, zstd: bool = True) -> Measured:
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    host = jax.tree.map(np.asarray, state)
    saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=zstd))
    reader = ocp.StandardCheckpointer()
    template = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
    return timed(
        state,
        folder,
        lambda: saver.save(folder / "state", args=ocp.args.PyTreeSave(host)),
        saver.wait_until_finished,
        lambda: reader.restore(folder / "state", template),
    )


def save_numpy(folder: Path, state: Any) -> Measured:
    import jax
    import numpy as np

    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]

    def start() -> None:
        for number, leaf in enumerate(leaves):
            with open(folder / f"{number}.npy", "wb") as file:
                np.save(file, leaf)
                file.flush()
                os.fsync(file.fileno())

    def restore() -> Any:
        return [np.load(folder / f"{number}.npy") for number in range(len(leaves))]

    return timed(state, folder, start, lambda: None, restore)


WAYS: dict[str, Callable[[Path, Any], Measured]] = {
    "podrun": save_podrun,
    "orbax": save_orbax,
    "orbax without zstd": lambda folder, state: save_orbax(folder, state, zstd=False),
    "np.save": save_numpy,
}


def timed(
    state: Any, folder: Path, start: Callable[[], Any], finish: Callable[[], Any], restore: Callable[[], Any]
) -> Measured:
    import jax

    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    os.sync()
    before, began = reset_peak(), time.perf_counter()
    start()
    blocking = time.perf_counter() - began
    finish()
    save, save_memory = time.perf_counter() - began, (peak() - before) / size
    before, began = reset_peak(), time.perf_counter()
    values = restore()
    seconds, restore_memory = time.perf_counter() - began, (peak() - before) / size
    del values
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Measured(blocking, save, seconds, save_memory, restore_memory, on_disk)


def reset_peak() -> int:
    """Make the kernel forget the highest resident size, and return the present one in bytes, without what is free."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


# --- beside a training ----------------------------------------------------------------------------------------------


def trainer_of(config: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return a strategy on one device, its state, and a batch."""
    import numpy as np

    from podrun.runtime.config import Config
    from podrun.runtime.data import load_dataset
    from podrun.runtime.optim import make_optimizer
    from podrun.runtime.parallel import make_strategy
    from podrun.runtime.tasks import make_task

    job = Config.model_validate({"steps": 100, "data": "python_source", "parallel": "single", **config})
    data = load_dataset(job)
    one = make_strategy(job, make_task(job, data), *make_optimizer(job, 100))
    size = int(job.batch_size)
    batch = one.shard(data.train.gather(np.arange(size), np.zeros(size, np.int64)))
    return one, one.init(), batch


def time_of_124m_step() -> float:
    one, state, batch = trainer_of({"model": GPT2, "batch_size": 1})
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        state, metrics = one.step(state, batch)
        metrics.read()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def print_manifest(rounds: int) -> None:
    """Print how much slower steps are while digests of a file of 1 GB are computed."""
    from podrun.runtime.checkpoint.manifest import digest

    one, state, batch = trainer_of(STEPS)
    blocks: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "data")
        file.write_bytes(os.urandom(1 << 20) * 1000)
        for number in range(2 * rounds + 1):
            beside = number % 2 == 1
            thread = threading.Thread(target=digest, args=(file,))
            if beside:
                thread.start()
            seconds = []
            began = time.perf_counter()
            while thread.is_alive() if beside else time.perf_counter() - began < 1:
                at = time.perf_counter()
                state, metrics = one.step(state, batch)
                metrics.read()
                seconds.append(time.perf_counter() - at)
            if number:  # the first block compiles
                blocks[beside].append(statistics.median(seconds))
            if beside:
                print(f"digests of 1 GB: {time.perf_counter() - began:.2f} s")
    slower = statistics.median(a / b for a, b in zip(blocks[True], blocks[False], strict=True))
    print(f"a step takes {slower:.2f} times as long meanwhile")


if __name__ == "__main__":
    main()

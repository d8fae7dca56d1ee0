"""Measure saving and restoring a state: podrun against plain orbax and against np.save with fsync, of the same arrays.

    python benchmarks/checkpoint.py [--gigabytes 1] [--rounds 3] [--folder DIR]
    python benchmarks/checkpoint.py --bucket gs         # or s3: the same with a bucket, on a server on this machine
    python benchmarks/checkpoint.py --trained STATE     # what zstd is worth, on the folder `state` of a checkpoint

Every measurement is a process of its own; the ways take turns, and a ratio is the median over rounds of ratios within one
round, so that all see the same machine. A restore ends when the state is on the device. It reads from the page cache, and
from a bucket into an empty spool folder. Memory is the peak resident size beyond that with the state loaded, before a save or
after a restore, as a share of the state: on CPU the memory of the device is that of the host.

To add a way, add a line to WAYS: a function that takes a folder and the arrays, and returns `Measured`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.buckets import BUCKET, bucket_server

ARRAYS = 48
"""Number of arrays; each of the parameters comes with the two moments of Adam."""


@dataclass
class Measured:
    """One save and one restore."""

    blocking: float
    """Seconds until the program goes on."""
    save: float
    """Seconds until the checkpoint is complete on the disk."""
    restore: float
    save_memory: float
    """Peak bytes beyond those with the state loaded, as a share of the state."""
    restore_memory: float
    bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are written; by default in the folder for temporary files"
    )
    parser.add_argument("--bucket", choices=["gs", "s3"], help="the kind of the bucket; plain orbax can only gs")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--trained", type=Path, help="the folder `state` of a checkpoint")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        place = Place(arguments.folder, arguments.url)
        print(json.dumps(asdict(measure(arguments.worker, arguments.gigabytes, place, arguments.trained))))
    else:
        print_setting()
        ways = ("orbax", "orbax without zstd") if arguments.trained else ("podrun", "orbax", "np.save")
        ways = tuple(way for way in ways if way != "orbax") if arguments.bucket == "s3" else ways
        with served(arguments.bucket) as url:
            arguments.url = url
            print_table(ways, arguments)


@dataclass
class Place:
    """Where the ways write."""

    folder: Path
    url: str | None
    """URL of a folder in a bucket, to which it goes in the end; None: it stays in the folder."""


@contextlib.contextmanager
def served(scheme: str | None) -> Iterator[str | None]:
    """Yield the URL of a bucket on a server on this machine, to which the environment leads."""
    if scheme is None:
        yield None
        return
    with tempfile.NamedTemporaryFile() as log, bucket_server(scheme, Path(log.name)) as env:
        os.environ.update(env)
        if scheme == "gs":
            os.environ["TENSORSTORE_GCS_HTTP_URL"] = env["STORAGE_EMULATOR_HOST"]  # for plain orbax
        yield f"{scheme}://{BUCKET}"


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
    """Return the median of the ratios; not a number where the other way leaves nothing here, as orbax in a bucket."""
    return statistics.median(
        one[key] / other[key] if other[key] else math.nan for one, other in zip(ours, others, strict=True)
    )


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
    command += ["--url", f"{arguments.url}/{folder.name}"] if arguments.url else []
    try:
        done = subprocess.run(
            command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True, check=True
        )
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result
    finally:
        shutil.rmtree(folder)


# --- the measured side ----------------------------------------------------------------------------------------------


def measure(way: str, gigabytes: float, place: Place, trained: Path | None) -> Measured:
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
    return WAYS[way](place, state)


def save_podrun(place: Place, state: Any) -> Measured:
    import jax

    from podrun.runtime.checkpoint.store import Checkpoints
    from podrun.runtime.config import Checkpoint, Config
    from podrun.runtime.contract import WorkerEnv
    from podrun.runtime.distributed import as_numpy
    from podrun.runtime.storage.bucket import BucketStorage
    from podrun.runtime.storage.bucket_claim import Claim
    from podrun.runtime.storage.bucket_client import Bucket
    from podrun.runtime.storage.shared_folder import SHARED_FOLDER

    config = Config.model_validate({"task": "regression", "steps": 1, "batch_size": 1})
    folder = place.folder / "checkpoints"
    storage: Any = SHARED_FOLDER
    if place.url:
        env = WorkerEnv("benchmark", 0, "here", 0, 1, (0,), "cpu-1x1", place.folder)
        storage = BucketStorage(place.url, place.folder, Claim(Bucket(place.url), env, place.folder), print)
    checkpoints = Checkpoints(folder, Checkpoint(), storage=storage)
    template = like(state)

    def restore() -> Any:
        storage.before_restore(folder)
        return checkpoints.load(1, checkpoints.target(lambda: template, config, b"")).state

    def clear() -> None:
        if place.url:
            shutil.rmtree(folder / "1")

    return timed(
        state,
        place,
        lambda: checkpoints.save(1, jax.tree.map(as_numpy, state), 0, config, b"", None),
        lambda: checkpoints.completed(wait=True),
        restore,
        clear,
    )


def save_orbax(place: Place, state: Any, zstd: bool = True) -> Measured:
    import orbax.checkpoint as ocp
    from etils import epath

    folder = epath.Path(place.url or place.folder) / "state"
    saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=zstd))
    reader = ocp.StandardCheckpointer()
    template = like(state)
    return timed(
        state,
        place,
        lambda: saver.save(folder, args=ocp.args.PyTreeSave(state)),
        saver.wait_until_finished,
        lambda: reader.restore(folder, template),
    )


def save_numpy(place: Place, state: Any) -> Measured:
    """With a bucket the files are uploaded and downloaded one by one, by the library that podrun uses."""
    import jax
    import numpy as np

    names = [f"{number}.npy" for number in range(len(jax.tree.leaves(state)))]
    here = jax.tree.leaves(state)[0].sharding

    def start() -> None:
        for name, leaf in zip(names, jax.tree.leaves(state), strict=True):
            with open(place.folder / name, "wb") as file:
                np.save(file, np.asarray(leaf))
                file.flush()
                os.fsync(file.fileno())
            if place.url:
                filesystem().put_file(str(place.folder / name), f"{place.url}/{name}")

    def restore() -> Any:
        values = []
        for name in names:
            if place.url:
                filesystem().get_file(f"{place.url}/{name}", str(place.folder / name))
            values.append(jax.device_put(np.load(place.folder / name), here))
        return values

    def filesystem() -> Any:
        from podrun.runtime.storage.bucket_client import Bucket

        return Bucket(str(place.url))._fs

    return timed(state, place, start, lambda: None, restore)


WAYS: dict[str, Callable[[Place, Any], Measured]] = {
    "podrun": save_podrun,
    "orbax": save_orbax,
    "orbax without zstd": lambda place, state: save_orbax(place, state, zstd=False),
    "np.save": save_numpy,
}


def like(state: Any) -> Any:
    """Return shapes, dtypes and shardings of a state."""
    import jax

    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def timed(
    state: Any,
    place: Place,
    start: Callable[[], Any],
    finish: Callable[[], Any],
    restore: Callable[[], Any],
    clear: Callable[[], Any] = lambda: None,
) -> Measured:
    """Measure a save, which is `start` and `finish`, and a restore after `clear`. `state` is emptied."""
    import jax

    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    os.sync()
    before, began = reset_peak(), time.perf_counter()
    start()
    blocking = time.perf_counter() - began
    finish()
    save, save_memory = time.perf_counter() - began, (peak() - before) / size
    on_disk = sum(path.stat().st_size for path in place.folder.rglob("*") if path.is_file())
    clear()
    state.clear()
    reset_peak()
    began = time.perf_counter()
    values = jax.block_until_ready(restore())
    seconds, highest = time.perf_counter() - began, peak()
    restore_memory = (highest - reset_peak()) / size
    del values
    return Measured(blocking, save, seconds, save_memory, restore_memory, on_disk)


def reset_peak() -> int:
    """Make the kernel forget the highest resident size, and return the present one in bytes, without what is free."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()

"""Measure checkpoints in memory: the restore of a state against disk and bucket, and what faults cost a pod.

    python benchmarks/memory_checkpoint.py [--gigabytes 1] [--rounds 3]   # one process: save and restore, in turns
    python benchmarks/memory_checkpoint.py --faults 40 [--seed 0]         # runs of cpu-4x1, a fault at a random step in each

The bucket is a server of gs on this machine; without it, it is left out. With --faults, each run has one of: SIGKILL of a
worker; loss of a host, whose agent is killed and whose memory is removed; of process 0's host; of two neighbours. The state
of every second group of runs is divided (fsdp): then two neighbours are only killed, because with their memory a part and its
copy would be gone. The steps lost are those after the checkpoint that was restored. The losses are compared bit for bit with
those of a run that nothing disturbs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from child import ended, lines_of
from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.buckets import BUCKET, bucket_server

ARRAYS = 48
HOSTS, STEPS, EVERY = 4, 60, 10
FAULTS = ("worker", "host", "two neighbours", "host of process 0")
JOB = {
    "task": "regression",
    "steps": STEPS,
    "batch_size": 8,
    "model": {"layers": 2, "width": 256},
    "data": {"samples": 400},
    "log": {"every": 1, "tensorboard": False},
    "eval": {"every": 0, "batches": 1},
    "checkpoint": {"every": 1000},
}
DIVIDED = ("parallel=jit", f"parallel.mesh.fsdp={HOSTS}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", type=int, default=0, help="number of runs of a pod with a fault")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print_setting()
    if options.faults:
        disturb(options.faults, random.Random(options.seed))
    else:
        with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url:
            compare(options.gigabytes, options.rounds, Path(folder), url)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str | None]:
    """Yield the URL of a bucket on a server on this machine; None if there is no such server."""
    with contextlib.ExitStack() as stack:
        try:
            os.environ.update(stack.enter_context(bucket_server("gs", folder / "server.log")))
            url = f"gs://{BUCKET}/memory"
        except BaseException as error:  # pytest's way to skip is no Exception
            print(f"without a bucket: {error}")
            url = None
        yield url


# --- save and restore -----------------------------------------------------------------------------------------------


def compare(gigabytes: float, rounds: int, folder: Path, url: str | None) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    ways: dict[str, Callable[[Path, Any], dict[str, float]]] = {"memory": in_memory, "disk": on_disk}
    if url:
        ways["gs"] = lambda place, state: on_disk(place, state, f"{url}/{place.name}")
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    state = make_state(gigabytes)
    for number in range(rounds):
        for way, measure in ways.items() if number % 2 == 0 else reversed(ways.items()):
            place = folder / f"{way}-{number}"
            place.mkdir()
            os.sync()
            results[way].append(measure(place, state))
            shutil.rmtree(place)
    print(f"{'':<10}{'blocking s':>11}{'complete s':>11}{'restore s':>11}{'restore, memory against it':>29}")
    for way, rows in results.items():
        blocking, complete, restore = (statistics.median(row[key] for row in rows) for key in rows[0])
        ratios = [one["restore"] / other["restore"] for one, other in zip(results["memory"], rows, strict=True)]
        print(f"{way:<10}{blocking:>11.2f}{complete:>11.2f}{restore:>11.2f}{statistics.median(ratios):>29.2f}")


def make_state(gigabytes: float) -> Any:
    import jax

    width = int((gigabytes * 1e9 / 4 / ARRAYS) ** 0.5)
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    layers = {f"layer_{i}": {"kernel": jax.random.normal(key, (width, width))} for i, key in enumerate(keys)}
    return jax.block_until_ready({"params": layers})


def in_memory(place: Path, state: Any) -> dict[str, float]:
    import jax

    from podrun.runtime.checkpoint.folder import Target
    from podrun.runtime.contract import WorkerEnv
    from podrun.runtime.memory.store import MemoryCheckpoints
    from podrun.runtime.worker.progress import Reporter

    target: Any = Target(lambda meta: meta, lambda *_: None, lambda _: {}, lambda step, meta, arrays: arrays)
    memory = Path(tempfile.mkdtemp(prefix="podrun-benchmark-", dir="/dev/shm"))
    try:
        env = WorkerEnv("benchmark", 0, "here", 0, 1, (0,), "cpu-1x1", place, "127.0.0.1:1", memory=str(memory))
        checkpoints = MemoryCheckpoints(env, like(state), Reporter(None))
        began = time.perf_counter()
        checkpoints.save(1, state, {})  # type: ignore[typeddict-item]
        blocking = time.perf_counter() - began
        checkpoints.wait()
        complete = time.perf_counter() - began
        checkpoints.close()
        began = time.perf_counter()
        again = MemoryCheckpoints(env, like(state), Reporter(None))
        restored = again.restore(target, None)
        assert restored is not None
        jax.block_until_ready(restored[1])
        again.close()
        return {"blocking": blocking, "complete": complete, "restore": time.perf_counter() - began}
    finally:
        shutil.rmtree(memory)


def on_disk(place: Path, state: Any, url: str | None = None) -> dict[str, float]:
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
    folder, storage = place / "checkpoints", SHARED_FOLDER
    if url:
        env = WorkerEnv("benchmark", 0, "here", 0, 1, (0,), "cpu-1x1", place)
        storage = BucketStorage(url, place, Claim(Bucket(url), env, place), print)  # type: ignore[assignment]
    checkpoints = Checkpoints(folder, Checkpoint(), storage=storage)
    began = time.perf_counter()
    checkpoints.save(1, jax.tree.map(as_numpy, state), 0, config, b"", None)
    blocking = time.perf_counter() - began
    checkpoints.completed(wait=True)
    complete = time.perf_counter() - began
    if url:
        shutil.rmtree(folder / "1")
    began = time.perf_counter()
    storage.before_restore(folder)
    jax.block_until_ready(checkpoints.load(1, checkpoints.target(lambda: like(state), config, b"")).state)
    return {"blocking": blocking, "complete": complete, "restore": time.perf_counter() - began}


def like(state: Any) -> Any:
    import jax

    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


# --- faults ---------------------------------------------------------------------------------------------------------


def disturb(runs: int, chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.json").write_text(json.dumps(JOB))
        undisturbed = {
            divided: run(folder, f"undisturbed-{divided}", DIVIDED if divided else ())[1] for divided in (False, True)
        }
        lost: dict[str, list[int]] = {}
        sources: Counter[str] = Counter()
        for number in range(runs):
            fault, divided = FAULTS[number % len(FAULTS)], number // len(FAULTS) % 2 == 1
            step = chance.randrange(EVERY + 3, STEPS - 5)
            options = (
                f"checkpoint.memory_every={EVERY}",
                "launch.max_restarts=3",
                "--inject",
                "slow:seconds=0.05",
                *(DIVIDED if divided else ()),
            )
            steps, losses, source = run(folder, f"run-{number}", options, fault, step, chance)
            same = losses == undisturbed[divided]
            lost.setdefault(fault, []).append(steps)
            sources[source] += 1
            state = "divided" if divided else "whole"
            print(
                f"{fault} at step {step}, state {state}: {steps} steps lost, {source}, losses same: {same}", flush=True
            )
            if not same:
                raise SystemExit("the losses differ from those of the undisturbed run")
        for fault, several in lost.items():
            print(
                f"{fault:<20} steps lost: median {statistics.median(several):g}, most {max(several)}, runs {len(several)}"
            )
        print(", ".join(f"{source}: {count}" for source, count in sources.items()))
        if max(map(max, lost.values())) > EVERY:
            raise SystemExit(f"more than {EVERY} steps were lost")


def run(
    folder: Path,
    name: str,
    options: tuple[str, ...],
    fault: str | None = None,
    step: int = 0,
    chance: random.Random | None = None,
) -> tuple[int, dict[int, float], str]:
    """Run the job. Return the steps that the fault has cost, the losses, and what the run was resumed from."""
    command = [sys.executable, "-m", "podrun.launcher.cli", "--json", "--simulate", "--slice", f"cpu-{HOSTS}x1"]
    command += ["train.json", "-w", name, *options]
    env = {**os.environ, "PODRUN_HOME": str(folder / "home")}
    pids: dict[tuple[str, str], int] = {}
    newest, resumed, source, struck, run_id, is_first = 0, 0, "from the first step", False, "", True
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    with ended(process):
        lines = lines_of(process)
        while (line := lines.get(timeout=300)) is not None:
            event = json.loads(line)
            kind = event["event"]
            if kind == "start":
                run_id = event["run_id"]
            elif kind == "host" and event["phase"] in ("hello", "started"):
                pids[event["host"], event["phase"]] = event["pid"]
            elif kind == "restart":
                is_first = False
            elif kind == "step" and event["process"] == 0 and is_first:
                newest = event["step"]
            elif kind == "resume":
                resumed, source = event["step"], event.get("memory", "the disk")
            if fault and not struck and newest >= step:
                struck = True
                strike(fault, pids, run_id, chance or random.Random(), is_divided="parallel=jit" in options)
        if process.wait() != 0:
            raise SystemExit(f"the run has failed: {' '.join(command)}")
    records = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    losses = {record["step"]: record["loss"] for record in records if record["kind"] == "train"}
    return max(0, newest - resumed), losses, source


def strike(fault: str, pids: dict[tuple[str, str], int], run_id: str, chance: random.Random, is_divided: bool) -> None:
    first = 0 if fault == "host of process 0" else chance.randrange(HOSTS)
    hosts = [f"host-{(first + number) % HOSTS}" for number in range(2 if fault == "two neighbours" else 1)]
    for host in hosts:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[host, "started" if fault == "worker" else "hello"], signal.SIGKILL)
        if fault != "worker" and not (is_divided and len(hosts) > 1):
            shutil.rmtree(f"/dev/shm/podrun-{run_id}/{host}", ignore_errors=True)


if __name__ == "__main__":
    main()

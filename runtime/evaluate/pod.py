"""Evaluate a checkpoint on all processes of a pod, by the strategy of the run: `podrun evaluate --slice ...`.

Nothing is written to the workdir, in which a run may be training.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import jax
import numpy as np
from flax.traverse_util import empty_node, flatten_dict, unflatten_dict

from ..array_names import Arrays
from ..checkpoint.damage import DamagedCheckpointError, HostFaultError, read_meta
from ..checkpoint.folder import METADATA, CheckpointFolder, Target
from ..checkpoint.messages import broadcast_text, connect
from ..checkpoint.metadata import JobMeta, job_meta
from ..checkpoint.restore import restore_step
from ..checkpoint.retention import Retention
from ..checkpoint.saved_model import Place, Step, find_checkpoint, job_of, parse_meta
from ..config import Config, saved_config
from ..config.attention import with_kernel
from ..contract import (
    CHECKPOINT_MANIFEST,
    CHECKPOINT_METRICS,
    Evaluation,
    Phase,
    RefusedError,
    UserError,
    Workdir,
    WorkerEnv,
)
from ..data.base import Examples
from ..data.pipeline import evaluation_batches
from ..devices import Devices
from ..disk_cache import DiskCache
from ..distributed import gather
from ..events import EventKind
from ..executables.pod_executables import Executables
from ..measure.validation import validate
from ..models.attention import resolve
from ..parallel.base import Strategy
from ..safe_name import as_files, path_inside
from ..state import Batch, StateDict, TrainState
from ..storage.base import Storage
from ..storage.bucket_client import Bucket, BucketError, explained
from ..storage.process_disk import ProcessDisk
from ..storage.shared_folder import SHARED_FOLDER
from ..worker.blocked import pod_store
from ..worker.progress import Reporter
from .data import Validation, data_at, data_of_run
from .evaluate import about_checkpoint, answer, check_model, make_evaluator, sets_of


@dataclass(frozen=True)
class Chosen:
    """The checkpoint to evaluate.

    Attributes:
        checkpoint: its folder on process 0, and on all processes if they share the workdir.
        meta: its metadata.
        is_shared: every process can read the folder.
        workdir: the workdir, for people.
    """

    checkpoint: Path
    meta: JobMeta
    is_shared: bool
    workdir: str

    @property
    def step(self) -> int:
        return int(self.checkpoint.name)


class _Message(TypedDict, total=False):
    """Message from process 0 to the others about the checkpoint."""

    refused: str
    """Why it has none."""
    checkpoint: str
    meta: JobMeta
    manifest: str
    """Digest of its manifest; empty if it has none."""


def evaluate_on_pod(
    config: Config,
    env: WorkerEnv,
    workdir: Workdir,
    bucket: str | None,
    reporter: Reporter,
    cache: DiskCache | None = None,
) -> None:
    """Evaluate a checkpoint, and report its metrics on process 0. Called on all processes.

    Args:
        config: the job as the launcher knows it. Its data, strategy and launch settings count; the rest is the checkpoint's.
        env: this process's place in the pod, with the `Evaluation`.
        workdir: folder of the results on this host.
        bucket: URL of the workdir if it is in a bucket. Process 0 downloads the checkpoint to its folder of this attempt.
        reporter: gets events and notes.
        cache: cache of executables.

    Raises:
        UserError: there is no such checkpoint or data, or they do not fit each other or the pod.
        UnavailableError: the bucket cannot be reached.
    """
    wanted = Evaluation(**json.loads(env.evaluate))
    reporter.phase(Phase.SETUP)
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=env.directory) as spool:
        step = cast(Step, wanted.step)
        by_metrics = step == "best"
        chosen = choose(
            workdir, bucket, Path(spool), lambda folder: find_checkpoint(folder, step), reporter, by_metrics
        )
        assert chosen is not None
        _evaluate(chosen, wanted, config, env, reporter, cache)


def _evaluate(
    chosen: Chosen, wanted: Evaluation, config: Config, env: WorkerEnv, reporter: Reporter, cache: DiskCache | None
) -> None:
    job = _job(chosen, config)
    tokenizer = Path(wanted.tokenizer) if wanted.tokenizer else None
    note = reporter.note if jax.process_index() == 0 else None
    if wanted.data is None:
        data = data_of_run(job, chosen.meta, note, reporter.record.part)
    else:
        data = data_at(wanted.data, job, tokenizer, chosen.meta, note, reporter.record.part)
    _check_same_data(data)
    strategy = make_evaluator(job, data)
    strategy.share_executables(Executables(pod_store(), jax.process_index(), cache, reporter.record, None))
    storage: Storage = SHARED_FOLDER if chosen.is_shared else ProcessDisk(env.host)
    state = _restore(chosen, strategy, storage, reporter)
    reporter.phase(Phase.EVALUATE)
    batches = _batches(job, data, strategy, reporter)
    metrics = validate(data.dataset, strategy, lambda examples: strategy.sums(state, batches(examples)))
    if jax.process_index() == 0:
        about = about_checkpoint(job, strategy, chosen.step, chosen.workdir)
        weights = "ema" if "ema" in chosen.meta["shapes"] else "params"
        examples = sum(_count(job, data, examples) for examples in sets_of(data)[0])
        report = answer(about, strategy, data, metrics, examples, chosen.step, weights)
        reporter.event(cast(Any, {"event": EventKind.EVALUATED, **asdict(report)}))


def choose(
    workdir: Workdir,
    bucket: str | None,
    spool: Path,
    find: Callable[[Path], Path | None],
    reporter: Reporter,
    by_metrics: bool = False,
) -> Chosen | None:
    """Let process 0 choose a checkpoint; None if it finds none. Called on all processes.

    Args:
        workdir: folder of the results on this host.
        bucket: URL of the workdir if it is in a bucket.
        spool: folder into which process 0 downloads the checkpoint from a bucket; made if it does not exist.
        find: returns the checkpoint's folder in a workdir; None if there is none.
        reporter: gets notes.
        by_metrics: `find` reads the metrics of all checkpoints.

    Raises:
        UserError: `find` raises it, or the checkpoint is damaged.
    """
    message: _Message = {}
    problem: Exception | None = None
    if jax.process_index() == 0:
        try:
            checkpoint = _download(bucket, find, spool, reporter.note, by_metrics) if bucket else find(workdir.path)
            if checkpoint is not None:
                meta = read_meta(int(checkpoint.name), checkpoint, METADATA, parse_meta)
                message = {"checkpoint": str(checkpoint), "meta": meta, "manifest": _manifest(checkpoint)}
        except (UserError, DamagedCheckpointError, HostFaultError) as error:
            problem = error if isinstance(error, UserError) else UserError(str(error))
            message = {"refused": str(error)}
    message = json.loads(broadcast_text(json.dumps(message).encode()))
    if problem is not None:
        raise problem
    if "refused" in message:
        raise RefusedError(message["refused"])
    if "checkpoint" not in message:
        return None
    folder, manifest = Path(message["checkpoint"]), message["manifest"]
    is_here = jax.process_index() == 0 or (bucket is None and manifest != "" and _manifest(folder) == manifest)
    return Chosen(folder, message["meta"], bool(gather([is_here]).all()), bucket or str(workdir.path))


def _manifest(folder: Path) -> str:
    """Return the digest of a checkpoint's manifest, which has the digests of its files; empty if it cannot be read."""
    try:
        return hashlib.sha256((folder / CHECKPOINT_MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return ""


def _download(
    url: str,
    find: Callable[[Path], Path | None],
    spool: Path,
    note: Callable[[str], None],
    by_metrics: bool = False,
) -> Path | None:
    """Download the checkpoint that `find` chooses from a bucket to the folder `spool`, and return its folder there.

    Raises:
        UserError: there is no such checkpoint, or the bucket refuses access.
        UnavailableError: the bucket cannot be reached.
    """
    try:
        bucket = Bucket(url, note)
        objects = bucket.objects("checkpoints")
        names = [name.split("/") for name in as_files(name for name in objects if not name.endswith("/"))[0]]
        steps = {parts[1] for parts in names if len(parts) == 3 and parts[2] == CHECKPOINT_MANIFEST}
        small = {CHECKPOINT_METRICS, METADATA.as_posix()} if by_metrics else set()
        for number in steps:
            folder = Path(path_inside(str(spool), f"checkpoints/{number}"))
            folder.mkdir(parents=True)
            for name in small:
                if (key := f"checkpoints/{number}/{name}") in objects:
                    bucket.get_file(key, folder / name, objects[key])
        spool.joinpath("checkpoints").mkdir(parents=True, exist_ok=True)
        if (chosen := find(spool)) is None:
            return None
        for parts in names:
            if parts[:2] == ["checkpoints", chosen.name] and not (path := spool.joinpath(*parts)).exists():
                key = "/".join(parts)
                bucket.get_file(key, path, objects[key])
        return chosen
    except UserError as error:
        raise UserError(str(error).replace(str(spool), url)) from None
    except BucketError as error:
        raise explained(error) from error
    except OSError as error:
        raise UserError(
            f"the checkpoint cannot be downloaded to {spool}: {error.strerror or error}; make room there"
        ) from error


def _job(chosen: Chosen, config: Config) -> Config:
    """Return the checkpoint's job with the data, the strategy and the launch settings of `config`."""
    sections = config.model_dump(mode="json", include={"data", "validation", "parallel", "launch"})
    saved = job_of(chosen.meta, chosen.step, chosen.workdir).for_evaluation()
    meta: JobMeta = {**chosen.meta, "config": saved_config(saved)}
    job = job_of(meta, chosen.step, chosen.workdir, **sections)
    return resolve(with_kernel(job, "auto"), Devices.here())[0]


def _check_same_data(data: Validation) -> None:
    """Raise UserError if the data of the processes differs."""
    sizes = [examples.size for examples in sets_of(data)[1]]
    digests = gather([zlib.crc32(data.dataset.fingerprint + repr(sizes).encode())])[:, 0]
    others = np.flatnonzero(digests != digests[0])
    if others.size:
        raise UserError(
            f"the data of process {', '.join(map(str, others))} differs from that of process 0: every host must have the "
            "same files"
        )


def _restore(chosen: Chosen, strategy: Strategy, storage: Storage, reporter: Reporter) -> TrainState:
    """Restore the parameters to evaluate, and the model's state, into the strategy's layout."""
    if not storage.everyone_reads:
        connect()
    form = strategy.template()
    shapes = chosen.meta["shapes"]
    averaged = set(flatten_dict(cast(Any, shapes.get("ema", {}))))
    params = flatten_dict(form["params"], keep_empty_nodes=True)
    model_state = flatten_dict(form.get("model_state", {}), keep_empty_nodes=True)
    places: dict[Place, Place] = {path: ("ema" if path in averaged else "params", *path) for path in params}
    wanted: dict[Place, Any] = {places[path]: like for path, like in params.items() if like is not empty_node}
    wanted |= {("model_state", *path): like for path, like in model_state.items() if like is not empty_node}
    wanted["step",] = form["step"]

    def accept(step: int, meta: JobMeta, arrays: Arrays) -> None:
        members = strategy.models if strategy.model_per_device else 0
        saved = {part: meta["shapes"][part] for part in ("params", "model_state") if part in meta["shapes"]}
        if members and (before := _first(saved["params"])[0]) != members:
            raise UserError(
                f"the checkpoint has {before} members, one for each device of the run, and this pod has {members} devices; "
                "take a slice with as many devices, or evaluate it on this machine, without a pod"
            )
        check_model(saved, {part: form[part] for part in ("params", "model_state") if part in form})

    target = Target(job_meta, accept, lambda _: unflatten_dict(wanted), lambda _, meta, arrays: arrays, is_part=True)
    checkpoints = CheckpointFolder(
        chosen.checkpoint.parent, Retention(1), strategy.saves_in_parts, storage, reads_only=True
    )
    arrays = flatten_dict(restore_step(checkpoints, chosen.step, target, reporter))
    named: StateDict = {
        "step": arrays["step",],
        "opt_state": form["opt_state"],
        "params": unflatten_dict({path: arrays.get(place, empty_node) for path, place in places.items()}),
    }
    if model_state:
        named["model_state"] = unflatten_dict(
            {path: arrays.get(("model_state", *path), empty_node) for path in model_state}
        )
    return strategy.place(named)


def _batches(
    config: Config, data: Validation, strategy: Strategy, reporter: Reporter
) -> Callable[[Examples], Iterator[Batch]]:
    """Return the function that yields the batches of a set, as the run divides them, sharded over the devices."""

    def batches(examples: Examples) -> Iterator[Batch]:
        size = examples.size if config.batch_size == "all" else config.batch_size
        for batch in evaluation_batches(examples, size, *strategy.data_shard, data.limit, strategy.shares):
            shard = strategy.shard(batch)
            reporter.record.part()
            yield shard

    return batches


def _count(config: Config, data: Validation, examples: Examples) -> int:
    """Return the number of examples of a set that are evaluated."""
    if data.limit is None or config.batch_size == "all":
        return examples.size
    return min(examples.size, data.limit * config.batch_size)


def _first(shapes: Any) -> list[int]:
    """Return the shape of the first array of a tree."""
    return _first(next(iter(shapes.values()))) if isinstance(shapes, dict) else shapes

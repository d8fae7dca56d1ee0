"""Find the model that `podrun export`, `podrun generate` and `podrun evaluate` are about, or the job of its run."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml

from podrun.runtime.config import Config, bucket_url
from podrun.runtime.contract import UnavailableError, UserError

from ..pod.errors import HostError
from ..results.pull_run import pull_bucket
from ..results.selection import Selection
from ..rundir.runs import RunDirectory, find_run
from ..view.overwritten import OverwrittenLine
from .pull import bucket_of

Step = int | Literal["best"] | None
"""Step of a checkpoint; `best`: the step of the best evaluation; None: the newest step."""
_CHECKPOINT = re.compile("[0-9]{1,18}")


@dataclass(frozen=True)
class ModelSource:
    """Where a model is.

    Attributes:
        folder: a workdir, which may be a URL, or the folder of a published model.
        step: step of the checkpoint.
        python: the interpreter with the job's libraries.
        cwd: folder of the job's relative paths and modules; None: the current folder.
        url: workdir in a bucket from which `folder` was downloaded; None: it was not.
    """

    folder: Path
    step: Step
    python: str
    cwd: Path | None = None
    url: str | None = None

    def named(self, text: str) -> str:
        """Return a message about the model with the bucket's name in place of the temporary folder on this machine."""
        return text if self.url is None else text.replace(str(self.folder), self.url)


@dataclass(frozen=True)
class JobSource:
    """A job that has trained a model, and where its results are.

    Attributes:
        job: the job. Data that was copied to hosts has its paths on this machine.
        folder: folder of the job's relative paths on this machine.
        workdir: a folder on the hosts of a pod, or the path of a URL.
        step: step of the checkpoint.
        cwd: folder of the job's modules; None: the current folder.
    """

    job: Config
    folder: Path
    workdir: Path
    step: Step
    cwd: Path | None = None


@contextmanager
def model_here(target: str | None, step: Step) -> Iterator[ModelSource]:
    """Find a model. If it is in a bucket, download it for the time of a `with` block.

    Args:
        target: a workdir, one of its checkpoints, the URL of a workdir in a bucket, the id of a run, or the folder of a
            published model; None: the newest run.
        step: step of the checkpoint.

    Raises:
        UserError: there is no such model, or its checkpoint in the bucket is damaged.
        UnavailableError: the bucket is unreachable.
    """
    source = _find(target or find_run(None).run_id, step)
    bucket = bucket_url.url(source.folder)
    if bucket is None:
        yield source
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the folder is removed
    with tempfile.TemporaryDirectory(prefix="podrun-model-") as folder:
        here = Path(folder, source.folder.name)
        _bring(bucket, source.step, here)
        yield replace(source, folder=here, url=bucket)


def job_of(target: str | None, step: Step) -> JobSource:
    """Find the job of a model that is evaluated on a pod. `target` is as for `model_here`, but no published model.

    Raises:
        UserError: there is no such job.
        UnavailableError: the bucket is unreachable.
    """
    if target is None or not ("://" in target or "/" in target or Path(target).expanduser().exists()):
        return _job_of_run(find_run(target), step)
    source = _find(target, step)
    if url := bucket_url.url(source.folder):
        job = _job(_config_in_bucket(url), f"{url}/config.yaml")
        return JobSource(job, Path.cwd(), source.folder, source.step)
    path = source.folder / "config.yaml"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; only checkpoints of runs are evaluated on a pod, whose workdirs have this file; a "
            "published model is evaluated on this machine"
        ) from None
    return JobSource(_job(text, str(path)), Path.cwd(), source.folder, source.step)


def _job_of_run(directory: RunDirectory, step: Step) -> JobSource:
    spec = directory.spec()
    job = spec.job
    if not isinstance(job, Config):
        raise UserError(_no_model(directory))
    job = spec.data.on_launcher(job) if spec.data else job
    return JobSource(job, spec.cwd, spec.workdir, step, spec.cwd if spec.cwd.is_dir() else None)


def _config_in_bucket(url: str) -> bytes:
    """Return the config.yaml of a workdir in a bucket. Raises UserError if there is none, else UnavailableError."""
    from podrun.runtime.storage.bucket_client import Bucket, BucketError, explained

    try:
        text = Bucket(url).read("config.yaml")
    except BucketError as error:
        raise explained(error) from None
    if text is None:
        raise UserError(f"{url} has no config.yaml, as the workdir of a run has; give the URL of a workdir")
    return text


def _job(text: bytes, where: str) -> Config:
    """Return the job of a config.yaml, which a run has written. Raises UserError if it is damaged, or of another version."""
    try:
        return Config.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(
            f"{where} is not the job of a run of this podrun ({str(error).splitlines()[0]}); give the id of a run in place "
            "of the folder"
        ) from None


def _no_model(directory: RunDirectory) -> str:
    return (
        f"run {directory.run_id} trained with a program of yours, and podrun does not know which part of its saved state "
        "is the model; open its checkpoints with orbax (docs/checkpoints.md)"
    )


def _find(target: str, step: Step) -> ModelSource:
    if "://" in target:
        return ModelSource(Path(bucket_of(target)), step, sys.executable)
    folder = Path(target).expanduser().absolute()
    if folder.is_dir():
        if _CHECKPOINT.fullmatch(folder.name) and folder.parent.name == "checkpoints":
            if step is not None:
                raise UserError(f"--step {step}: {target} is a checkpoint already; leave it out, or give the workdir")
            return ModelSource(folder.parent.parent, int(folder.name), sys.executable)
        return ModelSource(folder, step, sys.executable)
    if "/" in target or folder.exists():
        reason = "is a file" if folder.exists() else "does not exist here"
        raise UserError(
            f"{target} {reason}; give a workdir on this machine, or the id of a run. `podrun pull` brings the checkpoints "
            "of a run here"
        )
    try:
        directory = find_run(target)
    except UserError as error:
        raise UserError(f"there is no folder {folder}, and {error}") from None
    spec = directory.spec()
    if not isinstance(spec.job, Config):
        raise UserError(_no_model(directory))
    cwd = spec.cwd if spec.cwd.is_dir() else None
    if bucket_url.url(spec.workdir):
        return ModelSource(spec.workdir, step, sys.executable, cwd)
    if not spec.workdir.is_dir():
        raise UserError(
            f"the workdir of run {directory.run_id}, {spec.workdir}, is not on this machine: `podrun pull {directory.run_id} "
            "checkpoints` brings it here; then give the folder that it names"
        )
    python = (spec.job.launch.python if spec.pod.traits.files_are_here else None) or sys.executable
    return ModelSource(spec.workdir, step, python, cwd)


def _bring(bucket: str, step: Step, folder: Path) -> None:
    """Download a checkpoint from a bucket into a folder; for `best` all checkpoints, to compare their metrics."""
    if isinstance(step, int):
        selection = Selection(frozenset(), (step,))
    else:
        selection = Selection(frozenset({"checkpoints"}), newest=1 if step is None else None)
    with OverwrittenLine() as line:
        try:
            pulled = pull_bucket(bucket, selection, folder, lambda _: None, line.progress)
        except HostError as error:
            raise UnavailableError(str(error)) from None
    if pulled.problems:
        raise UserError("\n".join(pulled.problems))
    if not pulled.downloaded.checkpoints:
        raise UserError(f"{bucket} has no complete checkpoint")

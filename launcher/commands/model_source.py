"""Find the model that `podrun export` and `podrun generate` are about."""

from __future__ import annotations

import sys
from pathlib import Path

from podrun.runtime.config import Config, bucket_url
from podrun.runtime.contract import ExitCode, UserError

from ..pod.errors import HostError
from ..results.pull_run import pull_bucket
from ..results.selection import Selection
from ..rundir.runs import find_run
from ..view.overwritten import OverwrittenLine
from .pull import bucket_of


def find_model(target: str) -> tuple[Path, str]:
    """Return the workdir, which may be a URL, and the interpreter with the job's libraries. Raises UserError."""
    if "://" in target:
        return Path(bucket_of(target)), sys.executable
    folder = Path(target).expanduser().absolute()
    if folder.is_dir():
        return folder, sys.executable
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
        raise UserError(
            f"run {directory.run_id} is of a program, of whose state podrun does not know which part is the model; open its "
            "checkpoints with orbax (docs/checkpoints.md)"
        )
    if bucket_url.url(spec.workdir):
        return spec.workdir, sys.executable
    if not spec.workdir.is_dir():
        raise UserError(
            f"the workdir of run {directory.run_id}, {spec.workdir}, is not on this machine: `podrun pull {directory.run_id} "
            "checkpoints` brings it here; then export the folder that it names"
        )
    return spec.workdir, (spec.job.launch.python if spec.pod.traits.files_are_here else None) or sys.executable


def bring(bucket: str, step: int | None, folder: Path) -> int:
    """Download one checkpoint from a bucket into a folder, and return the exit code. Raises UserError."""
    selection = Selection(frozenset(), (step,)) if step is not None else Selection(frozenset({"checkpoints"}), newest=1)
    with OverwrittenLine() as line:
        try:
            pulled = pull_bucket(bucket, selection, folder, lambda _: None, line.progress)
        except HostError as error:
            line.clear()
            print(f"podrun: {error}", file=sys.stderr)
            return ExitCode.UNAVAILABLE
    if not pulled.downloaded.checkpoints and not pulled.problems:
        raise UserError(f"{bucket} has no complete checkpoint")
    for problem in pulled.problems:
        print(f"podrun: {problem}", file=sys.stderr)
    return ExitCode.FAILED if pulled.problems else ExitCode.DONE

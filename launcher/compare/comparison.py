"""Plan a comparison, and find all mistakes before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError

from ..plan.spec import RunSpec
from ..pod.secret_values import read_secrets
from ..request.queue_options import Submission, queue_name, with_queue_options
from ..request.request import Request
from .files import Files, SharedFiles, files_of
from .folder import Folders, new_folders
from .specs import check_all, with_same_code
from .variants import Variant, find_variants

if TYPE_CHECKING:
    from ..staging.bundle import Bundle

_CACHE = "JAX_ENABLE_COMPILATION_CACHE"


@dataclass(frozen=True)
class Comparison:
    """A planned comparison: the variants in order, each with its spec. A spec gets its run id when it starts."""

    name: str
    jobs: tuple[tuple[Variant, RunSpec], ...]
    bundles: tuple[Bundle, ...]
    folders: Folders
    files: Files
    """Access to the workdirs."""
    submission: Submission | None = None
    """Queue that runs each variant as a separate job; None: they run one after another."""

    @property
    def slice(self) -> str:
        return self.jobs[0][1].pod.slice.name

    @property
    def configs(self) -> list[Config]:
        return [spec.job for _, spec in self.jobs if isinstance(spec.job, Config)]


def plan_comparison(request: Request, over: Sequence[str], repeat: int = 1) -> Comparison:
    """Plan the comparison.

    Args:
        request: the command line of the job.
        over: the `--over` options, as typed.
        repeat: number of runs of each variant.

    Raises:
        UserError: all mistakes of all variants.
        HostError: a host's folders cannot be read.
    """
    variants = find_variants(over, request.overrides, repeat)
    submission, problems = None, list[str]()
    if queue := queue_name(request):
        request, submission, problems = with_queue_options(request, queue)
    specs = check_all(request, variants, _request_of, problems)
    first = specs[0]
    if submission and (mistakes := submission.queue.mistakes(submission.options, first.pod)):
        raise UserError("\n".join(mistakes))
    read_secrets(first.pod)
    files = SharedFiles() if submission else files_of(first.pod)
    folders = new_folders(first.workdir, request.workdir is not None, first.pod, [v.folder for v in variants], files)
    specs = [_of_variant(s, folders.runs / variant.folder) for variant, s in zip(variants, specs, strict=True)]
    specs, bundles = with_same_code(specs)
    return Comparison(request.name, tuple(zip(variants, specs, strict=True)), bundles, folders, files, submission)


def _request_of(request: Request, variant: Variant) -> Request:
    """Return the request of one variant. Its name is the label of the run."""
    label = replace(request.label, name=variant.folder)
    if request.program:
        program, keys = variant.program(request.program), variant.launch_keys(request.overrides)
        return request._replace(program=program, overrides=keys, label=label)
    return request._replace(overrides=variant.overrides(request.overrides), label=label)


def _of_variant(spec: RunSpec, workdir: Path) -> RunSpec:
    """Return the variant's spec: with its workdir, and without JAX's compilation cache.

    The first run would fill the cache for the others.
    """
    pod = replace(spec.pod, env={_CACHE: "false", **spec.pod.env})
    return replace(spec, run_id="", pod=pod, workdir=workdir, owner="", command=())

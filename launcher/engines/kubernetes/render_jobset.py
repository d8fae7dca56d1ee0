"""`podrun render jobset`: print a job as a JobSet of Kubernetes, or submit it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from podrun.runtime.config import Config, bucket_url, check_slice
from podrun.runtime.config.xla_presets import misplaced_presets
from podrun.runtime.contract import ExitCode, UserError

from ...plan.program import Program
from ...pod.errors import Mistakes
from ...pod.pod import Host, Pod
from ...pod.ranges import expand, split_hosts
from ...pod.run_id import new_run_id
from ...pod.slices import Slice, parse_slice, several_slices
from ...request.program_checks import check_kind
from ...request.request import Request
from ...request.train_file import read_config, read_launch
from .jobset import ClusterOptions, Manifest, jobset, name_problem, slice_problem, text_problem
from .networks import check_network
from .patch import Changes, read_changes
from .scheduling import Scheduling, parse_tolerations
from .tpu_machines import with_chips_per_host
from .volumes import Volume, parse_volumes

_PLATFORMS = {"tpu": "tpu", "gpu": "cuda", "cpu": "cpu"}
_LIMIT = 60.0  # seconds: timeout of kubectl
_NO_WORKDIR = (
    "there is no --workdir: what the program keeps by podrun.init() ends with its container; give --volume CLAIM:/FOLDER "
    "and a --workdir below that folder"
)


@dataclass(frozen=True)
class JobSetRequest:
    """Command-line options of `podrun render jobset`."""

    train: Path | None
    overrides: tuple[str, ...]
    image: str
    slice: str | None = None
    num_slices: int | None = None
    name: str | None = None
    namespace: str | None = None
    workdir: str | None = None
    volume: tuple[str, ...] = ()
    """Volumes, in the forms that `volumes.parse_volumes` reads."""
    chips_per_host: int | None = None
    """Chips of each TPU machine; None: those of the slice's usual machines."""
    network: str | None = None
    accelerator: str | None = None
    exclude: str | None = None
    """Names of nodes that get no pod, separated by commas, with ranges."""
    spot: bool = False
    toleration: tuple[str, ...] = ()
    queue: str | None = None
    priority: str | None = None
    service_account: str | None = None
    ttl: int | None = None
    patch: Path | None = None
    """YAML file with fields of the JobSet."""
    settings: tuple[str, ...] = ()
    """`PATH=VALUE` of fields of the JobSet."""
    submit: bool = False
    program: tuple[str, ...] = ()
    """Command line of a user program, in place of train.yaml."""


def render(request: JobSetRequest) -> int:
    """Print the manifest, or submit it by kubectl. Returns the exit code. Raises UserError with all mistakes."""
    pod, job, where, changes = _resolve(request, new_run_id())
    manifest = jobset(pod, job, where)
    changes.apply(manifest)
    if job.launch.workdir is None:
        print(f"podrun: {_NO_WORKDIR}", file=sys.stderr)
    text = to_yaml(manifest)
    if not request.submit:
        print(text, end="")
        return ExitCode.DONE
    return _submit(text, request)


def make_manifest(request: JobSetRequest, run_id: str) -> dict[str, object]:
    """Return the manifest. Raises UserError with all mistakes."""
    pod, job, where, changes = _resolve(request, run_id)
    manifest = jobset(pod, job, where)
    changes.apply(manifest)
    return manifest


def to_yaml(manifest: Manifest) -> str:
    """Return the manifest as YAML; a text of several lines is written as a block."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=10_000)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes a text of several lines as a block."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _resolve(request: JobSetRequest, run_id: str) -> tuple[Pod, Config | Program, ClusterOptions, Changes]:
    """Check the request. Raises UserError with all mistakes."""
    mistakes = Mistakes()
    job = mistakes.check(lambda: _job(request))
    slice = mistakes.check(lambda: _slice(request, job))
    volumes = mistakes.check(lambda: parse_volumes(request.volume))
    named = request.name or Request(request.train, program=request.program).name
    name = request.name or re.sub("[^a-z0-9]+", "-", named.lower()).strip("-")[:40].rstrip("-")
    excluded = mistakes.check(lambda: _nodes(request.exclude)) or ()
    where = ClusterOptions(
        name,
        run_id,
        request.image,
        namespace=request.namespace,
        volumes=volumes or (),
        network=request.network,
        accelerator=request.accelerator,
        excluded=excluded,
        scheduling=Scheduling(
            spot=request.spot,
            tolerations=mistakes.check(lambda: parse_tolerations(request.toleration)) or (),
            queue=request.queue,
            priority=request.priority,
            service_account=request.service_account,
            ttl=request.ttl,
        ),
    )
    mistakes.add(*[what for what in (name_problem(name), text_problem(where)) if what], *where.scheduling.problems())
    if job:
        given = job
        mistakes.add(*_job_problems(given))
        if volumes is not None:
            mounted = volumes
            job = mistakes.check(lambda: _with_workdir(given, request.workdir, mounted))
    if slice and (what := slice_problem(slice)):
        mistakes.add(what)
    if slice and request.accelerator and slice.kind != "gpu":
        mistakes.add(f"--accelerator names the GPUs of a gpu-HxD; the nodes of {slice.name} follow from its name")
    if slice and request.network:
        shape, network = slice, request.network
        mistakes.check(lambda: check_network(network, shape, request.accelerator))
    if slice and job and (misplaced := misplaced_presets(job.launch.xla, slice.kind, slice.name)):
        mistakes.add(misplaced)
    if slice and job and not isinstance(job, Program):
        config, shape = job, slice
        mistakes.check(lambda: check_slice(config, shape.devices, shape.slices, shape.kind))
    changes = mistakes.check(lambda: read_changes(request.patch, request.settings))
    mistakes.raise_any()
    assert job and slice and changes
    hosts = tuple(Host(f"worker-{number}", f"worker-{number}") for number in range(slice.hosts))
    pod = Pod(slice, hosts, "ssh", _PLATFORMS[slice.kind])
    return pod, job, where, changes


def _job(request: JobSetRequest) -> Config | Program:
    """Return the checked job or user program. Raises UserError with all its mistakes."""
    check_kind(request.train, request.program, request.overrides)
    if request.train:
        return read_config(request.train, request.overrides)
    return Program(request.program, read_launch(request.overrides))


def _slice(request: JobSetRequest, job: Config | Program | None) -> Slice:
    name = request.slice or (job.launch.slice if job else None)
    if name is None:
        raise UserError("no slice: give one with --slice, for example v5e-16 or gpu-2x8, or as launch.slice")
    slice = several_slices(parse_slice(name), request.num_slices or parse_slice(name).slices)
    return with_chips_per_host(slice, request.chips_per_host) if request.chips_per_host else slice


def _nodes(text: str | None) -> tuple[str, ...]:
    """Return the names of nodes. Raises UserError with all mistakes."""
    names: list[str] = []
    mistakes = Mistakes()
    for entry in split_hosts(text or ""):
        try:
            names += expand(entry)
        except ValueError as error:
            mistakes.add(f"--exclude: {entry!r}: {error}")
    mistakes.add(
        *[
            f"--exclude: {name!r} is not the name of a node: `kubectl get nodes` lists them"
            for name in names
            if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", name)
        ]
    )
    if text is not None and not names and not mistakes.texts:
        mistakes.add("--exclude has no names; give those of nodes, as `kubectl get nodes` lists them, or leave it out")
    mistakes.raise_any()
    return tuple(dict.fromkeys(names))


def _with_workdir(job: Config | Program, typed: str | None, volumes: Sequence[Volume]) -> Config | Program:
    """Return the job with its workdir, which must be in a bucket or on the volume: a container's disk is temporary.

    A user program may be without a workdir; otherwise its workdir must be on the volume.
    """
    chosen = Path(typed) if typed else job.launch.workdir
    if chosen and (mistakes := bucket_url.mistakes(chosen)):
        raise UserError("\n".join(mistakes))
    bucket = bucket_url.url(chosen) if chosen else None
    if bucket and isinstance(job, Program):
        raise UserError(
            f"workdir {bucket}: a user program keeps its results in a folder; give --volume CLAIM:/FOLDER and a --workdir "
            "below that folder"
        )
    volume = next((v for v in volumes if chosen and not bucket and v.holds(chosen)), None)
    if volume and (volume.is_read_only or volume.is_fuse):
        why = (
            "is read-only"
            if volume.is_read_only
            else "is a bucket by GCS FUSE, where a checkpoint is not written at once"
        )
        others = "another volume" if isinstance(job, Program) else "--workdir gs://BUCKET/PATH, or another volume"
        raise UserError(f"workdir {chosen}: --volume {volume.typed} {why}; give {others}")
    if not (bucket or volume) and (chosen or not isinstance(job, Program)):
        where = f"is {chosen}, which ends with its container" if chosen else "is missing"
        url = "" if isinstance(job, Program) else "--workdir gs://BUCKET/PATH (or s3://...), or "
        raise UserError(f"workdir {where}; give {url}--volume CLAIM:/FOLDER and a --workdir below that folder")
    if isinstance(job, Program):
        return replace(job, launch=replace(job.launch, workdir=chosen))
    return job.model_copy(update={"launch": job.launch.model_copy(update={"workdir": chosen})})


def _job_problems(job: Config | Program) -> list[str]:
    launch = job.launch
    problems = []
    if launch.process_per == "device":
        problems.append("launch.process_per: device: a container has one process for all its GPUs; remove it")
    if not isinstance(job, Program) and job.brings_data:
        problems.append(
            "data.bring: podrun copies no data to containers; put the data into the image, or on the volume"
        )
    if not isinstance(job, Program) and job.checkpoint.memory_every:
        problems.append(
            "checkpoint.memory_every: Kubernetes makes new containers after a failure, and their memory is new as well; "
            "remove it, and save to the volume or bucket more often (checkpoint.every)"
        )
    if launch.python or launch.pod:
        problems.append(
            "launch.python and launch.pod are for hosts; the image says which Python, the cluster which nodes"
        )
    return problems


def _submit(text: str, request: JobSetRequest) -> int:
    """Submit the manifest by kubectl, which checks it against the cluster's schema. Raises UserError."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UserError("there is no `kubectl` in the PATH; install it, or submit what is printed without --submit")
    try:
        done = subprocess.run(
            [kubectl, "create", "--filename=-"],
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT,
        )
    except OSError as error:
        raise UserError(f"cannot start {kubectl}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"kubectl has not answered within {_LIMIT:g} s; can it reach the cluster? (kubectl cluster-info)"
        ) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"it ended with {done.returncode}"]
        raise UserError(f"kubectl has not created the JobSet: {lines[-1][:500]}{_remedy(done.stderr)}")
    print(f"podrun: {done.stdout.strip()}")
    namespace = f" -n {request.namespace}" if request.namespace else ""
    name = done.stdout.partition("/")[2].partition(" ")[0] or request.name or "NAME"
    print(
        f"  kubectl get jobset{namespace} {name}    its state\n"
        f"  kubectl logs{namespace} -f -l jobset.sigs.k8s.io/jobset-name={name} --prefix    what its processes print\n"
        f"  kubectl delete jobset{namespace} {name}    end it; each process saves first"
    )
    return ExitCode.DONE


_TOO_OLD = (
    ": it is too old; `kubectl get deployments -A -o wide` shows its version (jobset-controller-manager), and podrun needs "
    "0.10 or newer: https://jobset.sigs.k8s.io/docs/installation"
)


def _remedy(stderr: str) -> str:
    remedies = (
        ("AlreadyExists", "a JobSet of that name exists: `kubectl delete jobset NAME`, or give another --name"),
        ("no matches for kind", "the cluster has no JobSet: install it (https://jobset.sigs.k8s.io/docs/installation)"),
        ("unknown field", f"the cluster's JobSet does not know this field{_TOO_OLD}"),
        ("Unsupported value", f"the cluster's JobSet does not know this value{_TOO_OLD}"),
        ("privileged", "the cluster does not allow privileged containers: give --network pod, which does without"),
        ("Forbidden", "your user may not create JobSets there; ask who runs the cluster"),
        ("hostNetwork", "the cluster does not allow the host's network: give --network pod"),
        ("was refused", "kubectl does not reach the cluster: `kubectl config current-context`"),
        ("connection refused", "kubectl does not reach the cluster: `kubectl config current-context`"),
    )
    return next((f"\n{remedy}" for word, remedy in remedies if word in stderr), "")

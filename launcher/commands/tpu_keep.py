"""`podrun tpu keep`: create a TPU VM, train on it, and recreate it whenever Google takes it away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from podrun.runtime.config import Launch, bucket_url
from podrun.runtime.contract import ExitCode, UserError

from ..engines.tpu.keep import RenewableTpu
from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..pod.pod import Pod
from ..pod.slices import parse_slice
from ..request.request import Request, make_spec
from ..run.signals import Signals
from .compile_ahead import compile_ahead
from .run import run
from .tpu import TpuRequest, agree, hints, tell

_REMARK = "costs, and podrun deletes it and creates it again whenever Google takes it away, until the run is done"


@dataclass(frozen=True)
class KeepRequest:
    """Command-line options of `podrun tpu keep`."""

    tpu: TpuRequest
    request: Request
    """The run, without a pod."""
    pod: Path | None = None


def keep(request: KeepRequest) -> int:
    """Create a TPU VM, run the job to its end on it, and recreate it when Google takes it away. Returns the run's exit code.

    Raises UserError, UnavailableError.
    """
    order = request.tpu.order
    launch = _check(request)
    tpu = order.tpu
    if not agree(order, request.tpu.yes, _REMARK, always=True):
        return ExitCode.DONE
    where = _Where(request, launch)
    kept = RenewableTpu(order, where.find)
    compiling = compile_ahead(replace(request.request, where=where.found), parse_slice(request.tpu.slice))
    if compiling:
        print(compiling.words, flush=True)
    try:
        with Signals() as signals:
            pod = kept.renew(tell, lambda: len(signals.received))
        remark = compiling.end() if compiling else None
        if remark and pod is not None:
            print(f"podrun: {remark}", flush=True)
        if pod is not None:
            return run(replace(request.request, where=where.found), renewal=kept)
    except BaseException:  # before the run begins; the run prints this itself at its end
        if compiling:
            compiling.end()
        print(f"podrun: {tpu.name} is left as it is{hints(tpu)}", flush=True)
        raise
    print(f"podrun: interrupted; {tpu.name} is left as it is{hints(tpu)}", flush=True)
    return 128 + signals.received[0]


class _Where:
    """Finds the pod of the TPU VM, whose addresses change each time the VM is created."""

    def __init__(self, request: KeepRequest, launch: Launch) -> None:
        self._launch = launch
        tpu = request.tpu
        refinements = {"zone": tpu.zone, **({"project": tpu.project} if tpu.project else {})}
        self.found = PodRequest(tpu.slice, request.pod, {"tpu": tpu.name}, refinements, request.request.train)

    def find(self) -> Pod:
        """Return the current pod. Raises UserError, UnavailableError."""
        self.found = replace(self.found)  # a copy without the cached listing
        return find_pod(self.found, self._launch)


def _check(request: KeepRequest) -> Launch:
    """Return the job's `launch` section.

    Raises UserError with all mistakes that can be found before the TPU VM costs money.
    """
    tpu, job = request.tpu, request.request
    hosts = parse_slice(tpu.slice).hosts
    # the names that the hosts will have; nothing is contacted yet
    named = PodRequest(tpu.slice, request.pod, {"hosts": f"{tpu.name}-w-[0-{hosts - 1}]"}, {}, job.train)
    spec = make_spec(replace(job, where=named))
    chosen = job.workdir or spec.job.launch.workdir or spec.pod.workdir
    if not job.program and chosen is None:
        raise UserError(
            f"the workdir would be on the disk of {tpu.name}-w-0, which goes with the TPU VM, and so would the checkpoints\n"
            "give a bucket, --workdir gs://BUCKET/PATH, or a folder on a file system that `setup:` of a pod file mounts"
        )
    if not bucket_url.url(spec.workdir):
        what = "what the program keeps" if job.program else f"the workdir {spec.workdir}"
        print(f"podrun: {what} must be on a file system that outlives the TPU VM", flush=True)
    return spec.job.launch

"""`podrun tpu keep`: create a TPU VM, train on it, and recreate it whenever Google takes it away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from podrun.runtime.config import Launch, bucket_url
from podrun.runtime.contract import ExitCode, UnavailableError, UserError

from ..engines.tpu.gcloud import StoppedError, TpuName
from ..engines.tpu.keep import RenewableTpu
from ..engines.tpu.prices import Price, read_prices
from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..pod.errors import Mistakes
from ..pod.pod import Pod
from ..pod.slices import parse_slice
from ..request.request import Request, make_spec
from ..run.signals import Signals
from .compile_ahead import compile_ahead
from .run import run
from .tpu import TpuRequest, agree, find_order, first_time, hints, tell

_REMARK = "costs, and podrun deletes it and creates it again whenever Google takes it away, until the run is done"


@dataclass(frozen=True)
class KeepRequest:
    """Command-line options of `podrun tpu keep`."""

    tpu: TpuRequest
    request: Request
    """The run, without a pod."""
    pod: Path | None = None
    zones: tuple[str, ...] = ()
    """Zones that are tried after that of `tpu`, in this order."""
    prices: Path | None = None
    """Google's price list."""
    down: bool = False
    """True: delete the TPU at the end, however the run ends."""


def keep(request: KeepRequest) -> int:
    """Create a TPU VM, run the job to its end on it, and recreate it when Google takes it away. Returns the run's exit code.

    Raises UserError, UnavailableError.
    """
    order = request.tpu.order
    mistakes = Mistakes()
    for zone in request.zones:
        mistakes.check(lambda zone=zone: replace(order.tpu, zone=zone))  # type: ignore[misc]
    mistakes.raise_any()
    launch = _check(request)
    prices = read_prices(request.prices, order, (order.tpu.zone, *request.zones)) if request.prices else {}
    order, status = find_order(request.tpu)
    if not agree(order, status, request.tpu.yes, _REMARK, always=True, more=_rows(request, prices)):
        return ExitCode.DONE
    where = _Where(request, launch)
    kept = RenewableTpu(order, where.find, request.zones, prices, request.down)
    try:
        return _keep(request, kept, where)
    finally:
        if request.down:
            _delete(kept)


def _stopping(request: KeepRequest) -> str:
    """Return a line about the first Ctrl-C while the TPU is created."""
    what = (
        f"{request.tpu.name} is then deleted"
        if request.down
        else f"{request.tpu.name} then stays as it is, and costs once it has machines"
    )
    return f"podrun: Ctrl-C: the run does not start; {what}. Ctrl-C again ends gcloud at once.\n"


def _rows(request: KeepRequest, prices: Mapping[str, Price]) -> list[list[str]]:
    """Return rows about zones and price for the question to the user."""
    rows = [["then tried", ", ".join(request.zones)]] if request.zones else []
    if request.prices:
        listed = [f"{zone} {prices.get(zone, 'not listed')}" for zone in (request.tpu.zone, *request.zones)]
        rows.append(["price", f"{'; '.join(listed)}, by {request.prices.name}"])
    return [*rows, ["at the end", "it is deleted" if request.down else "it stays"]]


def _delete(kept: RenewableTpu) -> None:
    """Delete the TPU at the end. A failure is a message: the exit code is that of the run.

    The first Ctrl-C changes nothing: it may belong to those that ended the run.
    """
    still = (
        f"podrun: still deleting {kept.name}, as --down says. Ctrl-C again leaves what is left of it, which may cost.\n"
    )
    with Signals(on_early_interrupt=first_time(still)) as signals:
        try:
            kept.delete(tell, lambda: max(0, len(signals.received) - 1))
        except (StoppedError, UserError, UnavailableError) as error:
            why = "interrupted" if isinstance(error, StoppedError) else error
            print(f"podrun: {kept.name} could not be deleted: {why}{hints(kept.tpu)}", flush=True)
            return
    print(f"podrun: {kept.name} is deleted", flush=True)


def _keep(request: KeepRequest, kept: RenewableTpu, where: _Where) -> int:
    compiling = compile_ahead(request.request._replace(where=where.found), parse_slice(request.tpu.slice))
    if compiling:
        print(compiling.words, flush=True)
    try:
        with Signals(on_early_interrupt=first_time(_stopping(request))) as signals:
            pod = kept.renew(tell, lambda: len(signals.received))
        remark = compiling.end() if compiling else None
        if remark and pod is not None:
            print(f"podrun: {remark}", flush=True)
        if pod is not None and not signals.received:  # Ctrl-C may come while gcloud lists the hosts
            return run(request.request._replace(where=where.found), renewal=kept)
    except BaseException:  # before the run begins; the run prints this itself at its end
        if compiling:
            compiling.end()
        if not request.down:
            print(f"podrun: {kept.name} is left as it is{hints(kept.tpu)}", flush=True)
        raise
    print(
        "podrun: interrupted" + ("" if request.down else f"; {kept.name} is left as it is{hints(kept.tpu)}"), flush=True
    )
    return 128 + signals.received[0]


class _Where:
    """Finds the pod of the TPU VM, whose addresses change each time the VM is created."""

    def __init__(self, request: KeepRequest, launch: Launch) -> None:
        self._launch = launch
        tpu = request.tpu
        refinements = {"zone": tpu.zone, **({"project": tpu.project} if tpu.project else {})}
        self.found = PodRequest(tpu.slice, request.pod, {"tpu": tpu.name}, refinements, request.request.train)

    def find(self, tpu: TpuName) -> Pod:
        """Return the current pod. Raises UserError, UnavailableError."""
        # a copy without the cached listing
        self.found = replace(self.found, refinements={**self.found.refinements, "zone": tpu.zone})
        return find_pod(self.found, self._launch)


def _check(request: KeepRequest) -> Launch:
    """Return the job's `launch` section.

    Raises UserError with all mistakes that can be found before the TPU VM costs money.
    """
    tpu, job = request.tpu, request.request
    hosts = parse_slice(tpu.slice).hosts
    # the names that the hosts will have; nothing is contacted yet
    named = PodRequest(tpu.slice, request.pod, {"hosts": f"{tpu.name}-w-[0-{hosts - 1}]"}, {}, job.train)
    spec = make_spec(job._replace(where=named))
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

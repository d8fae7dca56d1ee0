"""`podrun hold` and `podrun release`: keep agents and warm interpreters on the hosts of a pod, for the next run."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import IO, TYPE_CHECKING

from podrun.runtime.config import Config
from podrun.runtime.contract import ExitCode, UnavailableError, UserError
from podrun.runtime.wording import counted

from ..hold.holder import expected_workers
from ..hold.record import (
    HOLDS,
    HoldRecord,
    NotHeldError,
    all_ends,
    all_records,
    connect,
    forget_end,
    hold_id,
    read_record,
    remove_stale,
    shell_settings,
)
from ..hold.transport import ask
from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..plan.agent_file import agent_file
from ..plan.plan import make_plan
from ..plan.spec import RunSpec
from ..pod.home import podrun_home, private_folder
from ..pod.pod import Pod
from ..pod.run_id import new_run_id
from ..pod.secret_values import read_secrets
from ..run.signals import one_interrupt
from ..transport.open_files import restore_limit
from ..view.times import duration, parse_duration
from .hold_process import Order

if TYPE_CHECKING:
    from ..staging.bundle import Bundle

_SHORTEST = 10.0  # seconds that a hold may be idle
_START = f"import sys; del sys.path[0]; from {Order.__module__} import main; main()"
"""Program of the process of a hold: the current folder may have modules with the names of others."""
_SPACE = 1 << 16  # bytes that the files of a hold may need on the disk
_END = 20.0  # seconds for the process of a hold to end


def hold(where: PodRequest, idle: str) -> int:
    """Hold the pod, and return when all its hosts are ready. Raises UserError, UnavailableError."""
    seconds = parse_duration(idle, "--idle")
    if seconds < _SHORTEST:
        raise UserError(f"--idle {idle}: too short, a run would not find the hold; write {_SHORTEST:g}s or more")
    pod = find_pod(where)
    _check_supported(pod)
    id = hold_id(pod)
    with suppress(NotHeldError):
        connect(id).close()
        since = time.strftime("%H:%M", time.localtime(read_record(id).since))
        raise UserError(f"this pod is held already, since {since}; `podrun release` ends that hold")
    order = _order(pod, HoldRecord(id, _name(pod), 0, 0.0, seconds, agent_file()[0], gethostname(), shell_settings()))
    folder = podrun_home() / HOLDS
    try:
        log = tempfile.TemporaryFile(dir=private_folder(HOLDS))
        log.write(bytes(_SPACE))  # a full disk is found before the hosts are made ready
        log.seek(0)
        log.truncate()
    except OSError as error:
        raise UserError(
            f"cannot write in {folder}: {error.strerror}; make room there, or set PODRUN_HOME to a folder you can write to"
        ) from None
    with log, one_interrupt():
        process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        restore_limit(process.pid)
        try:
            return _follow(process, order, log)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END)
            remove_stale(id)
            forget_end(id)
            raise


def _follow(process: subprocess.Popen[bytes], order: Order, log: IO[bytes]) -> int:
    """Print what the process says until the pod is held. `log`: its stderr. Raises UnavailableError, UserError."""
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, suppress(BrokenPipeError):
        pickle.dump(order, process.stdin)
    with process.stdout:
        for line in process.stdout:
            message = json.loads(line)
            if "held" in message:
                print(message["held"], flush=True)
                return ExitCode.DONE
            if "failed" in message:
                process.wait(_END)
                raise UserError(message["failed"]) if message["is_bad"] else UnavailableError(message["failed"])
            print(f"podrun: {message['say']}", file=sys.stderr, flush=True)
    process.wait(_END)
    log.seek(0)
    words = log.read().decode(errors="replace").strip().splitlines()
    raise UnavailableError(f"the process that should hold the pod has ended: {(words or ['it said nothing'])[-1]}")


def _check_supported(pod: Pod) -> None:
    """Raise UserError if the pod cannot be held."""
    instead = "hosts reached by SSH, this machine and a simulated pod can be held"
    if pod.traits.queue:
        raise UserError(
            f"podrun hold: these hosts belong to a job of a queue, which ends with its own time limit; {instead}; to start "
            "often, keep a job (salloc) and use `podrun --slurm` in it"
        )
    if pod.container is not None:
        raise UserError(
            f"podrun hold: an interpreter in a container image cannot be held; {instead}, without `container:` in the pod "
            "file; runs in an image start as ever"
        )


def _order(pod: Pod, record: HoldRecord) -> Order:
    """Return all that the process of the hold needs to know. Raises UserError."""
    job = Config.model_validate({"steps": 1, "batch_size": pod.slice.devices})
    spec = RunSpec(new_run_id(), pod, job, pod.workdir_on_hosts(Path("hold")), Path.cwd())
    bundles: tuple[Bundle, ...] = ()
    if pod.traits.needs_staging:
        from ..run.pack import with_code

        spec, bundles = with_code(spec)
    plan = make_plan(spec, 0, read_secrets(pod))
    workers = {host.host.name: expected_workers(host.spec["processes"]) for host in plan.hosts}
    return Order(record, plan, workers, bundles)


def _name(pod: Pod) -> str:
    return f"{pod.slice.name}, {counted(pod.slice.hosts, 'host')} {pod.traits.reached}"


def list_holds() -> int:
    """Print the pods that are held on this machine."""
    rows = []
    for record in all_records():
        if isinstance(record, NotHeldError):
            print(f"podrun: {record}; remove it", file=sys.stderr, flush=True)
        elif (state := _state(record)) is not None:
            since = time.strftime("%H:%M", time.localtime(record.since))
            rows.append(f"{record.id}  {record.pod}, since {since}: {state}")
    rows = rows or ["no pod is held on this machine"]
    rows += [f"{id}  {ended.pod}: {ended}" for id, ended in all_ends().items() if not _has_record(id)]
    print("\n".join(rows))
    return ExitCode.DONE


def _state(record: HoldRecord) -> str | None:
    """Return what a hold is doing; None if its process is gone, whose files are then removed."""
    if record.host != gethostname():
        return f"held on {record.host}; `podrun hold --list` and `podrun release` there say more and end it"
    try:
        status = ask(connect(record.id), {"ask": "status"})
    except NotHeldError as error:
        remove_stale(record.id)
        return str(error) if _has_record(record.id) else None
    if status.get("run"):
        return f"used by run {status['run']}"
    cold = status.get("cold") or {}
    waiting = "; ".join(f"{host}: {why}" for host, why in list(cold.items())[:3]) if cold else "all hosts are ready"
    return f"{waiting}; ends in {duration(float(status.get('left', 0)))} without a run"


def _has_record(id: str) -> bool:
    try:
        read_record(id)
    except NotHeldError:
        return False
    return True


def release(where: PodRequest, everything: bool) -> int:
    """End the hold of a pod, or all holds of this machine.

    Raises:
        UserError: there is none, or a run uses it.
        UnavailableError: a hold could not be ended; all others have been.
    """
    if everything:
        records = [record for record in all_records() if isinstance(record, HoldRecord)]
        ids = [record.id for record in records if record.host == gethostname()]
        for id in all_ends():
            forget_end(id)
        if not ids:
            print("no pod is held on this machine")
    else:
        ids = [hold_id(find_pod(where))]
    used: list[str] = []
    failed: list[str] = []
    for id in ids:
        try:
            if text := _release(id):
                used.append(text)
        except UnavailableError as error:
            failed.append(str(error))
    if failed:
        raise UnavailableError("\n".join([*failed, *used]))
    if used:
        raise UserError("\n".join(used))
    return ExitCode.DONE


def _release(id: str) -> str:
    """End a hold, and wait until its process is gone. Returns why that is refused. Raises UserError, UnavailableError."""
    try:
        record = read_record(id)
    except NotHeldError as error:
        remove_stale(id)
        ended = forget_end(id)
        why = str(error) or (f"the hold of this pod {ended}" if ended else "this pod is not held")
        raise UserError(f"{why}; `podrun hold --list` shows which pods are held") from None
    try:
        control = connect(id)
        answer = ask(control, {"ask": "release"})
    except NotHeldError as error:
        remove_stale(id)
        if _has_record(id):
            raise UnavailableError(f"{record.pod}: {error}; `kill -9 {record.pid}` ends it") from None
        forget_end(id)
        print(f"released: {record.pod} (its process was gone)")
        return ""
    if run := answer.get("run"):
        return f"{record.pod}: run {run} uses it; `podrun stop {run}` ends the run, then release the pod again"
    control.settimeout(_END)
    try:
        with control:
            control.recv(1)  # returns when the process has ended
    except TimeoutError:
        raise UnavailableError(
            f"{record.pod}: its process is still ending its agents; `podrun hold --list` shows it"
        ) from None
    except OSError:
        pass
    print(f"released: {record.pod}")
    return ""

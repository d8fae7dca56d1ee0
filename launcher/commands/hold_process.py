"""The process that holds a pod: it prepares the hosts, starts their agents, and serves runs until it is released."""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podrun.runtime.contract import ExitCode, UserError

from ..agent.base.to_agent import Expected
from ..hold.holder import IDLE, Holder
from ..hold.record import (
    HOLDS,
    HoldRecord,
    NotHeldError,
    claim,
    forget_end,
    has_record,
    listen,
    note_end,
    write_record,
)
from ..plan.plan import LaunchPlan
from ..pod.home import podrun_home, private
from ..staging.bundle import Bundle
from ..transport.base import Transport, load_transport
from ..view.times import duration


@dataclass(frozen=True)
class Order:
    """A hold to make."""

    record: HoldRecord
    """Its record, without pid and time."""
    plan: LaunchPlan
    """Plan of a run on the pod, by which its hosts are prepared."""
    workers: Mapping[str, list[Expected]]
    bundles: Sequence[Bundle]


class _FailedError(Exception):
    """The pod cannot be held."""


def main() -> None:
    """Read the order from stdin, and report on stdout: lines of JSON."""
    faulthandler.enable()
    order: Order = pickle.load(sys.stdin.buffer)
    try:
        _hold(order)
    except (UserError, NotHeldError) as error:
        _report(failed=str(error), is_bad=True)
        sys.exit(ExitCode.BAD_CONFIG)
    except OSError as error:
        where = error.filename or podrun_home() / HOLDS
        _report(
            failed=f"cannot write {where}: {error.strerror}; set PODRUN_HOME to a folder you can write to", is_bad=True
        )
        sys.exit(ExitCode.BAD_CONFIG)
    except _FailedError as error:
        _report(failed=str(error), is_bad=False)
        sys.exit(ExitCode.UNAVAILABLE)


def _hold(order: Order) -> None:
    pod = order.plan.pod
    transport = load_transport(pod)
    holder = Holder(pod, transport, order.workers, order.record)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: holder.release(f"its process received {signal.Signals(number).name}"))
    try:
        with claim(order.record.id) as file:
            forget_end(order.record.id)
            _prepare(order, transport)
            cold = holder.start(lambda host: _report(say=f"{host}: ready"))
            if cold:
                raise _FailedError("\n".join(f"{host}: {why}" for host, why in cold.items()))
            listener = listen(order.record.id)
            write_record(file, order.record._replace(pid=os.getpid(), since=time.time()))
            idle = duration(order.record.idle)
            is_heard = _report(
                held=f"held: {order.record.pod}; the next `podrun train.yaml` on it starts with warm interpreters\n"
                f"it ends after {idle} without a run, or with `podrun release`"
            )
            if not is_heard:
                return
            _close_stdout()
            _open_log(order.record.id)
            try:
                why = holder.serve(listener, lambda: has_record(file, order.record.id))
            except Exception as error:
                note_end(order.record.id, order.record.pod, f"its process failed: {type(error).__name__}: {error}")
                raise
            if why:
                note_end(order.record.id, order.record.pod, f"{why} for {idle}" if why == IDLE else why)
    finally:
        holder.close()


def _prepare(order: Order, transport: Transport) -> None:
    """Send code and environment to the hosts, and check them. Raises _FailedError, UserError."""
    plan = order.plan
    if plan.run.code is None and not plan.pod.traits.is_exclusive:
        return
    from ..run.stage import check_hosts, stage_hosts

    def tell(host: str, phase: str, message: str) -> None:
        if phase in ("environment", "setup"):
            _report(say=f"{host}: {phase}: {message}")

    def note(message: str, sent: object = None) -> None:
        _report(say=message)

    if plan.run.code is None:
        failures = check_hosts(plan, transport, note)
    else:
        failures = stage_hosts(plan, transport, order.bundles, tell, note)
    if failures:
        raise _FailedError("\n".join(f"{failure}{failure.details and f'; {failure.details}'}" for failure in failures))


def _report(**message: Any) -> bool:
    """Send a line to the command that started this process. Returns False if it is gone."""
    try:
        print(json.dumps(message), flush=True)
    except OSError:
        return False
    return True


def _open_log(id: str) -> None:
    """Write stderr to the log of the hold from now on; until now the command that started this process has read it."""
    with open(podrun_home() / HOLDS / f"{id}.log", "wb", opener=private) as log:
        os.dup2(log.fileno(), 2)


def _close_stdout() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1):
        os.dup2(nothing, target)
    os.close(nothing)


if __name__ == "__main__":
    main()

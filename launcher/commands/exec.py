"""`podrun exec`: run one command on every host of a pod, and show equal outputs once."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO

from podrun.runtime.contract import ExitCode, UserError

from ..inventory.pod_request import PodRequest
from ..pod.fold import fold
from ..pod.in_thread import InThread
from ..preflight.base import name_hosts
from ..remote.execution import Execution, Result
from ..request.hosts import select_hosts
from ..run.signals import Signals
from ..transport.base import load_transport

_LOOK = 0.1  # seconds between two checks for Ctrl-C
_LIMIT = 5.0  # seconds after Ctrl-C for the hosts to confirm that they have killed the command


def execute(where: PodRequest, run: str | None, argv: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Run the command, and return the largest exit code; an unreachable host counts as 69. Raises UserError."""
    if not argv:
        raise UserError("no command: write it after `--`, for example podrun exec --pod pod.yaml -- nvidia-smi -L")
    pod, _ = select_hosts(where, run, "exec")
    transport = load_transport(pod)
    try:
        results, interrupted = _run_interruptibly(Execution(transport, pod, argv, timeout))
    finally:
        transport.close()
    code = 128 + interrupted if interrupted else max(result.code for result in results)
    if as_json:
        print(json.dumps({"code": code, "hosts": {result.host: _row(result) for result in results}}, indent=1))
    else:
        _print(results, sys.stdout.buffer)
        _print_failures(results)
    return code


def _run_interruptibly(execution: Execution) -> tuple[list[Result], int]:
    """Return the results, and the signal that ended the commands early, or 0."""
    with Signals() as signals:
        running = InThread(execution.run, "exec")
        while not running.wait(_LOOK):
            if signals.received:
                _end(execution, running, signals)
                break
    results = running.result() if running.wait(0) else []
    return results, signals.received[0] if signals.received else 0


def _end(execution: Execution, running: InThread[list[Result]], signals: Signals) -> None:
    print(f"podrun: killing it on {name_hosts(execution.waiting())}", file=sys.stderr, flush=True)
    execution.end()
    for _ in range(int(_LIMIT / _LOOK)):
        if running.wait(_LOOK):
            return
        if len(signals.received) > 1:
            break
    execution.end(now=True)
    running.wait(_LIMIT)


def _row(result: Result) -> dict[str, object]:
    return {
        "code": int(result.code),
        "output": result.output.decode(errors="replace"),
        "left_out": result.left_out,
        "error": result.error,
    }


def _print(results: Sequence[Result], out: IO[bytes]) -> None:
    """Print the outputs; hosts with the same result share a header."""
    groups: dict[tuple[bytes, int, bool], list[str]] = {}
    for result in results:
        if result.output or result.error is None:
            groups.setdefault((result.output, result.code, result.error is None), []).append(result.host)
    for (output, code, ended), hosts in groups.items():
        count = f" ({len(hosts)} hosts)" if len(hosts) > 1 else ""
        how = f": exit code {code}" if code and ended else "" if output else ": no output"
        out.write(f"--- {fold(hosts)}{count}{how}\n".encode() + output)
        if output and not output.endswith(b"\n"):
            out.write(b"\n")
    out.flush()


def _print_failures(results: Sequence[Result]) -> None:
    """Print the failed hosts after all output, where they are visible."""
    errors: dict[str, list[str]] = {}
    for result in results:
        if result.error is not None:
            errors.setdefault(result.error, []).append(result.host)
        elif result.code != ExitCode.DONE:
            errors.setdefault(f"exit code {result.code}", []).append(result.host)
    for error, hosts in errors.items():
        print(f"podrun: {fold(hosts)}: {error}", file=sys.stderr)

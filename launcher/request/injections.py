"""Resolve the faults of `--inject` against the pod, and report all mistakes at once."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.contract import UserError
from podrun.runtime.injection import IN_STATE, LINK_DOWN, Injection, parse

from ..pod.pod import Pod
from ..yamlfile.short import short


def resolve_injections(texts: Sequence[str], pod: Pod | None, process_per: str, is_program: bool) -> tuple[str, ...]:
    """Return each fault with its host and process, as text.

    Args:
        texts: the faults, as typed.
        pod: the hosts; None if the pod has mistakes, which are reported elsewhere.
        process_per: `host` or `device`: what has a process of its own.
        is_program: the run is of a user program.

    Raises:
        UserError: all mistakes in the faults.
    """
    resolved: list[str] = []
    rows: list[str] = []
    if texts and pod is not None and not pod.traits.is_simulated:
        rows.append(
            f"--inject: this pod is {pod.traits.reached}; faults are injected only in a simulated one: use --simulate"
        )
    for text in texts:
        injection, problems = parse(text)
        if injection is not None and is_program and injection.kind in IN_STATE:
            problems = [f"a user program has a state of its own; {injection.kind} is for a train.yaml"]
        if injection is not None and not problems and pod is not None:
            injection, problems = _on_pod(injection, pod, process_per)
        rows += [f"--inject {short(text)}: {problem}" for problem in problems]
        if not problems and str(injection) in resolved:
            rows.append(f"--inject {short(text)}: given twice; keep one")
        resolved.append(str(injection))
    if rows:
        raise UserError("\n".join(rows))
    return tuple(resolved)


def _on_pod(injection: Injection, pod: Pod, process_per: str) -> tuple[Injection | None, list[str]]:
    """Complete the host's name and the process number of an injected fault.

    Args:
        injection: the fault, with a host, a process, or both.
        pod: the hosts.
        process_per: `host` or `device`: what has a process of its own.

    Returns:
        The complete fault and no problems; or None and why the pod has no such host or process.
    """
    names = [host.name for host in pod.hosts]
    each = pod.slice.devices_per_host if process_per == "device" else 1
    total = each * len(names)
    process = injection.process
    if process is not None and process >= total:
        return None, [f"there is no process {process}; allowed: {_range(total)}"]
    host = injection.host
    if host is None:
        number = (process or 0) // each
    elif host in names:
        number = names.index(host)
    elif host.isascii() and host.isdigit() and int(host) < len(names):
        number = int(host)
    else:
        return None, [f"there is no host {host}; allowed: {_range(len(names))}, or a name such as {names[-1]}"]
    if process is not None and process // each != number:
        return None, [
            f"process {process} is on {names[process // each]}, not on {names[number]}; leave one of the two out"
        ]
    if injection.kind == LINK_DOWN and process is not None and process % each:
        return None, [f"a link belongs to a host; write host={number} in place of process={process}"]
    return injection._replace(host=names[number], process=number * each if process is None else process), []


def _range(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"

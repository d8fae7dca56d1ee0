"""Stage code, data and environment on remote hosts before a start, and check that the hosts agree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from podrun.runtime.contract import ExitCode
from podrun.runtime.wording import counted, megabytes

from ..attempt.cause import Failure
from ..plan.plan import LaunchPlan
from ..plan.program import Program
from ..pod.errors import HostError
from ..pod.pod import Pod
from ..preflight.base import FactsByHost, Finding, group, name_hosts
from ..preflight.rules import apply_rules, fatal_findings
from ..preflight.versions import check_imports
from ..request.imports import imported_packages
from ..staging.bundle import Bundle
from ..staging.prepare import EndedError, LacksWheels, Prepared, prepare_hosts
from ..staging.project_files import shown
from ..transport.base import Transport

_WARNINGS = 3  # warnings shown at a start
_OF_SCIKIT_LEARN = ("digits", "make_classification")  # data sets

Tell = Callable[[str, str, str], None]
"""Called with (host, phase, message) from several threads."""

Suspect = Callable[[str, str, str], None]
"""Called with (host, `HostFailureKind`, what) for a host whose hardware is broken as far as its facts say."""

Note = Callable[..., None]
"""Called with a message to the user about all hosts. Its argument `sent` lists what was sent to each host, if known."""


def stage_hosts(
    plan: LaunchPlan,
    transport: Transport,
    bundles: Sequence[Bundle],
    tell: Tell,
    note: Note,
    suspect: Suspect = lambda host, kind, what: None,
) -> list[Failure]:
    """Stage code, data and environment. Returns the failures that prevent the start."""
    assert plan.run.code is not None
    pod = plan.pod
    env = {**pod.env, **plan.launch.env, **plan.secrets}
    imports = imported_modules(plan)
    prepare = partial(
        prepare_hosts,
        transport=transport,
        bundles=bundles,
        project=plan.run.code.project.rpartition("/")[2],
        subfolder=plan.run.code.subfolder,
        env=env,
        facts={
            "platform": pod.platform,
            "workdir": None if plan.is_program else str(plan.run.workdir),
            "modules": [*imports],
        },
        tell=tell,
    )
    answers = prepare(pod)
    lacking = {host: answer for host, answer in answers.items() if isinstance(answer, LacksWheels)}
    if lacking and not _failures(answers):
        from ..staging.send_wheels import send_wheels

        environments = send_wheels(pod, transport, lacking, tell, note)
        if unbuildable := {h: e for h, e in environments.items() if isinstance(e, HostError)}:
            reasons = group({h: (e.reason, e.dropped) for h, e in unbuildable.items()})
            return [
                Failure(name_hosts(hosts), None, what, ExitCode.UNAVAILABLE, dropped=dropped, details=remedy)
                for (reason, dropped), hosts in reasons
                for what, _, remedy in [reason.partition("; ")]
            ]
        receivers = replace(pod, hosts=tuple(host for host in pod.hosts if host.name in lacking))
        requests = {h: request for h, request in environments.items() if not isinstance(request, HostError)}
        answers |= prepare(receivers, environments=requests)
    if failures := _failures(answers):
        if ended := [host for host, answer in answers.items() if isinstance(answer, EndedError)]:
            note(f"ended the preparation of {name_hosts(ended)}; the next start goes on with what is there")
        return failures
    prepared = {
        host: answer._replace(sent=(*lacking[host].sent, *answer.sent)) if host in lacking else answer
        for host, answer in answers.items()
        if isinstance(answer, Prepared)
    }
    note(_what_was_sent(prepared, bundles), sent={host: list(p.sent) for host, p in prepared.items()})
    if left_out := [name for bundle in bundles for name in bundle.left_out]:
        names = ", ".join(map(shown, left_out[:5])) + (", ..." if len(left_out) > 5 else "")
        note(
            f"not sent: {names} (links that lead out of the project and on the hosts would lead elsewhere, or paths that "
            "are too long)"
        )
    facts = {host: p.facts for host, p in prepared.items() if p.facts is not None}
    findings = [*_findings(plan, pod, facts), *check_imports(pod, facts, imports)]
    for finding in findings:
        for host in finding.hosts if finding.speaks_against else ():
            suspect(host, finding.speaks_against, finding.what)
    return _judge(findings, note) or _bring(plan, transport, tell, note)


def _failures(answers: Mapping[str, object]) -> list[Failure]:
    """Return the failures of hosts, without those whose preparation was ended because another host failed."""
    return [
        Failure(host, None, answer.reason, ExitCode.UNAVAILABLE, dropped=answer.dropped)
        for host, answer in answers.items()
        if isinstance(answer, HostError) and not isinstance(answer, EndedError)
    ]


def check_hosts(plan: LaunchPlan, transport: Transport, note: Note) -> list[Failure]:
    """Check hosts that have code and environment already. Returns the failures that prevent the start."""
    from ..preflight.run_preflight import gather_facts

    run = plan.run
    pod = replace(run.pod, env={**run.pod.env, **plan.launch.env})
    workdir = None if plan.is_program else os.fspath(run.workdir)
    imports = imported_modules(plan)
    report = gather_facts(transport, pod, workdir, python=run.python, modules=imports)
    pod = pod.with_python(run.python)
    findings = _findings(plan, pod, report.facts)
    return _judge([*report.findings, *findings, *check_imports(pod, report.facts, imports)], note)


def _findings(plan: LaunchPlan, pod: Pod, facts: FactsByHost) -> list[Finding]:
    """Apply the rules of `podrun check`, but the one about hosts that another run holds: their agents wait, and say so."""
    return apply_rules(pod, {host: {**known, "run": None} for host, known in facts.items()}, program=plan.is_program)


def imported_modules(plan: LaunchPlan) -> dict[str, str]:
    """Return the modules that the job imports beside podrun's own, by name with the reason; empty if they are unknown."""
    job, pod = plan.run.job, plan.pod
    if not isinstance(job, Program):
        data = job.data.name
        return {"sklearn": f"scikit-learn, for data.name {data}"} if data in _OF_SCIKIT_LEARN else {}
    env = {**(os.environ if pod.traits.files_are_here else {}), **pod.env, **job.launch.env}
    if env.get("PYTHONPATH"):  # its folders may be relative to the program's
        return {}
    return imported_packages(job, plan.run.cwd) or {}


def _judge(findings: Sequence[Finding], note: Note) -> list[Failure]:
    """Show the warnings, and return the failures that prevent the start."""
    _warn(findings, note)
    return [
        Failure(name_hosts(finding.hosts), None, finding.what, ExitCode.UNAVAILABLE, details=finding.remedy)
        for finding in fatal_findings(findings)
    ]


def _bring(plan: LaunchPlan, transport: Transport, tell: Tell, note: Note) -> list[Failure]:
    """Copy the job's data to the hosts. Returns the failures."""
    if plan.run.data is None:
        return []
    from ..staging.distribute_data import Received, distribute_data

    start = time.monotonic()
    answers = distribute_data(plan.pod, transport, plan.run.data, lambda host, text: tell(host, "data", text), note)
    hosts = [answer for answer in answers.values() if isinstance(answer, Received)]
    if any(host.received for host in hosts):
        sent, passed_on = sum(host.from_launcher for host in hosts), sum(host.from_hosts for host in hosts)
        receivers = sum(bool(host.received) for host in hosts)
        note(
            f"data brought to {receivers} of {len(answers)} hosts in {time.monotonic() - start:.1f} s: "
            f"{megabytes(sent)} sent from here, {megabytes(passed_on)} from host to host"
        )
    elif hosts:
        note(
            f"the data is on all hosts already ({counted(len(plan.run.data.names), 'file')}, {megabytes(plan.run.data.size)})"
        )
    return [
        Failure(host, None, answer.reason, ExitCode.UNAVAILABLE, dropped=answer.dropped)
        for host, answer in answers.items()
        if isinstance(answer, HostError)
    ]


def _warn(findings: Sequence[Finding], note: Note) -> None:
    warnings = [finding for finding in findings if not finding.fatal]
    for finding in warnings[:_WARNINGS]:
        note(f"warning: {finding}{f' ({finding.remedy})' if finding.remedy else ''}")
    if len(warnings) > _WARNINGS:
        note(f"and {len(warnings) - _WARNINGS} more warnings; `podrun check` shows all")


def _what_was_sent(prepared: Mapping[str, Prepared], bundles: Sequence[Bundle]) -> str:
    rows = []
    for bundle in bundles:
        count = sum(bundle.name in p.sent for p in prepared.values())
        if count:
            what = f"{bundle.kind} ({bundle.files} files, {megabytes(len(bundle.data))})"
            rows.append(f"{what} to {count} of {len(prepared)} hosts")
    return f"code sent: {'; '.join(rows)}" if rows else "the code on all hosts is up to date"

"""`podrun clean`: remove what ended runs and other commands left behind, on this machine or on the hosts of a pod."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.wording import counted

from ..agent.base import to_agent
from ..agent.base.from_agent import CleanAnswer
from ..inventory.pod_request import PodRequest
from ..pod.errors import HostError
from ..pod.fan_out import fan_out
from ..pod.fold import fold
from ..pod.home import podrun_home
from ..pod.kept_compilers import FOLDER as COMPILERS
from ..pod.kept_compilers import compiler_folders
from ..pod.pod import Host, Pod
from ..pod.run_id import counted_runs
from ..remote.ask import ask
from ..request.hosts import select_hosts
from ..request.kept_answers import FOLDER as ANSWERS
from ..request.kept_answers import answer_files
from ..rundir.calls import FOLDER as CALLS
from ..rundir.calls import calls_without_run, remove_path
from ..rundir.old_runs import OldRun, old_run, old_runs, remove, remove_unfinished
from ..rundir.runs import RunDirectory
from ..staging.stored_executables import FOLDER as EXECUTABLES
from ..staging.stored_executables import executable_files
from ..staging.wheels import FOLDER as WHEELS
from ..staging.wheels import wheel_folders
from ..transport.base import Transport, load_transport
from ..view.cleanup import Removable, StoredFiles, as_table, kept_lines, summary
from ..view.printable import in_one_line
from ..view.times import parse_duration, size

_LONG = "7d"


@dataclass(frozen=True)
class CleanRequest:
    """Command-line options of `podrun clean`."""

    where: PodRequest
    run: str | None = None
    older_than: str | None = None
    dry_run: bool = False
    yes: bool = False


def clean(request: CleanRequest) -> int:
    """List what can be removed, ask, and remove it. Returns 0, or 69 if a host could not be reached. Raises UserError."""
    default = _LONG if request.run is None else "0"
    older_than = parse_duration(request.older_than or default, "--older-than")
    if request.run is None and not request.where.names_pod:
        removable = Removable(old_runs(older_than), _stored(older_than))
        return _decide(request, removable, lambda: _remove_here(removable.runs) + _remove_stored(removable.due_here))
    pod, directory = select_hosts(request.where, request.run, "clean")
    runs = [] if directory is None else [old_run(directory)]
    transport = load_transport(pod)
    try:
        hosts = _Hosts(transport, pod, older_than, directory)
        removable = hosts.look()
        removable.runs = [r for r in runs if not removable.unreached]  # otherwise the record of its hosts would be lost
        return _decide(request, removable, lambda: hosts.remove(removable) + _remove_here(removable.runs))
    finally:
        transport.close()


def _decide(request: CleanRequest, removable: Removable, action: Callable[[], list[str]]) -> int:
    """Print what can be removed, and call `action` if the user agrees. Returns the exit code."""
    for reason, hosts in _by_reason(removable.unreached).items():
        print(f"podrun: {fold(hosts)}: {in_one_line(reason)}", file=sys.stderr)
    code = ExitCode.UNAVAILABLE if removable.unreached else ExitCode.DONE
    if not removable:
        print(f"nothing to remove{_age_hint(request)}")
    else:
        print(as_table(removable))
    for line in kept_lines(removable, request.older_than or _LONG):
        print(line)
    if request.dry_run or (not removable and not request.where.names_pod):
        return code
    if not request.yes and removable and not _confirm(summary(removable)):
        print("nothing was removed")
        return code
    problems = action()
    for problem in problems:
        print(f"podrun: {in_one_line(problem)}", file=sys.stderr)
    return ExitCode.FAILED if problems else code


def _age_hint(request: CleanRequest) -> str:
    if request.run is not None:
        return ""
    return f" of runs that ended more than {request.older_than or _LONG} ago; --older-than changes that"


def _confirm(what: str) -> bool:
    """Return True if the user agrees. Raises UserError without a terminal."""
    if not sys.stdin.isatty():
        raise UserError(f"there is no terminal to ask whether to remove {what}; add --yes, or --dry-run to look first")
    return click.confirm(f"remove {what}?")


# --- here -------------------------------------------------------------------------------------------------------------


def _remove_here(runs: Sequence[OldRun]) -> list[str]:
    """Remove the run directories, and return error messages."""
    problems, removed = [], []
    for run in runs:
        try:
            remove(run)
            removed.append(run.directory.run_id)
        except UserError as error:
            problems.append(str(error))
    remove_unfinished()
    if removed:
        print(f"removed {counted_runs(removed)} here")
    return problems


def _stored(older_than: float) -> list[StoredFiles]:
    """Return the files on this machine in groups: compiled programs, stored answers, compilers, wheels and calls.

    Each group says which files may be removed (not used for `older_than` seconds), and which are kept.
    """
    stored, calls = [], calls_without_run(older_than)
    for kind, folder, (files, due) in (
        ("compiled programs", EXECUTABLES, executable_files(older_than)),
        ("kept answers", ANSWERS, answer_files(older_than)),
        ("compilers of TPUs and GPUs", COMPILERS, compiler_folders(older_than)),
        ("packages and Pythons for hosts", WHEELS, wheel_folders(older_than)),
        ("calls of functions whose run is gone", CALLS, (calls, calls)),
    ):
        kept = [path for path in files if path not in due]
        stored += [StoredFiles(kind, podrun_home() / folder, some, some is due) for some in (due, kept) if some]
    return stored


def _remove_stored(stored: Sequence[StoredFiles]) -> list[str]:
    """Remove the files, and return error messages."""
    problems = []
    for one in stored:
        bytes_before = one.bytes
        try:
            for path in one.files:
                remove_path(path)
        except OSError as error:
            problems.append(f"cannot remove {error.filename}: {error.strerror}")
        else:
            print(f"removed {one.kind} ({size(bytes_before)})")
    return problems


# --- on the hosts -----------------------------------------------------------------------------------------------------


class _Hosts:
    """Files and processes on the hosts of a pod that can be removed: of all runs, or of one."""

    def __init__(self, transport: Transport, pod: Pod, older_than: float, run: RunDirectory | None) -> None:
        self._transport = transport
        self._pod = pod
        self._older_than = older_than
        self._run = run

    def look(self) -> Removable:
        removable = Removable()
        answers = self._ask(self._pod.hosts, {})
        for host, answer in answers.items():
            if isinstance(answer, str):
                removable.unreached[host] = answer
            else:
                removable.folders[host], removable.processes[host] = answer["folders"], answer["processes"]
                removable.environments[host] = answer["environments"]
        return removable

    def remove(self, removable: Removable) -> list[str]:
        """Remove these files and processes from the hosts, and return error messages."""
        reached = tuple(host for host in self._pod.hosts if host.name not in removable.unreached)
        answers = self._ask(reached, {host.name: removable.of_host(host.name) for host in reached})
        problems = []
        folders = processes = pruned = 0
        for host, answer in answers.items():
            if isinstance(answer, str):
                problems.append(f"{host}: {answer}")
                continue
            folders += answer["removed"]
            processes += len(removable.processes.get(host, ())) - len(answer["left"])
            pruned += answer["pruned"]
            if answer["left"]:
                problems.append(f"{host}: processes {', '.join(map(str, answer['left']))} cannot be ended")
        done = [(folders, "folder"), (processes, "process"), (pruned, "old bundle, environment, Python or data set")]
        if counts := [counted(number, what) for number, what in done if number]:
            print(f"removed {', '.join(counts)} on the hosts")
        return problems

    def _ask(self, hosts: tuple[Host, ...], remove: dict[str, list[str]]) -> dict[str, CleanAnswer | str]:
        """Ask each host, and return its answer or an error message, by name. `remove`: ids of the runs to remove, by host."""

        def question(host: Host) -> CleanAnswer:
            request: to_agent.CleanRequest = {
                "home": self._pod.home,
                "host": host.name,
                "older_than": self._older_than,
                "run": self._run.run_id if self._run else None,
                "remove": remove.get(host.name),
            }
            answer: CleanAnswer = ask(self._transport, self._pod, host, "clean", request=request).answer
            return answer

        answers: dict[str, CleanAnswer | str] = {}
        for host, answer in zip(hosts, fan_out(question, hosts), strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, HostError):
                raise answer
            answers[host.name] = answer.reason if isinstance(answer, HostError) else answer
        return answers


def _by_reason(unreached: dict[str, str]) -> dict[str, list[str]]:
    hosts: dict[str, list[str]] = {}
    for host, reason in unreached.items():
        hosts.setdefault(reason, []).append(host)
    return hosts

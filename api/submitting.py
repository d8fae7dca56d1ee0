"""Call a function on a pod, and get its result: `podrun.submit`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any, Generic, Never, TypeVar

from podrun.runtime.contract import ExitCode, UserError

from .function_call import FunctionError, read_outcome, write_call
from .launching import ONE_PLACE, LaunchError, Run, SubmittedRun, launch

T = TypeVar("T")
_PROGRAM = ("python", "-m", "podrun.function_call")
_FOLDER = "functions"
_SHOWN = 60  # characters of a function's name


class Future(Generic[T]):
    """The call that `submit` has started, with the methods of `concurrent.futures.Future`."""

    def __init__(self, run: Run | SubmittedRun, folder: Path) -> None:
        self.run = run
        """The run that makes the call: its id is that of `podrun status` and `podrun logs`."""
        self._folder = folder
        self._cancelled = False
        self._settled: list[T] | BaseException | None = None

    def __repr__(self) -> str:
        return f"<podrun call {self.run!r}>"

    @property
    def run_id(self) -> str:
        """The id of the run, for `podrun.submitted` and the command line."""
        return self.run.run_id

    @property
    def job_id(self) -> str | None:
        """The id of its SLURM job; None on this machine."""
        return self.run.job_id if isinstance(self.run, SubmittedRun) else None

    def done(self) -> bool:
        """Return whether the call has ended, in any way."""
        return not self.run.is_running

    def cancelled(self) -> bool:
        """Return whether `cancel` has ended the call."""
        return self._cancelled

    def result(self, timeout: float | None = None) -> T:
        """Wait, and return what the function has returned in process 0.

        Args:
            timeout: seconds to wait; None: until the call has ended.

        Raises:
            Exception: what the function has raised, in any process; its cause is the traceback there.
            CancelledError: `cancel` has ended the call.
            LaunchError: the call did not end by itself: its job was cancelled, a node failed, a process was killed.
            FunctionError: result or exception cannot be pickled, or not be read here.
            TimeoutError: the call has not ended after `timeout` seconds.
        """
        return self.results(timeout)[0]

    def results(self, timeout: float | None = None) -> list[T]:
        """Wait, and return what the function has returned in each process. Raises as `result` does."""
        settled = self._settle(timeout)
        if isinstance(settled, BaseException):
            raise settled
        return settled

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what `result` would raise; None if the function has returned.

        Raises:
            CancelledError: `cancel` has ended the call.
            TimeoutError: the call has not ended after `timeout` seconds.
        """
        settled = self._settle(timeout)
        return settled if isinstance(settled, BaseException) else None

    def cancel(self) -> bool:
        """End the call, or take it out of the queue, and return True; return False if it had ended already.

        Raises:
            LaunchError: SLURM does not answer.
        """
        if self.done():
            return self._cancelled
        self._cancelled = True  # before the end, which another thread may be waiting for
        try:
            self._cancelled = self.run.stop(now=True) != 0
        except BaseException:
            self._cancelled = False
            raise
        return self._cancelled

    def _settle(self, timeout: float | None) -> list[T] | BaseException:
        """Wait for the end, and return the results of all processes, or the reason why there are none.

        Raises CancelledError, TimeoutError.
        """
        if self._settled is None:
            settled = self._wait(timeout)
            if self._cancelled:
                raise CancelledError(f"the call {self.run_id} was cancelled")
            self._settled = settled  # the folder may be removed by now
        return self._settled

    def _wait(self, timeout: float | None) -> list[T] | BaseException:
        try:
            self.run.wait(timeout)
        except LaunchError as error:
            return self._first_error() or error
        if self._cancelled:
            return []
        attempt, processes = self._last_attempt()
        if not processes:
            return LaunchError(f"the record of {self.run_id} is gone, and with it its results", ExitCode.UNAVAILABLE)
        results = []
        for process in processes:
            try:
                outcome = read_outcome(self._folder, process, attempt)
            except FunctionError as error:
                return error
            if outcome is None:
                text = f"process {process} has ended without a result, for example by os._exit(0)"
                return LaunchError(f"{text}; `podrun logs {self.run_id}` shows its output", ExitCode.FAILED)
            if outcome.error is not None:
                return outcome.error
            results.append(outcome.result)
        return results

    def _first_error(self) -> BaseException | None:
        """Return what the function has raised in the process that failed first.

        None if that process has raised nothing, or no process has failed first: what others have raised may be a consequence.
        """
        from podrun.launcher.rundir.runs import RunDirectory

        end = RunDirectory(self.run.directory).end()
        if end is None or (process := end.get("process")) is None:
            return None
        try:
            outcome = read_outcome(self._folder, process, self._last_attempt()[0])
        except FunctionError as error:
            return error
        return None if outcome is None else outcome.error

    def _last_attempt(self) -> tuple[int, list[int]]:
        """Return the number of the last attempt, and the ids of its processes; none if the record is gone."""
        from podrun.launcher.rundir.runs import RunDirectory
        from podrun.runtime.events import EventKind

        events = RunDirectory(self.run.directory).newest_events()
        start = next((event for event in events if event["event"] == EventKind.START), None)
        if start is None:
            return 0, []
        return start["attempt"], sorted(process for processes in start["hosts"].values() for process in processes)


def submit(
    function: Callable[..., T],
    /,
    *args: Any,
    slurm: str | None = None,
    slice: str | None = None,
    pod: str | os.PathLike[str] | None = None,
    hosts: str | None = None,
    simulate: bool = False,
    workdir: str | os.PathLike[str] | None = None,
    **unknown: Never,
) -> Future[T]:
    """Call a function in every process of a pod, and return at once; `result()` waits for what it returns.

    The call is a run like those of the command `podrun`. A SLURM job goes on when this Python process ends; `submitted`
    returns its future again. A call on this machine ends with this process.

    Args:
        function: any function that pickle takes, and with cloudpickle installed also lambdas and functions of the program
            itself. Its module is in the current folder, which podrun sends, or is installed on the nodes; modules from
            elsewhere are not sent.
        *args: its arguments; for keyword arguments use functools.partial.
        slurm: options of a SLURM job, as `--slurm` takes them: `partition=gpu,time=2:00:00`.
        slice: name of a slice, such as `gpu-2x8`; default with `simulate`: `cpu-1x1`.
        pod: pod file, for its settings.
        hosts: `local`: this machine with its own devices.
        simulate: simulate the pod on this machine.
        workdir: folder of what the function saves by podrun; default: a new one.
        **unknown: refused; the message says how to give keyword arguments to the function.

    Raises:
        TypeError: the function or its arguments cannot be pickled, or another process would not find the function; or an
            option is unknown.
        ValueError: not exactly one of `slurm`, `hosts="local"` and `simulate` is given.
        LaunchError: the call cannot be started or submitted; the message is that of the command.
        KeyboardInterrupt: Ctrl-C; the call has ended then, or is taken out of the queue.
    """
    if unknown:
        names = ", ".join(unknown)
        raise TypeError(
            f"podrun.submit: {names}: not an option; they are slurm, slice, pod, hosts, simulate and workdir. Keyword "
            f"arguments of the function go into functools.partial: podrun.submit(partial(f, {next(iter(unknown))}=...), ...)"
        )
    if hosts not in (None, "local"):
        raise ValueError(
            f"podrun.submit: hosts={hosts!r}: only 'local'; other hosts do not see the folder of the results. With SLURM "
            "give slurm='partition=gpu,time=2:00:00'; `podrun.launch(program=[...], hosts=...)` runs a program there"
        )
    if (slurm is not None) + (hosts is not None) + simulate != 1 or slurm == "":
        file = f"pod={os.fspath(pod)!r} has settings only: " if pod is not None else ""
        raise ValueError(f"podrun.submit: {file}give one of slurm, hosts='local' and simulate=True; {ONE_PLACE}")
    from podrun.launcher.pod.home import private_folder

    named = function.func if isinstance(function, partial) else function
    name = getattr(named, "__qualname__", type(named).__name__)[:_SHOWN]
    slice = slice or ("cpu-1x1" if simulate and not pod else None)
    try:
        parent = private_folder(_FOLDER)
        folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=parent))
    except (OSError, UserError) as error:
        why = getattr(error, "strerror", None) or error
        raise LaunchError(f"cannot write in podrun's folder: {why}; set PODRUN_HOME to another", 2) from None
    program = [*_PROGRAM, str(folder)]
    place = folder / "workdir" if workdir is None else workdir
    try:
        write_call(folder, function, args)
        run: Run | SubmittedRun
        if slurm is not None:
            run = launch(program=program, slice=slice, pod=pod, slurm=slurm, workdir=place, name=name)
        else:
            run = launch(
                program=program, slice=slice, pod=pod, hosts=hosts, simulate=simulate, workdir=place, name=name
            )
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise LaunchError(f"cannot write {error.filename}: {error.strerror}", ExitCode.FAILED) from None
        raise
    return Future(run, folder)


def submitted(run_id: str) -> Future[Any]:
    """Return the future of a call that was submitted to SLURM, perhaps by another process that has ended.

    Args:
        run_id: `Future.run_id`, or its unique beginning or end.

    Raises:
        LaunchError: there is no such run, or it makes no call.
    """
    from podrun.launcher.plan.program import Program
    from podrun.launcher.rundir.runs import find_run

    try:
        directory = find_run(run_id)
        job = directory.spec().job
    except UserError as error:
        raise LaunchError(str(error), ExitCode.BAD_CONFIG) from None
    if not isinstance(job, Program) or job.argv[:3] != _PROGRAM or directory.job() is None:
        raise LaunchError(f"{directory.run_id} is not a function that was submitted to SLURM", ExitCode.BAD_CONFIG)
    return Future(SubmittedRun(directory.path), Path(job.argv[3]))

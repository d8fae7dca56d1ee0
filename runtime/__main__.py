"""The worker process: read the environment, join the pod, train, and end with an exit code.

It always ends by `os._exit`. A normal exit would run jax.distributed's shutdown barrier, in which a failed process and the
others would wait for each other for minutes.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import sys
import traceback

from .contract import (
    DivergedError,
    ErrorKind,
    ExitCode,
    NotFiniteError,
    Phase,
    SaveError,
    UnavailableError,
    UserError,
    WorkerEnv,
    failure_code,
)
from .events import EventKind
from .worker.mistakes import explained_kind, users_line
from .worker.prewarm import HOLD, PRESTART, PREWARM, trace_small_step, wait_to_start
from .worker.progress import Reporter
from .worker.sigterm import leave_on_sigterm, leave_unsaved_on_sigterm
from .worker.xla_flags import set_xla_flags


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's errors; a stop is a warning
    if sys.argv[1:] in ([PREWARM], [PRESTART], [HOLD]):
        how = sys.argv[1]
        wait_to_start({PRESTART: import_first, PREWARM: import_all, HOLD: warm_up}[how], how)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the launcher asks for stacks when a pod hangs
    try:
        env = WorkerEnv.from_env()
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(ExitCode.BAD_CONFIG)
    code = int(ExitCode.FAILED)
    try:
        reporter = Reporter(env.events_path, leads=env.process_id == 0, processes=env.num_processes)
        try:
            code = run(env, reporter)
        except BaseException as error:
            code = exit_code(error)
            report_failure(error, code, reporter)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def import_first() -> None:
    """Import the modules that every worker needs before its first step. This takes seconds."""
    gc.disable()  # a dozen collections that find no garbage would take 0.3 s
    try:
        from . import distributed, train  # noqa: F401
        from .worker import fault_injection, preempt, quiet, workdir  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def import_all() -> None:
    """Import the modules that a worker needs to restore a checkpoint, as well."""
    import_first()
    from .checkpoint import orbax_files  # noqa: F401


def warm_up() -> None:
    """Do what a worker does for each job in the same way, and what needs no device."""
    import_all()
    trace_small_step()
    gc.freeze()


def run(env: WorkerEnv, reporter: Reporter) -> int:
    """Train, evaluate a checkpoint or replay steps, and return the exit code. Raises the error that ends it."""
    leave_on_sigterm(reporter)
    set_xla_flags(os.environ, os.environ.get("JAX_PLATFORMS", ""), env.num_processes * env.local_devices)
    # Imported here, so that even a broken JAX is reported as an event.
    import jax

    from .config import load_config
    from .config.bucket_url import url
    from .contract import Workdir
    from .distributed import configure_jax, initialize
    from .storage import open_bucket, spool_of
    from .train import train
    from .worker.fault_injection import inject_faults
    from .worker.preempt import Preempted, report_sigterm
    from .worker.quiet import quiet_libraries
    from .worker.workdir import check_owner, claim

    config = load_config(env.config_path)
    assert config.launch.workdir is not None  # the launcher fills it in
    bucket = url(config.launch.workdir)
    workdir = Workdir(spool_of(bucket) if bucket else config.launch.workdir.expanduser())
    programs = configure_jax()
    quiet_libraries()
    storage = None
    if env.trains:
        if env.process_id == 0:
            claim(workdir, env, reporter)
            check_owner(workdir, env)
        storage = open_bucket(bucket, workdir, env, reporter) if bucket else None
    inject_faults(env, workdir, reporter)
    reporter.phase(Phase.CONNECT)
    reporter.record.part()  # from here on it waits for the other processes
    initialize(env, config.launch.start_timeout)
    try:
        if env.evaluate:
            from .evaluate.pod import evaluate_on_pod

            leave_unsaved_on_sigterm(reporter)
            evaluate_on_pod(config, env, workdir, bucket, reporter, programs)
        elif env.replay:
            from .replay import replay

            leave_unsaved_on_sigterm(reporter)
            replay(config, env, workdir, bucket, reporter, programs)
        else:
            report_sigterm(reporter, leaves=True)
            train(config, env, workdir, reporter, storage, programs)
        print("done", flush=True)
        code = ExitCode.DONE
    except Preempted as stop:
        print(stop, flush=True)
        code = ExitCode.PREEMPTED
    reporter.phase(Phase.DONE)
    jax.distributed.shutdown()  # process 0 serves the others until all are done
    return code


def exit_code(error: BaseException) -> int:
    """Return the exit code, 1 to 255, for a failure.

    `sys.exit(n)` in the user's code ends with n, if n is a valid exit code; `sys.exit(0)` is a failure with code 1, because
    training was not done.
    """
    if isinstance(error, SystemExit):
        return failure_code(error.code if isinstance(error.code, int) else ExitCode.FAILED)
    return int(classify(error).exit_code)


def describe(error: BaseException) -> str:
    """Return the message about a failure that the user sees first."""
    if isinstance(error, (UserError, NotFiniteError, SaveError, UnavailableError, DivergedError)):
        return str(error)
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SystemExit):
        if not error.code:
            return "exited with code 0 before training was done"
        if isinstance(error.code, int) and error.code != (code := exit_code(error)):
            return f"{text} (exit codes are 1 to 255: {code})"
    is_users = not isinstance(error, SystemExit) and classify(error) is ErrorKind.EXCEPTION
    if is_users and (line := users_line(error.__traceback__, packages=False)):  # of a plug-in
        first, newline, rest = text.partition("\n")
        return f"{first} ({line}){newline}{rest}"
    return text


def report_failure(error: BaseException, code: int, reporter: Reporter) -> None:
    """Report and print the failure of this process. A full disk is ignored, so that the process can end."""
    kind = classify(error)
    message = describe(error)
    trace = "".join(traceback.format_exception(error))
    text = trace if explained_kind(error) is None else str(error)
    step = None if isinstance(error, SaveError) else reporter.step  # the message of a SaveError names its step
    try:
        reporter.free_reserve()
        reporter.event(
            {
                "event": EventKind.ERROR,
                "kind": kind,
                "message": message,
                "traceback": text if isinstance(error, SaveError) else trace,
                "step": step,
                "code": code,
            }
        )
    except OSError:
        pass
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass


_GLOO_LOST = re.compile(r"gloo.*(failed|error|closed|reset|timed? ?out)", re.IGNORECASE | re.DOTALL)
_JAX_LOST = re.compile(
    r"gloo|connection (reset|closed|refused) by peer|coordination service|heartbeat|socket closed|UNAVAILABLE:"
    r"|barrier.*(timed out|failed)",
    re.IGNORECASE | re.DOTALL,
)


def classify(error: BaseException) -> ErrorKind:
    """Classify an exception.

    Only errors of JAX can mean that another process is gone, and ValueErrors that JAX raises for a failed gloo collective.
    """
    if kind := explained_kind(error):
        return kind
    if isinstance(error, NotFiniteError):
        return ErrorKind.NOT_FINITE
    from_jax = type(error).__module__.partition(".")[0] in ("jax", "jaxlib")
    lost = _JAX_LOST if from_jax else _GLOO_LOST if type(error) is ValueError else None
    if lost is not None and lost.search(str(error)):
        return ErrorKind.PEER_LOST
    return ErrorKind.EXCEPTION


if __name__ == "__main__":
    main()

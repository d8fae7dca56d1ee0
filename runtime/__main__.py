"""The worker: contract -> distributed -> train -> exit code.

It always leaves by `os._exit`. A plain exit would run jax.distributed's shutdown barrier, in which a failed process waits
for minutes for the others, and the others for it.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import traceback

from .contract import ErrorKind, EventKind, ExitCode, NotFiniteError, Phase, UserError, WorkerEnv
from .progress import Reporter


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the launcher asks for stacks when a pod hangs
    try:
        env = WorkerEnv.from_env()
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(ExitCode.BAD_CONFIG)
    reporter = Reporter(env.events_path)
    try:
        code = run(env, reporter)
    except BaseException as error:
        code = report_failure(error, reporter)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(env: WorkerEnv, reporter: Reporter) -> int:
    """Trains, and returns the exit code. Raises what went wrong."""
    # Imported here, so that even a broken JAX is reported as an event.
    import jax

    from .contract import Workdir
    from .distributed import configure_jax, initialize
    from .preempt import Preempted
    from .train import load_config, train
    from .workdir import claim

    config = load_config(env.config_path)
    assert config.launch.workdir is not None  # the launcher fills it in
    workdir = Workdir(config.launch.workdir)
    token = workdir.token(env.run_id, env.attempt)
    configure_jax()
    if env.process_id == 0:
        claim(workdir, env, reporter)
    reporter.phase(Phase.CONNECT)
    initialize(env, config.launch.start_timeout)
    try:
        train(config, env, workdir, reporter)
        reporter.phase(Phase.DONE)
        code = ExitCode.DONE
    except Preempted as stop:
        print(stop, flush=True)
        code = ExitCode.PREEMPTED
    finally:
        if env.process_id == 0:
            token.unlink(missing_ok=True)
    jax.distributed.shutdown()  # process 0 serves the others until all are done
    return code


def report_failure(error: BaseException, reporter: Reporter) -> int:
    """Reports why this process fails, and returns its exit code."""
    if isinstance(error, SystemExit) and error.code in (0, None):
        return ExitCode.DONE
    kind = classify(error)
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else int(kind.exit_code)
    text = "".join(traceback.format_exception(error))
    print(str(error) if kind is ErrorKind.CONFIG else text, file=sys.stderr, flush=True)
    message = str(error) if kind in (ErrorKind.CONFIG, ErrorKind.NOT_FINITE) else f"{type(error).__name__}: {error}"
    reporter.event(EventKind.ERROR, kind=kind, message=message, traceback=text, step=reporter.step, code=code)
    return code


_GLOO_LOST = re.compile(r"gloo.*(failed|error|closed|reset|timed? ?out)", re.IGNORECASE | re.DOTALL)
_JAX_LOST = re.compile(
    r"gloo|connection (reset|closed|refused) by peer|coordination service|heartbeat|socket closed|UNAVAILABLE:"
    r"|barrier.*(timed out|failed)",
    re.IGNORECASE | re.DOTALL,
)


def classify(error: BaseException) -> ErrorKind:
    """What kind of failure an exception is.

    Only JAX's own errors can mean that another process is gone; a failed gloo collective is a plain ValueError.
    """
    if isinstance(error, UserError):
        return ErrorKind.CONFIG
    if isinstance(error, NotFiniteError):
        return ErrorKind.NOT_FINITE
    from_jax = type(error).__module__.partition(".")[0] in ("jax", "jaxlib")
    lost = _JAX_LOST if from_jax else _GLOO_LOST if type(error) is ValueError else None
    if lost is not None and lost.search(str(error)):
        return ErrorKind.PEER_LOST
    return ErrorKind.EXCEPTION


if __name__ == "__main__":
    main()

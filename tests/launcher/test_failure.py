"""N failed processes -> the one failure that the others followed from."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from podrun.launcher.failure import Failure, first_cause, from_error, from_exit
from podrun.runtime.contract import ErrorKind, EventKind, ExitCode, Phase

if TYPE_CHECKING:
    from tests.conftest import Sandbox


def error(kind: ErrorKind, message: str, **fields: Any) -> dict[str, Any]:
    """As a worker reports it."""
    return {"event": EventKind.ERROR, "kind": kind.value, "message": message, "traceback": "", "step": None, **fields}


RAISED = from_error("host-1", 1, error(ErrorKind.EXCEPTION, "ValueError: boom", step=5))
RAISED_LATER = from_error("host-2", 2, error(ErrorKind.EXCEPTION, "ValueError: bang"))
NAN = from_error("host-1", 1, error(ErrorKind.NOT_FINITE, "the loss is nan"))
PEER_LOST = from_error("host-0", 0, error(ErrorKind.PEER_LOST, "XlaRuntimeError: Connection reset by peer", step=5))
ABORTED = from_exit("host-3", 3, -signal.SIGABRT, 4, Phase.TRAIN)
KILLED = from_exit("host-2", 2, -signal.SIGKILL, 4, Phase.TRAIN)
UNREACHED = Failure("host-3", None, "its agent is gone", ExitCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([RAISED], RAISED),
        ([PEER_LOST, RAISED], RAISED),
        ([ABORTED, PEER_LOST, KILLED], KILLED),
        ([PEER_LOST, ABORTED, UNREACHED], UNREACHED),
        ([PEER_LOST, NAN, KILLED], NAN),
        ([RAISED, RAISED_LATER], RAISED),
        ([RAISED_LATER, RAISED], RAISED_LATER),
        ([RAISED, PEER_LOST, ABORTED], RAISED),
        ([PEER_LOST, ABORTED], PEER_LOST),
        ([ABORTED, PEER_LOST], ABORTED),
    ],
)
def test_first_cause(failures: list[Failure], cause: Failure) -> None:
    """The first failure that is no consequence, wherever it stands; if all are, the first that was seen."""
    assert first_cause(failures) is cause


@pytest.mark.parametrize(
    ("event", "text", "code", "consequence"),
    [
        (error(ErrorKind.EXCEPTION, "ValueError: boom", step=5), "ValueError: boom in step 5", 1, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom", step=0), "ValueError: boom in step 0", 1, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom"), "ValueError: boom", 1, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom\nand more\n"), "ValueError: boom", 1, False),
        (error(ErrorKind.EXCEPTION, "\n\nValueError: boom"), "ValueError: boom", 1, False),
        (error(ErrorKind.EXCEPTION, ""), "exception", 1, False),
        (error(ErrorKind.EXCEPTION, "SystemExit: 7", code=7), "SystemExit: 7", 7, False),
        (error(ErrorKind.EXCEPTION, "ValueError: boom", code=0), "ValueError: boom", 1, False),
        (
            error(ErrorKind.NOT_FINITE, "the loss is nan in step 3", step=3, code=1),
            "the loss is nan in step 3",
            1,
            False,
        ),
        (error(ErrorKind.CONFIG, "data.path: too short", code=2), "data.path: too short", 2, False),
        (
            error(ErrorKind.PEER_LOST, "reset by peer", step=5),
            "lost another process in step 5: reset by peer",
            76,
            True,
        ),
        (error(ErrorKind.PEER_LOST, "reset by peer", code=1), "lost another process: reset by peer", 76, True),
    ],
)
def test_from_error(event: dict[str, Any], text: str, code: int, consequence: bool) -> None:
    """One line that names the error and its step, and the exit code that follows from its kind."""
    failed = from_error("host-1", 1, event)
    assert str(failed) == f"host-1 (process 1): {text}"
    assert (failed.code, failed.consequence) == (code, consequence)


def test_details_of_an_error() -> None:
    """The evidence is the traceback; for bad input it is the message, because a traceback would say nothing."""
    bad = error(ErrorKind.CONFIG, "data: wrong\nuse another", traceback="Traceback ...")
    assert from_error("host-0", 0, bad).details == "data: wrong\nuse another"
    boom = error(ErrorKind.EXCEPTION, "ValueError: boom", traceback="Traceback ...\nValueError: boom")
    assert from_error("host-0", 0, boom).details == "Traceback ...\nValueError: boom"


@pytest.mark.parametrize(
    ("code", "step", "phase", "text", "exit_code", "consequence"),
    [
        (3, None, None, "exited with code 3 before it said anything", 3, False),
        (3, None, Phase.COMPILE, "exited with code 3 during compile", 3, False),
        (3, 4, Phase.TRAIN, "exited with code 3 after step 4", 3, False),
        (3, 0, Phase.TRAIN, "exited with code 3 after step 0", 3, False),
        (255, None, Phase.SETUP, "exited with code 255 during setup", 255, False),
        (75, 4, Phase.SAVE, "was asked to stop from outside after step 4, and saved first", 75, False),
        (-signal.SIGKILL, 4, None, "SIGKILL after step 4 (out of memory, or killed by somebody)", 137, False),
        (-signal.SIGSEGV, None, Phase.COMPILE, "SIGSEGV during compile (a crash in native code)", 139, False),
        (-signal.SIGTERM, None, Phase.CONNECT, "was ended by SIGTERM during connect", 143, False),
        (-signal.SIGBUS, 4, Phase.TRAIN, "was ended by SIGBUS after step 4", 128 + signal.SIGBUS, False),
        (-signal.SIGABRT, 4, Phase.TRAIN, "was ended by SIGABRT after step 4", 134, True),
        (-100, 4, Phase.TRAIN, "was ended by signal 100 after step 4", 228, False),
    ],
)
def test_from_exit(
    code: int, step: int | None, phase: Phase | None, text: str, exit_code: int, consequence: bool
) -> None:
    """A silent end is told by its code or signal and by what the process was doing; a signal N becomes 128 + N."""
    failed = from_exit("host-2", 2, code, step, phase)
    assert str(failed).startswith("host-2 (process 2): ")
    assert text in failed.what
    assert (failed.code, failed.consequence) == (exit_code, consequence)


@pytest.mark.parametrize(
    ("code", "step", "phase", "text"),
    [
        (3, None, None, "exited with code 3"),
        (-signal.SIGTERM, None, None, "was ended by SIGTERM"),
        (-signal.SIGKILL, None, None, "was ended by SIGKILL (out of memory, or killed by somebody)"),
        (3, 4, Phase.TRAIN, "exited with code 3 after step 4"),
    ],
)
def test_the_end_of_a_program_of_the_users_own(code: int, step: int | None, phase: Phase | None, text: str) -> None:
    """It reports nothing, which says nothing about it; unless it reports after all."""
    assert from_exit("host-2", 2, code, step, phase, is_program=True).what == text


def test_a_host_without_a_process() -> None:
    """A failure of the host itself names no process."""
    assert str(UNREACHED) == "host-3: its agent is gone"


def test_a_worker_that_cannot_be_executed_never_started(sandbox: Sandbox) -> None:
    """An exec error is neither bad input nor a failed training: it has its own exit code, and names the program."""
    program = sandbox.path / "python"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    done = sandbox.podrun("-s", "cpu-1x1", "--simulate", "train.yaml", f"launch.python={program}")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == ExitCode.UNAVAILABLE
    assert last.startswith("podrun: failed: host-0 (process 0): could not be started:")
    assert str(program) in last
    assert "Traceback" not in done.stdout + done.stderr

"""Ask podrun's runtime one question in a new process on this machine: JSON to its stdin, text from its stdout.

`runtime/worker/query.py` is the other side. stdin stays open while the process works; the process ends when stdin is
closed. So it does not outlive podrun, even if podrun is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from podrun.runtime.compiler_package import KEPT_COMPILERS
from podrun.runtime.contract import PART_OF_ANSWER, ExitCode, UserError

from ..pod.kept_compilers import kept_compilers

_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables with compiler flags, which are not sent to the hosts."""
_FATAL = re.compile(r"^(?:F\d{4} .*?\] |ERROR: )(.+)", re.MULTILINE)
"""A line after which XLA or libtpu ends the process. Stack traces may follow it."""
_NO_MEMORY = re.compile(r"mmap error: 12\b|Cannot allocate memory|std::bad_alloc|^MemoryError\b", re.MULTILINE)
"""What compilers and Python print where memory is limited (a container, `ulimit -v`) and the kernel kills nothing."""
_UNKNOWN_FLAG = "Unknown command line flag"
"""Beginning of libtpu's message, which does not say where the flag stands."""


class QueryError(Exception):
    """The process failed, for the reason in the message.

    Args:
        reason: the message.
        is_raised: its Python code raised an exception, so a run will show the traceback.
        is_killed: memory was exhausted: it was ended by SIGKILL, as the kernel does then, or was refused more.
    """

    def __init__(self, reason: str, is_raised: bool = False, is_killed: bool = False) -> None:
        super().__init__(reason)
        self.is_raised = is_raised
        self.is_killed = is_killed


def query_environment(env: Mapping[str, str], is_for_hosts: bool = False) -> dict[str, str]:
    """Return the environment of a process that answers: podrun's own, changed by `env`, with JAX on the CPU.

    Args:
        env: environment variables of the job.
        is_for_hosts: the question is about TPUs or GPUs of other machines. These do not get this user's compiler flags,
            so the process does not get them either, and it may use the compilers that podrun has stored.

    Raises:
        UserError: another user could change these compilers.
    """
    given = {name: value for name, value in os.environ.items() if not (is_for_hosts and name in _FLAGS)}
    compilers = kept_compilers() if is_for_hosts else None
    kept = {KEPT_COMPILERS: str(compilers)} if compilers else {}
    return {**given, **env, **kept, "JAX_PLATFORMS": "cpu"}


class QueryProcess:
    """A process that answers one question.

    Args:
        python: the interpreter that has podrun's runtime.
        module: the module to run, such as `podrun.runtime.inspect_job`.
        env: its environment, as `query_environment` returns it.
        work: the end of messages such as `the process that WORK was ended by signal 9`.
        cwd: its working directory; None: the current one.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, python: str, module: str, env: Mapping[str, str], work: str, cwd: Path | None = None) -> None:
        self._work = work
        self._err = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            env=env,
            cwd=cwd,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for podrun, which ends the process
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End the process, so that `ask` raises QueryError. Thread-safe."""
        self._process.kill()

    def ask(self, query: Mapping[str, object], on_part: Callable[[str], None] | None = None) -> str:
        """Return the answer. The process has ended when this returns or raises, even on Ctrl-C.

        Args:
            query: the question.
            on_part: called at once with each line that the process writes before the answer.

        Raises:
            UserError: the process reports a mistake of the user.
            QueryError: the process failed.
        """
        process = self._process
        assert process.stdin and process.stdout
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended before it has read the question
                process.stdin.write(f"{json.dumps(query)}\n")
                process.stdin.flush()
            lines = []
            for line in process.stdout:
                if on_part is not None and line.startswith(PART_OF_ANSWER):
                    on_part(line[len(PART_OF_ANSWER) :].rstrip("\n"))
                else:
                    lines.append(line)
            answer = "".join(lines).strip()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            code = process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            with self._err:
                self._err.seek(0)
                messages = self._err.read().strip()
        if code == ExitCode.DONE:
            return answer
        if code == ExitCode.BAD_CONFIG and answer:
            raise UserError(answer)
        raise self._failure(code, answer, messages)

    def _failure(self, code: int, answer: str, messages: str) -> QueryError:
        end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL or _NO_MEMORY.search(answer or messages):
            return QueryError(
                f"the process that {self._work} {end}, probably because this machine has no memory left\n"
                "end other programs here, raise the limit of this shell or container, or take a machine with more memory",
                is_killed=True,
            )
        if answer:
            return QueryError(answer, is_raised=True)
        return QueryError(f"the process that {self._work} {end}: {_useful_line(messages)}")


def _useful_line(messages: str) -> str:
    """Return the line of a process's messages that says why it ended: the first fatal one, otherwise the last one."""
    fatal = _FATAL.search(messages)
    line = fatal[1].strip() if fatal else (messages or "it said nothing").splitlines()[-1]
    return f"{line} in LIBTPU_INIT_ARGS" if line.startswith(_UNKNOWN_FLAG) else line

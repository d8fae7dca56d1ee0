"""A pickled call of a function, and its outcomes: one file for each process of a pod, in a folder that all of them see.

`python -m podrun.function_call FOLDER` makes the call in a process of the pod.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import IO, Any, NoReturn, TypedDict

_CALL = "call.pickle"


class FunctionError(RuntimeError):
    """A function's result or exception could not be pickled, or it has called `sys.exit`. The message says which."""


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text: the cause of that exception where it is raised again."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


@dataclass(frozen=True)
class Outcome:
    """The end of a call in one process."""

    result: Any = None
    error: BaseException | None = None
    """The exception that it has raised, with a `RemoteTraceback` as its cause; None if it has returned."""


class _Origin(TypedDict):
    """The first value in the file of a call. The function and its arguments follow."""

    paths: list[str]
    """Entries of `sys.path`, relative to the current folder."""
    folder: str
    """The current folder, which podrun sends."""
    files: dict[str, str]
    """The file of the function's module, by the module's name."""


class _Raised(TypedDict):
    """The outcome of a call that has raised an exception, as its file has it beside `attempt`.

    The file of a call that has returned has the result after `attempt`.
    """

    error: bytes
    """The pickled exception; empty if it cannot be pickled."""
    text: str
    traceback: str


def write_call(folder: Path, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Write a call to a folder.

    Raises:
        TypeError: function or arguments cannot be pickled, or another process would not find the function.
        OSError: the folder cannot be written.
    """
    name = getattr(function, "__qualname__", repr(function))
    origin: _Origin = {
        "paths": _paths_below(Path.cwd()),
        "folder": str(Path.cwd()),
        "files": _files_of(function),
    }
    try:
        _write(folder / _CALL, lambda file: _dump_call(file, origin, (function, tuple(arguments))))
    except _NotImportable as error:
        raise TypeError(
            f"{error} is defined in the program itself, where another process cannot import it: move it into a module, or "
            "`pip install cloudpickle`"
        ) from None
    except OSError:
        raise
    except Exception as error:  # a `__reduce__` of the user's may raise anything
        remedy = (
            "" if _pickler() is not pickle else "; `pip install cloudpickle` for lambdas and functions in functions"
        )
        raise TypeError(
            f"{name} and its arguments cannot be pickled: {type(error).__name__}: {error}{remedy}"
        ) from None


def _dump_call(file: IO[bytes], origin: _Origin, call: tuple[Any, ...]) -> None:
    """Write the pickles of a call one after the other, straight to the file: large arguments are not copied in memory."""
    pickle.dump(origin, file)
    pickler = _pickler()
    if pickler is pickle:
        _Importable(file).dump(call)
    else:
        pickler.dump(call, file)


def _files_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the file of the function's module, by the module's name; empty if it has none, as in a notebook."""
    named = function.func if isinstance(function, partial) else function
    module = sys.modules.get(getattr(named, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    return {module.__name__.partition(".")[0]: os.path.abspath(path)} if module and path else {}


class _NotImportable(Exception):
    """The name of a class or function of the program itself."""


class _Importable(pickle.Pickler):
    """Pickles what another process can import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise _NotImportable(value.__qualname__)
        return NotImplemented


def read_outcome(folder: Path, process: int, attempt: int) -> Outcome | None:
    """Return how a call has ended in a process of an attempt; None if that process has recorded nothing in it.

    Raises:
        FunctionError: the result cannot be read here; the message says why.
    """
    path = _path(folder, process)
    try:
        with path.open("rb") as file:
            recorded = pickle.load(file)
            if recorded["attempt"] != attempt:
                return None
            if "error" not in recorded:
                return Outcome(pickle.load(file))
    except FileNotFoundError:
        return None
    except Exception as error:
        raise FunctionError(f"{path} cannot be read on this machine: {type(error).__name__}: {error}") from None
    try:
        raised = pickle.loads(recorded["error"])
        assert isinstance(raised, BaseException)
    except Exception:  # its class cannot be pickled, or is not on this machine
        raised = FunctionError(recorded["text"])
    raised.__cause__ = RemoteTraceback(recorded["traceback"])
    return Outcome(error=raised)


def _pickler() -> ModuleType:
    """Return cloudpickle, which pickles functions of `__main__` by value; pickle if it is not installed."""
    try:
        return import_module("cloudpickle")
    except ImportError:
        return pickle


def _paths_below(folder: Path) -> list[str]:
    """Return the entries of `sys.path` below a folder, relative to it: hosts have a copy of the folder elsewhere."""
    paths = [Path(path).absolute() for path in sys.path]
    return [str(path.relative_to(folder)) for path in paths if path != folder and path.is_relative_to(folder)]


def _path(folder: Path, process: int) -> Path:
    return folder / f"outcome-{process}.pickle"


def _write(path: Path, dump: Callable[[IO[bytes]], None]) -> None:
    """Write a file atomically. Raises OSError with its path, and what `dump` raises."""
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            dump(file)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _make_call(folder: Path, process: int, env: Mapping[str, str]) -> None:
    """Call the function, and record its outcome. Raises what the function raises."""
    where = f"process {process} on {env.get('PODRUN_HOST', 'this machine')}"
    attempt = int(env.get("PODRUN_ATTEMPT", 0))

    def record(outcome: Mapping[str, Any], *values: Any) -> None:
        def dump(file: IO[bytes]) -> None:
            pickle.dump({"attempt": attempt, **outcome}, file)
            for value in values:
                _pickler().dump(value, file)

        _write(_path(folder, process), dump)

    try:
        function, arguments = _read_call(folder)
        result = function(*arguments)
    except BaseException as error:
        if not _is_stop(error):
            record(_recorded_error(error, where))
        raise
    try:
        record({}, result)
    except OSError:
        raise
    except Exception as error:
        what = (
            f"the result of {getattr(function, '__qualname__', function)}, a {type(result).__name__}, cannot be pickled"
        )
        refused = FunctionError(f"{what}: {type(error).__name__}: {error}")
        record(_recorded_error(refused, where))
        raise refused from error


def _read_call(folder: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function and its arguments. Raises what importing and unpickling them raises."""
    with (folder / _CALL).open("rb") as file:
        origin: _Origin = pickle.load(file)
        sys.path += origin["paths"]
        try:
            call: tuple[Callable[..., Any], tuple[Any, ...]] = pickle.load(file)
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            where = f" (there it is {path})" if (path := origin["files"].get(missing)) else ""
            raise FunctionError(
                f"there is no module {missing!r} where the function is called{where}: podrun sends the folder in which "
                f"podrun.submit was called, {origin['folder']}, and no module from elsewhere; move it there, or install it "
                f"for {sys.executable}"
            ) from error
    return call


def _is_stop(error: BaseException) -> bool:
    """Return whether the error means that the run was asked to stop, by Ctrl-C or `podrun stop`."""
    loop = sys.modules.get("podrun.loop")  # not imported here, because it imports JAX
    return isinstance(error, KeyboardInterrupt) or (loop is not None and isinstance(error, loop.Stopped))


def _recorded_error(error: BaseException, where: str) -> _Raised:
    lines = traceback.format_exception(error, limit=-_depth_below_call(error))
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # of its own `__str__`
        text = type(error).__name__
    if isinstance(error, SystemExit):  # raised again, it would end the process that asks for the result
        error = FunctionError(f"the function has called sys.exit({error.code!r})")
    try:
        data = _pickler().dumps(error)
        pickle.loads(data)  # an exception with arguments of its own may be pickled, and not be read
    except Exception:
        data = b""
    return {"error": data, "text": text, "traceback": f"In {where}:\n{''.join(lines)}"}


def _depth_below_call(error: BaseException) -> int:
    """Return how many of the innermost frames of the traceback are not of this file, at least 1."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return max(1, sum(name != __file__ for name in frames))


def main() -> None:
    """Make the call in this process of a pod."""
    folder, process = Path(sys.argv[1]), int(os.environ.get("PODRUN_PROCESS_ID", 0))
    if not (folder / _CALL).is_file():
        _refuse(
            f"{folder} is not there; PODRUN_HOME must be a folder that the nodes share with the machine that submits"
        )
    _make_call(folder, process, os.environ)


def _refuse(text: str) -> NoReturn:
    print(f"podrun: {text}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    from podrun.function_call import main as main_of_module

    main_of_module()  # FunctionError is pickled by its module, which must not be __main__

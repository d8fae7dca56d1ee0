"""A worker when it starts, and how it says why it fails."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from podrun.runtime import plugins
from podrun.runtime.__main__ import classify, exit_code, report_failure
from podrun.runtime.contract import (
    ENV_COORDINATOR,
    DivergedError,
    ErrorKind,
    ExitCode,
    NotFiniteError,
    SaveError,
    UserError,
    WorkerEnv,
    WrongHostError,
)
from podrun.runtime.storage.bucket_client import BucketError, RefusedError, explained
from podrun.runtime.worker.progress import Reporter

# --- kinds of failure -----------------------------------------------------------------------------------------------


class FromALibrary(ValueError):
    """An error of the user's own that happens to be a ValueError."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UserError("data.path: there is no file"), ErrorKind.CONFIG),
        (NotFiniteError("the loss is not finite in step 3"), ErrorKind.NOT_FINITE),
        (explained(BucketError("gs://b: cannot read c")), ErrorKind.UNAVAILABLE),
        (explained(RefusedError("gs://b: no such bucket")), ErrorKind.CONFIG),
        (SaveError("checkpoint 7 cannot be saved", unavailable=True), ErrorKind.UNAVAILABLE),
        (SaveError("checkpoint 7 cannot be saved"), ErrorKind.EXCEPTION),
        (
            ValueError("UNKNOWN: Gloo all-reduce failed: [gloo/transport/tcp/pair.cc:547] Connection reset by peer"),
            "peer",
        ),
        (ValueError("UNKNOWN: Gloo all-reduce failed:\n read: Connection closed by peer [127.0.0.1]:2132"), "peer"),
        (jax.errors.JaxRuntimeError("INTERNAL: the coordination service reported a fatal error"), "peer"),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: Failed to send RPC to coordination service. Socket closed"), "peer"),
        (jax.errors.JaxRuntimeError("/job:jax_worker/task:2 stopped sending heartbeats"), "peer"),
        (jax.errors.JaxRuntimeError("Shutdown barrier has failed: 1/3 reached the barrier"), "peer"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"), ErrorKind.EXCEPTION),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: shapes do not match"), ErrorKind.EXCEPTION),
        (ValueError("connection string is bad"), ErrorKind.EXCEPTION),
        (FromALibrary("cannot parse the connection"), ErrorKind.EXCEPTION),
        (RuntimeError("the coordination service of my own"), ErrorKind.EXCEPTION),
        (ConnectionResetError("Connection reset by peer"), ErrorKind.EXCEPTION),
        (KeyError("heartbeat"), ErrorKind.EXCEPTION),
        (ArithmeticError("not the runtime's"), ErrorKind.EXCEPTION),
        (MemoryError(), ErrorKind.EXCEPTION),
        (WrongHostError("its gradients differ"), ErrorKind.WRONG_HOST),
        (DivergedError("the gradients differ"), ErrorKind.DIVERGED),
        (KeyboardInterrupt(), ErrorKind.EXCEPTION),
        (SystemExit(3), ErrorKind.EXCEPTION),
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:24]}" if isinstance(value, BaseException) else "",
)
def test_classify(error: BaseException, kind: ErrorKind | str) -> None:
    """A lost peer is told by JAX and gloo only; the user's own errors are never taken for it."""
    assert classify(error) is (ErrorKind.PEER_LOST if kind == "peer" else kind)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *((ErrorKind.EXCEPTION, 1), (ErrorKind.CONFIG, 2), (ErrorKind.NOT_FINITE, 1), (ErrorKind.PEER_LOST, 76)),
        *((ErrorKind.UNAVAILABLE, 69), (ErrorKind.WRONG_HOST, 78), (ErrorKind.DIVERGED, 78)),
    ],
)
def test_exit_code_of_a_kind(kind: ErrorKind, code: int) -> None:
    """The numbers are documented: a change of them would break the users' scripts."""
    assert kind.exit_code == code
    assert len(ErrorKind) == 7


@pytest.mark.parametrize(
    ("error", "code", "message", "shown"),
    [
        (UserError("no such file"), 2, "no such file", "no such file\n"),
        (NotFiniteError("loss nan"), 1, "loss nan", "Traceback"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero (HERE)", "Traceback"),
        (ValueError("Gloo all-reduce failed: closed"), 76, "ValueError: Gloo all-reduce failed: closed", "Traceback"),
        (SystemExit(7), 7, "SystemExit: 7", "Traceback"),
        (SystemExit("no data"), 1, "SystemExit: no data", "Traceback"),
        (SystemExit(True), 1, "SystemExit: True", "Traceback"),
        (SystemExit(255), 255, "SystemExit: 255", "Traceback"),
        (SystemExit(256), 1, "SystemExit: 256 (exit codes are 1 to 255: 1)", "Traceback"),
        (SystemExit(300), 44, "SystemExit: 300 (exit codes are 1 to 255: 44)", "Traceback"),
        (SystemExit(-1), 255, "SystemExit: -1 (exit codes are 1 to 255: 255)", "Traceback"),
        (SystemExit(1 << 80), 1, f"SystemExit: {1 << 80} (exit codes are 1 to 255: 1)", "Traceback"),
    ],
)
def test_report_of_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str, shown: str
) -> None:
    """One event with kind, message, step and traceback; bad input is shown without a traceback.

    The message of an error in code of the user's has its line.
    """
    reporter = Reporter(tmp_path / "0.events")
    reporter.step = 12
    with pytest.raises(type(error)) as raised:
        raise error
    assert exit_code(raised.value) == code
    report_failure(raised.value, code, reporter)
    message = message.replace("HERE", f"{os.path.relpath(__file__)}:{raised.tb.tb_lineno}")
    event = json.loads((tmp_path / "0.events").read_text())
    assert (event["event"], event["message"], event["step"], event["code"]) == ("error", message, 12, code)
    assert event["kind"] == classify(error)
    assert "test_report_of_a_failure" in event["traceback"]
    printed = capsys.readouterr().err
    assert printed == shown if shown.endswith("\n") else printed.startswith(shown)


def test_a_full_disk_is_no_matter_of_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A save that the operating system has refused is told by its message alone; of another one there is a traceback."""
    for number, known in enumerate((True, False)):
        error = SaveError("checkpoint 7 cannot be saved in /w: No space left on device", explained=known)
        assert exit_code(error) == ExitCode.FAILED
        report_failure(error, ExitCode.FAILED, Reporter(tmp_path / f"{number}.events"))
        event = json.loads((tmp_path / f"{number}.events").read_text())
        assert event["message"] == str(error)
        assert (event["traceback"] == str(error)) is known
        assert (capsys.readouterr().err == f"{error}\n") is known


@pytest.mark.parametrize("code", [0, None])
def test_a_plain_exit_before_the_end(tmp_path: Path, code: int | None) -> None:
    """sys.exit() in the user's code leaves the other processes alone, so it is a failure of the run."""
    assert exit_code(SystemExit(code)) == ExitCode.FAILED
    report_failure(SystemExit(code), ExitCode.FAILED, Reporter(tmp_path / "0.events"))
    event = json.loads((tmp_path / "0.events").read_text())
    assert (event["message"], event["code"]) == ("exited with code 0 before training was done", ExitCode.FAILED)


def test_a_full_disk_does_not_keep_a_failure_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event nor the print can be written: the process still comes to its exit."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with pytest.raises(OSError, match="No space"):
            print("x", file=sys.stderr, flush=True)
        report_failure(RuntimeError("first"), 1, Reporter(Path("/dev/full")))
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


# --- environment ----------------------------------------------------------------------------------------------------


ENV = WorkerEnv("run-1", 2, "host-0", 3, 8, (0, 1, 2, 3), "cpu-8x4", Path("/dir with space/ü"), "10.0.0.1:8476")


def test_environment_round_trip() -> None:
    """The worker reads what the launcher sets, with the coordinator that becomes known later."""
    env = {**ENV.to_env(), ENV_COORDINATOR: ENV.coordinator, "OTHER": "x"}
    assert all(type(value) is str for value in env.values())
    assert WorkerEnv.from_env(env) == ENV
    assert ENV.config_path == Path("/dir with space/ü/config.json")
    assert ENV.events_path == Path("/dir with space/ü/3.events")


@pytest.mark.parametrize("ids", [(0,), (5,), (0, 1, 10, 11)])
def test_the_devices_of_a_process(ids: tuple[int, ...]) -> None:
    """The indices arrive, and the number follows from them."""
    env = ENV._replace(local_device_ids=ids)
    assert WorkerEnv.from_env({**env.to_env(), ENV_COORDINATOR: ""}).local_device_ids == ids
    assert env.local_devices == len(ids)


@pytest.mark.parametrize("name", [*ENV.to_env(), ENV_COORDINATOR])
def test_a_variable_is_missing(name: str) -> None:
    """It is named: the process was started by another podrun, or by hand, and then it says what to do instead."""
    env = {**ENV.to_env(), ENV_COORDINATOR: ENV.coordinator}
    del env[name]
    reason = "podrun here, .* another version" if ENV_COORDINATOR in env else ".*: `podrun --sim"
    with pytest.raises(UserError, match=f"^the environment variable {name} is not set: {reason}"):
        WorkerEnv.from_env(env)


def test_a_worker_started_by_hand() -> None:
    """It ends at once with the exit code for bad input, a sentence, and no traceback."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PODRUN_")}
    found = subprocess.run([sys.executable, "-m", "podrun.runtime"], env=env, capture_output=True, text=True)
    assert found.returncode == ExitCode.BAD_CONFIG
    assert found.stderr.startswith("the environment variable PODRUN_RUN_ID is not set")
    assert found.stderr.count("\n") == 1


# --- the user's code ------------------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder that modules are imported from."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_load(modules: Path) -> None:
    """An attribute of a module, or of a module in a package."""
    (modules / "users_package").mkdir()
    (modules / "users_package" / "part.py").write_text("class Net: size = 3\n")
    (modules / "users_module.py").write_text("def net(): return 4\n")
    assert plugins.load("users_package.part:Net", "model.name").size == 3
    assert plugins.load("users_module:net", "model.name")() == 4


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", "users_package.no_such", "users_package.part.no"])
def test_no_such_module(modules: Path, name: str) -> None:
    """The message has the key, the module, and where it was looked for."""
    (modules / "users_package").mkdir()
    (modules / "users_package" / "part.py").write_text("")
    with pytest.raises(UserError, match=f"^model.name: there is no module '{name}' to import '{name}:Net' from; .*dir"):
        plugins.load(f"{name}:Net", "model.name")


def test_no_such_attribute(modules: Path) -> None:
    """The message has what there is instead."""
    (modules / "users_module.py").write_text("_private = 1\nNetwork = 2\ndef make_net(): ...\n")
    with pytest.raises(UserError, match=r"^task: module 'users_module' has no 'Net'; it has: Network, make_net$"):
        plugins.load("users_module:Net", "task")
    (modules / "users_empty.py").write_text("")
    with pytest.raises(UserError, match=r"has no 'Net'; it has: nothing$"):
        plugins.load("users_empty:Net", "task")


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("import no_such_library", 1, "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import users_module.part", 1, "ModuleNotFoundError: No module named 'users_module.part'"),
        ("\nfrom json import no_such_name", 2, "ImportError: cannot import name 'no_such_name'"),
        ("\n\n1 / 0", 3, "ZeroDivisionError: division by zero"),
        ("(", 1, "SyntaxError: '(' was never closed"),
        ("import json; json.no_such_name", 1, "AttributeError: module 'json' has no attribute 'no_such_name'"),
        ("import sys; sys.exit(3)", 1, "SystemExit: 3"),
    ],
)
def test_an_error_in_the_users_module(
    modules: Path, capsys: pytest.CaptureFixture[str], code: str, line: int, message: str
) -> None:
    """It is bad input, told with its place; the log has the traceback."""
    file = modules / "users_module.py"
    file.write_text(code + "\n")
    with pytest.raises(UserError) as raised:
        plugins.load("users_module:Net", "model.name")
    assert f"model.name: importing 'users_module' fails ({file}, line {line}): {message}" in str(raised.value)
    assert "Traceback" in capsys.readouterr().err

"""Run Google's `gcloud` to query and change TPUs, with the user's login and configuration."""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Any

from podrun.runtime.contract import UnavailableError, UserError

from ...run.signals import deferred_interrupt
from ...yamlfile.short import short
from .gcloud_errors import explain

_LIMIT = 60.0  # seconds: gcloud takes 1 to 3, and longer if it renews its login
_LIMIT_BYTES = 16 << 20  # of an answer: more than a list of a thousand TPU VMs of 64 hosts each
_MAX_PROJECT = 100  # characters of a project
_PIECE = 1 << 16  # bytes
_POLL = 0.2  # seconds between two checks for Ctrl-C
_PARTIAL = "Some requests did not succeed"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,99}")  # an ID, perhaps with a domain, or a number


@dataclass(frozen=True)
class Verb:
    """A verb of gcloud, such as `describe`, on a group of resources, such as `tpu-vm`."""

    group: str
    name: str
    limit: float = _LIMIT
    """Timeout in seconds."""
    is_compute: bool = False
    """True: a command of Compute Engine. False: one of the Cloud TPU API."""
    track: str = ""
    """`alpha` for options that only that release track of gcloud has."""


DESCRIBE_VM = Verb("tpu-vm", "describe")


@dataclass(frozen=True)
class TpuName:
    """The name, zone and project of a TPU VM.

    Raises:
        UserError: one of them is not a valid name; gcloud could mistake it for an option.
    """

    name: str | None
    """None: all TPU VMs of the zone."""
    zone: str
    project: str | None = None
    typed: str = "--tpu"
    """The words before the name in messages, such as the command-line option."""

    def __post_init__(self) -> None:
        named = (
            (self.typed, "tpu", self.name, _NAME, "my-tpu"),
            ("--zone", "zone", self.zone, _NAME, "us-central1-a"),
            ("--project", "project", self.project, _PROJECT, "my-project"),
        )
        wrong = [
            f"{typed}: {short(value)} cannot be the name of a {kind}; names are like {example}"
            for typed, kind, value, pattern, example in named
            if value is not None and not pattern.fullmatch(value)
        ]
        if wrong:
            raise UserError("\n".join(wrong))

    @property
    def label(self) -> str:
        """Return the beginning of messages about it, such as `--tpu my-tpu`."""
        return f"--zone {self.zone}" if self.name is None else f"{self.typed} {self.name}"

    @property
    def flags(self) -> tuple[str, ...]:
        return (f"--zone={self.zone}", *((f"--project={self.project}",) if self.project else ()))

    def command(self, verb: str, group: str = "tpu-vm") -> str:
        """Return gcloud's command line for a verb on this TPU VM, for messages."""
        return " ".join(self.argv(Verb(group, verb)))

    @property
    def region(self) -> str:
        """Return the region of the zone: `us-central1` of `us-central1-a`."""
        return self.zone.rpartition("-")[0]

    def argv(self, verb: Verb) -> list[str]:
        """Return the arguments of gcloud for a verb on this TPU VM."""
        named = (self.name,) if self.name is not None and verb.name != "list" else ()
        track = (verb.track,) if verb.track else ()
        return ["gcloud", *track, "compute", "tpus", verb.group, verb.name, *named, *self.flags]


def ask(verb: Verb, tpu: TpuName, *options: str, stopped: Callable[[], bool] = lambda: False) -> Any:
    """Run gcloud, and return its answer, parsed from JSON; None for `create` and `delete`.

    Args:
        verb: the verb and its timeout.
        tpu: the TPU VM, or a zone.
        *options: further options of gcloud.
        stopped: returns True once the user has asked to stop.

    Raises:
        UserError: gcloud is missing, or refuses the request.
        UnavailableError: Google cannot be reached, or does not answer in time.
        MissingTpuError: there is no such TPU.
        StoppedError: `stopped` has returned True.
    """
    return run_gcloud(tpu.argv(verb), tpu, verb, *options, stopped=stopped)


def run_gcloud(
    argv: list[str],
    tpu: TpuName,
    verb: Verb,
    *options: str,
    stopped: Callable[[], bool] = lambda: False,
    form: str = "json",
) -> Any:
    """Run a command line of gcloud, and return its answer. Returns and raises what `ask` does.

    Args:
        argv: the command line, which is shown in messages.
        tpu: the TPU VM, or a zone.
        verb: the verb and its timeout.
        *options: options that messages do not show.
        stopped: returns True once the user has asked to stop.
        form: gcloud's output format, `json` or `json(FIELD,...)`.
    """
    by_hand = shlex.join(argv)
    code, out, err = _run([*argv, *options, f"--format={form}"], tpu, verb, stopped, by_hand)
    if code != 0 or (verb.is_compute and _PARTIAL in err):  # gcloud compute lists what it got, and ends with code 0
        raise explain(verb, tpu, code, err, by_hand)
    if verb.name in ("create", "delete"):  # it prints the operation, not the resource
        return None
    try:
        return json.loads(_without_warnings(out))
    except (ValueError, RecursionError):
        raise UnavailableError(
            f"{tpu.label}: gcloud's answer is not JSON but {short(out.strip())}; "
            f"look at what `{by_hand} --format=json` prints"
        ) from None


def _without_warnings(out: str) -> str:
    """Return the answer without lines that a wrapper of gcloud, or gcloud itself, printed before it."""
    lines = out.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.strip() in ("[", "{", "[]", "{}")), 0)
    return "".join(lines[first:])


def configured_project(tpu: TpuName) -> str | None:
    """Return gcloud's default project; None if it has none. Raises the errors of `ask`."""
    verb = Verb("config", "get")
    argv = ["gcloud", "config", "get", "project"]
    code, out, _ = _run(argv, tpu, verb, lambda: False, " ".join(argv))
    return out.strip()[:_MAX_PROJECT] or None if code == 0 else None


def _run(
    command: list[str], tpu: TpuName, verb: Verb, stopped: Callable[[], bool], by_hand: str
) -> tuple[int, str, str]:
    """Run gcloud, and return its exit code, stdout and stderr."""
    with ExitStack() as starting:
        starting.enter_context(deferred_interrupt())  # within Popen it would leave a gcloud that nobody ends
        with _start(command, tpu) as process:
            try:
                starting.close()
                out, err = read_output(process, verb.limit, stopped)
            except BaseException as error:  # also Ctrl-C, which gcloud does not get in its own session
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise UnavailableError(
                        f"{tpu.label}: gcloud has not answered within {verb.limit:.0f} s; "
                        f"try `{by_hand}` by hand, and look at the network of this machine"
                    ) from None
                if isinstance(error, _TooMuchError):
                    raise UnavailableError(
                        f"{tpu.label}: gcloud's answer has more than {_LIMIT_BYTES >> 20} MiB, podrun's limit; "
                        f"look at what `{by_hand}` prints"
                    ) from None
                raise
    return process.returncode, out, err


def _start(command: list[str], tpu: TpuName) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        # Its own process group: gcloud is a script that starts Python, and both must be killed.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    except FileNotFoundError:
        raise UserError(
            f"{tpu.label}: there is no program `gcloud` on this machine; install Google's Cloud CLI "
            "(https://cloud.google.com/sdk/docs/install) and run `gcloud init`, or name the hosts with --hosts"
        ) from None
    except OSError as error:
        raise UserError(f"{tpu.label}: gcloud cannot be started: {error.strerror}; reinstall it") from None


class StoppedError(Exception):
    """The user asked to stop, so gcloud was killed."""


class _TooMuchError(Exception):
    """A program has printed more than `_LIMIT_BYTES`."""


def read_output(process: subprocess.Popen[bytes], limit: float, stopped: Callable[[], bool]) -> tuple[str, str]:
    """Wait for the end of a program, and return its stdout and stderr.

    Raises:
        TimeoutError: it has not ended within `limit` seconds.
        StoppedError: `stopped` has returned True.
        _TooMuchError: its output is too long.
    """
    assert process.stdout and process.stderr
    deadline = time.monotonic() + limit
    kept: dict[IO[bytes], bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(max(0.0, min(_POLL, deadline - time.monotonic())))
            if stopped():
                raise StoppedError
            if not ready and time.monotonic() >= deadline:
                raise TimeoutError
            for key, _ in ready:
                stream = key.data
                if piece := os.read(stream.fileno(), _PIECE):
                    kept[stream] += piece
                else:
                    selector.unregister(stream)
                if len(kept[stream]) > _LIMIT_BYTES:
                    raise _TooMuchError
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return kept[process.stdout].decode(errors="replace"), kept[process.stderr].decode(errors="replace")

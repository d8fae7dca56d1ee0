"""Ask Google's `gcloud` about a TPU VM, as a program of its own: the user's login and configuration hold."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from podrun.runtime.contract import UnavailableError, UserError

from ..yamlfile.mistakes import short

_LIMIT = 60.0  # seconds: gcloud takes 1 to 3, and longer if it renews its login
_SHOWN = 300  # characters of gcloud's own words
_GROUP = ("gcloud", "compute", "tpus", "tpu-vm")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,99}")  # an ID, with its domain if it has one, or a number


@dataclass(frozen=True)
class TpuName:
    """What gcloud needs to find a TPU VM. Raises UserError for what can be no name, and might be taken for an option."""

    name: str
    zone: str
    project: str | None = None

    def __post_init__(self) -> None:
        named = (("tpu", self.name, _NAME), ("zone", self.zone, _NAME), ("project", self.project, _PROJECT))
        wrong = [
            f"--{option}: {short(value)} can be no name of a {option}; give for example --tpu my-tpu --zone us-central1-a"
            for option, value, pattern in named
            if value is not None and not pattern.fullmatch(value)
        ]
        if wrong:
            raise UserError("\n".join(wrong))

    @property
    def flags(self) -> tuple[str, ...]:
        return (f"--zone={self.zone}", *((f"--project={self.project}",) if self.project else ()))

    def command(self, verb: str) -> str:
        """Return the command line with which the user does something to the TPU VM."""
        return " ".join((*_GROUP, verb, self.name, *self.flags))


def describe(tpu: TpuName) -> Any:
    """Return gcloud's answer, parsed from JSON. Raises UserError, and UnavailableError if Google cannot be asked now."""
    code, out, err = _run([*_GROUP, "describe", tpu.name, *tpu.flags, "--format=json"], tpu)
    if code != 0:
        raise _explain(tpu, code, err)
    try:
        return json.loads(out)
    except (ValueError, RecursionError):
        raise UnavailableError(
            f"--tpu {tpu.name}: gcloud's answer is not JSON but {short(out.strip())}; "
            f"look at what `{tpu.command('describe')} --format=json` prints"
        ) from None


def _run(command: list[str], tpu: TpuName) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    pipe = subprocess.PIPE
    try:
        # In a group of its own, because gcloud is a script that starts a Python.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UserError(
            f"--tpu {tpu.name}: there is no program `gcloud` on this machine; install Google's Cloud CLI "
            "(https://cloud.google.com/sdk/docs/install) and run `gcloud init`, or name the hosts with --hosts"
        ) from None
    except OSError as error:
        raise UserError(f"--tpu {tpu.name}: gcloud cannot be started: {error.strerror}; install it anew") from None
    with process:
        try:
            out, err = process.communicate(timeout=_LIMIT)
        except BaseException as error:  # a Ctrl-C as well: it went to podrun alone
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UnavailableError(
                    f"--tpu {tpu.name}: gcloud has not answered within {_LIMIT:.0f} s; "
                    f"try `{tpu.command('describe')}` by hand, and look at the network of this machine"
                ) from None
            raise
    return process.returncode, out, err


_FAILURES: tuple[tuple[str, type[Exception], str], ...] = (
    (
        r"Max retries exceeded|name resolution|nodename nor servname|problem connecting|Unable to find the server"
        r"|crashed \((Connection|Timeout|SSL|Proxy|Transport)\w*|Network is unreachable|Connection refused",
        UnavailableError,
        "gcloud cannot reach Google; look at the network and the proxy of this machine, then try again",
    ),
    (
        r"has not been used in project|SERVICE_DISABLED|not enabled on project",
        UserError,
        "the Cloud TPU API is not enabled in the project; "
        "run `gcloud services enable tpu.googleapis.com{project}`, and wait some minutes",
    ),
    (
        r"active account selected|auth tokens|Reauthentication|invalid_grant|UNAUTHENTICATED|valid credentials",
        UserError,
        "gcloud is not logged in, or its login is over; run `gcloud auth login`",
    ),
    (
        r"(attribute|required property) \[project\]|valid project ID",
        UserError,
        "gcloud does not know the project; give --project PROJECT, or run `gcloud config set project PROJECT`",
    ),
    (
        r"RESOURCE_EXHAUSTED|[Qq]uota exceeded|rateLimitExceeded",
        UnavailableError,
        "the project's quota of requests is used up for now; wait a minute, then try again",
    ),
    (
        r"ermission denied on 'locations/|Location \S+ is not found",
        UserError,
        "there is no zone {zone}, or the project may not use it; "
        "`gcloud compute tpus locations list{project}` lists those that it may use",
    ),
    (
        r"denied on resource project|Project \S+ (was )?not found|CONSUMER_INVALID",
        UserError,
        "there is no such project, or your account may not see it; `gcloud projects list` lists those that it sees",
    ),
    (
        r"PERMISSION_DENIED|does not have permission",
        UserError,
        "your account may not look at it; `gcloud auth list` says which account that is, "
        "and whoever runs the project can give it the role roles/tpu.viewer",
    ),
    (
        r"NOT_FOUND|was not found",
        UserError,
        "there is no such TPU VM in {zone}; `gcloud compute tpus tpu-vm list --zone=-{project}` lists those of all zones",
    ),
    (
        r"Invalid choice: '(tpus|tpu-vm)'",
        UserError,
        "this gcloud is too old to know TPU VMs; run `gcloud components update`",
    ),
    (
        r"\b(UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|ABORTED)\b",
        UnavailableError,
        "Google's TPU service has no answer now; try again in some minutes",
    ),
)
"""What gcloud's words mean, and what to do. The first that fits counts: without a network a login fails as well."""


def _explain(tpu: TpuName, code: int, err: str) -> Exception:
    """Return the error for what gcloud says on stderr."""
    words = _words(err) or f"nothing, and ended with exit code {code}"
    project = f" --project={tpu.project}" if tpu.project else ""
    for pattern, kind, meaning in _FAILURES:
        if re.search(pattern, err):
            return kind(f"--tpu {tpu.name}: {meaning.format(zone=tpu.zone, project=project)}\ngcloud said: {words}")
    return UserError(
        f"--tpu {tpu.name}: gcloud has failed; try `{tpu.command('describe')}` by hand\ngcloud said: {words}"
    )


def _words(err: str) -> str:
    """Return the line that says what is wrong: the first that begins with ERROR, or else the last one."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "")
    return re.sub(r"^ERROR: (\(gcloud[\w.-]*\) )?", "", line)[:_SHOWN]

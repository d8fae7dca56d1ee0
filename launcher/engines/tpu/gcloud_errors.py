"""Explain gcloud's error messages, with remedies. PURE."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from podrun.runtime.contract import UnavailableError, UserError

from ...pod.errors import MissingTpuError

_MAX_SHOWN = 300  # characters of gcloud's own message


class Verb(Protocol):
    """The interface of `gcloud.Verb` that messages use."""

    @property
    def group(self) -> str: ...

    @property
    def name(self) -> str: ...


class Target(Protocol):
    """The interface of `gcloud.TpuName` that messages use."""

    @property
    def zone(self) -> str: ...

    @property
    def project(self) -> str | None: ...

    @property
    def label(self) -> str: ...

    def command(self, verb: str, group: str = ...) -> str: ...


@dataclass(frozen=True)
class _Meaning:
    pattern: str
    kind: type[Exception]
    text: str
    verbs: Collection[str] = ()
    """The verbs whose errors it explains; empty: all verbs."""


_CHANGES = ("create", "delete")
_LOOKS = ("describe", "list")
_MEANINGS = (
    _Meaning(
        r"Max retries exceeded|name resolution|nodename nor servname|problem connecting|Unable to find the server"
        r"|crashed \((Connection|Timeout|SSL|Proxy|Transport)\w*|Network is unreachable|Connection refused",
        UnavailableError,
        "gcloud cannot reach Google; look at the network and the proxy of this machine, then try again",
    ),
    _Meaning(
        r"has not been used in project|SERVICE_DISABLED|not enabled on project",
        UserError,
        "the Cloud TPU API is not enabled in the project; "
        "run `gcloud services enable tpu.googleapis.com{project}`, and wait some minutes",
    ),
    _Meaning(
        r"active account selected|auth tokens|Reauthentication|invalid_grant|UNAUTHENTICATED|valid credentials",
        UserError,
        "gcloud is not logged in, or its login has expired; run `gcloud auth login`",
    ),
    _Meaning(
        r"(attribute|required property) \[project\]|valid project ID",
        UserError,
        "gcloud does not know the project; give --project PROJECT, or run `gcloud config set project PROJECT`",
    ),
    _Meaning(
        r"rateLimitExceeded|RATE_LIMIT_EXCEEDED|requests per minute",
        UnavailableError,
        "the project's quota of requests is used up for now; wait a minute, then try again",
    ),
    _Meaning(
        r"RESOURCE_EXHAUSTED|[Qq]uota limit|[Qq]uota exceeded",
        UnavailableError,
        "the project has no quota left for it in {zone}; delete what it does not need (`podrun tpu list --zone "
        "{zone}{shown}` shows it: dead queued resources count as well), or ask Google for more: https://cloud.google.com/tpu/docs/quota",
        ("create",),
    ),
    _Meaning(
        r"RESOURCE_EXHAUSTED|[Qq]uota exceeded",
        UnavailableError,
        "the project's quota of requests is used up for now; wait a minute, then try again",
    ),
    _Meaning(
        r"ermission denied on 'locations/|Location \S+ is not found",
        UserError,
        "there is no zone {zone}, or the project may not use it; "
        "`gcloud compute tpus locations list{project}` lists those that it may use",
    ),
    _Meaning(
        r"denied on resource project|Project \S+ (was )?not found|CONSUMER_INVALID",
        UserError,
        "there is no such project, or your account may not see it; `gcloud projects list` lists those that it sees",
    ),
    _Meaning(
        r"PERMISSION_DENIED|does not have permission",
        UserError,
        "your account may not look at it; `gcloud auth list` says which account that is, "
        "and whoever runs the project can give it the role roles/tpu.viewer",
        _LOOKS,
    ),
    _Meaning(
        r"PERMISSION_DENIED|does not have permission",
        UserError,
        "your account may not {verb} it; `gcloud auth list` says which account that is, "
        "and whoever runs the project can give it the role roles/tpu.admin",
        _CHANGES,
    ),
    _Meaning(
        r"ALREADY_EXISTS|already exists",
        UserError,
        "there is a TPU VM or a queued resource of that name already; choose another name, or delete it: "
        "`podrun tpu list --zone {zone}{shown}` lists them",
        ("create",),
    ),
    _Meaning(
        r"INVALID_ARGUMENT|NOT_FOUND|FAILED_PRECONDITION|was not found",
        UserError,
        "Google refuses the request; `gcloud compute tpus accelerator-types list --zone={zone}{project}` lists the types of "
        "{zone}, and `gcloud compute tpus versions list --zone={zone}{project}` what --runtime-version may be",
        ("create",),
    ),
    _Meaning(
        r"NOT_FOUND|was not found",
        MissingTpuError,
        "there is no such TPU VM in {zone}; `gcloud compute tpus {group} list --zone=-{project}` lists those of all zones",
    ),
    _Meaning(
        r"Invalid choice: '(tpus|tpu-vm|queued-resources)'",
        UserError,
        "this gcloud is too old to know TPU VMs; run `gcloud components update`",
    ),
    _Meaning(
        r"\b(UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|ABORTED)\b",
        UnavailableError,
        "Google's TPU service has no answer now; try again in some minutes",
    ),
)
"""The first match counts. The network comes first, since without it a login fails, too."""


def explain(verb: Verb, target: Target, code: int, err: str) -> Exception:
    """Return the error that explains gcloud's stderr, with a remedy."""
    reason = _error_line(err) or f"nothing, and ended with exit code {code}"
    values = {
        "zone": target.zone,
        "verb": verb.name,
        "group": verb.group,
        "project": f" --project={target.project}" if target.project else "",
        "shown": f" --project {target.project}" if target.project else "",
    }
    for meaning in _MEANINGS:
        if (not meaning.verbs or verb.name in meaning.verbs) and re.search(meaning.pattern, err):
            return meaning.kind(f"{target.label}: {meaning.text.format(**values)}\ngcloud said: {reason}")
    by_hand = target.command(verb.name, verb.group)
    return UserError(f"{target.label}: gcloud has failed; try `{by_hand}` by hand\ngcloud said: {reason}")


def _error_line(err: str) -> str:
    """Return the line with the error: the first that begins with ERROR, otherwise the last one."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "")
    return re.sub(r"^ERROR: (\(gcloud[\w.-]*\) )?", "", line)[:_MAX_SHOWN]

"""Explain gcloud's error messages, with remedies. PURE."""

from __future__ import annotations

import re
from typing import Protocol

from podrun.runtime.contract import UnavailableError, UserError

from ...pod.errors import DisabledApiError, MissingTpuError
from .meanings import LOGIN, MACHINES, NETWORK, Meaning

_MAX_SHOWN = 300  # characters of gcloud's own message


class Verb(Protocol):
    """The interface of `gcloud.Verb` that messages use."""

    @property
    def group(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def is_compute(self) -> bool: ...


class Target(Protocol):
    """The interface of `gcloud.TpuName` that messages use."""

    @property
    def zone(self) -> str: ...

    @property
    def project(self) -> str | None: ...

    @property
    def region(self) -> str: ...

    @property
    def label(self) -> str: ...


class ExistingTpuError(UserError):
    """Something has this name already."""


_HEADS = re.compile(
    r"(ERROR|WARNING): .*(Could not fetch (\w+ )?resource:|did not succeed[.:]|unrecognized arguments:|is Autoscaled\.)$"
)
"""Lines of gcloud compute after which the error itself stands."""
_CHANGES = ("create", "delete")
_LOOKS = ("describe", "list", "list-instances")
_TPU_MEANINGS = (
    *NETWORK,
    Meaning(
        r"has not been used in project|SERVICE_DISABLED|not enabled on project",
        DisabledApiError,
        "the Cloud TPU API is not enabled in the project; "
        "run `gcloud services enable tpu.googleapis.com{project}`, and wait some minutes",
    ),
    *LOGIN,
    *MACHINES,
    Meaning(
        r"RESOURCE_EXHAUSTED|[Qq]uota limit|[Qq]uota exceeded",
        UnavailableError,
        "the project has no quota left for it in {zone}; delete what it does not need (`podrun tpu list --zone "
        "{zone}{shown}` shows it: dead queued resources count as well), or ask Google for more: https://cloud.google.com/tpu/docs/quota",
        ("create",),
    ),
    Meaning(
        r"RESOURCE_EXHAUSTED|[Qq]uota exceeded",
        UnavailableError,
        "the project's quota of requests is used up for now; wait a minute, then try again",
    ),
    Meaning(
        r"ermission denied on 'locations/|Location \S+ is not found",
        UserError,
        "there is no zone {zone}, or the project may not use it; "
        "`gcloud compute tpus locations list{project}` lists those that it may use",
    ),
    Meaning(
        r"denied on resource project|Project \S+ (was )?not found|CONSUMER_INVALID",
        UserError,
        "there is no such project, or your account may not see it; `gcloud projects list` lists those that it sees",
    ),
    Meaning(
        r"PERMISSION_DENIED|does not have permission",
        UserError,
        "your account may not look at it; `gcloud auth list` says which account that is, "
        "and whoever runs the project can give it the role roles/tpu.viewer",
        _LOOKS,
    ),
    Meaning(
        r"PERMISSION_DENIED|does not have permission",
        UserError,
        "your account may not {verb} it; `gcloud auth list` says which account that is, "
        "and whoever runs the project can give it the role roles/tpu.admin",
        _CHANGES,
    ),
    Meaning(
        r"ALREADY_EXISTS|already exists",
        UserError,
        "there is a TPU VM or a queued resource of that name already; choose another name, or delete it: "
        "`podrun tpu list --zone {zone}{shown}` lists them",
        ("create",),
    ),
    Meaning(
        r"INVALID_ARGUMENT|NOT_FOUND|FAILED_PRECONDITION|was not found",
        UserError,
        "Google refuses the request; `gcloud compute tpus accelerator-types list --zone={zone}{project}` lists the types of "
        "{zone}, and `gcloud compute tpus versions list --zone={zone}{project}` what --runtime-version may be",
        ("create",),
    ),
    Meaning(
        r"NOT_FOUND|was not found",
        MissingTpuError,
        "there is no such TPU VM in {zone}; `gcloud compute tpus {group} list --zone=-{project}` lists those of all zones",
    ),
    Meaning(
        r"Invalid choice: '(tpus|tpu-vm|queued-resources)'",
        UserError,
        "this gcloud is too old to know TPU VMs; run `gcloud components update`",
    ),
    Meaning(
        r"\b(UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|ABORTED)\b",
        UnavailableError,
        "Google's TPU service has no answer now; try again in some minutes",
    ),
)
"""The first match counts. The network comes first, since without it a login fails, too."""
_COMPUTE_MEANINGS = (
    *NETWORK,
    Meaning(
        r"has not been used in project|SERVICE_DISABLED|accessNotConfigured|not enabled on project",
        DisabledApiError,
        "the Compute Engine API is not enabled in the project; "
        "run `gcloud services enable compute.googleapis.com{project}`, and wait some minutes",
    ),
    *LOGIN,
    Meaning(
        r"unrecognized arguments:|Invalid choice: '(FLEX_START|workload-policy|instance-templates)'",
        UserError,
        "this gcloud is too old to create TPUs on Compute Engine, or --gcloud has an option that it does not know; "
        "run `gcloud components update`, or install a newer one",
    ),
    *MACHINES,
    Meaning(
        r"Unknown zone|zones/[\w-]+' was not found|Invalid value for field 'zone'",
        UserError,
        "there is no zone {zone}, or the project may not use it; "
        "`gcloud compute zones list{project}` lists those that it may use",
    ),
    Meaning(
        r"Unknown project|[Pp]roject \S+ (was )?not found|projects/[\w.:-]+' was not found|CONSUMER_INVALID",
        UserError,
        "there is no such project, or your account may not see it; `gcloud projects list` lists those that it sees",
    ),
    Meaning(
        r"Required '[\w.]+' permission|PERMISSION_DENIED|does not have permission|forbidden",
        UserError,
        "your account may not look at it; `gcloud auth list` says which account that is, "
        "and whoever runs the project can give it the role roles/compute.viewer",
        _LOOKS,
    ),
    Meaning(
        r"Required '[\w.]+' permission|PERMISSION_DENIED|does not have permission|forbidden",
        UserError,
        "your account may not {verb} it; `gcloud auth list` says which account that is, and whoever runs the project can "
        "give it the role roles/compute.instanceAdmin.v1",
        _CHANGES,
    ),
    Meaning(
        r"ALREADY_EXISTS|already exists",
        ExistingTpuError,
        "Compute Engine has a resource of that name already; choose another name",
        ("create",),
    ),
    Meaning(
        r"NOT_FOUND|was not found",
        MissingTpuError,
        "there is no such TPU in {zone}; `podrun tpu list --zone {zone}{shown}` lists those of the zone",
        ("describe", "delete", "list-instances"),
    ),
    Meaning(
        r"INVALID_ARGUMENT|FAILED_PRECONDITION|was not found|Invalid value|invalid|HTTPError 400",
        UserError,
        "Google refuses the request",
        ("create",),
    ),
    Meaning(
        r"\b(UNAVAILABLE|INTERNAL|INTERNAL_ERROR|DEADLINE_EXCEEDED|ABORTED|HTTPError 5\d\d)\b|[Ii]nternal error|backend error"
        r"|try again",
        UnavailableError,
        "Compute Engine has no answer now; try again in some minutes",
    ),
)


def explain(verb: Verb, target: Target, code: int, err: str, by_hand: str) -> Exception:
    """Return the error that explains gcloud's stderr, with a remedy.

    Args:
        verb: what gcloud was asked.
        target: the TPU.
        code: gcloud's exit code.
        err: its stderr.
        by_hand: its command line, to be typed by hand.
    """
    reason = _error_line(err) or f"nothing, and ended with exit code {code}"
    for meaning in _COMPUTE_MEANINGS if verb.is_compute else _TPU_MEANINGS:
        if (not meaning.verbs or verb.name in meaning.verbs) and re.search(meaning.pattern, err):
            return meaning.kind(f"{target.label}: {_fill(meaning.text, target, verb)}\ngcloud said: {reason}")
    return UserError(f"{target.label}: gcloud has failed; try `{by_hand}` by hand\ngcloud said: {reason}")


def advice(target: Target, text: str) -> tuple[type[Exception], str] | None:
    """Return the kind of an error of Compute Engine, and what to do about it; None if podrun does not know the message."""
    for meaning in MACHINES:
        if re.search(meaning.pattern, text):
            return meaning.kind, _fill(meaning.text, target)
    return None


def _fill(text: str, target: Target, verb: Verb | None = None) -> str:
    return text.format(
        zone=target.zone,
        region=target.region,
        verb=verb.name if verb else "",
        group=verb.group if verb else "",
        project=f" --project={target.project}" if target.project else "",
        shown=f" --project {target.project}" if target.project else "",
    )


def _error_line(err: str) -> str:
    """Return the line with the error: the first that begins with ERROR, otherwise the last one."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    last = len(lines) - 1
    first = next((number for number, line in enumerate(lines) if _HEADS.match(line) or line.startswith("ERROR:")), last)
    line = lines[first] if lines else ""
    if _HEADS.match(line) and first < last:  # gcloud compute
        line = lines[first + 1].removeprefix("- ")
    return re.sub(r"^ERROR: (\(gcloud[\w.-]*\) )?", "", line)[:_MAX_SHOWN]

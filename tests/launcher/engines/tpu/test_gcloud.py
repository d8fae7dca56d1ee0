"""gcloud and its words: recorded ones of version 528, and the real program where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podrun.launcher.engines.tpu import gcloud, inventory
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.runtime.contract import UnavailableError, UserError

from ....gcloud import ZONE, make_gcloud, write_program
from ....gcloud_api import serve, use_real_gcloud
from .find_tpu import find

AS = "This command is authenticated as me@example.com which is the active account specified by the [core/account] property"
NODE = f"projects/p1/locations/{ZONE}/nodes/my-tpu"
REASON = """\
- '@type': type.googleapis.com/google.rpc.ErrorInfo
  domain: googleapis.com
  metadata:
    consumer: projects/p1
    service: tpu.googleapis.com
  reason: """


def said(text: str, reason: str = "") -> str:
    """Return what gcloud prints of an error."""
    return f"ERROR: (gcloud.compute.tpus.tpu-vm.describe) {text}\n{REASON + reason if reason else ''}\n"


@pytest.mark.parametrize(
    ("err", "kind", "what"),
    [
        (
            said("You do not currently have an active account selected.\nPlease run:\n\n  $ gcloud auth login\n"),
            UserError,
            "not logged in.*`gcloud auth login`\ngcloud said: You do not currently have an active account selected.$",
        ),
        (
            said(
                "There was a problem refreshing your current auth tokens: ('invalid_grant: Bad Request', "
                "{'error': 'invalid_grant', 'error_description': 'Bad Request'})\nPlease run:\n\n  $ gcloud auth login\n"
            ),
            UserError,
            "its login has expired; run `gcloud auth login`",
        ),
        (
            said("UNAUTHENTICATED: Request had invalid authentication credentials. Expected OAuth 2 access token, ..."),
            UserError,
            "its login has expired; run `gcloud auth login`",
        ),
        (
            said("Reauthentication failed. cannot prompt during non-interactive execution."),
            UserError,
            "its login has expired; run `gcloud auth login`",
        ),
        (
            said(
                "Error parsing [tpu].\nThe [tpu] resource is not properly specified.\nFailed to find attribute [project]. "
                "The attribute can be set in the following ways: \n- provide the argument `--project` on the command line"
            ),
            UserError,
            "does not know the project; give --project PROJECT",
        ),
        (
            said(f"NOT_FOUND: Resource '{NODE}' was not found. {AS}"),
            UserError,
            f"no such TPU VM in {ZONE}; .*--zone=- ",
        ),
        (
            said(f"PERMISSION_DENIED: Permission 'tpu.nodes.get' denied on '{NODE}'. {AS}"),
            UserError,
            "your account may not look at it; .*roles/tpu.viewer",
        ),
        (
            said(
                f"PERMISSION_DENIED: Permission denied on 'locations/us-foo1-a' (or it may not exist). {AS}.",
                "LOCATION_ACCESS_DENIED",
            ),
            UserError,
            f"no zone {ZONE}, .*`gcloud compute tpus locations list --project=p1`",
        ),
        (
            said(
                f"PERMISSION_DENIED: Location us-foo1-a is not found or access is unauthorized. {AS}.",
                "LOCATION_POLICY_VIOLATED",
            ),
            UserError,
            f"no zone {ZONE}, ",
        ),
        (
            said(f"PERMISSION_DENIED: Permission denied on resource project p1. {AS}.", "CONSUMER_INVALID"),
            UserError,
            "no such project, .*`gcloud projects list`",
        ),
        (
            "API [tpu.googleapis.com] not enabled on project [p1]. Would you like to enable \n"
            "and retry (this will take a few minutes)? (y/N)?  \n"
            + said(
                "PERMISSION_DENIED: Cloud TPU API has not been used in project p1 before or it is disabled. Enable it by "
                f"visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/overview then retry. {AS}.",
                "SERVICE_DISABLED",
            ),
            UserError,
            "API is not enabled .*`gcloud services enable tpu.googleapis.com --project=p1`.*\ngcloud said: PERMISS",
        ),
        (
            said(
                "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of "
                "service 'tpu.googleapis.com' for consumer 'project_number:1234'.",
                "RATE_LIMIT_EXCEEDED",
            ),
            UnavailableError,
            "quota of requests is used up for now; wait a minute",
        ),
        (
            "ERROR: gcloud crashed (ConnectionError): HTTPSConnectionPool(host='tpu.googleapis.com', port=443): Max retries "
            "exceeded with url: /v2/projects/p1 (Caused by NameResolutionError(...: Failed to resolve))\n\n"
            "If you would like to report this issue, please run the following command:\n  gcloud feedback\n",
            UnavailableError,
            "cannot reach Google; look at the network",
        ),
        (
            said(
                "There was a problem refreshing your current auth tokens: HTTPSConnectionPool(host='oauth2.googleapis.com', "
                "port=443): Max retries exceeded with url: /token"
            ),
            UnavailableError,
            "cannot reach Google; look at the network",
        ),
        (
            said(
                "HttpError accessing <https://tpu.googleapis.com/v2/...>: response: <{'status': 503}>, content <{\"error\": "
                '{"code": 503, "message": "The service is currently unavailable.", "status": "UNAVAILABLE"}}>\n'
                "This may be due to network connectivity issues. Please check your network settings, ..."
            ),
            UnavailableError,
            "service has no answer now; try again",
        ),
        ("ERROR: (gcloud.compute.tpus) Invalid choice: 'tpu-vm'.\n", UserError, "too old .*`gcloud components update`"),
        (
            "sh: 1: python3: not found\n",
            UserError,
            "has failed; try `gcloud .*` by hand\ngcloud said: sh: 1: python3: not found$",
        ),
        ("", UserError, "gcloud said: nothing, and ended with exit code 1$"),
    ],
)
def test_what_gcloud_says(bin: Path, err: str, kind: type[Exception], what: str) -> None:
    make_gcloud(bin, err=err, code=1)
    with pytest.raises(kind, match=f"^--tpu my-tpu: (?s:.*){what}") as raised:
        find(project="p1")
    assert len(str(raised.value).splitlines()) == 2


def test_no_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match=r"no program `gcloud` on this machine; install .* or name the hosts with --hosts"
    ):
        find()


def test_a_gcloud_that_cannot_be_started(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bin))
    write_program(bin, "#!/bin/sh\n").chmod(0o644)
    with pytest.raises(UserError, match="gcloud cannot be started: Permission denied"):
        find()


def test_a_gcloud_that_never_answers_is_ended_with_all_that_it_started(
    bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child holds its output open."""
    pid, read = bin / "pid", gcloud.read_output

    def read_later(process: subprocess.Popen[bytes], limit: float, stopped: Callable[[], bool]) -> tuple[str, str]:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.01)
        return read(process, 0.1, stopped)

    monkeypatch.setattr(gcloud, "read_output", read_later)
    write_program(bin, f"#!/bin/sh\nsleep 600 &\necho $! > {pid}\nwait\n")
    with pytest.raises(UnavailableError, match=r"has not answered within .*; try `gcloud .*` by hand"):
        find()
    deadline = time.monotonic() + 60  # the kernel ends it soon after the signal
    while is_running(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(int(pid.read_text()))


@pytest.mark.parametrize("stream", ["1", "2"])
def test_an_answer_without_end_is_not_held(bin: Path, stream: str) -> None:
    """Neither on stdout nor on stderr."""
    write_program(bin, f"#!/bin/sh\nexec yes >&{stream}\n")
    with pytest.raises(UnavailableError, match=r"answer has more than 16 MiB, podrun's limit; look at what `"):
        find()


def is_running(pid: int) -> bool:
    """Return whether a process is there, and is more than a zombie that its new parent has not buried yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("name", "zone", "project", "what"),
    [
        ("--help", ZONE, None, "--tpu: '--help' cannot be the name of a tpu; names are like my-tpu"),
        ("my tpu", ZONE, None, "--tpu: 'my tpu'"),
        ("", ZONE, None, "--tpu: ''"),
        ("my-tpu", "us/../a", None, "--zone: 'us/../a' cannot be the name of a zone"),
        ("my-tpu", ZONE, "a;b", "--project: 'a;b' cannot be the name of a project"),
        ("x" * 64, "", "-", "--tpu: (?s:.*)--zone: (?s:.*)--project: "),
    ],
)
def test_what_can_be_no_name_is_not_given_to_gcloud(name: str, zone: str, project: str | None, what: str) -> None:
    with pytest.raises(UserError, match=what):
        inventory.from_option(name, zone, project)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_the_real_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a client of the service like any other: what podrun gives to it and reads from it is right."""
    with serve() as api:
        use_real_gcloud(monkeypatch, api, tmp_path)
        on_a_busy_machine = gcloud.Verb("tpu-vm", "describe", limit=300.0)
        monkeypatch.setattr(gcloud, "DESCRIBE_VM", on_a_busy_machine)
        assert find() == find_pod(
            PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE, "project": "my-project"})
        )
        assert [host.address for host in find().hosts] == ["34.1.2.2", "34.1.2.3", "34.1.2.4", "34.1.2.5"]
        with pytest.raises(UserError, match=f"there is no such TPU VM in {ZONE}"):
            find(project="other")

"""Explain what is wrong with a bucket, through the real command line and real servers: what, where and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from podrun.runtime.storage import bucket_client

from ....buckets import BUCKET, bucket_server
from ....conftest import Sandbox
from ....fault_proxy import Faults, fault_proxy
from ....tiers import mostly_long
from .case import LINES, SIMULATE, Podrun

ADDRESS = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
NOWHERE = "http://127.0.0.1:9"


def _refusal(code: str, message: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@dataclass(frozen=True)
class Broken:
    """Refuse a bucket that cannot be used, and say so in one line."""

    name: str
    parts: tuple[str, ...]
    url: str = f"s3://{BUCKET}/runs/one"
    faults: Faults | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    without: str = ""
    """Miss a package."""
    code: int = 2


GS = f"gs://{BUCKET}/runs/one"
BROKEN = [
    Broken("no bucket", ("s3://other-bucket: no such bucket", "correct its name"), "s3://other-bucket/run"),
    Broken("nothing there", (f"there is nothing in {GS}", "correct the URL"), GS),
    Broken("nobody may", ("key test-key may not list", "give it s3:ListBucket"), faults=Faults(always="403")),
    Broken("no right in gs", ("may not list", "give it storage.objects.list"), GS, Faults(always="403")),
    Broken(
        "clock",
        ("the clock of this host is wrong", "set it, best by NTP"),
        faults=Faults(always="403", body=_refusal("RequestTimeTooSkewed", "The difference is too large.")),
    ),
    Broken(
        "expired token",
        ("credentials of key test-key have expired", "renew them", "AWS_SECRET_ACCESS_KEY"),
        faults=Faults(always="400", body=_refusal("ExpiredToken", "The provided token has expired.")),
    ),
    Broken(
        "unknown key",
        ("key test-key is refused", "a profile in ~/.aws"),
        faults=Faults(always="403", body=_refusal("InvalidAccessKeyId", "The key does not exist in our records.")),
    ),
    Broken(
        "wrong secret",
        ("key test-key is refused", "AWS_SECRET_ACCESS_KEY"),
        faults=Faults(always="403", body=_refusal("SignatureDoesNotMatch", "Check your key.")),
    ),
    Broken(
        "no credentials",
        ("no credentials on this host", "give AWS_ACCESS_KEY_ID"),
        env={**dict.fromkeys(KEYS), "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nowhere"},
    ),
    Broken("address", ("AWS_ENDPOINT_URL is not a URL", "http://"), env={"AWS_ENDPOINT_URL": "127.0.0.1:9"}),
    Broken("no package s3", ("s3fs is not installed", "podrun[s3]"), without="s3fs"),
    Broken("no package gs", ("gcsfs is not installed", "podrun[gcs]"), GS, without="gcsfs"),
    Broken("unreachable", ("cannot list it on the server", NOWHERE), env={"AWS_ENDPOINT_URL": NOWHERE}, code=69),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        gs, s3 = (stack.enter_context(bucket_server(scheme, folder / scheme)) for scheme in ("gs", "s3"))
        yield {**gs, **s3}


@pytest.mark.parametrize("case", mostly_long(BROKEN, lambda number, _: number in (4, 10)), ids=lambda case: case.name)
def test_a_broken_bucket_is_explained(
    case: Broken, servers: dict[str, str], podrun: Podrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.code == 69:
        monkeypatch.setattr(bucket_client, "_TRIES", 2)
    for name, value in {**servers, **case.env}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    if case.without:
        monkeypatch.setitem(sys.modules, case.without, None)
    with ExitStack() as stack:
        if case.faults is not None:
            variable = ADDRESS[case.url.partition(":")[0]]
            monkeypatch.setenv(variable, stack.enter_context(fault_proxy(servers[variable], case.faults)))
        done = podrun("pull", case.url)
    assert done.returncode == case.code, done.stderr
    assert len(done.stderr.splitlines()) <= LINES and "Traceback" not in done.stderr + done.stdout
    for part in case.parts:
        assert part in done.stderr, f"{part!r} is not in:\n{done.stderr}"
    assert not Path("pulled").exists()


@pytest.mark.long
def test_a_run_whose_bucket_cannot_be_reached_ends_with_69(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, when the workdir is claimed; the line names the object and the server."""
    for name in KEYS:
        monkeypatch.setenv(name, "test-key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOWHERE)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of each of podrun's own
    monkeypatch.setenv("XDG_CACHE_HOME", str(sandbox.path / "cache"))
    done = sandbox.podrun(*SIMULATE, "small.yaml", "--workdir", f"s3://{BUCKET}/run")
    assert done.returncode == 69, done.stderr
    assert re.search(
        rf"s3://{BUCKET}/run: cannot (read|write) .podrun-claim on the server {NOWHERE} after", done.stderr
    )
    assert "[exit code 69]" in done.stderr.splitlines()[-1] and "Traceback" not in done.stdout + done.stderr

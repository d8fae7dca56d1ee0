"""Code arrives on every host, whole or not at all, and only what is missing is sent."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.remote.open_agent import open_agent
from podrun.launcher.staging.bundles import podrun_bundle
from podrun.launcher.staging.prepare import Prepared
from podrun.launcher.transport.local import LocalTransport

from ..powerless import POWERLESS
from .prepared import Case, contents

pytestmark = pytest.mark.timeout(120)


def test_only_what_is_missing_is_sent(case: Case) -> None:
    """At first all; then nothing; after a change the project alone."""
    names = [bundle.name for bundle in case.bundles()]
    first = case.prepared()
    assert first.sent == tuple(names)
    assert [phase for _, phase, _ in case.told] == ["reach", "sync", "sync", "checked"]
    assert case.prepared().sent == ()
    (case.project / "train.py").write_text("print('second')")
    changed = case.prepared()
    assert [name.partition("-")[0] for name in changed.sent] == ["project"]
    assert case.there() == {*names, *changed.sent}


def test_what_arrives_is_what_was_packed(case: Case) -> None:
    """Content, names, links and modes; times are zero, by which a program's own files are known."""
    (case.project / "deep" / "er").mkdir(parents=True)
    for name in ["a b", "line\nbreak", "snow ☃", os.fsdecode(b"latin-\xe9"), "x" * 200, "deep/er/" + "y" * 200]:
        (case.project / name).write_bytes(name.encode(errors="surrogateescape"))
    (case.project / "run.sh").write_text("#!/bin/sh")
    (case.project / "run.sh").chmod(0o755)
    (case.project / "link").symlink_to("deep/er")
    case.before = ["env", "LC_ALL=C"]  # a host without a locale
    name = case.prepared().sent[0]
    assert contents(case.home / "bundles" / name) == contents(case.project)
    assert all(path.lstat().st_mtime == 0 for path in (case.home / "bundles" / name).rglob("*") if not path.is_dir())


def test_hosts_that_share_a_home(tmp_path: Path) -> None:
    """All of them start at once; what is there in the end is there once, and whole."""
    case = Case(tmp_path, hosts=4)
    answers = case.run()
    assert list(answers) == ["h0", "h1", "h2", "h3"]
    assert all(isinstance(answer, Prepared) for answer in answers.values()), answers
    assert case.there() == {bundle.name for bundle in case.bundles()}
    assert contents(case.home / "bundles" / case.bundles()[0].name) == contents(case.project)


class Upload:
    """The protocol by hand, to break it."""

    def __init__(self, case: Case) -> None:
        case.home.mkdir(exist_ok=True)
        self.case = case
        self.bundle = case.bundles()[0]
        self.channel = open_agent(LocalTransport(case.pod), case.pod, case.pod.hosts[0], "prepare")
        keys = dict.fromkeys(["container", "requirements", "project", "facts"])
        request = {"home": case.pod.home, "bundles": [self.bundle.name], "python": "python3", "setup": [], "env": {}}
        self.channel.send(json.dumps({**keys, **request, "subfolder": "."}).encode() + b"\n")

    def send(self, name: str, data: bytes, size: int | None = None) -> list[dict[str, Any]]:
        """Answers up to the end of the agent."""
        head = {"bundle": name, "bytes": len(data) if size is None else size}
        self.channel.send(json.dumps(head).encode() + b"\n" + data)
        self.channel.finish()
        answers = b""
        while received := self.channel.receive():
            answers += received
        self.channel.close()
        assert "Traceback" not in self.channel.stderr_tail()
        return [json.loads(line) for line in answers.splitlines()]


def test_an_upload_that_ends_too_early_leaves_nothing(case: Case) -> None:
    (case.project / "large").write_bytes(os.urandom(300_000))
    upload = Upload(case)
    half = upload.bundle.data[: len(upload.bundle.data) // 2]
    assert [a["type"] for a in upload.send(upload.bundle.name, half, len(upload.bundle.data))] == ["need"]
    assert case.there() == set()
    assert case.prepared().sent[0] == upload.bundle.name


@pytest.mark.parametrize("damage", ["cut", "changed", "another", "not an archive"])
def test_a_damaged_bundle_leaves_nothing(case: Case, damage: str) -> None:
    (case.project / "large").write_bytes(os.urandom(300_000))
    upload = Upload(case)
    data = upload.bundle.data
    flipped = data[:200_000] + bytes([data[200_000] ^ 1]) + data[200_001:]
    broken = {"cut": data[:-50_000], "changed": flipped, "another": podrun_bundle().data, "not an archive": b"x" * 99}
    *_, error = upload.send(upload.bundle.name, broken[damage])
    assert error["type"] == "error"
    assert f"{upload.bundle.name} did not arrive as it was sent" in error["what"]
    assert case.there() == set()


def test_a_bundle_cannot_be_put_elsewhere(case: Case) -> None:
    upload = Upload(case)
    *_, error = upload.send("../project-0123456789abcdef", upload.bundle.data)
    assert "is not the name of a bundle" in error["what"]
    assert not list(case.home.glob("project-*"))


def test_a_home_that_cannot_be_written(case: Case) -> None:
    case.prepared()  # the agent itself is there
    for path in (case.home / "bundles").iterdir():
        subprocess.run(["rm", "-r", path], check=True)
    (case.home / "bundles").chmod(0o500)
    case.before = POWERLESS
    try:
        reason = case.refused()
    finally:
        (case.home / "bundles").chmod(0o700)
    assert f"cannot write {case.home}/bundles: Permission denied" in reason
    assert "`home:` in a pod file for --pod" in reason


def test_a_disk_that_is_full(case: Case) -> None:
    """A limit on the size of files gives the same kind of error, at the same place."""
    (case.project / "large").write_bytes(os.urandom(3_000_000))
    case.before = ["prlimit", "--fsize=1000000"]
    reason = case.refused()
    assert f"cannot write {case.home}/bundles: File too large" in reason
    assert case.there() == set()


def test_a_file_where_the_home_should_be(case: Case) -> None:
    case.prepared()
    case.home.joinpath("bundles").rename(case.home / "moved")
    case.home.joinpath("bundles").write_text("")
    assert f"cannot write {case.home}: Not a directory" in case.refused()

"""Data that is brought to hosts: what is sent, by whom, and what is not sent again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare.data_set import PIECE
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host
from podrun.launcher.staging.find_data import find_data
from podrun.runtime.config.files import text_files
from podrun.runtime.contract import UserError

from .carried import Carried, text_job

HOSTS = 3


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Carried:
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "mine"))  # where digests are remembered
    case = Carried(tmp_path, HOSTS)
    case.write("a.txt", os.urandom(2 * PIECE + 5))
    case.write("deep/b.txt", b"b" * 100)
    return case


def size(case: Carried) -> int:
    return sum(map(len, case.here().values()))


def test_each_byte_leaves_here_once(case: Carried) -> None:
    brought = case.brought()
    assert all(case.on(host) == case.here() for host in brought)
    assert sum(host.from_launcher for host in brought.values()) == size(case)
    assert sum(host.from_hosts for host in brought.values()) == (HOSTS - 1) * size(case)
    assert not case.notes


def test_nothing_is_sent_twice(case: Carried) -> None:
    case.brought()
    assert not any(host.received for host in case.brought().values())
    case.write("new.txt", b"new")
    assert sum(sum(host.received.values()) for host in case.brought().values()) == HOSTS * 3
    assert all(case.on(f"h{n}") == case.here() for n in range(HOSTS))


def test_a_host_that_has_it_passes_it_on(case: Carried) -> None:
    hosts = case.pod.hosts
    case.with_hosts(hosts[2])
    case.brought()
    case.with_hosts(*hosts)
    assert not any(host.from_launcher for host in case.brought().values())


def test_a_transfer_goes_on_where_it_was_interrupted(case: Carried) -> None:
    """With what one host has: a whole piece of a file, and a part of another one."""
    data = case.found()
    whole = data.files[0] if data.files[0].size > PIECE else data.files[1]
    content = Path(whole.path).read_bytes()
    files = case.store("h0") / "files"
    files.mkdir(parents=True)
    (files / f"{whole.sha256}.part").write_bytes(content[: PIECE + 1000])
    brought = case.brought()
    assert sum(host.from_launcher for host in brought.values()) == size(case) - PIECE
    assert all(case.on(host) == case.here() for host in brought)


def test_hosts_that_share_a_home(case: Carried) -> None:
    """It is brought once."""
    case.with_hosts(*(Host(f"h{n}", "shared", internal="127.0.0.1") for n in range(HOSTS)))
    brought = case.brought()
    assert sum(sum(host.received.values()) for host in brought.values()) == size(case)
    assert case.on("shared") == case.here()


@pytest.mark.parametrize("internal", [None, "127.0.0.1"])
def test_hosts_that_cannot_be_reached_by_others(case: Carried, internal: str | None) -> None:
    """Hosts without an address get it from here; so do those that cannot reach their parent, who say so."""
    others = case.pod.hosts[1:]
    case.with_hosts(Host("h0", "h0", internal=internal), *(Host(h.name, h.address) for h in others))
    if internal:  # nobody answers there
        case.transport.before = {host.name: ["unshare", "--net"] for host in others if os.geteuid() == 0}
    brought = case.brought()
    assert all(case.on(host) == case.here() for host in brought)
    if not internal:
        assert all(host.from_launcher == size(case) for host in brought.values())
    elif os.geteuid() == 0:
        assert any("h1: cannot get data from h0 at 127.0.0.1:" in note for note in case.notes)


def test_a_file_that_was_changed_on_a_host(case: Carried) -> None:
    """Both digests are told, and it is brought again."""
    case.brought()
    data = case.found()
    sha256 = dict(data.names)["path/deep/b.txt"]
    (case.store("h1") / "files" / sha256).write_bytes(b"B" * 100)
    brought = case.brought()
    [note] = case.notes
    assert note.startswith("h1: path/deep/b.txt has the SHA-256 ") and f"expected {sha256}" in note
    assert sum(brought["h1"].received.values()) == 100
    assert case.on("h1") == case.here()


def test_a_file_that_is_changed_here_meanwhile(case: Carried) -> None:
    data = case.found()
    case.write("deep/b.txt", b"c" * 100)
    answers = case.bring(data)
    assert any("was changed while it was copied" in str(answer) for answer in answers.values())
    assert not list((case.store("h0") / "sets").iterdir())


def test_a_full_disk(case: Carried) -> None:
    """It is the host that is named, and the others have the data."""
    if os.geteuid():
        pytest.skip("a small file system needs root")
    case.store("h2").mkdir(parents=True)
    mount = f'mount -t tmpfs -o size=1m,mode=700 none {case.store("h2")} && exec "$@"'
    case.transport.before = {"h2": ["unshare", "--mount", "sh", "-c", mount, "sh"]}
    answers = case.bring()
    full = answers.pop("h2")
    assert isinstance(full, HostError) and "the data needs about 4 MB" in full.reason
    assert all(case.on(host) == case.here() for host in answers)


def test_hostile_names(case: Carried) -> None:
    """They arrive as they are; a link arrives as the file that it leads to."""
    for name in ("line\nbreak", "a b", "-rf", "$HOME", "snow ☃", "back\\slash", ".hidden", "x" * 200):
        case.write(name, name.encode())
    (case.data / "link").symlink_to(case.data / "a.txt")
    (case.data / "lost").symlink_to("/nowhere")
    (case.data / "to a folder").symlink_to(case.folder)
    case.with_hosts(case.pod.hosts[0])
    case.brought()
    assert case.on("h0") == case.here()


def test_a_name_that_no_json_can_hold(case: Carried) -> None:
    (Path(os.fsdecode(os.fsencode(case.data) + b"/\xff"))).write_bytes(b"x")
    with pytest.raises(UserError, match="not UTF-8; rename it"):
        case.found()


def test_an_empty_file_counts(case: Carried) -> None:
    """Among others: it is in the list of a text's files."""
    case.write("empty.txt", b"")
    case.with_hosts(case.pod.hosts[0])
    case.brought()
    assert case.on("h0")["empty.txt"] == b""


@pytest.mark.parametrize("value", ["", "a.txt", "*.txt", "**/*.txt"])
def test_the_job_finds_the_same_files_on_a_host(case: Carried, value: str) -> None:
    job = text_job(case.data / value)
    data = find_data(job)
    home = case.folder / "home"
    content = {file.sha256: file.path for file in data.files}
    for name, sha256 in data.names:
        path = Path(data.folder(str(home)), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(content[sha256])
    there = data.on_hosts(job, str(home))
    texts = [
        [path.read_bytes() for path in text_files(str(config.data.path))]  # type: ignore[union-attr]
        for config in (job, there)
    ]
    assert texts[0] == texts[1]
    assert job.data.bring and str(case.data) not in there.model_dump_json()  # type: ignore[union-attr]

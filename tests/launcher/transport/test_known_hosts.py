"""Host keys: what the files say of a host, and the verdict on the key that it shows."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paramiko import SSHClient

from podrun.launcher.transport.ssh.errors import Unreachable
from podrun.launcher.transport.ssh.host_key import HostKeyCheck, known_hosts_files
from podrun.launcher.transport.ssh.known_hosts import KnownHosts, KnownKey, fingerprint

KEY, OTHER, THIRD = (base64.b64encode(text).decode() for text in (b"key one", b"key two", b"key three"))


def kept(folder: Path, *lines: str, name: str = "known_hosts") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def numbers(path: Path, name: str) -> list[int]:
    """Return the lines that apply to a host."""
    return [key.line for key in KnownHosts().find(name, [path])]


def hashed(name: str) -> str:
    salt = b"salt of twenty bytes"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def test_names_are_found_whatever_their_case(tmp_path: Path) -> None:
    """In the file and in what is asked; a list of names is each of them, and a port makes another name."""
    path = kept(tmp_path, f"Web,10.0.0.1 ssh-rsa {KEY}", f"[web]:2222 ssh-rsa {OTHER}", f"webs ssh-rsa {KEY} note")
    assert numbers(path, "WEB") == numbers(path, "web") == numbers(path, "10.0.0.1") == [1]
    assert numbers(path, "[Web]:2222") == [2]
    assert numbers(path, "webs") == [3]
    assert numbers(path, "we") == numbers(path, "web,10.0.0.1") == []
    (key,) = KnownHosts().find("web", [path])
    assert key == KnownKey("ssh-rsa", b"key one", path, 1)


def test_lines_that_are_no_host_keys(tmp_path: Path) -> None:
    """Comments, halves, keys that cannot be read, and the key of a certificate authority, which is no host's."""
    path = kept(
        tmp_path,
        f"#web ssh-rsa {KEY}",
        f"# web ssh-rsa {KEY}",
        "",
        "web ssh-rsa",
        "web ssh-rsa A",
        f"@cert-authority web ssh-rsa {KEY}",
        f"@revoked web ssh-rsa {OTHER}",
        "@revoked",
        f"@revoked web {KEY}",
        f"web ssh-rsa {KEY}",
    )
    keys = KnownHosts().find("web", [path])
    assert [(key.line, key.revoked) for key in keys] == [(7, True), (10, False)]
    assert KnownHosts().find("web", [tmp_path / "missing"]) == []


def test_patterns(tmp_path: Path) -> None:
    """`*` and `?` as in ssh, over the whole name; a name behind `!` excludes the line wherever it stands."""
    path = kept(
        tmp_path,
        f"*.Lab,!bad.lab ssh-rsa {KEY}",
        f"n? ssh-rsa {KEY}",
        f"!n1,n* ssh-rsa {KEY}",
        f"!n2 ssh-rsa {KEY}",
        f"a.c* ssh-rsa {KEY}",
    )
    assert numbers(path, "a.lab") == [1] and numbers(path, "bad.lab") == [] and numbers(path, "a.lab.org") == []
    assert numbers(path, "n1") == [2] and numbers(path, "n2") == [2, 3] and numbers(path, "n10") == [3]
    assert numbers(path, "a.com") == [5] and numbers(path, "abcom") == []


def test_hashed_names(tmp_path: Path) -> None:
    """As `ssh-keygen -H` writes them; one that is damaged matches nothing."""
    path = kept(
        tmp_path, f"{hashed('web')} ssh-rsa {KEY}", f"|1|x ssh-rsa {KEY}", f"|1|A|A ssh-rsa {KEY}", f"web ssh-rsa {KEY}"
    )
    assert numbers(path, "Web") == [4, 1]
    assert numbers(path, "other") == []


def test_files_are_searched_in_their_order_and_read_once(tmp_path: Path) -> None:
    """The file is read once, also if it changes while podrun runs."""
    first, second = kept(tmp_path, f"web ssh-rsa {KEY}"), kept(tmp_path, f"web ssh-rsa {OTHER}", name="second")
    known = KnownHosts()
    assert [key.file for key in known.find("web", [second, first])] == [second, first]
    first.write_text("")
    assert [key.file for key in known.find("web", [first])] == [first]


def test_new_keys_are_appended(tmp_path: Path) -> None:
    """Below what is there, on lines of their own, with the numbers that an editor shows; never twice."""
    path = tmp_path / "a" / "b" / "known_hosts"
    known = KnownHosts()
    known.add("Web", "ssh-rsa", b"key one", path)
    known.add("web", "ssh-rsa", b"key one", path)
    known.add("web", "ssh-rsa", b"key two", path)
    assert path.read_text() == f"web ssh-rsa {KEY}\nweb ssh-rsa {OTHER}\n"
    assert [(key.key, key.line) for key in known.find("WEB", [path])] == [(b"key one", 1), (b"key two", 2)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_text("# unfinished")
    fresh = KnownHosts()
    fresh.add("web", "ssh-rsa", b"key one", path)
    assert path.read_text() == f"# unfinished\nweb ssh-rsa {KEY}\n"
    assert fresh.find("web", [path])[0].line == 2 == KnownHosts().find("web", [path])[0].line


def test_the_mode_of_new_files_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    """The file is closed to others even without any umask."""
    import os

    before = os.umask(0)
    try:
        KnownHosts().add("web", "ssh-rsa", b"key one", tmp_path / "ssh" / "known_hosts")
    finally:
        os.umask(before)
    assert (tmp_path / "ssh").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "ssh" / "known_hosts").stat().st_mode & 0o777 == 0o600


def test_a_fingerprint_is_that_of_ssh_keygen() -> None:
    """Without the padding of base64."""
    digest = base64.b64encode(hashlib.sha256(b"key one").digest()).decode()
    assert digest.endswith("=") and fingerprint(b"key one") == "SHA256:" + digest.rstrip("=")


# --- the verdict ------------------------------------------------------------------------------------------------------


def check_of(path: Path, *more: Path, accept_new: bool = False) -> HostKeyCheck:
    return HostKeyCheck("web", KnownHosts(), (path, *more), accept_new, "ssh web")


def verdict(check: HostKeyCheck, key: bytes, kind: str = "ssh-rsa") -> str:
    """Return the reason to stop; empty if the key is accepted."""
    shown = SimpleNamespace(asbytes=lambda: key, get_name=lambda: kind, fingerprint=fingerprint(key))
    try:
        check.missing_host_key(cast(SSHClient, None), "web", cast(Any, shown))
    except Unreachable as reason:
        return str(reason)
    return ""


def test_a_known_key(tmp_path: Path) -> None:
    """Any line may have it; revoked ones never count as known."""
    path = kept(tmp_path, f"web ssh-ed25519 {OTHER}", f"web ssh-rsa {KEY}", f"@revoked web ssh-dss {THIRD}")
    assert verdict(check_of(path), b"key one") == verdict(check_of(path), b"key two") == ""
    assert check_of(path).kinds() == {"ssh-ed25519", "ssh-rsa"}


def test_a_revoked_key(tmp_path: Path) -> None:
    """Even if another line has it, and even where new keys are accepted."""
    path = kept(tmp_path, f"web ssh-rsa {KEY}", f"@revoked web ssh-rsa {KEY}")
    reason = verdict(check_of(path, accept_new=True), b"key one")
    assert reason == f"its host key is marked as revoked in {path} line 1"
    assert path.read_text().count("\n") == 2


def test_a_changed_key(tmp_path: Path) -> None:
    """Never accepted; the line of the same kind is shown, else the first, and the command that forgets it."""
    path = kept(tmp_path, f"web ssh-ed25519 {OTHER}", f"web ssh-rsa {KEY}")
    for kind, line, shown in (("ssh-rsa", 2, b"key one"), ("ssh-ed25519", 1, b"key two"), ("ecdsa", 1, b"key two")):
        reason = verdict(check_of(path, accept_new=True), b"evil", kind)
        assert reason.startswith(f"its host key has CHANGED: {path} line {line} has ")
        assert fingerprint(shown) in reason and fingerprint(b"evil") in reason
        assert f"`ssh-keygen -f {path} -R web`" in reason
    assert path.read_text().count("\n") == 2


def test_an_unknown_key(tmp_path: Path) -> None:
    """It is refused with its fingerprint, or added to the first file; a revoked line does not make a host known."""
    path, system = kept(tmp_path, f"@revoked web ssh-rsa {OTHER}"), tmp_path / "system"
    reason = verdict(check_of(path, system), b"key one")
    assert reason.startswith(f"unknown host key: web is not in {path}; it shows ")
    assert fingerprint(b"key one") in reason and "`ssh web`" in reason
    check = check_of(path, system, accept_new=True)
    assert verdict(check, b"key one") == "" == verdict(check, b"key one")
    assert path.read_text().splitlines()[1:] == [f"web ssh-rsa {KEY}"] and not system.exists()
    assert verdict(check, b"evil").startswith("its host key has CHANGED")


def test_a_new_key_that_cannot_be_added(tmp_path: Path) -> None:
    """The host is not trusted then."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "known_hosts"
    reason = verdict(check_of(path, accept_new=True), b"key one")
    assert reason.startswith(f"its host key is new, and cannot be added to {path}: ")


def test_the_files_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod file's own replaces all; else those of ssh_config, the user's before the system's."""
    monkeypatch.setenv("HOME", "/home/ann")
    assert known_hosts_files(Path("~/keys"), {"userknownhostsfile": "/a"}) == (Path("/home/ann/keys"),)
    assert known_hosts_files(None, {}) == (
        Path("/home/ann/.ssh/known_hosts"),
        Path("/home/ann/.ssh/known_hosts2"),
        Path("/etc/ssh/ssh_known_hosts"),
        Path("/etc/ssh/ssh_known_hosts2"),
    )
    options = {"userknownhostsfile": '"~/a" /b', "globalknownhostsfile": "/c"}
    assert known_hosts_files(None, options) == (Path("/home/ann/a"), Path("/b"), Path("/c"))

"""Host keys, users and keys: who is let in, who is refused, and what is said about it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podrun.launcher.pod.fan_out import fan_out
from podrun.launcher.transport.ssh import known_hosts as ssh_known_hosts

from ..hosts import USER, Hosts, make_key, wait_until
from .conftest import Client, MakeHosts, run


def known_hosts(client: Client, *names: str, key_of: str | None = None) -> Path:
    """A known_hosts file with some of the hosts in it, or all of them with the key of one."""
    path = client.home / "known"
    lines = [f"{client.hosts.address(n)} {client.hosts.host_key(key_of or n)}\n" for n in names]
    path.write_text("# a comment\n" + "".join(lines))
    return path


def fingerprint(client: Client, name: str) -> str:
    key = client.hosts.folder / name / "host_key.pub"
    return subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout.split()[1]


def assert_works(client: Client, name: str = "h0", **ssh: object) -> None:
    assert run(client.transport(**ssh).open(client.host(name), ["hostname"])) == (f"{name}\n".encode(), 0)


def test_an_unknown_host_key_is_refused_with_its_fingerprint_and_a_remedy(client: Client) -> None:
    known = known_hosts(client, "h1")
    before = known.read_text()
    reason = client.why_not("h0", known_hosts=known)
    assert "unknown host key" in reason
    assert fingerprint(client, "h0") in reason
    assert f"ssh -o UserKnownHostsFile={known} root@{client.hosts.address('h0')}" in reason
    assert "host_keys: accept-new" in reason
    assert known.read_text() == before


def test_no_known_hosts_at_all(client: Client) -> None:
    assert "unknown host key" in client.why_not("h0", known_hosts=client.home / "nowhere")
    assert "unknown host key" in client.why_not("h0", known_hosts=None)


def test_a_changed_host_key_is_refused_and_the_command_in_the_message_mends_it(client: Client) -> None:
    known = known_hosts(client, "h1", "h0", key_of="h2")
    reason = client.why_not("h0", known_hosts=known)
    assert f"{known} line 3" in reason
    assert re.search(f"has ssh-ed25519 {re.escape(fingerprint(client, 'h2'))}", reason)
    assert re.search(f"shows ssh-ed25519 {re.escape(fingerprint(client, 'h0'))}", reason)
    command = re.search(r"`(ssh-keygen .*?)`", reason)
    assert command
    subprocess.run(shlex.split(command[1]), check=True, capture_output=True)
    assert "unknown host key" in client.why_not("h0", known_hosts=known)
    assert "CHANGED" in client.why_not("h1", known_hosts=known)


def test_accept_new_writes_each_key_once_and_refuses_a_changed_one(client: Client) -> None:
    known = known_hosts(client, "h1", key_of="h2")
    before = known.read_text().removesuffix("\n")
    known.write_text(before)  # a last line without its end
    new = [name for name in client.hosts.names if name != "h1"]
    transport = client.transport(known_hosts=known, host_keys="accept-new")
    answers = fan_out(lambda name: run(transport.open(client.host(name), ["hostname"])), new)
    assert answers == [(f"{name}\n".encode(), 0) for name in new]
    lines = known.read_text().splitlines()
    assert "\n".join(lines[:2]) == before
    assert sorted(lines[2:]) == [f"{client.hosts.address(n)} {client.hosts.host_key(n)}" for n in new]
    assert "CHANGED" in client.why_not("h1", known_hosts=known, host_keys="accept-new")
    assert_works(client, "h0", known_hosts=known, host_keys="accept-new")
    assert_works(client, "h0", known_hosts=known)
    assert known.read_text().splitlines() == lines


def test_accept_new_makes_the_file_and_ssh_can_read_it(client: Client) -> None:
    assert_works(client, known_hosts=None, host_keys="accept-new")
    known = client.home / ".ssh" / "known_hosts"
    assert known.stat().st_mode & 0o777 == 0o600
    ssh = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={known}", "-i", client.hosts.key]
    done = subprocess.run([*ssh, f"root@{client.hosts.address('h0')}", "hostname"], capture_output=True, text=True)
    assert done.stdout == "h0\n"


def test_accept_new_into_a_file_that_cannot_be_written(client: Client) -> None:
    reason = client.why_not("h0", known_hosts=Path("/proc/known_hosts"), host_keys="accept-new")
    assert "cannot be added to /proc/known_hosts" in reason


def test_hashed_names(client: Client) -> None:
    known = known_hosts(client, "h0", "h1", key_of="h0")
    subprocess.run(["ssh-keygen", "-H", "-f", known], check=True, capture_output=True)
    assert client.hosts.address("h0") not in known.read_text()
    assert_works(client, "h0", known_hosts=known)
    assert "CHANGED" in client.why_not("h1", known_hosts=known)
    assert "unknown" in client.why_not("h2", known_hosts=known)


def test_patterns_and_revoked_keys(client: Client) -> None:
    known = client.home / "known"
    address = client.hosts.address("h1")
    known.write_text(f"10.77.0.*,!{address} {client.hosts.host_key('h0')}\n")
    assert_works(client, "h0", known_hosts=known)
    assert "unknown" in client.why_not("h1", known_hosts=known)
    known.write_text(f"10.77.* {client.hosts.host_key('h0')}\n@revoked * {client.hosts.host_key('h0')}\n")
    assert "revoked" in client.why_not("h0", known_hosts=known)


def test_another_port_has_keys_of_its_own(make_hosts: MakeHosts, make_client: Callable[[Hosts], Client]) -> None:
    client = make_client(make_hosts(1, {"Port": "2222"}))
    known = known_hosts(client, "h0")
    reason = client.why_not(port=2222, known_hosts=known)
    assert "unknown" in reason
    assert "ssh -o" in reason
    assert "-p 2222" in reason
    known.write_text(f"[{client.hosts.address('h0')}]:2222 {client.hosts.host_key('h0')}\n")
    assert_works(client, port=2222, known_hosts=known)
    known.unlink()
    assert_works(client, port=2222, known_hosts=known, host_keys="accept-new")
    assert known.read_text().startswith(f"[{client.hosts.address('h0')}]:2222 ssh-ed25519 ")


def test_a_host_may_have_more_keys_than_the_known_one(client: Client) -> None:
    """Only the RSA key is known: it is asked for, although both sides prefer another kind."""
    rsa = client.home / "rsa"
    make_key(rsa, kind="rsa")
    client.hosts.restart("h3", {"HostKey": str(rsa)})
    known = client.home / "known"
    known.write_text(f"{client.hosts.address('h3')} {rsa.with_suffix('.pub').read_text()}")
    assert_works(client, "h3", known_hosts=known)


def test_an_old_key_may_stay_beside_the_new_one(client: Client) -> None:
    known = known_hosts(client, "h0", key_of="h1")
    known.write_text(known.read_text() + f"{client.hosts.address('h0')} {client.hosts.host_key('h0')}\n")
    assert_works(client, "h0", known_hosts=known)


def test_known_hosts_is_parsed_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = ssh_known_hosts._parse
    monkeypatch.setattr(ssh_known_hosts, "_parse", lambda path: parsed.append(path) or parse(path))
    transport = client.transport()
    for name in client.hosts.names:
        run(transport.open(client.host(name), ["true"]))
    assert parsed == [client.hosts.known_hosts]


def test_a_user_who_is_not_let_in(client: Client) -> None:
    reason = client.why_not(user="nobody-here")
    assert f"refused the login of nobody-here; keys tried: {client.hosts.key}" in reason
    assert "authorized_keys" in reason


def test_a_key_that_is_not_let_in(client: Client) -> None:
    make_key(client.home / "other")
    reason = client.why_not(key=client.home / "other")
    assert f"refused the login of root; keys tried: {client.home / 'other'}" in reason


def test_no_key_at_all(client: Client) -> None:
    assert "there is no key to try" in client.why_not(key=None)


def test_too_many_keys(make_hosts: MakeHosts, make_client: Callable[[Hosts], Client]) -> None:
    client = make_client(make_hosts(1, {"MaxAuthTries": "2"}))
    names = [client.home / f"key{n}" for n in range(4)]
    for name in names:
        make_key(name)
    config = client.home / "config"
    config.write_text("".join(f"IdentityFile {name}\n" for name in names))
    assert "key1, after which it closed the connection" in client.why_not(key=None, config=config)


def test_a_server_without_key_logins(make_hosts: MakeHosts, make_client: Callable[[Hosts], Client]) -> None:
    options = {"PubkeyAuthentication": "no", "PermitRootLogin": "yes"}
    client = make_client(make_hosts(1, options))
    assert "accepts no keys, only password" in client.why_not()


def test_key_files_that_are_of_no_use(client: Client) -> None:
    key = client.home / "key"
    assert "does not exist" in client.why_not(key=key)
    key.write_text("no key\n")
    assert "is not a private key" in client.why_not(key=key)
    assert "cannot be read: Is a directory" in client.why_not(key=client.home)
    make_key(client.home / "locked", "a passphrase")
    reason = client.why_not(key=client.home / "locked")
    assert (
        f"has a passphrase, and podrun asks for none; give it to ssh-agent: ssh-add {client.home / 'locked'}" in reason
    )


def test_default_keys(client: Client) -> None:
    default = client.home / ".ssh" / "id_ed25519"
    default.write_bytes(client.hosts.key.read_bytes())
    assert_works(client, key=None)
    default.unlink()
    make_key(default, "a passphrase")
    assert "~/.ssh/id_ed25519 (not tried: has a passphrase" in client.why_not(key=None)


@pytest.fixture
def agent(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A running ssh-agent without keys; its socket is in SSH_AUTH_SOCK."""
    socket = client.hosts.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists, "ssh-agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        yield socket
    finally:
        process.kill()
        process.wait(5)
        socket.unlink(missing_ok=True)


@pytest.mark.usefixtures("agent")
def test_a_key_of_the_agent(client: Client) -> None:
    subprocess.run(["ssh-add", "-q", client.hosts.key], check=True)
    assert_works(client, key=None)
    assert_works(client, "h1", key=None, user=USER)
    config = client.home / "config"
    config.write_text("IdentitiesOnly yes\n")
    assert "there is no key to try" in client.why_not(key=None, config=config)


@pytest.mark.usefixtures("agent")
def test_a_key_with_a_passphrase_that_the_agent_has(client: Client) -> None:
    """The agent holds the key; the file in the pod file only says which."""
    make_key(client.home / "others")
    subprocess.run(["ssh-add", "-q", client.home / "others", client.hosts.key], check=True)
    locked = client.home / "locked"
    locked.write_bytes(client.hosts.key.read_bytes())
    locked.with_name("locked.pub").write_text(client.hosts.key.with_suffix(".pub").read_text())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "a passphrase", "-f", locked], check=True)
    assert_works(client, key=locked)

"""The user's ssh_config, and hosts behind other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.fan_out import fan_out
from podrun.launcher.pod.pod import Host
from podrun.launcher.transport.ssh import link as ssh_link
from podrun.runtime.contract import UserError

from ..hosts import USER, make_key
from .conftest import Client, run
from .processes import sessions

PLAIN: dict[str, Any] = {"user": None, "key": None, "known_hosts": None}
"""All that the fixture would set is left to the ssh_config."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "_PAUSES", (0.1,))


def config(client: Client, text: str) -> Path:
    """The user's ~/.ssh/config; {h0}, {key} and {known} stand for what they are called here."""
    values = {name: client.hosts.address(name) for name in client.hosts.names}
    path = client.home / ".ssh" / "config"
    path.write_text(text.format(key=client.hosts.key, known=client.hosts.known_hosts, **values))
    return path


def hostname(client: Client, address: str, **ssh: Any) -> str:
    channel = client.transport(**ssh).open(Host("there", address), ["sh", "-c", "hostname; id -un"])
    return run(channel)[0].decode().replace("\n", " ").strip()


def why_not(client: Client, address: str, **ssh: Any) -> str:
    with pytest.raises(HostError) as caught:
        client.transport(**ssh).open(Host("there", address), ["true"])
    return caught.value.reason


def test_an_alias_with_everything(client: Client) -> None:
    config(
        client,
        f"Host tpu-0\n HostName {{h1}}\n User {USER}\n Port 22\n IdentityFile {{key}}\n UserKnownHostsFile {{known}}\n"
        "Host *\n IdentityFile ~/.ssh/missing\n",
    )
    assert hostname(client, "tpu-0", **PLAIN) == f"h1 {USER}"


def test_keys_of_one_host_are_not_offered_to_the_next(client: Client) -> None:
    make_key(client.home / "other")
    config(
        client,
        "Host a\n HostName {h0}\n IdentityFile {key}\nHost b\n HostName {h1}\n"
        f" IdentityFile {client.home / 'other'}\nHost *\n User root\n UserKnownHostsFile {{known}}\n",
    )
    transport = client.transport(**PLAIN)
    assert run(transport.open(Host("a", "a"), ["hostname"])) == (b"h0\n", 0)
    with pytest.raises(HostError) as caught:
        transport.open(Host("b", "b"), ["hostname"])
    assert f"keys tried: {client.home / 'other'}\n" in caught.value.reason


def test_the_pod_file_goes_before_the_ssh_config(client: Client) -> None:
    config(client, f"Host *\n User {USER}\n Port 2222\n IdentityFile ~/nothing\n UserKnownHostsFile /dev/null\n")
    h0 = client.hosts.address("h0")
    assert hostname(client, h0, port=22) == "h0 root"
    assert hostname(client, h0, port=22, user=None) == f"h0 {USER}"
    assert "port 2222" in why_not(client, h0)
    assert "unknown host key" in why_not(client, h0, port=22, known_hosts=None)
    assert hostname(client, f"{USER}@{h0}:22") == f"h0 {USER}"


def test_another_ssh_config(client: Client) -> None:
    config(client, "Host a\n HostName {h0}\n")
    other = client.home / "other"
    other.write_text(f"Host a\n HostName {client.hosts.address('h1')}\n")
    assert hostname(client, "a", config=other) == "h1 root"
    with pytest.raises(UserError, match="there is no file"):
        client.transport(config=client.home / "missing")


def test_a_mistake_in_the_ssh_config(client: Client) -> None:
    path = config(client, "Match nonsense\n")
    with pytest.raises(UserError, match=str(path)):
        client.transport()


def test_a_value_that_makes_no_sense(client: Client) -> None:
    config(client, "Host a\n Port ssh\n")
    assert why_not(client, "a").startswith("ssh_config for a: ")
    assert hostname(client, client.hosts.address("h0")) == "h0 root"


def test_an_included_file(client: Client) -> None:
    folder = client.home / ".ssh" / "config.d"
    folder.mkdir()
    (folder / "pod").write_text(f"Host a\n  HostName {client.hosts.address('h2')}\n")
    config(client, "Include config.d/*\nInclude ~/.ssh/nothing-there\nUser nobody-here\n")
    assert hostname(client, "a") == "h2 root"
    assert "login of nobody-here" in why_not(client, "a", user=None)


def test_a_host_key_alias(client: Client) -> None:
    """As `gcloud compute config-ssh` writes it: the addresses of machines change, the names of their keys do not."""
    known = client.home / "known"
    known.write_text(f"compute.123 {client.hosts.host_key('h0')}\n")
    config(
        client,
        "Host good\n HostName {h0}\n HostKeyAlias=compute.123\nHost bad\n HostName {h1}\n HostKeyAlias=compute.123\n"
        f"Host new\n HostName {{h2}}\n HostKeyAlias=compute.456\nHost *\n UserKnownHostsFile={known}\n CheckHostIP=no\n",
    )
    assert hostname(client, "good", known_hosts=None) == "h0 root"
    assert "compute.123 shows" in why_not(client, "bad", known_hosts=None)
    assert hostname(client, "new", known_hosts=None, host_keys="accept-new") == "h2 root"
    assert known.read_text().splitlines()[1] == f"compute.456 {client.hosts.host_key('h2')}"


def test_a_jump_host(client: Client) -> None:
    """h1 is reached from h0 only."""
    client.hosts.block("h1", 22, source="10.77.0.1", how="REJECT")
    h0, h1 = client.hosts.address("h0"), client.hosts.address("h1")
    assert "refused" in why_not(client, h1)
    assert hostname(client, h1, jump=f"root@{h0}:22") == "h1 root"
    config(client, "Host {h1}\n ProxyJump root@{h0}\n")
    assert hostname(client, h1) == "h1 root"


def test_several_jump_hosts_are_passed_in_their_order(client: Client) -> None:
    for name, source in (("h1", "10.77.0.1"), ("h2", "10.77.0.1"), ("h2", client.hosts.address("h0"))):
        client.hosts.block(name, 22, source=source, how="REJECT")
    h0, h1, h2 = (client.hosts.address(name) for name in ("h0", "h1", "h2"))
    assert hostname(client, h2, jump=f"root@{h0},root@{h1}") == "h2 root"
    config(client, "Host last\n HostName {h2}\n ProxyJump root@{h0},root@{h1}\n")
    assert hostname(client, "last") == "h2 root"
    config(client, "Host {h1}\n User root\n ProxyJump root@{h0}\nHost last\n HostName {h2}\n ProxyJump {h1}\n")
    assert hostname(client, "last") == "h2 root"


def test_a_jump_host_for_every_host_is_not_its_own(client: Client) -> None:
    config(client, "Host *\n User root\n ProxyJump {h0}\n")
    assert hostname(client, client.hosts.address("h1")) == "h1 root"
    assert hostname(client, client.hosts.address("h0")) == "h0 root"
    assert sessions(client.hosts, "h0") == 2
    config(client, "Host {h1}\n ProxyJump none\nHost *\n User root\n ProxyJump 10.77.0.99\n")
    assert hostname(client, client.hosts.address("h1")) == "h1 root"


def test_hosts_behind_a_gateway_share_its_connection(client: Client) -> None:
    transport = client.transport(jump=f"root@{client.hosts.address('h0')}")
    hosts = [client.host(name) for name in ("h1", "h2", "h3")]
    channels = fan_out(lambda host: transport.open(host, ["cat"]), hosts)
    assert not [c for c in channels if isinstance(c, Exception)]
    assert sessions(client.hosts, "h0") == 1
    client.hosts.kill_sessions("h0")
    assert [channel.receive() for channel in channels] == [b""] * 3
    assert [run(transport.open(host, ["hostname"]))[0] for host in hosts] == [b"h1\n", b"h2\n", b"h3\n"]


def test_host_keys_are_checked_on_both(client: Client) -> None:
    h0, h1 = client.hosts.address("h0"), client.hosts.address("h1")
    known = client.home / "known"
    ways = {"known_hosts": known, "jump": f"root@{h0}"}
    known.write_text(f"{h0} {client.hosts.host_key('h0')}\n")
    reason = why_not(client, h1, **ways)
    assert "gateway" not in reason
    assert f"{h1} is not in {known}" in reason
    assert f"-J root@{h0}" in reason
    known.write_text(f"{h1} {client.hosts.host_key('h1')}\n")
    reason = why_not(client, h1, **ways)
    assert reason.startswith(f"gateway {h0} port 22: unknown host key")
    assert "-J" not in reason
    known.write_text(f"{h0} {client.hosts.host_key('h1')}\n{h1} {client.hosts.host_key('h1')}\n")
    assert f"gateway {h0} port 22: its host key has CHANGED" in why_not(client, h1, **ways)
    known.write_text("")
    assert hostname(client, h1, **ways, host_keys="accept-new") == "h1 root"
    assert len(known.read_text().splitlines()) == 2


def test_a_gateway_that_fails_is_named(client: Client) -> None:
    h0, h1 = client.hosts.address("h0"), client.hosts.address("h1")
    assert f"gateway {h0} port 2222: connection refused" in why_not(client, h1, jump=f"{h0}:2222")
    assert f"gateway {h0} port 22: {h0} port 22 refused the login of x" in why_not(client, h1, jump=f"x@{h0}")
    assert "gateway" in why_not(client, h1, jump="no-such-gateway.invalid")
    client.hosts.block("h1", 22, how="REJECT")
    reason = why_not(client, h1, jump=f"root@{h0}")
    assert reason.startswith(f"gateway {h0} port 22 cannot connect to {h1} port 22")


def test_a_gateway_that_fails_is_tried_once_for_all(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "_CONNECT", 2)
    dialled = []
    dial = ssh_link.dial
    monkeypatch.setattr(ssh_link, "dial", lambda *args: dialled.append(args) or dial(*args))
    transport = client.transport(jump=f"root@{client.hosts.address('h0')}")
    client.hosts.block("h0", 22)
    answers = fan_out(lambda name: transport.open(client.host(name), ["true"]), ["h1", "h2", "h3"])
    assert [type(answer) for answer in answers] == [HostError] * 3
    assert len(dialled) == 2  # that is, tried and tried again


def test_a_proxy_command(client: Client) -> None:
    ssh = "ssh -F none -o BatchMode=yes -o UserKnownHostsFile={known} -i {key} -W %h:%p root@{h0}"
    config(client, f"Host a\n HostName {{h1}}\n ProxyCommand {ssh}\nHost b\n HostName {{h1}}\n ProxyCommand false\n")
    assert hostname(client, "a") == "h1 root"
    assert "port 22 (by `false`)" in why_not(client, "b")

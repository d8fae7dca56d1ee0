"""Commands on hosts with real SSH servers, and what becomes of them when the connection does not last."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.fan_out import fan_out
from podrun.launcher.pod.pod import Host
from podrun.launcher.transport.ssh import link as ssh_link

from ..hosts import USER, USER_ID, Hosts, wait_until
from .conftest import Client, MakeHosts, receive_all, run
from .processes import sessions

NASTY = [
    "",
    " two  blanks ",
    "'",
    '"',
    "\\",
    "\\'\\\\",
    "$HOME $(id) `id`",
    "a;b&c|d>e<f",
    "*?[a]{b,c}",
    "#x",
    "!!",
    "line\nline",
    "\ttab",
    "--",
    "-n",
    "~",
    "x~/y",
    "A=b",
    "%s%n",
    "Ünïcode ✓",
    "(x) {y}",
]
ECHO_ARGS = "import json,sys; print(json.dumps(sys.argv[1:]))"


def test_a_command_runs_on_the_host_in_the_login_directory(client: Client) -> None:
    transport = client.transport()
    for name in client.hosts.names:
        output, code = run(transport.open(client.host(name), ["sh", "-c", "hostname; pwd; id -u"]))
        assert output.decode().split() == [name, str(client.hosts.folder / "home" / "root"), "0"]
        assert code == 0


def test_it_runs_as_another_user(client: Client) -> None:
    output, _ = run(client.transport(user=USER).open(client.host("h0"), ["sh", "-c", "id -u; touch here"]))
    assert output.decode().strip() == str(USER_ID)
    assert (client.hosts.home_of("h0", USER) / "here").exists()


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish"])
def test_arguments_arrive_unchanged_through_the_login_shell(client: Client, shell: str) -> None:
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"needs {shell}")
    passwd = client.hosts.folder / "etc_passwd"
    before = passwd.read_text()
    passwd.write_text(before.replace("/bin/bash", path))  # the same file as /etc/passwd there
    try:
        argv = ["python3", "-c", ECHO_ARGS, *NASTY, "~/a b", "~/"]
        output, code = run(client.transport(user=USER).open(client.host("h0"), argv))
    finally:
        passwd.write_text(before)
    home = str(client.hosts.folder / "home" / USER)
    assert (json.loads(output), code) == ([*NASTY, f"{home}/a b", f"{home}/"], 0)


def test_bytes_that_are_no_text_arrive(client: Client) -> None:
    output, _ = run(client.transport().open(client.host("h0"), ["printf", "%s", "\udcff"]))
    assert output == b"\xff"


def test_a_megabyte_each_way(client: Client) -> None:
    data = bytes(range(256)) * 4096
    channel = client.transport().open(client.host("h0"), ["cat"])
    sender = threading.Thread(target=lambda: (channel.send(data), channel.finish()))
    sender.start()
    assert receive_all(channel) == data
    assert channel.exit_code() == 0
    sender.join(60)


def test_bytes_come_as_soon_as_there_are_any(client: Client) -> None:
    channel = client.transport().open(client.host("h0"), ["cat"])
    for word in (b"one", b"two"):
        channel.send(word)
        assert channel.receive() == word


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("no-such-command-at-all", 127), ("kill -9 $$", 255)]
)
def test_exit_codes(client: Client, script: str, code: int) -> None:
    assert run(client.transport().open(client.host("h0"), ["sh", "-c", script])) == (b"", code)


def test_a_missing_command_says_so(client: Client) -> None:
    channel = client.transport().open(client.host("h0"), ["no-such-command-at-all"])
    assert run(channel) == (b"", 127)
    assert "no-such-command-at-all" in channel.stderr_tail()


def test_stderr_never_makes_the_command_wait_and_its_end_is_kept(client: Client) -> None:
    script = "import sys\nfor n in range(100000): print(f'{n:049d}', file=sys.stderr)\nprint('done')"
    channel = client.transport().open(client.host("h0"), ["python3", "-c", script])
    assert run(channel) == (b"done\n", 0)
    stderr_tail = channel.stderr_tail()
    assert stderr_tail.endswith(f"{99999:049d}")
    assert 65000 < len(stderr_tail) <= 65536


def test_channels_share_one_connection(client: Client) -> None:
    transport = client.transport()
    channels = fan_out(lambda _: transport.open(client.host("h0"), ["cat"]), range(9))
    for n, channel in enumerate(channels):
        assert not isinstance(channel, Exception)
        assert run(channel, b"%d" % n) == (b"%d" % n, 0)
    assert sessions(client.hosts, "h0") == 1


def test_one_session_too_many(make_hosts: MakeHosts, make_client: Callable[[Hosts], Client]) -> None:
    client = make_client(make_hosts(1, {"MaxSessions": "1"}))
    transport = client.transport()
    first = transport.open(client.host("h0"), ["cat"])
    with pytest.raises(HostError, match=r"refused one more session .*MaxSessions"):
        transport.open(client.host("h0"), ["cat"])
    assert run(first, b"still there") == (b"still there", 0)


def test_a_closed_channel_ends_the_command(client: Client) -> None:
    channel = client.transport().open(client.host("h0"), ["sh", "-c", "cat; echo ended > ended"])
    channel.close()
    channel.close()
    ended = client.hosts.home_of("h0") / "ended"
    wait_until(ended.exists, "the command never ended")
    assert channel.receive() == b""
    with pytest.raises(OSError, match="closed"):
        channel.send(b"x")


def test_nothing_is_sent_after_the_end(client: Client) -> None:
    channel = client.transport().open(client.host("h0"), ["sleep", "30"])
    channel.finish()
    channel.finish()
    with pytest.raises(OSError, match="closed"):
        channel.send(b"x")


def test_a_closed_transport_leaves_no_connection(client: Client) -> None:
    transport = client.transport()
    channels = [transport.open(client.host(name), ["cat"]) for name in client.hosts.names]
    transport.close()
    transport.close()
    assert [channel.receive() for channel in channels] == [b""] * 4
    wait_until(lambda: not any(sessions(client.hosts, name) for name in client.hosts.names), "sessions are left")
    with pytest.raises(HostError, match="closed"):
        transport.open(client.host("h0"), ["true"])


def test_a_broken_connection_ends_the_channel_and_the_next_one_works(client: Client) -> None:
    transport = client.transport()
    channel = transport.open(client.host("h0"), ["sh", "-c", "echo ready; cat"])
    assert channel.receive() == b"ready\n"
    client.hosts.kill_sessions("h0")
    assert channel.receive() == b""
    assert channel.exit_code() is None
    with pytest.raises(OSError):  # noqa: PT011  (whichever the system says)
        channel.send(b"x")
    assert run(transport.open(client.host("h0"), ["echo", "again"])) == (b"again\n", 0)


def test_a_sender_that_waits_is_released_when_the_connection_breaks(client: Client) -> None:
    channel = client.transport().open(client.host("h0"), ["sleep", "30"])
    errors: list[OSError] = []

    def send() -> None:
        try:
            channel.send(b"x" * 10_000_000)
        except OSError as error:
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(0.5)
    assert sender.is_alive()  # nobody reads
    client.hosts.kill_sessions("h0")
    sender.join(60)
    assert errors


def test_a_host_that_loses_its_power(client: Client) -> None:
    transport = client.transport()
    channel = transport.open(client.host("h1"), ["sleep", "100"])
    client.hosts.kill("h1")
    assert channel.receive() == b""
    assert channel.exit_code() is None
    client.hosts.start("h1")
    assert run(transport.open(client.host("h1"), ["hostname"])) == (b"h1\n", 0)


@pytest.mark.long
@pytest.mark.timeout(90)  # the system itself would wait for a quarter of an hour
def test_a_cable_that_is_pulled_is_noticed(client: Client) -> None:
    channel = client.transport().open(client.host("h2"), ["sleep", "1000"])
    client.hosts.cut("h2")
    assert channel.receive() == b""
    assert channel.exit_code() is None


def test_a_short_interruption_breaks_nothing(client: Client) -> None:
    channel = client.transport().open(client.host("h3"), ["cat"])
    client.hosts.cut("h3")
    channel.send(b"late")
    time.sleep(2)
    client.hosts.restore()
    assert channel.receive() == b"late"


def test_a_server_that_is_not_up_yet_is_waited_for(client: Client) -> None:
    client.hosts.kill("h0")
    later = threading.Timer(1.0, client.hosts.start, ["h0"])
    later.start()
    assert run(client.transport().open(client.host("h0"), ["hostname"])) == (b"h0\n", 0)
    later.join()


def test_the_wait_has_an_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "_PAUSES", (0.1, 0.1))
    attempts = []
    dial = ssh_link.dial
    monkeypatch.setattr(ssh_link, "dial", lambda *args: attempts.append(args) or dial(*args))
    client.hosts.block("h0", 22, how="REJECT")
    assert "connection refused" in client.why_not("h0")
    assert len(attempts) == 3


def test_all_hosts_at_once(client: Client) -> None:
    transport = client.transport()
    hosts = [client.host(name) for name in client.hosts.names]
    client.hosts.block("h2", 22, how="REJECT")

    def name(host: Host) -> str:
        return run(transport.open(host, ["hostname"]))[0].decode().strip()

    answers = fan_out(name, hosts)
    assert isinstance(answers[2], HostError)
    assert [answers[0], answers[1], answers[3]] == ["h0", "h1", "h3"]

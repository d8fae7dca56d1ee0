"""The agent arrives on a host: put there once, whole or not at all, and started behind whatever a login script prints."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from podrun.launcher.agent.base.compiled import with_compiled
from podrun.launcher.agent.base.private import ELSEWHERE
from podrun.launcher.agent.main import MARK
from podrun.launcher.plan import agent_file as agent_file_module
from podrun.launcher.plan.agent_file import agent_command, agent_file
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.remote import open_agent as open_agent_module
from podrun.launcher.remote.open_agent import open_agent
from podrun.launcher.transport.base import Channel
from podrun.launcher.transport.local import LocalTransport

from ..powerless import POWERLESS
from .agents import HOST, pod_of, say


class Counting(LocalTransport):
    """A host on which every command is started by another; what was started is kept."""

    def __init__(self, pod: Pod, before: Sequence[str] = ()) -> None:
        super().__init__(pod)
        self.before = list(before)
        self.started: list[list[str]] = []

    def open(self, host: Host, argv: Sequence[str]) -> Channel:
        self.started.append(list(argv))
        return super().open(host, [*self.before, *argv])

    @property
    def uploads(self) -> int:
        return sum(agent_file_module._RECEIVE in argv for argv in self.started)


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "agents").glob("*")) if home.is_dir() else []


def sources_in(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}


# --- the file -------------------------------------------------------------------------------------------------------


def clear_caches() -> None:
    for function in (agent_file, agent_file_module.agent_name, agent_file_module._modules):
        function.cache_clear()


def test_the_same_sources_give_the_same_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the time and the files' own times are: a host that has it is not sent it again."""
    sources = Path(agent_file_module.__file__).parents[1] / "agent"
    copy = tmp_path / "agent"
    copy.mkdir()
    for path in sorted(sources.rglob("*.py"), reverse=True):
        copied = copy / path.relative_to(sources)
        copied.parent.mkdir(exist_ok=True)
        copied.write_bytes(path.read_bytes())
        os.utime(copied, (10**9, 10**9))
    (copy / "__pycache__").mkdir()
    (copy / "notes.txt").write_text("not Python")
    first = agent_file()
    monkeypatch.setattr(agent_file_module, "_FOLDER", copy)
    clear_caches()
    try:
        assert agent_file() == first
        (copy / "host" / "lock.py").write_text("# changed")
        clear_caches()
        assert agent_file()[0] != first[0]
    finally:
        clear_caches()
    with zipfile.ZipFile(io.BytesIO(first[1])) as archive:
        names = {f"podrun_agent/{path.relative_to(sources)}" for path in sources.rglob("*.py")}
        assert set(archive.namelist()) == names


# --- on a host ------------------------------------------------------------------------------------------------------


def test_it_is_put_there_once(tmp_path: Path) -> None:
    """The first start finds none; from then on a start is one command."""
    home = tmp_path / "my home"
    pod = pod_of(home)
    transport = Counting(pod)
    assert say(transport, pod) == b"no agent here"
    assert (len(transport.started), transport.uploads) == (3, 1)
    assert files(home) == [agent_file()[0]]
    stored = home / "agents" / agent_file()[0]
    assert sources_in(stored.read_bytes()) == sources_in(agent_file()[1])
    assert (stored.stat().st_mode & 0o777, stored.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert say(transport, pod) == b"no agent here"
    assert (len(transport.started), transport.uploads) == (4, 1)


IMPORT = """
import builtins, sys
compiled_here = []
compiles = builtins.compile
builtins.compile = lambda source, name, *rest, **more: compiled_here.append(name) or compiles(source, name, *rest, **more)
sys.path.insert(0, sys.argv[1])
import podrun_agent.run.serve as serve
print(len(compiled_here), serve.__loader__.get_source(serve.__name__)[:14])
"""


def modules_compiled(stored: Path, data: bytes) -> int:
    stored.write_bytes(data)
    command = [sys.executable, "-I", "-S", "-c", IMPORT, str(stored)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, _, source = done.stdout.partition(" ")
    assert source.strip() == '"""The agent\'s', "a traceback shows the source"
    return int(count)


def test_it_is_compiled_where_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes read the code. Another Python that shares the home compiles the sources instead."""
    name, data = agent_file()
    assert modules_compiled(tmp_path / name, with_compiled(data)) == 0
    assert modules_compiled(tmp_path / name, data) > 5
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", b"\0\0\r\n")
    assert modules_compiled(tmp_path / name, with_compiled(data)) > 5


def test_hosts_that_share_a_home(tmp_path: Path) -> None:
    """They may all put it there at once."""
    pod = pod_of(tmp_path)
    said: list[bytes] = []
    threads = [threading.Thread(target=lambda: said.append(say(LocalTransport(pod), pod))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said == [b"no agent here"] * 4
    assert files(tmp_path) == [agent_file()[0]]


def test_hosts_that_share_a_home_and_count_alike(tmp_path: Path) -> None:
    """Containers give the same pids to the same commands: files that are being written must not be each other's."""
    name, data = agent_file()
    alike = "import os, time; os.getpid = lambda: 7; move = os.rename; "
    alike += "os.rename = lambda *names: (time.sleep(0.5), move(*names)); " + agent_file_module._RECEIVE
    transport = LocalTransport(pod_of(tmp_path))
    channels = [transport.open(HOST, (sys.executable, "-c", alike, f"{tmp_path}/agents/{name}")) for _ in range(3)]
    for channel in channels:
        channel.send(data)
        channel.finish()
    for channel in channels:
        assert channel.receive() == b""
        assert channel.exit_code() == 0, channel.stderr_tail()
        channel.close()
    assert files(tmp_path) == [name]


@pytest.mark.parametrize("part", [0, 1, 1000, -1])
def test_a_connection_that_ends_too_early_leaves_no_file(tmp_path: Path, part: int) -> None:
    """The bytes that arrived are no agent, and are not taken for one later."""
    pod = pod_of(tmp_path)
    name, data = agent_file()
    receive = agent_file_module._RECEIVE
    transport = LocalTransport(pod)
    channel = transport.open(HOST, (sys.executable, "-I", "-S", "-c", receive, f"{tmp_path}/agents/{name}"))
    channel.send(data[:part])
    channel.finish()
    assert channel.receive() == b""
    assert (channel.exit_code(), channel.stderr_tail()) == (1, "not all of it arrived")
    channel.close()
    assert files(tmp_path) == []
    assert say(transport, pod) == b"no agent here"


def test_a_damaged_file_is_not_kept(tmp_path: Path) -> None:
    """One changed byte is as bad as a missing one."""
    pod = pod_of(tmp_path)
    name, data = agent_file()
    receive = agent_file_module._RECEIVE
    channel = LocalTransport(pod).open(HOST, (sys.executable, "-c", receive, f"{tmp_path}/agents/{name}"))
    channel.send(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    channel.finish()
    assert channel.receive() == b""
    assert channel.exit_code() == 1
    channel.close()
    assert files(tmp_path) == []


def test_a_full_disk_leaves_no_part_of_it(tmp_path: Path) -> None:
    """It would fill what is left of the disk."""
    pod = pod_of(tmp_path)
    name, data = agent_file()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
    receive = limit + agent_file_module._RECEIVE
    channel = LocalTransport(pod).open(HOST, (sys.executable, "-c", receive, f"{tmp_path}/agents/{name}"))
    channel.send(data)
    channel.finish()
    assert channel.receive() == b""
    assert (channel.exit_code(), channel.stderr_tail()) == (1, "No space left on device")
    channel.close()
    assert files(tmp_path) == []


def noisy(path: Path, noise: str) -> list[str]:
    script = path / "noisy"
    script.write_text(f'#!/bin/sh\n{noise}\nexec "$@"\n')
    script.chmod(0o755)
    return [str(script)]


def test_what_a_login_script_prints_is_dropped(tmp_path: Path) -> None:
    """Also if it looks nearly like the mark, and arrives in pieces."""
    half = MARK.decode()[:-3]
    noise = f"echo Welcome; printf '{half}'; sleep 0.1; printf '\\n\\377\\000{half}'; seq 1000; printf {half[:4]}"
    pod = pod_of(tmp_path)
    assert say(Counting(pod, noisy(tmp_path, noise)), pod) == b"no agent here"


@pytest.mark.parametrize("cut", [0, 1, 7, len(MARK) - 1])
def test_what_comes_with_the_mark_is_kept(tmp_path: Path, cut: int) -> None:
    """The first frame may be in the same piece as the mark, and as the noise before it; the mark may be in two."""
    script = tmp_path / "agent"
    one, two = MARK[:cut].decode(), MARK[cut:].decode().replace("\n", "\\n")
    wait = "sleep 0.2; " if cut else ""
    script.write_text(f"#!/bin/sh\nprintf 'hi\\n{one}'; {wait}printf '{two}first\\n'; sleep 0.2; echo second; cat\n")
    script.chmod(0o755)
    pod = pod_of(tmp_path)
    channel = open_agent(Counting(pod, [str(script)]), pod, HOST, "run", "r")
    channel.send(b"third\n")
    channel.finish()
    said = b""
    while data := channel.receive():
        said += data
    assert said == b"first\nsecond\nthird\n"
    assert channel.exit_code() == 0
    channel.close()


# --- hosts that cannot ----------------------------------------------------------------------------------------------


def fail(transport: LocalTransport, pod: Pod) -> str:
    with pytest.raises(HostError) as raised:
        open_agent(transport, pod, HOST, "attach", pod.home)
    assert raised.value.host == "h"
    assert "\n" not in raised.value.reason
    return raised.value.reason


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_no_python(tmp_path: Path, shell: str) -> None:
    """Each shell has its own words for it; the remedy is the pod file."""
    pod = pod_of(tmp_path, python="python9.9")
    reason = fail(Counting(pod, [shell, "-c", 'exec "$@"', "sh"]), pod)
    assert reason.startswith("no Python at 'python9.9' (")
    assert reason.endswith("give its absolute path with `python:` in a pod file for --pod")


def test_a_python_that_may_not_be_run(tmp_path: Path) -> None:
    """A file without permission, or of another kind."""
    (tmp_path / "python").write_text("")
    pod = pod_of(tmp_path, python=f"{tmp_path}/python")
    reason = fail(Counting(pod, ["sh", "-c", 'exec "$@"', "sh"]), pod)
    assert reason.startswith(f"this user may not run {tmp_path}/python (")
    assert "Permission denied" in reason


def test_no_python_on_this_machine(tmp_path: Path) -> None:
    """Without a shell in between the transport says so."""
    pod = pod_of(tmp_path, python="python9.9")
    assert fail(LocalTransport(pod), pod) == "cannot start python9.9: No such file or directory"


def test_an_old_python(tmp_path: Path) -> None:
    """The sentence of the agent's first lines is the reason."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'podrun needs Python 3.8 or newer for its agent; this is 3.6.8' >&2; exit 1\n")
    fake.chmod(0o755)
    pod = pod_of(tmp_path, python=str(fake))
    reason = fail(LocalTransport(pod), pod)
    assert (
        reason
        == f"cannot start podrun's agent with {fake}: podrun needs Python 3.8 or newer for its agent; this is 3.6.8"
    )


@pytest.mark.parametrize("kind", ["file", "no permission"])
def test_a_home_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    """The reason, and another home as the remedy."""
    home = tmp_path / "home"
    if kind == "file":
        home.write_text("")
    else:
        home.mkdir(mode=0o500)
    pod = pod_of(home)
    reason = fail(Counting(pod, POWERLESS), pod)
    words = "Not a directory" if kind == "file" else "Permission denied"
    assert reason == f"cannot write to podrun's folder {home}: {words}; {ELSEWHERE}"


def test_a_full_disk(tmp_path: Path) -> None:
    """It is said, and half a file does not stay under the agent's name."""
    pod = pod_of(tmp_path)
    limit = ["sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "sh"]
    reason = fail(Counting(pod, limit), pod)
    assert reason.startswith(f"cannot write to podrun's folder {tmp_path}: ")
    assert reason.endswith(f"; {ELSEWHERE}")
    assert agent_file()[0] not in files(tmp_path)


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        (
            "echo Welcome; echo This account is currently not available.; exit 1",
            "its login shell ended with exit code 1 and did not start podrun's agent: This account is currently not "
            "available.; use another user that may run commands there (`user:` in a pod file for --pod), or fix its login "
            "scripts",
        ),
        (
            "exit 0",
            "its login shell ended with exit code 0 and did not start podrun's agent, without a message; "
            "is there an `exit` in a login script such as ~/.bashrc?",
        ),
        (
            "yes no | head -c 2000000; exec cat",
            "its login scripts print more than 1024 KB, and podrun's agent did not start by then; "
            "they must print nothing where there is no terminal; the end of the output: no",
        ),
        ("echo Your password has expired >&2; exit 1", ": Your password has expired"),
    ],
)
def test_a_login_shell_that_does_not_run_commands(tmp_path: Path, login: str, expected: str) -> None:
    """The shell's own words are told, and which of these cases it is."""
    pod = pod_of(tmp_path)
    reason = fail(Counting(pod, ["sh", "-c", login, "sh"]), pod)
    assert reason.endswith(expected)


def test_a_host_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login script that waits for a key press."""
    monkeypatch.setattr(open_agent_module, "ANSWER_TIMEOUT", 0.5)
    pod = pod_of(tmp_path)
    reason = fail(Counting(pod, ["sh", "-c", "echo Press any key; read key; sleep 1; exit 4", "sh"]), pod)
    assert "exit code 4" in reason


def test_a_host_that_never_stops_talking_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_agent_module, "_NOISE_LIMIT", 5000)
    pod = pod_of(tmp_path)
    assert fail(Counting(pod, ["sh", "-c", "yes", "sh"]), pod)


def test_nothing_secret_is_in_the_command(tmp_path: Path) -> None:
    """Isolated, without site-packages, and the file by its content."""
    pod = pod_of(tmp_path)
    assert agent_command(pod, "run", "r-1") == (
        sys.executable,
        "-I",
        "-S",
        "-c",
        agent_file_module._START,
        f"{tmp_path}/agents/{agent_file()[0]}",
        "run",
        "r-1",
    )

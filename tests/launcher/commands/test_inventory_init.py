"""`podrun init`: by questions in a terminal, and by options."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest

if TYPE_CHECKING:
    from tests.conftest import Podrun, Sandbox

WAIT = 60  # seconds


class Dialogue:
    """`podrun init` in a terminal."""

    def __init__(self, sandbox: Sandbox, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [*sandbox.command, "init", *args],
            cwd=sandbox.path,
            env={**sandbox.env, "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""
        self._seen = 0

    def until(self, question: str) -> Dialogue:
        """Reads on until the question is asked."""
        while question not in self.text[self._seen :]:
            self.text += os.read(self._ours, 4096).decode()
        self._seen = self.text.index(question, self._seen) + len(question)
        return self

    def say(self, answer: str) -> Dialogue:
        os.write(self._ours, f"{answer}\n".encode())
        return self

    def interrupt(self) -> Dialogue:
        """Presses Ctrl-C as people do: again, if it came just before Python waits for input, where it goes unseen."""
        for _ in range(WAIT // 5):
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(5)
                break
            except subprocess.TimeoutExpired:
                pass
        return self

    def end(self) -> int:
        """Reads the rest, and returns the exit code."""
        try:
            while more := os.read(self._ours, 4096):
                self.text += more.decode()
        except OSError:  # a terminal whose other end is closed
            pass
        os.close(self._ours)
        return self._process.wait(WAIT)


def test_questions(sandbox: Sandbox) -> None:
    """A wrong answer is explained at once, and the question comes again; the file that is written can be read."""
    dialogue = Dialogue(sandbox)
    dialogue.until("2 machines with 8 GPUs each").until("Machines:").say("v3-33").until("nearest: v3-8, v3-32")
    dialogue.until("Machines:").say("v3-32").until("Where are they?").until("a range: tpu-0, tpu-1, tpu-2, tpu-3")
    dialogue.until("Hosts:").say("tpu-[0-2]").until("3 hosts, but v3-32 has 4").until("Hosts:").say("tpu-[0-3]")
    dialogue.until("user name").say("me").until("private key").say("no").until("No such file").until("private key").say(
        ""
    )
    dialogue.until("Folder").say("/mnt/runs").until("A Python 3.11+").say("")
    assert dialogue.end() == 0, dialogue.text
    assert dialogue.text.splitlines()[-1].strip() == "podrun --pod pod.yaml train.yaml"
    assert "podrun check --pod pod.yaml" in dialogue.text
    pod = find_pod(PodRequest(pod=sandbox.path / "pod.yaml"))
    assert [host.name for host in pod.hosts] == ["tpu-0", "tpu-1", "tpu-2", "tpu-3"]
    assert (pod.slice.name, pod.ssh.user, pod.workdir, pod.python) == ("v3-32", "me", "/mnt/runs", None)


def test_ctrl_c_leaves_no_file(sandbox: Sandbox) -> None:
    before = sorted(sandbox.path.iterdir())
    dialogue = Dialogue(sandbox, "--slice", "v3-32")
    assert dialogue.until("Hosts:").interrupt().end() == 130
    assert "Traceback" not in dialogue.text
    assert sorted(sandbox.path.iterdir()) == before


@pytest.mark.parametrize(
    ("args", "hosts", "transport"),
    [
        (("-s", "gpu-2x8", "--hosts", "n[01-02]"), ["n01", "n02"], "ssh"),
        (("-s", "gpu-2x8", "--hosts", "hostfile", "--key", "id", "--python", "python3"), ["a", "b"], "ssh"),
        (("-s", "cpu-1x2", "--hosts", "simulate"), ["host-0"], "local"),
        (("-s", "cpu-1x2", "--hosts", "local"), ["local"], "this_machine"),
        (("-s", "gpu-1x2", "--hosts", "local", "--workdir", "/a: #b", "--python", "/py"), ["local"], "this_machine"),
        (("-s", "cpu-1x2", "--hosts", "fe80::1", "--user", "yes", "--workdir", "/a: #b"), ["fe80::1"], "ssh"),
    ],
)
def test_options(sandbox: Sandbox, in_process: Podrun, args: tuple[str, ...], hosts: list[str], transport: str) -> None:
    """Nothing is asked; what YAML would read as something else is in quotes; a second call does not write over it."""
    (sandbox.path / "hostfile").write_text("a slots=8\nb slots=8\n")
    (sandbox.path / "id").touch()
    done = in_process("init", "my.yaml", "--yes", *args)
    assert (done.returncode, done.stderr) == (0, "")
    pod = find_pod(PodRequest(pod=sandbox.path / "my.yaml"))
    assert ([host.name for host in pod.hosts], pod.transport) == (hosts, transport)
    given = dict(zip(args[::2], args[1::2], strict=True))
    assert (pod.ssh.user, pod.workdir, pod.python) == (
        given.get("--user"),
        given.get("--workdir"),
        given.get("--python", sys.executable if transport != "ssh" else None),
    )
    assert pod.ssh.key == (sandbox.path / "id" if "--key" in given else None)
    again = in_process("init", "my.yaml", "--yes", *args)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert in_process("init", "my.yaml", "--yes", "--force", *args).returncode == 0


@pytest.mark.parametrize(
    ("python", "what"),
    [
        ("3.99", "3.8 to 3.15"),
        ("3.12t", "write 3.12 or 3.12.4"),
        ("3", "write 3.12 or 3.12.4"),
        ("3.10.2", "needs Python 3.11 or newer"),
    ],
)
def test_a_python_that_podrun_cannot_use(sandbox: Sandbox, in_process: Podrun, python: str, what: str) -> None:
    before = sorted(sandbox.path.iterdir())
    done = in_process("init", "my.yaml", "--yes", "-s", "gpu-1x2", "--hosts", "a", "--python", python)
    assert done.returncode == 2
    assert "--python: " in done.stderr and what in done.stderr
    assert sorted(sandbox.path.iterdir()) == before


def test_the_comments_are_good_yaml(sandbox: Sandbox, in_process: Podrun) -> None:
    """Keys in comments become real ones when the # is taken away."""
    path = sandbox.path / "pod.yaml"
    assert in_process("init", "-s", "cpu-1x2", "--hosts", "a").returncode == 0
    for name in ("id_ed25519", "requirements.txt"):
        (sandbox.path / name).touch()
    lines = path.read_text().replace("~/.ssh/", "").replace("[HF_TOKEN]", "[PATH]").splitlines()
    first = lines.index("# ssh:")
    path.write_text("\n".join([*lines[:first], *(line.removeprefix("# ") for line in lines[first:])]))
    pod = find_pod(PodRequest(pod=path))
    assert (pod.ssh.user, pod.ssh.host_keys, pod.ports) == ("me", "accept-new", (41000, 41999))
    assert Path(pod.requirements or "").name == "requirements.txt"

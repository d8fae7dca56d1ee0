"""Records of held pods: which pod they are for, and what a launcher does with one that is not sound."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from socket import gethostname

import pytest

from podrun.launcher.commands import hold as hold_module
from podrun.launcher.commands.hold import _check_supported, list_holds, release
from podrun.launcher.hold import holder as holder_module
from podrun.launcher.hold import record as record_module
from podrun.launcher.hold.holder import Holder
from podrun.launcher.hold.record import (
    HoldRecord,
    NotHeldError,
    all_ends,
    claim,
    connect,
    has_record,
    hold_id,
    is_held,
    listen,
    note_end,
    read_record,
    shell_settings,
    write_record,
)
from podrun.launcher.hold.transport import find_hold
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.agent_file import agent_file
from podrun.launcher.pod.container import Container
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.base import Channel, Transport
from podrun.runtime.contract import UnavailableError, UserError

Folder = Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The folder of the holds; its path is longer than the kernel allows for a socket."""
    home = tmp_path / ("h" * 90)
    monkeypatch.setenv("PODRUN_HOME", str(home))
    folder = home / "holds"
    folder.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    return folder


def record(id: str, agent: str = "") -> HoldRecord:
    return HoldRecord(id, "cpu-2x1", os.getpid(), 0.0, 60.0, agent or agent_file()[0], gethostname(), shell_settings())


def test_what_makes_another_hold(folder: Folder) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    others = [
        simulated_pod(parse_slice("cpu-1x1")),
        replace(pod, ssh=Ssh(user="me")),
        replace(pod, transport="ssh"),
        replace(pod, home="/elsewhere"),
    ]
    assert len({hold_id(pod), *map(hold_id, others)}) == 5
    assert hold_id(replace(pod, env={"A": "b"})) == hold_id(pod)  # a run says what of it does not fit


def test_a_claim_is_exclusive_and_leaves_nothing(folder: Folder) -> None:
    with claim("a") as file:
        with pytest.raises(NotHeldError, match="held already"), claim("a"):
            pass
        with pytest.raises(NotHeldError, match="just being made"):
            read_record("a")
        write_record(file, record("a"))
        assert read_record("a") == record("a")
        with listen("a"):
            connect("a").close()
        assert has_record(file, "a")
    assert list(folder.iterdir()) == []


def test_a_hold_whose_record_was_removed_does_not_remove_the_next_one(folder: Folder) -> None:
    with claim("a") as file:
        (folder / "a.json").unlink()
        assert not has_record(file, "a")
        (folder / "a.json").write_text("{}")
    assert (folder / "a.json").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "is not the record of a hold"),
        ("[]", "is not the record of a hold"),
        ('{"id": 3}', "is not the record of a hold"),
        ("[" * 60000, "is not the record of a hold"),
    ],
)
def test_garbage_is_named_and_the_run_starts_cold(folder: Folder, text: str, words: str) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    (folder / f"{hold_id(pod)}.json").write_text(text)
    transport, remark = find_hold(pod, "r")
    assert transport is None
    assert remark.startswith("cold start: the hold of this pod is not used: ") and words in remark


def test_files_of_others_are_not_read(folder: Folder) -> None:
    path = folder / "a.json"
    path.write_text(json.dumps(record("a")._asdict()))
    path.chmod(0o666)
    with pytest.raises(NotHeldError, match="not a private file of this user"):
        read_record("a")
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(NotHeldError, match="cannot read"):
        read_record("a")
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(NotHeldError, match="not a private file of this user"):
        read_record("a")


def test_a_hold_without_its_process_is_removed(folder: Folder) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    id = hold_id(pod)
    (folder / f"{id}.json").write_text(json.dumps(record(id)._asdict()))
    assert find_hold(pod, "r") == (None, "cold start: the hold of this pod is not used: its process is gone")
    assert find_hold(pod, "r") == (None, "")
    assert list(folder.iterdir()) == []


def test_why_a_hold_ended_is_told_once_by_a_run(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    id = hold_id(pod)
    note_end(id, "cpu-2x1", "an older end")
    note_end(id, "cpu-2x1", "its process received SIGTERM")
    assert is_held(pod)  # so that a run looks
    list_holds()
    said = r"ended at \d\d:\d\d: its process received SIGTERM"
    assert re.search(f"no pod is held on this machine\n{id}  cpu-2x1: {said}\n$", capsys.readouterr().out)
    transport, remark = find_hold(pod, "r")
    assert transport is None and re.fullmatch(f"cold start: the hold of this pod {said}", remark)
    assert find_hold(pod, "r") == (None, "") and not is_held(pod)
    assert list(folder.iterdir()) == []


def test_the_log_of_a_process_that_is_gone_says_why(folder: Folder) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    id = hold_id(pod)
    for log in ("Fatal Python error: Bus error\n\nThread 1:\n", "Traceback\nMemoryError\n"):
        (folder / f"{id}.json").write_text(json.dumps(record(id)._asdict()))
        (folder / f"{id}.log").write_text(log)
        words = "Fatal Python error: Bus error" if "Fatal" in log else "MemoryError"
        why = f"cold start: the hold of this pod is not used: its process is gone ({words})"
        assert find_hold(pod, "r") == (None, why)
    assert list(folder.iterdir()) == []


def test_old_ends_are_forgotten_and_release_forgets_all(folder: Folder) -> None:
    note_end("a", "cpu-2x1", "no run came for 10s")
    (folder / "b.ended").write_text(json.dumps({"pod": "cpu-1x1", "at": 1.0, "why": "x"}))
    (folder / "c.ended").write_text("no json")
    assert list(all_ends()) == ["a"] and [path.name for path in folder.iterdir()] == ["a.ended"]
    assert release(PodRequest(), everything=True) == 0
    assert list(folder.iterdir()) == []


def test_a_slow_start_is_no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold with a short limit ended at once if its hosts needed longer than that to be ready."""

    class Unreachable(Transport):
        def open(self, host: Host, argv: Sequence[str]) -> Channel:
            raise HostError(host.name, "no route to host")

    pod = simulated_pod(parse_slice("cpu-1x1"))
    held = Holder(pod, Unreachable(), {host.name: [] for host in pod.hosts}, record("a"))
    now = time.clock_gettime(time.CLOCK_BOOTTIME) + 61
    monkeypatch.setattr(holder_module, "_now", lambda: now)
    noted = [True, False]
    with socket.socket() as listener:
        assert held.serve(listener, lambda: noted.pop(0)) == "its record was removed"
    assert noted == []


def test_another_version_is_not_used(folder: Folder) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    id = hold_id(pod)
    with claim(id) as file, listen(id):
        write_record(file, record(id, "other.pyz"))
        transport, remark = find_hold(pod, "r")
    assert transport is None and "another version of podrun" in remark


@pytest.mark.parametrize("name", ["umask", "group", "groups", "CPU affinity", "priority", "RLIMIT_NOFILE"])
def test_settings_of_another_shell(folder: Folder, name: str) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    id = hold_id(pod)
    held = record(id)
    assert name in held.shell
    with claim(id) as file, listen(id):
        write_record(file, held._replace(shell={**held.shell, name: "another"}))
        transport, remark = find_hold(pod, "r")
    assert transport is None
    assert remark.startswith(f"cold start: the hold of this pod is not used: {name} of this shell differ")


def test_another_container_has_another_hold(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    here, remote = hold_id(pod), hold_id(replace(pod, transport="ssh"))
    monkeypatch.setattr(record_module, "_link", lambda path: "another")
    assert hold_id(pod) != here
    assert hold_id(replace(pod, transport="ssh")) == remote


def test_holds_of_another_machine_are_left_alone(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Both have the same home."""
    path = folder / "a.json"
    path.write_text(json.dumps(record("a")._replace(host="elsewhere")._asdict()))
    list_holds()
    assert "held on elsewhere" in capsys.readouterr().out
    assert release(PodRequest(), everything=True) == 0
    assert path.exists()


def test_all_are_released_that_can_be(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """The process of the first does not answer; that of the second is gone."""
    with claim("a") as file, listen("a"):
        write_record(file, record("a"))
        (folder / "b.json").write_text(json.dumps(record("b")._asdict()))
        with pytest.raises(UnavailableError, match=f"did not answer.*kill -9 {os.getpid()}"):
            release(PodRequest(), everything=True)
    assert "released" in capsys.readouterr().out
    assert not (folder / "b.json").exists()


def test_the_list_names_files_that_are_no_records(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.json").write_text("no json")
    list_holds()
    out, err = capsys.readouterr()
    assert out == "no pod is held on this machine\n"
    assert "a.json is not the record of a hold" in err


def test_what_cannot_be_held(folder: Folder) -> None:
    pod = simulated_pod(parse_slice("cpu-2x1"))
    _check_supported(pod)
    with pytest.raises(UserError, match=r"a job of a queue.*salloc"):
        _check_supported(replace(pod, transport="slurm"))
    with pytest.raises(UserError, match="container image cannot be held"):
        _check_supported(replace(pod, container=Container(image="x", engine="docker")))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_ends_while_it_makes_the_hold_leaves_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its last words are in the message, also if it has claimed the hold already; there is no log to be left before."""
    fail = "raise RuntimeError(str(os.listdir(os.environ['PODRUN_HOME'] + '/holds')))"
    program = f"import os, pickle, sys\norder = pickle.load(sys.stdin.buffer)\n{fail}"
    if when == "after":
        program = program.replace(
            "\nraise", "\nfrom podrun.launcher.hold.record import claim\nwith claim(order.record.id): raise"
        )
    monkeypatch.setattr(hold_module, "_START", program)
    files = r"\[\]" if when == "before" else r"\['\w+\.json'\]"
    with pytest.raises(UnavailableError, match=f"should hold the pod has ended: RuntimeError: {files}$"):
        hold_module.hold(PodRequest("cpu-1x1", inventories={"simulate": True}), "30m")
    assert list(folder.iterdir()) == []

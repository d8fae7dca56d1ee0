"""`podrun hosts` says which hosts have failed, and why; `podrun hosts clear` forgives them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from podrun.launcher.rundir.host_history import AttemptOfHosts, HostFailure
from podrun.launcher.rundir.host_record import note_attempt, record_path

from .conftest import Podrun

NOW = time.time() - 3600
NAMES = {"10.0.0.1": "tpu-1", "10.0.0.2": "tpu-2", "10.0.0.3": "tpu-3"}


pytestmark = pytest.mark.usefixtures("sandbox")


def fail(number: int, address: str = "", kind: str = "lost", what: str = "gone", place: str = "ssh") -> None:
    failed = {address: HostFailure(kind, what)} if address else {}
    note_attempt(AttemptOfHosts(NOW + number, f"20260101-000001-r{number}", place, NAMES, failed))


def test_nothing_is_on_record(podrun: Podrun) -> None:
    done = podrun("hosts")
    assert done.out == f"no hosts in {record_path()}; runs on other machines are recorded there\n"
    assert podrun("hosts", "--json").json == []


def test_a_bad_host_and_why(podrun: Podrun) -> None:
    silence = "has not answered for 21 s (timed out: no answer from 10.0.0.3 port 22): it is down, or its network is"
    for number in range(4):
        fail(number, "10.0.0.3" if number else "", what=silence)
    fail(5, "10.0.0.1", "ecc", "uncorrected ECC errors since the driver was loaded: GPU 3: 2")
    done = podrun("hosts")
    header, bad, other, title, *why, clear = done.out.splitlines()
    assert re.fullmatch("HOST   RUNS  FAILED  KINDS   LAST +STATE", header)
    moment = r"(yesterday )?\d\d:\d\d(:\d\d)?"
    assert re.fullmatch(rf"tpu-3     4       3  lost 3  {moment}  bad", bad)
    assert re.fullmatch(rf"tpu-1     1       1  ecc     {moment}  ok", other)
    assert title == "tpu-3: 3 failures in its last 4 runs"
    for number, line in enumerate(why, 1):
        assert re.fullmatch(
            rf"  {moment}  lost  1-r{number}  has not answered for 21 s .timed out: no .*[.]{{3}}", line
        )
    assert clear == "`podrun hosts clear 10.0.0.3` takes it back"
    assert max(map(len, done.out.splitlines())) <= 80
    rows = podrun("hosts", "--json").json
    assert [(row["host"], row["address"], row["state"], row["runs"]) for row in rows] == [
        ("tpu-3", "10.0.0.3", "bad", 4),
        ("tpu-1", "10.0.0.1", "ok", 1),
    ]
    assert rows[0]["failures"][0] == {
        "kind": "lost",
        "what": silence,
        "time": NOW + 1,
        "run": "20260101-000001-r1",
    }


def test_hosts_are_cleared(podrun: Podrun) -> None:
    for number in range(3):
        fail(number, "10.0.0.3")
    assert podrun("hosts", "clear", "tpu-3").out == "tpu-3, 10.0.0.3: 3 failures forgiven\n"
    assert podrun("hosts", "clear", "10.0.0.3").out == "tpu-3, 10.0.0.3: it has no failures\n"
    assert podrun("hosts").out == "1 host without failures\n"
    fail(4, "10.0.0.2")
    fail(5, "10.0.0.3")
    cleared = "tpu-2, 10.0.0.2: 1 failure forgiven\ntpu-3, 10.0.0.3: 1 failure forgiven\n"
    assert podrun("hosts", "clear", "tpu-[2-3]").out == cleared


def lose(host: str, name: str, place: str = "ssh", times: int = 1) -> None:
    for number in range(times):
        gone = {host: HostFailure("lost", "gone")}
        note_attempt(AttemptOfHosts(NOW, f"{host}{place}{number}", place, {host: name}, gone))


def test_names_that_fit_several_hosts(podrun: Podrun) -> None:
    """One with failures is meant, and all are told apart."""
    lose("10.0.0.9", "h0")
    assert podrun("hosts", "clear", "h0").out == "h0, 10.0.0.9: 1 failure forgiven\n"
    lose("10.0.0.1", "h0", times=3)
    assert podrun("hosts", "clear", "h0").out == "h0, 10.0.0.1: 3 failures forgiven\n"
    lose("10.0.0.1", "h0", times=3)
    lose("10.0.0.1", "h0", "ssh via a", times=2)
    shown = podrun("hosts").out
    assert re.search("^10.0.0.1 [(]ssh[)] +3 ", shown, re.MULTILINE) and "10.0.0.1 (ssh): 3 failures" in shown
    assert re.search("^10.0.0.1 [(]ssh via a[)] +2 ", shown, re.MULTILINE)
    assert podrun("hosts", "clear", "10.0.0.1").out == (
        "h0, 10.0.0.1 (ssh): 3 failures forgiven\nh0, 10.0.0.1 (ssh via a): 2 failures forgiven\n"
    )


def test_mistakes(podrun: Podrun) -> None:
    """All at once, and nothing is cleared."""
    fail(0, "10.0.0.3")
    note_attempt(AttemptOfHosts(NOW, "other", "ssh", {"10.0.0.9": "tpu-3"}, {"10.0.0.9": HostFailure("lost", "gone")}))
    before = record_path().read_bytes()
    done = podrun("hosts", "clear", "tpu-9", "tpu-3", "a[", "10.0.0.3")
    assert done.code == 2
    assert done.err.splitlines() == [
        "podrun: 'a[': has a bracket without its partner; write a range as n[0-3]",
        "there is no host tpu-9 in the record of hosts; did you mean tpu-3?",
        "tpu-3 is the name of 2 hosts; give an address: 10.0.0.3, 10.0.0.9",
    ]
    assert record_path().read_bytes() == before
    assert re.search("^10.0.0.3  +1  +1  lost", podrun("hosts").out, re.MULTILINE)
    assert podrun("hosts", "clear").code == 2


def test_a_damaged_record(podrun: Podrun) -> None:
    """Nothing in it reaches the terminal as it is, and one line of it is one line of the table."""
    evil = "a\x1b[2J\n\u202eb\ud800"
    for number in range(3):
        failed = {evil: HostFailure("lo\x1b]0;t\x07st", f"x\x1b[31m{evil}\r{'y' * 999}")}
        note_attempt(AttemptOfHosts(NOW, f"r{number}\x1b[0m", "ssh", {evil: evil}, failed))
    with record_path().open("ab") as file:
        file.write(b"\x00\xff\n{}\n")
    done = podrun("hosts")
    assert done.err == f"podrun: 2 damaged lines of {record_path()} ignored\n"
    assert "\x1b" not in done.out and "\u202e" not in done.out and "\r" not in done.out and "\x07" not in done.out
    assert len(done.out.splitlines()) == 7
    assert max(map(len, done.out.splitlines())) <= 80
    podrun("hosts", "--json")
    record_path().chmod(0o666)
    done = podrun("hosts")
    assert done.code == 2
    assert "other users may write" in done.err and "chmod 600" in done.err


def test_a_clock_that_was_wrong(podrun: Podrun, tmp_path: Path) -> None:
    for moment in (0.0, 2.4e11, NOW):
        note_attempt(AttemptOfHosts(moment, f"r{moment}", "ssh", {"a": "a"}, {"a": HostFailure("lost", "gone")}))
    assert [len(row["failures"]) for row in podrun("hosts", "--json").json] == [1]
    assert podrun("hosts").code == 0


def test_many_bad_hosts(podrun: Podrun) -> None:
    """The failures of the worst are shown, and a command that can be read."""
    names = {f"10.{7 * n}.{n * n % 200}.{n}": f"gpu-{n}-{'abc'[n % 3]}" for n in range(30)}
    for number in range(3):
        gone = {address: HostFailure("lost", "gone") for address in names}
        note_attempt(AttemptOfHosts(NOW, f"r{number}", "ssh", names, gone))
    lines = podrun("hosts").out.splitlines()
    assert sum("failures in its last" in line for line in lines) == 8
    assert lines[-2:] == [
        "and 22 more bad hosts; `podrun hosts --json` has their failures",
        "`podrun hosts clear HOST...` takes them back",
    ]
    assert podrun("hosts", "clear", *names).out.count("3 failures forgiven") == 30

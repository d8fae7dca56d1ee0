"""Reduce the record of hosts to what is known of them, as values; keep it in a file that survives all that is done to it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir import host_record
from podrun.launcher.rundir.host_history import (
    AttemptOfHosts,
    ClearedHosts,
    HostFailure,
    HostFailureKind,
    HostHistory,
    HostKey,
    host_histories,
    worst_first,
)
from podrun.launcher.rundir.host_record import clear_hosts, note_attempt, place_of, read_hosts, record_path
from podrun.runtime.contract import UserError

NOW = time.time()
A, B = HostKey("ssh", "a"), HostKey("ssh", "b")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def attempt(run: str, failed: Mapping[str, str] = {}, time: float = NOW, what: str = "gone") -> AttemptOfHosts:
    """Return an attempt on the hosts a and b. `failed`: kinds of failures by address."""
    failures = {host: HostFailure(kind, what, time, run) for host, kind in failed.items()}
    return AttemptOfHosts(time, run, "ssh", {"a": "a", "b": "b"}, failures)


def history_of(key: HostKey, *entries: AttemptOfHosts | ClearedHosts) -> HostHistory:
    return host_histories(entries, NOW)[key]


def runs(failed: Iterable[bool]) -> list[AttemptOfHosts]:
    """Return a run for each value, in which the host a is lost if the value is true."""
    return [attempt(f"r{number}", {"a": "lost"} if one else {}) for number, one in enumerate(failed)]


class TestRules:
    @pytest.mark.parametrize(
        ("failed", "is_bad"),
        [
            ([1, 1], False),
            ([1, 1, 1], True),
            ([1, 0, 0, 0, 1, 0, 0, 0, 0, 1], True),
            ([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1], False),  # the first is the eleventh last
            ([1, 1, 1] + 10 * [0], False),
        ],
    )
    def test_three_failures_in_ten_runs(self, failed: list[int], is_bad: bool) -> None:
        history = history_of(A, *runs(map(bool, failed)))
        assert history.is_bad == is_bad
        assert history.runs == len(failed)
        assert not history_of(B, *runs(map(bool, failed))).failures

    def test_attempts_of_one_run_are_one_run(self) -> None:
        history = history_of(A, *[attempt("r", {"a": "lost"})] * 3, attempt("r"))
        assert (history.runs, len(history.failures), history.is_bad) == (1, 3, True)

    def test_runs_at_the_same_time(self) -> None:
        history = history_of(A, attempt("r"), attempt("s"), attempt("r", {"a": "lost"}))
        assert (history.runs, len(history.failures)) == (2, 1)

    def test_clearing(self) -> None:
        """Only the hosts that are named; what follows counts again."""
        both = [attempt(f"r{n}", {"a": "lost", "b": "lost"}) for n in range(3)]
        cleared = ClearedHosts((A, HostKey("ssh", "unknown")))
        assert history_of(A, *both, cleared).failures == []
        assert history_of(B, *both, cleared).is_bad
        again = history_of(A, *both, cleared, attempt("r9", {"a": "hardware"}))
        assert ([one.kind for one in again.failures], again.runs) == (["hardware"], 4)

    def test_a_clock_that_goes_backwards(self) -> None:
        """The order in the record counts."""
        times = [NOW, NOW - 5, NOW - 1, NOW - 9]
        entries = [attempt(f"r{n}", {"a": "lost"} if n else {}, time) for n, time in enumerate(times)]
        assert [one.time for one in history_of(A, *entries).failures] == times[1:]
        assert history_of(A, *entries[:3], ClearedHosts((A,)), entries[3]).failures[0].time == NOW - 9

    def test_the_same_count_of_memory_errors_is_one_failure(self) -> None:
        ecc = HostFailureKind.ECC
        entries = [attempt(f"r{n}", {"a": ecc}, what=f"errors: {count}") for n, count in enumerate([1, 1, 1, 2])]
        assert [one.what for one in history_of(A, *entries).failures] == ["errors: 1", "errors: 2"]
        hardware = [attempt(f"r{n}", {"a": "hardware"}, what="no GPU") for n in range(3)]
        assert history_of(A, *hardware).is_bad

    def test_a_count_of_memory_errors_that_was_cleared(self) -> None:
        """The count is known: a repaired host reads it again, until it grows."""
        first = attempt("r0", {"a": "ecc"}, what="errors: 1")
        again = attempt("r1", {"a": "ecc"}, what="errors: 1")
        assert not history_of(A, first, ClearedHosts((A,)), again).failures
        more = attempt("r2", {"a": "ecc"}, what="errors: 2")
        assert len(history_of(A, first, ClearedHosts((A,)), again, more).failures) == 1

    @pytest.mark.parametrize(("age", "count"), [(0.0, 3), (29.9, 3), (30.1, 0), (-0.1, 0), (20_000.0, 0)])
    def test_age(self, age: float, count: int) -> None:
        """After 30 days a failure counts no more, nor does one of a clock that was ahead."""
        entries = [attempt(f"r{n}", {"a": "lost", "b": "ecc"}, NOW - age * 86400, f"{n}") for n in range(3)]
        assert len(history_of(A, *entries).failures) == len(history_of(B, *entries).failures) == count
        assert history_of(A, *entries).runs == 3

    def test_kinds(self) -> None:
        entries = [attempt(f"r{n}", {"a": kind}) for n, kind in enumerate(["hardware", "lost", "lost"])]
        assert history_of(A, *entries).kinds == "lost 2, hardware"

    def test_the_worst_first(self) -> None:
        entries = [*runs([True]), attempt("s", {"b": "lost"}), attempt("t", {"a": "lost"})]
        assert [one.key for one in worst_first(host_histories(entries, NOW).values())] == [A, B]

    def test_the_same_address_elsewhere_is_another_host(self) -> None:
        entry = attempt("r", {"a": "lost"})
        other = AttemptOfHosts(NOW, "r", "ssh via login", {"a": "a"})
        histories = host_histories([entry, other], NOW)
        assert len(histories[A].failures) == 1 and not histories[HostKey("ssh via login", "a")].failures


def test_place() -> None:
    pod = Pod(parse_slice("cpu-1x1"), (Host("a", "10.0.0.5"),), "ssh", "cpu")
    assert place_of(pod) == "ssh"
    assert place_of(Pod(pod.slice, pod.hosts, "ssh", "cpu", ssh=Ssh(jump="me@login"))) == "ssh via me@login"
    other = Ssh(jump="login", port=2202, config=Path("/a/config"))
    assert place_of(Pod(pod.slice, pod.hosts, "ssh", "cpu", ssh=other)) == "ssh via login port 2202 by /a/config"
    assert place_of(Pod(pod.slice, pod.hosts, "ssh", "cpu", ssh=Ssh(port=22))) == "ssh"
    assert place_of(Pod(pod.slice, pod.hosts, "local", "cpu")) is None


class TestFile:
    def test_what_is_written_is_read(self) -> None:
        assert read_hosts() == ({}, 0)
        entries = [*runs([True, True, False]), attempt("s", {"b": "lost"}, NOW - 9.5, "x" * 1000)]
        for entry in entries:
            note_attempt(entry)
        histories, damaged = read_hosts()
        assert damaged == 0
        assert histories[A] == host_histories(entries, NOW)[A]
        assert histories[B].failures == [HostFailure("lost", "x" * 300, NOW - 9.5, "s")]
        clear_hosts([A])
        assert not read_hosts()[0][A].failures
        assert record_path().stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        "line",
        [
            b"\xff\xfe\x00",
            b"{",
            b"[]",
            b"7",
            b'"text"',
            b"[" * 100_000,
            b"{}",
            b'{"time": 1, "run": "r", "place": "ssh", "hosts": ["a"], "failed": {}}',
            b'{"time": NaN, "run": "r", "place": "ssh", "hosts": {"a": "a"}, "failed": {}}',
            b'{"time": 1e300, "run": "r", "place": "ssh", "hosts": {"a": "a"}, "failed": {}}',
            b'{"time": -1, "run": "r", "place": "ssh", "hosts": {"a": "a"}, "failed": {}}',
            b'{"time": 1, "run": "r", "place": "ssh", "hosts": {"a": "a"}, "failed": {"a": "lost"}}',
            b'{"time": 1, "cleared": [["ssh", "a"]]}',
            b'{"time": 1, "cleared": 7}',
            b"9" * 10_000,
        ],
    )
    def test_damaged_lines_are_ignored(self, line: bytes) -> None:
        for entry in runs([True, True]):
            note_attempt(entry)
        with record_path().open("ab") as file:
            file.write(line + b"\n")
        note_attempt(attempt("s", {"a": "lost"}))
        histories, damaged = read_hosts()
        assert (histories[A].is_bad, damaged) == (True, 1)

    def test_a_line_that_was_cut_off(self) -> None:
        """As by a full disk: the next line does not continue it."""
        for number in range(3):
            note_attempt(attempt(f"r{number}", {"a": "lost"}))
        whole = record_path().read_bytes()
        record_path().write_bytes(whole[:-20])
        note_attempt(attempt("s", {"a": "lost"}))
        histories, damaged = read_hosts()
        assert (len(histories[A].failures), damaged) == (3, 1)

    def test_a_failure_of_a_host_that_took_no_part(self) -> None:
        entry = {
            "time": 1.0,
            "run": "r",
            "place": "ssh",
            "hosts": {"a": "a"},
            "failed": {"b": {"kind": "lost", "what": ""}},
        }
        note_attempt(attempt("q", {"a": "lost"}))
        with record_path().open("a") as file:
            file.write(json.dumps(entry) + "\n")
        histories, damaged = read_hosts()
        assert (damaged, [*histories]) == (0, [A])

    def test_only_hosts_that_have_failed(self) -> None:
        """Their later runs are counted, those of others are not in the file."""
        assert not note_attempt(attempt("r"))
        assert not record_path().exists()
        assert note_attempt(attempt("s", {"a": "lost"})) and note_attempt(attempt("t"))
        histories, _ = read_hosts()
        assert (histories.keys(), histories[A].runs) == ({A}, 2)
        clear_hosts([A])
        assert not note_attempt(attempt("u"))

    def test_a_line_that_is_written_in_part(self) -> None:
        """As on a disk that is nearly full. The next line does not continue it."""
        note_attempt(attempt("r", {"a": "lost"}))
        size = record_path().stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
        try:
            with pytest.raises(OSError, match="No space left on device"):
                note_attempt(attempt("s", {"a": "lost"}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        note_attempt(attempt("t", {"a": "lost"}))
        histories, damaged = read_hosts()
        assert (len(histories[A].failures), damaged) == (2, 1)

    def test_other_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        note_attempt(attempt("r", {"a": "lost"}))
        record_path().chmod(0o620)
        with pytest.raises(UserError, match=r"other users may write .*hosts.jsonl.*chmod 600"):
            read_hosts()
        with pytest.raises(UserError, match="other users may write"):
            note_attempt(attempt("r"))
        record_path().chmod(0o600)
        if os.geteuid() == 0:
            os.chown(record_path(), 12345, 0)
            with pytest.raises(UserError, match="belongs to user 12345; remove it, which forgets all failures"):
                read_hosts()
            os.chown(record_path(), 0, 0)
        record_path().unlink()
        record_path().mkdir()
        with pytest.raises(UserError, match=r"cannot read .*: Is a directory; make it readable"):
            read_hosts()

    @pytest.mark.parametrize("limit", [10**9, 20_000], ids=["all kept", "older half dropped"])
    def test_launchers_that_write_at_the_same_time(self, limit: int) -> None:
        """No line is lost or torn, also while the older half is dropped."""
        program = (
            "import os, sys\n"
            "from podrun.launcher.rundir import host_record\n"
            "from podrun.launcher.rundir.host_history import AttemptOfHosts, HostFailure\n"
            f"host_record.LIMIT = {limit}\n"
            "name = next((f'w{n}' for n in range(3) if os.fork() == 0), 'w3')\n"  # four processes for one import
            "for n in range(100):\n"
            "    hosts = {name: 'h', **{f'x{i}': f'x{i}' for i in range(40)}}\n"
            "    failed = {name: HostFailure('lost', 'gone')}\n"
            "    host_record.note_attempt(AttemptOfHosts(float(n), name, 'ssh', hosts, failed))\n"
            "if name == 'w3':\n"
            "    assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)] == [0] * 3\n"
        )
        subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
        written: dict[str, list[float]] = {f"w{n}": [] for n in range(4)}
        for line in record_path().read_text().splitlines():
            entry = json.loads(line)
            written[entry["run"]].append(entry["time"])
        for times in written.values():  # the newest ones of each, without a gap
            assert times == [float(n) for n in range(100 - len(times), 100)]
        count = sum(map(len, written.values()))
        assert count == 400 if limit > 10**6 else 60 < count < 200

    def test_a_lock_that_is_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Append the line all the same: a stopped launcher holds up no other."""
        monkeypatch.setattr(host_record, "_WAIT", 0.1)
        note_attempt(attempt("r", {"a": "lost"}))
        with host_record._locked() as is_locked:
            assert is_locked
            note_attempt(attempt("s"))
        assert read_hosts()[0][A].runs == 2

    def test_ten_thousand_hosts(self) -> None:
        """A run of them is a short line, and the record is read in a moment however long it is."""
        hosts = {f"10.{n // 65536}.{n // 256 % 256}.{n % 256}": f"tpu-{n}" for n in range(10_000)}
        failed = {"10.0.0.7": HostFailure("lost", "gone")}
        for number in range(12):
            note_attempt(AttemptOfHosts(time.time(), f"r{number}", "ssh", hosts, failed))
        (bad,) = read_hosts()[0].values()
        assert (bad.name, bad.runs, len(bad.failures)) == ("tpu-7", 12, 10)
        lines = record_path().read_bytes()
        assert len(lines) < 12 * 200
        record_path().write_bytes(lines * (host_record.LIMIT // len(lines)))
        began = time.process_time()
        read_hosts()
        assert time.process_time() - began < 2.0
        with pytest.raises(OSError, match="a line would have"):
            note_attempt(AttemptOfHosts(time.time(), "s", "ssh", hosts, dict.fromkeys(hosts, failed["10.0.0.7"])))

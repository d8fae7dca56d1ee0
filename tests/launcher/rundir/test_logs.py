"""Logs: what each process printed, byte for byte, so that a file's size says how much of it is here."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from podrun.launcher.rundir import logs as logs_module
from podrun.launcher.rundir.logs import Logs, index_path, log_path, tail


def texts(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in folder.glob("*.log")}


def test_what_arrives_is_there_at_once(tmp_path: Path) -> None:
    """Chunks end anywhere, in the middle of a character too; nothing is kept back, and the size is that of what came."""
    text = "one two\nthrée\r 50%\r 100%\n\nsi".encode()
    with Logs(tmp_path) as logs:
        for number, byte in enumerate(text, 1):
            logs.write("host-0", bytes([byte]))
            assert logs.size("host-0") == number
        assert texts(tmp_path) == {"host-0": text}
    assert texts(tmp_path) == {"host-0": text}


def test_bytes_that_are_not_text_are_kept(tmp_path: Path) -> None:
    """The log has what was printed, byte by byte, and `tail` can still show it."""
    data = bytes(range(256)) + b"\n\xff\xfe\n"
    with Logs(tmp_path) as logs:
        logs.write("host-0", data)
    assert texts(tmp_path) == {"host-0": data}
    assert tail(log_path(tmp_path, "host-0"), 1) == ["\N{REPLACEMENT CHARACTER}" * 2]


def test_processes_have_a_file_each_and_only_if_they_printed(tmp_path: Path) -> None:
    """Another name: another file. Nothing printed: no file, and no bytes."""
    with Logs(tmp_path) as logs:
        logs.write("host-0.0", b"zero\n")
        logs.write("host-0.1", b"one\n")
        logs.write("host-0.2", b"")
        logs.end("host-0.2")
        assert [logs.size(f"host-0.{i}") for i in range(3)] == [5, 4, 0]
    assert texts(tmp_path) == {"host-0.0": b"zero\n", "host-0.1": b"one\n"}
    assert {p.suffix for p in tmp_path.iterdir()} == {".log"}


def test_a_log_is_continued(tmp_path: Path) -> None:
    """Output that an earlier attempt, or an earlier launcher, has written stays, and counts."""
    with Logs(tmp_path) as logs:
        logs.write("host-0", b"first\n")
    with Logs(tmp_path) as logs:
        assert logs.size("host-0") == 6
        logs.write("host-0", b"second\n")
        assert logs.size("host-0") == 13
    assert texts(tmp_path) == {"host-0": b"first\nsecond\n"}


@pytest.mark.parametrize(
    ("printed", "then"),
    [(b"whole\nhalf", b"whole\nhalf\n"), (b"whole\n", b"whole\n"), (b"\n", b"\n"), (b"x", b"x\n"), (b"a\r", b"a\r\n")],
)
def test_the_end_of_a_process_ends_its_line(tmp_path: Path, printed: bytes, then: bytes) -> None:
    """Output of the next attempt begins a line of its own; a whole line gets no empty one, however often it ends."""
    with Logs(tmp_path) as logs:
        logs.write("host-0", printed)
        logs.end("host-0")
        logs.end("host-0")
        assert texts(tmp_path) == {"host-0": then}
        logs.write("host-0", b"next\n")
    assert texts(tmp_path) == {"host-0": then + b"next\n"}


def test_the_end_of_a_process_whose_output_another_has_written(tmp_path: Path) -> None:
    """After a takeover nothing more of it may arrive: its line is ended all the same."""
    with Logs(tmp_path) as logs:
        logs.write("host-0", b"half")
    with Logs(tmp_path) as logs:
        logs.end("host-0")
        logs.end("host-1")
        logs.write("host-0", b"next\n")
    assert texts(tmp_path) == {"host-0": b"half\nnext\n"}


def test_closing_twice(tmp_path: Path) -> None:
    """It adds nothing."""
    logs = Logs(tmp_path)
    logs.write("host-0", b"half")
    logs.close()
    logs.close()
    assert texts(tmp_path) == {"host-0": b"half"}


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """The write that did not arrive raises, each time; other logs go on."""
    log_path(tmp_path, "host-0").symlink_to("/dev/full")
    with Logs(tmp_path) as logs:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left") as raised:
                logs.write("host-0", b"lost\n")
            assert raised.value.errno == errno.ENOSPC
        logs.write("host-1", b"kept\n")
    assert log_path(tmp_path, "host-1").read_bytes() == b"kept\n"


def test_a_disk_that_takes_a_part_is_told(tmp_path: Path) -> None:
    """The part that was taken counts, and the rest raises: a size is never larger than what is there."""
    code = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
    code += "from podrun.launcher.rundir.logs import Logs; from pathlib import Path; logs = Logs(Path('.'))\n"
    code += "try: logs.write('host-0', b'x' * 70); logs.write('host-0', b'y' * 70)\n"
    code += "except OSError as error: print(error.errno, logs.size('host-0'))\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), "100"], done.stderr
    assert texts(tmp_path) == {"host-0": b"x" * 70 + b"y" * 30}


def test_an_index_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """Times are not worth a run."""
    index_path(tmp_path, "host-0").parent.mkdir()
    index_path(tmp_path, "host-0").symlink_to("/dev/full")
    with Logs(tmp_path) as logs:
        logs.write("host-0", b"kept\n")
    assert texts(tmp_path) == {"host-0": b"kept\n"}


def test_the_index_has_the_size_before_each_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark is written before the output it belongs to, and at most one a second."""
    times = [1000.0, 1000.5, 1000.9, 1001.1, 1005.0, 1005.5]
    with Logs(tmp_path) as logs:
        for now in times:
            monkeypatch.setattr(logs_module, "time", SimpleNamespace(time=lambda now=now: now))
            logs.write("host-0", b"12345")
    lines = index_path(tmp_path, "host-0").read_text().split("\n")
    assert lines == ["1000.000 0", "1001.100 15", "1005.000 20", ""]


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        ("", 3, []),
        ("a\nb\nc\nd\n", 2, ["c", "d"]),
        ("a\nb\n", 5, ["a", "b"]),
        ("a\n\n  \nb", 2, ["a", "b"]),
        ("a\n[Gloo] Rank 0 is connected to 3 peer ranks\nb\n", 2, ["a", "b"]),
        ("  File 'x'\n    indented\n", 2, ["  File 'x'", "    indented"]),
    ],
)
def test_tail(tmp_path: Path, text: str, lines: int, shown: list[str]) -> None:
    """The last lines that say something."""
    log = tmp_path / "host-0.log"
    log.write_text(text)
    assert tail(log, lines) == shown


def test_tail_reads_only_the_end(tmp_path: Path) -> None:
    """A log of any size is shown by its last bytes."""
    log = tmp_path / "host-0.log"
    log.write_text("".join(f"line {n}\n" for n in range(1000)))
    assert tail(log, 2, limit=40) == ["line 998", "line 999"]
    assert sum(len(line) + 1 for line in tail(log, 100, limit=40)) <= 40


def test_tail_of_a_host_that_printed_nothing(tmp_path: Path) -> None:
    """No file, no lines."""
    assert tail(tmp_path / "host-0.log", 3) == []

"""Host logs: what the workers printed, whole lines, once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.logs import HostLogs, tail


def test_a_line_in_pieces_is_written_once_it_is_whole(tmp_path: Path) -> None:
    """Chunks end anywhere; the file has whole lines only, without any wait for the end of the run."""
    with HostLogs(tmp_path) as logs:
        for piece in (b"one", b" two\nth", b"ree\n", b"\n", b"four\nfive\nsi"):
            logs.write("host-0", "0.out", piece)
        assert (tmp_path / "host-0.log").read_bytes() == b"one two\nthree\n\nfour\nfive\n"


def test_every_byte_is_a_chunk(tmp_path: Path) -> None:
    """The finest cut changes nothing."""
    text = "ä line\nanother, with a \r and a \t\n".encode()
    with HostLogs(tmp_path) as logs:
        for byte in text:
            logs.write("host-0", "0.out", bytes([byte]))
    assert (tmp_path / "host-0.log").read_bytes() == text


def test_streams_of_a_host_do_not_mix_within_a_line(tmp_path: Path) -> None:
    """Two processes that print at the same time share a file, line by line."""
    with HostLogs(tmp_path) as logs:
        for zero, one in ((b"aaa", b"b"), (b"aaa\naa", b"bbb\nbbb"), (b"aaaa\n", b"b\n")):
            logs.write("host-0", "0.out", zero)
            logs.write("host-0", "1.out", one)
    lines = (tmp_path / "host-0.log").read_text().splitlines()
    assert sorted(lines) == ["aaaaaa", "aaaaaa", "bbbb", "bbbb"]


def test_hosts_have_a_file_each_and_only_if_they_printed(tmp_path: Path) -> None:
    """Same stream name, other host: another file. Nothing printed: no file."""
    with HostLogs(tmp_path) as logs:
        logs.write("host-0", "0.out", b"zero\n")
        logs.write("host-1", "0.out", b"one\n")
        logs.write("host-2", "0.out", b"")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"host-0.log": "zero\n", "host-1.log": "one\n"}


def test_a_last_line_without_its_newline_is_written_at_close(tmp_path: Path) -> None:
    """A process that was killed in the middle of a line leaves that half; closing twice does not write it twice."""
    logs = HostLogs(tmp_path)
    logs.write("host-0", "0.out", b"whole\nhalf")
    logs.write("host-1", "0.out", b"only half")
    logs.close()
    logs.close()
    assert (tmp_path / "host-0.log").read_bytes().rstrip(b"\n") == b"whole\nhalf"
    assert (tmp_path / "host-1.log").read_bytes().rstrip(b"\n") == b"only half"


def test_last_lines_without_newline_do_not_mix(tmp_path: Path) -> None:
    """Also at close a line belongs to one process."""
    with HostLogs(tmp_path) as logs:
        logs.write("host-0", "0.out", b"half of zero")
        logs.write("host-0", "1.out", b"half of one")
    assert sorted((tmp_path / "host-0.log").read_text().splitlines()) == ["half of one", "half of zero"]


def test_bytes_that_are_not_text_are_kept(tmp_path: Path) -> None:
    """The log has what was printed, byte by byte, and `tail` can still show it."""
    data = bytes(range(256)) + b"\n\xff\xfe\n"
    with HostLogs(tmp_path) as logs:
        logs.write("host-0", "0.out", data)
    log = tmp_path / "host-0.log"
    assert log.read_bytes() == data
    assert tail(log, 1) == ["\N{REPLACEMENT CHARACTER}" * 2]


def test_a_log_is_continued(tmp_path: Path) -> None:
    """What an earlier attempt printed stays."""
    for attempt in (b"first\n", b"second\n"):
        with HostLogs(tmp_path) as logs:
            logs.write("host-0", "0.out", attempt)
    assert (tmp_path / "host-0.log").read_text() == "first\nsecond\n"


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

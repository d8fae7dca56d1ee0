"""Damage is told from faults of the host, with the file that is damaged and the reason."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.checkpoint.damage import (
    DamagedCheckpointError,
    HostFaultError,
    explain,
    is_host_fault,
    read_meta,
    unreadable,
)
from podrun.runtime.checkpoint.metadata import job_meta

META: dict[str, Any] = {"config": {}, "position": 8, "fingerprint": "00", "shapes": {"params": {}}}


def written(folder: Path, meta: Any) -> Path:
    (folder / "meta").write_text(meta if isinstance(meta, str) else json.dumps(meta))
    return Path("meta")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"position": 0},
        {"position": 2**63 - 1},
        {"epoch_means": None},
        {"epoch_means": {"sums": {"loss": 1}, "counts": {"loss": 2}, "epoch_size": 1}},
        {"epoch_means": {"sums": {}, "counts": {}}},
        {"mixture": None, "skipped": None},
        {"mixture": [{"start": 0, "weights": {"a": 1, "b": 0.5}}, {"start": 8, "weights": {"a": 0, "b": 1}}]},
        {"skipped": [[8, 16], [16, 24], [80, 88]]},
    ],
)
def test_metadata_that_podrun_writes(tmp_path: Path, more: dict[str, Any]) -> None:
    """It is returned as it is."""
    assert read_meta(3, tmp_path, written(tmp_path, {**META, **more}), job_meta) == {**META, **more}


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("[" * 100_000, "RecursionError"),
        ({}, "KeyError: 'config'"),
        (META | {"config": []}, "TypeError: config is not of type dict"),
        (META | {"position": "8"}, "TypeError: position is not of type int"),
        (META | {"fingerprint": 0}, "TypeError: fingerprint is not of type str"),
        (META | {"shapes": []}, "TypeError: shapes is not of type dict"),
        (META | {"shapes": {}}, "KeyError: 'params'"),
        (META | {"shapes": {"params": []}}, "TypeError: shapes.params is not of type dict"),
        (META | {"position": -1}, "ValueError: position -1"),
        (META | {"position": 2**63}, f"ValueError: position {2**63}"),
        (META | {"epoch_means": {}}, "KeyError: 'sums'"),
        (META | {"fingerprint": "xy"}, "ValueError: non-hexadecimal"),
        (META | {"mixture": [{"start": 8, "weights": {"a": 1}}]}, "ValueError: the stages of the mixture"),
        (META | {"mixture": [{"start": 0, "weights": ["a"]}]}, "TypeError: the weights"),
        (META | {"skipped": [[8, 4]]}, "ValueError: the ranges that are left out"),
        (META | {"skipped": [[8, 16], [4, 6]]}, "ValueError: the ranges that are left out"),
        (META | {"skipped": [[8]]}, "ValueError: not enough values"),
        (META | {"skipped": [["a", "b"]]}, "TypeError"),
        (META | {"epoch_means": {"sums": {"a": 1}, "counts": {"b": 1}}}, "ValueError: epoch_means: sums and counts"),
        (META | {"epoch_means": {"sums": [], "counts": {}}}, "ValueError: epoch_means: sums and counts"),
        (META | {"epoch_means": {"sums": {"a": "x"}, "counts": {"a": 1}}}, "TypeError: epoch_means: sums are not"),
        (META | {"epoch_means": {"sums": {"a": 1}, "counts": {"a": 0}}}, "TypeError: epoch_means: counts or"),
        (META | {"epoch_means": {"sums": {"a": 1}, "counts": {"a": 1.5}}}, "TypeError: epoch_means: counts or"),
        (META | {"epoch_means": {"sums": {}, "counts": {}, "epoch_size": 0}}, "TypeError: epoch_means: counts or"),
    ],
)
def test_metadata_that_podrun_cannot_have_written(tmp_path: Path, meta: Any, reason: str) -> None:
    """The checkpoint is damaged; the message has the file and what is wrong with it."""
    file = written(tmp_path, meta)
    with pytest.raises(DamagedCheckpointError) as raised:
        read_meta(3, tmp_path, file, job_meta)
    assert raised.value.step == 3
    start = f"checkpoint 3 cannot be read: {tmp_path / 'meta'}: not the metadata of a checkpoint ("
    assert str(raised.value).startswith(start + reason)


def test_folders_that_are_none(tmp_path: Path) -> None:
    """A path with the name of a checkpoint may be anything."""
    with pytest.raises(DamagedCheckpointError, match=f"{tmp_path}: an empty folder$"):
        read_meta(3, tmp_path, Path("meta"), job_meta)
    (tmp_path / "file").touch()
    with pytest.raises(DamagedCheckpointError, match=r"file: Not a directory$"):
        read_meta(3, tmp_path / "file", Path("meta"), job_meta)
    with pytest.raises(DamagedCheckpointError, match=r"meta: No such file or directory$"):
        read_meta(3, tmp_path, Path("meta"), job_meta)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG])
def test_errors_about_the_content(number: int) -> None:
    """They do not depend on the host, whether Python or tensorstore tells them."""
    assert not is_host_fault(OSError(number, "x"))
    assert not is_host_fault(ValueError(f"NOT_FOUND: ... [os_error_code='{number}'] ..."))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.EPERM])
def test_errors_about_the_host(number: int) -> None:
    """The file may be good, so it is left as it is."""
    assert is_host_fault(OSError(number, "x"))
    assert is_host_fault(ValueError(f"... [os_error_code='{number}'] ..."))


def test_errors_without_a_number() -> None:
    """They are about the content."""
    assert not is_host_fault(ValueError("x")) and not is_host_fault(OSError("x"))


def test_what_an_error_means(tmp_path: Path) -> None:
    """A fault of the host ends the attempt; damage sends the run to the checkpoint before."""
    fault = unreadable(3, tmp_path, OSError(errno.EIO, "Input/output error", "/d/file"))
    assert isinstance(fault, HostFaultError)
    assert str(fault) == "checkpoint 3 cannot be read on this host now: /d/file: Input/output error"
    damage = unreadable(3, tmp_path, OSError(errno.ENOENT, "No such file"))
    assert isinstance(damage, DamagedCheckpointError)
    assert str(damage) == f"checkpoint 3 cannot be read: {tmp_path}: No such file"


@pytest.mark.parametrize(
    ("error", "file", "reason"),
    [
        (ValueError('NOT_FOUND: local file "/d/a" and local file "/d/b/"'), "/d/a", "missing"),
        (ValueError('OUT_OF_RANGE: local file "/d/a" in local file "/d/c"'), "/d/c", "cut off"),
        (
            ValueError('DATA_LOSS: "params.kernel/0.0" in OCDBT database at local file "/d/a"'),
            "/d/a",
            "damaged (array params.kernel)",
        ),
        (ValueError("PERMISSION_DENIED: x"), None, "unreadable"),
        (ValueError("something: else\nand more"), None, "ValueError: something: else"),
        (ValueError("x" * 400), None, "ValueError: " + "x" * 300),
        (OSError("without a reason"), None, "OSError: without a reason"),
    ],
)
def test_the_file_that_an_error_is_about(error: Exception, file: str | None, reason: str) -> None:
    """The last one that tensorstore names, without folders; the checkpoint's own folder if it names none."""
    assert explain(Path("/c"), error) == (Path(file or "/c"), reason)


def test_the_metadata_of_arrays() -> None:
    """The only JSON among them."""
    try:
        json.loads("{")
    except ValueError as error:
        path, reason = explain(Path("/c"), error)
    assert path == Path("/c/_METADATA") and reason.startswith("not the metadata of arrays (JSONDecodeError: ")

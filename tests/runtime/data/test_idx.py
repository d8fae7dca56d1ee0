"""Files in the format of MNIST."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.config import check_files
from podrun.runtime.contract import UserError

from ..array_jobs import Array, everything, job, load

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: Array) -> bytes:
    """Written by hand: zeros, type 8 (bytes), axes, their lengths big-endian, the bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def images(count: int, height: int = 3, width: int = 2) -> Array:
    return np.random.default_rng(count).integers(0, 256, (count, height, width))


def write(folder: Path) -> dict[str, Array]:
    """A folder of 7 and 5 images; label 4 is in the test set only."""
    arrays = {NAMES[0]: images(7), NAMES[1]: np.arange(7) % 3, NAMES[2]: images(5), NAMES[3]: np.arange(5)}
    for name, array in arrays.items():
        (folder / name).write_bytes(idx(array))
    return arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_images_and_labels(tmp_path: Path, compressed: bool) -> None:
    """Images as float32 [H, W, 1] from 0 to 1, labels as int32; the t10k files are the validation set."""
    arrays = write(tmp_path)
    if compressed:
        for name in NAMES:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
            (tmp_path / name).unlink()
    check_files(job("classification", {"name": "idx", "path": str(tmp_path)}))
    dataset = load("classification", "idx", tmp_path)
    assert (dataset.shape, dataset.outputs) == ((3, 2, 1), 5)
    for examples, x, y in ((dataset.train, *NAMES[:2]), (dataset.validation, *NAMES[2:])):
        batch = everything(examples)
        assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.int32)
        np.testing.assert_allclose(batch["x"], arrays[x][..., None] / 255, rtol=2e-7)
        np.testing.assert_array_equal(batch["y"], arrays[y])


def test_other_data_has_another_fingerprint(tmp_path: Path) -> None:
    """One pixel is enough."""
    arrays = write(tmp_path)
    known = load("classification", "idx", tmp_path).fingerprint
    assert load("classification", "idx", tmp_path).fingerprint == known
    arrays[NAMES[2]][-1, -1, -1] ^= 1
    (tmp_path / NAMES[2]).write_bytes(idx(arrays[NAMES[2]]))
    assert load("classification", "idx", tmp_path).fingerprint != known


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (
            NAMES[0],
            lambda data: data[:-1],
            "has 41 bytes of values, but its header says 7 x 3 x 2 = 42: it is truncated",
        ),
        (NAMES[0], lambda data: data + b"x", "has 43 bytes of values"),
        (NAMES[0], lambda data: data[:9], "ends within its header"),
        (NAMES[0], lambda data: b"\x89PNG" + data, r"begins with the bytes 89 50 4e 47 instead of 00 00 08 03"),
        (NAMES[1], lambda data: b"\0\0\x0d\x01" + data[4:], "instead of 00 00 08 01: .* with 1 axis"),
        (NAMES[1], lambda data: idx(np.zeros(6)), f"{NAMES[0]} has 7 examples and {NAMES[1]} has 6"),
        (NAMES[2], lambda data: idx(images(5, 4, 4)), "train images are 3x2, t10k images are 4x4"),
        (NAMES[2], lambda data: idx(images(4)), f"{NAMES[2]} has 4 examples and {NAMES[3]} has 5"),
        (NAMES[0], lambda data: idx(images(0)), f"{NAMES[0]} has 0 examples"),
    ],
)
def test_a_damaged_file(tmp_path: Path, name: str, damage: Damage, message: str) -> None:
    """The message says what is wrong, and with which file."""
    write(tmp_path)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(UserError, match=rf"^data\.path.*{name[:5]}.*{message}|^data\.path.*{message}"):
        load("classification", "idx", tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-10], lambda data: data[:40] + b"\xff" + data[41:], lambda _: b"text"]
)
def test_a_damaged_compressed_file(tmp_path: Path, damage: Damage) -> None:
    """Truncated, changed, or not compressed at all."""
    write(tmp_path)
    (tmp_path / NAMES[0]).unlink()
    (tmp_path / f"{NAMES[0]}.gz").write_bytes(damage(gzip.compress(idx(images(7)))))
    with pytest.raises(UserError, match=rf"^data\.path: .*{NAMES[0]}\.gz is not a complete gzip file"):
        load("classification", "idx", tmp_path)


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_file(tmp_path: Path, missing: str) -> None:
    """It is said before a host is touched, and on the host."""
    write(tmp_path)
    (tmp_path / missing).unlink()
    message = rf"^data\.path: there is neither {missing} nor {missing}\.gz in "
    with pytest.raises(UserError, match=message):
        check_files(job("classification", {"name": "idx", "path": str(tmp_path)}))
    with pytest.raises(UserError, match=message):
        load("classification", "idx", tmp_path)

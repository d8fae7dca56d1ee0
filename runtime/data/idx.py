"""Read MNIST's file format, idx (http://yann.lecun.com/exdb/mnist/): a big-endian header, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from ..config import Config
from ..config.data import IdxData
from ..config.files import IDX_FILES, idx_file
from ..contract import UserError
from .arrays import Array, Pair, array_dataset, check_pair
from .base import Dataset

_UNSIGNED_BYTE = 0x08


def idx_dataset(section: IdxData, config: Config) -> Dataset:
    """Return the dataset: x float32[H, W, 1] from 0 to 1 (held as bytes), y int32. Raises UserError for bad files."""
    names = iter(IDX_FILES)
    train, validation = (_read_pair(section.path, next(names), next(names)) for _ in range(2))
    if train[0].shape[1:] != validation[0].shape[1:]:
        raise UserError(
            f"data.path {section.path}: train images are {_size(train[0])}, t10k images are {_size(validation[0])}: "
            "they must have the same size; give files that belong together"
        )
    classes = 1 + max(int(train[1].max()), int(validation[1].max()))
    return array_dataset(train, validation, classes, scale=1 / 255)


def _size(images: Array) -> str:
    return f"{images.shape[1]}x{images.shape[2]}"


def _read_pair(folder: Path, images: str, labels: str) -> Pair:
    """Return images and labels, (uint8[n, H, W, 1], int32[n])."""
    pair = read_idx(idx_file(folder, images), 3)[..., None], read_idx(idx_file(folder, labels), 1).astype(np.int32)
    check_pair(pair, (images, labels), f"data.path {folder}")
    return pair


def read_idx(path: Path, ndim: int) -> Array:
    """Read a file, plain or .gz, as uint8 with `ndim` axes. Raises UserError if it is damaged or has other axes."""
    data = _read(path)
    header = 4 + 4 * ndim
    magic = bytes((0, 0, _UNSIGNED_BYTE, ndim))
    if data[:4] != magic:
        raise UserError(
            f"data.path: {path} begins with the bytes {data[:4].hex(' ') or '(none)'} instead of {magic.hex(' ')}: it is "
            f"not an idx file of bytes with {ndim} {'axis' if ndim == 1 else 'axes'}; give files in MNIST's format"
        )
    if len(data) < header:
        raise UserError(f"data.path: {path} ends within its header: it is truncated; copy or download it again")
    shape = struct.unpack(f">{ndim}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise UserError(
            f"data.path: {path} has {len(data) - header} bytes of values, but its header says "
            f"{' x '.join(map(str, shape))} = {math.prod(shape)}: it is truncated or damaged; copy or download it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _read(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"data.path: {path} is not a complete gzip file ({error}); copy or download it again") from None
    except OSError as error:
        raise UserError(
            f"data.path: cannot read {path}: {error.strerror}; check the file and its permissions"
        ) from None

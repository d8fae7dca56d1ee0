"""Samples of a run: texts, tables, images and histograms, in the form in which they are sent and stored."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Form = Literal["text", "table", "image", "histogram"]

LARGEST = 1 << 20
"""Most bytes of a sample."""
_ROWS, _COLUMNS, _CELL = 200, 40, 500
"""Most rows and columns of a table that are kept, and characters of a cell."""
_BINS = 40
_PIXELS = 1 << 24
"""Most values of an image. Larger images are not compressed to find out whether they fit."""
_IMAGE = "uint8 or float from 0 to 1, [height, width] or [height, width, 1, 3 or 4]"


class Sample(NamedTuple):
    """A sample of a run, to be shown to the user."""

    name: str
    form: Form
    content: str
    """As in `events.SampleEvent`."""

    @property
    def data(self) -> bytes:
        """Return the content of the sample's file."""
        return base64.b64decode(self.content) if self.form == "image" else self.content.encode()

    @property
    def ending(self) -> str:
        """Return the extension of the sample's file."""
        return {"text": ".txt", "image": ".png"}.get(self.form, ".json")


def sample_of(name: str, value: Any) -> Sample:
    """Return a value as a sample: text, rows of a table, an image, or numbers as a histogram.

    Args:
        name: name of the sample.
        value: a string; a list of dictionaries or of lists, the rows of a table; an array of two or three dimensions, an
            image; or an array or list of numbers of one dimension, whose distribution is shown.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, str):
        return Sample(name, "text", value.encode("utf-8", "replace").decode())
    if isinstance(value, Sequence) and value and all(isinstance(row, Mapping) for row in value):
        return Sample(name, "table", json.dumps(_table_of_mappings(value)))
    if isinstance(value, Sequence) and value and all(isinstance(row, list | tuple) for row in value):
        return Sample(name, "table", json.dumps(_table(value)))
    try:
        array = np.asarray(value)
    except Exception:  # lists of different lengths, keys of JAX, objects that refuse
        array = np.empty(0, object)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2, 3):
        raise TypeError(
            f"podrun.report: sample {name} is {type(value).__name__} with {array.dtype}{list(array.shape)}; give text, a "
            f"list of rows, an image ({_IMAGE}), or numbers of one dimension"
        )
    if array.ndim == 1:
        return Sample(name, "histogram", json.dumps(_histogram(array.astype(np.float64))))
    return Sample(name, "image", base64.b64encode(_png(name, array)).decode())


def _table_of_mappings(rows: Sequence[Mapping[Any, Any]]) -> list[list[str]]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return _table([columns, *([row.get(key, "") for key in columns] for row in rows)])


def _table(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[_cell(value) for value in row[:_COLUMNS]] for row in rows[: _ROWS + 1]]


def _cell(value: Any) -> str:
    if not isinstance(value, str):
        array = np.empty(0) if isinstance(value, list | tuple | dict | set) else np.asarray(value)
        value = f"{float(array.reshape(())):.6g}" if array.size == 1 and array.dtype.kind == "f" else str(value)
    text: str = value.encode("utf-8", "replace").decode()
    return text if len(text) <= _CELL else f"{text[:_CELL]} ..."


def _histogram(values: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"edges": [], "counts": []}
    try:
        with np.errstate(all="ignore"):
            counts, edges = np.histogram(finite, _BINS)
    except ValueError:  # numbers that are too close to each other, or too far apart, for so many bins
        values, counts = np.unique(finite, return_counts=True)
        edges = np.append(values, values[-1])
        if len(values) > _BINS:
            return {"edges": [float(values[0]), float(values[-1])], "counts": [len(finite)]}
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _png(name: str, image: np.ndarray[Any, Any]) -> bytes:
    """Return an image as a PNG (RFC 2083), 8 bits a channel. Raises TypeError for another shape."""
    channels = 1 if image.ndim == 2 else image.shape[2]
    if channels not in (1, 3, 4) or 0 in image.shape:
        raise TypeError(f"podrun.report: sample {name} has the shape {list(image.shape)}; an image is {_IMAGE}")
    if image.size > _PIXELS:
        raise TypeError(f"podrun.report: sample {name} has {image.size:,} values, and an image at most {_PIXELS:,}")
    if image.dtype.kind in "iu" and image.dtype != np.uint8:
        if image.min() < 0 or image.max() > 255:
            raise TypeError(
                f"podrun.report: sample {name} has values from {image.min()} to {image.max()}; an image is {_IMAGE}"
            )
        image = image.astype(np.uint8)
    elif image.dtype != np.uint8:
        image = np.nan_to_num(image.astype(np.float32)).clip(0, 1) * 255 + 0.5
    height, width = image.shape[:2]
    rows = np.ascontiguousarray(image.astype(np.uint8)).reshape(height, width * channels)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], 1)  # filter 0: none
    colour_type = {1: 0, 3: 2, 4: 6}[channels]
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)),
        (b"IDAT", zlib.compress(filtered.tobytes(), 6)),
        (b"IEND", b""),
    )
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def is_too_large(sample: Sample) -> str | None:
    """Return why a sample is too large to be kept; None if it is kept."""
    size = len(sample.content)
    if size <= LARGEST:
        return None
    return f"it has {size / 1e6:.1f} MB, and at most {math.floor(LARGEST / 1e6)} MB are kept; make it smaller"

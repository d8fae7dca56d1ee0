"""A user's data source that prints all the time."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config
from podrun.runtime.config.data import SineData
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset

LINE = 200  # bytes
BURST = 50  # lines between two pauses


def line_of(process: int, number: int) -> bytes:
    return b"<%d %d %s>\n" % (process, number, b"x" * LINE)


def _print(process: int, written: Path) -> None:
    """Print numbered lines; how many have been written is in a file, which outlives any end of this process."""
    written.write_bytes(bytes(8))
    with written.open("r+b") as file, mmap.mmap(file.fileno(), 8) as count:
        for number in itertools.count():
            os.write(1, line_of(process, number))
            count[:] = (number + 1).to_bytes(8, "little")
            if number % BURST == 0:
                time.sleep(0.005)


def dataset(options: dict[str, Any], config: Config) -> Dataset:
    """`data: {name: "noisy:dataset", options: {folder}}`"""
    process, folder = int(os.environ["PODRUN_PROCESS_ID"]), Path(options["folder"])
    threading.Thread(target=_print, args=(process, folder / f"written-{process}"), daemon=True).start()
    return load_dataset(config.model_copy(update={"data": SineData(samples=400)}))

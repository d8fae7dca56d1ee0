"""Runs that never were: their events are written as a supervisor would."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np

from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.measure.samples import sample_of

from ..rundir.made import event, make, record

HOSTILE = "</script><script>alert(1)</script><b>&\x1b[31mred\x1b[0m\u2028"
BEGIN = 1_000_000.0


def start(attempt: int, at: float, hosts: int = 2, **fields: Any) -> dict[str, Any]:
    names = {f"host-{n}": [n] for n in range(hosts)}
    return event("start", time=BEGIN + at, attempt=attempt, hosts=names, **fields)


def phase(name: str, at: float, hosts: int = 2) -> list[dict[str, Any]]:
    return [event("phase", n, time=BEGIN + at, phase=name) for n in range(hosts)]


def steps(first: int, last: int, at: float, hosts: int = 2, late: float = 0.0) -> list[dict[str, Any]]:
    """Return a step a second on each host; host 1 keeps the others waiting for `late` seconds of each."""
    rows = []
    for step in range(first, last + 1):
        seconds = step - first + 1.0
        for n in range(hosts):
            waited = seconds * (0.5 if n != 1 else 0.5 - late)
            metrics = {"loss": 4.0 / step, "learning_rate": 0.1, "tokens_per_second": 100.0, "seconds_per_step": 1.0}
            metrics |= {
                "step_seconds_p50": 1.0,
                "step_seconds_p95": 1.0,
                "waited_for_data": 0.1 * seconds,
                "waited": waited,
            }
            rows.append(event("step", n, time=BEGIN + at + seconds, step=step, **metrics))
    return rows


def run_with_restart() -> RunDirectory:
    """Return a run of 40 s: 10 s to the first step, 8 steps of which 4 are lost, 2 s down, 8 s to go on, steps 5 to 12."""
    directory = make()
    record(directory, start(0, 0), *phase("setup", 1), *phase("compile", 6), *phase("train", 10), *steps(1, 4, 10))
    record(
        directory, event("eval", 0, time=BEGIN + 14, step=4, loss=1.5), event("checkpoint", 0, time=BEGIN + 14, step=4)
    )
    record(directory, *steps(5, 8, 14), event("exit", 1, time=BEGIN + 18, code=-9))
    restart = {"message": "host-1: was ended by SIGKILL", "ending": "failed", "code": 137, "what": "x", "trained": True}
    restart |= {"saved": 4, "seconds": 8.0, "silent_program": False}
    record(directory, event("restart", time=BEGIN + 18, **restart), start(1, 20), *phase("restore", 24))
    # Only host-0 has read the checkpoint, and its report came after the next of host-1.
    resume = event("resume", 0, time=BEGIN + 25, step=4)
    record(directory, *reversed(phase("compile", 26)), resume, *phase("train", 28))
    record(directory, *steps(5, 12, 28), *phase("save", 36), event("checkpoint", 0, time=BEGIN + 39, step=12))
    usage = {"cpu": 0.5, "memory": 10**9, "memory_total": 4 * 10**9, "received": 1e6, "sent": 0.0, "devices": []}
    record(directory, *(event("usage", host="host-0", time=BEGIN + at, **usage) for at in (12, 22, 32)))
    record(directory, event("end", time=BEGIN + 40, code=0))
    return directory


def hostile_run() -> RunDirectory:
    directory = make()
    rows = steps(1, 3, 0)
    rows[0]["loss"], rows[2]["loss"], rows[4]["loss"] = math.nan, math.inf, 1e300
    record(directory, start(0, 0, workdir=HOSTILE, slice=HOSTILE, hosts=2), *phase("train", 0), *rows)
    error = {"kind": "exception", "message": HOSTILE, "traceback": f"Traceback\n{HOSTILE}\n"}
    record(directory, event("error", 0, time=BEGIN + 3, **error), event("note", 0, message=HOSTILE))
    record(directory, event("end", time=BEGIN + 4, code=1, host="host-0", process=0, message=HOSTILE))
    (directory.logs / "host-0.log").write_bytes(f"{HOSTILE}\n".encode() + b"\xff\x00\r\n")
    return directory


def run_with_samples() -> RunDirectory:
    """Return a run of a program with metrics of its own and a sample of each form, some of them hostile or damaged."""
    directory = make()
    image = base64.b64encode(png(np.full((8, 8, 3), 200, np.uint8))).decode()
    samples = {
        "words": ("text", HOSTILE),
        HOSTILE: ("text", "of a hostile name"),
        "picture": ("image", image),
        "no picture": ("image", base64.b64encode(HOSTILE.encode()).decode()),
        "rows": ("table", json.dumps([["a", HOSTILE], ["1", HOSTILE]])),
        "no rows": ("table", HOSTILE),
        "numbers": ("histogram", json.dumps({"edges": [0.0, 1.0, 2.0], "counts": [3, 1]})),
        "no numbers": ("histogram", json.dumps({"edges": 3})),
        "unknown": (HOSTILE, HOSTILE),
    }
    record(directory, start(0, 0, hosts=1, program="python own.py"))
    for step in range(1, 6):
        record(
            directory, event("step", 0, time=BEGIN + step, step=step, **{"f1": step / 5, "val/auc": 0.5, HOSTILE: 1.0})
        )
        for name, (form, content) in samples.items():
            fields = {"name": name, "form": form, "content": content}
            record(directory, {**event("sample", 0, time=BEGIN + step, step=step), **fields})
    record(directory, event("eval", 0, time=BEGIN + 5, step=5, f1=0.75), event("end", time=BEGIN + 6, code=0))
    return directory


def png(image: np.ndarray[Any, Any]) -> bytes:
    return sample_of("a", image).data

"""Define every frame that launcher and agent exchange: its kind, its fields and their types. Both sides check frames.

A frame is a line of JSON with its kind under `type`. State frames of the agent carry a sequence number `n`, so that each is
delivered once and in order over any number of connections. `data` of `output` keeps any byte by surrogateescape.
A frame that does not match is `Malformed`: it ends that connection, and for the launcher that host, nothing else.
"""

from __future__ import annotations

from typing import Any, Dict

from .address import ip
from .schema import (
    WORDS,
    Check,
    Lines,
    Malformed,
    anything,
    count,
    each,
    either,
    exit_code,
    flag,
    loads,
    maybe,
    number,
    port,
    printable,
    python_version,
    raw,
    record,
    short,
    table,
    text,
    version,
    words,
)

__all__ = [
    "AHEAD",
    "ANSWERS",
    "ASKED",
    "EXTENSION",
    "FILES_LIMIT",
    "FROM_AGENT",
    "FROM_FILES",
    "FROM_PREPARE",
    "GONE",
    "ISOLATED",
    "LIMIT",
    "MARK",
    "MISSING",
    "NURSERY",
    "PIECE",
    "PREEMPTED",
    "SPEC",
    "STANDBY",
    "STREAM_LIMIT",
    "TO_AGENT",
    "UNBEGUN",
    "UNHEARD",
    "USAGE",
    "WORDS",
    "Lines",
    "Malformed",
    "parse",
    "parse_answer",
    "short",
]

Frame = Dict[str, Any]
Frames = Dict[str, Check]
"""Maps the kind of a frame to the check of its fields."""

MARK = b"podrun-agent\n"
"""The first line of the agent on stdout. Anything before it was printed by a login script."""
ISOLATED = ("-I", "-S", "-c")
"""Options of the Python that runs the agent: isolated and without site-packages, as it uses only the standard library."""
STANDBY = "--standby"
"""The runtime's argument that makes it import, and wait for what it is to do."""
IFNAME = "NCCL_SOCKET_IFNAME"
"""Variable that tells NCCL which network interfaces to use."""
AHEAD = "--ahead"
"""The same, in a hurry: the first attempt is about to start."""
NURSERY = "nursery"
"""The agent's command that makes it start further agents as copies of itself."""
GONE = "no agent here"
"""Message of a relay that finds no agent to connect to."""
UNBEGUN = "no agent was started"
"""Start of the message of a relay that could not start an agent; the rest says why."""
ASKED = "asked to stop"
"""Reason of a stop that the launcher asked for."""
UNHEARD = "no word from the launcher"
"""Start of the reason of a stop after the lease has expired."""
PREEMPTED = "its machine is needed elsewhere, or shuts down: "
"""Start of the reason of a stop that the machine has asked for; the end says how."""
INSTRUMENT = "instrument"
"""Folder, in that of an agent, with the files that come first on a user program's PYTHONPATH."""
MISSING = "missing"
"""Stands in place of the version of a package that is not installed."""
EXTENSION = 100 * 10**6
"""Free space, in bytes, that extending an environment by new packages requires."""

ENV_RUN = "PODRUN_RUN_ID"
ENV_HOST = "PODRUN_HOST"
ENV_DIR = "PODRUN_DIR"
ENV_WORKDIR = "PODRUN_WORKDIR"
ENV_PID = "PODRUN_PID"
ENV_MAIN_PID = "PODRUN_MAIN_PID"  # of the worker as it sees itself, also in a PID namespace
ENV_PROJECT = "PODRUN_PROJECT"
"""Environment variables that the agent sets or reads for workers and commands, named as in `runtime.contract`."""
OTHER_LAUNCHERS = ("SLURM_", "SLURMD_", "SRUN_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL")
"""Beginnings of variables of a login that mislead programs: they describe the job of another launcher, not this run."""
MULTISLICE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_PORT")
"""Variables of a login that make libtpu wait for slices of another job, which may be gone. A plan has all four, or none."""

LIMIT = 16 << 20
"""Most bytes in a line. The largest lines are a spec with its files, and the answer of `clean`."""
STREAM_LIMIT = 1 << 20
"""Most bytes in a frame of FROM_AGENT: output comes in 64 KiB pieces, and a byte may take six characters in JSON."""
PIECE = 1 << 18
"""Most bytes of a file behind a frame `data` of FROM_FILES."""
FILES_LIMIT = 100000
"""Most files of a folder that are sent."""

USAGE: Frames = {
    "cpu": number,  # share of all cores, 0 to 1
    "memory": count,  # bytes in use, and of the machine
    "memory_total": count,
    "received": number,  # bytes a second over the network, without loopback
    "sent": number,
    "devices": each(record({"busy": maybe(number), "memory": maybe(count), "memory_total": maybe(count)})),
}
"""Fields of what an agent measures on its host from time to time. Devices are those that `nvidia-smi` knows."""

TO_AGENT: Frames = {
    "spec": record({"run": text, "processes": each(anything, 1)}),  # its other fields are read only by `run`
    "attach": record({"next": count, "offsets": table(count)}),
    "probe": record({"address": text}),
    "go": record({"env": table(text)}),
    "ping": record({}),
    "stop": record({"grace": number}, {"hurry": flag}),  # hurry: the launcher does not wait for output
    "dump": record({}),
    "standby": record({"count": count}),  # how many on this machine; they take memory
    "close": record({"offsets": table(count)}, {"again": flag}),  # again: the spec of the next attempt may follow
}
FROM_AGENT: Frames = {
    "hello": record({"n": count, "pid": count, "python": words, "host": words}, {"boot": words}),
    "waiting": record({"n": count, "holder": words}),
    "refused": record({"n": count, "reason": words}),
    "ready": record(
        {"n": count, "port": maybe(port), "address": maybe(ip)}, {"second_port": maybe(port), "isolated": flag}
    ),
    "probed": record({"n": count, "error": maybe(words)}),
    "started": record({"n": count, "process": count, "pid": count}, {"standby": flag}),
    "output": record({"stream": text, "offset": count, "data": raw}),
    "unreadable": record({"n": count, "stream": text, "error": words}),  # nothing more of the stream will come
    "exit": record(
        {"n": count, "process": count, "code": exit_code, "error": maybe(words), "asked": flag},
        # Of a SIGKILL that was not the agent's; and which disk was full then.
        {"out_of_memory": maybe(flag), "memory": words, "full": words},
    ),
    "stopped": record({"n": count, "reason": words, "left": each(count), "kept": maybe(words), "missing": count}),
    "pong": record({}),
    # Of processes whose beats have changed: the bytes as hexadecimal digits; `now` is the time on the clock of the beats.
    "progress": record({"beats": table(text)}, {"now": number}),
    "usage": record(USAGE),
    "dumped": record(  # more: native stacks are still being printed
        {"n": count, "processes": each(record({"process": count, "state": text, "load": number}))}, {"more": flag}
    ),
}
SPEC: Frames = {"spec": TO_AGENT["spec"]}
_EXPECTED = record(
    {
        "process": count,
        "argv": each(text, 1),
        "env": table(text),
        "path": table(each(text)),
        "threads": maybe(count),
        "cwd": text,
    },
    {"names": each(text)},  # of the hosts of a simulated pod, its own first
)
FIRST: Frames = {**SPEC, "ahead": record({"processes": each(_EXPECTED, 1), "count": count})}
"""What may come first: the spec, or what its workers are expected to be, while it is made."""

_DISK = record({"folder": text, "free": count, "total": count, "files": maybe(count), "writable": flag})
_HOLDER = record({"pid": count, "user": text, "command": text, "since": number, "files": each(text)})
_GPU = record(
    dict(
        {"index": count, "uuid": text, "name": text, "memory": maybe(count), "free": maybe(count)},
        ecc=maybe(text),
        errors=maybe(count),
    )
)
_GPU_USER = record({"gpu": count, "pid": count, "user": maybe(text), "command": text})
_FACTS: Frames = {
    "system": record({"host": text, "cores": count}),
    "interpreter": record(
        {"version": python_version, "executable": text, "packages": maybe(table(version))}, {"extends": flag}
    ),
    "driver": maybe(version),
    "disk_home": maybe(_DISK),
    "disk_tmp": maybe(_DISK),
    "disk_workdir": maybe(_DISK),
    "memory": record({"total": count, "available": count}),
    "devices": record({"accel": each(text), "vfio": each(text), "nvidia": each(text)}),
    "holders": record({"processes": each(_HOLDER), "partial": flag}),
    "gpus": maybe(record({"rows": each(_GPU), "users": each(_GPU_USER), "why": maybe(text), "late": flag})),
    "links": maybe(
        record(
            dict(
                {"interfaces": each(record({"name": text, "speed": maybe(count)})), "used": maybe(text)},
                chosen=maybe(text),
                infiniband=each(record({"port": text, "state": text, "rate": maybe(text)})),
                nvlink=each(record({"gpu": count, "links": count, "active": count})),
            )
        )
    ),
    "lock_file": maybe(record({"path": text, "owner": text, "writable": flag, "held": flag, "partial": flag})),
    "run": maybe(text),
    "claim": maybe(text),
    "host_name": record(
        {"name": text, "addresses": each(text), "used": maybe(text), "peers": maybe(text)}, {"why": text}
    ),
    "proxies": record({"set": each(text), "no_proxy": maybe(text)}),
    "huge_pages": text,
    "limits": record({"nofile": maybe(count), "memlock": maybe(count)}),
}
_NOT_KNOWN = record({"error": text})
FACTS = record(
    {"clock": record({"received": number, "answered": number}), "system": either(_FACTS["system"], _NOT_KNOWN)},
    {name: either(check, _NOT_KNOWN) for name, check in _FACTS.items()},
)
"""Check of a host's facts from `facts` and `prepare`; a fact that could not be determined is `{"error": reason}`."""

FROM_PREPARE: Frames = {
    "need": record({"bundles": each(text)}),
    "progress": record({"phase": text, "message": text}),
    "alive": record({}),
    "ready": record({}),
    "done": record({"python": text, "facts": maybe(FACTS), "pruned": count}),
    "error": record({"what": text, "remedy": text}),
}
FROM_FILES: Frames = {
    "folder": record({"path": words, "run": maybe(words)}),  # run: the last that used the folder as its workdir
    "file": record({"path": text, "size": count}),
    "listed": record({"left_out": count}),
    "sending": record({"offset": count, "size": count}),
    "data": record({"size": count}),
    "sent": record({"digest": text}),
    "failed": record({"error": words, "gone": flag}),
}
_ERROR = record({"error": maybe(text)})
_LEFT_FOLDER = record({"run": text, "path": text, "bytes": count, "age": number})
_LEFT_PROCESS = record({"run": text, "pid": count, "command": text})
_ENVIRONMENT = record({"kind": text, "path": text, "bytes": count, "age": number, "due": flag})
_CHECKPOINT = record(
    dict(
        {"name": text, "step": count, "time": number, "bytes": count, "loss": maybe(number), "pinned": flag},
        verified=flag,
        problem=maybe(words),
        changes=each(words),
    )
)
ANSWERS: Frames = {
    "facts": FACTS,
    "listen": either(record({"error": maybe(text), "port": port, "address": maybe(ip)}), record({"error": text})),
    "reach": _ERROR,
    "share": either(record({"error": maybe(text), "path": text}), record({"error": text})),
    "see": _ERROR,
    "bucket": record({"errors": each(words), "unreachable": flag}),
    "sweep": record({"left": each(count)}, {"boot": words}),
    "checkpoints": record({"error": maybe(words), "workdir": words, "done": each(words), "rows": each(_CHECKPOINT)}),
    "profile": _ERROR,
    "clean": record(
        dict(
            {"folders": each(_LEFT_FOLDER), "processes": each(_LEFT_PROCESS), "environments": each(_ENVIRONMENT)},
            removed=count,
            left=each(count),
            pruned=count,
        )
    ),
}
"""Maps each command that answers with one line to the check of its answer."""


def parse(line: bytes, frames: Frames, limit: int = LIMIT) -> Frame:
    """Return the frame of a line. Raises Malformed if its kind is not in `frames` or its fields fail the check."""
    frame = loads(line, limit)
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise Malformed("not an object with a type: %s" % short(line))
    kind = frame["type"]
    if kind not in frames:
        raise Malformed("unknown type %s" % short(kind))
    try:
        frames[kind](frame)
    except Malformed as why:
        raise Malformed("%s: %s" % (kind, why))
    return frame if kind == "output" else _readable(frame, line)


def parse_answer(line: bytes, command: str) -> Frame:
    """Return a host's answer to a command of ANSWERS. Raises Malformed."""
    answer: Frame = loads(line, LIMIT)
    ANSWERS[command](answer)
    return _readable(answer, line)


def _readable(frame: Frame, line: bytes) -> Frame:
    """Replace lone surrogates, which only `output` may hold, because the other texts are displayed and recorded."""
    if b"\\u" in line:
        readable: Frame = printable(frame)
        return readable
    return frame

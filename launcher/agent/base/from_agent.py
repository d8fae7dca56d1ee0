"""Declare every message that an agent sends (frames of a run, of `prepare`, of files; answers), and derive the checks.

A frame is a line of JSON with its kind under `type`. State frames of a run carry a sequence number `n`, so that each is
delivered once and in order over any number of connections. The agent imports this module only for its types.
"""

from typing import TYPE_CHECKING, Dict, List, Optional, Union

from .address import ip, peer
from .message import (
    Count,
    ExitStatus,
    Frames,
    Message,
    Port,
    PythonVersion,
    Raw,
    Version,
    Words,
    check_of,
    fields_of,
    frame_checks,
)
from .protocol import LIMIT, readable
from .schema import Check, both, count, either, loads, record

if TYPE_CHECKING:
    from typing import Any, Literal

    Address = str
    Peer = str
else:
    from typing import Literal

    Address = ip
    Peer = peer


# --- frames of a run ---


class _Numbered(Message, total=False):
    n: Count
    """Sequence number, set when the frame is queued; required on the wire."""


class _Hello(_Numbered):
    type: Literal["hello"]
    pid: Count
    python: Words
    host: Words


class Hello(_Hello, total=False):
    """The first frame of an agent."""

    boot: Words
    """Id of the machine's current boot."""


class Waiting(_Numbered):
    """Another run has the host; the agent waits for it."""

    type: Literal["waiting"]
    holder: Words


class Refused(_Numbered):
    """The agent cannot run this attempt."""

    type: Literal["refused"]
    reason: Words


class _Ready(_Numbered):
    type: Literal["ready"]
    port: Optional[Port]
    address: Optional[Address]


class Ready(_Ready, total=False):
    """The host belongs to the run, and the files are written; `port` is reserved for the coordinator."""

    second_port: Optional[Port]
    isolated: bool


class Probed(_Numbered):
    type: Literal["probed"]
    error: Optional[Words]


class _Started(_Numbered):
    type: Literal["started"]
    process: Count
    pid: Count


class Started(_Started, total=False):
    """A worker was started."""

    standby: bool
    """The worker was prewarmed."""
    cold: Words
    """Why the interpreter that was held for the worker could not be used."""


class Warm(Message):
    """The workers of a held agent that waits for its spec have done their imports."""

    type: Literal["warm"]
    workers: Count
    """Number of workers that memory allowed."""


class Output(Message):
    """A piece of a stream: of a worker's output, or of its events."""

    type: Literal["output"]
    stream: str
    offset: Count
    data: Raw


class Unreadable(_Numbered):
    """The stream cannot be read; nothing more of it will come."""

    type: Literal["unreadable"]
    stream: str
    error: Words


class _Exit(_Numbered):
    type: Literal["exit"]
    process: Count
    code: ExitStatus
    error: Optional[Words]
    asked: bool


class Exit(_Exit, total=False):
    """A worker has ended; `code` is negative for a signal, `asked` is true after a stop."""

    out_of_memory: Optional[bool]
    """Whether the kernel killed it for lack of memory, after a SIGKILL that the agent did not send; None: unknown."""
    memory: Words
    """Memory in use after such a SIGKILL."""
    full: Words
    """The disk that was full."""


class Stopped(_Numbered):
    """All workers have ended, except the pids in `left`."""

    type: Literal["stopped"]
    reason: Words
    left: List[Count]
    kept: Optional[Words]
    missing: Count
    """Bytes of output that the launcher does not have."""


class Pong(Message):
    type: Literal["pong"]


class _Progress(Message):
    type: Literal["progress"]
    beats: Dict[str, str]


class Progress(_Progress, total=False):
    """Changed progress records by process number, in hexadecimal digits."""

    now: float
    """Now, on the clock of the records."""


class Device(Message):
    """Usage of a GPU, from nvidia-smi."""

    busy: Optional[float]
    memory: Optional[Count]
    memory_total: Optional[Count]


class Measured(Message):
    """Usage of a host, which its agent measures every few seconds."""

    cpu: float
    """Fraction of all cores in use, 0 to 1."""
    memory: Count
    """Bytes in use."""
    memory_total: Count
    received: float
    """Bytes per second over the network, without loopback."""
    sent: float
    devices: List[Device]


class Usage(Measured):
    type: Literal["usage"]


class Stuck(Message):
    """State letter of a worker in the kernel, and the number of cores that it uses."""

    process: Count
    state: str
    load: float


class _Dumped(_Numbered):
    type: Literal["dumped"]
    processes: List[Stuck]


class Dumped(_Dumped, total=False):
    """The workers have printed their stacks."""

    more: bool
    """True: native stacks are still being printed."""


# --- facts of a host ---


class NotKnown(Message):
    """Replaces a fact that could not be determined."""

    error: str


class Disk(Message):
    path: str
    folder: str
    """The nearest existing folder above `path`."""
    free: Count
    total: Count
    files: Optional[Count]
    writable: bool


class _Clock(Message):
    received: float
    answered: float


class Clock(_Clock, total=False):
    """Times by the host's clock at which it received the request and answered."""

    skew: float
    """Seconds by which the host's clock is ahead. The launcher sets this, and `uncertain`."""
    uncertain: float
    """Largest possible error of `skew`, in seconds."""


class System(Message):
    host: str
    cores: Count


class WheelTarget(Message):
    """The interpreter for which wheels must be built."""

    version: PythonVersion
    implementation: str
    """As in `sys.implementation.name`."""
    machine: str
    """As in `platform.machine()`."""
    libc: str
    """Version of glibc; empty: another C library."""


class _Interpreter(Message):
    version: PythonVersion
    executable: str
    packages: Optional[Dict[str, Version]]


class Interpreter(_Interpreter, total=False):
    extends: bool
    cannot_build: str
    """Why its missing environment cannot be built, then `; ` and what to do."""
    target: WheelTarget
    """Set if the launcher must send the wheels of its missing environment."""
    brings: WheelTarget
    """Set if the launcher must send this Python itself: the interpreter of the agent."""


class Memory(Message):
    total: Count
    available: Count


class DeviceFiles(Message):
    accel: List[str]
    vfio: List[str]
    nvidia: List[str]


class Holder(Message):
    """A process that uses a device."""

    pid: Count
    user: str
    command: str
    since: float
    files: List[str]


class Holders(Message):
    processes: List[Holder]
    partial: bool


class Gpu(Message):
    index: Count
    uuid: str
    name: str
    memory: Optional[Count]
    free: Optional[Count]
    ecc: Optional[str]
    errors: Optional[Count]


class GpuUser(Message):
    gpu: Count
    pid: Count
    user: Optional[str]
    command: str


class Gpus(Message):
    rows: List[Gpu]
    users: List[GpuUser]
    why: Optional[str]
    late: bool


class Interface(Message):
    name: str
    speed: Optional[Count]


class Infiniband(Message):
    port: str
    state: str
    rate: Optional[str]


class Nvlink(Message):
    gpu: Count
    links: Count
    active: Count


class Links(Message):
    interfaces: List[Interface]
    used: Optional[str]
    chosen: Optional[str]
    infiniband: List[Infiniband]
    nvlink: List[Nvlink]


class LockFile(Message):
    path: str
    owner: str
    writable: bool
    held: bool
    partial: bool


class _HostName(Message):
    name: str
    addresses: List[str]
    used: Optional[str]
    peers: Optional[str]


class HostName(_HostName, total=False):
    why: str


class Proxies(Message):
    set: List[str]
    no_proxy: Optional[str]


class Limits(Message):
    nofile: Optional[Count]
    memlock: Optional[Count]


class _Facts(Message):
    clock: Clock
    system: System


class Facts(_Facts, total=False):
    """The facts of a host, from `facts` and `prepare`. Each except the clock may be a NotKnown instead."""

    interpreter: Interpreter
    driver: Optional[Version]
    disk_home: Optional[Disk]
    disk_tmp: Optional[Disk]
    disk_workdir: Optional[Disk]
    machine: str
    """Id of the machine, or of a container with its own network."""
    memory: Memory
    devices: DeviceFiles
    holders: Holders
    gpus: Optional[Gpus]
    links: Optional[Links]
    lock_file: Optional[LockFile]
    run: Optional[str]
    claim: Optional[str]
    host_name: HostName
    proxies: Proxies
    huge_pages: str
    limits: Limits
    lacks: List[str]
    """Requested modules that the workers' interpreter does not find."""


_REQUIRED, _OPTIONAL = fields_of(Facts)
_UNKNOWN = check_of(NotKnown)
FACTS: Check = record(
    {"clock": _REQUIRED["clock"], "system": either(_REQUIRED["system"], _UNKNOWN)},
    {name: either(check, _UNKNOWN) for name, check in _OPTIONAL.items()},
)
if TYPE_CHECKING:
    Gathered = Facts
else:
    Gathered = FACTS


# --- frames of `prepare` ---


class Need(Message):
    """Request for the bundles that the host does not have."""

    type: Literal["need"]
    bundles: List[str]


class Phase(Message):
    type: Literal["progress"]
    phase: str
    message: str


class Alive(Message):
    type: Literal["alive"]


class Prepared(Message):
    type: Literal["ready"]


class Done(Message):
    type: Literal["done"]
    python: str
    facts: Optional[Gathered]
    pruned: Count


class LacksWheels(Message):
    """The environment is missing, and so are the wheels or the Python to build it from. Nothing follows."""

    type: Literal["wheels"]
    target: WheelTarget
    python: bool
    """True: Python is missing, and `target` is the interpreter of the agent."""


class Failed(Message):
    type: Literal["error"]
    what: str
    remedy: str


# --- frames of the commands that send files ---


class Folder(Message):
    type: Literal["folder"]
    path: Words
    run: Optional[Words]
    """The last run that used the folder as its workdir."""


class File(Message):
    type: Literal["file"]
    path: str
    size: Count


class Listed(Message):
    type: Literal["listed"]
    left_out: Count


class Sending(Message):
    type: Literal["sending"]
    offset: Count
    size: Count


class Data(Message):
    """Header of a part of the file: the line is followed by `size` raw bytes."""

    type: Literal["data"]
    size: Count


class Sent(Message):
    type: Literal["sent"]
    digest: str


class NotSent(Message):
    type: Literal["failed"]
    error: Words
    gone: bool


# --- frames of `bring` ---


class Store(Message):
    """`id` is the same on hosts that share a home."""

    type: Literal["store"]
    id: str


class Changed(Message):
    """A file here was changed, and is sent again."""

    type: Literal["changed"]
    message: str


class Holds(Message):
    """Number of bytes that this host lacks, and the address at which it serves other hosts; None: it serves none."""

    type: Literal["holds"]
    missing: Count
    total: Count
    address: Optional[Peer]


class Want(Message):
    """Numbers of the pieces that the launcher is to send."""

    type: Literal["want"]
    pieces: List[Count]


class Got(Message):
    type: Literal["got"]
    bytes: Count
    source: str


class Remark(Message):
    type: Literal["note"]
    message: str


class Complete(Message):
    """All data is here. `received`: bytes by source."""

    type: Literal["complete"]
    received: Dict[str, Count]


class Served(Message):
    """The transfer is over."""

    type: Literal["done"]
    pruned: Count


# --- answers of one line ---


class Error(Message):
    """Answer of a command: the error message; None if it succeeded."""

    error: Optional[str]


class Listening(Error):
    port: Port
    address: Optional[Address]


class Shared(Error):
    path: str


class Refusal(Message):
    error: str


class Bucket(Message):
    errors: List[Words]
    unreachable: bool


class _Sweep(Message):
    left: List[Count]


class Sweep(_Sweep, total=False):
    boot: Words


class Checkpoint(Message):
    name: str
    step: Count
    time: float
    bytes: Count
    loss: Optional[float]
    pinned: bool
    verified: bool
    problem: Optional[Words]
    changes: List[Words]


class Checkpoints(Message):
    error: Optional[Words]
    workdir: Words
    done: List[Words]
    rows: List[Checkpoint]


class LeftFolder(Message):
    run: str
    path: str
    bytes: Count
    age: float


class LeftProcess(Message):
    run: str
    pid: Count
    command: str


class Environment(Message):
    kind: str
    path: str
    bytes: Count
    age: float
    due: bool


class CleanAnswer(Message):
    folders: List[LeftFolder]
    processes: List[LeftProcess]
    environments: List[Environment]
    removed: Count
    left: List[Count]
    pruned: Count


State = Union[Hello, Waiting, Refused, Ready, Probed, Started, Unreadable, Exit, Stopped, Dumped]
"""Frames that are delivered once and in order."""
FromAgent = Union[State, Output, Pong, Progress, Usage]

FromPrepare = Union[Need, Phase, Alive, Prepared, Done, LacksWheels, Failed]
FromBring = Union[Store, Changed, Holds, Want, Got, Remark, Alive, Complete, Served, Failed]
FromFiles = Union[Folder, File, Listed, Sending, Data, Sent, NotSent]


FROM_AGENT: Frames = {
    **frame_checks(Union[Output, Pong, Progress, Usage]),
    **{kind: both(record({"n": count}), check) for kind, check in frame_checks(State).items()},
}
USAGE = tuple(Measured.__annotations__)
"""Names of the fields of Measured."""
FROM_PREPARE: Frames = frame_checks(FromPrepare)
FROM_BRING: Frames = frame_checks(FromBring)
FROM_FILES: Frames = frame_checks(FromFiles)
ANSWERS: Frames = {
    "facts": FACTS,
    "listen": check_of(Union[Listening, Refusal]),
    "reach": check_of(Error),
    "share": check_of(Union[Shared, Refusal]),
    "see": check_of(Error),
    "bucket": check_of(Bucket),
    "sweep": check_of(Sweep),
    "checkpoints": check_of(Checkpoints),
    "profile": check_of(Error),
    "clean": check_of(CleanAnswer),
}
"""Maps each command that answers with one line to the check of its answer."""


def parse_answer(line: bytes, command: str) -> "Any":
    """Return a host's answer to a command of ANSWERS. Raises Malformed."""
    sent = loads(line, LIMIT)
    ANSWERS[command](sent)
    return readable(sent, line)

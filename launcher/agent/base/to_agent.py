"""Declare everything that the launcher sends to an agent, and derive the agent's checks: frames of a run, and requests.

A frame is a line of JSON with its kind under `type`. A request is the line of JSON with which a command begins.
"""

from typing import TYPE_CHECKING, Dict, List, Optional, Union

from .message import Count, Frames, Message, check_of, frame_checks, one_of
from .schema import Malformed, each, either, port, text

if TYPE_CHECKING:
    from typing import Any, Literal, final

    Command = List[str]
    Hex = str
    NameAndFile = List[str]
else:
    from typing import Literal, final

    Command = each(text, 1)

    def Hex(value: "Any") -> None:
        """Accept hexadecimal digits."""
        text(value)
        try:
            bytes.fromhex(value)
        except ValueError:
            raise Malformed("not hexadecimal digits")

    def NameAndFile(value: "Any") -> None:
        """Accept a list of a name and the SHA-256 of its file."""
        each(text, 2)(value)
        if len(value) > 2:
            raise Malformed("longer than a name and a digest")


class Container(Message):
    """Command and mounts that start a process in a container image."""

    command: List[str]
    """Words of the engine's command, to put before the command of the worker."""
    variables: str
    """Prefix of the environment variables that the engine reads."""
    path: Optional[str]
    """Folder to put before the image's PATH."""
    folders: List[str]
    """Folders of podrun to mount."""
    mounts: List[str]
    """The user's mounts."""


class Program(Message):
    """Program to execute."""

    argv: Command
    env: Dict[str, str]
    cwd: str


class _Expected(Program):
    process: Count
    path: Dict[str, List[str]]
    """Folders to put before the host's own, for each variable such as PATH."""
    threads: Optional[Count]
    """Least number of threads for XLA's CPU client; None on other platforms."""


class Expected(_Expected, total=False):
    """A worker that the spec is expected to contain."""

    names: List[str]
    """The hosts of a simulated pod, this one first."""
    container: Optional[Container]
    """None: the worker runs on the host."""


class WorkerSpec(Expected):
    """A worker. Its files are relative to `dir`."""

    output: str
    events: str
    beat: str
    profile: str


if TYPE_CHECKING:
    ExpectedWorkers = List[Expected]
    Workers = List[WorkerSpec]
    PortRange = List[int]
else:
    ExpectedWorkers = each(check_of(Expected), 1)
    Workers = each(check_of(WorkerSpec), 1)
    PortRange = each(port, 2)


class _Spec(Message):
    type: Literal["spec"]
    run: str
    attempt: Count
    home: str
    dir: str
    """Folder of the run on this host."""
    lease: float
    """Seconds without a frame from the launcher after which the agent stops."""
    grace: float
    """Seconds from SIGTERM to SIGKILL."""
    files: Dict[str, str]
    """Text of each file to write to `dir`, by name."""
    code: Optional[str]
    """Folder of the project's code; None: the workers use the launcher's own folder, on the same machine."""
    uses: List[str]
    """Folders that must not be removed during the run."""
    exclusive: bool
    """True: no other run may use the host at the same time."""
    measures: bool
    """True: send the host's usage in `usage` frames."""
    devices: str
    coordinator: bool
    """True: reserve a port for the coordinator."""
    is_program: bool
    ports: Optional[PortRange]
    """First and last port that may be reserved; None: any."""
    internal: Optional[str]
    """Address at which other hosts reach this one; None: unknown."""
    processes: Workers


class Spec(_Spec, total=False):
    """The work of an agent in one attempt. A leading `~/` of a path is the login directory."""

    memory: str
    """Folder in /dev/shm for checkpoints in memory, which the agent makes, and removes after the last attempt."""


class Attach(Message):
    """Request the state frames from number `next` on, and each stream from an offset in bytes on."""

    type: Literal["attach"]
    next: Count
    offsets: Dict[str, Count]


class Probe(Message):
    """Test whether this host can connect to the coordinator at `address`."""

    type: Literal["probe"]
    address: str


class Go(Message):
    """Start the workers, with these variables in their environment."""

    type: Literal["go"]
    env: Dict[str, str]


class Ping(Message):
    type: Literal["ping"]


class _Stop(Message):
    type: Literal["stop"]
    grace: float


class Stop(_Stop, total=False):
    """Stop the workers, and kill them after `grace` seconds."""

    hurry: bool
    """True: the launcher does not wait for unsent output."""


class DumpStacks(Message):
    """Make the workers print their stacks."""

    type: Literal["dump"]


class Prewarm(Message):
    """Prewarm the workers if there is enough memory. `count`: number of prewarmed workers on this machine."""

    type: Literal["standby"]  # as in older versions, whose agents a newer launcher may take over
    count: Count


class _Close(Message):
    type: Literal["close"]
    offsets: Dict[str, Count]


class Close(_Close, total=False):
    """Say that the launcher has each stream up to its offset, so the agent may remove the attempt's files and end."""

    again: bool
    """True: the spec of the next attempt may follow."""


class _PrestartFrame(Message):
    type: Literal["prestart"]
    processes: ExpectedWorkers
    count: Count


class PrestartFrame(_PrestartFrame, total=False):
    """The expected workers, sent while the spec is being made, or for a later run on a held pod."""

    lease: float
    """Seconds without a line after which the agent of a held pod ends; absent: the spec comes soon."""
    environ: Dict[str, str]
    """Environment of the agent, which its workers inherit; absent: its own."""


class Environ(Message):
    """Environment of a held agent on the launcher's machine: that of the launcher whose run takes the agent."""

    type: Literal["environ"]
    env: Dict[str, str]


class PrepareFrame(Message):
    """The host must be prepared first, while the spec is being made. A request of `prepare` follows, then the spec."""

    type: Literal["prepare"]
    python: Optional[str]
    """The interpreter that the request will probably name, to query while the request is being made; None: unknown."""


ToAgent = Union[Spec, Attach, Probe, Go, Ping, Stop, DumpStacks, Prewarm, Close]
First = Union[Spec, PrestartFrame, PrepareFrame]
"""The first frame: the spec, or what the agent can do until it arrives."""

TO_AGENT: Frames = frame_checks(ToAgent)
FIRST: Frames = frame_checks(First)
SPEC: Frames = {"spec": TO_AGENT["spec"]}
WAITING: Frames = {**SPEC, "ping": TO_AGENT["ping"], "environ": check_of(Environ)}
"""Checks of the frames that an agent accepts while it waits for its spec."""
ATTACH: Frames = {"attach": TO_AGENT["attach"]}
"""Checks of an `attach` frame, which begins a conversation."""


# --- requests ---


class FactsRequest(Message, total=False):
    """Gather the facts of this host."""

    python: str
    """The workers' interpreter."""
    python_before: Optional[str]
    """Interpreter from which a missing environment is built."""
    container: Optional[Container]
    env: Dict[str, str]
    home: str
    workdir: Optional[str]
    requirements: Optional[str]
    offline: bool
    """True: the launcher sends the wheels of a missing environment."""
    platform: str
    internal: Optional[str]
    """Address at which other hosts reach this one; None: unknown."""
    modules: List[str]
    """Modules that the user's program imports."""


class ExecuteRequest(Program):
    """Run a command of the user."""


class ProfileRequest(Message):
    """Ask a worker for a trace; with 0 steps, cancel the request and remove the trace."""

    dir: str
    """Folder of the run on this host."""
    order: str
    """Name of the file in `dir` with the request."""
    trace: str
    """Name of the folder for the trace, in `dir`."""
    id: str
    steps: Count


class CleanRequest(Message):
    """List or remove what ended runs left on this host."""

    home: str
    host: str
    """The launcher's name for this host: hosts may share a home, and only folders of that name belong to it."""
    older_than: float
    run: Optional[str]
    """The only run to look for; None: all."""
    remove: Optional[List[str]]
    """Runs to remove if they are still finished; None: only list."""


class CheckpointsRequest(Message):
    """Carry out an action, if there is one, then list and verify the checkpoints of a workdir."""

    workdir: str
    action: Optional[str]
    """`drop`, `keep`, `unpin` or `restore`."""
    names: List[str]
    """Steps, or names of checkpoints that were set aside, such as `20.damaged-1`."""


class BucketRequest(Message):
    """Test a bucket with the workers' interpreter."""

    python: str
    container: Optional[Container]
    env: Dict[str, str]
    url: str
    files: Dict[str, str]
    """Source files, by path, of the package that tests the bucket: before a run, podrun's runtime is not on the host."""


REQUESTS: Frames = {
    "facts": check_of(FactsRequest),
    "execute": check_of(ExecuteRequest),
    "profile": check_of(ProfileRequest),
    "clean": check_of(CleanRequest),
    "checkpoints": check_of(CheckpointsRequest),
    "bucket": check_of(BucketRequest),
}
"""Maps each command that reads one request to the check of that request."""


# --- what `prepare` reads ---


class EnvironmentRequest(Message):
    key: str
    text: str
    """The content of requirements.txt."""
    space: Count
    wheels: Optional[str]
    """Data set with the wheels to install; empty: the launcher has not sent it yet; None: install from the package index."""
    brings: Optional[str]
    """Data set with uv, to install the Python that is missing, and with its archive if the host has no network; empty: the
    launcher has not sent it yet; None: the request names an interpreter."""


@final
class PrepareRequest(Message):
    """Prepare this host for a run."""

    home: str
    python: str
    container: Optional[Container]
    requirements: Optional[EnvironmentRequest]
    setup: List[str]
    bundles: List[str]
    env: Dict[str, str]
    project: Optional[str]
    """Bundle whose folder setup commands find in PODRUN_PROJECT."""
    subfolder: str
    facts: Optional[FactsRequest]


class BundleHead(Message):
    """Says that the bytes of a bundle follow."""

    bundle: str
    bytes: Count


class GatherFacts(Message):
    """Ask for the facts now, so that the launcher can measure the difference of the clocks."""


# --- what `files` reads ---


class FolderRequest(Message):
    folder: str


class ListFiles(Message):
    type: Literal["list"]


class GetFile(Message):
    type: Literal["get"]
    path: str
    have: Count
    """Bytes that the launcher has already."""
    digest: str
    """SHA-256 of these bytes."""


FileRequest = Union[ListFiles, GetFile]


# --- what `bring` reads ---


class DataFile(Message):
    sha256: str
    size: Count
    pieces: List[str]


class BringRequest(Message):
    """Get a set of data."""

    home: str
    set: str
    secret: Hex
    """Secret of this transfer: a host that knows it may ask for pieces."""
    names: List[NameAndFile]
    files: List[DataFile]
    internal: Optional[str]
    ports: Optional[PortRange]


class Role(Message):
    role: str
    """`wait` for a host that shares its home with another one, which gets the data."""


class Source(Message):
    host: str
    address: str


class Sources(Message):
    sources: List[Source]


@final
class PieceHead(Message):
    """Says that the bytes of a piece follow."""

    piece: Count
    bytes: Count


@final
class End(Message):
    """Says that no other host needs this one any more."""

    end: bool


Request = Union[
    FactsRequest,
    ExecuteRequest,
    ProfileRequest,
    CleanRequest,
    CheckpointsRequest,
    BucketRequest,
    PrepareRequest,
    BundleHead,
    GatherFacts,
    FolderRequest,
    FileRequest,
    BringRequest,
    Role,
    Sources,
    PieceHead,
    End,
]
Sent = Union[First, Environ, ToAgent, Request]
"""Everything that is sent as a line of JSON."""

PREPARE_REQUEST = check_of(PrepareRequest)
BUNDLE_HEAD = check_of(BundleHead)
GATHER_FACTS = check_of(GatherFacts)
FOLDER_REQUEST = check_of(FolderRequest)
FILE_REQUEST = one_of(frame_checks(FileRequest))
BRING_REQUEST = check_of(BringRequest)
ROLE = check_of(Role)
SOURCES = check_of(Sources)
PIECE_OR_END = either(check_of(PieceHead), check_of(End))

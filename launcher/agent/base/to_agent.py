"""Declare every frame that the launcher sends to an agent during a run, and derive the agent's checks.

A frame is a line of JSON with its kind under `type`.
"""

from typing import TYPE_CHECKING, Dict, List, Optional, Union

from .message import Count, Frames, Message, check_of, frame_checks
from .schema import each, port, text

if TYPE_CHECKING:
    from typing import Literal

    Command = List[str]
else:
    from typing import Literal

    Command = each(text, 1)


class Container(Message):
    """How to start a command in a container image."""

    command: List[str]
    """The engine's command, which precedes that of the worker."""
    variables: str
    """Prefix of the engine's own variables."""
    path: Optional[str]
    """Folder to put before the image's PATH."""
    folders: List[str]
    """Folders of podrun to mount."""
    mounts: List[str]
    """The user's mounts."""


class _Expected(Message):
    process: Count
    argv: Command
    env: Dict[str, str]
    path: Dict[str, List[str]]
    """Folders to put before the host's own in a variable such as PATH."""
    threads: Optional[Count]
    """Threads that XLA's CPU client needs at least; None on other platforms."""
    cwd: str


class Expected(_Expected, total=False):
    """An expected worker, before the spec is known."""

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


class Spec(Message):
    """The work of an agent in one attempt. A leading `~/` of a path is the login directory."""

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
    """The run has the host to itself."""
    measures: bool
    """Send the host's usage (frame `usage`)."""
    devices: str
    coordinator: bool
    """Reserve a port for the coordinator."""
    is_program: bool
    ports: Optional[PortRange]
    """First and last port that may be reserved; None: any."""
    internal: Optional[str]
    """Address of this host for the other hosts, if known."""
    processes: Workers


class Attach(Message):
    """Request the state frames from number `next` on, and each stream from its offset in bytes on."""

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
    """The launcher does not wait for unsent output."""


class DumpStacks(Message):
    """Make the workers print their stacks."""

    type: Literal["dump"]


class Prewarm(Message):
    """Prewarm the workers. `count`: how many there will be on this machine, for which the memory must suffice."""

    type: Literal["standby"]
    count: Count


class _Close(Message):
    type: Literal["close"]
    offsets: Dict[str, Count]


class Close(_Close, total=False):
    """The launcher has each stream up to its offset; the agent may remove the attempt's files and end."""

    again: bool
    """The spec of the next attempt may follow."""


class PrestartFrame(Message):
    """The expected workers, sent while the spec is being made."""

    type: Literal["ahead"]
    processes: ExpectedWorkers
    count: Count


ToAgent = Union[Spec, Attach, Probe, Go, Ping, Stop, DumpStacks, Prewarm, Close]
First = Union[Spec, PrestartFrame]
"""The first frame: the spec, or the workers that it is expected to have."""

TO_AGENT: Frames = frame_checks(ToAgent)
FIRST: Frames = frame_checks(First)
SPEC: Frames = {"spec": TO_AGENT["spec"]}

"""Declare every frame that the launcher sends to an agent during a run, and derive the agent's checks.

A frame is a line of JSON with its kind under `type`.
"""

from typing import TYPE_CHECKING, Dict, List, Optional, Union

from .message import Count, Frames, Message, fields_of, frame_checks
from .schema import anything, each, record, text

if TYPE_CHECKING:
    from typing import Any, Literal

    Command = List[str]
    Workers = List[Any]
else:
    from typing import Literal

    Command = each(text, 1)
    Workers = each(anything, 1)


class Spec(Message):
    """The work of an agent in one attempt. Its other fields are read only by the agent itself."""

    type: Literal["spec"]
    run: str
    processes: Workers


class Attach(Message):
    """The launcher wants the state frames from number `next` on, and each stream from its offset in bytes on."""

    type: Literal["attach"]
    next: Count
    offsets: Dict[str, Count]


class Probe(Message):
    """Test whether this host reaches the coordinator at `address`."""

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
    """The launcher does not wait for output."""


class DumpStacks(Message):
    """Let the workers print their stacks."""

    type: Literal["dump"]


class StartStandbys(Message):
    """Start this many prewarmed workers on this machine; they take memory."""

    type: Literal["standby"]
    count: Count


class _Close(Message):
    type: Literal["close"]
    offsets: Dict[str, Count]


class Close(_Close, total=False):
    """The launcher has each stream up to its offset; the agent may remove the attempt's files and end."""

    again: bool
    """The spec of the next attempt may follow."""


class _Expected(Message):
    process: Count
    argv: Command
    env: Dict[str, str]
    path: Dict[str, List[str]]
    threads: Optional[Count]
    cwd: str


class Expected(_Expected, total=False):
    """A worker as it is expected to be, before the spec is known."""

    names: List[str]
    """The hosts of a simulated pod, this one first."""


if TYPE_CHECKING:
    ExpectedWorkers = List[Expected]
else:
    ExpectedWorkers = each(record(*fields_of(Expected)), 1)


class AheadOfSpec(Message):
    """What the workers are expected to be, while the spec is made."""

    type: Literal["ahead"]
    processes: ExpectedWorkers
    count: Count


ToAgent = Union[Spec, Attach, Probe, Go, Ping, Stop, DumpStacks, StartStandbys, Close]
First = Union[Spec, AheadOfSpec]
"""What may come first: the spec, or what its workers are expected to be."""

TO_AGENT: Frames = frame_checks(ToAgent)
FIRST: Frames = frame_checks(First)
SPEC: Frames = {"spec": TO_AGENT["spec"]}

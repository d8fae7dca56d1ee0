"""The contract between launcher and runtime: all names and values that both sides use.

Standard library only: the launcher imports this module where JAX is not installed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import NamedTuple


class ExitCode(IntEnum):
    """Exit codes of a worker and of podrun itself. A worker that dies of signal N counts as 128 + N."""

    DONE = 0
    FAILED = 1  # an exception, or a loss that is not finite
    BAD_CONFIG = 2  # the user's input: nothing was trained
    UNAVAILABLE = (
        69  # a host or process never started, was lost, or did not confirm its end; no bucket (EX_UNAVAILABLE)
    )
    PREEMPTED = 75  # asked to stop, and saved a checkpoint before (EX_TEMPFAIL: run it again)
    PEER_LOST = 76  # another process is gone: always a consequence, never the first cause
    STALLED = 77  # alive, but no progress within the limit
    DIVERGED = 78  # processes that must agree bit for bit do not (launch.verify_every)
    INTERRUPTED = 130  # Ctrl-C


def failure_code(code: int) -> int:
    """Return the exit code, 1 to 255, of a failure for which a program chose `code`.

    The operating system keeps 8 bits: 300 becomes 44, -1 becomes 255. 0 and 256, which would look like success, become 1.
    """
    return code & 0xFF or ExitCode.FAILED


class Phase(StrEnum):
    """The phases of a process, in the order in which they happen."""

    CONNECT = "connect"  # jax.distributed.initialize: waiting for the other processes
    SETUP = "setup"  # data, model, initial state
    RESTORE = "restore"
    COMPILE = "compile"  # until the first step has ended
    TRAIN = "train"
    EVALUATE = "evaluate"
    SAVE = "save"
    SAMPLE = "sample"
    DONE = "done"


_BEAT = struct.Struct("=6Q4dQ")
_LARGEST = 1 << 53  # limit of the numbers in a progress record


class ProgressRecord(NamedTuple):
    """Heartbeat record of a worker: the progress that it writes to a file, which its agent reads."""

    moves: int
    """Number of updates of the record so far; each is a sign of progress."""
    phase: Phase
    entered: int
    """Number of phases entered so far. All processes enter the same phases."""
    part: int
    """Number of parts of this phase begun so far, such as batches of an evaluation."""
    arrived: int
    """Last step that was dispatched to the devices."""
    completed: int
    """Last step that the devices have completed."""
    data: float = 0.0
    """Seconds spent waiting for this process's own data."""
    dispatch: float = 0.0
    """Seconds spent dispatching steps to the devices."""
    waiting: float = 0.0
    """Seconds spent waiting for dispatched steps: for the devices and for the other processes."""
    moved: float = 0.0
    """Time of the last update, by `time.monotonic` on its host."""
    borrows: bool = False
    """True while the process waits for an executable that another process compiles."""

    @classmethod
    def parse(cls, text: str) -> ProgressRecord:
        """Parse the first bytes of a worker's progress file, given as hexadecimal digits. Raises ValueError."""
        try:
            moves, phase, *numbers = _BEAT.unpack_from(bytes.fromhex(text))
            name = tuple(Phase)[phase]
        except (struct.error, IndexError) as error:
            raise ValueError(f"not a progress record: {error}") from None
        if not all(0 <= number <= _LARGEST for number in (moves, *numbers)):  # NaN is not
            raise ValueError("not a progress record: a number in it is too large, negative or NaN")
        numbers[-1] = bool(numbers[-1])
        return cls(moves, name, *numbers)


class ErrorKind(StrEnum):
    """The kinds of failures of a worker. The kind determines the exit code."""

    EXCEPTION = "exception"
    CONFIG = "config"
    NOT_FINITE = "not_finite"
    PEER_LOST = "peer_lost"
    UNAVAILABLE = "unavailable"
    WRONG_HOST = "wrong_host"
    DIVERGED = "diverged"

    @property
    def exit_code(self) -> ExitCode:
        return {
            ErrorKind.CONFIG: ExitCode.BAD_CONFIG,
            ErrorKind.UNAVAILABLE: ExitCode.UNAVAILABLE,
            ErrorKind.PEER_LOST: ExitCode.PEER_LOST,
            ErrorKind.WRONG_HOST: ExitCode.DIVERGED,
            ErrorKind.DIVERGED: ExitCode.DIVERGED,
        }.get(self, ExitCode.FAILED)


class UserError(Exception):
    """An error that the user can correct: bad input, a missing file, a checkpoint of another model.

    The message says what is wrong, where, why, and what to do. It is printed without a traceback, and the program ends with
    `ExitCode.BAD_CONFIG`.
    """


class RefusedError(UserError):
    """Raised on the other processes when one raises the error that ends the run: a consequence, which must not hide it."""


class DivergedError(Exception):
    """This process differs from others that must agree with it bit for bit, and no majority says which one is wrong."""


class WrongHostError(DivergedError):
    """This process differs from the majority of those that must agree with it bit for bit: its host is wrong."""


class NotFiniteError(ArithmeticError):
    """The loss or the gradient became NaN or infinite."""


class UnavailableError(Exception):
    """A service that the run depends on cannot be reached, such as the server of a bucket.

    The message says which, why, and what to do. It is printed without a traceback, and the program ends with
    `ExitCode.UNAVAILABLE`.
    """


class SaveError(Exception):
    """A checkpoint cannot be saved. The message says which, where, why, and which checkpoint is the last good one."""

    def __init__(self, text: str, unavailable: bool = False, explained: bool = False) -> None:
        super().__init__(text)
        self.explained = explained
        """True if the operating system has said why, such as a full disk: a traceback would say no more."""
        self.unavailable = unavailable
        """True if the reason is that the workdir's bucket cannot be reached."""


ENV_COORDINATOR = "PODRUN_COORDINATOR"
ENV_ADDRESS = "PODRUN_ADDRESS"
ENV_JOIN = "PODRUN_JOIN"
"""1: the program joins the pod when it imports JAX. Then the id of the process that has joined."""
ENV_OWNER = "PODRUN_OWNER"
ENV_WORKDIR = "PODRUN_WORKDIR"
ENV_SAVED = "PODRUN_SAVED"
ENV_EXECUTABLES = "PODRUN_PROGRAMS"
ENV_EVALUATE = "PODRUN_EVALUATE"
ENV_REPLAY = "PODRUN_REPLAY"
ENV_MEMORY = "PODRUN_MEMORY"
ENV_CERTIFICATE = "PODRUN_CERTIFICATE"  # certificate and key of the run, PEM in base64: a secret
CERTIFICATE_URI = "podrun://run/"
"""The URI in the certificate of a run, without the run's id."""
JAX_TLS = "JAX_MTLS_"
"""Prefix of the variables by which users give JAX certificates of their own."""
ENV_INJECT = "PODRUN_INJECT"  # faults to inject into this process, separated by spaces
ENV_PID = "PODRUN_PID"  # pid of the worker on its host, outside any PID namespace
ENV_MAIN_PID = "PODRUN_MAIN_PID"  # pid of the worker in its own PID namespace
CONFIG_FILE = "config.json"
PART_OF_ANSWER = "\x1e"  # begins a line that a query's process writes before its answer (ASCII's record separator)
CHECKPOINT_MANIFEST = "podrun-manifest.json"  # in a checkpoint: sizes and digests of its files
CHECKPOINT_PINNED = "podrun-pinned"  # in a checkpoint that the user has pinned
CHECKPOINT_METRICS = "metrics/metrics"  # in a checkpoint: the metrics of its evaluation, under orbax's name


class WorkerEnv(NamedTuple):
    """The `PODRUN_*` environment variables of a worker, which describe its run and its place in it."""

    run_id: str
    attempt: int
    host: str
    process_id: int
    num_processes: int
    local_device_ids: tuple[int, ...]
    """Indices of this process's devices on its host."""
    slice: str
    directory: Path
    """Folder on this host with this attempt's files: config, events, output."""
    coordinator: str = ""
    """`address:port` of process 0; empty until its host has reserved the port."""
    address: str = ""
    """Address at which the other hosts reach this one; empty if unknown."""
    local_rank: int = 0
    """Index of this process among the processes of its host."""
    local_size: int = 1
    """Number of processes on this host."""
    owner: str = ""
    """`user:path` of the train.yaml after which the workdir is named; empty if the user chose the workdir."""
    saved: str = ""
    """`STEP HOST RUN` of the workdir's newest checkpoint that the launcher has on record; empty if there is none."""
    executables: str = ""
    """Path of the list of executables that were compiled before the start; a leading `~/` is the login directory."""
    evaluate: str = ""
    """The `Evaluation` to do instead of training, as JSON; empty: none."""
    replay: str = ""
    """The `Replay` to do instead of training, as JSON; empty: none."""
    memory: str = ""
    """Folder of the run in /dev/shm, for checkpoints in memory; empty if there is none."""

    @property
    def trains(self) -> bool:
        """Return True if the process trains; otherwise it only reads the workdir, in which another run may be training."""
        return not (self.evaluate or self.replay)

    @property
    def local_devices(self) -> int:
        return len(self.local_device_ids)

    @property
    def config_path(self) -> Path:
        return self.directory / CONFIG_FILE

    @property
    def events_path(self) -> Path:
        return self.directory / events_stream(self.process_id)

    def to_env(self) -> dict[str, str]:
        return {
            "PODRUN_RUN_ID": self.run_id,
            "PODRUN_ATTEMPT": str(self.attempt),
            "PODRUN_HOST": self.host,
            "PODRUN_PROCESS_ID": str(self.process_id),
            "PODRUN_NUM_PROCESSES": str(self.num_processes),
            "PODRUN_LOCAL_DEVICE_IDS": ",".join(map(str, self.local_device_ids)),
            "PODRUN_SLICE": self.slice,
            "PODRUN_DIR": str(self.directory),
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> WorkerEnv:
        """Read the environment. Raises UserError if the process was not started by podrun."""
        try:
            return cls(
                run_id=env["PODRUN_RUN_ID"],
                attempt=int(env["PODRUN_ATTEMPT"]),
                host=env["PODRUN_HOST"],
                process_id=int(env["PODRUN_PROCESS_ID"]),
                num_processes=int(env["PODRUN_NUM_PROCESSES"]),
                local_device_ids=tuple(int(i) for i in env["PODRUN_LOCAL_DEVICE_IDS"].split(",")),
                slice=env["PODRUN_SLICE"],
                directory=Path(env["PODRUN_DIR"]),
                coordinator=env[ENV_COORDINATOR],
                address=env.get(ENV_ADDRESS, ""),
                owner=env.get(ENV_OWNER, ""),
                saved=env.get(ENV_SAVED, ""),
                executables=env.get(ENV_EXECUTABLES, ""),
                evaluate=env.get(ENV_EVALUATE, ""),
                replay=env.get(ENV_REPLAY, ""),
                memory=env.get(ENV_MEMORY, ""),
            )
        except KeyError as missing:
            if ENV_COORDINATOR in env:
                raise UserError(
                    f"the environment variable {missing.args[0]} is not set: podrun here, in {Path(__file__).parents[1]}, "
                    "has another version than the podrun that started this program; install the same version in both places"
                ) from None
            raise UserError(
                f"the environment variable {missing.args[0]} is not set: this program is started by podrun on each "
                "host, not by hand; for a single process here: `podrun --simulate --slice cpu-1x1 train.yaml`, or "
                "`-- python my_program.py` in place of train.yaml"
            ) from None


@dataclass(frozen=True)
class Evaluation:
    """`podrun evaluate` on a pod: which checkpoint of a workdir to evaluate, and on which data. Paths are those of hosts."""

    step: int | str | None = None
    """Step of the checkpoint; `best`: that of the best evaluation; None: the newest."""
    data: str | None = None
    """Path of other data than the run's."""
    tokenizer: str | None = None
    """Path of a tokenizer.json."""


@dataclass(frozen=True)
class Replay:
    """`podrun replay`: steps of a run to compute again from its checkpoint."""

    first: int
    last: int
    times: int
    """Number of repetitions."""
    is_rehearsal: bool = False
    """True if a fault is injected, with which a process may compile other programs than the others."""
    resumed: int | None = None
    """Step of an earlier run's checkpoint from which the run went on, perhaps with other settings."""


def bind_address(coordinator: str) -> str:
    """Return the address at which process 0 listens: the coordinator's if that is a loopback address, else all interfaces."""
    host, _, port = coordinator.rpartition(":")
    return coordinator if host == "[::1]" or host.startswith("127.") else f"[::]:{port}"


def output_stream(process_id: int) -> str:
    """Return the name of the file on the host with the output of a process."""
    return f"{process_id}.out"


def events_stream(process_id: int) -> str:
    """Return the name of the file on the host with the events of a process, one JSON object per line."""
    return f"{process_id}.events"


def beat_file(process_id: int) -> str:
    """Return the name of the file on the host with the progress record of a process."""
    return f"{process_id}.beat"


def profile_order(process_id: int) -> str:
    """Return the name of the file on the host with which `podrun profile` requests a trace from a process."""
    return f"{process_id}.profile"


def profile_folder(process_id: int, profile: str) -> str:
    """Return the name of the folder on the host into which a process writes a trace. `profile` is the trace's id."""
    return f"{process_id}.profile-{profile}"


class Workdir(NamedTuple):
    """The folder of a run's results. A run with the workdir of an earlier run resumes it."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def sample(self) -> Path:
        return self.path / "sample.txt"

    @property
    def lock(self) -> Path:
        return self.path / ".podrun-lock"

    @property
    def owner(self) -> Path:
        return self.path / ".podrun-owner"

    def token(self, run_id: str, attempt: int) -> Path:
        """Return the file that process 0 creates so that the others can tell whether they see the same folder."""
        return self.path / f".podrun-token-{run_id}-{attempt}"

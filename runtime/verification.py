"""Compare bit for bit what the devices of a pod must hold and compute alike (`launch.verify_every`).

Two things are compared, as digests of 8 bytes for each array:
1. The state after a step, between the devices that hold the same part of it. A flipped bit stays there, and is found.
2. The gradients of the same examples, which every device computes from its own copy of the state. The step itself cannot
   show a device that computes wrongly: after the all-reduce all devices have the same wrong sum.

One program computes both, and gathers 16 bytes of each device. The digests of single arrays leave a process only if a device
differs, so that the message can name the arrays.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .array_names import places
from .checkpoint.messages import gather_texts
from .config import Config, Plugin
from .contract import DivergedError, RefusedError, UserError, WrongHostError
from .distributed import gather
from .events import EventKind, VerifiedEvent
from .executables.pod_executables import Executables
from .majority import Verdict, by_place, faulty, odd_devices, odd_results
from .parallel.base import Strategy
from .parallel.single import Single
from .state import Batch, TrainState
from .tasks.base import Task
from .wording import counted, first_names

_AXIS = "device"
_SPLIT, _WHOLE = PartitionSpec(_AXIS), PartitionSpec()
_REPEATED = 15  # further computations of the gradients, once they have differed
_NAMED, _SHOWN = 2, 8  # most arrays and processes that a message names
_GRADIENTS = "gradients of the same examples"
_RECORDED = 50_000
"""Most digests of a record. If there are more, it has one of them all."""


@dataclass(frozen=True)
class Difference:
    """What differs between devices."""

    verdict: Verdict
    what: str
    """`values of the state`."""
    times: tuple[int, int] | None = None
    """How many of how many computations were odd; None if the devices repeat their own results."""


def digest(x: jax.Array) -> jax.Array:
    """Return two sums of the bits of an array as 32-bit words, modulo 2^32, uint32[2]. JAX traces it.

    Each word is mixed with its place before it is added. So a change of one word always changes both sums, and other changes,
    such as of all signs or of the order, go unnoticed with a probability of 2^-64. Sums of the words themselves would not see
    an even number of changed signs.
    """
    words = _words(x).reshape(-1)
    places = jax.lax.iota(jnp.uint32, words.size) + jnp.uint32(1)
    sums = [_mixed(words + places * jnp.uint32(odd)).sum(dtype=jnp.uint32) for odd in (0x9E3779B1, 0x85EBCA77)]
    return jnp.stack(sums)


def _mixed(words: jax.Array) -> jax.Array:
    """Return each word with its bits mixed, one to one: the last step of MurmurHash3 (Appleby, 2011, public domain)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words = (words ^ (words >> shift)) * jnp.uint32(factor)
    return words ^ (words >> 16)


def _words(x: jax.Array) -> jax.Array:
    """Return the bits of each number as uint32; of 64-bit and complex numbers as several, along further axes."""
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], axis=-1)
    if x.dtype.itemsize >= 4:
        return jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)


def _numbers(words: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return the numbers whose bits `_words` has returned."""
    if dtype.kind == "b":
        return words.astype(bool)
    if dtype.kind == "c":
        parts = jax.lax.bitcast_convert_type(words, jnp.float32 if dtype.itemsize == 8 else jnp.float64)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    if dtype.itemsize >= 4:
        return jax.lax.bitcast_convert_type(words, dtype)
    return jax.lax.bitcast_convert_type(words.astype(f"uint{8 * dtype.itemsize}"), dtype)


@dataclass(frozen=True)
class Digests:
    """Digests of all devices, in the order of `Verifier.devices`."""

    summary: np.ndarray
    """Of the whole state and of all gradients, uint32[devices, 4]."""
    state: jax.Array
    """Of each array of the state, uint32[devices, arrays, 2]; a process has those of its own devices."""
    gradients: jax.Array
    """Of each gradient, likewise; of no arrays if gradients are not compared."""
    whole: np.ndarray
    """Digests of each array of the state, whatever parts of it the devices hold, and of each gradient, uint32[arrays, 2]. All
    processes have the same."""

    @property
    def states(self) -> list[Hashable]:
        return [tuple(row) for row in self.summary[:, :2].tolist()]

    @property
    def sums(self) -> list[Hashable]:
        """Return the digest of all gradients for each device."""
        return [tuple(row) for row in self.summary[:, 2:].tolist()]


class Verifier:
    """Compares the state and the gradients of the devices. All processes must make the same calls.

    Args:
        config: the job.
        task: the loss.
        strategy: has placed state and batch.
        host: name of this process's host.
        executables: shares the compiled program; None: this process compiles a program of its own.
        agreed: the last step after which all devices agreed, of an earlier verifier.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        strategy: Strategy,
        host: str,
        executables: Executables | None = None,
        agreed: int | None = None,
    ) -> None:
        self._strategy = strategy
        self._host = host
        pod = strategy.pod
        first: dict[int, Any] = {}
        for device in pod.all:
            first.setdefault(device.process_index, device)
        # A strategy that divides nothing, such as `single`, trains on the first device of each process.
        self.devices = list(pod.all if strategy.divides_batch else first.values())
        self._mesh = Mesh(np.array(self.devices), (_AXIS,))
        self.why_state_only = _why_state_only(config, task, strategy)
        self._alone = Single(config, task, strategy.optimizer, strategy.schedule, pod)
        self._alone.gradient_factor = strategy.gradient_factor
        self._executables = executables
        self._program: Any = None
        self._groups: list[int] = []
        self._agreed = agreed
        self._odd: list[int] = []
        """Odd results in each place since the start, if there were any."""

    def can_compare(self, state: TrainState) -> bool:
        """Return whether at least two devices hold the same part of the state."""
        self._groups = self._groups or self._groups_of(state)
        return len(set(self._groups)) < len(self._groups)

    def check(
        self, state: TrainState, batch: Batch, step: int, note: Callable[[str], None] = lambda _: None
    ) -> VerifiedEvent:
        """Compare the devices after a step, wait for the result, and return the record of it.

        Args:
            state: the state after the step. It must have been computed.
            batch: the batch of the step, a result of `Strategy.shard`.
            step: number of the step.
            note: tells the user of gradients that differed too seldom to say why.

        Raises:
            WrongHostError: on the processes that differ from the majority.
            DivergedError: on the processes that differ, if there is no majority.
            RefusedError: on the other processes.
            UserError: the program is not deterministic.
        """
        digests = self.digests(state, batch)
        verdict = odd_devices(self._groups, digests.states)
        if verdict.odd:
            self._refuse(Difference(verdict, "values of the state"), _names(state), [digests.state], step)
        computed = self.repeated(state, batch, digests)
        if len(computed) > 1:
            self._judge_gradients(computed, state, step, note)
        self._agreed = step
        return self.record(state, digests, step)

    def digests(self, state: TrainState, batch: Batch) -> Digests:
        """Return the digests of all devices. `state` and `batch` are as for `check`."""
        self._groups = self._groups or self._groups_of(state)
        return self._compute(state, batch)

    def repeated(self, state: TrainState, batch: Batch, digests: Digests) -> list[Digests]:
        """Return the digests, and if gradients differ between devices, those of further computations."""
        if len(set(digests.sums)) == 1:
            return [digests]
        return [digests, *(self._compute(state, batch) for _ in range(_REPEATED))]

    def differing_names(self, state: TrainState, digests: Digests) -> list[str]:
        """Return the names of the first arrays of the state, or gradients, in which devices differ."""
        names, verdict = _names(state), odd_devices(self.groups, digests.states)
        table = digests.state
        if not verdict.odd:
            names, verdict = (
                _names(self._alone.trained(state.params)),
                odd_devices([0] * len(self.devices), digests.sums),
            )
            table = digests.gradients
        return [names[number] for number in self._differing(verdict, [table])[:_SHOWN]] if verdict.odd else []

    def recorded_names(self, state: TrainState) -> list[str]:
        """Return the names of the parameters whose digests are recorded; none if there are too many."""
        names = [name for name in _names(state) if name.startswith("params.")]
        return names if len(names) < _RECORDED else []

    @property
    def groups(self) -> list[int]:
        """Return the group of each device; devices of a group hold the same parts. Known after the first digests."""
        return self._groups

    def record(self, state: TrainState, digests: Digests, step: int) -> VerifiedEvent:
        """Return the digests with which a replay of the step is compared: 8 bytes for each parameter, and each gradient."""
        count = len(jax.tree.leaves(state))
        of_params = np.array([place[0] == "params" for place, _ in places(state, "the state")])
        of_state, of_gradients = digests.whole[:count], digests.whole[count:]
        event: VerifiedEvent = {
            "event": EventKind.VERIFIED,
            "step": step,
            "state": _text([*of_state[of_params], _digest_of(of_state[~of_params])]),
            "gradients": _text([*of_gradients]),
            "setting": f"JAX {jax.__version__}, {counted(len(self.devices), 'device')} ({self.devices[0].device_kind}) of "
            f"{counted(jax.process_count(), 'process')}",
        }
        if len(set(self.groups)) == 1:
            event["one_device"] = digests.summary[0, :2].tobytes().hex()
        return event

    def _judge_gradients(self, found: list[Digests], state: TrainState, step: int, note: Callable[[str], None]) -> None:
        """Raise the error of gradients that differ, by whether the devices repeat their own result."""
        names = _names(self._alone.trained(state.params))
        tables = [one.gradients for one in found]
        odd = odd_results([one.sums for one in found])
        if not odd:
            verdict = odd_devices([0] * len(self.devices), found[0].sums)
            self._refuse(Difference(verdict, _GRADIENTS), names, tables[:1], step)
        processes = [device.process_index for device in self.devices]
        now = by_place(odd, processes)
        self._odd = [before + more for before, more in zip(self._odd or [0] * len(now), now, strict=True)]
        places_wrong = faulty(self._odd)
        place = list(range(len(self.devices))) if len(set(processes)) == 1 else processes
        wrong = tuple(device for device, results in enumerate(odd) if results and place[device] in places_wrong)
        if wrong:
            times = max(now), len(found)
            self._refuse(Difference(Verdict(wrong, True), _GRADIENTS, times), names, tables, step)
        devices = [device for device, results in enumerate(odd) if results]
        many = sum(map(bool, now)) > 1
        who = f"{len(devices)} of {len(self.devices)} devices" if many else self._blamed(devices)[0]
        what = (
            f"launch.verify_every: {who} computed other gradients in {sum(now)} of "
            f"{len(found) * len(now) if many else len(found)} computations from the same state and examples after step {step}"
        )
        if many:
            raise UserError(
                f"{what}, so this program is not deterministic, and no host can be called wrong; on GPUs give "
                "launch.xla=deterministic, look for random numbers or callbacks in your own code, or leave "
                "launch.verify_every out"
            )
        note(
            f"{what}, too seldom to say whether it or the program is at fault; podrun goes on, and counts what follows"
        )

    # --- the program ---

    def _compute(self, state: TrainState, batch: Batch) -> Digests:
        if self.why_state_only:
            batch = {}
        placed = jax.tree.map(self._by_device, (state, batch))
        if self._program is None:
            specs = jax.tree.map(lambda x: x.sharding.spec, placed)
            out = (_WHOLE, _SPLIT, _SPLIT, _WHOLE)
            program = jax.jit(
                jax.shard_map(self._of_device, mesh=self._mesh, in_specs=specs, out_specs=out, check_vma=False)
            )
            self._program = self._executables.shared(program, is_listed=False) if self._executables else program
        summary, of_state, of_gradients, whole = self._program(*placed)
        here = [np.asarray(x.addressable_shards[0].data) for x in (summary, whole)]
        return Digests(here[0], of_state, of_gradients, here[1])

    def _by_device(self, x: jax.Array) -> jax.Array:
        """Return the blocks of an array that the devices hold as one array, [devices * ..., ...]. Nothing is copied."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        local = [shard.data for shard in x.addressable_shards]
        shape = local[0].shape
        spec = _SPLIT if shape else _WHOLE
        whole = (len(self.devices) * shape[0], *shape[1:]) if shape else ()
        return jax.make_array_from_single_device_arrays(whole, NamedSharding(self._mesh, spec), local)

    def _of_device(self, state: TrainState, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return the digests of one device: its summary with those of the others, those of its arrays, of whole ones."""
        of_state = jnp.stack([digest(x) for x in jax.tree.leaves(state)])
        of_gradients = jnp.zeros((0, 2), jnp.uint32)
        if batch:
            examples = self._of_one(self._strategy.examples(batch), state.step)
            key = self._alone.step_key(state.step, 0)
            (grads, _), _ = self._alone.gradients(state.params, self._alone.inputs(state), examples, key)
            of_gradients = jnp.stack([digest(x) for x in jax.tree.leaves(grads)])
        summary = jnp.concatenate([digest(of_state), digest(of_gradients)])
        whole = jnp.concatenate([self._sum_of_parts(of_state, self._groups), self._sum_of_parts(of_gradients, [0])])
        return jax.lax.all_gather(summary, _AXIS), of_state[None], of_gradients[None], whole

    def _sum_of_parts(self, digests: jax.Array, groups: Sequence[int]) -> jax.Array:
        """Return the sum of the digests of the first device of each group, weighted by the number of the group."""
        weights = np.zeros(len(self.devices), np.uint32)
        for group in set(groups):
            weights[groups.index(group)] = 2 * group + 1
        return jax.lax.psum(digests * jnp.asarray(weights)[jax.lax.axis_index(_AXIS)], _AXIS)

    def _of_one(self, share: Batch, step: jax.Array) -> Batch:
        """Return the share of one device on all devices, in each step that of the next device."""
        count = len(self.devices)
        chosen = jax.lax.axis_index(_AXIS) == jax.lax.rem(step, jnp.int32(count))

        def sent(x: jax.Array) -> jax.Array:
            return _numbers(jax.lax.psum(jnp.where(chosen, _words(x), jnp.uint32(0)), _AXIS), x.dtype)

        return {name: sent(x) for name, x in share.items()}

    def _groups_of(self, state: TrainState) -> list[int]:
        """Return the group of each device. Devices of a group hold the same parts of all arrays."""
        leaves = jax.tree.leaves(state)
        if not self._strategy.saves_in_parts:
            return [0] * len(self.devices)
        maps: list[Any] = [x.sharding.devices_indices_map(x.shape) for x in leaves]
        parts = [str([indices[device] for indices in maps]) for device in self.devices]
        numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
        return [numbers[part] for part in parts]

    # --- the message ---

    def _refuse(self, found: Difference, names: list[str], tables: list[jax.Array], step: int) -> None:
        """Raise the error of devices that differ, on their own processes, and RefusedError on the others.

        Args:
            found: the difference.
            names: names of the arrays.
            tables: the digests of the arrays, one for each computation.
            step: number of the step.
        """
        verdict = found.verdict
        arrays = [names[number] for number in self._differing(verdict, tables)]
        blamed = self._blamed(verdict.odd)
        message = describe(found, arrays, blamed, len(self.devices) - len(verdict.odd), step, self._agreed)
        if self._strategy.pod.process not in {self.devices[device].process_index for device in verdict.odd}:
            raise RefusedError(f"{first_names(blamed, _SHOWN)} computed something else")
        raise (WrongHostError if verdict.is_certain else DivergedError)(message)

    def _blamed(self, devices: Sequence[int]) -> list[str]:
        """Return the processes of devices: `host-1 (process 1)`, with `, its device 0` if a process has several."""
        hosts = [text.decode() for text in gather_texts(self._host.encode())]
        if len(self.devices) > len(hosts):
            each = len(self.devices) // len(hosts)
            return [f"{hosts[n // each]} (process {n // each}, its device {n % each})" for n in devices]
        wrong = sorted({self.devices[device].process_index for device in devices})
        return [f"{hosts[process]} (process {process})" for process in wrong]

    def _differing(self, verdict: Verdict, tables: list[jax.Array]) -> list[int]:
        """Return the numbers of the arrays in which odd devices differ from others of their group, or from themselves."""
        digests = np.stack([self._of_all(table) for table in tables])
        unlike = (digests != digests[:1]).any((0, 3))[list(verdict.odd)].any(0)
        for device in verdict.odd:
            for other, group in enumerate(self._groups):
                if group == self._groups[device] and not (verdict.is_certain and other in verdict.odd):
                    unlike |= (digests[0, device] != digests[0, other]).any(-1)
        return np.flatnonzero(unlike).tolist()

    def _of_all(self, table: jax.Array) -> np.ndarray:
        """Return the digests of the arrays of all devices, uint32[devices, arrays, 2]."""
        local = sorted(table.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        mine = np.concatenate([np.asarray(shard.data) for shard in local])
        return gather(mine.reshape(-1).tolist()).reshape(len(self.devices), -1, 2)


def describe(
    found: Difference, arrays: Sequence[str], blamed: Sequence[str], agree: int, step: int, agreed: int | None
) -> str:
    """Return the message about devices that differ. The launcher puts the name of a host before its first line.

    Args:
        found: the difference.
        arrays: names of the arrays that differ.
        blamed: names of the odd devices: `host-1 (process 1)`, with `, its device 0` if a process has several.
        agree: number of devices that agree.
        step: number of the step.
        agreed: the last step after which all devices agreed; None if there was none.
    """
    named = first_names(arrays, _NAMED)
    where = f"after step {step}, in {named}"
    if found.verdict.is_certain:
        others = f"while {counted(agree, 'device')} agree"
        how = (
            others
            if found.times is None
            else f"in {found.times[0]} of {found.times[1]} computations of the same, {others}"
        )
        rows = [f"its {found.what} differ {where}, {how}"]
        rows.append(f"this is so on {first_names(blamed, _SHOWN)}")
        rows.append("its memory, processor or a link may be faulty: do without this host (docs/replay.md)")
    else:
        rows = [
            f"the {found.what} differ {where}, between {first_names(blamed, _SHOWN)}",
            "one of them is wrong, and no majority says which one; three hosts or more would tell (docs/replay.md)",
        ]
    rows.append(
        "this was the first comparison of this start"
        if agreed is None
        else f"all agreed after step {agreed}; no checkpoint was saved since, and the next start goes on from one that agreed"
    )
    return "\n".join(rows)


def _why_state_only(config: Config, task: Task, strategy: Strategy) -> str:
    """Return why only the state can be compared, and not the gradients as well; empty if both can."""
    if not strategy.divides_batch:
        return "every process computes the whole batch, so the state shows what each has computed"
    if task.has_step:
        return f"task {config.task} has a `step` of its own"
    if task.whole_batch:
        return f"the loss of task {config.task} needs the whole batch"
    if strategy.saves_in_parts:
        return "no device holds the whole state"
    if isinstance(config.parallel, Plugin):
        return "the strategy is your own"
    return ""


def _digest_of(digests: np.ndarray) -> np.ndarray:
    """Return one digest of digests, uint32[2]."""
    words = digests.reshape(-1).astype(np.uint64)
    weights = 2 * np.arange(words.size, dtype=np.uint64) + 1
    return np.array([words.sum(), (words * weights).sum()]).astype(np.uint32)


def _text(digests: list[np.ndarray]) -> str:
    """Return digests as base64 of 8 bytes each."""
    rows = np.array(digests, np.uint32).reshape(-1, 2)
    rows = rows if len(rows) <= _RECORDED else _digest_of(rows)
    return base64.b64encode(rows.astype("<u4").tobytes()).decode()


def _names(tree: Any) -> list[str]:
    return [".".join(place) for place, _ in places(tree, "the state")]

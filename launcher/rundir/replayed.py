"""Judge a replay: from the digests of steps that were computed again, and the record of the run, to a verdict. PURE."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from podrun.runtime.contract import ExitCode
from podrun.runtime.events import EventKind, ReplayedEvent, VerifiedEvent
from podrun.runtime.majority import Verdict, by_place, faulty, odd_devices
from podrun.runtime.wording import counted, first_names

from .events import Event, parse_event

_SIZE = 8  # bytes of a digest
_SHOWN = 8  # most hosts or arrays in a sentence
_REST = "the rest of the state"
_RECORD_HEAD = f'"{EventKind.VERIFIED}'[:5].encode()  # also of a line that was cut off


_START_HEAD = f'"{EventKind.START}"'.encode()
_SAVED_HEAD = f'"{EventKind.CHECKPOINT}"'.encode()
_STEP = re.compile(rb'"step": ([0-9]{1,18}),')


class Found(StrEnum):
    """The results of a replay."""

    SAME = "same"
    HOST = "host"
    """A host computes wrongly; two without a majority."""
    PROGRAM = "program"
    """The repetitions differ: the program is not deterministic."""
    RECORD = "record"
    """The repetitions agree, and differ from the record."""
    UNREADABLE = "unreadable"
    """They agree, and the record cannot be read."""

    @property
    def code(self) -> ExitCode:
        if self in (Found.HOST, Found.RECORD):
            return ExitCode.DIVERGED
        return ExitCode.DONE if self is Found.SAME else ExitCode.BAD_CONFIG


@dataclass(frozen=True)
class Result:
    """The verdict on a replay."""

    verdict: Found
    sentence: str
    hosts: tuple[str, ...] = ()
    """Names of the hosts that compute wrongly."""
    arrays: tuple[str, ...] = ()
    """Names of the arrays that differ."""
    step: int | None = None
    """The first step in which something differs."""
    compared: tuple[str, ...] = ()
    """Sentences about the record: what the result was compared with, and what not."""


@dataclass(frozen=True)
class Record:
    """The digests that a run has recorded for some steps."""

    verified: Mapping[int, VerifiedEvent]
    """By step; those of the last attempt that has computed it."""
    saved_on: tuple[int, int] | None = None
    """Number of devices, and of processes, that have saved the checkpoint of the last step; None if that is not on record."""
    near: tuple[int, ...] = ()
    """The last recorded step before these, and the first one after them."""
    damaged: int = 0
    """Number of lines about digests of these steps, or of unknown steps, that cannot be read."""

    @classmethod
    def of_lines(cls, lines: Iterable[bytes], first: int, last: int) -> Record:
        """Return the record of steps `first` to `last` in the lines of events.jsonl."""
        verified: dict[int, VerifiedEvent] = {}
        others: set[int] = set()
        pod: tuple[int, int] | None = None
        saved_on: tuple[int, int] | None = None
        damaged = 0
        for line in lines:
            if _START_HEAD in line[:40] and (event := parse_event(line)) and event["event"] == EventKind.START:
                pod = event["devices"] * len(event["hosts"]), sum(map(len, event["hosts"].values()))
            if _SAVED_HEAD in line[:40] and (event := parse_event(line)) and event["event"] == EventKind.CHECKPOINT:
                saved_on = pod if event["step"] == last else saved_on
            if _RECORD_HEAD not in line[:40]:
                continue
            event = parse_event(line)
            if event is None or event["event"] != EventKind.VERIFIED or not _is_whole(event):
                named = _STEP.search(line)
                damaged += named is None or first <= int(named[1]) <= last
            elif event["process"] == 0 and first <= event["step"] <= last:
                verified[event["step"]] = event
            elif event["process"] == 0:
                others.add(event["step"])
        before = max((step for step in others if step < first), default=None)
        after = min((step for step in others if step > last), default=None)
        return cls(verified, saved_on, tuple(step for step in (before, after) if step is not None), damaged)


def judge(
    replayed: Sequence[ReplayedEvent], record: Record, saved: VerifiedEvent | None, hosts: Sequence[str]
) -> Result:
    """Return the verdict.

    Args:
        replayed: the steps of all repetitions. It is not empty.
        record: what the run has recorded.
        saved: the state of the run's checkpoint after the last step; None if there is none.
        hosts: the host of each process.
    """
    steps = sorted({event["step"] for event in replayed})
    by_step = {step: [event for event in replayed if event["step"] == step] for step in steps}
    names = next((event["names"] for event in replayed if event["names"]), [])
    for events in by_step.values():
        if result := _of_devices(events, record, hosts):
            return result
    for step, events in by_step.items():
        if result := _of_repetitions(events, step, names, hosts):
            return result
    return _with_record([events[0] for events in by_step.values()], replayed, record, saved, names)


def _of_devices(events: Sequence[ReplayedEvent], record: Record, hosts: Sequence[str]) -> Result | None:
    """Return the verdict on devices that differ from others in a step; None if they agree in each repetition."""
    step = events[0]["step"]
    processes = events[0]["processes"]
    for event in events:
        verdict, what = odd_devices(event["groups"], event["states"]), "state differs"
        unsteady: list[int] | None = [n for n in verdict.odd if len({each["states"][n] for each in events}) > 1]
        likeness = "the majority"
        if not verdict.odd:
            verdict, what = odd_devices([0] * len(processes), event["sums"]), "gradients of the same examples differ"
            unsteady = _unsteady(event)
        if not verdict.odd:
            continue
        arrays = tuple(event["differing"])
        where = f"after step {step}" + (f", in {first_names(arrays, 2)}" if arrays else "")
        if unsteady is None or 2 * len(unsteady) > len(processes):
            many = sum(map(bool, event["odd"])) if unsteady is None else len(unsteady)
            return _not_deterministic(
                step, arrays, f"{many} of {counted(len(processes), 'device')} do not repeat their results"
            )
        right = _recorded(event, record)
        if unsteady:
            verdict = Verdict(tuple(unsteady), True)
        elif not verdict.is_certain and right is not None and len(processes) == 2:
            verdict, likeness = Verdict((1 - right,), True), "the record"
        elif right is not None and right not in verdict.odd:
            likeness += " and from the record"
        blamed = _devices(verdict.odd, processes, hosts)
        names = first_names(blamed, _SHOWN)
        named = tuple(dict.fromkeys(hosts[processes[n]] for n in verdict.odd))
        if verdict.is_certain:
            sentence = f"{names} {_how(len(blamed), what, where, None if unsteady else likeness)}"
        else:
            sentence = (
                f"{names}: the {what} {where}, and each repeats its own result; no majority says which one computes wrongly; "
                "three hosts or more would tell"
            )
        return Result(Found.HOST, sentence, named, arrays, step)
    return None


def _unsteady(event: ReplayedEvent) -> list[int] | None:
    """Return the devices that do not repeat their gradients and compute wrongly; None if the program may be the reason."""
    odd, processes = event["odd"], event["processes"]
    if not any(odd):
        return []
    wrong = faulty(by_place(odd, processes))
    place = list(range(len(processes))) if len(set(processes)) == 1 else processes
    return [device for device, results in enumerate(odd) if results and place[device] in wrong] if wrong else None


def _how(count: int, what: str, where: str, likeness: str | None) -> str:
    """Return how devices compute wrongly. `likeness`: what they always differ from; None if they do not repeat themselves."""
    compute, repeat, repeated = (
        ("computes", "it does not repeat itself", "it repeats itself, but differs")
        if count == 1
        else ("compute", "they do not repeat themselves", "they repeat themselves, but differ")
    )
    how = repeat if likeness is None else f"{repeated} from {likeness}"
    return f"{compute} wrongly: the {what} {where}; {how}"


def _recorded(event: ReplayedEvent, record: Record) -> int | None:
    """Return the number of a device that has the state on record; None if there is none, or that is unknown.

    None may have it although one is right: the code or the data may have changed since.
    """
    before = record.verified.get(event["step"])
    if before is None or before["setting"] != event["setting"] or len(set(event["groups"])) > 1:
        return None
    if len(set(event["states"])) == 1:
        return None  # the devices differ in gradients, of which each step has those of other examples
    if before["state"] == event["state"]:  # of the first device
        return 0
    one_device = before.get("one_device")
    return event["states"].index(one_device) if one_device in event["states"] else None


def _of_repetitions(
    events: Sequence[ReplayedEvent], step: int, names: Sequence[str], hosts: Sequence[str]
) -> Result | None:
    """Return the verdict on repetitions that differ; None if they agree. The devices agree in each."""
    if len({(event["state"], event["gradients"], *event["states"]) for event in events}) == 1:
        return None
    arrays = tuple(dict.fromkeys(name for event in events[1:] for name in _differing(events[0], event, names)))
    common = max(sum(a["state"] == b["state"] for b in events) for a in events)
    if len(set(hosts)) == 1:
        why = (
            f"{hosts[0]} alone does not repeat its own results; replay on another host: if that one does, {hosts[0]} "
            "computes wrongly"
        )
    elif common == len(events) - 1 > 1:
        why = (
            f"{common} of {len(events)} repetitions agree; a host may have computed wrongly once: replay it with more "
            "--times, and on single hosts (--on)"
        )
    else:
        why = "the repetitions differ on all hosts alike"
    return _not_deterministic(step, arrays, why)


def _not_deterministic(step: int, arrays: tuple[str, ...], why: str) -> Result:
    where = f"after step {step}" + (f", in {first_names(arrays, 2)}" if arrays else "")
    return Result(
        Found.PROGRAM,
        f"the program is not deterministic {where}: {why}; on GPUs launch.xla=deterministic helps, and random numbers or "
        "callbacks in your own code may be the reason",
        arrays=arrays,
        step=step,
    )


def _with_record(
    computed: Sequence[ReplayedEvent],
    replayed: Sequence[ReplayedEvent],
    record: Record,
    saved: VerifiedEvent | None,
    names: Sequence[str],
) -> Result:
    """Return the verdict if all devices and repetitions agree, by the record of the run. `computed`: one event per step."""
    last = computed[-1]
    compared: list[str] = []
    others = list(record.verified.values())
    for event in computed:
        before = record.verified.get(event["step"])
        if before is None:
            continue
        if not _equal(before, event):
            if before["setting"] != event["setting"]:
                continue
            return _unlike("what the run has recorded", before, event, names)
        compared.append(f"the record of step {event['step']} is the same")
    other = next((each for each in others if each["setting"] != last["setting"]), None)
    if other and not compared:
        compared.append(
            f"the record was made with {other['setting']}, and this replay with {last['setting']}, which may round in "
            "another way: so only what the hosts computed now is compared, states and gradients"
        )
    if saved is not None:
        if saved["state"] == last["state"]:
            compared.append(f"the checkpoint of step {last['step']} is the same")
        elif record.saved_on == (len(last["processes"]), len(set(last["processes"]))) and not other:
            return _unlike("the run's checkpoint", saved, last, names)
        elif record.saved_on is None:
            compared.append(
                f"the checkpoint of step {last['step']} is not the same; the run's record does not say on which devices it "
                "was saved, and other devices may round in another way"
            )
        else:
            compared.append(
                f"the checkpoint of step {last['step']} is not the same, which other devices or another JAX explain"
            )
    if record.damaged and not all(event["step"] in record.verified for event in computed):
        are = "is" if record.damaged == 1 else "are"
        return Result(
            Found.UNREADABLE,
            f"the same everywhere in {_size(replayed)}, but the record of digests could not be read: "
            f"{counted(record.damaged, 'line')} of events.jsonl about digests {are} damaged",
            compared=tuple(compared),
        )
    if not others:
        near = f"; the nearest are of step {' and '.join(map(str, record.near))}" if record.near else ""
        compared.append(f"the run has recorded no digests of these steps (launch.verify_every){near}")
    return Result(Found.SAME, f"the same everywhere in {_size(replayed)}, bit for bit", compared=tuple(compared))


def _unlike(what: str, before: VerifiedEvent, event: ReplayedEvent, names: Sequence[str]) -> Result:
    arrays = tuple(_differing(before, event, names))
    where = f" in {first_names(arrays, 2)}" if arrays else ""
    return Result(
        Found.RECORD,
        f"all hosts agree in each repetition, but {what} after step {event['step']} differs{where}: a host computed wrongly "
        "then, or the code, the data or a library has changed since",
        arrays=arrays,
        step=event["step"],
    )


def _equal(before: VerifiedEvent, event: ReplayedEvent) -> bool:
    return (before["state"], before["gradients"]) == (event["state"], event["gradients"])


def _differing(
    before: VerifiedEvent | ReplayedEvent, after: VerifiedEvent | ReplayedEvent, names: Sequence[str]
) -> list[str]:
    """Return the names of the first arrays whose digests differ."""
    one, other = (_digests(each["state"]) or [] for each in (before, after))
    if not names or len(one) != len(other) or len(one) != len(names) + 1:
        return []
    every = [*names, _REST]
    return [every[n] for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b][:_SHOWN]


def _digests(text: str) -> list[bytes] | None:
    """Return the digests in base64; None if the text has none."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return None if len(data) % _SIZE else [data[at : at + _SIZE] for at in range(0, len(data), _SIZE)]


def _is_whole(event: VerifiedEvent) -> bool:
    return bool(_digests(event["state"])) and _digests(event["gradients"]) is not None


def _devices(devices: Sequence[int], processes: Sequence[int], hosts: Sequence[str]) -> list[str]:
    """Return the names of devices: `host-1`, with process and device where these are not the only ones."""
    if len(processes) == len(set(processes)):
        several = len(hosts) > len(set(hosts))
        return [hosts[processes[n]] + f" (process {processes[n]})" * several for n in devices]
    return [
        f"{hosts[processes[n]]} (process {processes[n]}, its device {n - processes.index(processes[n])})"
        for n in devices
    ]


def _size(replayed: Sequence[ReplayedEvent]) -> str:
    """Return `3 repetitions of steps 11 to 12 on 4 devices`."""
    steps = sorted({event["step"] for event in replayed})
    times = max(event["repetition"] for event in replayed)
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return f"{counted(times, 'repetition')} of {which} on {counted(len(replayed[0]['processes']), 'device')}"


def _is_consistent(event: ReplayedEvent, processes: int) -> bool:
    """Return whether the fields of a step describe the same devices, of as many processes."""
    count = len(event["processes"])
    return (
        count == len(event["groups"]) == len(event["states"]) == len(event["sums"])
        and {*event["processes"]} == {*range(processes)}
        and len(event["odd"]) in (0, count)
    )


def replayed_of(events: Iterable[Event]) -> tuple[list[ReplayedEvent], VerifiedEvent | None, list[str]]:
    """Return what the last attempt of a replay has recorded: steps, the state of the run's checkpoint, each process's host.

    Steps with fields that contradict each other are left out: a host may send anything.
    """
    replayed: list[ReplayedEvent] = []
    saved: VerifiedEvent | None = None
    hosts: dict[int, str] = {}
    for event in events:
        if event["event"] == EventKind.START:
            replayed, saved = [], None
            hosts = {process: host for host, processes in event["hosts"].items() for process in processes}
        elif event["event"] == EventKind.REPLAYED and event["process"] == 0 and _is_consistent(event, len(hosts)):
            replayed.append(event)
        elif event["event"] == EventKind.VERIFIED and event["process"] == 0:
            saved = event
    return replayed, saved, [hosts[process] for process in sorted(hosts)]

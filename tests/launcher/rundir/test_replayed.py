"""The verdict on a replay, as a value: digests in; a host, the program or nothing out."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from podrun.launcher.rundir.events import parse_event
from podrun.launcher.rundir.replayed import Found, Record, Result, judge, replayed_of
from podrun.runtime.events import ReplayedEvent, VerifiedEvent

HOSTS = ["host-0", "host-1", "host-2", "host-3"]
NAMES = ["params.a", "params.b"]
SETTING = "JAX 0.9, 4 devices (cpu) of 4 processes"


def digests(*numbers: int) -> str:
    return base64.b64encode(b"".join(number.to_bytes(8, "little") for number in numbers)).decode()


STATE, GRADIENTS = digests(1, 2, 3), digests(4, 5)


def event(
    step: int = 20, repetition: int = 1, states: str = "ssss", sums: str = "gggg", **fields: Any
) -> ReplayedEvent:
    """A step that was computed again. `states`, `sums`: a letter for each device."""
    whole: dict[str, Any] = {
        "event": "replayed",
        "step": step,
        "repetition": repetition,
        "state": STATE,
        "gradients": GRADIENTS,
        "setting": SETTING,
        "processes": list(range(len(states))),
        "groups": [0] * len(states),
        "states": [*states],
        "sums": [*sums],
        "odd": [],
        "differing": [] if len({*states}) == len({*sums}) == 1 else ["params.b"],
        "names": NAMES if repetition == 1 else [],
        "time": 1.0,
        "host": "host-0",
        "process": 0,
        **fields,
    }
    return parse(whole)


def parse(fields: dict[str, Any]) -> Any:
    parsed = parse_event(json.dumps(fields))
    assert parsed is not None
    return parsed


def verified(step: int = 20, **fields: Any) -> VerifiedEvent:
    rest = {"state": STATE, "gradients": GRADIENTS, "setting": SETTING, "time": 1.0, "host": "host-0", "process": 0}
    whole: VerifiedEvent = parse({"event": "verified", "step": step, **rest, **fields})
    return whole


def thrice(**fields: Any) -> list[ReplayedEvent]:
    return [event(repetition=number, **fields) for number in (1, 2, 3)]


def verdict(
    replayed: list[ReplayedEvent],
    *before: VerifiedEvent,
    saved: VerifiedEvent | None = None,
    pod: tuple[int, int] | None = (4, 4),
    damaged: int = 0,
) -> Result:
    record = Record({each["step"]: each for each in before}, pod, damaged=damaged)
    return judge(replayed, record, saved, HOSTS[: len({*replayed[0]["processes"]})])


def test_the_same_everywhere() -> None:
    result = verdict(thrice(), verified(), saved=verified(setting=""))
    assert (result.verdict, result.verdict.code, result.hosts) == (Found.SAME, 0, ())
    assert result.sentence == "the same everywhere in 3 repetitions of step 20 on 4 devices, bit for bit"
    assert result.compared == ("the record of step 20 is the same", "the checkpoint of step 20 is the same")
    assert "no digests of these steps" in verdict(thrice()).compared[0]


@pytest.mark.parametrize(
    ("fields", "before", "sentence"),
    [
        (
            {"sums": "ggxg"},
            (),
            "host-2 computes wrongly: the gradients of the same examples differ after step 20, in params.b; it repeats "
            "itself, but differs from the majority",
        ),
        (
            {"sums": "ggxg", "odd": [0, 0, 9, 0]},
            (),
            "host-2 computes wrongly: the gradients of the same examples differ after step 20, in params.b; it does not "
            "repeat itself",
        ),
        (
            {"states": "sxss"},
            (verified(),),
            "host-1 computes wrongly: the state differs after step 20, in params.b; it repeats itself, but differs from the "
            "majority and from the record",
        ),
    ],
)
def test_a_host_that_computes_wrongly(fields: dict[str, Any], before: tuple[VerifiedEvent, ...], sentence: str) -> None:
    result = verdict(thrice(**fields), *before)
    assert (result.verdict, result.verdict.code, result.step, result.arrays) == (Found.HOST, 78, 20, ("params.b",))
    assert result.sentence == sentence and result.hosts == (sentence.partition(" ")[0],)


def test_a_host_that_is_wrong_in_one_repetition_only() -> None:
    result = verdict([event(), event(repetition=2, states="sssx"), event(repetition=3)])
    assert result.hosts == ("host-3",) and result.sentence.endswith("it does not repeat itself")


def test_of_two_hosts_the_record_or_the_repetition_says_which_is_wrong() -> None:
    two = thrice(states="sx", sums="gg")
    both = verdict(two)
    assert both.hosts == ("host-0", "host-1") and "no majority" in both.sentence and both.verdict.code == 78
    assert verdict(two, verified()).hosts == ("host-1",)
    assert verdict(two, verified()).sentence.endswith("it repeats itself, but differs from the record")
    first_is_wrong = digests(9, 2, 3)
    assert verdict(two, verified(state=first_is_wrong, one_device="x")).hosts == ("host-0",)
    for unlike_both in ({}, {"one_device": "y"}):  # the code may have changed since: then nothing says which is right
        assert verdict(two, verified(state=first_is_wrong, **unlike_both)).hosts == ("host-0", "host-1")
    assert verdict(two, verified(setting="another")).hosts == ("host-0", "host-1")
    changing = [event(repetition=n, states=f"s{n}", sums="gg") for n in (1, 2, 3)]
    assert verdict(changing).hosts == ("host-1",)
    assert verdict([event(repetition=n, states=f"{n}{n + 3}", sums="gg") for n in (1, 2, 3)]).verdict is Found.PROGRAM


def test_a_process_of_a_host_with_several() -> None:
    replayed = [event(repetition=n, sums="ggxg") for n in (1, 2)]
    result = judge(replayed, Record({}), None, ["host-0", "host-0", "host-1", "host-1"])
    assert result.hosts == ("host-1",) and result.sentence.startswith("host-1 (process 2) computes wrongly")


def test_two_hosts_of_five() -> None:
    result = verdict(thrice(sums="ggxyg", processes=[0, 1, 2, 3, 3]))
    assert result.hosts == ("host-2", "host-3")
    assert "(process 3, its device 0) compute wrongly: the gradients" in result.sentence
    assert result.sentence.endswith("they repeat themselves, but differ from the majority")


def test_parts_of_a_state_are_compared_where_devices_hold_the_same() -> None:
    same = thrice(states="abab", sums="gggg", groups=[0, 1, 0, 1], differing=[])
    assert verdict(same).verdict is Found.SAME
    odd = verdict(thrice(states="abxb", groups=[0, 1, 0, 1]))
    assert odd.hosts == ("host-0", "host-2") and "no majority" in odd.sentence


def test_a_device_of_a_process_with_several() -> None:
    result = verdict(thrice(sums="gggx", processes=[0, 0, 1, 1]))
    assert result.hosts == ("host-1",) and result.sentence.startswith(
        "host-1 (process 1, its device 1) computes wrongly"
    )


@pytest.mark.parametrize(
    ("replayed", "said"),
    [
        (thrice(sums="abcd", odd=[15, 16, 16, 16]), "4 of 4 devices do not repeat their results"),
        (thrice(sums="ggxg", odd=[0, 0, 1, 0]), "1 of 4 devices do not repeat their results"),
        ([event(repetition=n, state=digests(1, n, 3)) for n in (1, 2, 3)], "the repetitions differ on all hosts alike"),
        ([event(repetition=n, state=digests(1, n // 3, 3)) for n in (1, 2, 3)], "2 of 3 repetitions agree"),
        (
            [event(repetition=n, state=digests(1, n, 3), states="s", sums="g") for n in (1, 2, 3)],
            "host-0 alone does not repeat its own results",
        ),
    ],
)
def test_a_program_that_is_not_deterministic(replayed: list[ReplayedEvent], said: str) -> None:
    result = verdict(replayed, verified())
    assert (result.verdict, result.verdict.code, result.hosts) == (Found.PROGRAM, 2, ())
    assert said in result.sentence and "launch.xla=deterministic" in result.sentence
    assert result.arrays in (("params.b",), ())


def test_a_host_is_blamed_before_the_program() -> None:
    """A host whose sums differ each time makes the state of all hosts differ, too."""
    first = [event(19, n, state=digests(n, 2, 3)) for n in (1, 2, 3)]
    result = verdict([*first, *thrice(sums="gxgg")])
    assert result.hosts == ("host-1",)


def test_a_record_that_differs() -> None:
    result = verdict(thrice(), verified(state=digests(1, 9, 8)))
    assert (result.verdict, result.verdict.code) == (Found.RECORD, 78)
    assert result.arrays == ("params.b", "the rest of the state")
    assert "but what the run has recorded after step 20 differs in params.b, the rest of the state" in result.sentence
    other = verdict(thrice(), verified(state=digests(1, 9, 8), setting="JAX 0.8, 8 devices"))
    assert other.verdict is Found.SAME
    assert "the record was made with JAX 0.8, 8 devices, and this replay with JAX 0.9" in other.compared[0]
    assert "states and gradients" in other.compared[0]
    saved = verified(state=digests(0, 2, 3), setting="")
    assert verdict(thrice(), saved=saved).arrays == ("params.a",)
    assert verdict(thrice(), verified(state=STATE[:-4], setting="x"), saved=saved).verdict is Found.SAME


def test_a_checkpoint_of_other_devices_is_no_finding() -> None:
    """Without a record, the number of devices and processes tells whether sums were rounded alike."""
    saved = verified(state=digests(0, 2, 3), setting="")
    assert verdict(thrice(), saved=saved, pod=(4, 4)).verdict is Found.RECORD
    for pod in ((8, 4), (4, 2)):
        other = verdict(thrice(), saved=saved, pod=pod)
        assert other.verdict is Found.SAME and "is not the same, which other devices" in other.compared[0]
    unknown = verdict(thrice(), saved=saved, pod=None)
    assert unknown.verdict is Found.SAME and "does not say on which devices it was saved" in unknown.compared[0]


def test_the_devices_of_a_checkpoint_are_those_of_the_attempt_that_saved_it() -> None:
    """Not those of the last attempt, which went on with fewer hosts, nor of an earlier run in the same workdir."""
    fewer = {**START, "attempt": 1, "hosts": {"b": [0]}}
    events = [START, SAVED, fewer, {**SAVED, "step": 30}]
    lines = [json.dumps(each).encode() + b"\n" for each in events]
    assert [Record.of_lines(lines, 1, last).saved_on for last in (10, 20, 30)] == [None, (2, 2), (1, 1)]


START = {
    "event": "start",
    "time": 1.0,
    "run_id": "r",
    "attempt": 0,
    "slice": "cpu-2x1",
    "devices": 1,
    "transport": "local",
    "hosts": {"b": [0], "a": [1]},
    "program": None,
    "workdir": "w",
    "logs": "l",
}

SAVED = {"event": "checkpoint", "time": 2.0, "host": "b", "process": 0, "step": 20}


def line(**fields: Any) -> bytes:
    return json.dumps({**verified(), **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    "damaged",
    [
        line()[:40],
        line().replace(b"AAAA", b"\xff\xfe\x00\x1b"),
        line(state="not base64"),
        line(state=""),
        line(state=digests(1)[:-2]),
        line(gradients="====="),
        line(step=-3),
        line(state=7),
        line(step=20)[:-30],
    ],
)
def test_a_record_that_cannot_be_read_is_said(damaged: bytes) -> None:
    record = Record.of_lines([line(step=3), damaged], 20, 20)
    assert record == Record({}, None, (3,), 1)
    result = judge(thrice(), record, None, HOSTS)
    assert (result.verdict, result.verdict.code) == (Found.UNREADABLE, 2)
    assert "the record of digests could not be read: 1 line of events.jsonl about digests is damaged" in result.sentence
    wrong = judge(thrice(sums="ggxg"), record, None, HOSTS)
    assert wrong.hosts == ("host-2",)


def test_a_damaged_line_about_another_step_does_not_matter() -> None:
    assert Record.of_lines([line(step=3, state="?")], 20, 20) == Record({})
    assert Record.of_lines([line(), line(state="?")], 20, 20).damaged == 1


def test_the_nearest_recorded_steps_are_named() -> None:
    lines = [line(step=step) for step in (5, 10, 30, 40)]
    record = Record.of_lines(lines, 20, 20)
    assert record.near == (10, 30)
    assert judge(thrice(), record, None, HOSTS).compared == (
        "the run has recorded no digests of these steps (launch.verify_every); the nearest are of step 10 and 30",
    )
    assert Record.of_lines(lines, 41, 50).near == (40,)


def test_random_bytes_in_the_record() -> None:
    random_bytes = random.Random(0)
    for _ in range(2000):
        data = bytearray(line())
        for _ in range(random_bytes.randint(1, 6)):
            data[random_bytes.randrange(len(data))] = random_bytes.randrange(256)
        judge(thrice(), Record.of_lines([bytes(data)], 1, 100), None, HOSTS)


def test_what_a_replay_has_recorded() -> None:
    two = event(states="ss", sums="gg")
    assert replayed_of([parse(START), two, verified()]) == ([two], verified(), ["b", "a"])
    assert replayed_of([parse(START), two, verified(), parse({**START, "attempt": 1}), two])[:2] == ([two], None)
    for lie in (
        {"processes": [0, 1, 1]},
        {"processes": [0, 7]},
        {"processes": []},
        {"groups": [0]},
        {"odd": [2]},
        {"odd": [1, 1, 1]},
    ):
        assert replayed_of([parse(START), parse({**two, **lie})])[0] == []
    assert Record.of_lines([line(process=1)], 1, 100) == Record({})

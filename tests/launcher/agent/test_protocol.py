"""The checks of frames, value by value: what each accepts and what it calls malformed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base import protocol, schema
from podrun.launcher.agent.base.from_agent import ANSWERS, FROM_AGENT, FROM_PREPARE, parse_answer
from podrun.launcher.agent.base.message import one_of
from podrun.launcher.agent.base.protocol import parse
from podrun.launcher.agent.base.schema import DEPTH, LARGEST, Check, Lines, Malformed, loads, printable, short
from podrun.launcher.agent.base.to_agent import TO_AGENT
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Launch

LIMITS = {"DEPTH": 32, "LARGEST": 2**53, "TEXT_LIMIT": 8192}


def accepted(check: Check, *values: Any) -> list[bool]:
    """Return for each value whether the check accepts it."""
    return [refusal(check, value) is None for value in values]


def refusal(check: Check, value: Any) -> str | None:
    try:
        check(value)
    except Malformed as why:
        return str(why)
    return None


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (schema.anything, (None, 1, "x", []), ()),
        (schema.text, ("", "x"), (None, 1, b"x", ["x"])),
        (schema.words, ("", "x" * 8192), ("x" * 8193, 1)),
        (schema.raw, ("", "é", "\udcff"), ("\ud800", 1)),
        (schema.flag, (True, False), (0, 1, None, "true")),
        (schema.count, (0, 1, LARGEST), (-1, LARGEST + 1, True, 1.0, "1", None)),
        (schema.integer, (0, -1, LARGEST, -LARGEST), (LARGEST + 1, -LARGEST - 1, False, 1.0, None)),
        (schema.exit_code, (0, -127, 255), (-128, 256, True, 0.0)),
        (schema.port, (1, 65535), (0, 65536, -1, True, 80.0)),
        (
            schema.number,
            (0, -1.5, LARGEST, -LARGEST, float(LARGEST)),
            (LARGEST + 1, 1e300, math.nan, math.inf, -math.inf, True, "1", None),
        ),
        (schema.metric, (0, 1.5, 1e300, math.nan, math.inf, LARGEST), (True, "1", None, LARGEST + 1)),
        (schema.maybe(schema.count), (None, 1), (-1, "x")),
        (schema.each(schema.count), ([], [1, 2]), ([1, -1], [-1, 1], {}, "x", None)),
        (schema.each(schema.count, 2), ([1, 2], [1, 2, 3]), ([1], [])),
        (schema.table(schema.count), ({}, {"a": 1}), ({"a": 1, "b": -1}, [], None)),
        (schema.record({"a": schema.count}), ({"a": 1}, {"a": 1, "x": None}), ({}, {"a": -1}, [], None)),
        (
            schema.record({"a": schema.count}, {"b": schema.flag}),
            ({"a": 1}, {"a": 1, "b": True}),
            ({"b": True}, {"a": 1, "b": 1}),
        ),
        (schema.either(schema.count, schema.text), (1, "x"), (-1, None)),
    ],
)
def test_checks_of_one_value(check: Check, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    """Each at its limits; what is true or false is no number."""
    assert accepted(check, *good) == [True] * len(good)
    assert accepted(check, *bad) == [False] * len(bad)


def test_reasons_are_short_and_name_the_field() -> None:
    """The value as it is, at most 60 characters of it, and what was expected."""
    assert refusal(schema.port, 0) == "0, expected a port"
    assert refusal(schema.text, [1]) == "a list, expected a text"
    assert refusal(schema.words, "x" * 8193) == "'" + "x" * 56 + "..., expected at most 8192 characters"
    assert refusal(schema.text, {"x": 1}) == "an object, expected a text"
    assert refusal(schema.each(schema.count, 2), [1]) == "a list, expected a list of 2 or more"
    assert refusal(schema.either(schema.count, schema.text), None) == "None, expected an integer, 0 or more"
    outer = schema.record({"a": schema.record({"b": schema.count})})
    assert refusal(outer, {"a": {}}) == "a is b is missing"
    assert refusal(outer, {"a": {"b": -1}}) == "a is b is -1, expected an integer, 0 or more"
    assert short("x" * 58) == repr("x" * 58)
    assert short("x" * 59) == "'" + "x" * 56 + "..."
    assert short("\u2028") == "'\\u2028'"
    assert short(b"\xff" + b"x" * 80) == "'\\xff" + "x" * 52 + "..."
    assert short(10**70) == "1" + "0" * 56 + "..."


def test_lines_are_put_together_again() -> None:
    """However the stream is cut; empty lines do not count."""
    lines = Lines(100)
    assert lines.feed(b"a") == []
    assert lines.feed(b"b\n\nc\n") == [b"ab", b"c"]
    assert lines.feed(b"\n") == []
    assert lines.feed(b"d") == [] and lines.feed(b"\n") == [b"d"]


def test_a_line_that_is_too_long_is_handed_over_once() -> None:
    """As soon as that is known, cut, so that no memory is taken by an endless line; the next one is a line again."""
    lines = Lines(4)
    assert lines.feed(b"abcd") == []
    assert lines.feed(b"e") == [b"abcde"]
    assert lines.feed(b"fghijk") == [] and lines.feed(b"lm\nok\n") == [b"ok"]
    assert lines.feed(b"abcd\nabcde\nabcdefg\nok\n") == [b"abcd", b"abcde", b"abcde", b"ok"]
    assert lines.feed(b"1234567") == [b"12345"] and lines.feed(b"\nx\n") == [b"x"]


def nested(levels: int, brackets: tuple[str, str] = ("[", "]")) -> bytes:
    return (brackets[0] * levels + "0" * (brackets[0] != "[") + brackets[1] * levels).encode()


def test_json_is_read_within_limits() -> None:
    """Its length, its depth, its numbers and its encoding."""
    assert loads(b'{"a": [1, 2.5]}', 15) == {"a": [1, 2.5]}
    for line, limit, reason in (
        (b"[1, 2]", 5, "longer than 5 bytes"),
        (b"\xff", 9, "not UTF-8: '\\xff'"),
        (b"{", 9, "not JSON: '{'"),
        (b"[NaN]", 9, "holds NaN, which is no number"),
        (b"-Infinity", 9, "holds -Infinity, which is no number"),
        (nested(DEPTH + 1), 999, "nested too deeply"),
        (nested(DEPTH + 1, ('{"a":', "}")), 999, "nested too deeply"),
        (nested(100_000), 10**6, "nested too deeply"),
    ):
        with pytest.raises(Malformed) as caught:
            loads(line, limit)
        assert str(caught.value) == reason
    assert loads(nested(DEPTH), 999)
    assert loads(nested(DEPTH - 1, ('{"a":', "}")), 999)
    assert loads(b"[" + b"[[1]]," * 100 + b"2]", 999)
    assert loads(b'["' + b"[" * 100 + b'"]', 999)
    assert loads(b"[Infinity]", 99, finite=False) == [math.inf]


def test_the_limits_of_the_protocol() -> None:
    """Both sides hold the same ones, and a host with an older agent too."""
    assert {name: getattr(schema, name) for name in LIMITS} == LIMITS
    assert (protocol.LIMIT, protocol.STREAM_LIMIT, protocol.EXTENSION) == (16_777_216, 1_048_576, 100_000_000)


def test_halves_of_characters_are_replaced() -> None:
    """At any depth, in names as well; all else stays."""
    value = {"a\ud800": ["\udcff", 1, None, {"b": "x\ud800"}]}
    assert printable(value) == {"a?": ["?", 1, None, {"b": "x?"}]}


def test_frames_are_parsed_by_their_kind() -> None:
    """Unknown kinds and wrong fields are malformed; fields that nobody knows are ignored."""
    assert parse(b'{"type": "ping", "new": 1}', TO_AGENT) == {"type": "ping", "new": 1}
    for line, reason in (
        (b"[]", "not an object with a type: '[]'"),
        (b"{}", "not an object with a type: '{}'"),
        (b'{"type": 1}', "not an object with a type: '{\"type\": 1}'"),
        (b'{"type": "pong"}', "unknown type 'pong'"),
        (b'{"type": "stop"}', "stop: grace is missing"),
        (b'{"type": "stop", "grace": true}', "stop: grace is True, expected a finite number"),
        (b'{"type": "stop", "grace": 1, "hurry": 1}', "stop: hurry is 1, expected true or false"),
    ):
        with pytest.raises(Malformed) as caught:
            parse(line, TO_AGENT)
        assert str(caught.value) == reason
    with pytest.raises(Malformed, match="longer than 10 bytes"):
        parse(b'{"type": "ping"}', TO_AGENT, 10)


def test_texts_for_people_hold_no_halves_of_characters_but_output_does() -> None:
    """Output is bytes, which must arrive unchanged; an answer is text like any other."""
    data = {"type": "output", "stream": "s", "offset": 0, "data": "\udcff"}
    assert parse(json.dumps(data).encode(), FROM_AGENT)["data"] == "\udcff"
    note = {"type": "waiting", "n": 0, "holder": "\udcff"}
    assert parse(json.dumps(note).encode(), FROM_AGENT)["holder"] == "?"
    assert parse_answer(b'{"error": "\\udcff"}', "see") == {"error": "?"}
    with pytest.raises(Malformed, match="error is missing"):
        parse_answer(b"{}", "see")


def test_a_spec_is_checked_like_other_frames() -> None:
    """Every field of it, and of its workers; an agent without a process to start has been started by mistake."""
    pod = Pod(parse_slice("cpu-2x1"), (Host("a", "a"), Host("b", "b")), "ssh", "cpu")
    program = Program(("python", "train.py"), Launch())
    plan = make_plan(RunSpec("r", pod, program, Path("/w"), Path("/jobs")))
    spec = plan.hosts[0].spec
    worker = spec["processes"][0]
    assert accepted(TO_AGENT["spec"], spec, spec | {"processes": []}) == [True, False]
    for name in spec.keys() - {"type"}:
        without = {key: value for key, value in spec.items() if key != name}
        assert refusal(TO_AGENT["spec"], without) == f"{name} is missing"
    for name in worker.keys() - {"names", "container"}:
        without = {key: value for key, value in worker.items() if key != name}
        assert refusal(TO_AGENT["spec"], spec | {"processes": [without]}) == f"processes is {name} is missing"
    assert accepted(TO_AGENT["spec"], spec | {"ports": [1, 2]}, spec | {"ports": [1]}) == [True, False]


def test_what_may_be_null() -> None:
    """A worker on a host without the coordinator has no port, and one that has no address yet none; an exit has a code."""
    ready = {"n": 0, "port": None, "address": None}
    given = [{}, {"address": "10.0.0.1"}, {"address": "x"}]
    assert accepted(FROM_AGENT["ready"], *(ready | fields for fields in given)) == [True, True, False]
    ended = {"n": 0, "process": 0, "code": 0, "error": None, "asked": False}
    assert accepted(FROM_AGENT["exit"], ended, ended | {"code": None}, ended | {"asked": None}) == [True, False, False]
    done = {"python": "p", "facts": None, "pruned": 0}
    assert accepted(FROM_PREPARE["done"], done, done | {"facts": {}}) == [True, False]


def test_an_answer_or_the_reason_why_there_is_none() -> None:
    """Some commands answer only with the reason of their failure."""
    good = {"error": None, "port": 1, "address": None}
    assert accepted(ANSWERS["listen"], good, {"error": "no"}, {"error": None}, {}) == [True, True, False, False]
    clock = {"clock": {"received": 1.0, "answered": 2.0}}
    system = {"host": "h", "cores": 2}
    assert accepted(
        ANSWERS["facts"],
        clock | {"system": system},
        clock | {"system": {"error": "why"}},
        clock,
        clock | {"system": system, "driver": None, "memory": {"error": "why"}},
        clock | {"system": system, "memory": {"total": -1, "available": 0}},
    ) == [True, True, False, True, False]


def test_one_of_several_requests() -> None:
    """The kind decides which fields there must be; what has no kind is refused."""
    archive = {"type": "archive", "path": "/w", "files": ["a"]}
    kinds = {"archive": schema.record({"path": schema.text, "files": schema.each(schema.text)})}
    check = one_of(kinds)
    assert accepted(check, archive, archive | {"files": [1]}, archive | {"type": "other"}) == [True, False, False]
    assert refusal(check, {"type": "archive", "path": "/w"}) == "files is missing"
    for value in ({}, {"type": 1}, [], "archive", None):
        assert (refusal(check, value) or "").startswith("unknown type"), value

"""The text of an injected fault: parsed, written again, and all its mistakes."""

from __future__ import annotations

import pytest

from podrun.runtime.injection import KINDS, Injection, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill", Injection("kill")),
        ("kill:host=1@step=20", Injection("kill", "1", None, "step", 20)),
        ("hang:process=3@phase=evaluate", Injection("hang", None, 3, "phase", "evaluate")),
        ("exit:code=3,host=host-1", Injection("exit", "host-1", parameter=3)),
        ("slow:seconds=0.5@step=2", Injection("slow", at=2, parameter=0.5)),
        ("link_down:host=1,seconds=20@seconds=3", Injection("link_down", "1", None, "seconds", 3.0, 20.0)),
    ],
)
def test_text_is_parsed_and_written_in_full(text: str, expected: Injection) -> None:
    injection, problems = parse(text)
    assert problems == []
    assert injection is not None and str(injection) == str(expected)
    assert parse(str(injection)) == (injection, [])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_defaults(kind: str) -> None:
    injection, problems = parse(kind)
    assert injection is not None and (injection.time, injection.at, problems) == ("step", 1, [])
    assert parse(str(injection)) == (injection, [])


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("kil", ["did you mean kill?"]),
        ("", ["unknown kind ''"]),
        ("kill:hots=1@stp=3", ["unknown key 'hots'; did you mean host?", "unknown time '@stp'; did you mean @step?"]),
        ("kill:host=,process=x@step=0", ["host has no value", "process is 'x'", "@step is '0'"]),
        ("kill:host=1,host=2", ["host is given twice"]),
        ("kill:", ["unknown key ''"]),
        ("kill:seconds=3", ["unknown key 'seconds'"]),
        ("exit:code=256", ["code is 256, expected 0 to 255"]),
        ("slow:seconds=nan@phase=save", ["seconds is 'nan'", "slow cannot occur at @phase; allowed: @step"]),
        ("hang@seconds=3", ["hang cannot occur at @seconds; allowed: @step, @phase"]),
        ("kill@phase=evalute", ["unknown phase 'evalute'; did you mean evaluate?"]),
        ("kill@phase=done", ["unknown phase 'done'"]),
        ("kill@step=" + "9" * 4000, ["@step is '99999999999999999999', expected"]),
        ("kill@seconds=inf", ["@seconds is 'inf'"]),
        ("kil:code=1@setp=2", ["unknown kind", "unknown key 'code'", "unknown time"]),
    ],
)
def test_all_mistakes_are_told(text: str, mistakes: list[str]) -> None:
    injection, problems = parse(text)
    assert injection is None
    assert len(problems) == len(mistakes), problems
    assert all(part in problem for part, problem in zip(mistakes, problems, strict=True)), problems

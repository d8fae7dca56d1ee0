"""The turns of loops are read from programs, with and without the number that the compilers of CPUs and GPUs write."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.inspect_job import hlo
from podrun.runtime.inspect_job.loops import runs, unknown_loops
from podrun.runtime.inspect_job.traffic import PodMesh, traffic

from .programs import COLLECTIVES, looping, program


@pytest.fixture(scope="module")
def compiled() -> Any:
    return looping(jax.devices()).lower().compile().as_text()


@pytest.mark.parametrize("is_written", [True, False])
def test_collectives_of_a_real_program_count_as_often_as_they_run(compiled: Any, is_written: bool) -> None:
    """Nested loops, also in a backward pass that repeats them, one from 3 to 12, one downwards, one of unknown length."""
    text = compiled if is_written else re.sub(r'"known_trip_count":\{"n":"\d+"\},?', "", compiled)
    assert ("known_trip_count" in text) == is_written
    found = hlo.read(text)
    sent = traffic(found, PodMesh(("device",), np.array(jax.devices())))
    assert {one.kind: one.count for one in sent} == COLLECTIVES
    assert unknown_loops(found) == 1


@pytest.mark.parametrize(
    ("first", "step", "test", "turns"),
    [
        (0, 1, "%i, %n), direction=LT", 10),
        (0, 1, "%n, %i), direction=GT", 10),
        (0, 1, "%i, %n), direction=LE", 11),
        (1, 4, "%i, %n), direction=LT", 3),
        (0, 5, "%i, %n), direction=NE", 2),
        (0, 3, "%i, %n), direction=NE", None),
        (15, -2, "%i, %n), direction=GT", 3),
        (14, -2, "%i, %n), direction=GE", 3),
        (12, 1, "%i, %n), direction=LT", 0),
        (0, 1, "%i, %n), direction=GT", None),
        (0, 0, "%i, %n), direction=LT", None),
        (0, 1, "%i, %i), direction=LT", None),
    ],
)
def test_every_form_of_a_condition(first: int, step: int, test: str, turns: int | None) -> None:
    """The outer loop carries the bound, 10, to the inner one, whose condition is fused."""
    others = f"""%compared (i: s32[], n: s32[]) -> pred[] {{
  %i = s32[] parameter(0)
  %n = s32[] parameter(1)
  ROOT %c = pred[] compare({test}
}}

%condition (t: (s32[], s32[])) -> pred[] {{
  %t = (s32[], s32[]) parameter(0)
  %t.0 = s32[] get-tuple-element(%t), index=0
  %t.1 = s32[] get-tuple-element(%t), index=1
  ROOT %f = pred[] fusion(%t.0, %t.1), kind=kLoop, calls=%compared
}}

%body (u: (s32[], s32[])) -> (s32[], s32[]) {{
  %u = (s32[], s32[]) parameter(0)
  %u.0 = s32[] get-tuple-element(%u), index=0
  %u.1 = s32[] get-tuple-element(%u), index=1
  %step = s32[] constant({step})
  %next = s32[] add(%step, %u.0)
  %turn = f32[] negate(%step)
  ROOT %after = (s32[], s32[]) tuple(%next, %u.1)
}}

%outer_condition (v: (s32[], s32[])) -> pred[] {{
  %v = (s32[], s32[]) parameter(0)
  %v.0 = s32[] get-tuple-element(%v), index=0
  %two = s32[] constant(2)
  ROOT %d = pred[] compare(%v.0, %two), direction=LT
}}

%outer_body (w: (s32[], s32[])) -> (s32[], s32[]) {{
  %w = (s32[], s32[]) parameter(0)
  %w.0 = s32[] get-tuple-element(%w), index=0
  %w.1 = s32[] get-tuple-element(%w), index=1
  %first = s32[] constant({first})
  %copied = s32[] copy(%first)
  %inner = (s32[], s32[]) tuple(%copied, %w.1)
  %loop = (s32[], s32[]) while(%inner), condition=%condition, body=%body
  %one = s32[] constant(1)
  %w.next = s32[] add(%w.0, %one)
  %w.n = s32[] get-tuple-element(%loop), index=1
  ROOT %w.after = (s32[], s32[]) tuple(%w.next, %w.n)
}}
"""
    found = program(
        "  %zero = s32[] constant(0)",
        "  %ten = s32[] constant(10)",
        "  %begin = (s32[], s32[]) tuple(%zero, %ten)",
        "  %outer = (s32[], s32[]) while(%begin), condition=%outer_condition, body=%outer_body",
        others=others,
    )
    (times,) = (times for _, line, times in runs(found) if line.name == "turn")
    assert times == 2 * (1 if turns is None else turns)
    assert unknown_loops(found) == (turns is None)

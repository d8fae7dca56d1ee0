"""Differences between the job of a checkpoint and this one: which keep it from being resumed, and how they are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from podrun.runtime.checkpoint.same_job import changes, differences, obstacles, refusal, shapes_of
from podrun.runtime.config import Config, saved_config
from podrun.runtime.data.mixture import fingerprint_of

JOB: dict[str, Any] = {
    "steps": 6,
    "batch_size": 8,
    "model": {"layers": 1, "heads": 2, "width": 8, "context": 16},
    "parallel": {"name": "jit"},
}
SHAPES = {"params": {"a": {"kernel": [4, 2], "bias": [2]}}, "step": []}


def job(**given: Any) -> Config:
    sections = {
        key: {**JOB.get(key, {}), **value} if isinstance(value, dict) and isinstance(JOB.get(key), dict) else value
        for key, value in given.items()
    }
    return Config.model_validate({**JOB, **sections})


def rows(before: Config, now: Config, shapes: Any = SHAPES, new_shapes: Any = SHAPES, data: bytes = b"x") -> Any:
    meta = {"config": saved_config(before), "fingerprint": b"x".hex(), "shapes": shapes}
    return obstacles(meta, now, data, new_shapes)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {}),
        ({}, {"steps": 9, "batch_size": 16, "seed": 3}),
        ({}, {"model": {"dropout": 0.5}}),
        ({}, {"optimizer": {"learning_rate": 0.5, "weight_decay": 0.25}}),
        ({"optimizer": {"clip_norm": 1.0}}, {"optimizer": {"clip_norm": 2.0}}),
        ({}, {"parallel": {"name": "pmap"}}),
        ({}, {"parallel": {"name": "mine:Strategy"}}),
        ({"ema": 0.5}, {"ema": 0.75}),
    ],
)
def test_what_may_be_tuned_on_the_way(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Lengths, rates and how the work is divided: the state is the same."""
    assert rows(job(**before), job(**now)) == []
    assert rows(job(**now), job(**before)) == []


@pytest.mark.parametrize(
    ("before", "now", "keys"),
    [
        ({}, {"model": {"width": 16}}, ["model.width"]),
        ({}, {"model": {"width": 16, "layers": 2}}, ["model.layers", "model.width"]),
        ({}, {"optimizer": {"name": "sgd"}}, None),
        ({"optimizer": {"clip_norm": 1.0}}, {"optimizer": {"clip_norm": None}}, ["optimizer.clip_norm"]),
        ({}, {"parallel": {"name": "ensemble"}}, ["parallel"]),
        ({}, {"ema": 0.5}, ["ema"]),
    ],
)
def test_what_makes_it_another_job(before: dict[str, Any], now: dict[str, Any], keys: list[str] | None) -> None:
    """Each key with both values, whichever comes first."""
    for one, other in ((before, now), (now, before)):
        obstacles_found = rows(job(**one), job(**other))
        assert (
            sorted(key for key, _ in obstacles_found) == keys if keys else obstacles_found[0][0].startswith("optimizer")
        )
    (row, *_) = rows(job(), job(model={"width": 16}))
    assert row == ("model.width", "8 in the checkpoint, 16 in this job")


def test_other_data() -> None:
    """It is told by the sources' names, beside what else differs."""
    assert rows(job(), job(), data=b"y") == [
        ("data", "not the same as before (data.name python_source, now python_source)")
    ]
    assert [key for key, _ in rows(job(), job(ema=0.5), data=b"y")] == ["ema", "data"]


def test_differences_that_the_config_does_not_show() -> None:
    """Changed code of a model: the shapes of the state are compared, if nothing else says it."""
    other = {"params": {"a": {"kernel": [4, 3]}, "b": [1]}, "step": []}
    assert rows(job(), job(), SHAPES, other) == [
        ("state.params.a.kernel", "shape [4, 2] in the checkpoint, [4, 3] in this job"),
        ("state.params.a.bias", "shape [2] in the checkpoint, null in this job"),
        ("state.params.b", "shape null in the checkpoint, [1] in this job"),
    ]
    assert [key for key, _ in rows(job(), job(ema=0.5), SHAPES, other)] == ["ema"]


def test_an_ensemble_has_as_many_members_as_before() -> None:
    """One for each device; other shapes are told as such. Without an ensemble the first axis says nothing."""
    ensemble = job(parallel={"name": "ensemble"})
    two, three = ({"params": {"a": {"k": [n, 4]}}} for n in (2, 3))
    assert rows(ensemble, ensemble, two, two) == []
    assert rows(ensemble, ensemble, two, three) == [
        ("members", "2 in the checkpoint, 3 in this job, one for each device of its slice")
    ]
    wide = {"params": {"a": {"k": [2, 5]}}}
    assert [key for key, _ in rows(ensemble, ensemble, two, wide)] == ["state.params.a.k"]
    assert [key for key, _ in rows(job(), job(), two, three)] == ["state.params.a.k"]
    assert [key for key, _ in rows(ensemble, ensemble, two, three, data=b"y")] == ["data"]


def test_the_message() -> None:
    """Its first line has the first difference; at most eight are shown, and how many more there are."""
    many = [(f"k{n}", f"r{n}") for n in range(10)]
    lines = refusal("/w", 7, many).splitlines()
    assert lines[0] == "workdir /w holds a checkpoint (step 7) of another job: k0 is r0"
    assert lines[1:9] == [f"  k{n}: r{n}" for n in range(8)] and lines[9] == "  and 2 more"
    assert lines[10].startswith("choose another --workdir")
    lines = refusal("/w", 7, many[:8]).splitlines()
    assert len(lines) == 10 and lines[8] == "  k7: r7"


def test_changes_are_told() -> None:
    """Allowed ones are told, too; texts as they are, all else as JSON."""
    assert changes({"config": saved_config(job())}, job()) == []
    told = changes({"config": saved_config(job())}, job(steps=9, parallel={"name": "pmap"}, ema=0.5))
    assert "steps: 6 -> 9" in told and "parallel.name: jit -> pmap" in told and "ema: null -> 0.5" in told


def test_a_checkpoint_of_an_older_version() -> None:
    """Keys that it does not have get their defaults; one with keys that nobody knows is compared unchanged."""
    saved = saved_config(job())
    older = {key: value for key, value in saved.items() if key != "ema"}
    older["optimizer"] = {key: value for key, value in saved["optimizer"].items() if key != "b2"}
    assert changes({"config": older}, job()) == []
    assert "unknown: 1 -> null" in changes({"config": {**saved, "unknown": 1}}, job())


def test_differences_between_trees() -> None:
    """In the order of the first, then what only the second has."""
    before, after = {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}, {"b": {"d": 4, "f": 1}, "e": 4, "g": {}}
    assert differences("", before, after) == [
        ("a", 1, None),
        ("b.c", 2, None),
        ("b.d", 3, 4),
        ("b.f", None, 1),
        ("g", None, {}),
    ]
    assert differences("x", {"a": {}}, {"a": 3}) == [("x.a", {}, 3)]
    assert differences("x", 1, 2) == [("x", 1, 2)] and differences("x", 1, 1) == []


def test_shapes_of_a_state() -> None:
    """Below the names that it has; what is None has no shape."""
    state = {"params": {"a": np.zeros((2, 3)), "none": None}, "step": np.zeros(())}
    assert shapes_of(state) == {"params": {"a": [2, 3]}, "step": []}


def test_a_tokenizer_that_differs() -> None:
    """Part of the reason if the data is not the same, else a change; older checkpoints have none."""
    meta = {"config": saved_config(job()), "fingerprint": b"x".hex(), "shapes": SHAPES}
    told = "byte in the checkpoint, char in this job"
    now = {"name": "char", "code_points": [1]}
    with_one = {**meta, "tokenizer": {"name": "byte"}}
    assert obstacles(with_one, job(), b"x", SHAPES, now) == []
    assert obstacles(with_one, job(), b"y", SHAPES, now)[1:] == [("data.tokenizer", f"another: {told}")]
    assert changes(with_one, job(), now) == [f"the tokenizer: {told}"]
    assert len(obstacles(meta, job(), b"y", SHAPES, now)) == 1
    assert changes(meta, job(), now) == []


def test_sources_of_a_mixture() -> None:
    """One may be added, but not taken away or exchanged."""
    one, two, other = (
        fingerprint_of(sources) for sources in ({"a": b"1"}, {"a": b"1", "b": b"2"}, {"a": b"3", "b": b"2"})
    )

    def refused(before: bytes, now: bytes) -> list[str]:
        meta: Any = {"config": saved_config(job()), "fingerprint": before.hex(), "shapes": SHAPES}
        return [key for key, _ in obstacles(meta, job(), now, SHAPES)]

    assert refused(one, two) == refused(two, two) == []
    assert refused(two, one) == refused(two, other) == ["data.sources"]
    assert refused(b"text", one) == refused(one, b"text") == ["data"]


def test_how_the_data_differs() -> None:
    """Keys that say which examples there are; not those that may change on the way."""
    prepared = {"name": "prepared", "path": "tokens"}
    found = rows(
        job(data=prepared), job(data={**prepared, "packing": "fit", "skip": [[3, 4]], "bring": True}), data=b"other"
    )
    assert found == [
        ("data", "not the same as before (data.name prepared, now prepared)"),
        ("data.packing", '"concat" in the checkpoint, "fit" in this job'),
    ]


def test_an_average_of_frozen_parameters_is_no_difference() -> None:
    """Older versions saved it there; what is trained must still be there, in its shape."""
    now = {"params": {"w": [2]}, "ema": {"w": [2], "table": {}}}
    older = {"params": {"w": [2]}, "ema": {"w": [2], "table": [9]}}
    assert rows(job(), job(), older, now) == []
    other = {"params": {"w": [2]}, "ema": {"w": [3], "table": [9]}}
    assert [key for key, _ in rows(job(), job(), other, now)] == ["state.ema.w"]

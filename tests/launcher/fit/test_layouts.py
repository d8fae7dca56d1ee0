"""The layouts that `podrun fit` compiles, and those that it rules out by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.fit.layouts import Chain, Layout, chains, smallest, strategies
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.request.train_file import read_config
from podrun.runtime.config import Config
from podrun.runtime.layout_facts import Held, Survey

GIB = 2**30


def job(**keys: Any) -> Config:
    return Config.model_validate(
        {"task": "language_model", "steps": 10, "batch_size": 64, "data": "python_source", **keys}
    )


def facts(*held: Held, examples: int = 1000, whole: bool = False) -> Survey:
    return Survey("TPU v5 lite", 16 * GIB, {}, examples, whole, held)


def names(config: Config, slice: str) -> list[str]:
    return [Layout(one, 1, config.batch_size).name(config) for one in strategies(config, parse_slice(slice))[0]]


def test_without_a_strategy_they_are_pmap_and_jit() -> None:
    assert names(job(), "v5e-4") == ["pmap", "jit", "jit fsdp=2", "jit fsdp=4"]


def test_a_strategy_that_is_given_stays() -> None:
    """Its mesh is searched, whatever it is now."""
    assert names(job(parallel="shard_map"), "v5e-4") == ["shard_map"]
    mesh = {"name": "explicit", "mesh": {"fsdp": 2, "data": 2}}
    assert names(job(parallel=mesh), "v5e-4") == ["explicit", "explicit fsdp=2", "explicit fsdp=4"]


def test_fsdp_stays_within_a_slice() -> None:
    assert names(job(parallel="jit"), "2xv5e-4") == ["jit", "jit fsdp=2", "jit fsdp=4"]


def test_a_strategy_that_cannot_train_the_job_is_ruled_out() -> None:
    """Explicit with fsdp does not know the shardings of what muon computes."""
    config = job(parallel="explicit", optimizer="muon")
    possible, out = strategies(config, parse_slice("v5e-4"))
    assert [one.grid.fsdp for one in possible] == [1]
    assert [one.layout.parallel.grid.fsdp for one in out] == [2, 4] and "explicit with fsdp" in out[0].reason


def test_a_batch_that_no_layout_divides() -> None:
    possible, out = strategies(job(batch_size=100), parse_slice("v5e-16"))
    assert possible == [] and len(out) == 6
    assert {one.reason for one in out} == {
        "batch_size 100 is not divisible by 16 devices; the nearest sizes that are: 96 or 112"
    }
    assert len(strategies(job(batch_size=100), parse_slice("v5e-16"), search_batch=True)[0]) == 6


def test_sizes_of_the_model_axis() -> None:
    """Those of the job stay; those asked for are all tried, with every fsdp that leaves room, and their batch is of rows."""
    config = job(parallel={"name": "jit", "mesh": {"model": 2}}, batch_size=8)
    possible, out = strategies(config, parse_slice("v5e-16"))
    assert [(one.grid.fsdp, one.grid.model) for one in possible] == [(1, 2), (2, 2), (4, 2), (8, 2)] and not out
    possible, out = strategies(job(batch_size=8), parse_slice("v5e-4"), models=(1, 4))
    assert [(one.name, one.grid.fsdp, one.grid.model) for one in possible] == [
        ("pmap", 1, 1),
        *[("jit", fsdp, 1) for fsdp in (1, 2, 4)],
        ("jit", 1, 4),
    ]
    layout = Layout(possible[-1], 1, 8)
    assert layout.name(config) == "jit model=4"
    assert layout.keys(job(batch_size=8)) == ["parallel.name=jit", "parallel.mesh.model=4"]
    # The rows of a mesh that is wrong are not blamed on the batch, nor are its other sizes listed.
    _, (refused,) = strategies(job(batch_size=16), parse_slice("v5e-16"), models=(3,))
    assert refused.reason == (
        "parallel.mesh.model 3 does not divide the 16 devices of the slice; it can be 1, 2, 4, 8, 16"
    )


def searched(config: Config, survey: Survey, **options: Any) -> tuple[list[Chain], list[tuple[str, str]]]:
    slice = parse_slice("v5e-4")
    chosen, out = chains(config, slice, strategies(config, slice)[0], survey, **options)
    return chosen, [(one.layout.name(config), one.reason) for one in out]


def test_what_cannot_fit_is_ruled_out() -> None:
    """The state alone; or with it the sum of gradients, which only several parts of a batch have."""
    held = Held(17 * GIB, 4 * GIB), Held(14 * GIB, 4 * GIB), Held(7 * GIB, 2 * GIB)
    possible, out = searched(job(batch_size=8, parallel="jit"), facts(*held))
    assert [[layout.accumulate for layout in chain.layouts] for chain in possible] == [[1], [1, 2]]
    assert out == [
        ("jit", "the state takes 17.0 GiB of a device, which has 16.0 GiB"),
        ("jit accumulate=2", "the state takes 17.0 GiB of a device, which has 16.0 GiB"),
        (
            "jit fsdp=2 accumulate=2",
            "the state and the sum of gradients take 14.0 GiB and 4.0 GiB of a device, which has 16.0 GiB",
        ),
    ]


def test_accumulate_divides_the_share_of_a_device() -> None:
    chosen, _ = searched(job(batch_size=48, parallel="shard_map"), facts(Held()))
    assert [layout.accumulate for layout in chosen[0].layouts] == [1, 2, 3, 4, 6, 12]
    chosen, _ = searched(job(batch_size=48, parallel="single"), facts(Held()))
    assert [layout.accumulate for layout in chosen[0].layouts][-2:] == [24, 48]
    chosen, _ = searched(job(batch_size=48, parallel="shard_map"), facts(Held(), whole=True))
    assert [layout.accumulate for layout in chosen[0].layouts] == [1]


def test_batch_sizes_are_powers_of_two_on_each_device() -> None:
    """The largest first, up to the training set; the one nearest to the job's own is compiled first."""
    chosen, _ = searched(job(batch_size=24, parallel="jit", accumulate=2), facts(*[Held()] * 3), search_batch=True)
    sizes = [layout.batch_size for layout in chosen[0].layouts]
    assert sizes == [4 * 2**power for power in (7, 6, 5, 4, 3, 2, 1, 0)]
    assert chosen[0].layouts[chosen[0].start].batch_size == 16
    assert {layout.accumulate for layout in chosen[0].layouts} == {1}


@pytest.mark.parametrize("start", [0, 3])
def test_the_first_that_fits_is_found_by_bisection(start: int) -> None:
    for length in range(1, 20):
        layouts = tuple(Layout(job().parallel, number, 64) for number in range(length))
        chain = Chain(layouts, min(start, length - 1))
        for first in range(length + 1):  # `length`: none fits
            fits: dict[Layout, bool] = {}
            while layout := chain.next(fits):
                assert layout not in fits
                fits[layout] = layouts.index(layout) >= first
            assert len(fits) <= 2 + length.bit_length()
            if first == 0 == start:
                assert len(fits) == 1
            assert first == length or fits[layouts[first]]
            assert first == 0 or fits[layouts[first - 1]] is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "parallel: jit\n",
        "parallel: {name: jit, mesh: {fsdp: 2, data: 2}}\naccumulate: 2\n",
        "parallel: {name: explicit, mesh: {fsdp: 4}}\n",
    ],
)
def test_the_keys_give_the_job_its_layout(tmp_path: Any, text: str) -> None:
    """Whatever train.yaml says."""
    path = tmp_path / "train.yaml"
    path.write_text(f"task: language_model\nsteps: 3\nbatch_size: 16\n{text}")
    config, slice = read_config(path), parse_slice("v5e-4")
    sections, _ = strategies(config, slice)
    chosen, _ = chains(config, slice, sections, facts(*[Held()] * len(sections)))
    layouts = [layout for chain in chosen for layout in chain.layouts]
    assert len(layouts) >= 9
    for layout in layouts:
        again = read_config(path, layout.keys(config))
        assert (again.parallel.name, again.parallel.grid) == (layout.parallel.name, layout.parallel.grid)
        assert (again.accumulate, again.batch_size) == (layout.accumulate, layout.batch_size)


def test_the_smallest_job_has_one_example_on_each_device() -> None:
    config, slice = job(accumulate=4), parse_slice("v5e-4")
    small = smallest(config, strategies(config, slice)[0][-1], slice)
    assert (small.batch_size, small.accumulate, small.parallel.grid.fsdp) == (4, 1, 4)

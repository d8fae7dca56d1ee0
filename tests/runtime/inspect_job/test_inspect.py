"""A job looked at before it runs, on four virtual devices."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from podrun.runtime.config import Config
from podrun.runtime.inspect_job.arrays import fold, rows
from podrun.runtime.inspect_job.layout import bytes_per_device, draw, layout
from podrun.runtime.inspect_job.look import look
from podrun.runtime.inspect_job.render import text
from podrun.runtime.job_report import Report, Roofline, Row, as_json

STRATEGIES = ["pmap", "jit", "explicit", "shard_map", "single", "ensemble"]


def array(shape: tuple[int, ...], *spec: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "fsdp"))
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))


# --- arrays ---------------------------------------------------------------------------------------------------------


def names(tree: Any) -> dict[str, int]:
    return {row.name: row.repeat for row in fold(rows(tree))}


def vector(size: int = 4) -> Any:
    return jax.ShapeDtypeStruct((size,), np.float32)


def test_blocks_of_one_shape_are_one_row() -> None:
    """Whatever order they come in; the numbers that are missing are missing in the name."""
    tree = {f"h_{n}": {"kernel": vector(), "bias": vector(2)} for n in (0, 1, 2, 10, 11)}
    assert names(tree) == {"h_[0-2,10-11].bias": 5, "h_[0-2,10-11].kernel": 5}


def test_blocks_of_blocks_are_one_row() -> None:
    """Numbers at any depth, in lists as well."""
    tree = {f"layer{n}": [{"expert_0": vector(), "expert_1": vector()} for _ in range(3)] for n in range(2)}
    assert names(tree) == {"layer[0-1].[0-2].expert_[0-1]": 12}


def test_blocks_of_other_shapes_stay_apart() -> None:
    """The first layer of a perceptron is no block of it."""
    tree = {"Dense_0": vector(3), "Dense_1": vector(), "Dense_2": vector(), "head": vector(), "conv2": vector()}
    assert names(tree) == {"Dense_0": 1, "Dense_[1-2]": 2, "conv2": 1, "head": 1}


def test_folding_loses_nothing() -> None:
    """Count and bytes are those of all arrays."""
    tree = {f"h_{n}": {"w": jax.ShapeDtypeStruct((3, n % 2 + 1), np.float16)} for n in range(7)}
    found, folded = rows(tree), fold(rows(tree))
    assert len(folded) == 2
    assert sum(r.count for r in folded) == sum(r.count for r in found) == 3 * (4 + 2 * 3)
    assert sum(r.bytes for r in folded) == 2 * sum(r.count for r in folded)
    assert Row(("w",), (), "float32", 4).count == 1


# --- layout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "spec", "words"),
    [
        ((16, 129), (("data", "fsdp"),), "split over data x fsdp in 4 parts of [4, 129]"),
        ((16, 129), ("data",), "split over data in 2 parts of [8, 129], each on 2 devices"),
        ((6, 8), ("data", "fsdp"), "split over data x fsdp in 4 parts of [3, 4]"),
        ((6, 8), (None, "fsdp"), "split over fsdp in 2 parts of [6, 4], each on 2 devices"),
        ((6, 8), (), "replicated: the same on all 4 devices"),
        ((), (), "replicated: the same on all 4 devices"),
    ],
)
def test_layout_in_words(shape: tuple[int, ...], spec: tuple[Any, ...], words: str) -> None:
    """Over which axes, in how many parts, of which shape, on how many devices each."""
    assert layout("x", array(shape, *spec), 4).where == words


def test_an_array_on_one_device() -> None:
    """It may be one of several, or the only one."""
    one = jax.ShapeDtypeStruct((2,), np.float32, sharding=SingleDeviceSharding(jax.devices()[1]))
    assert layout("x", one, 4).where == "whole on one of the 4 devices"
    assert layout("x", one, 1).where == "whole on its only device"


def test_bytes_on_each_device() -> None:
    """A quarter, a half and the whole of 64 numbers."""
    tree = [array((8, 8), "data", "fsdp"), array((8, 8), "data"), array((8, 8))]
    assert bytes_per_device(tree) == 4 * (16 + 32 + 64)


def test_pictures() -> None:
    """JAX's own, of what has two dimensions that are split; none of what is whole on one device, or has no dimension."""
    assert "CPU 0,2" in draw(array((8, 8), None, "fsdp"), 70)
    assert draw(array((4, 3, 8), "data"), 70).count("CPU") == 2
    assert draw(array((4, 3, 8), None, None, "data"), 70).count("CPU") == 2
    assert draw(array(()), 70) == ""
    assert draw(jax.ShapeDtypeStruct((2,), np.float32, sharding=SingleDeviceSharding(jax.devices()[0])), 70) == ""


# --- a job ----------------------------------------------------------------------------------------------------------

PARAMETERS = 1 * 256 + 256 + 256 * 256 + 256 + 256 * 1 + 1
"""Arrays of a perceptron with two hidden layers of 256."""


def job(**keys: Any) -> Config:
    model = {"layers": 2, "width": 256}
    values = {"task": "regression", "model": model, "steps": 3, "batch_size": 8, "data": {"samples": 100}, **keys}
    return Config.model_validate(values)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_way_of_being_parallel(name: str) -> None:
    """Can be looked at: the model and its FLOPs are the same for all; layout and memory say what differs."""
    report = look(job(parallel=name), "cpu-2x2", 78)
    assert (report.devices, report.parallel) == (4, name)
    assert sum(row.count for row in report.parameters) == PARAMETERS
    models = 4 if name == "ensemble" else 1
    assert report.models == models
    assert report.state["params"].per_device == 4 * PARAMETERS
    assert report.computing == (1 if name == "single" else 4)
    assert report.computed.flops == pytest.approx(models * 6 * 8 * PARAMETERS, rel=0.1)
    assert (report.computed.examples, report.computed.seconds_at_peak) == (8, None)
    assert report.memory
    assert report.memory.total >= 3 * 4 * PARAMETERS  # the parameters and AdamW's two moments
    assert [one.name for one in report.outputs] == ["metrics loss, grad_norm, learning_rate"]
    assert not any(one.name.startswith("params") for one in report.outputs)
    assert f"{PARAMETERS:,}" in text(report, "train.yaml", 80)


def test_a_divided_state() -> None:
    """fsdp: a device has its part of the large arrays, and all of the small ones."""
    whole = look(job(parallel="jit"), "v3-4", 78)
    parts = look(job(parallel={"name": "jit", "mesh": {"fsdp": 4}}), "v3-4", 78)
    for name in ("params", "opt_state"):
        assert parts.state[name].bytes == whole.state[name].bytes
        assert whole.state[name].bytes / 4 < parts.state[name].per_device < whole.state[name].bytes
    assert parts.memory and whole.memory
    assert parts.memory.arguments < whole.memory.arguments
    assert parts.samples[0].where.startswith("split over fsdp in 4 parts of")
    assert math.prod(parts.samples[0].part) * 4 == 256 * 256


@pytest.mark.parametrize(
    ("width", "head", "kept"),
    [
        pytest.param(
            100, "fsdp 4 divides nothing: all 6 arrays are whole", "dense_[0-1].bias,", marks=pytest.mark.long
        ),
        (
            130,
            "fsdp 4 divides nothing: all 6 arrays are whole",
            "dense_1.kernel [130, 130]: no dimension is a multiple of 4",
        ),
        (256, "fsdp 4 divides 1 of 6 arrays", "dense_[0-1].bias,"),
    ],
)
def test_what_fsdp_leaves_whole(width: int, head: str, kept: str) -> None:
    """It says why, by name: a user who asked for it sees at once that nothing, or not all, is divided."""
    model = {"layers": 2, "width": width}
    report = look(job(model=model, parallel={"name": "jit", "mesh": {"fsdp": 4}}), "v3-4", 78)
    shown = text(report, "a job", 78)
    flat = " ".join(shown.split())
    assert head in flat and kept in flat and "at most 16,384 numbers, not worth dividing" in flat
    assert max(map(len, shown.splitlines())) <= 78
    assert "divides" not in text(look(job(parallel="jit"), "v3-4", 78), "a job", 78)


def test_what_is_decayed_and_by_which_optimizer() -> None:
    """In the table, counted below it, and in the JSON; a decay of 0 has no such column."""
    report = look(job(optimizer={"name": "muon", "weight_decay": 0.1}), "cpu-2x2", 78)
    shown = text(report, "train.yaml", 80).splitlines()
    ends = {line.split()[0]: line.rpartition("B")[2].strip() for line in shown if line.endswith(("decayed", "adam"))}
    matrices = {"dense_0.kernel": "muon, decayed", "dense_1.kernel": "muon, decayed", "head.kernel": "adam, decayed"}
    assert ends == {"dense_[0-1].bias": "adam", "head.bias": "adam", **matrices}
    assert any(line.strip().startswith("adam: 3 arrays, 513 numbers; adam, decayed: 1 array") for line in shown)
    found = {row["path"]: row["update"] for row in json.loads(as_json(report))["parameters"]}
    assert found.items() >= matrices.items()
    assert "update" not in text(look(job(optimizer={"weight_decay": 0.0}), "cpu-2x2", 78), "train.yaml", 80)


def test_the_peak_of_a_tpu_slice() -> None:
    """It is known what the devices of a TPU slice are, although they are not here."""
    report = look(job(), "v3-4", 78)
    assert report.computed.device_kind == "TPU v3"
    assert report.computed.flops
    assert report.computed.seconds_at_peak == pytest.approx(report.computed.flops / (4 * 61.5e12))
    assert "at 100 % of the peak of 4 x TPU v3 in float32" in text(report, "train.yaml", 80)


def test_a_model_larger_than_memory() -> None:
    """Nothing of it is ever there: a tebibyte of parameters is looked at like others."""
    model = {"layers": 3, "width": 3 << 17}
    report = look(job(model=model, parallel={"name": "jit", "mesh": {"fsdp": 4}}), "cpu-2x2", 78)
    assert report.memory
    assert report.state["params"].bytes > 2**40
    assert report.memory.arguments > 3 * 2**38


def test_the_whole_training_set_as_a_batch() -> None:
    """It is padded to what the devices can share, and weighted."""
    batch = {one.name: one.array for one in look(job(batch_size="all", parallel="jit"), "cpu-2x2", 78).batch}
    assert batch == {"batch.x": "float32[80, 1]", "batch.y": "float32[80, 1]", "batch.weights": "float32[80]"}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("inspect") / "text.txt"
    path.write_text("one green bottle hanging on the wall\n" * 200)
    model = {"layers": 3, "heads": 2, "width": 16, "context": 8}
    data = {"name": "text", "path": str(path)}
    values = {"steps": 3, "batch_size": 8, "model": model, "data": data, "sample": {"tokens": 0}}
    return look(Config.model_validate(values), "cpu-2x2", 78)


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
def test_the_text_fits_the_terminal(gpt2: Report, width: int) -> None:
    """All blocks take the lines of one, and no line is wider than the terminal."""
    lines = text(gpt2, "train.yaml", width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < 60
    assert any(line.split()[:5] == ["h_[0-2].attn.c_attn.kernel", "3", "x", "[16,", "48]"] for line in lines)


def test_json_has_every_array(gpt2: Report) -> None:
    """Unfolded, with numbers instead of units."""
    values = json.loads(as_json(gpt2))
    assert len(values["parameters"]) == len(gpt2.parameters) == 3 * 12 + 4
    assert sum(row["bytes"] for row in values["parameters"]) == values["state"]["params"]["bytes"]
    assert gpt2.memory
    assert values["memory"]["total"] == gpt2.memory.total
    assert {"slice", "devices", "batch", "samples", "outputs", "computed", "compile_seconds"} <= set(values)


@pytest.mark.parametrize(
    ("loops", "said"),
    [
        (0, ""),
        (1, "1 loop with an unknown number of iterations is"),
        (2, "2 loops with an unknown number of iterations are"),
    ],
)
def test_loops_of_unknown_length_are_told(gpt2: Report, loops: int, said: str) -> None:
    """Beside both numbers that would be higher: the bounds, and what is sent."""
    report = dataclasses.replace(gpt2, compiled_for="TPU v5 lite", roofline=Roofline(()), unknown_loops=loops)
    assert text(report, "a job", 78).count(f"\n  {said} counted once") == (2 if loops else 0)
    assert json.loads(as_json(report))["unknown_loops"] == loops


def test_many_arrays_are_cut_short(gpt2: Report) -> None:
    """Rows that cannot be folded do not fill pages; a long name loses its beginning."""
    wide = tuple(Row((f"{chr(97 + n % 26)}{n // 26}{'x' * 90}y",), (n + 1,), "float32", 4) for n in range(100))
    lines = text(dataclasses.replace(gpt2, parameters=wide), "train.yaml", 80).splitlines()
    assert any(line.split()[:4] == ["...", "and", "60", "more"] for line in lines)
    assert max(map(len, lines)) <= 80

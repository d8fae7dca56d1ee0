"""The mesh's axis `model`: devices that compute parts of each matrix, for the same examples."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec
from pydantic import ValidationError

from podrun.runtime.config import Config, check_slice
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import evaluation_batches
from podrun.runtime.devices import Devices
from podrun.runtime.optim import make_optimizer
from podrun.runtime.parallel import make_strategy
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.parallel.layout import Layout, Partition
from podrun.runtime.state import Batch, StateDict, TrainState
from podrun.runtime.tasks import make_task

from ...tiers import mostly_long
from ..strategies import assert_close, copies, make, place, random_state, train

MESHES = {
    "model 4": {"name": "jit", "mesh": {"model": 4}},
    "model 2": {"name": "jit", "mesh": {"model": 2}},
    "fsdp 2 model 2": {"name": "jit", "mesh": {"fsdp": 2, "model": 2}},
    "explicit": {"name": "explicit", "mesh": {"fsdp": 2, "model": 2}},
}
DECODER = {"name": "decoder", "layers": 2, "width": 128, "heads": 8, "kv_heads": 4, "context": 16, "dropout": 0.1}
GEMMA = {
    **DECODER,
    "norm": "rms_plus_1",
    "post_norms": True,
    "mlp": "geglu",
    "layer_types": ["sliding", "full"],
    "window": 4,
    "attention_soft_cap": 5.0,
    "tied_head": False,
    "remat": "block",
}
MODELS = {
    "decoder": DECODER,
    "gemma": GEMMA,
    "gpt2": {"name": "gpt2", "layers": 2, "width": 128, "heads": 4, "context": 16},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("To be, or not to be, that is the question. " * 100)
    return file


def job(text: Path, parallel: Any, model: Any = DECODER, **keys: Any) -> Config:
    fields = {
        "steps": 4,
        "batch_size": 8,
        "data": {"name": "text", "path": str(text), "tokenizer": "byte"},
        "model": model,
        "parallel": parallel,
        "optimizer": {"name": "adamw", "learning_rate": 0.01, "eps": 1e-3},
    }
    return Config.model_validate({**fields, **keys})


def batches(data: Dataset, number: int) -> list[Batch]:
    return [data.train.gather(np.arange(8 * i, 8 * i + 8), np.zeros(8, np.int64)) for i in range(number)]


def strategy(text: Path, parallel: Any, model: Any = DECODER, **keys: Any) -> tuple[Strategy, list[Batch]]:
    config = job(text, parallel, model, **keys)
    data = load_dataset(config)
    return make(config, data), batches(data, 4)


@functools.cache
def of_one_device(text: Path, model: str) -> tuple[StateDict, list[float]]:
    """Return the initial state of a training on one device, and its losses."""
    one, examples = strategy(text, "single", {**MODELS[model], "dropout": 0.0})
    state = one.init()
    start = copies(one.savable(state))
    return start, [step["loss"] for step in train(one, state, examples)[1]]


@pytest.mark.parametrize(
    ("model", "mesh", "accumulate"),
    mostly_long(
        [
            ("decoder", "fsdp 2 model 2", 2),
            ("gemma", "explicit", 2),
            ("gpt2", "model 2", 1),
            ("decoder", "model 4", 1),
            ("gemma", "model 4", 1),
            ("gpt2", "explicit", 2),
        ],
        lambda number, _: number == 0,
        lambda number, _: number < 3,
    ),
)
def test_losses(text: Path, model: str, mesh: str, accumulate: int) -> None:
    """They are those of one device, also of a batch in two parts; matrices stay divided between steps."""
    one, examples = strategy(text, MESHES[mesh], {**MODELS[model], "dropout": 0.0}, accumulate=accumulate)
    state, found = train(one, one.init(), examples)
    assert_close([step["loss"] for step in found], of_one_device(text, model)[1])
    assert found[-1]["loss"] < found[0]["loss"]
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state.params))
    assert held < 1.1 * whole / one.config.parallel.grid.model
    matrices = {
        jax.tree_util.keystr(path): leaf.sharding.spec
        for path, leaf in jax.tree.leaves_with_path(state.params)
        if leaf.ndim > 1 and path[-1].key in ("kernel", "embedding")
    }
    assert {path for path, spec in matrices.items() if "model" not in spec} <= {"['wpe']['embedding']"}


@pytest.mark.parametrize(
    ("model", "mesh"),
    mostly_long(
        [("decoder", "explicit"), ("gemma", "fsdp 2 model 2")], lambda number, _: number == 0, lambda number, _: True
    ),
)
def test_a_head_that_both_axes_divide(text: Path, model: str, mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The axis `model` divides its rows, `fsdp` its columns; gathered by rows, it has the losses of one device."""
    start, expected = of_one_device(text, model)
    monkeypatch.setattr("podrun.runtime.tasks.next_token._PIECE", 4 * 3 * 257 * 4)
    one, examples = strategy(text, MESHES[mesh], {**MODELS[model], "dropout": 0.0}, accumulate=2)
    assert_close([step["loss"] for step in train(one, place(one, start), examples)[1]], expected)


@pytest.mark.long
def test_dropout_is_that_of_a_row(text: Path) -> None:
    """Devices of a row drop the same: two rows of two are two devices of a mesh without the axis."""
    one, examples = strategy(text, {"name": "jit", "mesh": {"model": 2}})
    pod = Devices(tuple(jax.devices()[:2]))
    config = job(text, "jit")
    data = load_dataset(config)
    task = make_task(config, data)
    two = make_strategy(config, task, *make_optimizer(config, config.total_steps(1), task.stacked), pod)
    found, expected = (train(made, place(made, random_state(made)), examples)[1] for made in (one, two))
    assert_close([step["loss"] for step in found], [step["loss"] for step in expected])


@pytest.mark.long
def test_a_state_goes_from_mesh_to_mesh(text: Path) -> None:
    """The state of pmap goes on over the axis, then without it, with the losses of pmap, and evaluations are equal."""
    keys = {**DECODER, "dropout": 0.0}
    pmap, examples = strategy(text, "pmap", keys)
    named = random_state(pmap)
    state, expected = train(pmap, place(pmap, named), examples)
    data = load_dataset(pmap.config)

    def validation(one: Strategy, state: TrainState) -> float:
        (batch,) = evaluation_batches(data.validation, 8, *one.data_shard, 1, one.shares)
        return one.summarize(jax.device_get(one.evaluate(state, one.shard(batch))))["loss"]

    last = validation(pmap, state)
    history: list[dict[str, float]] = []
    for number, mesh in enumerate(("fsdp 2 model 2", "explicit", "model 4", "model 2")):
        one, _ = strategy(text, MESHES[mesh], keys)
        state, found = train(one, place(one, named), examples[number : number + 1])
        history += found
        named = copies(jax.tree.map(np.asarray, one.savable(state)))
    assert_close([step["loss"] for step in history], [step["loss"] for step in expected])
    assert validation(one, state) == pytest.approx(last, rel=1e-5)


# --- who reads which rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A device of another process."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


def shards(processes: list[int], data: int, fsdp: int, model: int) -> list[tuple[int, int]]:
    """The part of a batch that each process provides; `processes` has that of each device."""
    devices = tuple(Device(number, process) for number, process in enumerate(processes))
    grid = np.array(devices, object).reshape(data, fsdp, model)
    layout = Layout(Mesh(grid, ("batch", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3))
    return [layout.data_shard(Devices(devices, process)) for process in sorted(set(processes))]  # type: ignore[arg-type]


def test_processes_that_share_rows_read_the_same() -> None:
    assert shards([0, 0, 1, 1], 2, 1, 2) == [(0, 2), (1, 2)], "a row within a process"
    assert shards([0, 1, 2, 3], 2, 1, 2) == [(0, 2), (0, 2), (1, 2), (1, 2)], "a row over two processes"
    assert shards([0, 0, 1, 1], 1, 1, 4) == [(0, 1), (0, 1)], "one row over all"
    assert shards([0, 0, 1, 1], 4, 1, 1) == [(0, 2), (1, 2)], "without the axis"
    assert shards([1, 1, 0, 0], 2, 2, 1) == [(1, 2), (0, 2)], "in the order of rows, not of processes"
    assert shards([0, 0, 0, 1, 1, 1], 3, 1, 2) == [(0, 1), (0, 1)], "rows that overlap are read by all"


# --- rules and mistakes ---------------------------------------------------------------------------------------------


def test_rules() -> None:
    """The first rule that matches the end of a name counts, for each layer of a stack, and only if it divides."""
    rules = {r"attn\.q\.kernel": -1, "kernel": 0, "bias": 0}
    partition = Partition(4, 2, rules, ("layers",))
    big = 1 << 10
    assert partition.of("layers.block.attn.q.kernel", (3, big, 64)) == PartitionSpec(None, "fsdp", "model")
    assert partition.of_layer("attn.q.kernel", (big, 64)) == PartitionSpec("fsdp", "model")
    assert partition.gathered("attn.q.kernel", (big, 64)) == PartitionSpec(None, "model")
    assert partition.of("mlp.kernel", (64, big)) == PartitionSpec("model", "fsdp")
    assert partition.of("mu.mlp.kernel", (64, big)) == PartitionSpec("model", "fsdp"), "moments as their parameters"
    assert partition.of("mlp.kernel", (63, big)) == PartitionSpec(None, "fsdp"), "an odd number stays whole"
    assert partition.of("mlp.my_kernel", (64, big)) == PartitionSpec(None, "fsdp"), "a part of a word is no match"
    assert partition.of("mlp.bias", (big * 64,)) == PartitionSpec("fsdp"), "vectors are not divided over model"
    assert partition.of("layers.count", ()) == PartitionSpec()
    assert Partition(1, 2, rules).of("mlp.kernel", (4, 4)) == PartitionSpec("model"), "also what is too small for fsdp"


@pytest.mark.parametrize(
    ("parallel", "model", "message"),
    [
        ({"mesh": {"model": 3}}, DECODER, "does not divide the model's heads 8 and kv_heads 4"),
        ({"mesh": {"model": 8}}, DECODER, "does not divide the model's kv_heads 4; it can be 1, 2, 4"),
        ({"mesh": {"model": 2}, "partition_rules": {"(": 0}}, DECODER, "'(' is no regular expression"),
        (
            {"mesh": {"model": 2}, "partition_rules": {"(?i)kernel": 0}},
            DECODER,
            "'(?i)kernel' is no regular expression",
        ),
        ({"partition_rules": {"kernel": 0}}, DECODER, "partition_rules are for an axis `model`"),
        ({"mesh": {"model": 0}}, DECODER, "greater than 0"),
        ({"mesh": {"model": 3}}, MODELS["gpt2"], "does not divide the model's heads 4; it can be 1, 2, 4"),
    ],
)
def test_mistakes_in_the_job(text: Path, parallel: Any, model: Any, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        job(text, {"name": "jit", **parallel}, model)
    assert message in str(raised.value)


def test_a_model_without_rules() -> None:
    fields = {
        "task": "classification",
        "steps": 1,
        "batch_size": 8,
        "data": {"name": "make_classification", "samples": 50, "features": 8, "classes": 4, "informative": 4},
        "model": {"name": "mlp", "layers": 1, "width": 64},
    }
    with pytest.raises(ValidationError, match="model mlp does not say which of its matrices are divided"):
        Config.model_validate({**fields, "parallel": {"name": "jit", "mesh": {"model": 2}}})
    parallel = {"name": "jit", "mesh": {"model": 2}, "partition_rules": {r"dense_0\.kernel": 1, "out": 0}}
    config = Config.model_validate({**fields, "parallel": parallel})
    with pytest.raises(
        UserError, match=r"the rule \{out: 0\} divides no parameter .* there are dense_0.kernel \[8, 64\]"
    ):
        make(config, load_dataset(config))


@pytest.mark.parametrize(
    ("mesh", "devices", "slices", "message"),
    [
        ({"model": 4}, 6, 1, "model 4 does not divide the 6 devices of the slice; it can be 1, 2, 3, 6"),
        ({"fsdp": 2, "model": 2}, 6, 1, "fsdp x model 4 does not divide the 6 devices"),
        ({"data": 2, "model": 2}, 8, 1, "data 2 x fsdp 1 x model 2 = 4 places, but the slice has 8 devices"),
        ({"model": 4}, 4, 2, "model 4 does not divide the 2 devices of each of the 2 slices"),
        ({"model": 2}, 32, 1, "batch_size 8 is too small for 16 rows of 2 devices (parallel.mesh.model)"),
    ],
)
def test_a_mesh_that_does_not_fit(text: Path, mesh: Any, devices: int, slices: int, message: str) -> None:
    with pytest.raises(UserError) as raised:
        check_slice(job(text, {"name": "jit", "mesh": mesh}), devices, slices)
    assert message in str(raised.value)

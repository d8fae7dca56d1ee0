"""The tables of built-in choices, and what each section of train.yaml says of its choice."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from podrun.runtime import data, parallel, tasks
from podrun.runtime.config import Config, Plugin, Section, check_files
from podrun.runtime.config.base import ReadsFiles, name_of
from podrun.runtime.config.job import fitting, tunable_keys
from podrun.runtime.config.parallel import ParallelSection
from podrun.runtime.config.task import TASKS
from podrun.runtime.contract import UserError
from podrun.runtime.parallel.base import Strategy

from .strategies import dataset, job, make


def choices(key: str) -> dict[str, type[Section]]:
    """Return the built-in choices of a section of train.yaml by name."""
    sections = get_args(Config.model_fields[key].annotation)
    return {name_of(section): section for section in sections if not issubclass(section, Plugin)}


def strategy_class(name: str) -> type[Strategy]:
    module = import_module(f"podrun.runtime.parallel.{name}")
    kind: type[Strategy] = getattr(module, parallel._CLASSES[name])
    return kind


def test_every_choice_has_its_line_in_the_table() -> None:
    assert set(choices("data")) == set(data._SOURCES)
    assert set(choices("parallel")) == set(parallel._CLASSES)
    assert set(TASKS) == set(tasks._CLASSES)


def test_every_data_source_and_model_fits_a_task() -> None:
    """A task's default comes first."""
    fit = [fitting(task) for task in TASKS]
    for key in ("model", "data"):
        assert {name for names in fit for name in names[key]} == set(choices(key))
    assert [(names["model"][0], names["data"][0]) for names in fit] == [(t.model, t.data) for t in TASKS.values()]
    assert fitting("regression") == {"model": ["mlp", "linear"], "data": ["sine", "npz", "parquet", "array_record"]}
    assert fitting("logistic_regression")["model"] == ["linear"]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_alone_is_a_job(task: str) -> None:
    traits = TASKS[task]
    needed = {"dpo": {"data": {"path": "pairs"}, "model": {"init_from": "llama", "lora": {}}}}.get(task, {})
    batch = {} if traits.batch_size else {"batch_size": 8}
    config = Config.model_validate({"task": task, "steps": 1, **batch, **needed})
    assert (config.model.name, config.data.name, config.optimizer.name) == (traits.model, traits.data, traits.optimizer)


@pytest.mark.parametrize("name", choices("parallel"))
def test_sections_and_strategies_agree(name: str) -> None:
    """The launcher knows a strategy by its section, the runtime by its class."""
    section, kind = choices("parallel")[name], strategy_class(name)
    assert issubclass(section, ParallelSection)
    assert (section.divides_batch, section.model_per_device) == (kind.divides_batch, kind.model_per_device)


def test_what_may_be_tuned() -> None:
    """All else must be the same to resume."""
    assert set(tunable_keys("model")) == {
        "attention",
        "dropout",
        "init_from",
        "initializer_range",
        "preset",
        "remat",
        "scan_layers",
        "l2",
        "weight_std",
        "bias_std",
    }
    optimizer = tunable_keys("optimizer")
    assert [key for key, mark in optimizer.items() if mark.set_or_null] == ["clip_norm"]
    rates = {"learning_rate", "adam_learning_rate", "weight_decay", "b1", "b2", "eps"}
    assert set(optimizer) == {*rates, "decay", "clip_norm", "nesterov", "max_evaluations"}


FILES = [
    *[("path", name) for name in ("text", "tokens", "idx", "npz", "parquet", "array_record")],
    ("validation_path", "tokens"),
    ("tokenizer_file", "tokens"),
    ("tokenizer.file", "python_source"),
]


@pytest.mark.parametrize(("key", "name"), FILES)
def test_missing_files_are_named(key: str, name: str, tmp_path: Path) -> None:
    """Before anything starts, with the key that names the file."""
    (tmp_path / "data").write_bytes(b"1")
    missing = str(tmp_path / "missing")
    values: dict[str, Any] = {"name": name, "path": str(tmp_path / "data"), key: missing}
    if name == "python_source":
        values = {"name": name, "tokenizer": {"name": "bpe", "file": missing}}
    task = "classification" if name in fitting("classification")["data"] else "language_model"
    config = Config.model_validate({"task": task, "data": values, "steps": 1, "batch_size": 1})
    with pytest.raises(UserError, match=rf"^data\.{key}: .*missing"):
        check_files(config)


def test_every_path_of_a_data_source_is_checked() -> None:
    """Keys that are paths name files, so their fields say how to find them."""
    for section in choices("data").values():
        for name, field in section.model_fields.items():
            is_path = Path in (field.annotation, *get_args(field.annotation)) or name in ("path", "validation_path")
            assert any(isinstance(mark, ReadsFiles) for mark in field.metadata) == is_path, (section, name)


def test_models_and_devices() -> None:
    """By these MFU is counted, for strategies of users as well."""

    def numbers(config: Config) -> tuple[int, int, int]:
        one = make(config, dataset())
        return one.models, one.devices, one.shares

    users = {"name": "podrun.runtime.parallel.ensemble:Ensemble"}
    assert numbers(job("pmap")) == (1, 4, 4)
    assert numbers(job("single")) == (1, 1, 1)
    assert numbers(job("ensemble")) == numbers(job("single", parallel=users)) == (4, 4, 1)

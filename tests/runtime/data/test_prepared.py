"""The data source of prepared documents, alone and in a mixture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.config.attention import NO_SEGMENTS, job_conflict
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset, Traceable
from podrun.runtime.data.packing import PackedRows, pack
from podrun.runtime.data.prepared import Documents, _check_tokenizer
from podrun.runtime.data.windows import Source

from .prepared_folder import EOS, prepared_folder, text_documents

TEXT = "".join(
    f"{number} green bottles hanging on the wall, and if one falls there are {number - 1}.\n" for number in range(400)
)
DOCUMENTS = text_documents(TEXT, [3, 20, 60, 150, 400])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared_folder(tmp_path / "corpus", [DOCUMENTS[:40], DOCUMENTS[40:41], DOCUMENTS[41:]])


def load(data: dict[str, Any], context: int = 64, **keys: Any) -> Dataset:
    model = {"name": "decoder", "context": context}
    return load_dataset(Config.model_validate({"steps": 9, "batch_size": 8, "model": model, "data": data, **keys}))


def every(examples: Any) -> dict[str, np.ndarray]:
    indices = np.arange(examples.size)
    batch: dict[str, np.ndarray] = examples.gather(indices, np.zeros_like(indices))
    return batch


@pytest.mark.parametrize("packing", ["concat", "fit"])
def test_training_and_validation_share_no_document(folder: Path, packing: str) -> None:
    """Shards are one stream; the last documents are for validation, and every token of them is predicted once."""
    data = load({"name": "prepared", "path": str(folder), "packing": packing, "validation": 0.2})
    stream = [token for ids in DOCUMENTS for token in [*ids, EOS]]
    batch = every(data.validation)
    predicted = int(batch["weights"].sum())
    within = 0
    for at in range(len(DOCUMENTS)):
        held = sum(len(ids) + 1 for ids in DOCUMENTS[at:])
        if predicted == held - (len(DOCUMENTS) - at if packing == "fit" else 1):
            within = held
    assert 0.1 * len(stream) < within <= 0.2 * len(stream)
    if packing == "concat":
        assert batch["tokens"][0].tolist() == stream[-within:][:65]
        assert every(data.train)["tokens"].max() == EOS
    else:
        trained = every(data.train)
        assert int(trained["weights"].sum()) + predicted == len(stream) - len(DOCUMENTS)
        assert "% of their tokens is padding" in data.note
    assert data.tokenizer is not None and data.vocabulary == EOS + 1
    assert data.tokenizer.decode(np.array([104, 105, EOS])) == "hi"


def test_an_example_knows_its_documents(folder: Path) -> None:
    for packing in ("concat", "fit"):
        data = load({"name": "prepared", "path": str(folder), "packing": packing})
        assert isinstance(data.train, Traceable)
        batch = data.train.gather(np.array([5]), np.array([0]))
        text = bytes(i for i in batch["tokens"][0].tolist() if i < EOS).decode()
        found = ""
        for origin in data.train.origins(5, 0):
            numbers = [int(name.rpartition(":")[2]) for name in origin.documents]
            assert all(name.startswith("a.jsonl:") for name in origin.documents)
            found += "".join(bytes(DOCUMENTS[number - 1]).decode() for number in numbers)
        assert text in found


def test_answers_are_learned_alone(tmp_path: Path) -> None:
    marks = [[[i % 2 for i in range(len(ids))] for ids in DOCUMENTS]]
    folder = prepared_folder(tmp_path / "chat", [DOCUMENTS], marks)
    with pytest.raises(UserError, match=r"give data\.packing=fit"):
        load({"name": "prepared", "path": str(folder)})
    batch = every(load({"name": "prepared", "path": str(folder), "packing": "fit"}).train)
    assert 0.4 < batch["weights"].mean() < 0.6


def test_fingerprint(folder: Path, tmp_path: Path) -> None:
    """Another packing, share or text is other data; another folder with the same documents is not."""
    same = prepared_folder(tmp_path / "same", [DOCUMENTS[:40], DOCUMENTS[40:41], DOCUMENTS[41:]])
    other = prepared_folder(tmp_path / "other", [DOCUMENTS[:40], DOCUMENTS[41:42], DOCUMENTS[41:]])
    base = {"name": "prepared", "path": str(folder)}
    prints = [
        load({**base, **more}).fingerprint
        for more in ({}, {"path": str(same)}, {"packing": "fit"}, {"validation": 0.3}, {"path": str(other)})
    ]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def test_mixture(folder: Path, tmp_path: Path) -> None:
    """Sources with and without several documents in a row stand in one batch; validation has them apart and together."""
    second = prepared_folder(tmp_path / "second", [DOCUMENTS[:50]])
    (tmp_path / "more.txt").write_text(TEXT[:5000])
    data = load(
        {
            "name": "mixture",
            "sources": {
                "packed": {"path": str(folder), "packing": "fit"},
                "cut": {"path": str(second)},
                "text": {"name": "text", "path": str(tmp_path / "more.txt")},
            },
        },
        validation={
            "held": {"path": str(second), "packing": "fit"},
            "plain": {"name": "text", "path": str(tmp_path / "more.txt")},
        },
    )
    assert [*data.sources] == ["cut", "packed", "text"] and [*data.validations] == [
        "cut",
        "packed",
        "text",
        "held",
        "plain",
    ]
    sizes = [source.size for source in data.sources.values()]
    assert data.train.size == sum(sizes) and data.has_segments
    last = np.array([0, sizes[0], sum(sizes) - 1])
    batch = data.train.gather(last, np.zeros_like(last))
    assert (batch["segments"][0] == 1).all() and (batch["weights"][0] == 1).all()
    assert batch["segments"][1].max() >= 1 and batch["tokens"].dtype == np.int32
    assert batch["weights"].sum() == data.train.trained(last, np.zeros_like(last))  # type: ignore[attr-defined]
    assert every(data.validations["held"])["weights"].sum() == sum(len(ids) for ids in DOCUMENTS[:50])
    assert every(data.validations["plain"])["weights"].sum() == 4999


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(TEXT)
    char = {"name": "text", "path": str(tmp_path / "more.txt"), "tokenizer": "char"}
    prepared = {"name": "prepared", "path": str(folder)}
    rows: list[tuple[dict[str, Any], str]] = [
        ({"name": "prepared", "path": str(tmp_path)}, "prepare"),
        ({**prepared, "validation_path": str(tmp_path / "none")}, "data.validation_path"),
        ({"name": "mixture", "sources": {"a": prepared, "b": char}}, "different tokenizers"),
        ({"name": "mixture", "sources": {"a": {"path": str(tmp_path / "none")}}}, "data.sources.a"),
    ]
    for data, message in rows:
        with pytest.raises(UserError, match=message):
            load(data)
    with pytest.raises(UserError, match="too short"):
        load(prepared, context=60_000)
    ends = np.fromfile(folder / "00000.ends", "<i8")
    for wrong in (ends[::-1], ends - 1, np.zeros_like(ends)):
        wrong.tofile(folder / "00000.ends")
        with pytest.raises(UserError, match=r"00000\.ends is damaged"):
            load(prepared)
    ends.tofile(folder / "00000.ends")
    (folder / "00001.tokens").write_bytes(b"")
    with pytest.raises(UserError, match=r"00001.tokens has 0 bytes.*prepare the folder again"):
        load(prepared)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sources": {}}, "at least 1 item"),
        ({"weights": {"a": 1, "x": 2}}, "x is not among the sources, which are a"),
        ({"weights": {"a": 0}}, "all weights are 0"),
        ({"weights_from": {"5": {}}}, "weights_from.5: a has no weight"),
        ({"weights": {"a": -1}}, "greater than or equal to 0"),
        ({"sources": {"a/b": {"path": "x"}}}, "letters, digits"),
        ({"sources": {"a": {"path": "x", "bring": True}}}, "sources.a.bring: the key stands beside"),
    ],
)
def test_mistakes_of_a_mixture(keys: dict[str, Any], message: str) -> None:
    data = {"name": "mixture", "sources": {"a": {"path": "x"}}, **keys}
    with pytest.raises(ValueError, match=message):
        Config.model_validate({"steps": 1, "batch_size": 8, "data": data})


def test_mistakes_of_validation() -> None:
    base = {"steps": 1, "batch_size": 8}
    mixture = {"name": "mixture", "sources": {"a": {"path": "x"}}}
    rows = [
        ({"data": mixture, "validation": {"a": {"path": "y"}}}, "a is the name of a source"),
        (
            {"task": "classification", "validation": {"a": {"path": "y"}}},
            "only language_model and dpo have further sets",
        ),
        ({"eval": {"best": "min b/loss"}, "validation": {"a": {"path": "y"}}}, "no metric 'b/loss'"),
        ({"eval": {"best": "max a/loss"}, "validation": {"a": {"path": "y"}}}, "write 'min a/loss'"),
        ({"validation": {"a": {"path": "y", "bring": True}}}, "validation.a.bring: the key is for `data`"),
        ({"validation": {"a": {"name": "text", "path": "y", "validation": 0.5}}}, "validation.a.validation: the key"),
        ({"validation": {"a": {"name": "text", "path": "y", "tokenizer": "char"}}}, "validation.a.tokenizer: the key"),
        (
            {"parallel": "ensemble", "validation": {"a": {"path": "y"}}, "eval": {"best": "min mean_member_a/loss"}},
            "no metric 'mean_member_a/loss'",
        ),
        ({"data": mixture, "steps": None, "epochs": 2}, "goes through each source at its own pace"),
        ({"data": mixture, "drop_last": True}, "drop_last: a mixture goes through each source at its own pace"),
    ]
    for keys, message in rows:
        with pytest.raises(ValueError, match=message):
            Config.model_validate({**base, **keys})
    Config.model_validate({**base, "eval": {"best": "min a/loss"}, "data": mixture})
    members = {"eval": {"best": "min a/mean_member_loss"}, "parallel": "ensemble"}
    Config.model_validate({**base, **members, "validation": {"a": {"path": "y"}}})


def test_validation_sets_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    """They are told before the first step: segments that the model or the kernel must know, other tokens, no answers."""
    base = {"name": "prepared", "path": str(folder)}
    held = {"path": str(folder), "packing": "fit"}
    assert load(base, validation={"held": held}).has_segments
    assert not load(base, validation={"held": {**held, "packing": "concat"}}).has_segments
    keys = {"steps": 9, "batch_size": 8, "data": base, "precision": "bfloat16"}
    config = Config.model_validate({**keys, "model": {"name": "decoder", "context": 128}, "validation": {"held": held}})
    assert job_conflict("cudnn", config) == NO_SEGMENTS
    chat = prepared_folder(tmp_path / "chat", [DOCUMENTS], [[[1] * len(ids) for ids in DOCUMENTS]])
    with pytest.raises(UserError, match=r"validation\.held has conversations.* give packing: fit"):
        load(base, validation={"held": {"path": str(chat)}})
    none = prepared_folder(tmp_path / "none", [DOCUMENTS], [[[0] * len(ids) for ids in DOCUMENTS]])
    for file in none.glob("*.answers"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(UserError, match="has no answer to learn"):
        load({**base, "path": str(none), "packing": "fit"})
    (tmp_path / "more.txt").write_text(TEXT)
    char = {"name": "text", "path": str(tmp_path / "more.txt"), "tokenizer": "char"}
    with pytest.raises(UserError, match=r"validation\.held was made with another tokenizer than the data"):
        load(char, validation={"held": {"path": str(folder)}})


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    """The limit of this process is raised as far as it may; beyond that the message says what to raise."""
    folder = prepared_folder(tmp_path / "many", [[[1, 2, 3]]] * 60)
    code = f"""
import resource
from podrun.runtime.contract import UserError
from podrun.runtime.data.prepared import Documents
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {{}}))
try:
    documents = Documents.read({str(folder)!r}, "data.path")
    print(len(documents.shards), documents._names(0, 4))
except UserError as error:
    print(error)
"""
    for hard, printed in (
        (512, "60 ['a.jsonl:1']"),
        (64, "has 60 shards, and a process may open 64 files on this host"),
    ):
        done = subprocess.run([sys.executable, "-c", code.format(hard)], capture_output=True, text=True, check=True)
        assert printed in done.stdout


def test_damaged_origins(tmp_path: Path) -> None:
    folder = prepared_folder(tmp_path / "damaged", [[[1, 2, 3]]])
    for source in (7, -1):
        np.array([[source, 1]], "<i8").tofile(folder / "00000.origins")
        with pytest.raises(
            UserError, match=rf"origins is damaged: a document names source {source}, but the manifest lists only 1"
        ):
            Documents.read(str(folder), "data.path")._names(0, 2)


def test_ids_that_int32_cannot_have() -> None:
    tokens = np.array([1, 2, 2**31 + 5, 3], np.uint32)
    rows = PackedRows(tokens, pack(np.array([4]), 5), 4, Source("x", 100))
    with pytest.raises(UserError, match=r"x: token 2, counted from 0, is 2147483653, but"):
        rows.gather(np.array([0]), np.array([0]))


def vocabulary(*tokens: str) -> str:
    return json.dumps({"model": {"type": "BPE", "vocab": {token: number for number, token in enumerate(tokens)}}})


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (vocabulary("a", "b", "c"), vocabulary("b", "a", "c"), "'a' is 0 in the data and 1 in the model"),
        (vocabulary("a", "b", "c"), vocabulary("x", "y", "z"), "the data has that of `--tokenizer bpe`"),
        (None, vocabulary("a", "b"), "the data has that of `--tokenizer byte`"),
        (vocabulary("a", "b", "c"), vocabulary("a", "b", "c", "<|added|>"), None),
        (vocabulary("a", "b"), "[]", None),
    ],
)
def test_the_tokenizer_of_the_model_that_training_begins_with(
    tmp_path: Path, data: str | None, model: str, message: str | None
) -> None:
    (tmp_path / "tokenizer.json").write_text(model)
    saved = {"name": "byte"} if data is None else {"name": "bpe", "file": data}
    documents: Any = SimpleNamespace(folder=SimpleNamespace(saved_tokenizer=saved), where="data.path x")
    config: Any = SimpleNamespace(model=SimpleNamespace(init_from=tmp_path))
    if message is None:
        _check_tokenizer(documents, config)
        return
    with pytest.raises(UserError, match=r"with another tokenizer than model\.init_from") as refused:
        _check_tokenizer(documents, config)
    assert message in str(refused.value) and f"prepare it again with --tokenizer {tmp_path}" in str(refused.value)

"""Text of a model in a checkpoint or in a published folder, and what cannot be written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.checkpoint.metadata import JobInputs
from podrun.runtime.checkpoint.saved_model import SavedModel, find_checkpoint
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.saved_tokenizer import restored_tokenizer
from podrun.runtime.data.tokenizers import Bytes
from podrun.runtime.generate.source import load
from podrun.runtime.generate.text import Figures, Source, Wish, _Text, write
from podrun.runtime.models.families import family_of
from podrun.runtime.models.generation import Sampling

from ..models.published import arrays_of, config_of, greedy_of, params_from, write_folder, write_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.!?-"  # one for each of the 32 token ids
GREEDY = Sampling(temperature=0)


def text_of(ids: Any) -> str:
    return "".join(LETTERS[i] for i in ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden Llama as a published folder with a tokenizer."""
    folder = write_folder(tmp_path_factory.mktemp("published") / "llama", config_of("llama"), arrays_of("llama"))
    write_tokenizer(folder / "tokenizer.json", LETTERS)
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of step 3 with the same model, whose token ids are letters in the order of their code points."""
    config = config_of("llama")
    family = family_of(config)
    section = family.section(config)
    workdir = tmp_path_factory.mktemp("saved") / "train"
    job = {"steps": 1, "batch_size": 4, "model": section.model_dump()}
    points = sorted(map(ord, LETTERS))
    checkpoints = Checkpoints(
        workdir / "checkpoints", Checkpoint(), inputs=JobInputs({"name": "char", "code_points": points})
    )
    params = params_from(family, section, arrays_of("llama"))
    checkpoints.save(3, {"step": np.int32(3), "params": params}, 0, Config.model_validate(job), b"", None)
    checkpoints.close()
    return workdir


def texts(source: Source, prompts: list[str], wish: Wish) -> tuple[list[str], Figures]:
    found = [""] * len(prompts)

    ended = []

    def say(number: int, text: str | None) -> None:
        assert text != "" and number not in ended
        if text is None:
            ended.append(number)
        else:
            found[number] += text

    figures = write(source, prompts, wish, say)
    assert sorted(ended) == list(range(len(prompts)))
    return found, figures


def test_a_published_folder(folder: Path) -> None:
    """Greedy text is that of transformers, for several prompts at once, and ends before a stop or an end of the text."""
    source, about = load(folder, None, None)
    assert about == f"the published model in {folder}"
    tokens, expected = greedy_of("llama")
    prompts = [text_of(ids) for ids in tokens]
    found, figures = texts(source, prompts, Wish(40, GREEDY))
    assert found == [text_of(ids[:40]) for ids in expected]
    assert (figures.read, figures.written) == (tokens.size, 80)
    whole = found[0]
    stop = whole[5:8]
    stopped, _ = texts(source, prompts[:1], Wish(40, GREEDY, stops=("zzz", stop)))
    assert stopped == [whole[: whole.index(stop)]]
    end = int(expected[0][10])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 99]}))
    ended, _ = texts(load(folder, None, None)[0], prompts[:1], Wish(40, GREEDY))
    assert ended == [whole[: whole.index(LETTERS[end])]]
    (folder / "generation_config.json").unlink()


def test_the_end_of_documents(workdir: Path, tmp_path: Path) -> None:
    """Prepared data has an id after each document, for which the tokenizer has no text: it may be drawn, and ends a text."""
    saved = SavedModel(find_checkpoint(workdir, None))
    points = sorted(map(ord, LETTERS))[:-1]  # the last id is the end
    checkpoints = Checkpoints(
        tmp_path / "train/checkpoints",
        Checkpoint(),
        inputs=JobInputs(
            {"name": "char", "code_points": points}, {"vocabulary": len(LETTERS), "end": len(LETTERS) - 1}
        ),
    )
    params = saved.trees(np.asarray)[0]
    favoured = params["lm_head"]["kernel"].copy()
    favoured[:, -1] = 0
    checkpoints.save(
        3, {"step": np.int32(3), "params": {**params, "lm_head": {"kernel": favoured}}}, 0, saved.job, b"", None
    )
    checkpoints.close()
    source, _ = load(tmp_path / "train", None, None)
    assert source.ends == {len(LETTERS) - 1} and source.tokenizer.vocabulary == len(LETTERS) - 1
    found, figures = texts(source, ["abc", "yyy"], Wish(60, Sampling(temperature=50.0), seed=1))
    assert any(len(text) < 57 for text in found) and figures.written < 2 * 60


def test_token_ids_without_a_text(workdir: Path) -> None:
    """Ids between those of the tokenizer and an end of the text are never drawn; an end that the model lacks is ignored."""
    source, _ = load(workdir, None, None)
    few = restored_tokenizer({"name": "char", "code_points": sorted(map(ord, LETTERS))[:10]})
    source = dataclasses.replace(source, tokenizer=few, ends=frozenset({len(LETTERS) - 1, 4000}))
    prompt = few.decode(np.arange(3, dtype=np.uint32))
    found, figures = texts(source, [prompt, prompt], Wish(50, Sampling(temperature=50.0), seed=1))
    assert figures.written == sum(map(len, found)) > 0


def test_a_token_before_each_text(folder: Path, tmp_path: Path) -> None:
    """As the tokenizer of a published model says it: an empty prompt has it, too. A checkpoint was trained without it."""
    write_tokenizer(tmp_path / "tokenizer.json", LETTERS, first="q")
    marked, bare = load(folder, None, tmp_path / "tokenizer.json")[0], load(folder, None, None)[0]
    assert marked.beginning == (LETTERS.index("q"),) and bare.beginning == ()
    found, figures = texts(marked, ["abc", ""], Wish(20, GREEDY))
    assert found == texts(bare, ["qabc", "q"], Wish(20, GREEDY))[0]
    assert figures.read == 5


def test_a_checkpoint(workdir: Path) -> None:
    """More prompts than are written together, of several lengths: each text is that of its prompt alone."""
    source, about = load(workdir, None, None)
    assert about == f"model decoder, step 3 of {workdir}"
    prompts = [LETTERS[i : 2 * i + 1].replace(" ", "") for i in range(9)]
    wish = Wish(12, Sampling(), seed=4)
    found, _ = texts(source, prompts, wish)
    assert all(len(text) == 12 for text in found) and len(set(found)) == 9
    assert texts(source, prompts[:1], wish)[0] == found[:1]
    assert texts(source, prompts[:1], Wish(12, Sampling(), seed=5))[0] != found[:1]


def test_as_far_as_the_context_reaches(workdir: Path) -> None:
    """Without a number of tokens, a long prompt gets fewer than a short one, and the same as alone."""
    source, _ = load(workdir, None, None)
    prompts = ["abc", "abc" * 20]
    found, figures = texts(source, prompts, Wish(None, GREEDY))
    assert [len(text) for text in found] == [61, 4] and figures.written == 65
    assert texts(source, prompts[1:], Wish(None, GREEDY))[0] == found[1:]


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        (
            "abc",
            62,
            "prompt 1 has 3 tokens, and with 62 more it is longer than the model's context, 64 tokens; give at most "
            "--tokens 61",
        ),
        ("abc" * 30, 1, "shorten the prompt"),
        ("abcd" * 16, None, "with 1 more it is longer than the model's context, 64 tokens; shorten the prompt"),
        ("aBc", 1, "prompt 1: "),
    ],
)
def test_prompts_that_cannot_be_continued(workdir: Path, prompt: str, tokens: int | None, message: str) -> None:
    with pytest.raises(UserError) as error:
        texts(load(workdir, None, None)[0], [prompt], Wish(tokens, GREEDY))
    assert message in str(error.value)


def test_models_that_write_no_text(folder: Path, workdir: Path, tmp_path: Path) -> None:
    cases = [
        (folder, 3, None, "which has no steps; leave it out"),
        (workdir, 4, None, "has no checkpoint of step 4; there are 3"),
        (tmp_path, None, None, "cannot be read"),
        (workdir, None, workdir / "nothing.json", "is not a tokenizer.json"),
    ]
    for place, step, tokenizer, message in cases:
        with pytest.raises(UserError) as error:
            load(place, step, tokenizer)
        assert message in str(error.value)
    (bare := tmp_path / "bare").mkdir()
    (bare / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"has no tokenizer.json; give its tokenizer.json with --tokenizer FILE"):
        load(bare, None, None)


def test_text_appears_when_it_is_certain() -> None:
    """A character of several tokens is not shown by half, nor the beginning of a stop."""
    text = _Text(Bytes(), 100, ("STOP",), frozenset())
    shown = [text.add([byte]) for byte in "é, ST, STOP it".encode()]
    assert "".join(shown) == "é, ST, "
    assert text.is_done
    assert all("\ufffd" not in part for part in shown)
    text = _Text(Bytes(), 3, (), frozenset({0}))
    assert [text.add(list(b"ab")), text.add([0, 99])] == ["ab", ""]
    assert (text.is_done, text.count) == (True, 2)
    text = _Text(Bytes(), 3, (), frozenset())
    assert (text.add(list(b"abcd")), text.count) == ("abc", 3)

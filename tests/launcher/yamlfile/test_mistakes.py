"""Rows for the mistakes of a file: which line and key they name, what they say, and what they never show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from podrun.launcher.inventory.pod_schema import PodFile
from podrun.launcher.yamlfile.mistakes import (
    SECRET,
    SHOWN,
    Row,
    describe_mistakes,
    mistake_row,
    mistakes_error,
    short,
)
from podrun.launcher.yamlfile.schema_tree import SchemaTree
from podrun.runtime.config import Config

LINES = {"model": 3, "model.width": 4, "data": 6, "data.path": 7, "env": 9}


class Model(BaseModel):
    """A schema with a key of each kind."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Literal["a"] = "a"
    width: int = 1
    ratio: float | None = None
    text: str = ""
    either: int | bool = 0
    items: list[int] = []
    env: dict[str, str] = {}


class Nullable(BaseModel):
    """A schema with a section that may be null, and one that may be a number as well."""

    section: Model | None = None
    other: Model | int | None = None


class Root(BaseModel):
    """A schema with sections."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: Model = Model()
    sample: Model = Model()
    steps: int
    place: Annotated[Path, Field(strict=False)] = Path(".")


def rows_of(given: dict[str, Any], *overridden: str, lines: dict[str, int] = LINES) -> list[Row]:
    with pytest.raises(ValidationError) as caught:
        Root.model_validate({"steps": 1, **given} if "steps" not in given else given)
    return describe_mistakes(Root, caught.value.errors(), lines, overridden)


def texts(given: dict[str, Any], *overridden: str) -> list[str]:
    return [text for _, text in rows_of(given, *overridden)]


# --- one row ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dotted", "given", "row"),
    [
        ("model.width", (), (4, "line 4: model.width: bad")),
        ("model.depth", (), (3, "line 3: model.depth: bad")),
        ("optimizer.rate", (), (0, "optimizer.rate: bad")),
        ("model.width", ("model.width",), (4, "command line: model.width: bad")),
        ("model.width", ("model",), (4, "command line: model.width: bad")),
        ("model.width", ("model.widt", "model.width.x", "data"), (4, "line 4: model.width: bad")),
        ("optimizer", ("optimizer.rate",), (0, "command line: optimizer: bad")),
        ("model", ("model.depth",), (3, "line 3: model: bad")),
        ("", (), (0, "bad")),
        ("a\nb", (), (0, "'a\\nb': bad")),
    ],
)
def test_a_row_names_its_line_or_the_command_line(dotted: str, given: tuple[str, ...], row: Row) -> None:
    """The nearest line above that is known; what was overridden is not looked for in the file."""
    assert mistake_row(dotted, "bad", LINES, given) == row


def test_a_contradiction_names_the_keys_of_the_command_line_that_take_part() -> None:
    """They are named with their values in the message; a key that only has the same end is not."""
    given = ("model.width", "model.heads", "model.depth", "modelwidth", "model")
    what = "its width 7 is no multiple of heads '3'; depth is fine, no-width 2"
    assert mistake_row("model", what, LINES, given[:4]) == (
        3,
        f"command line (model.heads, model.width): model: {what}",
    )
    assert mistake_row("model", what, LINES, given) == (3, f"command line: model: {what}")
    assert mistake_row("model", "sub.width 7", LINES, ("model.width",)) == (3, "line 3: model: sub.width 7")


def test_all_mistakes_are_in_one_message_in_the_order_of_their_lines() -> None:
    """At most SHOWN of them, and how many more there are; rows of one line keep their order."""
    assert str(mistakes_error("x.yaml", [(2, "b"), (1, "a"), (2, "a")])) == "x.yaml: 3 mistakes\n  a\n  b\n  a"
    assert str(mistakes_error("x.yaml", [(0, "a")])) == "x.yaml: 1 mistake\n  a"
    lines = str(mistakes_error("x", [(0, str(n)) for n in range(SHOWN)])).splitlines()
    assert lines == [f"x: {SHOWN} mistakes", *(f"  {n}" for n in range(SHOWN))]
    lines = str(mistakes_error("x", [(0, str(n)) for n in range(SHOWN + 2)])).splitlines()
    assert lines[0] == f"x: {SHOWN + 2} mistakes" and lines[-2:] == [f"  {SHOWN - 1}", "  and 2 more"]
    assert SHOWN == 9 and len(lines) == 11


def test_values_are_shortened() -> None:
    """To the limit, and not below it."""
    assert short("x" * 58) == repr("x" * 58)
    assert short("x" * 59) == "'" + "x" * 56 + "..."
    assert short("abcdef", 7) == "'abc..."


# --- what is said of a value ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model": {"width": "x"}}, "line 4: model.width: must be a whole number (it is 'x')"),
        ({"model": {"width": None}}, "line 4: model.width: must be a whole number (it is empty)"),
        ({"model": {"ratio": "x"}}, "line 3: model.ratio: must be a number (it is 'x')"),
        ({"model": {"text": 1}}, "line 3: model.text: must be text; put it in quotes (it is 1)"),
        ({"model": {"either": "x"}}, "line 3: model.either: must be a whole number or true or false (it is 'x')"),
        ({"model": {"items": 3}}, "line 3: model.items: must be a list (it is 3)"),
        ({"model": {"items": [1, "x"]}}, "line 3: model.items.1: must be a whole number (it is 'x')"),
        ({"model": {"env": {"A": 1}}}, "line 3: model.env.A: must be text; put it in quotes (it is 1)"),
        ({"model": {"name": "b"}}, "line 3: model.name: must be 'a' (it is 'b')"),
        ({"model": {"widht": 1}}, "line 3: model.widht: there is no such key; did you mean model.width?"),
        ({"model": {"steps": 1}}, "line 3: model.steps: there is no such key; did you mean steps?"),
        ({"zzz": 1}, "zzz: there is no such key; allowed here: model, sample, steps, place."),
        ({"text": 1}, "text: there is no such key; did you mean model.text or sample.text?"),
        ({"steps": 1, "place": 7}, "place: must be a path (it is 7)"),
        ({"model": None}, "line 3: model: must be a section; leave it out for its defaults (it is empty)"),
        (
            {"sample": None},
            "sample: must be a section; leave it out for its defaults, or give sample.tokens=0 for no sample (it is empty)",
        ),
        (
            {"model": 3},
            "line 3: model: must be a section with some of the keys name, width, ratio, text, either, items, env (it is 3)",
        ),
        ({"model": {1: 2}}, "line 3: model.1: a key must be text; YAML reads "),
    ],
)
def test_each_kind_of_mistake(given: dict[str, Any], text: str) -> None:
    """Line, key, what it must be and what it is; values of keys that do not exist are not shown."""
    (row,) = texts(given)
    assert row.startswith(text) if text.endswith(" ") else row == text


def test_what_is_missing() -> None:
    """It has no line and no value."""
    with pytest.raises(ValidationError) as caught:
        Root.model_validate({})
    assert describe_mistakes(Root, caught.value.errors(), {}) == [(0, "steps: required, but not given")]


def test_text_on_the_command_line_needs_two_quotes() -> None:
    """The shell takes the first pair, which the file does not need."""
    (text,) = texts({"model": {"text": 1}}, "model.text")
    assert text == (
        "command line: model.text: must be text; put it in quotes, and on the command line in both kinds: 'key=\"value\"' "
        "(it is 1)"
    )
    assert texts({"model": {"text": 1}}, "model")[0].startswith("command line: model.text: ")
    assert "both kinds" not in texts({"model": {"text": 1}}, "model.width")[0]


def error(kind: str, value: Any, *location: str, message: str = "is bad") -> Any:
    return {"type": kind, "loc": location, "msg": message, "input": value, "ctx": {}}


def test_a_secret_is_not_shown() -> None:
    """Neither as a value of that type, nor as the value of a key that is none."""
    rows = describe_mistakes(PodFile, [error(SECRET, "TOKEN=hunter2", "secrets")], {"secrets": 4})
    assert rows == [(4, "line 4: secrets: is bad")]
    assert "hunter2" not in texts({"model": {"token": "hunter2"}})[0]
    with pytest.raises(ValidationError) as caught:
        PodFile.model_validate({"slice": "v3-8", "hosts": ["a"], "secrets": ["TOKEN=hunter2"]})
    ((_, text),) = describe_mistakes(PodFile, caught.value.errors(), {})
    assert text.startswith("secrets") and "hunter2" not in text


def test_sections_and_objects_are_not_shown() -> None:
    """They would fill the screen."""
    for value in ({"a": 1}, Model()):
        assert describe_mistakes(Root, [error("value_error", value, "model")], {}) == [(0, "model: is bad")]


def test_messages_of_checks_are_made_to_fit() -> None:
    """The words that pydantic puts around them go."""
    row = error("value_error", 3, "steps", message="Value error, Input should be even")
    assert describe_mistakes(Root, [row], {}) == [(0, "steps: must be even (it is 3)")]


def test_contradictions_have_a_line_each() -> None:
    """Each begins with its key, whose line is looked up; keys of the command line that take part are named."""
    what = "model.width: 7 is odd\nsteps 3 are few, with model.width 7\nbatch is 0"
    row = error("value_error", Model(), message=f"Value error, {what}")
    assert describe_mistakes(Root, [row], LINES) == [
        (4, "line 4: model.width: 7 is odd"),
        (0, "steps 3 are few, with model.width 7"),
        (0, "batch is 0"),
    ]
    assert [text for _, text in describe_mistakes(Root, [row], LINES, ("model.width",))] == [
        "command line: model.width: 7 is odd",
        "command line (model.width): steps 3 are few, with model.width 7",
        "batch is 0",
    ]


# --- sections with choices --------------------------------------------------------------------------------------------


def config_rows(**given: Any) -> list[Row]:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"steps": 1, "batch_size": 8, **given})
    return describe_mistakes(Config, caught.value.errors(), {"data": 2, "data.a": 3})


def test_keys_of_another_choice_are_one_row() -> None:
    """They exist, but not here: so the row says which choice they belong to, and what this one has."""
    (row,) = config_rows(data={"name": "text", "path": "x", "vocabulary": 3, "dtype": "uint16"})
    assert row[0] == 2
    assert row[1].startswith(
        "line 2: data.vocabulary, dtype: there are no such keys; they belong to another choice of data.name; "
        "allowed here: skip, bring, name, path"
    )
    (row,) = config_rows(data={"name": "text", "path": "x", "vocabulary": 3})
    assert row[1].startswith(
        "line 2: data.vocabulary: there is no such key; it belongs to another choice of data.name; allowed here: skip, "
    )


def test_a_choice_that_is_none() -> None:
    """Its own value is shown, not the section's; a preset in place of a name is understood."""
    (row,) = config_rows(data={"name": "nothing"})
    assert row[1].startswith("line 2: data.name: ") and row[1].endswith("(it is 'nothing')")
    (row,) = config_rows(model={"name": "gpt2-small"})
    assert row[1].startswith("model.name: ")
    (row,) = config_rows(model="small")
    assert row[1].startswith("model.name: ") and "(it is 'small')" in row[1]


def test_the_tree_of_a_schema() -> None:
    """Keys below sections, lists and what may be null; each path once, whichever choices have it."""
    tree = SchemaTree(Root)
    assert tree.paths[:4] == ["model", "model.name", "model.width", "model.ratio"] and "sample.env" in tree.paths
    assert len(tree.paths) == len(set(tree.paths)) == 4 + 2 * 7
    assert tree.keys_to(("model", "items", 3)) == ["model", "items", "3"]
    assert tree.keys_to(("model", "nothing")) == ["model", "nothing"]
    assert tree.keys_to(("model", "env", "A", "[key]")) == ["model", "env", "A"]
    assert tree.keys_to(("model", "either", "int")) == ["model", "either"]
    assert tree.keys_at(()) == ["model", "sample", "steps", "place"]
    nullable = SchemaTree(Nullable)
    assert nullable.keys_to(("section", "env", "A", "[key]")) == ["section", "env", "A"]
    assert nullable.keys_at(("section",))[:2] == ["name", "width"]
    assert nullable.keys_at(("other",)) == []  # only its branches have keys
    whole = SchemaTree(Config)
    assert len(whole.paths) == len(set(whole.paths)) and "data.vocabulary" in whole.paths
    assert whole.keys_to(("data", "text", "path")) == ["data", "path"]
    assert whole.keys_at(("data", "text"))[:4] == ["skip", "bring", "name", "path"]


def test_sections_under_names_of_the_users() -> None:
    """Sources of a mixture and validation sets: the row has the name, and not the choice that pydantic took."""
    sources = {"web": {"pth": "x", "packing": "fits"}, "code": {"name": "text", "vocabulary": 3}}
    rows = config_rows(data={"name": "mixture", "sources": sources}, validation={"a b": {"path": "x"}})
    texts = [text.removeprefix("line 2: ") for _, text in rows]
    for expected in (
        "data.sources.web.path: required, but not given",
        "data.sources.web.packing: must be 'concat' or 'fit' (it is 'fits')",
        "data.sources.web.pth: there is no such key; did you mean ",
        "data.sources.code.path: required, but not given",
        "data.sources.code.vocabulary: there is no such key; did you mean ",
        "validation.a b: the name of a source has letters",
    ):
        assert any(text.startswith(expected) for text in texts), texts


def test_a_key_that_is_known_by_its_initials() -> None:
    rows = config_rows(lr=1, bs=8, optimizer={"wd": 0.1})
    texts = [text.removeprefix("line 2: ") for _, text in rows]
    for expected in (
        "lr: there is no such key; did you mean optimizer.learning_rate?",
        "bs: there is no such key; did you mean batch_size or ",
        "optimizer.wd: there is no such key; did you mean optimizer.weight_decay?",
    ):
        assert any(text.startswith(expected) for text in texts), texts


def test_what_may_be_typed_after_a_key() -> None:
    """The keys of a section, of all its choices, and the values of a key if they are few: completion shows them."""
    tree = SchemaTree(Config)
    assert {"adamw", "sgd"} <= set(tree.values(("optimizer", "name")))
    assert {"adamw", "sgd"} <= set(tree.values(("optimizer",)))
    assert tree.values(("optimizer", "nesterov")) == ["true", "false"]
    assert tree.values(("steps",)) == tree.values(("optimizer", "nothing")) == tree.values(("nothing", "key")) == []
    members = tree.members(("optimizer",))
    assert {"name", "b1", "nesterov"} <= set(members) and not members["nesterov"][0]
    assert tree.members(())["optimizer"][0]

"""train.yaml and overrides -> one validated, frozen config."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import ValidationError

from podrun.launcher.request.train_file import read_config
from podrun.runtime.config import Config, Plugin
from podrun.runtime.config.data import BPETokenizer, TextData
from podrun.runtime.config.model import GPT2Model
from podrun.runtime.config.parallel import Pmap
from podrun.runtime.contract import UserError

if TYPE_CHECKING:
    from tests.conftest import Podrun

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads the given lines, above which the required keys stand, with the given overrides."""

    def read(text: str = "", *overrides: str) -> Config:
        path = tmp_path / "train.yaml"
        path.write_text(f"steps: 6\nbatch_size: 8\n{text}\n")
        return read_config(path, overrides)

    return read


def test_files_are_found_from_here_and_beside_train_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here first, as before; what is typed is from here only, as the shell completes it."""
    train = tmp_path / "job" / "train.yaml"
    train.parent.mkdir()
    train.write_text("steps: 6\nbatch_size: 8\ndata: {name: tokens, path: a.bin, validation_path: gone.bin}\n")
    monkeypatch.chdir(tmp_path)
    (train.parent / "a.bin").write_bytes(b"1234")

    def paths(*overrides: str) -> tuple[str, str]:
        data = read_config(Path("job/train.yaml"), overrides).data
        return str(at(data, "path")), str(at(data, "validation_path"))

    assert paths() == ("job/a.bin", "gone.bin")  # a path that no place has is reported as it was written
    assert paths("data.path=a.bin") == ("a.bin", "gone.bin")
    (tmp_path / "a.bin").write_bytes(b"5678")
    assert paths() == ("a.bin", "gone.bin")
    monkeypatch.chdir(train.parent)
    assert str(at(read_config(Path("train.yaml")).data, "path")) == "a.bin"


def at(config: Config, dotted: str) -> Any:
    value: Any = config
    for key in dotted.split("."):
        value = value[key] if isinstance(value, dict) else getattr(value, key)
    return value


# --- YAML as people write it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-3", 1e-3),
        ("1E-3", 1e-3),
        ("1.e-3", 1e-3),
        ("1.5e-3", 1.5e-3),
        (".5e-3", 5e-4),
        ("+1e-3", 1e-3),
        ("1e3", 1000.0),
        ("1_0e-3", 1e-2),
        ("0.001", 1e-3),
        ("1", 1.0),
    ],
)
def test_numbers_with_an_exponent_are_numbers(read: Read, text: str, number: float) -> None:
    """YAML 1.1 reads `1e-3` as text. Here it is a number, in the file and on the command line."""
    assert (
        read(f"optimizer: {{learning_rate: {text}}}").optimizer == read("", f"optimizer.learning_rate={text}").optimizer
    )
    assert at(read(f"optimizer: {{learning_rate: {text}}}"), "optimizer.learning_rate") == number
    assert at(read(f"model: {{name: 'a:b', options: {{x: {text}}}}}"), "model.options.x") == number


@pytest.mark.parametrize("text", ["1e", "e3", "1e-3x", "'1e-3'", "v1e3"])
def test_text_that_looks_like_a_number_stays_text(read: Read, text: str) -> None:
    """Only whole numbers with an exponent are numbers; quotes always make text."""
    assert at(read(f"sample: {{prompt: {text}}}"), "sample.prompt") == text.strip("'")


def test_merge_keys(read: Read) -> None:
    """`<<` takes over the keys of another section, and own keys go before them."""
    config = read(
        "eval: &all {every: 7, batches: 3}\nlog: {every: 2}\ncheckpoint: {<<: &x {every: 5, keep: 4}, keep: 3}"
    )
    assert (config.checkpoint.every, config.checkpoint.keep) == (5, 3)


def test_a_section_may_be_given_twice_in_different_places(read: Read) -> None:
    """Only the same key of the same section is an error."""
    config = read("log: {every: 2}\neval: {every: 3}")
    assert (config.log.every, config.eval.every) == (2, 3)


# --- overrides --------------------------------------------------------------------------------------------------------

BPE = "data: {name: text, path: a.txt, tokenizer: bpe}"


@pytest.mark.parametrize(
    ("text", "override", "dotted", "value"),
    [
        ("", "steps=7", "steps", 7),
        ("", "steps=1e3", "steps", 1000),
        ("", "log.every=3", "log.every", 3),
        ("log: {every: 2, tensorboard: false}", "log.every=3", "log.tensorboard", False),
        ("log:", "log.every=3", "log.every", 3),
        ("", "log={every: 3}", "log.every", 3),
        ("log: {tensorboard: false}", "log={every: 3}", "log.tensorboard", True),
        ("model: gpt2", "model.layers=2", "model.layers", 2),
        ("model: gpt2", "model.layers=2", "model.name", "gpt2"),
        ("model: {layers: 3}", "model=gpt2", "model.layers", 4),
        (BPE, "data.tokenizer.vocabulary=300", "data.tokenizer.vocabulary", 300),
        (BPE, "data.tokenizer=char", "data.tokenizer.name", "char"),
        (BPE, "data.path=a=b.txt", "data.path", "a=b.txt"),
        (BPE, "data.path='12'", "data.path", "12"),
        ("", "launch.env.A=a b", "launch.env.A", "a b"),
        ("launch: {env: {A: x, B: y}}", "launch.env.A=", "launch.env.A", ""),
        ("launch: {env: {A: x, B: y}}", "launch.env.A=", "launch.env.B", "y"),
        ("", "optimizer.clip_norm=null", "optimizer.clip_norm", None),
        ("model: 'a:b'", "model.options.deep.er=[1, x]", "model.options.deep.er", [1, "x"]),
        ("", "eval.batches=all", "eval.batches", "all"),
        ("", "sample.prompt=", "sample.prompt", ""),
    ],
)
def test_an_override_of_any_depth(read: Read, text: str, override: str, dotted: str, value: Any) -> None:
    """It replaces what it names and leaves the keys beside it alone."""
    assert at(read(text, override), dotted) == value


def test_the_last_override_wins(read: Read) -> None:
    """From left to right, also where one is inside of another."""
    assert read("", "log.every=2", "log.every=3").log.every == 3
    assert read("", "log.every=2", "log={tensorboard: false}").log.every == 10
    assert read("", "log={every: 2}", "log.tensorboard=false").log.every == 2


def test_an_override_does_not_reach_through_an_alias(read: Read) -> None:
    """Two sections that share their keys in the file are two sections."""
    config = read("eval: &a {every: 5}\ncheckpoint: *a", "eval.every=7")
    assert (config.eval.every, config.checkpoint.every) == (7, 5)


def test_all_malformed_keys_of_the_command_line_are_named_with_the_file(read: Read) -> None:
    """A mistake of the file and one of the command line are shown together, each with its place."""
    with pytest.raises(UserError) as error:
        read("log: {every: 0}", "log.tensorboard=perhaps", "eval.every=-1")
    rows = [row.strip() for row in str(error.value).splitlines()[1:]]
    assert sorted(row.partition(": ")[0] for row in rows) == ["command line", "command line", "line 3"]


# --- the config -------------------------------------------------------------------------------------------------------


def test_defaults(read: Read) -> None:
    """Two keys make a job: a small GPT-2 on text that is on every machine, under pmap."""
    config = read()
    assert config == Config(steps=6, batch_size=8)
    assert (config.task, config.parallel, config.precision.compute) == ("language_model", Pmap(), "float32")
    assert (at(config, "model.name"), at(config, "data.name"), at(config, "data.tokenizer.name")) == (
        "gpt2",
        "python_source",
        "byte",
    )
    assert (config.launch.slice, config.launch.workdir, config.launch.env) == (None, None, {})


def test_a_preset_gives_sizes_and_own_keys_go_before_it(read: Read) -> None:
    """GPT-2 medium has 24 layers of width 1024 with 16 heads (Radford et al. 2019)."""
    medium = read("model: {preset: gpt2-medium}").model
    assert isinstance(medium, GPT2Model)
    assert (medium.layers, medium.heads, medium.width, medium.context) == (24, 16, 1024, 1024)
    assert at(read("model: {preset: gpt2-medium}", "model.layers=2"), "model.layers") == 2
    small = read("model: {preset: gpt2-medium, layers: 2, context: 64}").model
    assert isinstance(small, GPT2Model)
    assert (small.layers, small.heads, small.width, small.context) == (2, 16, 1024, 64)


def test_the_users_own_code_gets_its_options_as_they_are(read: Read) -> None:
    """`package.module:attribute` names it, with or without a section."""
    assert read("model: mine:make").model == Plugin(name="mine:make")
    options = {"depth": 2, "name": "x", "rates": [0.001, 1], "inner": {"on": True, "nothing": None}}
    config = read(
        "data: {name: 'a.b:make', options: {depth: 2, name: x, rates: [1e-3, 1], inner: {'on': yes, nothing: }}}"
    )
    assert config.data == Plugin(name="a.b:make", options=options)


@pytest.mark.parametrize("section", ["", "model", "data", "data.tokenizer", "optimizer", "log", "launch"])
def test_the_config_is_frozen(read: Read, section: str) -> None:
    """No later code can change the job."""
    config = read(BPE)
    target = at(config, section) if section else config
    with pytest.raises(ValidationError, match="frozen"):
        setattr(target, next(iter(type(target).model_fields)), "x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        BPE,
        "model: {preset: gpt2, layers: 2}\ndata: {name: tokens, path: a.bin, validation_path: b.bin}",
        "model: {name: 'a:b', options: {x: 1e-3, y: [1, null]}}\noptimizer: a:b\ntask: a:b",
        'eval: {batches: all}\noptimizer: {clip_norm: null, eps: 1e-30}\nsample: {prompt: "ä\\n\'"}',
        "launch: {workdir: /w, env: {A: '1', B: ''}}",
    ],
)
def test_the_resolved_config_survives_json(read: Read, text: str) -> None:
    """The launcher writes it, a worker reads it: nothing is lost, and no default of the worker's comes in."""
    config = read(text)
    written = config.model_dump_json(indent=1)
    assert Config.model_validate(json.loads(written)) == config
    assert set(json.loads(written)) == set(Config.model_fields)


def test_types_of_nested_choices(read: Read) -> None:
    """The `name` of a section decides what it is."""
    data = read(BPE).data
    assert isinstance(data, TextData)
    assert data.tokenizer == BPETokenizer()


# --- the schema for editors, and the examples -------------------------------------------------------------------------


def walk(node: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of a property, with its path."""
    if isinstance(node, dict):
        for name, schema in node.get("properties", {}).items():
            yield f"{path}.{name}", schema
        for key, child in node.items():
            yield from walk(child, f"{path}.{key}")


def resolve(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema and, where it is a choice, all of its branches, without references."""
    if "$ref" in node:
        return resolve(schema, schema["$defs"][node["$ref"].removeprefix("#/$defs/")])
    branches = [*node.get("oneOf", []), *node.get("anyOf", [])]
    return [node, *(inner for branch in branches for inner in resolve(schema, branch))]


def test_schema_command(in_process: Podrun) -> None:
    """`podrun schema` prints a JSON Schema: every property says what it may be, and every reference leads somewhere."""
    done = in_process("schema")
    assert (done.returncode, done.stderr) == (0, "")
    schema = json.loads(done.stdout)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["batch_size"]
    assert schema["anyOf"] == [{"required": ["steps"]}, {"required": ["epochs"]}]
    assert set(schema["properties"]) == set(Config.model_fields)
    properties = list(walk(schema))
    assert len(properties) > 60
    for path, node in properties:
        assert {"type", "anyOf", "oneOf", "$ref", "const", "enum"} & set(node), f"{path} may be anything: {node}"
        assert resolve(schema, node)
    for name, definition in schema["$defs"].items():
        assert definition["additionalProperties"] is False, f"{name} would not reject a misspelled key"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid_and_in_the_schema(example: Path) -> None:
    """Every example can be read as it is, and an editor that has the schema knows each of its keys."""
    assert read_config(example).steps > 0
    schema = Config.model_json_schema()

    def known(value: Any, node: dict[str, Any], path: str) -> None:
        if not isinstance(value, dict):
            return
        branches = [b for b in resolve(schema, node) if "properties" in b]
        name = value.get("name") or node.get("default", {}).get("name", "none")
        named = [b for b in branches if b["properties"].get("name", {}).get("const") == name]
        for key, inner in value.items():
            found = [b["properties"][key] for b in named or branches if key in b["properties"]]
            assert found, f"{example.name}: {path}{key} is not in the schema"
            known(inner, found[0], f"{path}{key}.")

    known(yaml.safe_load(example.read_text()), schema, "")

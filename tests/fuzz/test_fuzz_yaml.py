"""YAML that means nothing, or too much: a config, or one UserError with what is wrong; never a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from podrun.launcher.inventory.hostfile import read_hostfile
from podrun.launcher.inventory.pod_file import read_pod_file
from podrun.launcher.pod.ranges import expand, split_hosts
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.request.train_file import read_config
from podrun.runtime.contract import UserError

from .cases import NUMBERS, fuzz, junk

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    path.read_text() for folder in ("examples", "pod_configs") for path in sorted((ROOT / folder).glob("*.yaml"))
]
KEYS = [
    *("steps", "batch_size", "model", "data", "task", "optimizer", "parallel", "launch", "log", "checkpoint", "sample"),
    *("slice", "hosts", "ssh", "env", "secrets", "setup", "ports", "transport", "home", "python", "workdir", "name"),
    *("requirements", "eval", "seed", "learning_rate", "mesh", "heads", "<<", "=", "null", "1", "yes", "2020-01-01"),
]
TOKENS = [
    *(" ", "  ", "\n", "\n  ", "\n- ", ": ", ":", "- ", "? ", ", ", "[", "]", "{", "}", "#", "|", ">", "|+2\n", "'", '"'),
    *("&a ", "*a", "<<: *a", "!!int ", "!!binary x", "!x ", "%YAML 1.1\n", "---\n", "...\n", "\t", "\ufeff", "\x85"),
    *("~", "null", "true", "no", ".inf", "-.nan", "0x1f", "0o17", "1_0", "1:30", "1e3", "1e999", "2020-13-45", "9" * 120),
    *('"\\uD800"', '"\\UFFFFFFFF"', '"\\0"', "n[0-3]", "n[0-999999]", "v3-32", "cpu-2x1", "/x", "~/x", "~nobody/x", "\0"),
    *KEYS,
]  # fmt: skip


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """Draw an example of which some places are something else."""
    text = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(st.sampled_from(TOKENS)) + text[end:]
    return text.encode("utf-8", "replace")


@st.composite
def values_in_place(draw: st.DrawFn) -> bytes:
    """Draw an example of which the value of a key is any other one, or a key of any other place."""
    values = yaml.safe_load(draw(st.sampled_from(EXAMPLES)))
    section = values
    while draw(st.booleans()):
        inner = [value for value in section.values() if isinstance(value, dict)]
        if not inner:
            break
        section = draw(st.sampled_from(inner))
    section[draw(st.sampled_from([*section, *KEYS]))] = draw(junk)
    return yaml.safe_dump(values).encode("utf-8", "replace")


texts = st.one_of(
    edited(),
    values_in_place(),
    st.lists(st.sampled_from(TOKENS), max_size=25).map(lambda parts: "".join(parts).encode("utf-8", "replace")),
    st.binary(max_size=60),
    junk.map(lambda value: yaml.safe_dump(value).encode("utf-8", "replace")),
    st.text(max_size=20).map(lambda text: text.encode("utf-16", "replace")),
)
overrides = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*KEYS, "model.name", "launch.env.X", "data.path"]), st.sampled_from(TOKENS)).map("=".join),
        st.lists(st.sampled_from(TOKENS), max_size=6).map("".join),
    ),
    max_size=3,
)  # fmt: skip


def explained(refused: UserError) -> bool:
    """The message is for people: some lines, none of them endless."""
    lines = str(refused).splitlines()
    return 1 <= len(lines) <= 60 and all(len(line) < 2000 for line in lines)


@pytest.mark.parametrize("number", NUMBERS)
def test_train_files_and_overrides(number: int, tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"

    def check(case: tuple[bytes, list[str]]) -> None:
        file.write_bytes(case[0])
        try:
            read_config(file, case[1])
        except UserError as refused:
            if not explained(refused):
                raise

    fuzz(st.tuples(texts, overrides), check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_pod_files_and_hostfiles(number: int, tmp_path: Path) -> None:
    """Pod files are read down to hosts and the way to them, as for a run."""
    file = tmp_path / "pod.yaml"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        for read in (lambda: read_pod_file(file), lambda: read_hostfile(file)):
            try:
                described = read()
                assert described.hosts is not None
            except UserError as refused:
                if not explained(refused):
                    raise
        try:
            assert read_pod_file(file).ssh is not None
        except UserError:
            pass

    fuzz(texts, check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_ranges_and_slices(number: int) -> None:
    parts = [
        "n",
        "[",
        "]",
        "0",
        "9",
        "-",
        ",",
        " ",
        "99999",
        "x",
        "v3",
        "cpu",
        "gpu",
        "²",
        ".",
        "@",
        "{",
        ":",
        "\n",
        "\0",
    ]

    def check(text: str) -> None:
        for entry in split_hosts(text):
            try:
                assert expand(entry)
            except ValueError as why:
                if not re.fullmatch(r"[^\n]{5,}", str(why).replace(entry, "")):
                    raise
        try:
            parse_slice(text)
        except UserError as refused:
            if not explained(refused):
                raise

    fuzz(st.lists(st.sampled_from(parts), max_size=20).map("".join), check, number)

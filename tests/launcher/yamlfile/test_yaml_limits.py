"""YAML and lists of hosts that would take minutes or all memory are refused at once, with the line and what to do."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.hostfile import read_hostfile
from podrun.launcher.inventory.pod_file import read_pod_file
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.inventory.pod_schema import PodFile
from podrun.launcher.pod.ranges import LIMIT, expand, split_hosts
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.request.train_file import read_config
from podrun.launcher.yamlfile.yaml_file import BYTES, DEPTH, parse, yaml_problem
from podrun.runtime.contract import UserError

ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGE_BOMB = "a: &a {" + ", ".join(f"k{i}: 1" for i in range(100)) + "}\nb:\n  <<: [" + ", ".join(["*a"] * 500) + "]\n"
MANY_KEYS = "".join(f"k{i}: 1\n" for i in range(11_000))
BAD = {
    "alias bomb": (ALIAS_BOMB, "line 5", "more than 20000 values"),
    "merge bomb": (MERGE_BOMB, "line 3", "more than 20000 values"),
    "many keys": (MANY_KEYS, "line 1000", "more than 20000 values"),
    "megabytes of keys": (MANY_KEYS * 10, "", "longer than 512 KiB"),
    "lists in lists": ("a: " + "[" * 5000, "line 1, column ", f"more than {DEPTH} levels"),
    "sections in sections": ("".join(" " * i + "a:\n" for i in range(500)), "line 50", f"more than {DEPTH} levels"),
    "contains itself": ("a: &a [*a]", "line 1, column 8", "contains itself"),
    "huge hexadecimal": ("a: 0x" + "f" * 100_000, "line 1, column 4", "a number of 100002 characters"),
    "huge sexagesimal": ("a: 1" + ":59" * 50_000, "line 1, column 4", "a number of 150001 characters"),
    "huge integer": ("steps: " + "9" * 4000, "line 1, column 8", "a number of 4000 characters"),
    "tag of Python": ("a: !!python/object/apply:os.getpid []", "line 1, column 4", "the tag !!python/object/apply"),
    "tag without a value": ("a: !!int ''", "line 1, column 4", "the tag !!int is not allowed"),
    "tag of a truth": ("a: !!bool x", "line 1, column 4", "the tag !!bool is not allowed"),
    "huge key": (
        "? " + "k" * 100_000 + "\n: [" + "0, " * 2_000 + "0]\n",
        "line 1, column 3",
        "a key of 100000 characters",
    ),
    "same key twice": ("a: 1\nb: 2\na: 3", "line 3, column 1", "'a' is given twice"),
    "no character": ('a: "\\UFFFFFFFF"', "", "cannot be read"),
    "half of a character": ('a: "\\uD800"', "line 1, column 4", "half of a character"),
    "NUL": ("a: \0", "", "special characters are not allowed"),
}


@contextmanager
def little_memory() -> Iterator[None]:
    """Let this process take 64 MiB more than it has. Beyond it a MemoryError is raised."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_little_memory() -> None:
    """The limit holds: more is refused."""
    with pytest.raises(MemoryError), little_memory():
        bytearray(1 << 30)  # more than this process can have freed before


@pytest.mark.parametrize("name", BAD)
def test_what_could_take_all_time_or_memory_is_refused(name: str) -> None:
    text, where, what = BAD[name]
    with pytest.raises(yaml.YAMLError) as refused, little_memory():
        parse(text)
    problem = yaml_problem(refused.value)
    assert problem.startswith(where) and what in problem, problem
    assert len(problem) < 400


def test_files_and_overrides_have_the_same_limits(tmp_path: Path) -> None:
    """A train file, a pod file and an override: each is named, and nothing is built before it is refused."""
    file = tmp_path / "file.yaml"
    for text, what in ((ALIAS_BOMB, "line 5"), ("a: 1\n" + "#" * BYTES, "larger than 512 KiB")):
        file.write_text(text)
        for read in (read_config, read_pod_file):
            with pytest.raises(UserError, match=what) as refused:
                read(file)
            assert "file.yaml" in str(refused.value)
    file.write_text("model: mlp\n")
    with pytest.raises(UserError, match=r"model=.*contains itself"):
        read_config(file, ["model=&a [*a]"])


def test_a_device_is_not_read_to_its_end() -> None:
    with pytest.raises(UserError, match="larger than 512 KiB"):
        read_pod_file(Path("/dev/zero"))


def test_other_encodings(tmp_path: Path) -> None:
    """A byte order mark of UTF-8 is skipped; UTF-16 is named."""
    file = tmp_path / "pod.yaml"
    file.write_bytes("\ufeffslice: cpu-1x1\n".encode())
    assert read_pod_file(file).file.slice == "cpu-1x1"
    file.write_bytes("slice: cpu-1x1\n".encode("utf-16"))
    with pytest.raises(UserError, match="not UTF-8"):
        read_pod_file(file)


def test_aliases_and_merged_sections_still_work() -> None:
    values, lines = parse("a: &a {x: 1, y: [2, 3]}\nb: *a\nc:\n  <<: *a\n  x: 4\n")
    assert values == {"a": {"x": 1, "y": [2, 3]}, "b": {"x": 1, "y": [2, 3]}, "c": {"x": 4, "y": [2, 3]}}
    assert lines["b"] == 2 and lines["c.x"] == 5


@pytest.mark.parametrize(
    "text",
    [
        "n[0-99999999999]",
        f"n[{'0-9999,' * 10_000}1]",
        "n" * 400_000 + "[0-9999]",
        "n[0-9][0-9][0-9][0-9][0-9]",
        "[0-9]" * 5000,
        "[0-9999]" * 500,
        f"n[{'0-9999,' * 500}999999999-0]",
        "[0-9][0-9][0-9][0-9]" + "[1]" * 50_000,
        "[" * 100_000,
    ],
)
def test_ranges_end_at_their_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|hosts|characters|bracket"), little_memory():
        expand(text)


def test_the_hosts_of_a_pod_are_counted_before_they_are_made(tmp_path: Path) -> None:
    """Each range may be allowed, and all of them too much."""
    with pytest.raises(ValidationError, match=f"more than {LIMIT} hosts together"):
        PodFile.model_validate({"hosts": ["n[0-9999]"] * 20_000})
    with pytest.raises(ValidationError, match=f"more than {LIMIT} hosts"):
        PodFile.model_validate({"hosts": [{"name": "n", "address": "a[0-9999]"}] * 5000})
    with pytest.raises(ValidationError, match=f"more than {LIMIT} hosts"):
        PodFile.model_validate({"hosts": ["[0-9]" * 5000]})
    with pytest.raises(UserError, match=f"stands for more than {LIMIT} hosts"):
        find_pod(PodRequest("cpu-2x1", inventories={"hosts": "[0-9]" * 5000}))
    with pytest.raises(UserError, match=f"more than {LIMIT}"):
        find_pod(PodRequest("cpu-2x1", inventories={"hosts": ",".join(["n[0-9999]"] * 1000)}))
    hostfile = tmp_path / "hosts"
    hostfile.write_text("".join(f"n{i}-[0-9999] slots=1\n" for i in range(5000)))
    with pytest.raises(UserError, match=f"line 2: more than {LIMIT} hosts"):
        read_hostfile(hostfile)


def test_a_long_list_of_hosts_is_split_in_one_pass() -> None:
    assert split_hosts("a, n[1, 3] b") == ["a", "n[1, 3]", "b"]
    assert len(split_hosts("a," * 200_000)) == 200_000


@pytest.mark.parametrize("name", ["cpu-99999999x9", "cpu-99999x9999", f"v3-{'9' * 5000}", "v3-²", "x" * 1_000_000])
def test_slices_that_cannot_be(name: str) -> None:
    with pytest.raises(UserError, match="slice") as refused:
        parse_slice(name)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["yes:\n", "1: a\nslice: cpu-1x1\n", "null: 3\n"])
def test_a_key_of_a_pod_file_that_is_no_text(tmp_path: Path, text: str) -> None:
    """YAML reads `yes`, numbers and `null` as something else: that is a mistake of the file like any other."""
    (tmp_path / "pod.yaml").write_text(text)
    described = read_pod_file(tmp_path / "pod.yaml")
    assert "a key must be text" in described.mistakes[0][1]

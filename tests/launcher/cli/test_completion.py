"""Completion in a shell: commands, files, and the keys of train.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.runtime.config import Config

from .completing import complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ins",), ["<file>", "inspect"]),
        (("tr",), ["<file>"]),
        (("tpu", ""), ["down", "keep", "list", "up"]),
        (("tpu", "up", "my-tpu", "--slice", "v6e-1"), ["v6e-1", "v6e-16", "v6e-128"]),
        (("--slice", "cpu-1x2", "--simulate", "tr"), ["<file>"]),
        (("train.yaml", "opt"), ["optimizer."]),
        (("run", "train.yaml", "optimizer.learning_r"), ["optimizer.learning_rate="]),
        (("inspect", "train.yaml", "steps=5", "data.tok"), ["data.tokenizer.", "data.tokenizer_file="]),
        (
            ("compare", "train.yaml", "parallel.mesh."),
            ["parallel.mesh.data=", "parallel.mesh.fsdp=", "parallel.mesh.model="],
        ),
        (("train.yaml", "parallel=s"), ["parallel=shard_map", "parallel=single"]),
        (("train.yaml", "drop_last="), ["drop_last=true", "drop_last=false"]),
        (("train.yaml", "steps", "=", "5", "parallel", "=", "s"), ["shard_map", "single"]),
        (("train.yaml", "steps", "=", "5", "data.tokenizer", "="), ["char", "byte", "bpe"]),
        (("train.yaml", "steps="), []),
        (("train.yaml", "no.such."), []),
        (("train.yaml", "nothing="), []),
    ],
)
def test_completion(words: tuple[str, ...], expected: list[str]) -> None:
    """Words as zsh and fish have them, and as bash does, which divides them at `=`."""
    assert complete(*words) == expected


@pytest.mark.parametrize("before", [(), ("steps=5",), ("steps", "=", "5")])
def test_every_key_is_offered(before: tuple[str, ...]) -> None:
    assert [word.rstrip(".=") for word in complete("train.yaml", *before, "")] == list(Config.model_fields)


def test_completion_of_keys_is_light() -> None:
    """It happens while somebody types."""
    code = """
import sys
from click.shell_completion import ShellComplete
from podrun.launcher.cli.root import main
assert ShellComplete(main, {}, "podrun", "_").get_completions(["train.yaml"], "opt")
print({"jax", "numpy", "fabric", "rich"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


COMPLETE = """
eval "$(podrun completion bash)"
compopt() { echo "compopt $1 $2"; }  # it works only while a shell completes
COMP_WORDS=(podrun train.yaml "$@") COMP_CWORD=$(($# + 1))
_podrun_completion podrun
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(("opt",), "compopt -o nospace\noptimizer.\n"), (("parallel", "=", "sh"), "shard_map\n")],
)
def test_bash_puts_no_space_behind_a_part(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    """By the script that `podrun completion bash` prints."""
    command = tmp_path / "podrun"
    command.write_text(f"#!{sys.executable}\nfrom podrun.launcher.cli.entry import main\nmain()\n")
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", COMPLETE, "bash", *words], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (expected, "")

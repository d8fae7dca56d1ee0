"""What is imported, and when: the launcher starts fast and without JAX, the agent with nothing but Python."""

from __future__ import annotations

import ast
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Sandbox

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "launcher" / "agent.py"
JAX = {"jax", "jaxlib", "flax", "numpy", "optax", "orbax", "tensorboardX", "tokenizers"}
LAUNCHER_ONLY = {"fabric", "paramiko", "invoke", "podrun.launcher"}
RUNTIME_MODULES = sorted(
    ".".join(("podrun", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in (ROOT / "runtime").rglob("*.py")
    if path.name != "__main__.py"
)


def imported(*statements: str) -> set[str]:
    """Names of all modules that a fresh interpreter has after the statements, packages of any depth included."""
    code = "\n".join((*statements, "import json, sys", "print(json.dumps(sorted(sys.modules)))"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def third_party(modules: set[str]) -> set[str]:
    """Top-level packages that did not come with Python, and are not there in every interpreter of this installation."""
    tops = {name.partition(".")[0] for name in modules - imported("pass")}
    return tops - set(sys.stdlib_module_names) - {"podrun"}


@pytest.mark.parametrize("module", ["cli", "run", "supervisor", "plan", "train_file", "console"])
def test_the_launcher_does_not_import_jax(module: str) -> None:
    """It runs where JAX is not installed, and does not wait for it."""
    assert not imported(f"import podrun.launcher.{module}") & JAX


@pytest.mark.parametrize("arguments", [["--help"], ["slices"], ["completion", "bash"], ["run", "--help"]])
def test_a_command_imports_only_what_it_needs(arguments: list[str]) -> None:
    """These read no train.yaml: of the libraries, only click is there at the end."""
    run = f"with contextlib.suppress(SystemExit): main({arguments})"
    modules = imported("import contextlib", "from podrun.launcher.cli import main", run)
    assert third_party(modules) == {"click"}


def test_the_command_line_alone_imports_only_click() -> None:
    """Completion in a shell runs this for every key press: no pydantic, no yaml, no rich."""
    assert third_party(imported("import podrun.launcher.cli")) == {"click"}


def test_all_of_the_runtime_imports_nothing_of_the_launcher() -> None:
    """A worker's host needs no SSH library, and imports run one way."""
    modules = imported(*(f"import {name}" for name in RUNTIME_MODULES))
    assert "podrun.runtime.train" in RUNTIME_MODULES
    assert set(RUNTIME_MODULES) <= modules
    assert "jax" in modules
    assert not modules & LAUNCHER_ONLY


def test_the_contract_is_standard_library_only() -> None:
    """Both sides import it, also where nothing is installed; the schema adds pydantic and nothing of JAX."""
    assert third_party(imported("import podrun.runtime.contract")) == set()
    modules = imported("import podrun.runtime.config")
    assert not modules & JAX
    assert "pydantic" in third_party(modules)


def test_the_agent_is_plain_python_3_8() -> None:
    """It is sent to hosts as it is: old grammar, no relative import, the standard library only."""
    tree = ast.parse(AGENT.read_text(), feature_version=(3, 8))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names.add(node.module or "")
    assert names
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_the_agent_starts_isolated() -> None:
    """Without site-packages and without the user's environment, as on a host where nothing is installed."""
    done = subprocess.run([sys.executable, "-I", "-S", AGENT], capture_output=True, text=True, env={})
    assert "usage: agent.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_help(sandbox: Sandbox, record_property: pytest.RecordProperty) -> None:
    """`podrun --help` explains itself; its CPU time is printed (pytest -s) and recorded, not judged."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = sandbox.podrun("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (done.returncode, done.stderr) == (0, "")
        assert "podrun --slice v3-32" in done.stdout
        assert all(word in done.stdout for word in ("--simulate", "--dry-run", "slices", "schema", "Exit codes"))
    median = statistics.median(seconds)
    record_property("help_cpu_seconds", median)
    print(f"\npodrun --help: {median * 1000:.0f} ms of CPU (median of {len(seconds)})")

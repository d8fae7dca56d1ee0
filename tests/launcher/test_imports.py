"""Imports, and when they happen: the launcher starts fast and without JAX, the agent with nothing but Python."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from podrun.launcher.agent.main import MARK
from podrun.launcher.cli import root
from podrun.launcher.cli.root import main
from podrun.launcher.plan import agent_file as agent_file_module
from podrun.launcher.plan.agent_file import agent_file

from ..pythons import other_python

if TYPE_CHECKING:
    from tests.conftest import Sandbox

ROOT = Path(__file__).parents[2]
AGENT_FOLDER = ROOT / "launcher" / "agent"
AGENT = sorted(AGENT_FOLDER.rglob("*.py"))
STANDARD = set(sys.stdlib_module_names) - {"graphlib", "tomllib", "zoneinfo"}
"""Modules that are standard in Python 3.8 already."""
NEWER_THAN_3_8 = {
    *("removeprefix", "removesuffix", "is_relative_to", "with_stem", "hardlink_to"),
    *("pidfd_open", "waitstatus_to_exitcode", "to_thread", "randbytes", "pairwise", "batched"),
    *("bit_count", "stdlib_module_names", "orig_argv"),
}
READ_AS_CHECKS = {"to_agent", "from_agent"}
"""Modules whose annotations are evaluated, because the checks of messages are derived from them."""
JAX = {"jax", "jaxlib", "flax", "numpy", "optax", "orbax", "tensorboardX", "tokenizers"}
LAUNCHER_ONLY = {"fabric", "paramiko", "invoke", "podrun.launcher"}
RUNTIME_MODULES = sorted(
    ".".join(("podrun", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in (ROOT / "runtime").rglob("*.py")
    if path.name not in ("__main__.py", "harness.py")  # the second needs lm-eval, and is imported for it alone
)


@lru_cache
def imported(*statements: str) -> frozenset[str]:
    """Names of all modules that a fresh interpreter has after the statements, packages of any depth included."""
    code = "\n".join((*statements, "import json, sys", "print(json.dumps(sorted(sys.modules)))"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return frozenset(json.loads(done.stdout.splitlines()[-1]))


def third_party(modules: frozenset[str]) -> set[str]:
    """Top-level packages that did not come with Python, and are not there in every interpreter of this installation."""
    tops = {name.partition(".")[0] for name in modules - imported("pass")}
    return tops - set(sys.stdlib_module_names) - {"podrun"}


def test_the_launcher_does_not_import_jax() -> None:
    """It runs where JAX is not installed, and does not wait for it."""
    modules = (
        *("cli.root", "commands.run", "run.attempts", "run.background", "attempt.supervisor", "plan.plan"),
        *("request.train_file", "view.live_console", "preflight.rules"),
    )
    assert not imported(*(f"import podrun.launcher.{module}" for module in modules)) & JAX


def test_commands_import_only_what_they_need() -> None:
    """These read no train.yaml: of the libraries, only click is there at the end. A shell's completion waits for that."""
    commands = [
        ["--help"],
        ["slices"],
        ["completion", "bash"],
        *([name, "--help"] for name in main.list_commands(click.Context(main))),
    ]
    runs = [f"with contextlib.suppress(SystemExit): main({arguments})" for arguments in commands]
    modules = imported("import contextlib", "from podrun.launcher.cli.root import main", *runs)
    assert third_party(modules) == {"click"}


def test_a_run_imports_no_declarations_of_other_commands() -> None:
    """Each is in the module that the table names, and in no other."""
    words = ["--slice=cpu-1x1", "--simulate", "--dry-run", "--", "true"]
    run = f"with contextlib.suppress(SystemExit): main({words})"
    modules = imported("import contextlib", "from podrun.launcher.cli.root import main", run)
    declaring = {f"podrun.launcher.cli.{name}" for name in root._MODULES.values()}
    assert not declaring & modules
    declared = {command.name: name for name in declaring for command in importlib.import_module(name).COMMANDS}
    assert declared == {name: f"podrun.launcher.cli.{module}" for name, module in root._MODULES.items()}


def test_the_head_start_of_a_simulated_pod_imports_nothing_that_takes_long() -> None:
    """Its workers import meanwhile: each import here delays them."""
    modules = imported("import podrun.launcher.commands.prestart")
    assert third_party(modules) == set()
    assert not {"importlib.metadata", "asyncio", "multiprocessing"} & (modules - imported("pass"))


def test_what_starts_in_a_job_of_slurm_imports_nothing_that_takes_long() -> None:
    """The agents start meanwhile: each import here delays them."""
    modules = imported("import podrun.launcher.engines.slurm.start_run, podrun.launcher.remote.prestart")
    assert third_party(modules) == set()
    assert not {"importlib.metadata", "asyncio", "multiprocessing", "zipfile"} & (modules - imported("pass"))


def test_the_first_steps_of_a_job_of_slurm_wait_for_no_import_of_podrun() -> None:
    """The agents are started as they were recorded at submission."""
    modules = imported("import podrun.launcher.engines.slurm.job_start")
    packages = {"podrun", "podrun.launcher", "podrun.launcher.engines", "podrun.launcher.engines.slurm"}
    slurm = {f"podrun.launcher.engines.slurm.{name}" for name in ("job_start", "srun")}
    assert {name for name in modules if name.partition(".")[0] == "podrun"} == packages | slurm
    assert third_party(modules) == set()
    assert not {"dataclasses", "inspect", "logging"} & (modules - imported("pass"))


def test_a_job_of_slurm_imports_nothing_for_what_is_on_the_hosts_already() -> None:
    """Its program waits for these imports."""
    modules = imported("import podrun.launcher.engines.slurm.in_job, podrun.launcher.run.stage")
    sent = ("run.pack", "staging.bundles", "staging.send_wheels", "staging.wheels", "staging.managed_python")
    assert not {f"podrun.launcher.{name}" for name in (*sent, "preflight.run_preflight")} & modules
    assert not {"zipfile", "tarfile", "platform"} & (modules - imported("pass"))


def test_an_agent_imports_nothing_for_environments_that_are_built_already(agent: Path) -> None:
    """A host that needs no environment of its own waits for its preparation only."""
    statements = (
        f"sys.path.insert(0, {str(agent)!r})",
        "import podrun_agent.main, podrun_agent.run.relay, podrun_agent.run.attempts",
        "import podrun_agent.prepare.prepare, podrun_agent.prepare.facts",
    )
    modules = imported("import sys", *statements)
    unused = {f"podrun_agent.prepare.{name}" for name in ("environment", "managed_python", "buildable", "extract")}
    assert "podrun_agent.prepare.facts" in modules
    assert not (unused | {"tempfile", "tarfile", "platform", "configparser"}) & (modules - imported("pass"))


def test_a_program_needs_neither_the_schema_of_train_yaml_nor_that_of_a_pod_file() -> None:
    """They took half of the time of podrun's imports for a user's program."""
    words = ["--slurm=time=10", "--slice=cpu-2x1", "--dry-run", "--", "python", "-c", "pass"]
    run = f"with contextlib.suppress(SystemExit): main({words})"
    for statements in (
        ["import podrun.launcher.engines.slurm.in_job, podrun.launcher.run.stage"],
        ["from podrun.launcher.cli.root import main", run],
    ):
        modules = imported("import contextlib", *statements)
        assert "podrun.launcher.plan.spec" in modules
        assert "podrun.runtime.queries" not in modules  # for commands that ask the runtime on this machine
        assert not {"pydantic", "yaml", "importlib.metadata"} & (modules - imported("pass"))


def test_a_program_on_a_simulated_pod_needs_neither_packing_nor_the_process_of_a_hold() -> None:
    """Nothing is sent, and most pods are not held."""
    words = ["--slice=cpu-2x1", "--simulate", "--dry-run", "--", "true"]
    run = f"with contextlib.suppress(SystemExit): main({words})"
    modules = imported("import contextlib", "from podrun.launcher.cli.root import main", run)
    assert "podrun.launcher.run.attempts" in modules
    unused = {f"podrun.launcher.{name}" for name in ("run.pack", "staging.bundle", "hold.transport", "hold.relay")}
    assert not (unused | {"tarfile", "statistics", "secrets", "dacite"}) & (modules - imported("pass"))


def test_podrun_itself_is_light() -> None:
    """A user program imports it first; so does whoever has no JAX."""
    assert third_party(imported("import podrun")) == set()


def test_podrun_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "podrun", "slices", "v3-8"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "v3-8" in done.stdout


def test_all_of_the_runtime_imports_nothing_of_the_launcher() -> None:
    """A worker's host needs no SSH library, and imports run one way."""
    modules = imported(*(f"import {name}" for name in RUNTIME_MODULES))
    assert "podrun.runtime.train" in RUNTIME_MODULES
    assert set(RUNTIME_MODULES) <= modules
    assert "jax" in modules
    assert not modules & LAUNCHER_ONLY


def test_the_contract_is_standard_library_only() -> None:
    """Both sides import it, also where nothing is installed; the schema adds pydantic and nothing of JAX."""
    shared = ("contract", "lines", "injection")
    assert third_party(imported(*(f"import podrun.runtime.{name}" for name in shared))) == set()
    modules = imported("from podrun.runtime.config import Config")
    assert not modules & JAX
    assert "pydantic" in third_party(modules)


def test_the_agent_is_plain_python_3_8() -> None:
    """It is sent to hosts as it is: old grammar, old names, the standard library and its own package only."""
    for path in AGENT:
        tree = ast.parse(path.read_text(), str(path), feature_version=(3, 8))
        for node in ast.walk(tree):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= STANDARD, where
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").partition(".")[0] in STANDARD, where
            elif isinstance(node, ast.ImportFrom):
                folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                inside = folder == AGENT_FOLDER or AGENT_FOLDER in folder.parents
                assert inside and (folder.is_dir() or folder.with_suffix(".py").is_file()), where
            elif isinstance(node, ast.Attribute):
                assert node.attr not in NEWER_THAN_3_8, f"{where}: {node.attr}"
        is_lazy = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
        exempt = path.stem in READ_AS_CHECKS or path.name == "__init__.py"
        assert is_lazy or exempt, f"{path}: new annotations fail in Python 3.8"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that hosts get."""
    name, data = agent_file()
    path = tmp_path_factory.mktemp("agent") / name
    path.write_bytes(data)
    return path


IMPORT_ALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module("podrun_agent." + name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def import_all(python: str, agent: Path) -> set[str]:
    """Top-level modules that an isolated interpreter has after importing all of the agent."""
    modules = [".".join(p.relative_to(AGENT_FOLDER).with_suffix("").parts) for p in AGENT if p.stem != "__init__"]
    command = [python, "-I", "-S", "-c", IMPORT_ALL, str(agent), *modules]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_agent_starts_isolated(agent: Path) -> None:
    """Without site-packages and without the user's environment, as on a host where nothing is installed."""
    command = [sys.executable, "-I", "-S", "-c", agent_file_module._START, str(agent), "no-such", "command"]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert (done.returncode, done.stdout) == (1, MARK.decode())
    assert done.stderr == "agent: unknown command ['no-such', 'command']\n"
    assert import_all(sys.executable, agent) - set(sys.stdlib_module_names) == {"__main__", "podrun_agent"}


def test_the_agent_imports_in_python_3_8(agent: Path) -> None:
    """The real one, where there is one."""
    assert "podrun_agent" in import_all(other_python("3.8"), agent)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_an_older_python_is_named(agent: Path, version: str) -> None:
    """It gets as far as the sentence that says so: what it reads first has no newer syntax."""
    python = other_python(version)
    done = subprocess.run([python, "-c", agent_file_module._START, str(agent), "facts"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"podrun needs Python 3.8 or newer for its agent; this is {version}.")


def test_help(sandbox: Sandbox) -> None:
    """`podrun --help` explains itself."""
    done = sandbox.podrun("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "podrun --slice v3-32" in done.stdout
    assert all(word in done.stdout for word in ("--simulate", "--dry-run", "slices", "schema", "Exit codes"))

"""The order of the rooms: each imports only rooms below it, and nothing imports in a circle."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from podrun.launcher.agent.base import protocol
from podrun.runtime import contract
from podrun.runtime.contract import WorkerEnv

ROOT = Path(__file__).parents[1]
FLOORS = {
    "api": ("session", "checkpoint", "data", "leaving", "loop", "function_call", "launching", "submitting", "__main__"),
    "launcher": (
        *(
            "instrument",
            "agent",
            "pod",
            "yamlfile",
            "transport",
            "inventory",
            "plan",
            "remote",
            "hold",
            "staging",
            "rundir",
            "view",
            "results",
            "report",
            "watch",
            "templates",
            "datasets",
        ),
        *("preflight", "request", "attempt", "run", "engines", "kubernetes", "supervise"),
        *("compare", "sweep", "fit", "commands", "cli"),
    ),
    "launcher/agent": ("base", "host", "prepare", "run", "results", "query", "main"),
    "runtime": (
        *(
            "contract",
            "events",
            "safe_name",
            "manifests",
            "disk_cache",
            "executable_list",
            "target",
            "layout_facts",
            "job_report",
            "queries",
            "wording",
            "lines",
            "injection",
            "state",
            "array_names",
            "plugins",
            "ranking",
            "majority",
            "config",
            "callbacks",
            "worker",
            "certificate",
            "distributed",
            "devices",
            "device_memory",
            "compiler_package",
            "compiler",
            "executables",
            "replicas",
            "bandwidth",
            "models",
            "data",
            "tasks",
            "weights",
            "trainable",
            "optim",
        ),
        *(
            "parallel",
            "measure",
            "storage",
            "prepare",
            "checkpoint",
            "memory",
            "results",
            "export",
            "generate",
            "evaluate",
            "batches",
            "inspect_job",
            "compile_job",
            "job_counts",
            "save_pace",
            "feed",
            "verification",
            "replay",
            "train",
            "__main__",
        ),
    ),
}
"""Rooms from the lowest to the highest. A file of the runtime that stands alone is a room, too."""
SHARED = {
    *(
        "base/boot",
        "base/message",
        "base/to_agent",
        "base/from_agent",
        "base/protocol",
        "base/schema",
        "base/places",
        "base/private",
        "base/disk",
        "base/holder",
        "base/python_version",
    ),
    *("prepare/extract", "prepare/data_set", "host/google", "host/devices", "host/gpus"),
    *("base/processes", "run/progress"),  # for the program of a Kubernetes container, which stands in for an agent
}
"""Files of the agent that the launcher imports: what both sides say, where things are on a host, what data travels as, how
Google's metadata server and nvidia-smi are asked, which accelerators a machine has, how a full disk and a host in use are
told, and three rules that both sides keep:
what is a version of Python and not a path, whose files are whose and which links stay inside a folder."""


def imports(package: str, path: Path, tree: ast.AST) -> set[str]:
    """Return the files of the package that a file of it imports, anywhere in it: `remote/session`."""
    root = ROOT / package
    here = path.relative_to(root).parts[:-1]
    files = set()
    for_types = _for_types(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level or node in for_types:
            continue
        folder = root.joinpath(*here[: len(here) - node.level + 1], *(node.module or "").split("."))
        for alias in node.names:
            for target in (folder / alias.name, folder, folder / "__init__"):
                if target.with_suffix(".py").is_file():
                    files.add(target.relative_to(root).as_posix())
                    break
    return files


def _for_types(tree: ast.AST) -> set[ast.stmt]:
    """Return the imports for type checkers alone: they make no circle, for they are not run."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    return {node for block in blocks for node in block.body}


@cache
def graph(package: str) -> dict[str, set[str]]:
    """Return what each file of the package imports."""
    root = ROOT / package
    return {
        path.relative_to(root).with_suffix("").as_posix(): imports(package, path, ast.parse(path.read_text()))
        for path in sorted(root.rglob("*.py"))
    }


def climbs(package: str, arrows: dict[str, set[str]]) -> list[str]:
    """Return the imports that lead upward, or into a part of the agent that is its own."""
    floors = FLOORS[package]
    rows = []
    for file, targets in arrows.items():
        for target in sorted(targets):
            room, other = file.partition("/")[0], target.partition("/")[0]
            if room == other or room == "__init__":
                continue
            if floors.index(other) >= floors.index(room):
                rows.append(f"{file} imports {target}, which is above it")
            if package == "launcher" and other == "agent" and target.partition("/")[2] not in SHARED:
                rows.append(f"{file} imports {target}, which is the agent's own")
    return rows


@pytest.mark.parametrize("package", FLOORS)
def test_a_room_imports_only_rooms_below_it(package: str) -> None:
    assert climbs(package, graph(package)) == []


def test_an_upward_import_is_found() -> None:
    """At the top of a file and in a function of it."""
    path = ROOT / "launcher" / "pod" / "pod.py"
    for line in ("from ..cli.guard import guard", "def f():\n    from ..cli import guard"):
        arrows = {"pod/pod": imports("launcher", path, ast.parse(line))}
        assert climbs("launcher", arrows) == ["pod/pod imports cli/guard, which is above it"]
    arrows = {"pod/pod": imports("launcher", path, ast.parse("from ..agent.run.relay import relay"))}
    assert climbs("launcher", arrows) == ["pod/pod imports agent/run/relay, which is the agent's own"]


@pytest.mark.parametrize("package", FLOORS)
def test_nothing_is_imported_in_a_circle(package: str) -> None:
    """Imports within functions count as well. `static_order` raises CycleError, which names the circle."""
    assert list(TopologicalSorter(graph(package)).static_order())


def test_no_engine_imports_another() -> None:
    """All about one engine stands in one folder: it can go, or come, alone."""
    engine = {file: "/".join(file.split("/")[:2]) for file in graph("launcher") if file.count("/") > 1}
    rows = [
        f"{file} imports {target}"
        for file, targets in graph("launcher").items()
        for target in sorted(targets)
        if file.startswith("engines/") and target.startswith("engines/")
        if file in engine and target in engine and engine[file] != engine[target]
    ]
    assert rows == []
    assert {"engines/tpu", "engines/kubernetes", "engines/slurm"} <= set(engine.values())


def test_no_room_asks_for_a_transport_by_its_name() -> None:
    """Differences between kinds of pods are traits, so that an engine is its folder and a line in each table."""
    rows = []
    for path in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(map(_is_name, [node.left, *node.comparators])):
                rows += [
                    f"{path.relative_to(ROOT)}:{node.lineno} asks for {part.attr}"
                    for part in (node.left, *node.comparators)
                    if isinstance(part, ast.Attribute) and part.attr == "transport"
                ]
    assert rows == []


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_only_files_that_stay_here_import_the_launcher() -> None:
    """The others run on hosts, which have no launcher."""
    importers = {path.stem for path in (ROOT / "api").glob("*.py") if "podrun.launcher" in path.read_text()}
    assert importers <= {"__main__", "launching", "submitting"}


@pytest.mark.parametrize("package", ["launcher", "runtime"])
def test_nothing_imports_the_api(package: str) -> None:
    """Only user programs do."""
    wrong = re.compile(
        r"^\s*(import podrun$|from podrun import |(from|import) podrun\.(?!launcher|runtime))", re.MULTILINE
    )
    assert [path.name for path in (ROOT / package).rglob("*.py") if wrong.search(path.read_text())] == []


def test_the_launcher_has_no_loose_files() -> None:
    loose = {path.name for path in (ROOT / "launcher").glob("*.py")}
    assert loose == {"__init__.py"}


@pytest.mark.parametrize("package", FLOORS)
def test_no_module_is_called_like_one_of_the_standard_library(package: str) -> None:
    names = {path.stem for path in (ROOT / package).rglob("*")} - {"__init__", "__main__", "__pycache__"}
    assert names & set(sys.stdlib_module_names) == set()


def test_agent_and_runtime_spell_their_variables_alike() -> None:
    """Neither may import the other, so the names that they share stand in both."""
    worker = WorkerEnv("r", 0, "h", 0, 1, (0,), "cpu-1x1", Path("d")).to_env()
    assert {protocol.ENV_RUN, protocol.ENV_HOST, protocol.ENV_DIR} <= worker.keys()
    assert (protocol.ENV_WORKDIR, protocol.ENV_PID) == (contract.ENV_WORKDIR, contract.ENV_PID)


@pytest.mark.parametrize("package", FLOORS)
def test_tests_are_in_the_rooms_that_they_test(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / "tests" / package).glob("*/__init__.py")}
    assert folders <= {*FLOORS[package]}


def test_no_test_file_imports_from_another() -> None:
    """What several share stands in a module that is named after its content, or in `conftest.py`."""
    other = re.compile(r"^\s*(?:from|import) [^#\n]*\btest_\w+", re.MULTILINE)
    lines = {path: other.findall(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    assert {path.name: found for path, found in lines.items() if found} == {}


def test_what_the_newest_python_runs_is_there() -> None:
    """.ci/newest names files and folders by hand: after a rename it would stop there, long after `make test` has passed."""
    named = re.findall(r"tests/\S+", (ROOT / ".ci/newest").read_text())
    assert named and [path for path in named if not (ROOT / path).exists()] == []

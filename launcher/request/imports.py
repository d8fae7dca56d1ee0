"""Find the packages that a user's script certainly imports, from its text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from ..plan.program import OWN_PYTHON, Program
from .program_checks import script_of

_LARGEST = 1 << 20  # bytes of a file that is read
_MOST = 200  # files of the project that are read


def imported_packages(program: Program, folder: Path) -> dict[str, str] | None:
    """Return the modules from outside the project that the script imports at its start, each with its first `file:line`.

    Only imports that run unconditionally count: at the top of the script and of the project's modules that it imports.

    Returns:
        The modules; None if the run's Python runs no script, or if the script cannot be read or changes `sys.path`,
        after which any folder may have the modules.
    """
    script = script_of(program.argv) if program.argv[0] in OWN_PYTHON else None
    if script is None:
        return None
    start = folder / script
    search = (start.parent, folder)
    packages: dict[str, str] = {}
    files, seen = [start], {start}
    while files:
        file = files.pop()
        tree = _parsed(file)
        if tree is None or len(seen) > _MOST:
            return None
        for name, line in _imports(tree.body):
            files_here = [
                path
                for place in search
                for path in (place / f"{name}.py", place / name / "__init__.py")
                if path.is_file()
            ]
            if files_here or any((place / name).is_dir() for place in search):
                files += [path for path in files_here[:1] if path not in seen]
                seen.update(files_here[:1])
            elif name not in sys.stdlib_module_names and name != "podrun":
                packages.setdefault(name, f"{file.relative_to(folder) if folder in file.parents else file}:{line}")
    return packages


def _parsed(file: Path) -> ast.Module | None:
    """Return the syntax tree; None if the file cannot be read, has a syntax error, or changes `sys.path`."""
    try:
        if file.stat().st_size > _LARGEST:
            return None
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = ("path", "meta_path", "addsitedir")
    return (
        None if any(isinstance(node, ast.Attribute) and _changes_path(node, names) for node in ast.walk(tree)) else tree
    )


def _changes_path(node: ast.Attribute, names: tuple[str, ...]) -> bool:
    return node.attr in names and isinstance(node.value, ast.Name) and node.value.id in ("sys", "site")


def _imports(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Yield (module, line) for the top-level modules that these statements import unconditionally."""
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from ((alias.name.partition(".")[0], statement.lineno) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            yield statement.module.partition(".")[0], statement.lineno
        elif isinstance(statement, ast.With):
            yield from _imports(statement.body)

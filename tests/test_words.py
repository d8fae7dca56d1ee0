"""Plain words: a docstring begins with what something does or is, and a name says what it holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRAGMENT = re.compile(r"(What|Where|Whether|How|Of|Why|Who|Which|Whose|When|A \w+ that|Everything|Those|The same)\b")
SAYS_NOTHING = {"found", "said", "there", "own"}
PRODUCT = ("api", "launcher", "runtime", "benchmarks")


@cache
def trees(*folders: str) -> dict[str, ast.Module]:
    """Return the syntax tree of each file of the folders."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the strings that stand alone: those of modules, classes, functions and fields."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip()
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):  # expressions hold no statements
            yield from docstrings(node)


@pytest.mark.parametrize("folders", [PRODUCT, ("tests",)], ids=["product", "tests"])
def test_docstrings_begin_with_a_sentence(folders: tuple[str, ...]) -> None:
    texts = [text for tree in trees(*folders).values() for text in docstrings(tree)]
    fragments = [text.splitlines()[0] for text in texts if FRAGMENT.match(text)]
    assert len(fragments) < 0.02 * len(texts), fragments


def test_no_variable_says_nothing() -> None:
    named = [
        f"{path}:{node.lineno} {node.id}"
        for path, tree in trees(*PRODUCT).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in SAYS_NOTHING
    ]
    assert named == []

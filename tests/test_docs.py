"""The documentation points only at what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page: Path) -> None:
    """Every relative link leads to a file."""
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_architecture_names_the_files() -> None:
    """Every module is in docs/architecture.md, by its name or its folder's."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    for module in [path for folder in ("api", "launcher", "runtime") for path in ROOT.glob(f"{folder}/*.py")]:
        assert module.name in ("__init__.py",) or f"`{module.name}`" in text, module.name
    for folder in [*ROOT.glob("launcher/*/"), *ROOT.glob("runtime/*/")]:
        assert folder.name == "__pycache__" or f"`{folder.name}/`" in text, folder.name

"""The documentation points only at what is there."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.runtime.config import train_schema

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page: Path) -> None:
    """Every relative link leads to a file."""
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_architecture_names_the_rooms() -> None:
    """Every folder of the product, and every file that stands alone, is in the map, which stays short enough to be read."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    for module in [path for folder in ("api", "launcher", "runtime") for path in ROOT.glob(f"{folder}/*.py")]:
        assert module.name in ("__init__.py",) or f"`{module.name}`" in text, module.name
    for folder in [*ROOT.glob("launcher/*/"), *ROOT.glob("launcher/engines/*/"), *ROOT.glob("runtime/*/")]:
        assert folder.name == "__pycache__" or f"`{folder.name}/`" in text, folder.name
    assert len(text.split()) <= 1500


def test_architecture_names_what_the_launcher_imports_of_the_runtime() -> None:
    """All of it, and no more, so that the wall between the two is known."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = text.partition("Of the runtime it imports only modules")[2].partition("The runtime never imports")[0]
    sources = [path.read_text() for path in (ROOT / "launcher").rglob("*.py") if "instrument" not in path.parts]
    imported = {name for source in sources for name in re.findall(r"from podrun\.runtime\.(\w+)", source)}
    imported |= {name for source in sources for name in re.findall(r"from podrun\.runtime import (\w+)", source)}
    assert set(re.findall(r"`(\w+)`", named)) == imported


def test_pages_made_from_the_code_are_current() -> None:
    for name, text in runpy.run_path(str(ROOT / "docs" / "write_pages.py"))["pages"]().items():
        assert (ROOT / "docs" / name).read_text() == text, f"docs/{name} is not what the code says: run `make docs`"


def test_the_site_is_built_and_loads_nothing(tmp_path: Path) -> None:
    """No link leads nowhere, and nothing comes from another server."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 15 and (tmp_path / "examples" / "own_loop.py").is_file()
    for page in pages:
        loaded = re.findall(
            r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["'](https?:|//)[^"']*""", page.read_text()
        )
        assert loaded == [], page


def test_every_key_of_train_yaml_is_described() -> None:
    """In a sentence, which `podrun schema` and docs/keys.md show."""
    schema = train_schema()
    sections = {"": schema, **schema["$defs"]}
    keys = {f"{name}.{key}": node for name, section in sections.items() for key, node in section["properties"].items()}
    assert len(keys) > 150
    wrong = [key for key, node in keys.items() if not re.match(r"[A-Z].*[.)]$", node.get("description", ""))]
    assert wrong == []
    assert [name for name, section in sections.items() if not section.get("description", "").endswith(".")] == []


def test_the_schema_takes_sections_by_name() -> None:
    """Where a section stands under a name of the user's, its short form and one without `name` are valid, too."""
    schema = train_schema()
    for values in (schema["properties"]["validation"], schema["$defs"]["MixtureData"]["properties"]["sources"]):
        text, *choices = values["additionalProperties"]["anyOf"]
        assert text == {"type": "string"} and {"$ref": "#/$defs/PreparedData"} in choices

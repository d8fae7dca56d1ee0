"""Hooks of mkdocs: pages that are not in docs/, and links that lead out of it."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import podrun

ROOT = Path(__file__).parent.parent
_PAGES = {"index.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
"""Maps pages of the site to the files at the top of the project that they are."""
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the top of the project, and the source files that pages link to."""
    sources = {name: (ROOT / file).read_text(encoding="utf-8") for name, file in _PAGES.items()}
    for name, text in sources.items():
        files.append(File.generated(config, name, content=_from_docs(text)))
    files.append(File.generated(config, "api.md", content=_api()))
    texts = [*sources.values(), *(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))]
    targets = {_plain(match[1]) for text in texts for match in _LINK.finditer(text)}
    for target in sorted(targets):
        if target not in _PAGES.values() and not target.endswith(".md") and (ROOT / target).is_file():
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page with links to what stands above docs/ led to where the site has it."""
    return _LINK.sub(lambda match: f"]({_on_site(match[1])}{match[2] or ''})", markdown)


def _api() -> str:
    """Return the page about the names of the package podrun, which are described where they are defined."""
    names = sorted(podrun.__all__, key=lambda name: name[0].isupper())  # functions, then classes
    parts = ["# Python API", "`import podrun` imports neither JAX nor the launcher; each name does when it is used."]
    return "\n\n".join([*parts, *(f"::: podrun.{name}" for name in names)])


def _from_docs(text: str) -> str:
    """Return a page of the top of the project as one of docs/."""
    return _LINK.sub(lambda match: f"]({match[1].removeprefix('docs/')}{match[2] or ''})", text)


def _plain(target: str) -> str:
    return target.removeprefix("../")


def _on_site(target: str) -> str:
    """Return where the site has the target of a link."""
    plain = _plain(target)
    return {file: name for name, file in _PAGES.items()}.get(plain, plain)

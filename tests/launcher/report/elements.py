"""The elements of a page."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Collects the elements of a file, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

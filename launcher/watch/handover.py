"""Open a browser at an address that nobody else on this machine may learn, not even from the list of processes."""

from __future__ import annotations

import html
import shutil
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAGE = """<!DOCTYPE html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>podrun watch</title>
<a href="{address}">podrun watch</a>
"""


@contextmanager
def handed_over(address: str) -> Iterator[Path]:
    """Write a page that leads to `address`, and remove it at the end. Only this user can read it. Raises OSError.

    A browser is given the page's path, since all users of a machine see its command line.
    """
    folder = Path(tempfile.mkdtemp(prefix="podrun-watch-"))  # of mode 0700
    try:
        page = folder / "open.html"
        page.touch(0o600)
        page.write_text(_PAGE.format(address=html.escape(address)), encoding="utf-8")
        yield page
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_page(page: Path) -> bool:
    """Open the page in the user's browser; return whether there is one."""
    return webbrowser.open(page.as_uri())

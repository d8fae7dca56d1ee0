"""Open a browser at an address that other users must not see, not even in the list of processes."""

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
def redirect_page(address: str) -> Iterator[Path]:
    """Write a page that redirects to `address`; remove it at the end of the `with` block. Raises OSError.

    Only this user can read it. The browser's command line, which all users can see, then has only the path of the page.
    """
    folder = Path(tempfile.mkdtemp(prefix="podrun-watch-"))  # mode 0700
    try:
        page = folder / "open.html"
        page.touch(0o600)
        page.write_text(_PAGE.format(address=html.escape(address)), encoding="utf-8")
        yield page
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_page(page: Path) -> bool:
    """Open the page in the user's browser; return False if there is none."""
    return webbrowser.open(page.as_uri())

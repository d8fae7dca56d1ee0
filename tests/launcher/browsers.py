"""Chromium without a screen, for tests that look at pages."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WAIT = 120_000  # milliseconds, on a machine that is busy


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; skip the test where there is none, but not in CI."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        reason = "needs Debian's chromium, and playwright: pip install playwright"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=WAIT)
        yield browser
        browser.close()

"""Additions that make a page live: the line below the title, style, script, and the address of its messages. PURE."""

from __future__ import annotations

from importlib.resources import files
from urllib.parse import quote, urlencode

from ..report.write_html import Live


def live_run(run: str, number: int, state: str) -> Live:
    """Return the additions to the page of a run after message `number`."""
    at = quote(run, safe="")
    return _live(
        '<a href="../">All runs</a><button id="stop" type="button" hidden>Stop the run</button>',
        {"news": f"{at}/news", "after": number, "state": state, "stop": f"{at}/stop", "run": run},
    )


def live_index(number: int) -> Live:
    return _live("", {"news": "news", "after": number})


def live_overlay(runs: list[str], number: int) -> Live:
    query = urlencode([("run", run) for run in runs])
    return _live('<a href="./">All runs</a>', {"news": f"overlay/news?{query}", "after": number})


def _live(links: str, data: dict[str, str | int]) -> Live:
    header = f'<p class="live"><span id="live" class="quiet" role="status">Live</span>{links}</p>'
    return Live(header, _file("live.css"), _file("live.js"), data)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")

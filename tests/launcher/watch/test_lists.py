"""The list of runs, and pages of several: over real connections, on runs that are being recorded."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.report.curves import key_of
from podrun.launcher.report.records import StepRecord
from podrun.launcher.watch import overlay_source
from podrun.launcher.watch.overlay_source import MAX_RUNS, thinned
from podrun.launcher.watch.samples import sample_metric

from ..rundir.made import ID, event, make, record
from .conftest import Client, LiveRun, data_of, live_run

OTHER = "20260102-000000-beef"


def rows(html: str) -> dict[str, str]:
    """Return the rows of the list by the run's id."""
    return dict(re.findall(r'<tr id="run-([^"]+)">(.*?)</tr>', html))


def test_the_list_of_runs(client: Client, run: LiveRun) -> None:
    """The newest first; a run that has begun since comes by itself, and so does a new step."""
    run.step(1, 3.0)
    run.step(2, 0.25)
    listed = rows(client.ask("").text)
    assert [*listed] == [ID]
    for part in (f'href="run/{ID}"', "running", "2/9", "0.25", "<polyline"):
        assert part in listed[ID], part
    news = client.news("")
    with live_run(OTHER) as other:
        other.step(7, 1.5)
        message: dict[str, Any] = next(m for m in news if OTHER in m["parts"]["runs"])
        assert [*rows(message["parts"]["runs"])] == [OTHER, ID]
        other.end()
        message = next(m for m in news if "done" in m["parts"]["runs"])
        assert "7/9" in rows(message["parts"]["runs"])[OTHER]


def test_runs_laid_over_each_other(client: Client, run: LiveRun) -> None:
    run.step(1, 3.0, f1=0.5)
    with live_run(OTHER) as other:
        other.step(1, 2.0, f1=0.25)
        path = f"overlay?run={OTHER}&run={ID}"
        charts = {chart["key"]: chart for chart in data_of(client.ask(path).text)["charts"]}
        assert [(s["name"], s["colour"]) for s in charts["loss"]["series"]] == [
            ("abcd", 0),
            ("beef", 1),
        ]
        assert [s["name"] for s in charts[key_of("f1")]["series"]] == ["abcd", "beef"]
        after = data_of(client.ask(path).text)["live"]["after"]
        news = client.messages(f"overlay/news?run={ID}&run={OTHER}&after={after}")
        other.step(2, 1.0)
        assert len(next(news)["data"]["charts"][0]["series"]) == 2


def test_the_list_says_what_a_run_is(client: Client) -> None:
    """Its name and tags, its slice, when it began, how long it lasted, and why it has failed."""
    directory = make()
    spec = json.loads((directory.path / "spec.json").read_text())
    spec["label"] = {"name": "lr=1e-3", "tags": ["sweep", "<b>"], "note": ""}
    (directory.path / "spec.json").write_text(json.dumps(spec))
    record(
        directory,
        event("start", time=1000.0, slice="cpu-2x2"),
        event("end", time=1090.0, code=1, host="host-0", message="failed: host-0: <boom> [exit code 1]"),
    )
    row = rows(client.ask("").text)[ID]
    for part in (
        f'<a href="run/{ID}">lr=1e-3</a>',
        ">host-0: &lt;boom&gt;</span>",
        ">sweep<",
        "&lt;b&gt;",
        ">failed</span>",
        "cpu-2x2",
        "1970",
        '<td data-order="90.0">1m 30s</td>',
    ):
        assert part in row, part


def test_what_runs_differ_in_is_on_top(client: Client) -> None:
    """By the paths of keys and the options of programs; what they have in common is left out."""
    for run_id, name, words in ((ID, "small", ["python", "a.py"]), (OTHER, "", ["python", "a.py", "--lr", "1 e"])):
        directory = make(run_id)
        spec = json.loads((directory.path / "spec.json").read_text())
        spec["job"]["argv"], spec["label"]["name"] = words, name
        (directory.path / "spec.json").write_text(json.dumps(spec))
        record(directory, event("start"))
    page = client.ask(f"overlay?run={ID}&run={OTHER}").text
    assert page.index("<h2>What differs</h2>") < page.index('id="data"')
    differs = page.partition("<h2>What differs</h2>")[2].partition("</section>")[0]
    assert "</i>small</th>" in differs and "</i>beef</th>" in differs
    assert differs.count("<tr><td>") == 1 and "<td>--lr</td>" in differs
    assert "<code>-</code></td><td><code>&#x27;1 e&#x27;</code>" in differs


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (
            "python a.py --lr 0.1 --bias=-1 --low -2 --fast -q x",
            {"--lr": "0.1", "--bias": "-1", "--low": "-2", "--fast": "true"},
        ),
        ("python -m a b --last", {"--last": "true"}),
    ],
)
def test_options_of_a_program(words: str, options: dict[str, str]) -> None:
    directory = make()
    spec = json.loads((directory.path / "spec.json").read_text())
    spec["job"]["argv"] = words.split()
    (directory.path / "spec.json").write_text(json.dumps(spec))
    settings = directory.settings()
    assert {key: text for key, text in settings.items() if key.startswith("--")} == options
    assert settings["program"] == ("python a.py -q x" if "--lr" in options else "python -m a b")


def test_the_last_values_of_runs_over_each_other(client: Client, run: LiveRun) -> None:
    run.step(3, 2.5)
    with live_run(OTHER) as other:
        other.step(1, 1.25)
        other.record(event("eval", 0, step=1, loss=1.75))
        table = client.ask(f"overlay?run={ID}&run={OTHER}").text.partition("<h2>Runs</h2>")[2].partition("</table>")[0]
        assert re.findall(r'<t[hd] class="number">(.*?)</t', table) == [
            *("Step", "Loss", "Validation loss"),
            *("3/9", "2.500", "-", "1/9", "1.250", "1.750"),
        ]


def test_a_loss_that_is_nan_is_said(client: Client, run: LiveRun) -> None:
    """In the list and over each other, in place of the last finite one; sorted, the run comes last."""
    run.step(1, 2.5)
    run.step(2, math.nan)
    run.record({**event("eval", 0, step=2), "val/f1": 0.5})
    assert '<td data-order="">loss nan</td>' in rows(client.ask("").text)[ID]
    with live_run(OTHER) as other:
        other.step(1, 1.25)
        table = client.ask(f"overlay?run={ID}&run={OTHER}").text.partition("<h2>Runs</h2>")[2].partition("</table>")[0]
        assert re.findall(r'<t[hd] class="number">(.*?)</t', table) == [
            *("Step", "Loss", "val/f1"),
            *("2/9", "nan", "0.5000", "1/9", "1.250", "-"),
        ]


def test_nested_keys_of_a_job() -> None:
    """They are paths; a damaged record has none."""
    directory = make()
    spec = json.loads((directory.path / "spec.json").read_text())
    spec["job"] = {"optimizer": {"learning_rate": 0.1}, "steps": 5, "eval": {}, "launch": {"env": {"KEY": "s"}}}
    (directory.path / "spec.json").write_text(json.dumps(spec))
    assert directory.settings() == {"slice": "cpu-2x2", "optimizer.learning_rate": "0.1", "steps": "5", "eval": "{}"}
    for text in ("{", "[]", '{"job": 1, "pod": {"slice": 2}}'):
        (directory.path / "spec.json").write_text(text)
        assert directory.settings().keys() <= {"slice"}


@pytest.mark.parametrize("path", ["overlay", "overlay?" + "&".join(f"run={n}" for n in range(MAX_RUNS + 1))])
def test_none_or_too_many_runs_are_refused(client: Client, path: str) -> None:
    answer = client.ask(path)
    assert answer.status == 404 and answer.text.startswith(f"podrun: choose up to {MAX_RUNS} runs in the list, not ")


def test_a_run_with_a_hostile_name_is_only_text(client: Client) -> None:
    directory = make()
    spec = json.loads((directory.path / "spec.json").read_text())
    spec["job"]["argv"] = ["<script>alert(1)</script>", '"onload="x']
    (directory.path / "spec.json").write_text(json.dumps(spec))
    row = rows(client.ask("").text)[ID]
    assert "&lt;script&gt;alert(1)" in row and "<script" not in row and '"onload="x' not in row


@pytest.mark.parametrize("steps", [0, 1, 30, 100, 9000])
def test_losses_from_all_over_a_record(tmp_path: Path, steps: int) -> None:
    """In order, few, and the last one among them, whatever the size of the record."""
    file = tmp_path / "events.jsonl"
    pad = "x" * 100
    with file.open("w") as record:
        for step in range(1, steps + 1):
            for process in (0, 1):
                place = f'"pad": "{pad}", "host": "h", "process": {process}}}\n'
                record.write(
                    f'{{"event": "step", "time": 1.0, "step": {step}, "steps": null, "loss": {step}.0, {place}'
                )
        record.write('{"event": "step", "time"')
    losses = sample_metric(file, "loss")
    assert losses == sorted(set(losses)) and losses[-1:] == [float(steps)][: len(losses)]
    assert min(steps, 40) <= len(losses) <= 100
    assert sample_metric(tmp_path / "nothing", "loss") == []


def test_thinning_keeps_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_source, "_POINTS", 4)
    steps = [StepRecord({"step": n, "loss": float(n)}, float(n), float(n) + 0.5) for n in range(10)]
    assert [(s.values["step"], s.lowest, s.highest) for s in thinned(steps)] == [
        *((2, 0, 2.5), (5, 3, 5.5), (8, 6, 8.5), (9, 9, 9.5))
    ]
    assert thinned([]) == []

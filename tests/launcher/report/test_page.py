"""The page as a file: what it says, and that nothing of a run can be more than text in it."""

from __future__ import annotations

import base64
import json
import math
import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.report.curves import key_of
from podrun.launcher.report.encode import numbers
from podrun.launcher.report.make_page import page_of_run, page_of_workdir
from podrun.launcher.report.records import MAX_STEPS, read_metrics, read_records
from podrun.launcher.report.what_was_run import tables_of
from podrun.launcher.report.write_html import html_of
from podrun.launcher.rundir.runs import RunDirectory, all_runs
from podrun.launcher.rundir.work_tree import WorkTree
from podrun.runtime.config import Config
from podrun.runtime.contract import UserError

from ..rundir.made import event, make, record, spec_of
from .elements import Elements
from .made import BEGIN, hostile_run, phase, run_with_restart, run_with_samples, start, steps


def data_of(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    data: dict[str, Any] = json.loads(match[1])
    return data


def floats(code: str, text: str) -> list[float]:
    return array(code, base64.b64decode(text)).tolist()


def html(directory: RunDirectory) -> str:
    return html_of(page_of_run(directory))


def test_the_page_of_a_run_with_a_restart() -> None:
    directory = run_with_restart()
    directory.work_tree.write_text(json.dumps(WorkTree("c0ffee", "main", 2, 10, 3)._asdict()))
    (directory.logs / "host-0.log").write_text("first\nlast line\n")
    text = html(directory)
    for part in ("<h2>Done</h2>", "was ended by SIGKILL", "c0ffee", "2 files, 10 lines added", "last line"):
        assert part in text, part
    data = data_of(text)
    charts = {chart["key"]: chart for chart in data["charts"]}
    assert charts.keys() >= {"loss", "learning_rate", "throughput", "step_time", "cpu", "memory", "network"}
    training, validation = charts["loss"]["series"]
    assert floats("d", data["places"][training["x"]]) == [*range(1, 9), *range(5, 13)]
    assert floats("f", training["y"])[:2] == [4.0, 2.0]
    assert floats("d", data["places"][validation["x"]]) == [4.0] and floats("f", validation["y"]) == [1.5]
    assert charts["loss"]["marks"] == [[4, "evaluate"], [4, "save"], [12, "save"], [4, "restart"]]
    assert floats("f", charts["cpu"]["series"][0]["y"]) == [50.0] * 3


def test_white_space_in_a_value_is_seen() -> None:
    """A line break is no line break in the table of the config."""
    job = Config.model_validate({"steps": 9, "batch_size": 8, "sample": {"prompt": "def "}})
    (_, config) = tables_of("r", replace(spec_of(), job=job), None, [])
    assert ("sample.prompt", '"def "  (default: "\\n")') in config.rows


def test_nothing_is_loaded_and_no_other_script_may_run() -> None:
    elements = Elements(html(run_with_restart()))
    assert not {"link", "img", "iframe", "object", "a", "form"} & set(elements.names)
    assert not {"src", "href", "style", "onload"} & {name for name, _ in elements.attributes}
    policy = dict(elements.attributes)["content"] or ""
    policies = [value for name, value in elements.attributes if name == "content" and value and "script-src" in value]
    assert len(policies) == 1 and policies[0].startswith("default-src 'none'; ") and "unsafe" not in policies[0], policy


def test_texts_of_a_run_are_texts() -> None:
    """Whatever they hold: elements, ends of scripts, escapes of terminals, numbers that are none."""
    text, harmless = html(hostile_run()), html(run_with_restart())
    assert set(Elements(text).names) <= {*Elements(harmless).names, "p", "pre", "a"}
    assert [value for name, value in Elements(text).attributes if name == "href"] == ["#failed"]
    assert text.count("<script") == text.count("</script") == 2
    assert "\x1b" not in text and "alert(1)" in text
    data = data_of(text)
    training = data["charts"][0]["series"][0]
    assert floats("d", data["places"][training["x"]]) == [3.0] and math.isfinite(floats("f", training["y"])[0])


@pytest.mark.parametrize(
    "events",
    [
        [],
        [start(0, 0)],
        [start(0, 0), event("end", time=BEGIN, code=2, message="failed: no such host [exit code 2]")],
        [start(0, 0, hosts=1), *phase("train", 1, 1), *steps(1, 1, 1, 1), event("end", time=BEGIN + 3, code=0)],
        [start(0, 0, program="python x.py"), event("host", 0, time=BEGIN + 1, phase="started", pid=3)],
    ],
    ids=["no events", "only begun", "failed at once", "one step", "a program"],
)
def test_runs_with_little_on_record(events: list[dict[str, Any]]) -> None:
    directory = make()
    record(directory, *events)
    assert "<h2>Metrics</h2>" in html(directory) or not any(e["event"] == "step" for e in events)


def test_many_hosts_are_a_heat_map() -> None:
    """A thousand processes: a line for each, and a table of those that others wait for most."""
    directory = make()
    record(directory, start(0, 0, hosts=1000), *phase("train", 1, 1000), *steps(1, 3, 1, 1000, late=0.4))
    late = {"behind": 0.4, "step_seconds": 1.0, "since": BEGIN}
    record(directory, event("late", 1, time=BEGIN + 4, **late), event("end", time=BEGIN + 5, code=0))
    text = html(directory)
    data = data_of(text)
    assert [len(strips["rows"]) for strips in data["strips"]] == [1000, 1000]
    assert 'class="late"><td>host-1</td>' in text and "host-1 keeps the others waiting" in text
    assert len(text) < 300_000
    assert "32 of 1000 processes: those that the others wait for most" in text


def test_the_last_step_of_every_process_is_shown() -> None:
    """A page of a long run keeps only some steps, but not fewer than the last one of each process."""
    directory = make()
    record(directory, start(0, 0), *phase("train", 1))
    with directory.events.open("a") as file:
        for step in range(1, 2001):
            for process in (0, 1):
                place = {"host": f"host-{process}", "process": process}
                row = {"event": "step", "time": BEGIN + step, "step": step, "loss": 1.0, "steps": 2000, **place}
                file.write(json.dumps(row) + "\n")
    records = read_records(directory)
    assert len(records.by_process["host-1", 1]) < 1000
    assert html(directory).count('<td class="number">2000</td>') == 2


def test_the_log_of_the_host_that_failed_is_shown() -> None:
    directory = make()
    failed = event("end", time=BEGIN + 5, code=1, host="host-30", message="host-30: failed")
    record(directory, start(0, 0, hosts=32), *phase("train", 1, 32), failed)
    text = html(directory)
    assert "<summary>host-30</summary>" in text and "<summary>host-15</summary>" not in text
    assert f"16 of 32 processes: `podrun logs {directory.run_id}` has all." in text


def test_a_workdir_has_the_steps_of_all_its_runs(tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    with pytest.raises(UserError, match=r"no metrics that can be read"):
        page_of_workdir(workdir)
    rows = [{"step": n, "kind": "train", "loss": 1 / n, "tokens_seen": 7 * n} for n in range(1, 21)]
    lines = [*map(json.dumps, rows), '{"step": 20, "kind": "eval", "loss": 0.25}', "damaged", '{"step": 21, "ki']
    (workdir / "metrics.jsonl").write_text("\n".join(lines))
    page = page_of_workdir(workdir)
    assert page.verdict.state == "none" and dict(page.tiles)["validation loss"] == "0.2500"
    record(make(), start(0, 0, workdir=str(workdir)), event("end", time=BEGIN + 9, code=0))
    page = page_of_workdir(workdir)
    assert page.verdict.state == "done" and dict(page.tiles)["tokens seen"] == "140"
    assert page.charts[0].series[0].x == [*range(1, 21)]


def test_a_workdir_has_the_marks_of_the_runs_that_made_it(tmp_path: Path) -> None:
    """A run before the one that began anew has none there, nor has a run in another workdir."""
    workdir = tmp_path / "work"
    workdir.mkdir()
    rows = [{"step": n, "kind": "train", "loss": 1 / n} for n in range(1, 10)]
    (workdir / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))

    ids = iter(f"20260101-00000{n}-abcd" for n in range(9))

    def run(first: int, last: int, where: Path = workdir, resumes: bool = False) -> None:
        resumed = [event("resume", 0, time=BEGIN + 1, step=first - 1)] * resumes
        saved = event("checkpoint", 0, time=BEGIN + 20, step=last)
        record(make(next(ids)), start(0, 0, workdir=str(where)), *resumed, *steps(first, last, 2), saved)

    run(1, 5)
    run(1, 3)
    run(1, 8, tmp_path / "other")
    run(4, 6, resumes=True)
    record(make(next(ids)), start(0, 0, workdir=str(workdir)))  # it failed before its first step
    run(7, 9, resumes=True)
    page, last = page_of_workdir(workdir), page_of_run(all_runs()[0])
    assert page.subtitle.endswith("The curves are those of all 4 runs of the workdir, all else is of this run")
    assert last.subtitle.endswith(f"It went on from step 6: podrun report {workdir} has the steps before as well")
    marks = page.charts[0].marks
    assert sorted((mark.x, mark.kind) for mark in marks) == [
        *((3, "restart"), (3, "save"), (6, "restart"), (6, "save"), (9, "save"))
    ]


def test_a_run_that_resumed_from_its_own_memory_alone_began_anew(tmp_path: Path) -> None:
    workdir = str(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "kind": "train", "loss": 1.0}))
    resumed = event("resume", 0, time=BEGIN + 10, step=2, memory="the memory of 2 hosts")
    record(
        make("20260101-000001-abcd"),
        start(0, 0, workdir=workdir),
        *steps(1, 5, 2),
        event("checkpoint", 0, time=BEGIN + 20, step=5),
    )
    record(
        make("20260101-000002-abcd"),
        start(0, 0, workdir=workdir),
        *steps(1, 3, 2),
        start(1, 5, workdir=workdir),
        resumed,
    )
    page, last = page_of_workdir(Path(workdir)), page_of_run(all_runs()[0])
    assert "runs of the workdir" not in page.subtitle and "It went on from step" not in last.subtitle


def test_a_long_file_is_thinned_out_and_no_peak_is_lost(tmp_path: Path) -> None:
    count = 10 * MAX_STEPS
    peaks = {777: 50.0, count - 3: 0.001}
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        "".join(f'{{"step": {n}, "kind": "train", "loss": {peaks.get(n, 1.5)}, "x": 1}}\n' for n in range(count))
    )
    steps, evaluations = read_metrics(file)
    assert MAX_STEPS / 2 < len(steps) <= 1.1 * MAX_STEPS and evaluations == []
    assert max(step.highest for step in steps) == 50.0 and min(step.lowest for step in steps) == 0.001


def test_numbers_are_those_of_a_browser() -> None:
    assert base64.b64decode(numbers("d", [1.0])) == b"\0\0\0\0\0\0\xf0\x3f"
    assert floats("f", numbers("f", [1.5, -1e300]))[0] == 1.5 and floats("f", numbers("f", [-1e300]))[0] < -3e38


def test_samples_and_metrics_of_a_program() -> None:
    """The last three of each name; what is hostile is text, what is damaged is told."""
    text = html(run_with_samples())
    charts = {chart["key"]: chart for chart in data_of(text)["charts"]}
    assert [one["name"] for one in charts[key_of("f1")]["series"]] == ["training", "validation"]
    assert charts[key_of("val/auc")]["series"] and "<h3>val</h3>" not in text  # a group of one
    samples = text[text.index("<h2>Samples</h2>") : text.index("<h2>Time</h2>")]
    assert (
        samples.count("<figcaption>step 5</figcaption>") == 9 and samples.count("<figcaption>step 3</figcaption>") == 9
    )
    assert "step 2<" not in samples
    assert samples.count('src="data:image/png;base64,') == 3 and samples.count("it cannot be shown") == 9
    assert samples.count("<rect") == 6 and "0 to 2, 4 numbers" in samples
    assert "<script" not in samples and "<b>" not in samples
    assert "img-src data:;" in text


def test_a_running_run_says_how_long_it_will_take() -> None:
    """On its first screen, beside the slice and the date; after its end there is no time left."""
    directory = make()
    rows = steps(1, 3, 10)
    rows[-2]["seconds_left"] = 250.0
    record(directory, start(0, 0, slice="v3-8"), *phase("train", 10), *rows)
    with directory.supervise():
        page = page_of_run(directory)
    assert dict(page.tiles)["time left"] == "4m 10s" and page.tiles[0][0] == "running for"
    assert re.search(r" on v3-8, started \d{4}-\d\d-\d\d \d\d:\d\d$", page.subtitle)
    record(directory, event("end", time=BEGIN + 20, code=0))
    tiles = dict(page_of_run(directory).tiles)
    assert "time left" not in tiles and tiles["lasted"] == "20s"


def test_the_log_of_the_process_that_failed_comes_first() -> None:
    """Of several on its host."""
    directory = make()
    record(directory, event("start", time=BEGIN, attempt=0, hosts={"host-0": [0, 1], "host-1": [2, 3]}))
    for name in ("host-0.0", "host-0.1", "host-1.2", "host-1.3"):
        (directory.logs / f"{name}.log").write_text("a line\n")
    record(directory, event("end", time=BEGIN + 9, code=1, host="host-1", process=3, message="failed: boom"))
    page = page_of_run(directory)
    assert [(log.name, log.has_failed) for log in page.logs[:2]] == [("host-1.3", True), ("host-1.2", False)]


def test_the_last_evaluation_of_a_program_is_on_the_first_screen() -> None:
    """By the names that the program has given; a loss that is NaN is said, in place of the last finite one."""
    directory = make()
    record(directory, start(0, 0, hosts=1, program="python own.py"))
    for step, loss, f1 in ((1, 2.0, 0.5), (2, math.nan, 0.7)):
        record(directory, event("step", 0, time=BEGIN + step, step=step, loss=loss))
        record(directory, {**event("eval", 0, time=BEGIN + step, step=step), "val/f1": f1, "val/loss": loss})
    tiles = dict(page_of_run(directory).tiles)
    assert (tiles["loss"], tiles["val/f1"], tiles["val/loss"]) == ("nan", "0.7000", "nan")


@pytest.mark.parametrize("metrics", [{"accuracy": 0.9}, {"accuracy": 0.9, "perplexity": 3.0}])
def test_a_classification_has_its_accuracy_on_the_first_screen(metrics: dict[str, float]) -> None:
    """A language model has its loss there."""
    directory = make()
    record(directory, start(0, 0, hosts=1), *steps(1, 2, 0, hosts=1))
    record(directory, event("eval", 0, time=BEGIN + 2, step=2, loss=0.3, **metrics))
    tiles = dict(page_of_run(directory).tiles)
    assert tiles.get("validation accuracy") == (None if "perplexity" in metrics else "0.9000")
    assert tiles["validation loss"] == "0.3000"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("interrupted", ""),
        ("interrupted; the checkpoint of step 3 is complete", "the checkpoint of step 3 is complete"),
        ("interrupted twice, so stopped at once", "interrupted twice, so stopped at once"),
    ],
)
def test_an_interrupted_run_says_what_is_saved(message: str, text: str) -> None:
    """The title says that it was interrupted."""
    directory = make()
    end = event("end", time=BEGIN + 9, code=130, message=f"{message} [exit code 130]")
    record(directory, start(0, 0), *steps(1, 3, 1), end)
    verdict = page_of_run(directory).verdict
    assert (verdict.title, verdict.text) == ("Interrupted", text)


def test_goodput_is_explained_where_there_is_one() -> None:
    text = html(run_with_restart())
    assert text.count("Goodput is the share of the time") == 2  # at the number, and below the shares
    directory = make()
    silent = event("host", 0, time=BEGIN + 1, phase="started", pid=3)
    record(directory, start(0, 0, hosts=1, program="python x.py"), silent, event("end", time=BEGIN + 9, code=0))
    assert "oodput" not in html(directory)


def test_a_table_has_no_empty_columns() -> None:
    """A single process has no waits for others."""
    directory = make()
    record(directory, start(0, 0, hosts=1), *phase("train", 1, 1), *steps(1, 3, 1, hosts=1))
    assert "Others wait for it" not in html_of(page_of_run(directory))
    assert "Others wait for it, ms a step" in html_of(page_of_run(run_with_restart()))


def test_the_log_is_open_if_nothing_else_says_why_a_run_has_failed() -> None:
    """That of the failed process alone. The last step is of any process, if the leading one has reported none."""
    directory = make()
    record(directory, start(0, 0), *phase("train", 1), *(row for row in steps(1, 3, 1) if row["process"] == 1))
    for host in ("host-0", "host-1"):
        (directory.logs / f"{host}.log").write_text(f"last words of {host}\n")
    record(directory, event("end", time=BEGIN + 9, code=137, host="host-1", process=1, message="failed: SIGKILL"))
    page = page_of_run(directory)
    assert re.findall(r"<details( open)?><summary>(.*?)</summary>", html_of(page)) == [
        (" open", "host-1"),
        ("", "host-0"),
    ]
    assert ("step", "3") in page.tiles
    assert '<a href="#failed">Last lines of the log of host-1</a>' in html_of(page)
    assert '<summary>host-1</summary><pre id="failed">' in html_of(page) and html_of(page).count('id="failed"') == 1
    record(directory, event("error", 1, time=BEGIN + 8, kind="exception", message="boom", traceback="Traceback: boom"))
    assert "<details open>" not in html_of(page_of_run(directory))

"""`podrun compare`: variants, their folders, what is read of them, the numbers, and all mistakes before anything starts."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from podrun.launcher.compare.collect import evaluations, metrics, steps
from podrun.launcher.compare.files import HostFiles, LocalFiles
from podrun.launcher.compare.folder import new_folders
from podrun.launcher.compare.output import as_text, lacks_metric, numbers, write_steps, write_table
from podrun.launcher.compare.plots import plot_convergence, plot_times, running_median
from podrun.launcher.compare.table import Measurement, Step, VariantState, compare_variants, mean_of_last
from podrun.launcher.compare.variants import Variant, find_variants, short_keys, split_values
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.ranking import Ranking
from tests.tiers import mostly_long

if TYPE_CHECKING:
    from tests.conftest import Podrun, Sandbox

POD = simulated_pod(parse_slice("cpu-1x2"))
PNG = b"\x89PNG\r\n"


# --- variants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pmap,single", ["pmap", "single"]),
        ("1e-3, 1e-2", ["1e-3", "1e-2"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("{name: jit, mesh: {data: 1, fsdp: 2}},pmap", ["{name: jit, mesh: {data: 1, fsdp: 2}}", "pmap"]),
        ("""'it''s, one',two""", ["'it''s, one'", "two"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ("['],',x],y", ["['],',x]", "y"]),
        ("it's,they're", ["it's", "they're"]),
        ("/data/[ab].txt,/data/{c,d}.txt", ["/data/[ab].txt", "/data/{c,d}.txt"]),
        ("a,,b", ["a", "", "b"]),
        ("[1,2", None),
        ("1],2", None),
        ("[1},2", None),
        ("'a,b", None),
    ],
)
def test_commas_in_brackets_and_quotes_belong_to_a_value(text: str, parts: list[str] | None) -> None:
    """As YAML reads them; an apostrophe within a word is none."""
    assert split_values(text) == parts


def test_every_combination_in_the_order_of_the_command_line() -> None:
    """The first --over changes slowest, so its first value is what the others are compared with."""
    variants = find_variants(["parallel=pmap,single", "optimizer.line_search=zoom,backtracking,null"])
    assert [v.name for v in variants] == [
        f"parallel={p} line_search={s}" for p in ("pmap", "single") for s in ("zoom", "backtracking", "null")
    ]
    assert variants[1].folder == "parallel=pmap,line_search=backtracking"
    assert variants[1].values == (("parallel", "pmap"), ("optimizer.line_search", "backtracking"))


def test_a_section_is_named_before_its_keys_are_set() -> None:
    """`optimizer=adam` would undo `optimizer.learning_rate=1` if it came later; every step is on record."""
    adam, _ = find_variants(["optimizer=adam,sgd"], ["optimizer.learning_rate=1"])
    assert adam.overrides(["optimizer.learning_rate=1"]) == (
        "optimizer=adam",
        "optimizer.learning_rate=1",
        "log.every=1",
    )


def test_names_are_short_but_say_which_key() -> None:
    """The end of a key, as much of it as tells it from the others; what a section's `name` is, the section says."""
    assert short_keys(["model.name", "optimizer.learning_rate", "seed"]) == {
        "model.name": "model",
        "optimizer.learning_rate": "learning_rate",
        "seed": "seed",
    }
    assert short_keys(["eval.every", "checkpoint.every"]) == {
        "eval.every": "eval.every",
        "checkpoint.every": "checkpoint.every",
    }


@pytest.mark.parametrize("values", ["/a/b,/a:b", f"{'x' * 300},{'x' * 299}y", "ä/1,ä 1"])
def test_each_variant_has_a_folder_of_its_own(values: str) -> None:
    """Also if their names differ only in what a folder's name cannot have, or are too long for one."""
    folders = [v.folder for v in find_variants([f"data.path={values}"])]
    assert len(set(folders)) == 2
    assert all("/" not in folder and len(folder.encode()) < 200 for folder in folders)


@pytest.mark.parametrize("values", ["a b,a/b", f"{'a' * 120}1,{'a' * 120}2"])
def test_a_folder_does_not_depend_on_the_other_values(values: str) -> None:
    """A value has one folder in all lists, where its run resumes."""
    first, second = values.split(",")
    folders = {v.values[0][1]: v.folder for v in find_variants([f"prompt={first},{second}"])}
    assert folders == {v.values[0][1]: v.folder for v in find_variants([f"prompt={second},{first}"])}
    assert folders[second] in [v.folder for v in find_variants([f"prompt={second},c"])]


@pytest.mark.parametrize(
    ("over", "given", "said"),
    [
        (["parallel"], [], "write key.path=value,value"),
        (["a=1,,2"], [], "value 2 is empty"),
        (["a=1,2,1"], [], "1 is there twice"),
        (["a=[1,2"], [], "has no partner"),
        (["a=1"], [], "one variant has nothing to be compared with"),
        (["a=1,2", "a=3,4"], [], "--over a is there twice"),
        (["a=1,2"], ["a=3"], "a has one value on the command line and several in --over"),
        (["launch.pod=a,b"], [], "all variants have the same pod"),
        (["launch.workdir=a,b"], [], "use --slice, --pod and --workdir"),
        ([f"{key}=1,2,3,4,5,6" for key in "abc"], [], "216 variants, more than 100"),
    ],
)
def test_mistakes_in_over(over: list[str], given: list[str], said: str) -> None:
    """Messages say what is wrong, and what to do."""
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        find_variants(over, given)


def test_all_mistakes_in_over_are_said_at_once() -> None:
    """A line for each."""
    with pytest.raises(UserError) as caught:
        find_variants(["x", "a=1,1", "launch.slice=v3-8,v3-32"])
    assert len(str(caught.value).splitlines()) == 3


# --- before anything starts -----------------------------------------------------------------------------------------


def test_the_mistakes_of_all_variants(sandbox: Sandbox, in_process: Podrun) -> None:
    """Each with the variants that it is of; one that all have is said once; no folder is made."""
    before = sorted(sandbox.path.rglob("*"))
    over = ("--over", "accumulate=1,3", "--over", "parallel=pmap,zmap")
    done = in_process("compare", "--slice", "cpu-1x2", "--simulate", "train.yaml", *over, "-w", "train.yaml/x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("podrun: ")
    assert "accumulate=3 parallel=pmap: batch_size 8 is not divisible by 2 devices x accumulate 3" in done.stderr
    assert "\naccumulate=1 parallel=zmap; accumulate=3 parallel=zmap: train.yaml: 1 mistake\n" in done.stderr
    assert done.stderr.count("is a file, not a folder") == 1
    assert sorted(sandbox.path.rglob("*")) == before


def test_log_every_that_was_typed_is_obeyed() -> None:
    """Otherwise every step is logged."""
    one, _ = find_variants(["seed=1,2"])
    assert one.overrides([]) == ("seed=1", "log.every=1")
    assert one.overrides(["log.every=10"]) == ("seed=1", "log.every=10")
    assert one.overrides(["log={every: 10}"]) == ("log={every: 10}", "seed=1")


def test_values_are_put_into_the_words_of_a_program() -> None:
    """In place of {key}, in any word; others become options, and keys of launch are what they always are."""
    over = ["lr=1e-3,1e-4", "name='a,b',c", "launch.env.MODE=x,y", "depth=-1,2"]
    one = find_variants(over)[0]
    words = ["python", "train.py", "lr={lr}", "{lr}/{name}", "{other}"]
    assert one.program(words) == ("python", "train.py", "lr=1e-3", "1e-3/a,b", "{other}", "--depth=-1")
    assert one.launch_keys(["launch.env.A=1"]) == ("launch.env.A=1", 'launch.env.MODE="x"')


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ('"zwei\nZeilen"', "zwei\nZeilen"),
        ("'zwei\r\nZeilen'", "zwei\r\nZeilen"),
        ("'it''s'", "it's"),
        (r'"a\tb"', "a\tb"),
        ('"a\\\\\nb"', "a\\\nb"),
    ],
)
def test_a_quoted_value_keeps_its_line_breaks(typed: str, value: str) -> None:
    variants = find_variants([f"v={typed},b"])
    assert variants[0].filled(["{v}"]) == (value,)


def test_runs_of_a_variant_are_interleaved() -> None:
    """Each has a folder and a label of its own; values that look like another's place are left alone."""
    variants = find_variants(["a={b},2", "b=3,4"], repeat=2)
    assert [v.label for v in variants[:5]] == ["a={b} b=3", "a={b} b=4", "a=2 b=3", "a=2 b=4", "a={b} b=3 #2"]
    assert len({v.folder for v in variants}) == 8
    assert variants[0].program(["x", "{a}{b}"]) == ("x", "{b}3")
    with pytest.raises(UserError, match="60 runs of 2 variants, more than 100"):
        find_variants(["a=1,2"], repeat=60)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (["train.py"], "is a program, not a train.yaml; write it after two dashes"),
        (["train.yaml", "--", "python", "train.py"], "stands before the `--`"),
        (["--", "python", "none.py"], "there is no file none.py"),
        ([], "missing argument 'train.yaml'"),
        (["--best", "val/f1", "--", "python", "x.py"], "--best must be min or max, and a metric, such as"),
    ],
)
def test_mistakes_with_programs(in_process: Podrun, job: list[str], said: str) -> None:
    """They are those of a single run."""
    done = in_process("compare", "--slice", "cpu-1x2", "--simulate", "--over", "a=1,2", *job)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_second_comparison_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Beside the workdir of the job, numbered; nothing of the first gets into the second."""
    wanted = tmp_path / "runs" / "train"
    assert new_folders(wanted, False, POD, ["a=1"], LocalFiles()).runs == tmp_path / "runs" / "train-compare"
    (tmp_path / "runs" / "train-compare").mkdir(parents=True)
    (tmp_path / "runs" / "train-compare-2").mkdir()
    found = new_folders(wanted, False, POD, ["a=1"], LocalFiles())
    assert found.runs == found.results == tmp_path / "runs" / "train-compare-3"
    assert found.earlier == tmp_path / "runs" / "train-compare"


@pytest.mark.parametrize("taken", ["a=1", "compare.csv"])
def test_a_folder_that_was_typed_must_be_new(tmp_path: Path, taken: str) -> None:
    """It is refused if it holds a variant or a table, and says what to do; other files do not matter."""
    (tmp_path / "notes.txt").touch()
    assert new_folders(tmp_path, True, POD, ["a=1", "a=2"], LocalFiles()).runs == tmp_path
    (tmp_path / taken).mkdir()
    with pytest.raises(UserError, match=f"holds {taken} of an earlier run or comparison.*--workdir DIR"):
        new_folders(tmp_path, True, POD, ["a=1", "a=2"], LocalFiles())


# --- what variants leave --------------------------------------------------------------------------------------------


def test_files_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file comes whole, however large it is and whatever it is called; what is not there is empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    data = b"".join(b"%d\n" % n for n in range(500))
    (folder / "-metrics").write_bytes(data)
    files = HostFiles(replace(POD, home=str(tmp_path / "home")), part=1000)
    assert files.names(folder) == files.names(Path("~/it's a folder")) == {"-metrics"}
    assert files.read(folder / "-metrics") == files.read(Path("~/it's a folder/-metrics")) == data
    assert files.names(tmp_path / "no") == LocalFiles().names(tmp_path / "no") == set()
    assert files.read(folder / "no") == LocalFiles().read(folder / "no") == b""


def test_steps_of_metrics() -> None:
    """The last record of a step counts, evaluations are none, and what is not a finite number is missing."""
    records: list[dict[str, Any]] = [
        {"step": 1, "kind": "train", "loss": 2.0, "grad_norm": 1.0},
        {"step": 2, "kind": "train", "loss": 9.0, "seconds_per_step": 9.0},
        {"step": 2, "kind": "eval", "loss": 7.0},
        {"step": 2, "kind": "train", "loss": 1.0, "grad_norm": float("nan"), "seconds_per_step": 0.5},
    ]
    assert steps(records) == (Step(1, 2.0, 1.0), Step(2, 1.0, None, 0.5))


# --- the numbers ----------------------------------------------------------------------------------------------------


def measured(
    name: str, seconds: list[float | None], state: VariantState = VariantState.DONE, **more: Any
) -> Measurement:
    found = tuple(Step(n, loss=5.0 - n, grad_norm=1 / n, seconds=s) for n, s in enumerate(seconds, 1))
    return Measurement(Variant(f"a={name}", name, (("a", name),)), state, steps=found, **more)


def test_times_are_those_after_the_first_step() -> None:
    """Also if the first step has a time; a step without one is left out."""
    first, second = compare_variants([measured("1", [90.0, 2.0, 4.0, 6.0]), measured("2", [None, 1.0, None, 2.0])])
    assert (first.median_step, first.total, first.steps, first.train_loss) == (4.0, 12.0, 4, 1.0)
    assert (second.median_step, second.total) == (1.5, 3.0)
    assert (first.speedup, first.speedup_interval, first.speedup_by_total) == (1.0, None, 1.0)
    assert (second.speedup, second.speedup_by_total) == (4 / 1.5, 12 / 3)


def test_the_times_of_a_program_are_those_between_its_reports() -> None:
    """A report of every n-th step stands for n steps; of a step repeated after a restart, the last one counts."""
    rows = [{"kind": "train", "step": n, "time": 0.0, "elapsed": 0.5 * n} for n in (10, 20, 30)]
    one = replace(measured("a", []), steps=steps([rows[0], {**rows[1], "elapsed": 99.0}, *rows[1:]]))
    (row,) = compare_variants([one])
    assert [step.seconds for step in one.steps] == [None, 0.5, 0.5]
    assert (row.median_step, row.total) == (0.5, 10.0)


def test_a_loss_that_is_not_a_number_is_shown() -> None:
    """Not as if there were none; a step without a loss says nothing."""
    rows = [{"kind": "train", "step": n, "time": 0.0, "loss": loss} for n, loss in ((1, 2.0), (2, math.nan))]
    last = replace(measured("a", []), steps=steps([*rows, {"kind": "train", "step": 3, "time": 1.0, "lr": 0.1}]))
    first = replace(measured("b", []), steps=steps([rows[1], {**rows[0], "step": 3}]), evaluations=((3, None),))
    table = as_text(compare_variants([last, first])).splitlines()
    assert [line.split()[-5:-3] for line in table[2:4]] == [["nan", "-"], ["2.000", "nan"]]


def test_columns_that_no_variant_has_are_left_out() -> None:
    """From the table and from its legend."""
    one = replace(measured("a", [1.0, 1.0]), compile_seconds=None, evaluations=())
    text = as_text(compare_variants([one]))
    assert (
        not {"COMPILE", "VALIDATION", "Compile:", "Validation"} & {*text.split()}
        and "Training loss, further metrics: " in text
    )
    both = as_text(compare_variants([replace(one, compile_seconds=2.0, evaluations=((1, 0.5),))]))
    assert "Compile: from the start" in both and "Training loss, validation loss, further metrics: " in both


def test_metrics_of_any_name() -> None:
    """An evaluation's plain name is told from that of training; the last value counts; NaN is None."""
    rows = [
        {"kind": "train", "step": 1, "time": 0.0, "loss": 2.0, "f1": 0.5, "val/auc": 0.1},
        {"kind": "eval", "step": 1, "time": 0.0, "loss": 2.0, "f1": 0.4},
        {"kind": "train", "step": 2, "time": 0.0, "loss": 1.0, "f1": 0.6, "val/auc": math.nan},
    ]
    assert metrics(rows, {"loss"}) == {
        "f1": ((1, 0.5), (2, 0.6)),
        "val/auc": ((1, 0.1), (2, None)),
        "validation f1": ((1, 0.4),),
    }


def test_metrics_of_a_program_do_not_rest_on_one_batch() -> None:
    """Metrics of its training are means over its last reports; evaluations, and metrics of a job, are the last ones."""
    records = [
        *({"kind": "train", "step": n, "loss": 1.0 + n % 2, "my/score": float(n % 2)} for n in range(1, 101)),
        *({"kind": "eval", "step": n, "loss": 1.0 * n, "my/f1": 1.0 * n} for n in (50, 100)),
    ]
    job = replace(
        measured("a", []),
        steps=steps(records),
        evaluations=evaluations(records),
        metrics=metrics(records, {"loss"}),
        of_evaluations=frozenset({"my/f1"}),
    )
    of_job, of_program = (compare_variants([one])[0] for one in (job, replace(job, is_program=True)))
    assert (of_job.train_loss, of_job.validation_loss, of_job.metrics) == (
        1.0,
        100.0,
        {"my/score": 0.0, "my/f1": 100.0},
    )
    assert (of_program.train_loss, of_program.metrics) == (1.5, {"my/score": 0.5, "my/f1": 100.0})
    assert of_program.validation_loss == 100.0
    assert "the mean over the last tenth of the reports" in as_text([of_program])
    assert "the mean over" not in as_text([of_job])


@pytest.mark.parametrize(("count", "used"), [(1, 1), (4, 1), (12, 3), (20, 5), (50, 5), (51, 6), (1000, 100)])
def test_the_last_reports_of_a_metric(count: int, used: int) -> None:
    """At least 5 of many, and of few not those of the beginning."""
    assert mean_of_last([1e9] * (count - used) + [float(n) for n in range(used)]) == (used - 1) / 2


def test_a_metric_that_best_names_and_a_run_has_not_is_told_when_the_run_ends() -> None:
    """Not only after all runs. A run that failed says why itself."""
    one = measured("1", [None, 0.1], metrics={"my/score": ((1, 0.5),)})
    told = lacks_metric(one, Ranking.parse("max my/scroe")) or ""
    assert "a=1 has reported no finite my/scroe, which --best names; it has reported training loss, my/score." in told
    assert "compare.csv will have the values of all metrics" in told
    assert lacks_metric(one, Ranking.parse("max my/score")) is None
    assert lacks_metric(replace(one, state=VariantState.FAILED), Ranking.parse("max my/scroe")) is None


def test_repeated_runs_have_an_interval_over_the_runs() -> None:
    """Runs of a round are compared with each other, so that a machine that slows down changes nothing."""
    first, second = find_variants(["a=1,2"])
    runs = [
        replace(measured("x", [None, *[seconds * slow] * 5]), variant=replace(v, repeat=n))
        for n, slow in enumerate((1.0, 3.0, 9.0), 1)
        for v, seconds in ((first, 0.2), (second, 0.1))
    ]
    one, two = compare_variants(runs)
    assert one.speedup_interval is None and len(one.runs) == 3
    assert two.speedup == pytest.approx(2.0) and two.speedup_interval == pytest.approx((2.0, 2.0))
    assert (one.median_step, two.median_step) == pytest.approx((0.6, 0.3))
    assert "each number is the median of 3 runs" in as_text([one, two])
    one, two = compare_variants([*runs[:-1], replace(runs[-1], steps=measured("x", [None, *[1.8] * 5]).steps)])
    low, high = two.speedup_interval or (0.0, 0.0)
    assert low < 1 < (two.speedup or 0.0) < high
    assert (high > 100 * low) is ("x (unclear)" in as_text([one, two]))
    wide = as_text([one, replace(two, speedup_interval=(0.001, 3e5))])
    assert f"{two.speedup:.2f}x (unclear)" in wide and "use a larger --repeat" in wide


def test_losses_that_nobody_has_are_no_columns() -> None:
    """A program may call its loss train/loss."""
    times = tuple(Step(n, seconds=0.1) for n in (1, 2))
    one = replace(measured("a", []), steps=times, metrics={"train/loss": ((2, 0.5),)})
    for width in (None, 60):
        text = as_text(compare_variants([one, replace(one, variant=find_variants(["a=1,2"])[0])]), width)
        assert "TRAIN  " not in text and "train/loss" in text and "STEP ms" in text


def test_further_metrics_have_tables_as_wide_as_the_terminal() -> None:
    """A line for each metric if they are more than the variants; otherwise all columns are there, below each other."""
    values = {f"val/metric{n}": ((1, n / 7),) for n in range(9)}
    text = as_text(compare_variants([measured(name, [None, 0.1], metrics=values) for name in "ab"]), 80)
    assert all(name in text for name in values) and max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text.splitlines() if line.startswith("val/metric")]
    assert [name for name, *numbers in lines if len(numbers) == 2] == [*values] and "VARIANT  val" not in text
    text = as_text(compare_variants([measured(name, [None, 0.1], metrics=values) for name in "abcdefghi"]), 80)
    assert all(name in text for name in values) and max(map(len, text.splitlines())) <= 80
    assert text.count("\nVARIANT  val/metric") == 2


def test_a_metric_with_a_long_name_fits_the_terminal() -> None:
    values = {f"{'layer/' * 15}{n}": ((1, 0.5),) for n in range(3)}
    rows = compare_variants([measured(name, [None, 0.1], metrics=values) for name in "ab"])
    assert max(map(len, as_text(rows, 80).splitlines())) <= 80 and "\nMETRIC" in as_text(rows, 80)
    assert all(name in as_text(rows) for name in values)


def test_an_evaluation_of_another_set_at_the_same_step_has_no_loss() -> None:
    """The loss of the validation set stays."""
    records: list[Any] = [{"step": 4, "kind": "eval", "loss": 0.5}, {"step": 4, "kind": "eval", "test/auc": 0.9}]
    assert evaluations(records) == ((4, 0.5),)
    assert evaluations([*records, {"step": 4, "kind": "eval", "loss": math.nan}]) == ((4, None),)


def test_the_losses_of_a_program_that_reports_a_step_in_parts() -> None:
    """Its training loss is that of the first part; `val/loss` is its validation loss."""
    records: list[Any] = [
        {"step": 4, "kind": "train", "loss": 0.75, "elapsed": 1.0},
        {"step": 4, "kind": "train", "accuracy": 0.5, "elapsed": 1.0},
        {"step": 4, "kind": "eval", "val/loss": 0.5, "val/accuracy": 0.25},
    ]
    assert [step.loss for step in steps(records)] == [0.75]
    assert evaluations(records) == ((4, 0.5),)
    assert metrics(records, {"loss"}) == {"accuracy": ((4, 0.5),), "val/accuracy": ((4, 0.25),)}


def test_a_slower_variant_is_never_called_faster() -> None:
    """A few slow steps of the first variant do not make it so: each was 80 % slower by its own median, 2.3 times faster by
    the mean of ratios."""
    one = measured("1", [None, *[0.1] * 95, *[3.0] * 5])
    two = measured("2", [None, *[0.18] * 100])
    row = compare_variants([one, two])[1]
    assert row.speedup == 0.1 / 0.18
    assert row.speedup_interval is None  # one run of each
    assert "0.56x " in as_text([*compare_variants([one, two])])


def test_an_ensemble_trains_several_models() -> None:
    """Four models in a step that takes twice as long are trained twice as fast, and the table says what it counts."""
    one, four = measured("1", [None, 0.1, 0.1]), replace(measured("4", [None, 0.2, 0.2]), models=4)
    rows = compare_variants([one, four])
    assert (rows[1].speedup, rows[1].speedup_by_total) == (2.0, 2.0)
    assert "a=4 trains 4 models in each step: its speed-up is that of one model" in as_text(rows)
    assert "models in each step" not in as_text(compare_variants([one, one]))


def test_a_variant_that_is_not_done() -> None:
    """It has the ratio of the steps that it has, but none of totals; one that never began has nothing."""
    rows = compare_variants(
        [
            measured("1", [None, 2.0, 2.0]),
            measured("2", [None, 1.0], VariantState.FAILED, reason="no more of it"),
            measured("3", [], VariantState.NOT_RUN),
        ]
    )
    assert (rows[1].speedup, rows[1].speedup_by_total) == (2.0, None)
    assert (rows[2].steps, rows[2].total, rows[2].train_loss, rows[2].speedup) == (0, None, None, None)
    text = as_text(rows)
    assert "failed: no more of it" in text and "not run" in text


def test_a_first_variant_without_times() -> None:
    """Nothing can be compared with it, and the table says so."""
    rows = compare_variants([measured("1", [], VariantState.FAILED), measured("2", [None, 1.0])])
    assert (rows[1].speedup, rows[1].speedup_interval, rows[1].speedup_by_total) == (None, None, None)
    assert "there are no speed-ups, because a=1 has no step times" in as_text(rows)


def test_the_table_names_its_numbers() -> None:
    """It says what is compared with what, how, and without which times."""
    text = as_text(compare_variants([measured("1", [None, 0.002, 0.004]), measured("2", [None, 0.001])]))
    assert "Speed-up against a=1: by median is the ratio of the median steps, by total that of the totals" in text
    assert "without evaluation and checkpoints" in text
    assert "different numbers of steps" in text


def test_a_narrow_terminal() -> None:
    """The table fits: a variant's name has a line of its own, and why it failed as much as there is room for."""
    rows = compare_variants(
        [measured("1", [None, 2.0]), measured("2" * 40, [None, 1.0], VariantState.FAILED, reason="no more " * 20)]
    )
    lines = as_text(rows, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2] == "a=1: done" and lines[3].split()[0] == "2"
    assert lines[4].startswith(f"a={'2' * 40}: failed: no more") and lines[4].endswith("...")
    assert as_text(rows, 200).splitlines()[:4] == as_text(rows).splitlines()[:4]


def test_one_step_that_spoils_the_total_is_named() -> None:
    """As a second compilation does."""
    times: list[float | None] = [None, 8.0, *[0.1] * 9]
    text = as_text(compare_variants([measured("1", times), measured("2", [None, *[0.1] * 10])]))
    assert "a=1: step 2 alone took 8 s, more than all others together" in text
    assert text.count("alone took") == 1


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([12.345, 0.5, None], ["12.345", "0.500", "-"]),
        ([123.4, 456.7], ["123", "457"]),
        ([0.0, 2.0], ["0.00", "2.00"]),
        ([1.5e-9, 3.0], ["1.50e-09", "3.00e+00"]),
        ([None, None], ["-", "-"]),
    ],
)
def test_numbers_of_a_column(values: list[float | None], shown: list[str]) -> None:
    """All have the decimals that the smallest one needs."""
    assert numbers(values) == shown


def test_csv_files(tmp_path: Path) -> None:
    """A row for each variant, with its values; and one for each step, with empty cells for what is not known."""
    further: Any = {"evaluations": ((2, 0.5), (3, 0.25)), "metrics": {"my/score": ((1, 7.0), (3, 9.0))}}
    rows = compare_variants(
        [
            measured("[1, 2]", [None, 0.1], **further),
            measured("2", [], VariantState.FAILED, reason='it said "no"\nand left'),
        ]
    )
    write_table(tmp_path / "t.csv", rows)
    write_steps(tmp_path / "s.csv", rows)
    with (tmp_path / "t.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(r["a"], r["state"], r["reason"]) for r in table] == [
        ("[1, 2]", "done", ""),
        ("2", "failed", 'it said "no"\nand left'),
    ]
    assert (table[0]["total_seconds"], table[1]["total_seconds"]) == ("0.1", "")
    assert (tmp_path / "s.csv").read_text().splitlines() == [
        "variant,step,loss,grad_norm,seconds,validation_loss,metrics.my/score",
        '"a=[1, 2]",1,4.0,1.0,,,7.0',
        '"a=[1, 2]",2,3.0,0.5,0.1,0.5,',
        '"a=[1, 2]",3,,,,0.25,9.0',
    ]


# --- plots ----------------------------------------------------------------------------------------------------------

LBFGS = Config.model_validate({"task": "logistic_regression", "steps": 9})
ADAMW = Config.model_validate({"steps": 9, "batch_size": 8})


VALUES = {
    "plain": [3.0, 2.0, 1.0],
    "zero and missing": [1.0, 0.0, None],
    "only zeros": [0.0, 0.0],
    "far apart": [1e-30, 1e3],
    "one": [2.0],
    "negative": [1.0, -1.0],
}


@pytest.mark.parametrize(
    ("config", "values"),
    mostly_long(
        ((config, values) for config in (LBFGS, ADAMW) for values in VALUES.values()),
        quick=lambda number, case: case[0] is LBFGS or number == len(VALUES),
        ci=lambda number, case: False,
    ),
    ids=[f"{name}-{values}" for name in ("lbfgs", "adamw") for values in VALUES],
)
def test_plots_of_any_values(tmp_path: Path, config: Config, values: list[float | None]) -> None:
    """Zeros cannot be on a log axis, and do not keep the rest from being drawn."""
    pytest.importorskip("matplotlib")
    found = tuple(Step(n, loss=v, grad_norm=v, seconds=0.1) for n, v in enumerate(values, 1))
    variants = [replace(measured(str(n), []), steps=found) for n in range(8)]
    assert plot_convergence(tmp_path / "a.png", variants, [config] * 8, "job on cpu-1x2")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_a_plot_of_nothing_is_not_written(tmp_path: Path) -> None:
    """Variants have none if they failed before their first step, or have no step after it."""
    pytest.importorskip("matplotlib")
    nothing = [measured("1", []), measured("2", [])]
    assert not plot_convergence(tmp_path / "a.png", nothing, [ADAMW] * 2, "x")
    assert not plot_times(tmp_path / "b.png", [measured("1", [None]), measured("2", [0.1])], "x")
    assert list(tmp_path.iterdir()) == []


def test_many_step_times(tmp_path: Path) -> None:
    """They have a running median, which a single slow step does not move."""
    pytest.importorskip("matplotlib")
    assert plot_times(tmp_path / "b.png", [measured(str(n), [None] + [0.1, 0.2] * 100) for n in range(3)], "x")
    line = [(n, 100.0 if n == 50 else 1.0) for n in range(200)]
    assert {value for _, value in running_median(line)} == {1.0}


def test_matplotlib_is_imported_for_plots_only() -> None:
    """All else of a comparison works without it."""
    code = "import json, sys, podrun.launcher.commands.compare; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "numpy", "jax"} & set(json.loads(done.stdout))

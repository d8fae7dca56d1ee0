"""A loop of the user's own, alone: it resumes exactly, saves, stops and reports."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import podrun
import podrun.loop
from podrun.runtime.contract import UserError

Fresh = Callable[[], None]


class KilledError(Exception):
    """The program ends in the middle of a step."""


@jax.jit
def update(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """A step whose result depends on the state, the batch and random numbers of the state."""
    key, noise = jax.random.split(state["key"])
    w = 0.9 * state["w"] + 0.1 * x.mean(0) + 0.01 * jax.random.normal(noise, state["w"].shape)
    return {"key": key, "w": w}, jnp.square(w).sum()


def run(total: int, kill_at: int = 0, term_at: int = 0, number: int = signal.SIGTERM, **keys: Any) -> dict[str, Any]:
    examples = np.random.default_rng(0).random((50, 3), np.float32)
    batches = podrun.data.Batches(examples, 8)
    train = podrun.steps(total, {"key": jax.random.key(0), "w": jnp.zeros(3)}, **keys)
    for step in train:
        train.state, loss = update(train.state, batches[step])
        podrun.report(step, loss=loss)
        if step == kill_at:
            raise KilledError
        if step == term_at:
            os.kill(os.getpid(), number)
    return dict(train.state)


def records(workdir: str = "runs/train") -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, without their times."""
    lines = Path(workdir, "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("time", "elapsed")} for line in lines]


def saved(workdir: str = "runs/train") -> list[int]:
    return sorted(int(path.name) for path in Path(workdir, "checkpoints").iterdir())


def test_a_run_that_was_killed_goes_on_exactly(fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(20, save_every=5)
    whole = records()
    assert [record["step"] for record in whole] == [*range(1, 21)]
    assert saved() == [15, 20]
    monkeypatch.setenv("PODRUN_WORKDIR", str(tmp_path / "other"))
    for kill_at in (3, 8, 19):
        fresh()
        with pytest.raises(KilledError):
            run(20, kill_at, save_every=5)
    fresh()
    state = run(20, save_every=5)
    assert records("other") == whole
    assert np.array_equal(state["w"], expected["w"])
    assert np.array_equal(*(jax.random.key_data(s["key"]) for s in (state, expected)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_a_signal(fresh: Fresh, capfd: pytest.CaptureFixture[str], number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(podrun.Stopped) as stopped:
        run(20, term_at=7, number=number)
    assert (stopped.value.code, stopped.value.step) == (75, 7)
    assert saved() == [7]
    assert signal.getsignal(number) is before  # given back
    shown = capfd.readouterr()
    assert "stopped at step 7; its checkpoint is complete" in shown.out
    assert ("stopping after this step, with a checkpoint; Ctrl-C again" in shown.err) == (number == signal.SIGINT)
    fresh()
    run(20)
    assert [record["step"] for record in records()] == [*range(1, 21)]
    assert "resumed from the checkpoint of step 7" in capfd.readouterr().out


ALONE = """\
import os, signal
import numpy as np
import podrun

train = podrun.steps(9, {"w": np.zeros(2)})
for step in train:
    train.state = {"w": np.full(2, float(step))}
    if step == 3:
        os.kill(os.getpid(), signal.SIGINT)
        if AGAIN:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(("again", "code"), [(False, 75), (True, -signal.SIGINT)])
def test_ctrl_c_without_a_launcher(tmp_path: Path, again: bool, code: int) -> None:
    """The first saves after the step; the second ends the program at once. Neither shows a traceback."""
    (tmp_path / "loop.py").write_text(ALONE.replace("AGAIN", str(again)))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PODRUN_")}
    command = [sys.executable, "-c", START + "runpy.run_path('loop.py', run_name='__main__')"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**env, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Ctrl-C again ends at once" in done.stderr
    assert ("stopped at step 3; its checkpoint is complete" in done.stdout) != again


START = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
"""Python leaves SIGINT ignored in a program that a shell started in the background, as this test may be."""


@pytest.mark.parametrize("why", ["interactive", "own handler"])
def test_ctrl_c_that_belongs_to_others(fresh: Fresh, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """In an interactive session it interrupts, and a handler of the program is called."""

    def handle(number: int, frame: object) -> None:
        raise KilledError

    before = signal.getsignal(signal.SIGINT)
    if why == "interactive":
        monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    signal.signal(signal.SIGINT, handle if why == "own handler" else signal.default_int_handler)
    try:
        with pytest.raises(KilledError if why == "own handler" else KeyboardInterrupt):
            run(20, term_at=7, number=signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


VALUES = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.5, 10: 9.0, 12: 1.0}
"""The metric of an evaluation after each step."""


def evaluated(total: int, kind: str = "eval", kill_at: int = 0, **keys: Any) -> tuple[podrun.loop.Steps[Any], int]:
    """Run a loop with evaluations, and return it with the number of its steps."""
    train = podrun.steps(total, {"w": np.zeros(2)}, save_every=2, keep=1, **keys)
    count = 0
    for step in train:
        count += 1
        train.state = {"w": np.full(2, float(step))}
        podrun.report(step, loss=float(step))
        if step in VALUES:
            podrun.report(step, {"val/loss" if kind == "train" else "loss": VALUES[step]}, kind=kind)
        if step == kill_at:
            raise KilledError
    return train, count


@pytest.mark.parametrize(("kind", "metric"), [("eval", "loss"), ("held", "held/loss"), ("train", "val/loss")])
def test_the_best_evaluation_is_kept(fresh: Fresh, capfd: pytest.CaptureFixture[str], kind: str, metric: str) -> None:
    evaluated(11, kind, best=f"min {metric}")
    assert saved() == [4, 11]
    assert f"best {metric}: 3 at step 4" in capfd.readouterr().out
    restored = podrun.checkpoint.restore({"w": np.zeros(2)}, best=f"min {metric}")
    assert restored is not None and restored[0] == 4 and restored[1]["w"].tolist() == [4, 4]
    assert podrun.checkpoint.restore({"w": np.zeros(2)}, best="min other") is None


@pytest.mark.parametrize("kill_at", [0, 5, 9])
def test_patience_ends_the_loop(fresh: Fresh, capfd: pytest.CaptureFixture[str], kill_at: int) -> None:
    """Also one that was killed and went on; the same command then has nothing left to do, until it has more patience."""
    if kill_at:
        with pytest.raises(KilledError):
            evaluated(20, kill_at=kill_at, best="min loss", patience=3)
        fresh()
    train, _ = evaluated(20, best="min loss", patience=3)
    assert (train.step, saved()) == (10, [4, 10])
    assert "ends early, at step 10 of 20: the last 3 evaluations were not better" in capfd.readouterr().out
    fresh()
    assert evaluated(20, best="min loss", patience=3)[1] == 0
    assert "ends early, at step 10 of 20" in capfd.readouterr().out
    fresh()
    train, _ = evaluated(20, best="min loss", patience=4)
    assert (train.step, saved()) == (20, [12, 20])


def test_a_best_metric_that_nobody_reports(fresh: Fresh, capfd: pytest.CaptureFixture[str]) -> None:
    evaluated(4, best="max accuracy", patience=1)
    out = capfd.readouterr().out
    assert "best max accuracy: no evaluation has reported accuracy" in out and 'report it with kind="eval"' in out
    assert saved() == [4]


def test_a_finished_run(fresh: Fresh, capfd: pytest.CaptureFixture[str]) -> None:
    """Its state is there, and nothing is done again."""
    first = run(4)
    before = records()
    fresh()
    assert np.array_equal(run(4)["w"], first["w"])
    assert "all 4 steps were done before, so nothing is trained: ask for more steps" in capfd.readouterr().out
    assert (records(), saved()) == (before, [4])


def left(leave_at: int, set_first: bool, how: str) -> podrun.loop.Steps[Any]:
    """Run a loop of 10 steps that is left in a step, before or after it has set the state to the number of the step."""
    train = podrun.steps(10, {"w": np.zeros(2)}, save_every=3)
    for step in enumerated(train) if how == "wrapped" else train:
        if step == leave_at and not set_first:
            if how == "error":
                raise KilledError
            break
        train.state = {"w": np.full(2, float(step))}
        if step == leave_at:
            if how == "return":
                return train
            if how == "error":
                raise KilledError
            if how == "stop":
                train.stop()
                continue
            break
    return train


def enumerated(steps: Any) -> Any:
    """A generator around the loop, as a progress bar is."""
    for step in steps:  # noqa: UP028
        yield step


@pytest.mark.parametrize(
    ("set_first", "how", "last"),
    [
        (True, "break", 5),
        (True, "return", 5),
        (True, "stop", 5),
        (True, "wrapped", 5),
        (False, "break", 4),
        (False, "wrapped", 4),
        (True, "error", 3),
        (False, "error", 3),
    ],
)
def test_a_loop_that_is_left(
    fresh: Fresh, capfd: pytest.CaptureFixture[str], set_first: bool, how: str, last: int
) -> None:
    """The last step that has set its state is saved, said, and resumed; an error saves nothing of its own."""
    try:
        left(5, set_first, how)
    except KilledError:
        assert how == "error"
        assert "the loop was left in step 5 by an error" in capfd.readouterr().out
    else:
        assert f"the loop was left at step {last} of 10; step {last} is saved" in capfd.readouterr().out
    assert saved()[-1] == last
    fresh()
    train = podrun.steps(10, {"w": np.zeros(2)})
    assert train.step == last and (train.state["w"] == last).all()


def test_a_loop_whose_state_changes_in_place_is_left(fresh: Fresh) -> None:
    state = {"w": np.zeros(2)}
    for step in podrun.steps(10, state, save_every=3):
        state["w"] += 1
        if step == 4:
            break
    fresh()
    train = podrun.steps(10, {"w": np.zeros(2)})
    assert (train.step, train.state["w"].tolist()) == (4, [4.0, 4.0])


def test_a_save_that_fails_when_the_loop_is_left(fresh: Fresh, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing can catch it there, so its text is shown."""
    train = podrun.steps(10, {"w": np.zeros(2)})
    for step in train:
        train.state = {"w": np.zeros(2 + step // 2)}
        if step == 2:
            break
    assert "the state of step 2 differs from the first state" in capfd.readouterr().err
    assert saved() == []


@pytest.mark.parametrize("make", [lambda: np.zeros(2), lambda: jnp.zeros(2), lambda: 0.0])
def test_a_state_that_is_never_set(fresh: Fresh, capfd: pytest.CaptureFixture[str], make: Any) -> None:
    """A resumed run would begin with the first one: said after the first step, and an error at the first save."""
    with pytest.raises(UserError, match="the state has not changed up to step 3") as refused:
        for _ in podrun.steps(10, {"w": make(), "name": "x"}, save_every=3):
            pass
    assert "assign the new state to `train.state` in each step" in str(refused.value)
    assert "step 1 has not changed the state" in capfd.readouterr().out
    assert saved() == []


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: {"w": np.zeros(2)}, lambda s: s["w"].__iadd__(1)),
        (lambda: {"w": np.zeros(2)}, lambda s: s.update(w=np.zeros(2))),
        (lambda: {"w": jnp.zeros(2)}, lambda s: s.update(w=jnp.zeros(2))),
        (lambda: {"w": np.zeros(2), "n": 0}, lambda s: s.update(n=1)),
    ],
)
def test_a_state_that_is_changed_in_place_is_set(fresh: Fresh, make: Any, change: Any) -> None:
    state = make()
    for _ in podrun.steps(3, state, save_every=1):
        change(state)
    assert saved() == [2, 3]


class Changing:
    """An object that no checkpoint holds."""

    def __init__(self) -> None:
        self.count = 0


@pytest.mark.parametrize(
    ("first", "change"),
    [
        (np.random.default_rng(0), lambda rng: rng.random() and None),
        (Changing(), lambda changing: setattr(changing, "count", 1)),
        (str, lambda _: int),
        (Changing(), lambda _: np.zeros(1)),
    ],
)
def test_what_cannot_be_saved_is_refused_after_the_first_step(fresh: Fresh, first: Any, change: Any) -> None:
    """By its name, before the first save, if it is not what it was."""
    train = podrun.steps(10, {"w": 0.0, "inner": {"odd": first}})
    steps = iter(train)
    next(steps)
    after = change(first)
    train.state = {"w": 1.0, "inner": {"odd": first if after is None else after}}
    with pytest.raises(UserError, match=r"inner\.odd") as refused:
        next(steps)
    assert "the state of step 1 " in str(refused.value)


def test_what_can_neither_be_saved_nor_compared_is_refused_at_once(fresh: Fresh) -> None:
    with pytest.raises(UserError, match="batches of the state is generator, which can neither be saved nor compared"):
        podrun.steps(10, {"w": 0.0, "batches": (x for x in [1])})


def test_a_checkpoint_of_another_state(fresh: Fresh) -> None:
    run(4)
    fresh()
    with pytest.raises(UserError) as refused:
        podrun.steps(8, {"w": jnp.zeros(4), "key": jax.random.key(0)})
    assert "the checkpoint of step 4 in" in str(refused.value)
    assert "  w: float32[3] in the checkpoint, float32[4] in the state" in str(refused.value)


def test_the_workdir_of_a_train_yaml(fresh: Fresh) -> None:
    meta = Path("runs/train/checkpoints/5/meta/metadata")
    meta.parent.mkdir(parents=True)
    meta.write_text('{"config": {}}')
    with pytest.raises(UserError, match="holds checkpoints of a job from a train"):
        run(4)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"total": -3}, "podrun.steps: total is -3, expected a whole number of at least 0"),
        ({"save_every": -1}, "save_every is -1, expected a whole number of at least 0"),
        ({"keep": 0}, "keep is 0, expected a whole number of at least 1"),
        ({"best": "val/loss"}, "podrun.steps: best must be min or max, and a metric, such as"),
        ({"patience": 3}, "podrun.steps: patience counts evaluations; say which is the best"),
        ({"best": "min loss", "patience": 0}, "patience is 0, expected a whole number of at least 1"),
        ({"total": 2.5}, "cannot be interpreted as an integer"),
        ({"state": object()}, "no arrays and no numbers, so nothing to save; give a pytree of them, not object"),
        ({"state": {"names": np.array(["a"])}}, "names of the state is an array of <U1, which cannot be saved"),
    ],
)
def test_steps_that_cannot_be_made(fresh: Fresh, keys: dict[str, Any], what: str) -> None:
    """They are refused before anything is computed."""
    with pytest.raises((ValueError, TypeError, UserError)) as refused:
        podrun.steps(**{"total": 3, "state": {"w": np.zeros(2)}, **keys})
    assert what in str(refused.value)


def test_a_state_that_changes_its_form(fresh: Fresh) -> None:
    """It could not be restored into the first one, which is told when it is saved and not when it is needed."""
    train = podrun.steps(3, {"w": np.zeros(2), "v": np.float32(1)}, save_every=1)
    steps = iter(train)
    assert next(steps) == 1
    train.state = {"w": np.zeros(3)}
    with pytest.raises(UserError) as refused:
        next(steps)
    assert "  v: float32[] at first, not now\n  w: float64[2] at first, float64[3] now" in str(refused.value)
    assert not Path("runs/train/checkpoints/1").exists()


def moments(total: int, kill_at: int = 0) -> dict[str, Any]:
    """Run a loop whose state gains arrays in its first steps, as that of torch's optimizers; return the last state."""
    train = podrun.steps(total, {"opt": [{"state": {}, "lr": 0.5}], "w": np.ones(2)}, save_every=2)
    for step in train:
        group = train.state["opt"][0]
        state = {key: dict(value) for key, value in group["state"].items()}
        for key in range(min(step, 3)):  # the last one comes after the first save
            mine = state.setdefault(key, {"count": 0, "mean": np.zeros(2, np.float32)})
            mine["count"] += 1
            mine["mean"] = np.float32(0.9) * mine["mean"] + np.float32(step)
        train.state = {"opt": [{"state": state, "lr": 0.5}], "w": train.state["w"] * 1.5}
        if step == kill_at:
            raise KilledError
    return dict(train.state)


def test_a_state_that_gains_arrays(fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are saved, and a resumed run has them, with the types of their keys and values."""
    expected = moments(8)
    assert [*expected["opt"][0]["state"]] == [0, 1, 2]
    monkeypatch.setenv("PODRUN_WORKDIR", str(tmp_path / "other"))
    for kill_at in (3, 5, 7):
        fresh()
        with pytest.raises(KilledError):
            moments(8, kill_at)
    fresh()
    resumed = moments(8)
    assert repr(resumed) == repr(expected)  # also int and float32
    fresh()
    with pytest.raises(UserError, match=r"opt\.0\.lr: float\[\] in the checkpoint, not in the state"):
        podrun.steps(9, {"opt": [{"state": {}}], "w": np.ones(2)})


@pytest.mark.parametrize(
    "gain",
    [
        lambda: {"more": jnp.zeros(2)},  # made in the test: collecting tests starts no backend of JAX
        lambda: {"more": [np.zeros(2)]},
        lambda: {"more": "text"},
        lambda: {"w": [np.zeros(2), np.zeros(2)]},
    ],
)
def test_a_gain_that_could_not_be_restored(fresh: Fresh, gain: Callable[[], dict[str, Any]]) -> None:
    train = podrun.steps(3, {"w": [np.zeros(2)]}, save_every=1)
    steps = iter(train)
    next(steps)
    train.state = {"w": [np.ones(2)], **gain()}
    with pytest.raises(UserError, match="differs from the first state, into which it is restored") as refused:
        next(steps)
    assert "only dictionaries may gain entries: numpy arrays, torch tensors and numbers" in str(refused.value)


def test_what_is_reported_must_be_a_number(fresh: Fresh) -> None:
    with pytest.raises(TypeError, match=r"podrun.report: loss is not a number, but float64\[2\]"):
        podrun.report(1, loss=np.zeros(2))
    with pytest.raises(TypeError, match=r"podrun.report: step is '1', expected a whole number"):
        podrun.report("1", loss=1)  # type: ignore[arg-type]


def test_piecemeal(fresh: Fresh, tmp_path: Path) -> None:
    """A loop without `steps`: it looks for a stop, reports and saves by itself."""
    me = podrun.init(tmp_path / "mine")
    assert (me.process_id, me.num_processes, me.workdir, me.leads) == (0, 1, tmp_path / "mine", True)
    assert podrun.checkpoint.restore({"w": 0.0}) is None
    for step in range(1, 4):
        podrun.report(step, loss=1 / step)
        podrun.checkpoint.save(step, {"w": float(step)}, keep=2)
        assert not podrun.is_stopping()
    fresh()
    podrun.init(tmp_path / "mine")
    assert podrun.checkpoint.restore({"w": 0.0}) == (3, {"w": 3.0})
    assert podrun.checkpoint.restore({"w": 0.0}, step=2) == (2, {"w": 2.0})
    podrun.report(3, loss=0.25, accuracy=jnp.bfloat16(0.5))
    rows = records("mine")
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 0.5), (3, 0.25)]
    assert rows[-1]["accuracy"] == 0.5
    with pytest.raises(ValueError, match="the workdir is"):
        podrun.init(tmp_path / "another")


def test_is_stopping(fresh: Fresh) -> None:
    assert not podrun.is_stopping()
    os.kill(os.getpid(), signal.SIGTERM)
    assert podrun.is_stopping() and podrun.is_stopping()


class Numbers:
    """An iterator that cannot be read by number, with the methods of grain's."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> int:
        self.next += 1
        return self.next

    def get_state(self) -> dict[str, int]:
        return {"next": self.next}

    def set_state(self, state: dict[str, int]) -> None:
        self.next = state["next"]


@pytest.mark.parametrize("leave", ["kill", "break", "before the state is set"])
def test_an_iterator_goes_on(fresh: Fresh, leave: str) -> None:
    """Its state is that after the step that was saved, also if a further number was read."""

    def loop(end: int) -> list[int]:
        numbers = Numbers()
        train = podrun.steps(10, np.zeros(1), save_every=3, iterator=numbers)
        seen = [int(train.state[0])]
        for step in train:
            number = next(numbers)
            if step == end and leave == "before the state is set":
                break
            train.state = train.state + number
            seen.append(number)
            if step == end:
                if leave == "kill":
                    raise KilledError
                break
        return seen

    if leave == "kill":
        with pytest.raises(KilledError):
            loop(8)
    else:
        loop(8)
    fresh()
    last = {"kill": 6, "break": 8, "before the state is set": 7}[leave]
    assert loop(0) == [sum(range(last + 1)), *range(last + 1, 11)]


def test_an_evaluation_before_training_keeps_what_is_on_record(fresh: Fresh) -> None:
    """And is on record itself, as one of another set after the last step is."""
    for total in (4, 6):
        fresh()
        podrun.report(0, kind="eval", loss=9.0)
        train = podrun.steps(total, {"w": np.zeros(2)}, save_every=2)
        for step in train:
            train.state = {"w": np.full(2, float(step))}
            podrun.report(step, loss=1 / step)
        podrun.report(total, kind="test", auc=0.5)
    assert [record["step"] for record in records() if record["kind"] == "train"] == [*range(1, 7)]
    assert [(r["step"], r.get("loss"), r.get("test/auc")) for r in records() if r["kind"] == "eval"] == [
        (0, 9.0, None),
        (4, None, 0.5),
        (6, None, 0.5),
    ]


def test_a_value_that_is_changed_after_its_report(fresh: Fresh) -> None:
    total = np.array(0.0)
    train = podrun.steps(4, {"w": np.zeros(2)})
    for step in train:
        train.state = {"w": np.full(2, float(step))}
        total += step
        podrun.report(step, total=total)
        total[...] = 0
    assert [record["total"] for record in records()] == [1.0, 2.0, 3.0, 4.0]


def test_other_arguments_are_told(
    fresh: Fresh, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are seldom meant to go on with the state of the ones before."""
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "1e-3"])
    run(4)
    fresh()
    run(4)
    assert "was made with" not in capfd.readouterr().out
    fresh()
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "1e-2"])
    run(4)
    told = "the checkpoint of step 4 was made with `--lr 1e-3`, and goes on with `--lr 1e-2`; another run needs another"
    assert told in capfd.readouterr().out


def test_iterators_that_do_not_fit(fresh: Fresh) -> None:
    with pytest.raises(
        UserError, match=r"podrun\.steps: its iterator, list_iterator, has neither get_state and set_state"
    ):
        podrun.steps(3, np.zeros(1), iterator=iter([1]))
    fresh()
    for step in (train := podrun.steps(2, np.zeros(1))):
        train.state = train.state + step
    fresh()
    with pytest.raises(UserError, match="the checkpoint has no states of iterators, and this run has 1"):
        podrun.steps(4, np.zeros(1), iterator=Numbers())


class Forgetful(Numbers):
    """Its state cannot be set."""

    def set_state(self, state: dict[str, int]) -> None:
        pass


class Silent(Numbers):
    """It forgets to return its state."""

    def get_state(self) -> dict[str, int]:
        return None  # type: ignore[return-value]


class Squares:
    """A source for grain, which names it in its states by its `repr`."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index**2


class NamedSquares(Squares):
    def __repr__(self) -> str:
        return "Squares()"


def test_a_state_with_an_address(fresh: Fresh) -> None:
    """Grain would refuse it on a resume, so it is refused at the start."""
    grain = pytest.importorskip("grain.python")

    def loader(source: Any) -> Any:
        sampler = grain.IndexSampler(100, grain.NoSharding(), seed=0)
        return iter(grain.DataLoader(data_source=source, sampler=sampler, worker_count=0))

    with pytest.raises(UserError, match=r"has <.*Squares object at 0x[0-9a-f]+>, whose address differs .* `__repr__`"):
        podrun.steps(4, np.zeros(1), iterator=loader(Squares()))
    for total, values in (2, 2), (4, 4):
        fresh()
        numbers = loader(NamedSquares())
        train = podrun.steps(total, np.zeros(1), iterator=numbers)
        for _ in train:
            train.state = train.state + next(numbers)
        assert next(numbers) == next(itertools.islice(loader(NamedSquares()), values, None))


def test_iterators_that_would_begin_anew(fresh: Fresh) -> None:
    numbers = Numbers()
    train = podrun.steps(2, np.zeros(1), iterator=numbers)
    for _ in train:
        train.state = train.state + next(numbers)
    fresh()
    with pytest.raises(UserError, match="has the same state after `set_state` as before"):
        podrun.steps(4, np.zeros(1), iterator=Forgetful())
    fresh()
    with pytest.raises(UserError, match="the checkpoint has the states of iterators, and this program gives none"):
        podrun.steps(4, np.zeros(1))
    fresh()
    with pytest.raises(UserError, match="`get_state` of its iterator returns None; was its `return` forgotten"):
        podrun.steps(4, np.zeros(1), iterator=Silent())


def test_piecemeal_state_that_gains_arrays(fresh: Fresh, tmp_path: Path) -> None:
    """Entries of dictionaries that came after the first state are restored into one without them, as by `steps`."""
    for number in range(1, 4):  # a run that is stopped twice
        podrun.init(tmp_path / "mine")
        restored = podrun.checkpoint.restore({"w": np.zeros(2), "opt": {}})
        step, state = restored or (0, {"w": np.zeros(2), "opt": {}})
        assert step == number - 1
        if restored:
            assert state["opt"]["count"] == step and type(state["opt"]["count"]) is int
            np.testing.assert_array_equal(state["opt"]["m"]["w"], [step, step])
        opt = {"count": step + 1, "m": {"w": np.full(2, step + 1.0)}}
        podrun.checkpoint.save(step + 1, {"w": state["w"] + 1, "opt": opt})
        fresh()


def test_piecemeal_arrays_that_are_gone_are_missed(fresh: Fresh, tmp_path: Path) -> None:
    """A state without an array that the first one had is another state."""
    podrun.init(tmp_path / "mine")
    podrun.checkpoint.save(1, {"w": np.zeros(2), "opt": {"m": np.zeros(2)}})
    fresh()
    podrun.init(tmp_path / "mine")
    with pytest.raises(UserError, match=r"opt\.m: float64\[2\] in the checkpoint, not in the state"):
        podrun.checkpoint.restore({"w": np.zeros(2), "opt": {}})

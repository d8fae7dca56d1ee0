"""Devices that must agree bit for bit are compared, and the one that differs is named (`launch.verify_every`)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.launcher.rundir.events import parse_worker_event
from podrun.runtime.array_names import places
from podrun.runtime.contract import DivergedError, UserError, Workdir, WorkerEnv, WrongHostError
from podrun.runtime.injection import parse_checked
from podrun.runtime.majority import Verdict, by_place, faulty, odd_devices, odd_results
from podrun.runtime.state import TrainState
from podrun.runtime.verification import Difference, Digests, Verifier, describe, digest
from podrun.runtime.worker.fault_injection import FaultInjector
from podrun.runtime.worker.progress import Reporter

from ...tiers import mostly_long
from ..strategies import SECTIONS, dataset, job, make, place, random_state, strategy
from .reference import batches

DIVIDED_WHOLE = [name for name in SECTIONS if "fsdp" not in name and name != "single"]


def verifier_of(name: str, **keys: Any) -> tuple[Verifier, TrainState, Any]:
    """Return a verifier, a placed state and a batch."""
    one = strategy(name, **keys)
    return Verifier(one.config, one.task, one, "host-0"), place(one, random_state(one)), one.shard(batches(1)[0])


def with_fault(state: TrainState, path: Path) -> TrainState:
    """Return the state with the injected fault `bitflip`."""
    env = WorkerEnv("run", 0, "host-0", 0, 1, (0,), "cpu-1x4", path)
    reporter = Reporter(path / "0.events")
    faults = FaultInjector(parse_checked(["bitflip@step=1"]), env, Workdir(path), reporter)
    assert faults.state(state) is state
    faults.begin_step(1)
    flipped: TrainState = faults.state(state)
    assert faults.state(flipped) is flipped
    return flipped


@pytest.mark.parametrize(
    ("groups", "values", "odd", "is_certain"),
    [
        ([0, 0, 0, 0], "aaaa", (), True),
        ([0, 0, 0, 0], "aaba", (2,), True),
        ([0, 0, 0, 0], "abca", (0, 1, 2, 3), False),
        ([0, 0], "ab", (0, 1), False),
        ([0, 1, 0, 1], "abab", (), True),
        ([0, 1, 0, 1], "abaa", (1, 3), False),
        ([0, 0, 0, 1], "abab", (1,), True),
        ([0], "a", (), True),
    ],
)
def test_the_majority_of_a_group_decides(
    groups: list[int], values: str, odd: tuple[int, ...], is_certain: bool
) -> None:
    assert odd_devices(groups, values) == Verdict(odd, is_certain)


def test_a_digest_sees_changes_that_cancel_in_sums_of_words() -> None:
    whole = jax.jit(digest)
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    short = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)
    halves = [np.concatenate([-v[:32], v[32:]]) for v in (x, short)] + [np.roll(v, 32) for v in (x, short)]
    pairs = np.array([1, -1] * 32, np.float32)
    seen = {tuple(np.asarray(whole(v)).tolist()) for v in (x, -x, short, -short, pairs, -pairs, *halves)}
    assert len(seen) == 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "int8", "bool", "complex64"])
def test_a_digest_changes_with_each_bit_and_with_the_order(dtype: str) -> None:
    whole = jax.jit(digest)
    random = np.random.default_rng(0)
    words = random.integers(0, 2, 24) if dtype == "bool" else random.integers(0, 100, 24)
    x = np.asarray(jnp.asarray(words, dtype)).reshape(4, 6)
    seen = {tuple(np.asarray(whole(x)).tolist())}
    bits = 1 if dtype == "bool" else 8 * x.dtype.itemsize
    for bit in range(bits):
        changed = x.copy().reshape(-1)
        unsigned = changed.view(f"uint{8 * x.dtype.itemsize}")
        unsigned[7] ^= unsigned.dtype.type(1 << bit)
        seen.add(tuple(np.asarray(whole(changed.reshape(4, 6))).tolist()))
    assert len(seen) == bits + 1
    first = next(n for n in range(24) if x.reshape(-1)[n] != x.reshape(-1)[0])
    swapped = x.copy().reshape(-1)
    swapped[[0, first]] = swapped[[first, 0]]
    assert (np.asarray(whole(swapped.reshape(4, 6))) != np.asarray(whole(x))).any()


@pytest.mark.parametrize("name", SECTIONS)
def test_a_flipped_bit_is_found_where_others_hold_the_same(name: str, tmp_path: Path) -> None:
    verifier, state, batch = verifier_of(name)
    if name in ("single", "explicit fsdp 4"):
        assert not verifier.can_compare(state)
        return
    assert verifier.can_compare(state)
    verifier.check(state, batch, 1)
    with pytest.raises(DivergedError, match="values of the state differ after step 2, in params") as raised:
        verifier.check(with_fault(state, tmp_path), batch, 2)
    is_certain = "fsdp" not in name  # otherwise only two devices hold the same part
    assert isinstance(raised.value, WrongHostError) == is_certain
    assert "all agreed after step 1;" in str(raised.value)
    assert "host-0 (process 0, its device 0)" in str(raised.value)
    assert is_certain == ("this is so on" in str(raised.value))


@pytest.mark.parametrize("name", DIVIDED_WHOLE)
def test_a_device_that_computes_something_else_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is equal everywhere, as it is after an all-reduce of wrong sums."""
    verifier, state, batch = verifier_of(name, accumulate=2)
    real = verifier._alone.gradients

    def wrong(*args: Any) -> Any:
        (grads, metrics), after = real(*args)
        factor = jnp.where(jax.lax.axis_index("device") == 2, 1 + 2.0**-12, 1)
        return (jax.tree.map(lambda x: x * factor, grads), metrics), after

    monkeypatch.setattr(verifier._alone, "gradients", wrong)
    with pytest.raises(
        WrongHostError, match=r"gradients of the same examples differ after step 5, in .* while 3 devices"
    ) as raised:
        verifier.check(state, batch, 5)
    assert "this is so on host-0 (process 0, its device 2)\n" in str(raised.value)
    assert "first comparison" in str(raised.value)


@pytest.mark.parametrize(("devices", "expected"), [(1, WrongHostError), (4, UserError)])
def test_a_host_is_told_from_a_program_that_is_not_deterministic(
    devices: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices that do not repeat their own result: one of them is wrong; all of them, and the program is."""
    verifier, state, batch = verifier_of("pmap")
    real = verifier._alone.gradients
    random = np.random.default_rng(0)

    def unsteady(*args: Any) -> Any:
        (grads, metrics), after = real(*args)
        index = jax.lax.axis_index("device")
        noise = jax.pure_callback(lambda: np.float32(random.random()), jax.ShapeDtypeStruct((), jnp.float32))
        return (jax.tree.map(lambda x: x + jnp.where(index < devices, noise, 0), grads), metrics), after

    monkeypatch.setattr(verifier._alone, "gradients", unsteady)
    words = r"in 1[56] of 16 computations of the same" if devices == 1 else "this program is not deterministic"
    with pytest.raises(expected, match=words) as raised:
        verifier.check(state, batch, 3)
    assert type(raised.value) is expected


def test_a_result_that_was_odd_once_blames_nobody_until_only_one_host_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may give another result now and then, and so may a host: where the odd ones are tells them apart."""
    verifier, state, batch = verifier_of("pmap")
    real = verifier._compute
    calls = 0

    def seldom_odd(*args: Any) -> Digests:
        nonlocal calls
        calls += 1
        digests = real(*args)
        if calls % 16 != 1:  # the first of the computations of each comparison is odd
            return digests
        summary = digests.summary.copy()
        summary[2, 2:] += 1
        return replace(digests, summary=summary, gradients=digests.gradients.at[2, 0].add(1))

    monkeypatch.setattr(verifier, "_compute", seldom_odd)
    notes: list[str] = []
    for step in range(1, 8):
        verifier.check(state, batch, step, notes.append)
    assert len(notes) == 7
    assert notes[0].startswith(
        "launch.verify_every: host-0 (process 0, its device 2) computed other gradients in 1 of 16 computations from the "
        "same state and examples after step 1, too seldom to say"
    )
    with pytest.raises(WrongHostError, match="in 1 of 16 computations of the same, while 3 devices agree"):
        verifier.check(state, batch, 8)


@pytest.mark.parametrize(
    ("odd", "wrong"),
    [
        ([0, 0, 0, 0], ()),
        ([0, 1, 0, 0], ()),
        ([0, 7, 0, 0], ()),
        ([0, 8, 0, 0], (1,)),
        ([0, 14], ()),
        ([0, 15], (1,)),
        ([0, 16, 0, 16], (1, 3)),
        ([16, 16, 16, 16], ()),
        ([0] * 255 + [3], (255,)),
        ([0] * 10_000 + [1], ()),
    ],
)
def test_the_places_of_odd_results_tell_a_host_from_a_program(odd: list[int], wrong: tuple[int, ...]) -> None:
    assert faulty(odd) == wrong


def test_odd_results_are_counted_for_each_place() -> None:
    assert odd_results(["aab", "aab"]) == []
    assert odd_results(["aab", "aac", "aaa"]) == [0, 0, 2]
    assert by_place([0, 2, 1, 3], [0, 0, 1, 1]) == [2, 3]
    assert by_place([0, 2, 1], [0, 0, 0]) == [0, 2, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_program_that_is_seldom_odd_blames_no_host(seed: int) -> None:
    """There are 400 comparisons of 4 devices, each of which is odd in 8 % of its computations."""
    random = np.random.default_rng(seed)
    for _ in range(400):
        values = np.where(random.random((16, 4)) < 0.08, 1, 0).tolist()
        assert faulty(odd_results(values) or [0] * 4) == ()


@pytest.mark.parametrize("name", mostly_long(DIVIDED_WHOLE, lambda _, name: name in ("pmap", "jit")))
def test_200_undisturbed_comparisons_raise_no_alarm(name: str) -> None:
    one = make(job(name, dropout=0.5, ema=0.9), dataset())
    verifier, state = Verifier(one.config, one.task, one, "host-0"), place(one, random_state(one))
    for step, batch in enumerate(batches(200 // len(DIVIDED_WHOLE)), 1):
        shard = one.shard(batch)
        state, _ = one.step(state, shard)
        jax.block_until_ready(state)
        verifier.check(state, shard, step)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_record_has_a_digest_of_each_parameter_and_one_of_the_rest(name: str) -> None:
    """It is as large for a state that is divided, and the same each time; the launcher can read it."""
    verifier, state, batch = verifier_of(name)
    record = verifier.record(state, verifier.digests(state, batch), 3)
    assert parse_worker_event(json.dumps({**record, "time": 1.0}).encode())["event"] == "verified"
    names = [".".join(place) for place, _ in places(state.params, "the state")]
    rows = digests_of(record["state"])
    assert len(rows) == len(names) + 1
    assert len(digests_of(record["gradients"])) == (len(names) if verifier.why_state_only == "" else 0)
    assert verifier.record(state, verifier.digests(state, batch), 3) == record
    longest = max(range(len(names)), key=lambda n: jax.tree.leaves(state.params)[n].size)
    leaves, structure = jax.tree.flatten(state.params)
    leaves[longest] = leaves[longest] * 2
    for changed, numbers in (
        (replace(state, params=jax.tree.unflatten(structure, leaves)), [longest]),
        (replace(state, opt_state=jax.tree.map(lambda x: x + 1, state.opt_state)), [len(names)]),
    ):
        after = digests_of(verifier.record(changed, verifier.digests(changed, batch), 3)["state"])
        assert [n for n, row in enumerate(after) if row != rows[n]] == numbers


def digests_of(text: str) -> list[bytes]:
    data = base64.b64decode(text, validate=True)
    return [data[at : at + 8] for at in range(0, len(data), 8)]


@pytest.mark.parametrize("name", ["pmap", "jit"])
def test_a_rehearsed_wrong_sum_changes_the_gradients_only_a_little(name: str) -> None:
    """A step of global arrays is not changed: processes with different programs would wait for each other in vain."""
    one, other = make(job(name), dataset()), make(job(name), dataset())
    factor = other.gradient_factor = 1 + 2.0**-12
    norms = []
    for each in (one, other):
        _, metrics = each.step(place(each, random_state(each)), each.shard(batches(1)[0]))
        norms.append(metrics.read()["grad_norm"])
    assert norms[1] / norms[0] == pytest.approx(factor if name == "pmap" else 1.0, rel=1e-5)


def test_two_that_differ_are_both_named() -> None:
    found = Difference(Verdict((0, 1), False), "values of the state")
    text = describe(found, ["a", "b", "c"], ["host-0 (process 0)", "host-1 (process 1)"], 0, 20, 10)
    assert text.splitlines()[0] == (
        "the values of the state differ after step 20, in a, b and 1 more, between host-0 (process 0), host-1 (process 1)"
    )
    assert "no majority" in text

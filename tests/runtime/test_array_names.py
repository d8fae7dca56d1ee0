"""Names of arrays: each tree comes back from a checkpoint as it was, or is refused before anything is computed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from podrun.runtime.array_names import check_parameters, places
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.contract import UserError
from podrun.runtime.models.adapter import named, refilled
from podrun.runtime.worker.progress import Reporter

from .strategies import FEATURES, dataset, job, make

keys = st.one_of(
    st.text(alphabet="ab./0%~ \0é", max_size=4),
    st.text(max_size=3),
    st.sampled_from(
        ["a.b", "a", "b", "", ".", "..", "/", "a/", "a//", "0", "\ud800", ".zarray", "value", "e\u0301", "é"]
    ),
    st.integers(0, 3),
)
trees = st.recursive(
    st.just(0.0),
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, min_size=1, max_size=3), st.lists(inner, min_size=1, max_size=2), st.tuples(inner)
    ),
    max_leaves=5,
)


def numbered(tree: Any) -> Any:
    """Return the tree with another number for each leaf."""
    count = iter(range(1, 100))
    return jax.tree.map(lambda _: float(next(count)), tree)


@settings(max_examples=25, deadline=None)
@given(trees)
@example({"a.b": 0.0, "a": {"b": 0.0}})
@example({"a/": 0.0, "a": 0.0})
@example({"": {"": 0.0}, ".": 0.0})
@example({0: 0.0, "0": 0.0})
@example({0: 0.0, "a": 0.0})
@example({"\ud800": 0.0})
def test_a_tree_comes_back_or_is_refused(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            checkpoints = ProgramCheckpoints(Path(folder), tree, Retention(1))
        except UserError as error:
            reason = str(error)
        else:
            reason = None
        if reason is not None:
            assert reason.startswith("the state cannot be saved:")
            return
        state = numbered(tree)
        checkpoints.save(1, state)
        checkpoints.completed(wait=True)
        checkpoints.close()
        assert ProgramCheckpoints(Path(folder), tree, Retention(1)).restore(1, tree, Reporter(None)) == state


@settings(max_examples=200, deadline=None)
@given(trees)
def test_the_parameters_of_a_plug_in_keep_their_places(tree: Any) -> None:
    try:
        flat = named(tree)
    except UserError:
        return
    numbers = numbered(flat)
    assert named(refilled(tree, numbers)) == numbers
    assert len({".".join(place) for place, _ in places(flat, "it")}) == len(jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ({"a.b": 0.0, "a": {"b": 0.0}}, "two arrays would be called a.b: ['a']['b'] and ['a.b']; give one of them"),
        ({"a/": 0.0, "a": 0.0}, "two arrays would be called a/: ['a'] and ['a/']"),
        ({"x": {0: 0.0, "0": 0.0}}, "a dictionary has the keys 0 and '0'; give one of them another name"),
        ({"x": [{0: 0.0, "a": 0.0}]}, "a dictionary has keys of several types (0, 'a'); give them one type"),
        ({"\ud800": 0.0}, r"'\ud800' has half a character in its name; give it another"),
    ],
)
def test_what_is_refused(tree: Any, problem: str) -> None:
    with pytest.raises(UserError) as refused:
        places(tree, "the state")
    assert f"the state cannot be saved: {problem}" in str(refused.value)


def test_every_parameter_that_cannot_be_trained_is_named() -> None:
    arrays = {"w": np.zeros(3), "ids": np.zeros(2, np.int32), "none": np.zeros((0, 3)), "on": np.zeros(1, bool)}
    with pytest.raises(UserError) as refused:
        check_parameters(arrays, {"count": np.zeros(1, np.int32), "empty": np.zeros(0)})
    assert str(refused.value).splitlines() == [
        "the model cannot be trained:",
        "  ids is an array of int32, which has no gradient; it belongs in the model's state",
        "  on is an array of bool, which has no gradient; it belongs in the model's state",
        "  none is of size zero ([0, 3]); leave it out",
        "  empty is of size zero ([0]); leave it out",
    ]


MODEL = """
import jax.numpy as jnp

class Net:
    def init(self, key):
        return {"w": jnp.zeros((FEATURES, 10)), **EXTRA}

    def apply(self, params, x):
        return x @ params["w"]

def make(options, outputs, dtype):
    return Net()
"""


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ('{"a.b": jnp.ones(2), "a": {"b": jnp.ones(2)}}', "two arrays would be called a.b"),
        ('{"empty": jnp.zeros((0, 3))}', "empty is of size zero"),
        ('{"ids": jnp.arange(3)}', "ids is an array of int32, which has no gradient; it belongs in the model's state"),
        ('{"x": {0: jnp.ones(2), "0": jnp.ones(2)}}', "a dictionary has the keys 0 and '0'"),
    ],
)
def test_a_model_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, problem: str
) -> None:
    (tmp_path / "named_net.py").write_text(MODEL.replace("EXTRA", extra).replace("FEATURES", str(FEATURES)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "named_net", raising=False)
    start: Callable[[], Any] = lambda: make(job("single", model="named_net:make"), dataset()).init()  # noqa: E731
    with pytest.raises(UserError, match=problem):
        start()
    sys.modules.pop("named_net")

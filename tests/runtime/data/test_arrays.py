"""Examples in memory: gathering, splitting, checks and fingerprints."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config.data import MakeClassificationData, SineData
from podrun.runtime.contract import UserError
from podrun.runtime.data import arrays
from podrun.runtime.data.arrays import ArrayExamples, array_dataset, fingerprint, inputs, labels, split, values
from podrun.runtime.data.synthetic import _identity

from ..array_jobs import Array, everything, load


def pair(size: int) -> tuple[Array, Array]:
    """Inputs that say which example they are of, and targets that say the same."""
    number = np.arange(size)
    return np.stack([number, -number], axis=1).astype(np.float32), number.astype(np.int32)


# --- gathering ------------------------------------------------------------------------------------------------------


def test_gather_is_indexing() -> None:
    """Any indices, in any order and more than once, give what NumPy's indexing gives; training has no weights."""
    x, y = pair(10)
    for indices in ([3], [9, 0, 0, 4], list(range(9, -1, -1))):
        batch = ArrayExamples(x, y).gather(np.array(indices), np.zeros(len(indices), np.int64))
        np.testing.assert_array_equal(batch.pop("x"), x[indices])
        np.testing.assert_array_equal(batch.pop("y"), y[indices])
        assert not batch


def test_bytes_are_scaled_when_gathered() -> None:
    """Bytes become float32 from exactly 0 to exactly 1, as precise as a division."""
    x = np.arange(256, dtype=np.uint8)[:, None]
    gathered = everything(ArrayExamples(x, x[:, 0], scale=1 / 255))["x"]
    assert gathered.dtype == np.float32
    assert gathered[0, 0] == 0 and gathered[255, 0] == 1
    np.testing.assert_allclose(gathered, x / 255, rtol=2e-7)


def test_validation_has_weights() -> None:
    """One for each example."""
    dataset = array_dataset(pair(4), pair(3), classes=4)
    batch = everything(dataset.validation)
    assert batch["weights"].dtype == np.float32
    assert batch["weights"].tolist() == [1, 1, 1]
    assert "weights" not in everything(dataset.train)


def test_shape_and_outputs() -> None:
    """The outputs of labels are the classes, those of values how many an example has."""
    x, y = pair(4)
    assert (array_dataset((x, y), (x, y), classes=7).shape, array_dataset((x, y), (x, y), classes=7).outputs) == (
        (2,),
        7,
    )
    assert array_dataset((x, x), (x, x)).outputs == 2


# --- splitting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "share", "held"), [(10, 0.1, 1), (10, 0.25, 2), (3, 0.01, 1), (3, 0.99, 2), (2, 0.5, 1)]
)
def test_split(size: int, share: float, held: int) -> None:
    """Every example is in one of the parts, with its target; none of them is empty."""
    parts = split(pair(size), share, "here")
    assert [len(x) for x, _ in parts] == [size - held, held]
    assert sorted(np.concatenate([y for _, y in parts]).tolist()) == list(range(size))
    for x, y in parts:
        np.testing.assert_array_equal(x[:, 0], y)


def test_the_split_is_random_but_fixed() -> None:
    """Validation is drawn from everywhere, and is the same each time."""
    (_, first), (_, second) = (split(pair(100), 0.3, "here")[1] for _ in range(2))
    assert first.tolist() == second.tolist()
    assert min(first) < 20 and max(first) >= 80


def test_one_example_cannot_be_split() -> None:
    """It would be in training or in validation only."""
    with pytest.raises(UserError, match=r"^here: 1 example"):
        split(pair(1), 0.5, "here")


# --- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bool"])
def test_numbers_become_float32(dtype: str) -> None:
    """All types of numbers do; a vector has an axis added, so that an example has a shape."""
    found = inputs(np.array([0, 1, 1], dtype), "x")
    assert found.dtype == np.float32
    assert found.tolist() == [[0], [1], [1]]


def bad(array: Array, at: Any, value: Any) -> Array:
    array = array.copy()
    array[at] = value
    return array


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (bad(np.zeros((3, 2)), (1, 1), np.nan), "x[1, 1] is nan"),
        (bad(np.zeros(3), 2, -np.inf), "x[2] is -inf"),
        (bad(np.zeros(3), 1, 1e300), "x[1] is 1e+300"),
        (np.array(["a", "b"]), "x has type <U1, not numbers"),
        (np.array([1, [2]], dtype=object), "x has Python objects, not numbers"),
        (np.zeros(2, complex), "x has type complex128, not numbers"),
    ],
)
def test_what_is_not_a_finite_number(array: Array, message: str) -> None:
    """The message names the first of them, or the type."""
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        inputs(array, "x")


@pytest.mark.parametrize("y", [np.array([0, 2, 1]), np.array([0.0, 2.0, 1.0]), np.array([[0], [2], [1]], np.uint8)])
def test_labels_become_int32(y: Array) -> None:
    """Whole numbers are labels, whatever their type."""
    found = labels(y, "y", classes=3)
    assert found.dtype == np.int32
    assert found.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([0, -1, -2]), "y[1] is -1: labels must be whole numbers from 0 to 2"),
        (np.array([0, 1.5]), "y[1] is 1.5"),
        (np.array([0, np.nan]), "y[1] is nan"),
        (np.array([0, 1, 3]), "y[2] is 3"),
        (np.eye(3), "y has shape (3, 3), but a label is one whole number"),
        (np.array(["cat"]), "y has type <U3, not numbers"),
    ],
)
def test_what_is_not_a_label(y: Array, message: str) -> None:
    """Negative, fractional or too large; several numbers for an example; no number at all."""
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        labels(y, "y", classes=3)


def test_identifiers_are_no_labels() -> None:
    """A model for a thousand million classes would end for want of memory; with `classes` many are the user's wish."""
    with pytest.raises(
        UserError, match=r"^y\[1\] is 900000000: .* from 0 to 65535; .* give data.classes if there are more"
    ):
        labels(np.array([0, 900000000]), "y")
    assert labels(np.array([0, 70000]), "y", classes=70001).max() == 70000
    assert labels(np.array([0, 2], np.float16), "y").tolist() == [0, 2]


def test_messages_name_examples_by_their_numbers() -> None:
    """The number is that of the example, not its place in a batch."""
    numbers = np.array([70, 50])
    with pytest.raises(UserError, match=r"^x\[50\] is nan"):
        inputs(np.array([0, np.nan]), "x", numbers)
    with pytest.raises(UserError, match=r"^y\[50\] is -1"):
        labels(np.array([0, -1]), "y", None, numbers)


def test_targets_of_more_axes() -> None:
    """A target is a number or a vector."""
    assert values(np.zeros(4), "y").shape == (4, 1)
    assert values(np.zeros((4, 3)), "y").shape == (4, 3)
    with pytest.raises(UserError, match=r"^y has shape \(4, 3, 2\)"):
        values(np.zeros((4, 3, 2)), "y")


# --- fingerprint ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_fingerprint(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """Equal for equal arrays; another for other values, another shape or type, or another order of arrays."""
    if large:
        monkeypatch.setattr(arrays, "_FULL_HASH", 100)
        monkeypatch.setattr(arrays, "_BLOCK", 16)
    x, y = np.arange(300, dtype=np.float32), np.arange(300, dtype=np.int32)
    known = fingerprint(x, y)
    assert fingerprint(x.copy(), y.copy()) == known
    others = [(y, x), (x.reshape(30, 10), y), (x.astype(np.float64), y), (x[:-1], y)]
    others += [(bad(x, at, -1), y) for at in (0, 150, 299)]
    assert known not in [fingerprint(*other) for other in others]


# --- data that is on every machine ----------------------------------------------------------------------------------


def test_digits() -> None:
    """1797 images from 0 to 1 with labels from 0 to 9, split as `validation` says, the same way each time."""
    dataset = load("classification", "digits", validation=0.25)
    assert (dataset.train.size, dataset.validation.size) == (1348, 449)
    assert (dataset.shape, dataset.outputs) == ((8, 8, 1), 10)
    train = everything(dataset.train)
    assert (train["x"].min(), train["x"].max()) == (0, 1)
    assert set(train["y"].tolist()) == set(range(10))
    assert load("classification", "digits", validation=0.25).fingerprint == dataset.fingerprint
    assert load("classification", "digits", validation=0.2).fingerprint != dataset.fingerprint


def test_make_classification() -> None:
    """It is scikit-learn's own, and without a share for validation both sets are all of it."""
    from sklearn.datasets import make_classification

    keys = {"samples": 60, "features": 12, "classes": 3, "informative": 5, "seed": 4}
    x, y = make_classification(n_samples=60, n_features=12, n_classes=3, n_informative=5, random_state=4)
    dataset = load("classification", "make_classification", **keys)
    for examples in (dataset.train, dataset.validation):
        batch = everything(examples)
        np.testing.assert_array_equal(batch["x"], x.astype(np.float32))
        np.testing.assert_array_equal(batch["y"], y)
    assert (dataset.shape, dataset.outputs) == ((12,), 3)
    held = load("classification", "make_classification", **keys, validation=0.25)
    assert (held.train.size, held.validation.size) == (45, 15)
    assert held.fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"features": 12, "informative": 11}, "give informative at most 10"),
        ({"features": 12, "informative": 4, "classes": 10}, "need at least 5"),
    ],
)
def test_make_classification_that_scikit_learn_would_refuse(keys: dict[str, int], message: str) -> None:
    """It is said when the job is read."""
    with pytest.raises(ValueError, match=message):
        load("classification", "make_classification", **keys)


def test_sine() -> None:
    """y is sin(6x) - x^2/2 and noise of the given size; the seed decides what the noise is."""
    dataset = load("regression", "sine", samples=4000, noise=0.2, seed=1)
    batch = everything(dataset.train)
    x, y = batch["x"], batch["y"]
    assert x.shape == y.shape == (3200, 1)
    assert -1 <= x.min() < -0.99 and 0.99 < x.max() <= 1
    noise = y - (np.sin(6 * x) - x**2 / 2)
    assert noise.std() == pytest.approx(0.2, rel=0.05)
    assert load("regression", "sine", samples=4000, noise=0.2, seed=2).fingerprint != dataset.fingerprint


def test_computed_data_of_older_versions() -> None:
    """Their identity stays as it was, so that older runs go on: keys that came later do not count at their defaults."""
    classes = b'"samples":50000,"features":784,"classes":10,"informative":50,"seed":0,"validation":0.0}'
    assert _identity(MakeClassificationData(skip=((1, 2),))).startswith(b'{"name":"make_classification",' + classes)
    assert _identity(SineData()).startswith(b'{"name":"sine","samples":10000,"noise":0.1,"seed":0,"validation":0.2}')
    assert b'"range":[0.0,1.0]' in _identity(SineData(range=(0.0, 1.0)))


@pytest.mark.parametrize("name", ["digits", "make_classification"])
def test_without_scikit_learn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the package, the interpreter, and the file to which the package belongs."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=rf"{name} needs scikit-learn, which {sys.executable} lacks.*requirements.txt"):
        load("classification", name)

"""Expressions over arrays: their values, what is refused, and that nothing in one is run as Python."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

from podrun.runtime.contract import UserError
from podrun.runtime.inspect_job.expression import FUNCTIONS, parse_expression

A, B, w, b = (
    np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32) for shape in [(4, 6), (4, 6), (6, 3), (3,)]
)
ARRAYS = {"A": A, "B": B, "w": w, "b": b}
NUMPY = {
    **{
        name: getattr(np, name)
        for name in ("sin", "exp", "maximum", "sum", "mean", "std", "max", "cumsum", "outer", "dot")
    },
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize(
    "text",
    [
        *("2*sin(A)**2 + 1", "A*B", "A - -B", "A / 2 ** 3", "A**0.5", "A**-1", "+A", "A.T @ B", "exp(A @ w + b)"),
        *("A.sum(axis=0)", "A.sum(0)", "sum(A, 1)", "sum(A)", "A.mean(axis=(0, 1))", "mean(A, axis=-1, keepdims=True)"),
        *("A.sum(1, keepdims=True) * A", "A.max().T", "std(A, 0)", "logsumexp(A, axis=0)", "maximum(A, 0.5)"),
        *("relu(A - 0.5)", "cumsum(A, 0)", "A.cumsum(axis=1)", "outer(b, b)", "A.dot(w)", "(A.T).sum(axis=0)"),
    ],
)
def test_values(text: str) -> None:
    """They are those of NumPy for the same text."""
    value = parse_expression(text, ARRAYS)(ARRAYS)
    np.testing.assert_allclose(value, eval(text, NUMPY, ARRAYS), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "axis"), [("softmax(A)", -1), ("softmax(A @ w + b, axis=0)", 0), ("log_softmax(A)", -1)]
)
def test_a_softmax_is_along_the_last_axis_unless_it_says_otherwise(text: str, axis: int) -> None:
    value = parse_expression(text, ARRAYS)(ARRAYS)
    of, function = (A @ w + b if "w" in text else A), (log_softmax if text.startswith("log") else softmax)
    np.testing.assert_allclose(value, function(of, axis=axis), rtol=1e-5)


def test_a_function_by_its_name_in_the_table() -> None:
    for name in FUNCTIONS:
        for text in (f"{name}(A)", f"{name}(b, b)"):
            try:
                jax.eval_shape(parse_expression(text, ARRAYS), ARRAYS)
                break
            except UserError:
                continue
        else:
            raise AssertionError(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an expression"),
        ("A +", "not an expression"),
        ("A = 1", "not an expression"),
        ("A\0", "not an expression"),
        ("(" * 500 + "A" + ")" * 500, "not an expression"),
        ("-" * 1000 + "A", "within each other"),
        ("A" + " + A" * 1000, "characters; at most"),
        ("A" + "+A" * 300, "within each other"),
        ("9" * 999 + " * A", "too large for float32"),
        ("C + A", "there is no array C; there are A, B, w, b"),
        ("A + a", "there is no array a"),
        ("ww + A", "no array ww; did you mean w?"),
        ("softmaxx(A)", "no function softmaxx; did you mean softmax?"),
        ("A(B)", "an array is not called"),
        ("sin", "sin is a function; call it, as sin(A)"),
        ("1 + 2", "uses none of the arrays"),
        ("A if A else B", "not allowed"),
        ("A < B", "not allowed"),
        ("A // 2", "not allowed"),
        ("A[0]", "not allowed"),
        ("[A]", "not allowed"),
        ("'A'", "not allowed"),
        ("A + 1j", "not allowed"),
        ("A + True", "not allowed"),
        ("(lambda: A)()", "not a function"),
        ("[x for x in A]", "not allowed"),
        ("A.shape", "not allowed"),
        ("A.__class__", "not allowed"),
        ("A.tofile(1)", "no function tofile"),
        ("__import__('os').system('true')", "no function system"),
        ("sin(A, B)", "sin takes one array"),
        ("sin()", "sin takes one array"),
        ("sin(*A)", "sin takes one array"),
        ("maximum(A)", "maximum takes two arrays"),
        ("sum(A, axis=A)", "axis=A in sum: it must be a number"),
        ("sum(A, axis=1.5)", "it must be a number"),
        ("sum(A, axis=())", "it must be a number"),
        ("sum(A, 0, axis=0)", "sum with axis"),
        ("sum(A, keepdims=2)", "it must be True or False"),
        ("sum(A, where=B)", "sum with where: it takes only axis= and keepdims="),
        ("softmax(A, **B)", "softmax with **"),
        ("sin(A, axis=0)", "sin with axis: it has no options"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    """With the option, the text and the reason, and before anything is computed."""
    with pytest.raises(UserError) as caught:
        parse_expression(text, ARRAYS)
    assert message in str(caught.value)
    assert str(caught.value).startswith("--expr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A + w", r"A \+ w does not fit \[4, 6\] and \[6, 3\]: dimensions, counted from the last, must be equal, or 1"),
        ("1 + A @ B", r"A @ B does not fit \[4, 6\] and \[4, 6\]: the last dimension of the first"),
        ("dot(A, B)", r"does not fit \[4, 6\] and \[4, 6\]: the last dimension"),
        ("A @ 2", r"A @ 2 does not fit \[4, 6\] and \[\]"),
        ("A.sum(axis=2)", r"does not fit \[4, 6\] along axis 2: axis 2 is out of bounds"),
        ("softmax(A.sum(), axis=0)", r"along axis 0"),
        ("A.sum(axis=99999999999999999999)", r"along axis 99999999999999999999"),
        ("A.sum(axis=(0, 0))", r"along axis \(0, 0\)"),
    ],
)
def test_shapes_that_do_not_fit(text: str, message: str) -> None:
    """The part of the expression and the shapes."""
    with pytest.raises(UserError, match=message):
        parse_expression(text, ARRAYS)(ARRAYS)


@given(st.text("AB12.+-*/@()[]{}',=:_ TsumxinX\n", max_size=40))
def test_any_text_is_an_expression_or_a_mistake(text: str) -> None:
    with contextlib.suppress(UserError):
        parse_expression(text, ARRAYS)(ARRAYS)

"""Parse an expression over arrays, such as `softmax(x @ w + b)`, into a function that JAX can trace.

An expression is never evaluated as Python. It may consist of names of arrays, numbers, `+ - * / ** @`, calls of the functions
below, reductions as methods, and `.T`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..contract import UserError
from ..wording import did_you_mean

_LONGEST, _DEEPEST = 2000, 200
"""Maximum number of characters, and maximum depth of nested operations."""
_OPERATORS: dict[type[ast.operator], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("+", jnp.add),
    ast.Sub: ("-", jnp.subtract),
    ast.Mult: ("*", jnp.multiply),
    ast.Div: ("/", jnp.divide),
    ast.Pow: ("**", jnp.power),
    ast.MatMult: ("@", jnp.matmul),
}
_ONE: dict[str, Callable[..., Any]] = {
    name: getattr(jnp, name)
    for name in (
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        *("exp", "expm1", "log", "log1p", "log2", "sqrt", "square", "abs", "sign", "floor", "ceil", "transpose"),
    )
} | {name: getattr(jax.nn, name) for name in ("relu", "gelu", "silu", "sigmoid", "softplus", "elu")}
"""Functions of one array."""
_TWO: dict[str, Callable[..., Any]] = {
    name: getattr(jnp, name) for name in ("maximum", "minimum", "power", "matmul", "dot", "outer")
}
"""Functions of two arrays."""
_ALONG: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in ("sum", "mean", "max", "min", "prod", "var", "std")},
    "logsumexp": jax.nn.logsumexp,
}
"""Reductions. `axis` is a number or a tuple, by default all axes; `keepdims` may be True."""
_SAME: dict[str, Callable[..., Any]] = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "cumsum": lambda x, axis=-1: jnp.cumsum(x, axis),
}
"""Functions along one axis that keep the shape; `axis` is the last by default."""
_PRODUCT = "the last dimension of the first must equal the last but one of the second, or its only one"
FUNCTIONS = {**_ONE, **_TWO, **_ALONG, **_SAME}


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    names: tuple[str, ...]
    """Names of the arrays in it, in the order of their first use."""
    tree: ast.expr

    def __call__(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        """Compute the value for arrays by name. Raises UserError, with the subexpression, if shapes or axes do not fit."""
        return jnp.asarray(_value(self, self.tree, arrays))


def parse_expression(text: str, arrays: Collection[str]) -> Expression:
    """Parse an expression over named arrays.

    Raises UserError if it is malformed, or contains anything but arrays, numbers, and the operators and functions above.
    """
    if len(text) > _LONGEST:
        raise UserError(f"--expr: {len(text)} characters; at most {_LONGEST} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", None) or str(error) or "nested too deep"
        raise UserError(f'--expr {text}: not an expression ({why}); write one such as "softmax(x @ w + b)"') from None
    if _depth(tree) > _DEEPEST:
        raise UserError(f"--expr {text}: more than {_DEEPEST} operations within each other; give a shorter expression")
    expression = Expression(text, tuple(dict.fromkeys(_names(text, tree, arrays))), tree)
    if not expression.names:
        raise UserError(f"--expr {text}: it uses none of the arrays; there are {', '.join(arrays) or 'none'}")
    return expression


def _depth(tree: ast.AST) -> int:
    nodes, depth = [tree], 0
    while nodes:
        nodes, depth = [child for node in nodes for child in ast.iter_child_nodes(node)], depth + 1
    return depth


def _names(text: str, node: ast.expr, arrays: Collection[str]) -> list[str]:
    """Return the names of the arrays in an expression. Raises UserError if any part of it is not allowed."""
    match node:
        case ast.Name(id=name) if name in arrays:
            return [name]
        case ast.Name(id=name) if name in FUNCTIONS:
            raise UserError(f"--expr {text}: {name} is a function; call it, as {name}({next(iter(arrays), 'A')})")
        case ast.Name(id=name):
            raise UserError(f"--expr {text}: there is no array {name}{_nearest(name, arrays)}")
        case ast.Constant(value=value) if type(value) in (int, float):
            _number(text, node)
            return []
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _names(text, operand, arrays)
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _OPERATORS:
            return _names(text, left, arrays) + _names(text, right, arrays)
        case ast.Attribute(value=value, attr="T"):
            return _names(text, value, arrays)
        case ast.Call():
            name, operands = _called(text, node, arrays)
            _options(text, name, node)
            return [used for operand in operands for used in _names(text, operand, arrays)]
    raise UserError(
        f"--expr {text}: {_part(text, node)} is not allowed; an expression has arrays, numbers, + - * / ** @, .T and "
        "calls of functions such as sin(A), sum(A, axis=0) and softmax(A)"
    )


def _called(text: str, node: ast.Call, arrays: Collection[str] | None = None) -> tuple[str, list[ast.expr]]:
    """Return a call's function and operands, without an axis. `sum(A, 0)` and `A.sum(0)` give the same."""
    match node.func:
        case ast.Name(id=name):
            known, operands = FUNCTIONS, list(node.args)
        case ast.Attribute(value=value, attr=name):
            known, operands = {**_ALONG, "cumsum": _SAME["cumsum"], "dot": _TWO["dot"]}, [value, *node.args]
        case _:
            raise UserError(f"--expr {text}: {_part(text, node.func)} is not a function")
    if name not in known:
        hint = "; an array is not called" if arrays and name in arrays else _nearest(name, known)
        raise UserError(f"--expr {text}: there is no function {name}{hint}")
    wanted = 2 if name in _TWO else 1
    if len(operands) == wanted + 1 and (name in _ALONG or name in _SAME):
        operands.pop()  # the axis by position
    if len(operands) != wanted or any(isinstance(operand, ast.Starred) for operand in operands):
        takes = "two arrays" if wanted == 2 else "one array, and an axis" if name in (_ALONG | _SAME) else "one array"
        raise UserError(f"--expr {text}: {name} takes {takes}, not {_part(text, node)}")
    return name, operands


def _options(text: str, name: str, node: ast.Call) -> dict[str, int | tuple[int, ...]]:
    """Return the arguments `axis` and `keepdims` of a call."""
    allowed = ("axis", "keepdims") if name in _ALONG else ("axis",) if name in _SAME else ()
    given: dict[str, ast.expr] = {}
    positional = len(node.args) - (isinstance(node.func, ast.Name) if name not in _TWO else 0)
    if allowed and positional > 0:
        given["axis"] = node.args[-1]
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in allowed or keyword.arg in given:
            listed = " and ".join(f"{option}=" for option in allowed)
            may = f"it takes only {listed}, each at most once" if allowed else "it has no options"
            raise UserError(f"--expr {text}: {name} with {keyword.arg or '**'}: {may}")
        given[keyword.arg] = keyword.value
    options: dict[str, int | tuple[int, ...]] = {}
    for option, value in given.items():
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError):
            literal = None
        entries = literal if isinstance(literal, tuple) and name in _ALONG else (literal,)
        kind = bool if option == "keepdims" else int
        if not entries or not all(type(entry) is kind for entry in entries):
            wanted = "True or False" if kind is bool else "a number such as 0 or -1"
            raise UserError(f"--expr {text}: {option}={_part(text, value)} in {name}: it must be {wanted}")
        options[option] = literal
    return options


def _value(of: Expression, node: ast.expr, arrays: Mapping[str, jax.Array]) -> Any:
    """Compute the value of a subexpression, which `_names` has checked."""
    match node:
        case ast.Name(id=name):
            return arrays[name]
        case ast.Constant():
            return _number(of.text, node)
        case ast.UnaryOp(op=operator, operand=operand):
            value = _value(of, operand, arrays)
            return jnp.negative(value) if isinstance(operator, ast.USub) else value
        case ast.BinOp(op=operator, left=left, right=right):
            sign, operation = _OPERATORS[type(operator)]
            values = _value(of, left, arrays), _value(of, right, arrays)
            if sign == "**" and type(exponent := getattr(right, "value", None)) is int and abs(exponent) < 1 << 31:
                values = values[0], exponent  # with an int as exponent JAX multiplies
            return _apply(of, node, operation, *values)
        case ast.Attribute(value=value):
            return _apply(of, node, jnp.transpose, _value(of, value, arrays))
        case ast.Call():
            name, operands = _called(of.text, node)
            values = tuple(_value(of, operand, arrays) for operand in operands)
            return _apply(of, node, FUNCTIONS[name], *values, **_options(of.text, name, node))
    raise AssertionError(ast.dump(node))


def _apply(of: Expression, node: ast.expr, operation: Callable[..., Any], *values: Any, **options: Any) -> Any:
    """Call a function of JAX. Raises its errors as UserError, with the subexpression and the shapes."""
    try:
        return operation(*values, **options)
    except (TypeError, ValueError, OverflowError) as error:
        shapes = " and ".join(str(list(jnp.shape(value))) for value in values)
        axis = f" along axis {options['axis']}" if "axis" in options else ""
        remedy = _PRODUCT if _is_product(node) else ""
        remedy = remedy or ("" if axis else "dimensions, counted from the last, must be equal, or 1")
        why = remedy or str(error).strip().splitlines()[0]
        raise UserError(f"--expr {of.text}: {_part(of.text, node)} does not fit {shapes}{axis}: {why}") from None


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", getattr(node.func, "attr", "")) in ("matmul", "dot")
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _number(text: str, node: ast.Constant) -> float:
    try:
        return float(node.value)  # type: ignore[arg-type] # an int or a float
    except OverflowError:
        raise UserError(f"--expr {text}: {_part(text, node)} is too large for float32") from None


def _part(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text.strip(), node) or text


def _nearest(name: str, known: Collection[str]) -> str:
    return f"{did_you_mean(name, known) or ';'} there are {', '.join(known)}"

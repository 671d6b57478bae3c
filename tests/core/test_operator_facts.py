"""What the table of operators says about each of them: that it is there, and that it is true."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from operator_cases import CASES, Case
from oracle import plain

from conftest import ROOT
from loma.ad.rules import OP_RULES
from loma.backends.interpreter import Interpreter, ops as numpy_ops
from loma.core import shapes
from loma.core.definitions import OPERATORS
from loma.core.ops import INFIX, OPS, OpInfo
from loma.frontend import parse

BROADCASTING = (shapes.broadcast, shapes.quotient, shapes.compare, shapes.builtin, shapes.where)


def missing(info: OpInfo) -> Iterator[str]:
    """What the row of an operator lacks, or has too much."""
    if (info.work == "defined") != (info.define is not None):
        yield "an operator is 'defined' that has a definition"
    if (info.infix or info.shape in BROADCASTING) and info.work != "elementwise":
        yield "what is infix or broadcasts is 'elementwise'"
    if info.work == "elementwise" and not info.any_element:
        yield "an 'elementwise' operator takes ints, too"
    if info.work == "view" and not (info.shares and info.linear == "together"):
        yield "a 'view' shares storage and is linear"
    if (info.shape is shapes.reduce) != (info.reduces is not None):
        yield "a reduction over dims says what it reduces by"
    if info.linear == "each" and len(info.args) not in (2, 3):
        yield "there are two factors, and what is added to their product"
    if info.divides and info.name not in {row.name for row in INFIX.values()}:
        yield "only infix operations of two numbers divide"
    if info.differentiable and not (info.define or info.name in OP_RULES):
        yield "a rule"
    if not info.differentiable and (info.linear or info.name in OP_RULES):
        yield "what has a rule is differentiable"
    if info.differentiable and not any(map(info.passes, range(len(info.args)))):
        yield "an argument that derivatives pass through"
    if not {*info.ints, *info.constant} <= {*info.args}:
        yield "arguments of the names in 'ints' and 'constant'"
    if "like" in info.args and "like" not in info.constant:
        yield "of 'like' only the shape matters"


def test_rows_have_the_facts_of_their_class() -> None:
    assert [f"{info.name}: {what}" for info in OPERATORS.values() for what in missing(info)] == []


# ------------------------------------------------------------------------------------------ truth


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_facts_are_true(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the interpreter runs an operator, its result is what the row says."""
    for name, rule in numpy_ops.OPS.items():
        monkeypatch.setitem(numpy_ops.OPS, name, checked(OPS[name], rule))
    Interpreter(parse(case.text)).call(f"op_{case.name}", *map(plain, case.arguments()))


def checked(info: OpInfo, rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **attrs: Any) -> Any:
        y = rule(*args, **attrs)
        floats = [
            k for k, a in enumerate(args)
            if np.asarray(a).dtype.kind == "f" and info.passes(k)
        ]  # fmt: skip

        def scaled(*positions: int) -> Any:
            return rule(*(-2 * a if k in positions else a for k, a in enumerate(args)), **attrs)

        if info.work == "elementwise":
            assert np.shape(y) == np.broadcast_shapes(*map(np.shape, args))
        if info.linear == "together" and floats:
            np.testing.assert_allclose(scaled(*floats), -2 * y, 1e-12, 1e-12)
        if info.linear == "each":
            for factor in floats[:2]:
                np.testing.assert_allclose(scaled(factor, *floats[2:]), -2 * y, 1e-12, 1e-12)
        if info.fill is not None:
            assert np.all(np.asarray(y) == info.fill)
        if info.work == "view":
            assert np.isin(y, args[0]).all()
        if info.reduces in ("max", "min"):
            assert np.isin(y, [*np.ravel(args[0]), 0]).all()
        for k, arg in enumerate(args):
            if info.arg(k) == "like":
                other = [*args[:k], np.zeros_like(arg), *args[k + 1 :]]
                np.testing.assert_array_equal(rule(*other, **attrs), y)
        return y

    return run


# -------------------------------------------------------------------------------------- one place

# The tables of rules, of what backends call operators, of precedence and of hints.
TABLES = (
    "ad/rules.py", "ad/scalar_rules.py", "backends/c/expressions.py", "loma/arithmetic/grids.py",
    "loma/arithmetic/integers.py", "backends/cfamily/syntax.py", "backends/interpreter/ops.py",
    "backends/interpreter/values.py", "backends/schedule/verify.py",
    "backends/cfamily/cpp.py", "backends/cfamily/loops.py", "backends/torch/ops.py",
    "backends/torch/sizes.py", "frontend/expressions/calls.py", "loma/core/printer.py",
    "loma/passes/canonical/operators/chosen.py", "ad/tensor/weights.py",
)  # fmt: skip
NAMES = {*OPERATORS, *INFIX}
MANY = 3  # two names may be two cases of one computation


def lists_of_names(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Lines of displays with several names of operators in them; a type of them is none."""
    types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
        for inner in ast.walk(node.slice)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Set(items) | ast.Tuple(items) | ast.List(items) if node not in types:
                parts: list[Any] = items
            case ast.Dict(keys):
                parts = keys
            case _:
                continue
        names = NAMES & {part.value for part in parts if isinstance(part, ast.Constant)}
        if len(names) >= MANY:
            yield node.lineno, sorted(names)


def test_facts_about_operators_stand_in_their_table() -> None:
    """A set of operators elsewhere is a column that the table lacks."""
    found = {
        str(path.relative_to(ROOT)): dict(lists_of_names(ast.parse(path.read_text("utf-8"))))
        for folder in ("loma", "ad", "frontend", "backends")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {place: lists for place, lists in found.items() if lists and place not in TABLES} == {}
    assert [place for place in TABLES if not found[place]] == [], "these need not be named"


def test_lists_are_found() -> None:
    text = 'A = {"add", "sub", "mul"}\nB: Literal["+", "-", "*"]\nC = ("max", "min")\n'
    text += 'D = {"sum": 1, "mean": 2, "prod": 3}\n'
    found = dict(lists_of_names(ast.parse(text)))
    assert found == {1: ["add", "mul", "sub"], 4: ["mean", "prod", "sum"]}

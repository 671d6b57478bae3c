"""Statements are known by their numbers: equal ones are two, a changed one stays the one it was."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

from loma.ad.scalar import hoist
from loma.ad.tensor import normalise
from loma.core.ir import FLOAT, INT, Assign, Call, CallStmt, FloatConst, If, Stmt, TupleType, Var
from loma.core.printer import print_function
from loma.core.walk import map_expressions, numbered, statements
from loma.frontend import parse

X, COND = Var("x", FLOAT), Var("c", INT)
ONE = Assign(X, "=", FloatConst(1.0))
BRANCH = If(COND, (ONE, ONE), (ONE,))


def _numbers(body: tuple[Stmt, ...]) -> list[int]:
    return [stmt.number for stmt in statements(body)]


def test_every_statement_has_a_number_of_its_own() -> None:
    body = numbered((ONE, BRANCH, ONE))
    assert _numbers(body) == [1, 2, 3, 4, 5, 6]
    assert _numbers(numbered(body[1:])) == [1, 2, 3, 4, 5]


def test_statements_can_share_a_number() -> None:
    assert _numbers(numbered((ONE, BRANCH), repeat(7))) == [7] * 5


def test_numbers_are_no_part_of_what_a_statement_says() -> None:
    (made,) = numbered((ONE,), repeat(7))
    assert made == ONE
    assert hash(made) == hash(ONE)
    assert repr(made) == repr(ONE)


def test_a_statement_that_changes_keeps_its_number() -> None:
    first, branch = numbered((ONE, BRANCH))
    assert isinstance(first, Assign)
    assert replace(first, value=X).number == 1
    assert _numbers((map_expressions(branch, lambda e: e),)) == [2, 3, 4, 5]
    call = CallStmt(Call("f", (X,), TupleType(())), number=3)
    assert replace(call, call=replace(call.call, function="g")).number == 3


SCALAR = """
def h(x : In[float], y : Out[float]):
    y = x * x

def f(x : In[float], n : In[int]) -> float:
    y : float = x
    y = y * y
    y = y * y
    i : int
    while (y < sin(x) * 3.0 and i < n, max_iter := 9):
        y = y * y
        h(x, y)
        i = i + 1
    return y
"""
TENSOR = """
def f(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    y : Tensor[N] = x
    y = y * y
    y = y * y
    for t in range(n):
        y = y * y
        y[i] = y[i] * sum(y[j] for j in N)
    return y
"""


def test_normal_forms_have_numbers() -> None:
    """What the analyses of reverse mode go by, in both layers."""
    module = parse(SCALAR)
    functions = {function.name: function for function in module.functions}
    scalar = hoist.normalise(functions["f"], functions, {}).function
    module = parse(TENSOR)
    tensor = normalise.normalise(module.function("f"), module).function
    for function in (scalar, tensor):
        found = _numbers(function.body)
        assert found == list(range(1, len(found) + 1)), print_function(function)
        equal = list(statements(function.body))
        assert len(set(equal)) < len(equal), "equal statements are in the program"

"""Assignments to scattered elements: values and derivatives, and that no element is named twice."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest
from sampled import one_in
import torch
from oracle import Program, check_case
from scatter_cases import CASES, CHECKED, PROVED

import loma
import oracle
from loma import pipeline
from loma.ad import differentiate, split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.distinct import unproved
from loma.core.ir import IndexAssign
from loma.core.walk import statements
from loma.frontend import parse
from loma.passes.liveness import covers

BY_NAME = {case.name: case for case in CASES}
# Compiled in any run; the others with --full.
COMPILED = ("reshaped", "by_row", "in_loops")


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([BY_NAME[name].text for name in COMPILED], first=(), second=())


@pytest.fixture(scope="module")
def all_programs() -> Program:
    return Program([case.text for case in CASES])


@pytest.fixture(scope="module")
def interpreted() -> Program:
    return Program([case.text for case in CASES], first=(), second=())


@pytest.mark.parametrize("name", one_in(2, BY_NAME))
def test_interpreted(interpreted: Program, name: str) -> None:
    check_case(interpreted, BY_NAME[name], libtorch=False)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name])


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_compiled_all(all_programs: Program, name: str) -> None:
    check_case(all_programs, BY_NAME[name])


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_proved_is_not_checked(name: str) -> None:
    (function,) = parse(BY_NAME[name].text).functions
    checked = [s for s in statements(function.body) if isinstance(s, IndexAssign) and unproved(s)]
    assert bool(checked) == (name in {case.name for case in CHECKED} - {"cleared"})


@pytest.mark.parametrize("name", [case.name for case in PROVED])
def test_what_is_all_overwritten_needs_no_zeros(name: str) -> None:
    (function,) = parse(BY_NAME[name].text).functions
    written = [s for s in statements(function.body) if isinstance(s, IndexAssign)]
    assert written
    assert all(map(covers, written))


# ------------------------------------------------------------------------------------- repeated
REPEATED = """
def f(y : Out[Tensor[A, B]], x : In[Tensor[K, L]], p : In[IntTensor[K]], q : In[IntTensor[K, L]],
      on : In[int]):
    if on == 1:
        y[p[i], j + 0] = x[i, j]
    elif on == 2:
        y[1, q[i, j]] = x[i, j]
    elif on == 3:
        y[p[i], q[i, j]] = x[i, j] if j > 0 else y[p[i], q[i, j]]
    elif on == 4:
        y[p[i] // 2, 0] = on + 0.0
    elif on == 5:
        y[p[i] // 2, 1] = 5.0
    for k in range(K):
        y[p[k], 0] = x[k, 0]
"""
MESSAGES = {
    1: "line 5: 'y[p[i], j + 0]' is assigned twice: at i = 0 and at i = 2 it is y[3, j + 0]",
    2: "line 7: 'y[1, q[i, j]]' is assigned twice: "
    "at i = 0, j = 1 and at i = 1, j = 0 it is y[1, 4]",
    3: "line 9: 'y[p[i], q[i, j]]' is assigned twice: "
    "at i = 0, j = 1 and at i = 2, j = 0 it is y[3, 4]",
    4: "line 11: 'y[p[i] // 2, 0]' is assigned twice: at i = 0 and at i = 2 it is y[1, 0]",
}


@pytest.fixture(scope="module")
def repeating() -> Any:
    return loma.compile(REPEATED)


def _arguments(width: int, on: int) -> list[Any]:
    p = torch.tensor([3, 0, 3, 4])
    q = torch.tensor([[0, 4], [4, 0], [4, 1], [0, 1]])
    return [torch.zeros(5, width), torch.ones(4, 2), p, q, on]


@pytest.mark.parametrize("on", MESSAGES)
@pytest.mark.parametrize("width", [5, 5000])  # a table of all elements, and a set
def test_an_element_that_is_named_twice(repeating: Any, width: int, on: int) -> None:
    args = _arguments(width, on)
    with pytest.raises(ValueError, match=re.escape(MESSAGES[on])) as compiled:
        repeating.f(*args)
    arrays = [a.numpy().astype(np.float64 if k < 2 else np.int64) for k, a in enumerate(args[:4])]
    with pytest.raises(ValueError, match=re.escape(MESSAGES[on])) as interpreted:
        Interpreter(parse(REPEATED)).call("f", *arrays, on)
    assert str(compiled.value) == str(interpreted.value)
    assert "'+=' adds up what falls on one element" in str(compiled.value)


def test_what_may_be_named_twice(repeating: Any) -> None:
    args = _arguments(5, 5)  # a number, and single elements in loops
    repeating.f(*args)
    assert args[0][:, 1].tolist() == [5, 5, 5, 0, 0]
    assert args[0][:, 0].tolist() == [1, 0, 0, 1, 1]


def test_outside_comes_first(repeating: Any) -> None:
    args = _arguments(5, 1)
    args[2] = torch.tensor([7, 3, 3, 7])
    with pytest.raises(ValueError, match="outside dimension 0 of size 5"):
        repeating.f(*args)


def test_where_nothing_is_named_nothing_is_checked(repeating: Any) -> None:
    args = _arguments(5, 1)
    args[1], args[3] = args[1][:, :0], args[3][:, :0]
    args[0] = torch.zeros(5, 0)
    with pytest.raises(ValueError, match="outside"):  # the loop's y[p[k], 0]
        repeating.f(*args)


SCATTERED = """
def f(x : In[Tensor[K]], p : In[IntTensor[K]], c : In[float]) -> Tensor[5]:
    y : Tensor[5]
    for t in range(2):
        y[p[i]] = c * x[i] + (y[p[i]] if t > 0 else 0.0)
    return y

d_f = rev_diff(f)
t_f = fwd_diff(f)
dd_f = rev_diff(d_f)
"""


def _checks(name: str) -> int:
    function = differentiate(parse(SCATTERED)).function(name)
    return sum(isinstance(s, IndexAssign) and unproved(s) != () for s in statements(function.body))


def test_each_derivative_checks_once() -> None:
    """What it does besides has no check, and the check stays where no value is needed."""
    assert [_checks(name) for name in ("f", "d_f", "t_f", "dd_f")] == [1, 1, 1, 1]
    module, (pair,) = split_pairs(parse(SCATTERED.split("d_f")[0]))
    again = [s for s in statements(module.function(pair.backward).body)
             if isinstance(s, IndexAssign) and unproved(s)]  # fmt: skip
    assert not again


def test_derivatives_fail_where_the_function_fails() -> None:
    interpreter = Interpreter(differentiate(parse(SCATTERED)))
    p, x, y = np.array([1, 3, 1]), np.ones(3), np.ones(5)
    for name, args in (("d_f", (x, 0 * x, p, 0 * p, 2.0, 0.0, y)), ("t_f", (x, x, p, 2.0, 1.0))):
        with pytest.raises(ValueError, match="at i = 0 and at i = 2 it is y"):
            interpreter.call(name, *args)


# A statement, and whether it adds where the number says.
BY_NUMBER = {
    "sum": ("y[g, d] = sum(x[n, d] if k[n] == g else 0.0 for n in N)", True),
    "added": ("y[g, d] += x[n, d] if x[n, d] > 0.0 and g == k[n] else 0.0", True),
    "within": ("y[g, d] = 2.0 + d * sum(x[n, d] if k[n] == g else 0.0 for n in N)", True),
    "behind_a_test": (
        "y[g, d] = sum(x[n, d] if n > 0 and k[n - 1] == g else 0.0 for n in N)",
        True,
    ),
    "beside_a_test": ("y[g, d] = sum(x[n, d] if k[n] == g and d < 1 else 0.0 for n in N)", True),
    "ones": ("y[g, d] = sum(1.0 * x[n, d] if k[n] == g else 1.0 for n in N)", False),
    "weighted": ("y[g, d] = sum(x[n, d] * g if k[n] == g else 0.0 for n in N)", False),
    "places": ("y[g, d] = sum(x[n, d] if n == g else 0.0 for n in N)", False),
    "few": ("y[g, d] = sum(x[n, d] if k[n] == g else 0.0 for n in N)", False),
}


def _by_number(name: str) -> str:
    rows = "3" if name == "few" else "G"
    head = f"{name}(x : In[Tensor[N, D]], k : In[IntTensor[N]], G : In[int]) -> Tensor[{rows}, D]"
    return f"def {head}:\n    y : Tensor[{rows}, D]\n    {BY_NUMBER[name][0]}\n    return y\n"


def test_what_carries_an_index_is_added_where_the_number_says() -> None:
    text = "".join(map(_by_number, BY_NUMBER))
    for name, (_, scattered) in BY_NUMBER.items():
        shown = pipeline.stage_text(text, "optimised", name)
        assert ("] += " in shown or "if 0 <= k" in shown) == scattered, shown
    own = oracle.compiled(text)
    plain = Interpreter(parse(text))
    values = torch.Generator().manual_seed(7)
    for numbers, count in (([1, 0, 1, 4, -1, 7], 5), ([2], 3), ([], 3), ([0, 1], 0)):
        k = torch.tensor(numbers, dtype=torch.int64)
        x = torch.randn(len(numbers), 2, generator=values, dtype=torch.float64)
        x.requires_grad_()
        for name in BY_NUMBER:
            if name == "few":
                continue
            scatter = functools.partial(getattr(own, name), k=k, G=count)
            (expected,) = plain.call(name, x.detach().numpy(), k.numpy(), count)
            np.testing.assert_allclose(scatter(x).detach(), expected, rtol=1e-12)
            assert torch.autograd.gradcheck(scatter, (x,))
    lost = torch.full((2, 2), torch.nan)
    assert own.sum(lost, torch.tensor([5, -1]), 5).eq(0.0).all()  # of no g

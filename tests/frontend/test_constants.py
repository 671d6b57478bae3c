"""Constants at the top level stand wherever a number does."""

from __future__ import annotations

import inspect
import pickle
import re

import numpy as np
import pytest
import torch
from c_host import CProgram

import loma
from loma.ad import differentiate
from loma.backends.interpreter.interpreter import Interpreter
from loma.core.printer import print_module
from loma.frontend import parse

TEXT = """
def scalar(x : In[Array[float, COUNT]], n : In[int]) -> float:
    p : Pair
    s : float = EPS
    tape : Stack[float, 2 * K]
    for i in range(K, 0, LOW):
        s += x[i] * x[K - 2]
    p.v[K - 1] = s
    while (n > LOW, max_iter := 2 * COUNT):
        n -= 1
        s = s + p.v[K - 1]
    return s ** K

def tensor(X : In[Tensor[K, N]]) -> Tensor[K + 1, N]:
    Y : Tensor[K + 1, N]
    Y[K, n] = X[K - 1, n] + sum(X[j, K] for j in range(K)) + BIG
    return Y

EPS : float = 1e-6 * SCALE
SCALE : float = 2
K : int = 3
COUNT : int = 2 * K - 1
LOW : int = -(K // 2)
BIG : int = 2 ** 40

class Pair:
    v : Array[float, K]
"""
NUMBERS = {"EPS": 2e-6, "K": 3, "COUNT": 5, "LOW": -1, "BIG": 2**40}


def test_a_constant_is_its_value() -> None:
    text, *_ = TEXT.partition("EPS :")
    for name, value in NUMBERS.items():
        text = text.replace(name, str(value))
    module = parse(TEXT)
    assert module == parse(text.replace("2 * 3", "6").replace("2 * 5", "10")
                           + "class Pair:\n    v : Array[float, 3]\n")  # fmt: skip
    assert parse(print_module(module)) == module


def test_functions_compute_with_constants() -> None:
    module = parse(TEXT)
    x = [0.5, 1.5, -2.0, 3.0, 1.0]
    s = 2e-6 + sum(x[i] * x[1] for i in (3, 2, 1))
    s += 5 * s
    for way in (Interpreter(module), CProgram(parse(TEXT.replace(TEXT[TEXT.index("def tensor"):
                TEXT.index("EPS :")], "")))):  # fmt: skip
        assert way.call("scalar", x, 4)[0] == pytest.approx(s**3, rel=1e-5)
    y = np.arange(15.0).reshape(3, 5)
    (found,) = Interpreter(module).call("tensor", y)
    np.testing.assert_allclose(found[3], y[2] + y[:, 3].sum() + 2**40)
    assert not found[:3].any()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("7 / 2", "3"), ("-7 / 2", "-3"), ("-7 // 2", "-4"), ("-7 % 3", "2"), ("2 ** -1", "0"),
     ("2.9", "2"), ("True", "1"), ("+3", "3"), ("7 / 2.0", "3")],
)  # fmt: skip
def test_values_of_ints(value: str, wanted: str) -> None:
    text = "def f() -> int:\n    return {}\n"
    assert parse(f"K : int = {value}\n" + text.format("K")) == parse(text.format(wanted))


DEFAULTS = """
HALF : float = 0.5

def g(x : In[float], n : In[int] = 2, shift : In[float] = -HALF) -> float:
    return x ** 2 * n + shift

def h(x : In[float]) -> float:
    return g(x) + 10.0 * g(x, shift=1.0) + 100.0 * g(shift=2.0, x=x, n=3)

def t(X : In[Tensor[N]], k : In[int] = 1, s : In[float] = 2 * HALF) -> Tensor[N]:
    Y : Tensor[N]
    Y[i] = X[i] * s + k + g(X[i])
    return Y

def scale(X : Out[Tensor[N]], s : In[float] = 3.0):
    X[i] = X[i] * s

d_g = rev_diff(g)
f_g = fwd_diff(g)
d_t = rev_diff(t)
"""


def test_calls_take_default_values() -> None:
    module = parse(DEFAULTS)
    assert parse(print_module(module)) == module
    for name in ("d_g", "f_g", "d_t"):
        assert not differentiate(module).function(name).defaults
    assert Interpreter(module).call("h", 2.0)[0] == 7.5 + 10 * 9 + 100 * 14


def test_python_takes_default_values() -> None:
    m = loma.compile(DEFAULTS)
    assert str(inspect.signature(m.g)) == "(x, n=2, shift=-0.5)"
    assert str(inspect.signature(m.t)) == "(X, k=1, s=1.0)"
    assert m.g.__doc__.startswith("g(x : In[float], n : In[int] = 2, shift : In[float] = -0.5)")
    assert [m.g(3.0), m.g(3.0, 1), m.g(x=3.0, shift=0.0), m.h(2.0)] == [17.5, 8.5, 18.0, 1497.5]
    assert pickle.loads(pickle.dumps(m.g))(3.0) == 17.5
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    for found, wanted in (
        (m.t(x), [3.5, 10.5]), (m.t(x, 0), [2.5, 9.5]), (m.t(X=x, s=0.0), [2.5, 8.5]),
        (m.t(x, 2, 2.0), [5.5, 13.5]),
    ):  # fmt: skip
        assert found.tolist() == wanted
    m.t(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5.0, 9.0]
    lists = [torch.ones(2), torch.ones(3)]
    m.scale.each(lists)
    m.scale.each(lists, s=0.5)
    assert [y.tolist() for y in lists] == [[1.5] * 2, [1.5] * 3]
    for call, error in (
        (m.g, "g() misses argument 'x'"), (m.t, "t() misses argument 'X'"),
        (lambda: m.g(1.0, 2, 3.0, 4.0), "g() takes 3 arguments"),
        (lambda: m.g(1.0, x=2.0), "g() got argument 'x' twice"),
        (lambda: m.t(x, 1, k=2), "t() got argument 'k' twice"),
        (lambda: m.d_g(1.0), "d_g() misses argument 'n'"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=re.escape(error)):
            call()

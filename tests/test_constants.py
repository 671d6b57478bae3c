"""Constants at the top level stand wherever a number does."""

from __future__ import annotations

import numpy as np
import pytest
from c_host import CProgram

from loma.backends.interpreter.interpreter import Interpreter
from loma.frontend import parse
from loma.printer import print_module

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

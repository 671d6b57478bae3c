"""Sums of thousands of terms and chains of hundreds of branches: read, printed, run, derived."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sampled import diagonals, one_in
from c_host import CProgram
from scalar_oracle import Scalars, check_adjoint, check_differences, random_floats

import loma
from loma import compat, errors
from loma.backends.c import Options
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_module
from loma.core.verify import verify
from loma.frontend import parse
from loma.frontend.syntax.long_chains import LONGEST_CHAIN, LONGEST_SUM

DERIVATIVES = "fwd_f = fwd_diff(f)\nrev_f = rev_diff(f)\n"


def checked(text: str, calls: Sequence[tuple[Sequence[Any], float | None]]) -> None:
    """Values on the interpreter and in C; both derivatives, against differences and each other; the
    text of all of it. ``calls``: arguments, and the value where it is known."""
    program = Scalars(text + DERIVATIVES)
    c = CProgram(program.module, Options("double"), ("-O0",))
    for args, expected in calls:
        (found, *_) = program.call("f", args)
        assert expected is None or found == pytest.approx(expected, rel=1e-9)
        along = random_floats(program.inputs("f", args).size, 0)
        check_differences(program, "f", "fwd_f", args, along)
        check_adjoint(program, "f", "fwd_f", "rev_f", args)
        assert c.call("f", *args)[0] == pytest.approx(found, rel=1e-9)
        given = program.adjoint_arguments("f", args, np.array([1.0]))
        np.testing.assert_allclose(
            program.flat(c.call("rev_f", *given), program.outputs("rev_f")),
            program.run("rev_f", given),
            rtol=1e-9,
        )
    again = parse(print_module(program.module))
    verify(again)
    assert again.functions == program.module.functions


@pytest.mark.parametrize("count", one_in(4, [LONGEST_SUM + 1, LONGEST_SUM, 333, 2500]))
def test_sums(count: int) -> None:
    """Of both signs, with one variable in all terms."""
    terms = [f"{'-+'[k % 3 == 0]} x * {k}.0" for k in range(count)]
    text = f"def f(x : In[float]) -> float:\n    return x {' '.join(terms)}\n"
    expected = 1.0 + sum(k if k % 3 == 0 else -k for k in range(count))
    checked(text, [([1.0], expected)])


def test_sums_anywhere() -> None:
    """In conditions, arguments, subscripts and branches that are not taken, inside each other."""
    parts = " + ".join(f"a[{k}] * x" for k in range(150))
    ints = " + ".join(["i"] * 300)
    inner = " - ".join(f"(x - a[{k}])" for k in range(150))
    few = " - ".join(f"(x - a[{k}])" for k in range(5))
    sines = " + ".join(f"sin({few})" for _ in range(120))
    text = f"""
def g(x : In[float], i : In[int]) -> float:
    return x * i

def f(a : In[Array[float]], x : In[float], i : In[int]) -> float:
    y : float
    if {parts} > 1.0:
        y = g({parts}, {ints}) if x < 0.0 else a[{ints}] * sin({inner})
    while ({ints} < 300, max_iter := 3):
        y += x
        i += 1
    return y + ({sines})
"""
    a = [0.01 * k for k in range(150)]
    checked(text, [([a, x, i], None) for x, i in ((0.3, 0), (-0.3, 0), (0.0, 1))])


def test_a_sum_has_its_terms_in_order() -> None:
    """It is that of the same terms, taken from the left in parts: ints are exact."""
    text = "def f(n : In[int]) -> int:\n    return n"
    text += "".join(f" {'+-'[k % 2]} {k * k} * n" for k in range(1000)) + "\n"
    expected = 3 * (1 + sum((1 - k % 2 * 2) * k * k for k in range(1000)))
    assert Interpreter(parse(text)).call("f", 3) == (expected,)
    _, lib = compat.compile(text)
    assert lib.f(3) == expected


def branches(count: int) -> str:
    text = "        if n == 0:\n            y += x\n"
    for k in range(1, count):
        text += f"        elif n == {k} and x > {-k}.0:\n            y += x * x * {k}.0\n"
        text += "            x = sin(x)\n" if k % 7 == 0 else ""
    return text


@pytest.mark.parametrize(
    ("count", "other"), diagonals(3, [LONGEST_CHAIN + 1, LONGEST_CHAIN, 300], [True, False])
)
def test_branches(count: int, other: bool) -> None:
    """In a loop, where another branch is taken each time; with and without an 'else'."""
    text = (
        "def f(x : In[float], n : In[int]) -> float:\n    y : float\n    for i in range(4):\n"
        + branches(count)
        + ("        else:\n            y += 1000.0 * x\n" if other else "")
        + f"        n = n + {count // 3}\n    return y\n"
    )
    calls: list[tuple[Sequence[Any], float | None]] = []
    for n in (0, 7, count - 1):
        expected, x, at = 0.0, 0.9, n
        for _ in range(4):
            if at == 0:
                expected += x
            elif at < count:
                expected += x * x * at
                x = np.sin(x) if at % 7 == 0 else x
            elif other:
                expected += 1000.0 * x
            at += count // 3
        calls.append(([0.9, n], float(expected)))
    checked(text, calls)


@pytest.mark.full
def test_branches_inside_branches() -> None:
    """Both chains are long, and one branch of each is taken; names are those that are free."""
    inner = "".join(f"        {line}\n" for line in branches(150).splitlines())
    text = "def f(x : In[float], n : In[int], _rest : In[int]) -> float:\n    y : float\n"
    text += "    if _rest == 0:\n        y = 1.0\n"
    for k in range(1, 140):
        text += f"    elif _rest == {k}:\n"
        text += inner if k == 120 else f"        y = {k}.0 * x\n"
    text += "    return y\n"
    checked(text, [([0.5, 130, 120], 0.25 * 130), ([0.5, 130, 139], 0.5 * 139)])


@pytest.mark.full
def test_long_programs_from_python() -> None:
    terms = " + ".join(f"x * {k}.0" for k in range(1500))
    text = f"def f(x : In[float]) -> float:\n    return {terms}\n"
    text += "def g(x : In[float], n : In[int]) -> float:\n    y : float\n    for i in range(1):\n"
    text += branches(400) + "    return y\nd_f = rev_diff(f)\nd_g = rev_diff(g)\n"
    module = loma.compile(text)
    _, lib = compat.compile(text)
    assert module.f(1.0) == lib.f(1.0) == sum(range(1500))
    assert module.g(2.0, 399) == lib.g(2.0, 399) == 4.0 * 399
    assert module.d_g(2.0, 398, 1.0)[0] == 4.0 * 398
    d_x = ctypes.c_float()
    lib.d_f(1.0, d_x, 1.0)
    assert d_x.value == sum(range(1500))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("    return " + " + ".join(["x"] * 30_000) + "\n", "split a long expression"),
        ("    return x" + " * x" * 200 + "\n", "split a long expression"),
        ("    return x" + " ** x" * 200 + "\n", "split a long expression"),
        ("    y : float\n    if x < 0.0:\n        y = 1.0\n"
         + "    elif x < 1.0:\n        y = 2.0\n" * 20_000 + "    return y\n", "chain of so many"),
        ("    return " + "x if x > 0.0 else " * 200 + "x\n", "split a long expression"),
    ],
    ids=["sum", "product", "power", "branches", "conditional"],
)  # fmt: skip
def test_what_is_too_long_is_told_once(text: str, hint: str) -> None:
    with pytest.raises(errors.SyntaxNotSupported, match="nested more than 150 levels") as caught:
        parse(f"def f(x : In[float]) -> float:\n{text}")
    assert hint in str(caught.value.hint)
    assert caught.value.lineno
